"""The best allocation, with a proof where time allows."""

from __future__ import annotations

import math
import time

import numpy as np

from fedfloor.errors import require
from fedfloor.solvers.allocation.problem import SILENT, Allocation, Integers, Problem, cost, iterations
from fedfloor.solvers.allocation.search import finished, search
from fedfloor.solvers.allocation.tables import Data, tables, terms
from fedfloor.solvers.solution import Solution, solved

FEW = 14  # devices whose sets are all looked at


def exact(problem: Problem, time_limit_s: float = 60.0) -> Solution[Allocation]:
    """Return the best allocation.

    The search's cost V rules out every device whose latency alone on a channel is above V/n(N). Of up to 14 that are
    left all sets are looked at: f₁(S), the least largest latency of S on one channel (power control and bisection), and
    f_c(S) = min_{U ⊆ S} max(f₁(U), f_{c−1}(S∖U)) on c channels; the answer is min_S n(|S|)·f_C(S)·(1 + w·divergence).

    Args:
        problem: the problem.
        time_limit_s: of the proof; the answer is then ``"feasible"``, with the bound proven so far.

    Raises:
        SettingError: no time at all.
    """
    require(time_limit_s > 0, "time_limit_s", time_limit_s, "above 0")
    from fedfloor.solvers.allocation import kernels

    began = time.perf_counter()
    known = search(problem)
    data = kernels.data(tables(problem))
    left = candidates(problem, data, known.value)
    if left.size > FEW:
        return known
    found = best_subset(problem, data, left, known)
    return solved(cost(problem, found), min(cost(problem, found), known.value), found, time.perf_counter() - began)


def candidates(problem: Problem, data: Data, value: float) -> Integers:
    """Return the devices that an allocation of at most this cost can hold.

    Of M devices an allocation needs n(M) iterations at least, so that none of its devices is slower than value/n(M);
    this leaves fewer, and so on.
    """
    left = np.arange(problem.devices)
    while True:
        kept = left[data[6][left] * iterations(problem, left.size) <= value * (1 + 1e-9)]
        if kept.size == left.size or kept.size == 0:
            return kept
        left = kept


def best_subset(problem: Problem, data: Data, devices: Integers, known: Solution[Allocation]) -> Allocation:
    """Return the best allocation of a few devices: the search's, or a better one."""
    from fedfloor.solvers.allocation import kernels, subsets

    if devices.size == 0 or math.isinf(known.value):
        return known.choice
    high = known.value * (1 + 1e-9) / iterations(problem, devices.size)
    single = subsets.one_channel(data, devices, high, kernels.work(problem.devices))
    parts: list[Integers] = []
    latency = single
    for _ in range(min(problem.channels, devices.size) - 1):
        parts.append(np.zeros(single.size, np.int64))
        latency = subsets.one_more(single, latency, parts[-1])
    mask, _ = subsets.cheapest(terms(problem), devices, latency)
    channel = np.full(problem.devices, SILENT)
    for c, part in enumerate(reversed(parts)):
        took = int(part[mask])
        channel[devices[(took >> np.arange(devices.size) & 1).astype(bool)]] = c
        mask ^= took
    channel[devices[(mask >> np.arange(devices.size) & 1).astype(bool)]] = problem.channels - 1
    found = finished(problem, tables(problem), data, channel)
    return found if cost(problem, found) < known.value else known.choice
