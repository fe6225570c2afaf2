"""The methods by name."""

from __future__ import annotations

import dataclasses
from inspect import getdoc, signature
from typing import Any

from fedfloor.base.errors import SettingError, unknown
from fedfloor.base.outside import load as load_outside
from fedfloor.methods.astraea import Astraea
from fedfloor.methods.asynchronous import FedAsync, FedBuff
from fedfloor.methods.boosting import Boosting
from fedfloor.methods.cgau import CGAU
from fedfloor.methods.cohorts import FLHC, IFCA
from fedfloor.methods.contract import Method
from fedfloor.methods.exact.aft import AFT
from fedfloor.methods.exact.bayes import Bayes
from fedfloor.methods.exact.charts import CUSUM, EWMA, Hotelling, Shewhart, XbarS
from fedfloor.methods.exact.components import Components
from fedfloor.methods.exact.cox import Cox
from fedfloor.methods.exact.kaplanmeier import KaplanMeier
from fedfloor.methods.exact.kmeans import KMeans
from fedfloor.methods.exact.logistic import Logistic
from fedfloor.methods.exact.percentiles import Percentiles
from fedfloor.methods.exact.ridge import Ridge
from fedfloor.methods.exact.sums import ExactSums
from fedfloor.methods.fedavg import FedAvg
from fedfloor.methods.fedcs import FedCS
from fedfloor.methods.fedfusion import FedFusion
from fedfloor.methods.fedgs import FedGS
from fedfloor.methods.fedl import FEDL
from fedfloor.methods.fedsr import FedSR, Ring
from fedfloor.methods.fldg import FLDG, FLDGL
from fedfloor.methods.hfedms import HFedMS
from fedfloor.methods.hierfavg import HierFAVG
from fedfloor.methods.kcenter import KCenter
from fedfloor.methods.pca import Pca
from fedfloor.methods.personal import APFL, Ditto, FedBN, FedPer, FedRep
from fedfloor.methods.presets import QFFL, FedAdagrad, FedAdam, FedAvgM, FedMMD, FedProx, FedYogi, Ida, Moon
from fedfloor.methods.rafed import RaFed
from fedfloor.methods.references import Centralized, GradientBoosting, LocalOnly, MeanAbsZ, Persistence, Seasonal
from fedfloor.methods.scaffold import Scaffold
from fedfloor.parts.objectives.registry import SUMS
from fedfloor.parts.work import DEFAULTS, WorkSettings

_METHODS: tuple[type[Method], ...] = (
    FedAvg, FedProx, Moon, FedMMD, FedFusion, FEDL, Scaffold, QFFL, Ida, FedAvgM, FedAdagrad, FedAdam, FedYogi, CGAU,
    FedCS, RaFed, FedGS, HFedMS, Astraea, FLDG, FLDGL, KCenter, FedSR, Ring, HierFAVG, FedAsync, FedBuff, FedPer,
    FedRep, FedBN, Ditto, APFL, IFCA, FLHC, Boosting, Centralized,
)  # fmt: skip
METHODS = {method.__name__.lower(): method for method in _METHODS}
# models that are sums: docs/exact.md
_EXACT: tuple[type[ExactSums], ...] = (
    Shewhart, XbarS, EWMA, CUSUM, Hotelling, Components, Percentiles, Ridge, Logistic, Bayes, KMeans, KaplanMeier, AFT,
    Cox,
)  # fmt: skip
EXACT = {method.__name__.lower(): method for method in _EXACT}
SUMS.update(EXACT)  # plans name them as the objectives of devices
# references for methods: no federation, or no training
REFERENCES: dict[str, type[Method]] = {
    "local-only": LocalOnly, "scikit-learn": GradientBoosting, "persistence": Persistence, "seasonal": Seasonal,
    "mean-abs-z": MeanAbsZ, "pca": Pca,
}  # fmt: skip

COMMON = {  # settings of most methods, described only in docstrings of methods that give them a further meaning
    "fraction": "C in (0, 1], the share of devices drawn in a round.",
    "work": "of a visit.",
}


def find(name: str, key: str = "") -> type[Method]:
    """Return a method's class by name, or the user's ``module:Name``; SettingError: it is unknown or no method."""
    if ":" in name:
        method = load_outside(name, "method")
        if not (isinstance(method, type) and hasattr(method, "plan") and hasattr(method, "__dataclass_fields__")):
            raise SettingError(f"method '{name}' is not a dataclass with a 'plan': see the how-to on writing a method.")
        if "__dataclass_fields__" not in vars(method) and vars(method).get("__annotations__"):
            raise SettingError(
                f"method '{name}' has settings of its own: write @dataclass(frozen=True) before its class."
            )
        hooks = ("setup", "init", "absorb", "objective", "server")
        lacking = [f"'{hook}'" for hook in hooks if not hasattr(method, hook)]
        if lacking:
            raise SettingError(f"method '{name}' has no {', '.join(lacking)}: derive it from fedfloor.Method.")
        try:
            signature(method.plan).bind("self", "state", "view", "rng")
        except TypeError as error:
            raise SettingError(f"method '{name}': plan must take (self, state, view, rng): {error}.") from error
        return method
    known = {**METHODS, **EXACT, **REFERENCES}
    if name not in known:
        raise SettingError(f"{key}{': ' if key else ''}{unknown('method', name, [*METHODS, *EXACT])}")
    return known[name]


def title(name: str) -> str:
    """Return a method's name in the spelling of papers; any other name unchanged.

    >>> title("fedsr"), title("qffl"), title("mine:Halves")
    ('FedSR', 'q-FFL', 'mine:Halves')
    """
    kind = METHODS.get(name) or EXACT.get(name) or REFERENCES.get(name)
    return name if kind is None else kind.title or kind.__name__


def card(name: str) -> tuple[str, list[dict[str, Any]]]:
    """Return a method's description, and a row per setting with its default; a method's own settings come first.

    >>> card("fedprox")[1][0]
    {'setting': 'mu', 'default': 0.01}
    """
    kind = find(name)
    text = getdoc(kind) or ""
    rows = []
    for field in sorted(dataclasses.fields(kind), key=lambda field: field.name in COMMON):  # type: ignore[arg-type]
        if field.name in COMMON and f"    {field.name}: " not in text:
            text += ("" if "Args:" in text else "\n\nArgs:") + f"\n    {field.name}: {COMMON[field.name]}"
        if isinstance(field.default, WorkSettings):
            settings = vars(field.default.over(DEFAULTS)).items()
            rows += [{"setting": f"work.{key}", "default": value} for key, value in settings if value is not None]
        else:
            usual = None if field.default is dataclasses.MISSING else field.default
            rows.append({"setting": field.name, "default": vars(usual) if dataclasses.is_dataclass(usual) else usual})
    return text, rows
