"""Objectives that correct every local step by a fixed vector s, a linear term ⟨s, w − w_start⟩: FEDL and SCAFFOLD."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedfloor.base.errors import RunError, SettingError, require
from fedfloor.parts.objectives.objective import Objective, Plain, Visit

if TYPE_CHECKING:
    from torch import Tensor


def linear_term(slope: Tensor, visit: Visit) -> dict[str, Tensor]:
    """Return the values that ``begin`` adds for the slope s [trained]; the network must hold w_start."""
    return {"slope": slope, "height": slope.dot(visit.resident().flat[: len(slope)])}


def linear_penalty(weights: Tensor, ready: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return (⟨s, w − w_start⟩ [], its gradient [trained]); the gradient is s itself, which no step may change."""
    return weights.dot(ready["slope"]).sub_(ready["height"]), ready["slope"]


@dataclass(frozen=True)
class Corrected(Objective):
    """J_k(w) = F_k(w) + weight·⟨η·ḡ − ∇F_k(w_start), w − w_start⟩ over the trained parameters.

    With weight = 1 the local step is FEDL's, w ← w − lr·(∇F_k(w; batch) + η·ḡ − ∇F_k(w_start)). ḡ travels down as
    ``grad``; the gradient over all the device's samples at its final model travels up, and the mean of these gradients
    is the next ḡ. ∇F_k(w_start) is computed on arrival. A visit thus has two more passes over the samples, both in
    evaluation mode. The constant −weight·⟨…, w_start⟩, which the paper omits, changes no gradient; with it the term is
    0 at the start, and losses can be compared with those of other methods.

    With weight = 0 it is plain cross-entropy to the bit, and nothing travels beside the model. (With η = 0 the term
    −∇F_k(w_start) remains.)

    Dinh et al., IEEE/ACM Transactions on Networking 2021, arXiv 1910.13067.

    Args:
        weight: the weight of the correction, at least 0; 1 is FEDL.
        eta: η ≥ 0, the share of the mean gradient that the devices follow.
    """

    weight: float = 1.0
    eta: float = 0.2

    def __post_init__(self) -> None:
        require(0 <= self.weight < math.inf, "objective corrected: weight", self.weight, "a number of at least 0")
        require(0 <= self.eta < math.inf, "objective corrected: eta", self.eta, "a number of at least 0")

    @property
    def travels(self) -> tuple[str, ...]:
        return ("grad",) if self.weight > 0 else ()

    def passes(self, trained: float) -> float:
        return trained + 2 if self.weight > 0 else trained

    def begin(self, visit: Visit) -> Mapping[str, Tensor]:
        if self.weight == 0:
            return {}
        own = _gradient(visit)
        return linear_term((visit.packet["grad"] * self.eta).sub_(own).mul_(self.weight), visit)

    loss = Plain.loss

    def penalty(self, weights: Tensor, visit: Visit) -> tuple[Tensor, Tensor] | None:
        return linear_penalty(weights, visit.ready) if self.weight > 0 else None

    def send(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        return {"grad": _gradient(visit)} if self.weight > 0 else {}


def _gradient(visit: Visit) -> Tensor:
    if visit.gradient is None:
        raise RunError(
            "objective corrected needs the gradient over all of a device's samples: Visit(gradient=…).",
            key="visit-lacks",
        )
    return visit.gradient()


@dataclass(frozen=True)
class Variates(Objective):
    r"""F_k(y) + ⟨c − c_k, y − x⟩ over the trained parameters: the local step y ← y − η(g + c − c_k).

    x is the arrived model, y the model under training. The control variate c of all devices travels down as ``c``; the
    device keeps its own c_k, 0 at first. After K steps, by option II of the paper,

        c_k⁺ = c_k − c + (x − y)/(η·K_eff),

    and c + (c_k⁺ − c_k) travels up, so that the mean of the uploads is c plus the mean change.

    Without momentum K_eff = K. With momentum β the velocity is v_t = Σ_{s≤t} β^(t−s)·(g_s + c − c_k), hence

        x − y = η·Σ_t v_t = η·Σ_s a_s·(g_s + c − c_k),  a_s = 1 + β + … + β^(K−s) = (1 − β^(K−s+1))/(1 − β),

    and K_eff = Σ_s a_s = Σ_{t=1…K} (1 − β^t)/(1 − β) gives c_k⁺ = Σ_s a_s·g_s / Σ_s a_s: a weighted mean of the visit's
    gradients, as without momentum. (NIID-Bench's code corrects the weights outside of the momentum and divides by K;
    c_k then grows to about 1/(1 − β) times a gradient.) With weight decay g is the gradient with decay.

    Karimireddy et al., ICML 2020, arXiv 1910.06378.
    """

    needs_start = assumes_sgd = True  # c_k⁺ is computed from (x − y)/(η·K_eff)
    remembers = True  # c_k
    travels = ("c",)
    counts_equally = True  # so that c stays the mean of all c_k

    def begin(self, visit: Visit) -> Mapping[str, Tensor]:
        trained = visit.resident().trained
        _check("the packet's 'c'", visit.packet["c"], trained)
        if "c" in visit.memory:
            _check("a device's memory 'c'", visit.memory["c"], trained)
        return linear_term(_away(visit), visit)

    loss = Plain.loss

    def penalty(self, weights: Tensor, visit: Visit) -> tuple[Tensor, Tensor] | None:
        return linear_penalty(weights, visit.ready)

    def remember(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        return {"c": renewed(model, visit)}

    def send(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        return {"c": renewed(model, visit).add_(_away(visit))}


def renewed(model: Tensor, visit: Visit) -> Tensor:
    """Return c_k⁺ = (x − y)/(η·K_eff) − (c − c_k), [trained]; c_k if η = 0, as at the end of a cosine schedule to 0.

    ``model``: y, the device's final flat model, [P].
    """
    away = _away(visit)
    if visit.work.rate == 0:
        return visit.memory["c"].clone() if "c" in visit.memory else away.new_zeros(len(away))
    went = visit.arrived()[: len(away)] - model[: len(away)]
    return went.div_(visit.work.rate * effective(visit.steps, visit.work.momentum)).sub_(away)


def effective(steps: int, momentum: float) -> float:
    """Return K_eff, the distance covered by K steps with unit gradients and unit rate: Σ_{t=1…K} (1 − β^t)/(1 − β).

    ``steps``: K ≥ 1. ``momentum``: β in [0, 1).

    >>> effective(3, 0.0), effective(3, 0.5)  # 1 + 1.5 + 1.75
    (3.0, 4.25)
    """
    velocity = far = 0.0
    for _ in range(steps):  # no closed form: its differences cancel if β is close to 1
        velocity = momentum * velocity + 1
        far += velocity
    return far


def _away(visit: Visit) -> Tensor:
    if "slope" in visit.ready:
        return visit.ready["slope"]
    shared = visit.packet["c"]
    return shared - visit.memory["c"] if "c" in visit.memory else shared.clone()


def _check(name: str, variate: Tensor, trained: int) -> None:
    if variate.shape != (trained,):
        raise SettingError(
            f"{name} has {variate.numel()} numbers, must have {trained}, one per trained number of the model: it "
            "belongs to another model. Resume with the model of the checkpoint, or start a new run.",
            key="variate",
        )
