"""Distillation from the model that arrived: what the network says of a sample is held near what it said then."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedfloor.errors import require
from fedfloor.parts.frozen import frozen
from fedfloor.parts.objective import Objective, Plain, Visit
from fedfloor.plan.nodes import forward_cost

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Distilled(Objective):
    """F(w) + λ·KL(softmax(f(x; w_start)) ‖ softmax(f(x; w))), summed over the classes, mean over the mini-batch.

    w_start is the model as it arrived: no gradient, in evaluation mode. With λ = 0 it is plain cross-entropy to the
    bit. HFedMS's reference code (slz-ai/hfedms) adds it in full synchronisations, of which the paper says nothing; its
    λ = 0.1 is of the mean over the 62 classes, which is ``weight = 0.1/62`` here. Hinton, Vinyals and Dean,
    arXiv 1503.02531, at temperature 1.

    Args:
        weight: λ ≥ 0.
    """

    weight: float = 0.1

    def __post_init__(self) -> None:
        require(0 <= self.weight < math.inf, "objective distilled: weight", self.weight, "a number of at least 0")

    @property
    def needs_classes(self) -> bool:
        """True: the divergence is one of class probabilities."""
        return True

    @property
    def needs_start(self) -> bool:
        """Whether there is a second stream."""
        return self.weight > 0

    def passes(self, of: float) -> float:
        """Add the second stream."""
        return of + forward_cost(of) if self.weight else of

    def per_sample(self, x: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return the logarithms of what the model as it arrived says, [samples, classes]."""
        return {"said": frozen(visit, x).log_softmax(1)} if self.weight else {}

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return (cross-entropy + λ·KL [], logits [batch, classes])."""
        from torch.nn.functional import kl_div

        loss, logits = Plain().loss(module, x, y, visit)
        if self.weight:
            apart = kl_div(logits.log_softmax(1), visit.per_sample["said"], reduction="batchmean", log_target=True)
            loss = loss + self.weight * apart
        return loss, logits
