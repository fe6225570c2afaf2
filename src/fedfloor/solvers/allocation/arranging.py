"""Channels and powers for devices that are already chosen, as well as we can."""

from __future__ import annotations

import time

import numpy as np

from fedfloor.errors import require
from fedfloor.solvers.allocation.bound import alone_s, fixed_bound
from fedfloor.solvers.allocation.problem import SILENT, Allocation, Integers, Problem, cost, of_devices
from fedfloor.solvers.allocation.search import ACTIVE, COLD, HOT, PROPOSALS, cheaper, finished
from fedfloor.solvers.allocation.tables import Data, tables, terms
from fedfloor.solvers.solution import Solution, solved

LARGEST = 1e9  # latencies tried, relative to that of the slowest device alone
HALVINGS = 8


def arranged(problem: Problem, active: Integers, *, proposals: int = PROPOSALS, seed: int = 0) -> Solution[Allocation]:
    """Return good channels and powers for a given set of devices, with a bound for that set.

    The set is filled into the channels within as small a latency as that goes, then annealed as in
    :func:`fedfloor.solvers.allocation.search.search`, with moves and exchanges between channels only.

    Args:
        problem: the problem.
        active: the devices that take part, all with a usable level.
        proposals: of the annealing, for every 16 devices.
        seed: of the annealing.

    Raises:
        SettingError: nobody, a device that cannot take part, or proposals or a seed below 0.
    """
    require(proposals >= 0, "proposals", proposals, "at least 0")
    require(0 <= seed < 2**63, "seed", seed, "a whole number of at least 0 and below 2^63")
    at = of_devices(problem, active)
    from fedfloor.solvers.allocation import annealing, kernels

    began = time.perf_counter()
    of = tables(problem)
    data = kernels.data(of)
    channel = _filled(problem, data, at)
    filled = channel.copy()
    if np.isfinite(data[6][at]).all():
        many = proposals * max(1, round(at.size / ACTIVE))
        hot, cold = HOT / at.size, COLD / at.size
        annealing.anneal(data, terms(problem), channel, problem.channels, at, many, hot, cold, seed, True)
    found = cheaper(problem, finished(problem, of, data, filled), finished(problem, of, data, channel))
    return solved(cost(problem, found), fixed_bound(problem, at), found, time.perf_counter() - began)


def _filled(problem: Problem, data: Data, active: Integers) -> Integers:
    """Return channels [N] of all the devices, filled within the least latency at which they fit, by bisection.

    Devices that no latency makes room for, as their powers are too far apart, are dealt out in turn.
    """
    best = np.full(problem.devices, SILENT)
    best[active] = np.arange(active.size) % problem.channels
    low = high = float(alone_s(problem)[active].max())
    while (found := _within(problem, data, active, high)) is None:
        high *= 2
        if not high < LARGEST * low:
            return best
    best = found
    for _ in range(HALVINGS):
        middle = np.sqrt(low * high)
        found = _within(problem, data, active, middle)
        low, high = (middle, high) if found is None else (low, middle)
        best = best if found is None else found
    return best


def _within(problem: Problem, data: Data, active: Integers, limit: float) -> Integers | None:
    """Return channels [N] of all the devices that meet a latency by first fit, or None."""
    from fedfloor.solvers.allocation import kernels, packing

    n = problem.devices
    order = packing.promise(data, limit * (1 + 1e-12))
    order = order[np.isin(order, active)]
    members, size = np.empty((problem.channels, n), np.int64), np.zeros(problem.channels, np.int64)
    channel = np.empty(n, np.int64)
    fits = packing.pack(data, order, limit, channel, members, size, kernels.work(n))
    return channel if fits == active.size else None
