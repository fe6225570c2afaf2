"""Focal loss: samples that are classified well already count less."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedfloor.errors import require
from fedfloor.parts.weighted import CENSUS, EQUAL, PerSample, check_settings, class_weights, numbers

if TYPE_CHECKING:
    from torch import Tensor

LEAST = 1e-12  # of 1 − p: below 1 the power's slope at 0 is infinite


@dataclass(frozen=True)
class Focal(PerSample):
    """(1/b) Σ_i a_{y_i}·(1 − p_i)^γ·ℓ_i, ℓ_i = −log p_i the cross-entropy of sample i, p_i its class's probability.

    With γ = 0 it is the objective ``weighted`` to the bit, and with equal weights plain cross-entropy. Lin et al.,
    "Focal loss for dense object detection", ICCV 2017, arXiv 1708.02002; its α is a weight per class here.

    Args:
        gamma: γ ≥ 0; the paper's best is 2.
        weights: left out, every class counts 1; ``"census"`` or F numbers as in ``weighted``.
        smoothing: as in ``weighted``.
        cap: as in ``weighted``.
    """

    gamma: float = 2.0
    weights: str = EQUAL
    smoothing: float = 1.0
    cap: float = 100.0

    def __post_init__(self) -> None:
        require(0 <= self.gamma < math.inf, "objective focal: gamma", self.gamma, "a number of at least 0")
        check_settings("focal", self)

    @property
    def is_plain(self) -> bool:
        """Whether γ is 0 and every class counts 1."""
        return self.gamma == 0 and (self.weights == EQUAL or (self.weights != CENSUS and self._equal))

    @property
    def _equal(self) -> bool:
        return set(numbers(self.weights)) == {1.0}

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return a_{y_i}·(1 − p_i)^γ·ℓ_i, [n]."""
        from torch.nn.functional import cross_entropy

        each = cross_entropy(logits, y, reduction="none")
        if self.gamma:
            each = each * (-(-each).expm1()).clamp(min=LEAST).pow(self.gamma)
        return each if self.weights == EQUAL else each * class_weights(self, logits)[y]
