"""Our allocation: fill the channels for many latencies, then anneal; every solution with its bound."""

from __future__ import annotations

import time

import numpy as np

from fedfloor.solvers.allocation.bound import lower_bound
from fedfloor.solvers.allocation.problem import SILENT, Allocation, Integers, Problem, cost
from fedfloor.solvers.allocation.tables import Data, Tables, tables, terms
from fedfloor.solvers.solution import Solution, solved

PROPOSALS = 100_000
STEP = 1.03
HOT, COLD = 0.03, 0.001
FINAL = 1e-12  # relative precision of the latency in the end


def search(problem: Problem, *, proposals: int = PROPOSALS, seed: int = 0) -> Solution[Allocation]:
    """Return a good allocation."""
    from fedfloor.solvers.allocation import annealing, kernels, packing

    began = time.perf_counter()
    of = tables(problem)
    data = kernels.data(of)
    channel = np.full(problem.devices, SILENT)
    channel[int(data[6].argmin())] = 0
    packing.scan(data, problem.channels, problem.iterations_scale, problem.iterations_offset, STEP, channel)
    pool = np.flatnonzero(np.isfinite(data[6]))
    annealing.anneal(data, terms(problem), channel, problem.channels, pool, proposals, HOT, COLD, seed)
    allocation = finished(problem, of, data, channel)
    return solved(cost(problem, allocation), lower_bound(problem), allocation, time.perf_counter() - began)


def finished(problem: Problem, of: Tables, data: Data, channel: Integers) -> Allocation:
    """Return the allocation with the least powers at which the slowest channel is as fast as it can be."""
    from fedfloor.solvers.allocation.kernels import fastest, settle

    rank = np.zeros(problem.devices, np.int64)
    rows = [np.flatnonzero(channel == c) for c in range(problem.channels)]
    limit = max(fastest(data, row, len(row), 0.0, np.inf, FINAL, rank) for row in rows if row.size)
    for row in rows:
        kept = rank[row]
        if row.size and settle(data, row, len(row), limit, rank) > limit:
            rank[row] = kept  # rounding: the last step of the precision
    return of.allocation(channel, rank)
