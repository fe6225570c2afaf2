"""FEDL's objective: every step is corrected towards the gradient of all devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedfloor.errors import RunError, require
from fedfloor.parts.linear import tilt, tilted
from fedfloor.parts.objective import Objective, Plain, Visit

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Corrected(Objective):
    """J_k(w) = F_k(w) + weight·⟨η·ḡ − ∇F_k(w_start), w − w_start⟩ over the trained parameters.

    With weight = 1 the local step is FEDL's, w ← w − lr·(∇F_k(w; batch) + η·ḡ − ∇F_k(w_start)). ḡ travels down as
    ``grad``; the gradient over all the device's samples at the model it ended with travels up, and the mean of what
    comes up is the next ḡ. ∇F_k(w_start) is worked out on arrival: two passes more over the samples in a visit, both
    in evaluation mode. The constant −weight·⟨…, w_start⟩, which the paper leaves out, changes no gradient; with it the
    term is 0 at the start, and the losses reported can be compared with those of other methods.

    With weight = 0 it is plain cross-entropy to the bit, and nothing travels beside the model. (η = 0 is something
    else: −∇F_k(w_start) stays.)

    Dinh et al., IEEE/ACM Transactions on Networking 2021, arXiv 1910.13067.

    Args:
        weight: of the correction, at least 0; 1 is FEDL.
        eta: η ≥ 0, how much of the mean gradient the devices follow.
    """

    weight: float = 1.0
    eta: float = 0.2

    def __post_init__(self) -> None:
        require(0 <= self.weight < math.inf, "objective corrected: weight", self.weight, "a number of at least 0")
        require(0 <= self.eta < math.inf, "objective corrected: eta", self.eta, "a number of at least 0")

    @property
    def travels(self) -> tuple[str, ...]:
        """ḡ, where there is a correction."""
        return ("grad",) if self.weight > 0 else ()

    def passes(self, of: float) -> float:
        """Add the gradients at the model as it arrives and as it leaves."""
        return of + 2 if self.weight > 0 else of

    def begin(self, visit: Visit) -> Mapping[str, Tensor]:
        """Work out weight·(η·ḡ − ∇F_k(w_start))."""
        if self.weight == 0:
            return {}
        own = _gradient(visit)
        return tilt((visit.packet["grad"] * self.eta).sub_(own).mul_(self.weight), visit)

    loss = Plain.loss

    def penalty(self, weights: Tensor, visit: Visit) -> tuple[Tensor, Tensor] | None:
        """Return the linear term [] and its gradient [trained]; None with weight = 0."""
        return tilted(weights, visit.ready) if self.weight > 0 else None

    def send(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Return the gradient over all samples at the model the device ended with."""
        return {"grad": _gradient(visit)} if self.weight > 0 else {}


def _gradient(visit: Visit) -> Tensor:
    if visit.gradient is None:
        raise RunError("objective corrected needs the gradient over all of a device's samples: Visit(gradient=…).")
    return visit.gradient()
