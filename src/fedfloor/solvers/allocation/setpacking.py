"""Whether C disjoint sets out of many hold k devices: linear programme by column generation, then an integer one.

maximise Σ_U |U| x_U  s.t.  Σ_{U ∋ i} x_U ≤ 1 for every device, Σ_U x_U ≤ C,  x binary

With prices π ≥ 0 of the devices, Σπ + C·max_U (|U| − π(U)) is at least the optimum, whatever the prices; those of the
linear programme make it smallest. A set of which |U| − π(U) lies further below that maximum than the bound lies above k
is in no solution with k devices, so the integer programme sees few sets.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.solvers.allocation.problem import Floats, Integers

SLACK = 1e-6  # of numbers of devices
START, MORE = 300, 300  # sets in the first linear programme, and added to each next one


class UnprovenError(Exception):
    """Neither sets nor a proof were found, mostly for want of time."""


def packed(
    items: NDArray[np.int32], starts: NDArray[np.int32], devices: int, channels: int, k: int, deadline: float
) -> list[Integers] | None:
    """Return at most C disjoint sets with at least k devices in all, or None: there are none.

    Args:
        items, starts: the sets' members, and where each set begins, and the end.
        devices: M; members are 0 … M − 1.
        channels: C.
        k: devices sought.
        deadline: by ``time.perf_counter``.

    Raises:
        UnprovenError: the deadline passed, or the programme could not be solved.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csc_array

    matrix = csc_array((np.ones(items.size), items, starts), shape=(devices, starts.size - 1))
    sizes = np.diff(starts).astype(np.float64)
    worth, bound = _priced(matrix, sizes, channels, k, deadline)
    if bound < k - SLACK:
        return None
    kept = np.flatnonzero(worth.max() - worth <= bound - k + SLACK)
    rows = LinearConstraint(matrix[:, kept], ub=1.0), LinearConstraint(np.ones((1, kept.size)), ub=channels)
    enough = LinearConstraint(sizes[kept][None, :], lb=k - 0.5)
    left = deadline - time.perf_counter()
    if left <= 0:
        raise UnprovenError
    found = milp(
        np.zeros(kept.size), integrality=np.ones(kept.size), bounds=Bounds(0, 1), constraints=[*rows, enough],
        options={"time_limit": left},
    )  # fmt: skip
    if found.x is not None:
        return [items[starts[u] : starts[u + 1]].astype(np.int64) for u in kept[found.x > 0.5]]
    if found.status == 2:  # infeasible
        return None
    raise UnprovenError


def _priced(matrix: Any, sizes: Floats, channels: int, k: int, deadline: float) -> tuple[Floats, float]:
    """Return |U| − π(U) of every set and the bound, for the best prices; or as soon as the bound is below k."""
    from scipy.optimize import linprog

    devices = matrix.shape[0]
    inside = np.zeros(sizes.size, np.bool_)
    inside[np.argsort(-sizes, kind="stable")[:START]] = True
    least, best = np.inf, np.zeros(sizes.size)
    while True:
        left = deadline - time.perf_counter()
        if left <= 0:
            raise UnprovenError
        at = np.flatnonzero(inside)
        rows = _with_row_of_ones(matrix[:, at])
        solved = linprog(
            -sizes[at],
            A_ub=rows,
            b_ub=np.append(np.ones(devices), channels),
            method="highs",
            options={"time_limit": left},
        )
        if solved.status != 0:
            raise UnprovenError
        price = np.maximum(-solved.ineqlin.marginals[:devices], 0.0)
        worth = sizes - matrix.T @ price
        bound = price.sum() + channels * max(float(worth.max()), 0.0)
        if bound < least:
            least, best = bound, worth
        if least < k - SLACK or bound <= -solved.fun + SLACK or inside.all():
            return best, least
        order = np.argsort(-np.where(inside, -np.inf, worth), kind="stable")[:MORE]
        inside[order] = True


def _with_row_of_ones(matrix: Any) -> Any:
    from scipy.sparse import csc_array, vstack

    return vstack([matrix, csc_array(np.ones((1, matrix.shape[1])))], format="csc")
