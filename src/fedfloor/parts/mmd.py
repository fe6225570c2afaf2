"""FedMMD's objective: two streams, the model under training and a frozen copy of the one that arrived."""

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

WIDTHS = (
    1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 100.0, 1e3, 1e4, 1e5, 1e6,
)  # fmt: skip


@dataclass(frozen=True)
class Mmd(Objective):
    """F(w) + λ·MMD²(logits of w_start, logits of w) on the same mini-batch.

    w_start, the model as it arrived, is the frozen stream: no gradient, in evaluation mode (no dropout, batch norm by
    its own statistics), so that the draws of the trained stream are those of a plain visit. Of the authors' code
    (thu-media/TwoStreamFederatedLearning) come the logits, the kernel and λ = 0.1; its floor of 10⁻⁴ under the term is
    left out, it only stopped the smallest gradients. With λ = 0 it is plain cross-entropy to the bit. Yao et al.,
    VCIP 2018.

    Args:
        weight: λ ≥ 0.
    """

    weight: float = 0.1

    def __post_init__(self) -> None:
        require(0 <= self.weight < math.inf, "objective mmd: weight", self.weight, "a number of at least 0")

    @property
    def needs_start(self) -> bool:
        """Whether there is a second stream."""
        return self.weight > 0

    def passes(self, of: float) -> float:
        """Add the second stream."""
        return of + forward_cost(of) if self.weight else of

    def per_sample(self, x: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return the logits of the model as it arrived, [samples, classes]."""
        return {"logits": frozen(visit, x)} if self.weight else {}

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return (cross-entropy + λ·MMD² [], logits of the trained stream [batch, classes])."""
        loss, logits = Plain().loss(module, x, y, visit)
        if self.weight:
            loss = loss + self.weight * mmd_squared(visit.per_sample["logits"], logits)
        return loss, logits


def mmd_squared(fixed: Tensor, b: Tensor) -> Tensor:
    """Return MMD²(a, b) = mean k(aᵢ, aⱼ) + mean k(bᵢ, bⱼ) − 2 mean k(aᵢ, bⱼ), k(u, v) = Σ_s exp(−‖u − v‖²/(2s)).

    The biased estimate, never negative but for rounding; s goes over :data:`WIDTHS`. Gretton et al., JMLR 2012.

    Args:
        fixed: samples a [n, C], which get no gradient.
        b: samples [n, C].

    >>> import torch
    >>> round(float(mmd_squared(torch.zeros(3, 2), torch.zeros(3, 2))), 4)
    0.0
    """
    from fedfloor.parts.kernels import Discrepancy

    total: Tensor = Discrepancy.apply(fixed.detach(), b, WIDTHS)  # type: ignore[no-untyped-call]
    return total.clamp(min=0) / len(b) ** 2
