"""Every choice there is, one after the other."""

from __future__ import annotations

import math
import time

import numpy as np

from fedfloor.errors import SettingError
from fedfloor.solvers.selection.problem import Integers, Problem, value
from fedfloor.solvers.solution import Solution, solved

MOST = 10**11  # choices: some minutes


def brute(problem: Problem) -> Solution[Integers]:
    """Return the best of all C(N, L) choices; of equal ones the first in the order of their numbers.

    Raises:
        SettingError: more than 10¹¹ of them.
    """
    n, k = problem.candidates, problem.how_many
    if math.comb(n, k) > MOST:
        raise SettingError(
            f"{k} of {n} candidates can be chosen in {math.comb(n, k):.1e} ways, too many to look at each: take "
            "'exact', which proves the same with less."
        )
    began = time.perf_counter()
    choice = np.arange(k)
    if 0 < k < n:
        from fedfloor.solvers.selection import subsets

        A, y = problem.counts, problem.target
        subsets.best_subset(A.T @ A, y @ A, k, choice)
    found = value(problem, choice)
    return solved(found, found, choice, time.perf_counter() - began)
