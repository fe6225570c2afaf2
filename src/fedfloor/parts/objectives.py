"""The objectives by name, with their settings checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from fedfloor.errors import SettingError, unknown
from fedfloor.outside import load as load_outside
from fedfloor.parts.mmd import Mmd
from fedfloor.parts.objective import Objective, Plain
from fedfloor.parts.prox import Prox
from fedfloor.plan.nodes import Scalar

OBJECTIVES: dict[str, Callable[..., Objective]] = {"plain": Plain, "prox": Prox, "mmd": Mmd}


def objective(name: str, settings: Mapping[str, Scalar]) -> Objective:
    """Return an objective by name, or ``module:Name`` of your own, with its settings.

    Raises:
        SettingError: no objective of this name, a setting it does not have, one that is missing or out of range.

    >>> objective("prox", {"mu": 0.1})
    Prox(mu=0.1)
    """
    if ":" in name:
        make: Callable[..., Objective] = load_outside(name, "objective")
    elif name in OBJECTIVES:
        make = OBJECTIVES[name]
    else:
        raise unknown("objective", name, OBJECTIVES)
    _check(name, make, settings)
    return make(**settings)


def _check(name: str, make: Callable[..., Objective], settings: Mapping[str, Scalar]) -> None:
    try:
        known = inspect.signature(make).parameters
    except (TypeError, ValueError):  # not everything callable says what it takes
        return
    if any(one.kind is one.VAR_KEYWORD for one in known.values()):
        return
    for key in settings:
        if not known:
            raise SettingError(f"objective '{name}' has no settings, but got '{key}': leave it out.")
        if key not in known:
            raise unknown(f"setting of objective '{name}'", key, known)
    for key, one in known.items():
        if key not in settings and one.default is one.empty and one.kind is not one.VAR_POSITIONAL:
            raise SettingError(f"objective '{name}' needs the setting '{key}': it has no default.")
