"""The result of a solver (a choice, its value, a bound on every value), and the compilation of kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import RunError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Function = TypeVar("Function", bound=Callable[..., Any])
Choice = TypeVar("Choice")
Status = Literal["optimal", "feasible"]
SAME = 1e-9  # relative difference of two ways to add up the same numbers
PROOF = 1e-9  # value and bound with a smaller relative difference are equal: rounding of a few sums and exponentials


@dataclass(frozen=True)
class Solution(Generic[Choice]):
    """A choice with its value and a proven bound; solvers minimise.

    Args:
        status: ``"optimal"``: no choice's value is smaller by more than one part in 10⁹; else ``"feasible"``.
        value: the value of the choice.
        bound: a lower bound of the values of all choices.
        seconds: the wall time of the solver.

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
        """The gap value/bound − 1: the largest possible improvement of the value; inf without a bound."""
        if self.value == self.bound:
            return 0.0
        return self.value / self.bound - 1 if self.bound > 0 else math.inf


def solved(value: float, bound: float, choice: Choice, seconds: float) -> Solution[Choice]:
    """Return the solution with the status that follows from its value and bound; the bound never exceeds the value.

    >>> solved(2.0, 2.0 * (1 - 1e-12), None, 0.0).status
    'optimal'
    """
    status: Status = "optimal" if bound >= value * (1 - PROOF) else "feasible"
    return Solution(status, value, min(value, bound), choice, seconds)


def confirm(kind: str, value: float, solution: Solution[Any], tolerance: float = 0.0) -> None:
    """Compare a solution's value and bound with the value recomputed from its choice; an error names the difference."""
    if value != solution.value and not math.isclose(value, solution.value, rel_tol=SAME, abs_tol=tolerance):
        raise RunError(
            f"{kind}: the value of the choice is {value!r}, the solver returned {solution.value!r}.", key="solution"
        )
    if solution.bound > value * (1 + SAME) + tolerance:
        raise RunError(f"{kind}: the bound {solution.bound!r} is above the value {value!r}.", key="solution")


def compiled(function: Function) -> Function:
    """Compile a kernel with Numba at its first call, cached on disk; division by zero gives inf or nan, as in NumPy.

    Numba is optional: functions import the files of kernels that they need.
    """
    import numba

    return cast(Function, numba.njit(cache=True, error_model="numpy")(function))
