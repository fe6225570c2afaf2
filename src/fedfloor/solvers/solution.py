"""What a solver hands back: a choice, its value, and how good any choice could be at best."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

Choice = TypeVar("Choice")
Status = Literal["optimal", "feasible"]
PROOF = 1e-9  # value and bound closer than this (relative) are equal: rounding of a few sums and exponentials


@dataclass(frozen=True)
class Solution(Generic[Choice]):
    """A choice with its value and a proven bound; solvers minimise.

    Args:
        status: ``"optimal"``: no choice has a value below this one by more than one part in 10⁹; or ``"feasible"``.
        value: of the choice.
        bound: no choice has a smaller value.
        choice: what was chosen.
        seconds: wall time of the solver.

    >>> Solution("feasible", 6.0, 5.0, None, 0.01).gap
    0.19999999999999996
    """

    status: Status
    value: float
    bound: float
    choice: Choice
    seconds: float

    @property
    def gap(self) -> float:
        """value/bound − 1: by how much the value can at most be beaten; inf where nothing is known."""
        if self.value == self.bound:
            return 0.0
        return self.value / self.bound - 1 if self.bound > 0 else math.inf


def solved(value: float, bound: float, choice: Choice, seconds: float) -> Solution[Choice]:
    """Return the solution with the status that its value and bound earn; the bound never exceeds the value.

    >>> solved(2.0, 2.0 * (1 - 1e-12), None, 0.0).status
    'optimal'
    """
    status: Status = "optimal" if bound >= value * (1 - PROOF) else "feasible"
    return Solution(status, value, min(value, bound), choice, seconds)
