"""The methods by name."""

from __future__ import annotations

from inspect import signature

from fedfloor.errors import SettingError, unknown
from fedfloor.methods.centralized import Centralized
from fedfloor.methods.cgau import CGAU
from fedfloor.methods.contract import Method
from fedfloor.methods.fedavg import FedAvg
from fedfloor.methods.fedprox import FedProx
from fedfloor.methods.fedsr import FedSR
from fedfloor.methods.hierfavg import HierFAVG
from fedfloor.methods.ring import Ring
from fedfloor.outside import load as load_outside

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "cgau": CGAU,
    "fedsr": FedSR,
    "ring": Ring,
    "hierfavg": HierFAVG,
    "centralized": Centralized,
}


def find(name: str) -> type[Method]:
    """Return a method's class by name, or ``module:Name`` of your own.

    Raises:
        SettingError: no method of this name; the nearest one is named.
    """
    if ":" in name:
        method = load_outside(name, "method")
        if not (isinstance(method, type) and hasattr(method, "plan") and hasattr(method, "__dataclass_fields__")):
            raise SettingError(f"method '{name}' is no dataclass with a 'plan': see the how-to on writing a method.")
        lacking = [f"'{one}'" for one in ("setup", "init", "absorb", "objective", "server") if not hasattr(method, one)]
        if lacking:
            raise SettingError(
                f"method '{name}' has no {', '.join(lacking)}: derive it from fedfloor.methods.contract.Method."
            )
        try:
            signature(method.plan).bind("self", "state", "view", "rng")
        except TypeError as error:
            raise SettingError(f"method '{name}': plan must take (self, state, view, rng): {error}.") from error
        return method
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
