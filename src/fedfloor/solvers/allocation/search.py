"""Our allocation: fill the channels for many latencies, then anneal; every answer with its bound."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from fedfloor.errors import require
from fedfloor.solvers.allocation.bound import latest, lower_bound
from fedfloor.solvers.allocation.problem import SILENT, Allocation, Integers, Problem, cost, divergence, iterations
from fedfloor.solvers.allocation.tables import Data, Tables, tables, terms
from fedfloor.solvers.solution import Solution, solved

PROPOSALS = 16_000
ACTIVE = 16  # active devices that this many proposals are for
POOL = 32  # devices at least among which the search chooses; more if more take part
HOT, COLD = 0.16, 0.016  # temperatures of the log cost, times the active devices: what one of them is worth falls so
CLASSES = (
    (1.0,),
    (1 / 64, 1 / 16, 1 / 4, 1.0),
)  # shares of the classes' weight: at once, and in steps where it is large
FINAL = 1e-12  # relative precision of the latency in the end


def search(problem: Problem, *, proposals: int = PROPOSALS, seed: int = 0) -> Solution[Allocation]:
    """Return a good allocation and a bound on all of them.

    For latencies T in geometric steps, devices in the order of how much interference they bear within T are put on the
    first channel that then still serves everyone within T; the best n(k)·T is where simulated annealing starts, which
    moves and exchanges devices. Powers are not searched: the least ones that a channel needs are computed. The same
    seed gives the same answer.

    Args:
        problem: the problem.
        proposals: of the annealing, for every 16 active devices; 0: the first filling is the answer.
        seed: of the annealing.

    Raises:
        SettingError: proposals below 0, or a seed that is not a whole number of at least 0.
    """
    require(proposals >= 0, "proposals", proposals, "at least 0")
    require(0 <= seed < 2**63, "seed", seed, "a whole number of at least 0 and below 2^63")
    from fedfloor.solvers.allocation import annealing, kernels, packing

    began = time.perf_counter()
    of = tables(problem)
    data = kernels.data(of)
    channel = np.full(problem.devices, SILENT)
    channel[_one(problem, data)] = 0
    limit = packing.scan(data, problem.channels, problem.iterations_scale, problem.iterations_offset, channel)
    allocation, filled = finished(problem, of, data, channel), channel
    if np.isfinite(limit) and proposals:
        k = int((channel != SILENT).sum())
        pool = _pool(problem, data, channel, limit)
        many = proposals * max(1, round(k / ACTIVE))
        for steps in CLASSES if problem.divergence_weight > 0 else CLASSES[:1]:
            channel = filled.copy()
            for share in steps:
                eased = terms(replace(problem, divergence_weight=share * problem.divergence_weight))
                annealing.anneal(data, eased, channel, problem.channels, pool, many, HOT / k, COLD / k, seed, False)
                allocation = cheaper(problem, allocation, finished(problem, of, data, channel))
    bound = lower_bound(problem)
    return solved(cost(problem, allocation), bound, allocation, time.perf_counter() - began)


def _one(problem: Problem, data: Data) -> int:
    """Return the fastest device alone; where even that takes longer than a number can say, any that may upload."""
    return int(np.where(problem.allowed.any(1), np.minimum(data[6], 1e308), np.inf).argmin())


def _pool(problem: Problem, data: Data, channel: Integers, limit: float) -> Integers:
    """Return the devices worth looking at.

    No better allocation has a latency above some T; those that bear most interference within T, and the active ones.
    """
    from fedfloor.solvers.allocation import packing

    active = np.flatnonzero(channel != SILENT)
    classes = 1 + problem.divergence_weight * divergence(problem, active)
    value = iterations(problem, active.size) * limit * classes
    room = POOL if problem.divergence_weight == 0 else 2 * POOL  # the right classes may be with slower devices
    promising = packing.promise(data, latest(problem, value))[: max(room, 2 * active.size)]
    return np.union1d(active, promising)


def cheaper(problem: Problem, one: Allocation, other: Allocation) -> Allocation:
    """Return the cheaper of two: the annealing tells costs apart only to its own precision."""
    return other if cost(problem, other) < cost(problem, one) else one


def finished(problem: Problem, of: Tables, data: Data, channel: Integers) -> Allocation:
    """Return the allocation with the least powers at which the slowest channel is as fast as it can be.

    Args:
        problem, of, data: the problem, its tables, and those as kernels take them.
        channel: of each device [N], someone active.
    """
    from fedfloor.solvers.allocation import kernels

    work = kernels.work(problem.devices)
    rank = work[0]
    rows = [np.flatnonzero(channel == c) for c in range(problem.channels)]
    rows = [row for row in rows if row.size]
    limit = max(kernels.fastest(data, row, len(row), 0.0, np.inf, FINAL, work) for row in rows)
    for row in rows:
        kept = rank[row]
        if kernels.settle(data, row, len(row), limit, work) > limit:  # rounding: the last step of the precision
            rank[row] = kept
    return of.allocation(channel, rank)
