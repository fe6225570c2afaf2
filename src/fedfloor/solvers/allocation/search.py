"""Our allocation: fill the channels for many latencies, then anneal; every result with its bound."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from fedfloor.errors import require
from fedfloor.solvers.allocation.bound import latest, lower_bound
from fedfloor.solvers.allocation.problem import (
    SILENT,
    Allocation,
    AllocationProblem,
    ChannelData,
    LevelTables,
    cost,
    cost_terms,
    divergence,
    iterations,
    level_tables,
)
from fedfloor.solvers.solution import Integers, Solution, solved

PROPOSALS = 16_000
ACTIVE = 16  # active devices that this many proposals are for
POOL = 32  # devices at least among which the search chooses; more if more take part
HOT, COLD = 0.16, 0.016  # temperatures of the log cost, times the active devices: what one of them is worth falls so
CLASSES = (
    (1.0,),
    (1 / 64, 1 / 16, 1 / 4, 1.0),
)  # shares of the classes' weight: at once, and in steps where it is large
FINAL = 1e-12  # relative precision of the latency in the end


def search(problem: AllocationProblem, *, proposals: int = PROPOSALS, seed: int = 0) -> Solution[Allocation]:
    """Return a good allocation and a bound on all of them.

    For latencies T in geometric steps, devices in the order of how much interference they bear within T are put on the
    first channel that then still serves everyone within T; the best n(k)·T is where simulated annealing starts, which
    moves and exchanges devices. Powers are not searched: the least ones that a channel needs are computed. The same
    seed gives the same result. ``proposals`` are those for every 16 active devices; 0: the first filling is the result.
    """
    require(proposals >= 0, "proposals", proposals, "at least 0")
    require(0 <= seed < 2**63, "seed", seed, "a whole number of at least 0 and below 2^63")
    from fedfloor.solvers.allocation import kernels, moves

    began = time.perf_counter()
    tables = level_tables(problem)
    data = kernels.channel_data(tables)
    channel = np.full(problem.devices, SILENT)
    # the fastest device alone; where even its latency overflows, any that may upload
    channel[int(np.where(problem.allowed.any(1), np.minimum(data[6], 1e308), np.inf).argmin())] = 0
    limit = kernels.scan(data, problem.channels, problem.iterations_scale, problem.iterations_offset, channel)
    allocation, filled = with_least_powers(problem, tables, data, channel), channel
    if np.isfinite(limit) and proposals:
        k = int((channel != SILENT).sum())
        pool = _pool(problem, data, channel, limit)
        many = proposals * max(1, round(k / ACTIVE))
        for steps in CLASSES if problem.divergence_weight > 0 else CLASSES[:1]:
            channel = filled.copy()
            for share in steps:
                eased = cost_terms(replace(problem, divergence_weight=share * problem.divergence_weight))
                moves.anneal(data, eased, channel, problem.channels, pool, many, HOT / k, COLD / k, seed)
                allocation = cheaper(problem, allocation, with_least_powers(problem, tables, data, channel))
    bound = lower_bound(problem)
    return solved(cost(problem, allocation), bound, allocation, time.perf_counter() - began)


def _pool(problem: AllocationProblem, data: ChannelData, channel: Integers, limit: float) -> Integers:
    """Return the devices worth considering.

    No better allocation has a latency above some T; those that bear most interference within T, and the active ones.
    """
    from fedfloor.solvers.allocation import kernels

    active = np.flatnonzero(channel != SILENT)
    classes = 1 + problem.divergence_weight * divergence(problem, active)
    value = iterations(problem, active.size) * limit * classes
    room = POOL if problem.divergence_weight == 0 else 2 * POOL  # the right classes may be with slower devices
    promising = kernels.promise(data, latest(problem, value))[: max(room, 2 * active.size)]
    return np.union1d(active, promising)


def cheaper(problem: AllocationProblem, first: Allocation, second: Allocation) -> Allocation:
    """Return the cheaper of two: the annealing tells costs apart only to its own precision."""
    return second if cost(problem, second) < cost(problem, first) else first


def with_least_powers(
    problem: AllocationProblem, tables: LevelTables, data: ChannelData, channel: Integers
) -> Allocation:
    """Return the allocation with the least powers at which the slowest channel is as fast as it can be."""
    from fedfloor.solvers.allocation import kernels

    work = kernels.workspace(problem.devices)
    rank = work[0]
    rows = [np.flatnonzero(channel == c) for c in range(problem.channels)]
    rows = [row for row in rows if row.size]
    limit = max(kernels.fastest(data, row, len(row), 0.0, np.inf, FINAL, work) for row in rows)
    for row in rows:
        kept = rank[row]
        if kernels.least_powers(data, row, len(row), limit, work) > limit:  # rounding: the last step of the precision
            rank[row] = kept
    return tables.allocation(channel, rank)
