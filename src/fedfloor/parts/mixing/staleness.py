"""Staleness: by how much a result counts that was trained from an earlier model.

Xie, Koyejo and Gupta, arXiv 1903.03934, section 5.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedfloor.base.errors import require


@dataclass(frozen=True)
class Constant:
    """s(τ) = 1.

    >>> Constant().weight(7)
    1.0
    """

    kind: Literal["constant"] = "constant"

    def weight(self, age: int) -> float:
        """Return s(τ); ``age``: τ, the number of models made since the visit departed."""
        return 1.0


@dataclass(frozen=True)
class Polynomial:
    """s(τ) = (1 + τ)^(−a).

    Args:
        power: a ≥ 0.

    >>> Polynomial(power=0.5).weight(3)
    0.5
    """

    power: float = 0.5
    kind: Literal["polynomial"] = "polynomial"

    def __post_init__(self) -> None:
        require(self.power >= 0, "staleness.power", self.power, "0 or more")

    def weight(self, age: int) -> float:
        """Return s(τ); ``age``: τ, the number of models made since the visit departed."""
        return float((1 + age) ** -self.power)


@dataclass(frozen=True)
class Hinge:
    """s(τ) = 1 up to the age b, then 1/(a·(τ − b) + 1).

    Args:
        slope: a ≥ 0.
        bound: b ≥ 0.

    >>> Hinge(slope=10, bound=4).weight(4), Hinge(slope=1, bound=4).weight(5)
    (1.0, 0.5)
    """

    slope: float = 10.0
    bound: int = 4
    kind: Literal["hinge"] = "hinge"

    def __post_init__(self) -> None:
        require(self.slope >= 0, "staleness.slope", self.slope, "0 or more")
        require(self.bound >= 0, "staleness.bound", self.bound, "0 or more")

    def weight(self, age: int) -> float:
        """Return s(τ); ``age``: τ, the number of models made since the visit departed."""
        return 1.0 if age <= self.bound else 1.0 / (self.slope * (age - self.bound) + 1.0)


Staleness = Constant | Polynomial | Hinge
