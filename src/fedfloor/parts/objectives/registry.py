"""The objectives by name, with checked settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fedfloor.base.errors import SettingError
from fedfloor.parts import named
from fedfloor.parts.mixing.weighting import FITS, Focal, PerSample, Reweighted, Weighted
from fedfloor.parts.objectives.correction import Corrected, Variates
from fedfloor.parts.objectives.layers import Fusion, Gated
from fedfloor.parts.objectives.objective import Objective, Plain
from fedfloor.parts.objectives.proximal import Contrastive, Distilled, Interpolated, Mmd, Prox, Represented
from fedfloor.parts.objectives.replay import Replay
from fedfloor.parts.trees.histograms import Histograms
from fedfloor.plan.nodes import Scalar

if TYPE_CHECKING:
    from torch import Tensor

_OBJECTIVES: tuple[type[Objective], ...] = (
    Plain, Prox, Mmd, Distilled, Contrastive, Fusion, Gated, Corrected, Variates, Replay, Weighted, Focal,
)  # fmt: skip
OBJECTIVES: dict[str, Callable[..., Objective]] = {goal.__name__.lower(): goal for goal in _OBJECTIVES}
# with methods' own objectives, which no setting may name
PLANNED = {**OBJECTIVES, "interpolated": Interpolated, "histograms": Histograms}
SUMS: dict[str, Callable[..., Objective]] = {}  # models that are sums, which the catalogue of methods names
REWEIGHTED = "reweighted"  # in plans: a method's own objective with the losses per sample that ``[method]`` names


def objective(name: str, settings: Mapping[str, Scalar]) -> Objective:
    """Return an objective by name, or the user's ``module:Name``, with its settings.

    >>> objective("prox", {"mu": 0.1})
    Prox(mu=0.1)
    """
    if name == REWEIGHTED:
        return _reweighted(settings)
    known = SUMS if name in SUMS else PLANNED
    goal = named.make("objective", name, settings, known, Objective, ("loss",))
    if isinstance(goal, Represented):
        named.complete("objective", name, goal, Represented, writes=("term",))
    return goal  # type: ignore[no-any-return]


def _reweighted(settings: Mapping[str, Scalar]) -> Reweighted:
    parts = []
    for part in ("own", "samples"):
        own_settings = {
            key.removeprefix(f"{part}."): value for key, value in settings.items() if key.startswith(f"{part}.")
        }
        if settings.get(part) not in PLANNED:
            raise SettingError(f"objective '{REWEIGHTED}': {part} must be one of {', '.join(PLANNED)}.")
        parts.append(objective(str(settings[part]), own_settings))
    own, data = parts
    if type(own) not in FITS or not isinstance(data, PerSample):
        raise SettingError(f"objective '{REWEIGHTED}': '{settings['own']}' and '{settings['samples']}' do not combine.")
    return Reweighted(own, data)


def to_spec(goal: Objective) -> tuple[str, dict[str, Scalar]]:
    """Return an objective's name and settings.

    >>> to_spec(Prox(0.5))
    ('prox', {'mu': 0.5})
    """
    if isinstance(goal, Reweighted):
        (own, own_settings) = to_spec(goal.part)
        (samples, sample_settings) = to_spec(goal.data)
        about = {f"own.{key}": value for key, value in own_settings.items()} | {
            f"samples.{key}": v for key, v in sample_settings.items()
        }
        return REWEIGHTED, {"own": own, "samples": samples, **about}
    return named.to_spec(goal, {**PLANNED, **SUMS})


def beside(goal: Objective, name: str, packet: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the vectors of a packet that an objective reads beside the model."""
    for wanted in goal.travels:
        if wanted not in packet:
            raise SettingError(
                f"objective '{name}' needs '{wanted}' to travel beside the model: use it with the method it belongs "
                "to, whose server keeps it."
            )
    return {wanted: packet[wanted] for wanted in goal.travels}


def sent(name: str, values: Mapping[str, Tensor], arrived: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the result of an objective's ``send``, checked against the vectors that arrived (:func:`beside`).

    A vector of another size or type could not be averaged with the unchanged vector of a lost visit.
    """
    for key, value in values.items():
        if key not in arrived:
            raise SettingError(
                f"objective '{name}' sends '{key}', which does not travel beside the model: name it in 'travels', and "
                "let the method's init give it its first value."
            )
        got = (value.dtype, tuple(value.shape))
        wanted = (arrived[key].dtype, tuple(arrived[key].shape))
        if got != wanted:
            raise SettingError(
                f"objective '{name}' sends '{key}' as {got[0]} of shape {got[1]}: it arrived as {wanted[0]} of shape "
                f"{wanted[1]}, and must be sent as it arrived."
            )
    return values
