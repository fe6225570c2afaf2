"""FedProx's objective: a pull back to the model that arrived."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedfloor.errors import require
from fedfloor.parts.objective import Objective, Plain, Visit

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Prox(Objective):
    """F(w) + (μ/2)‖w − w_start‖² over the trained parameters, with the whole gradient ∇F(w) + μ(w − w_start).

    w_start is the model as it arrived at this visit: the global model where devices train alone, the neighbour's in a
    ring. Frozen parameters and batch-norm statistics are not pulled. With μ = 0 it is plain cross-entropy to the bit.
    Li et al., MLSys 2020, arXiv 1812.06127.

    Args:
        mu: μ ≥ 0. The paper tried 0.001, 0.01, 0.1 and 1; there is no one value for all data, so no default.
    """

    mu: float

    def __post_init__(self) -> None:
        require(0 <= self.mu < math.inf, "objective prox: mu", self.mu, "a number of at least 0")

    @property
    def needs_start(self) -> bool:
        """Whether there is a pull."""
        return self.mu > 0

    loss = Plain.loss

    def begin(self, visit: Visit) -> Mapping[str, Tensor]:
        """Return room for w − w_start: fresh memory for it at every step costs as much as working it out."""
        return {"away": visit.arrived().new_empty(len(visit.arrived()))} if self.mu else {}

    def penalty(self, weights: Tensor, visit: Visit) -> tuple[Tensor, Tensor] | None:
        """Return ((μ/2)‖w − w_start‖² [], μ(w − w_start) [trained], good until the next call); None with μ = 0."""
        if self.mu == 0:
            return None
        import torch

        room = (visit.ready or self.begin(visit))["away"]
        start = visit.arrived()[visit.first : visit.first + len(weights)]
        away = torch.sub(weights, start, out=room[: len(weights)])
        return away.dot(away).mul_(self.mu / 2), away.mul_(self.mu)
