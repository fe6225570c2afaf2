"""RaFed's own procedure (Algorithm 1) in its working reading, and the schemes its experiments compare it with.

Gao, Zhao, Min, Ni, Jiang, "Resource Allocation for Latency-aware Federated Learning in Industrial Internet-of-Things".
As printed the algorithm keeps the smaller latency where Eq. 13 needs the larger one, and accepts worse allocations.
Here: from a random start, device after device takes the choice (silent, or a channel and a level) of the smallest cost
while all others keep theirs, until a sweep gains no more than δ. The cost never rises, and there are finitely many
allocations, so it ends.
"""

from __future__ import annotations

import math
import time
from typing import Literal, get_args

import numpy as np

from fedfloor.errors import require
from fedfloor.solvers.allocation.bound import fixed_bound, lower_bound
from fedfloor.solvers.allocation.problem import (
    SILENT,
    Allocation,
    AllocationProblem,
    check,
    cost,
    cost_terms,
    device_set,
    level_tables,
)
from fedfloor.solvers.solution import Integers, Solution, solved

Ties = Literal["none", "log"]


def rafed(
    problem: AllocationProblem, start: Allocation | np.random.Generator, *, delta: float = 0.0, ties: Ties = "none"
) -> Solution[Allocation]:
    """Return the allocation at which RaFed's sweeps end.

    ``start``: an allocation, or a generator that draws one. ``delta``: δ in seconds: stop when a sweep gains no more.
    ``ties``: ``"log"``: of choices of equal cost take the one with the smallest Σ_{i∈S} ln t_i, and sweep on while that
    falls (with δ = 0); ours, since one bad device otherwise hides every improvement of the others.
    """
    first = random_allocation(problem, start) if isinstance(start, np.random.Generator) else start
    return _swept(problem, first, np.arange(problem.devices), delta, ties, may_rest=True)


def fixed(
    problem: AllocationProblem, active: Integers, start: Allocation | np.random.Generator, *, delta: float = 0.0,
    ties: Ties = "log",
) -> Solution[Allocation]:  # fmt: skip
    """Return channels and powers for a given set of devices by the same sweeps (RaFed's reading of FEDL).

    ``active``: all with a usable level. ``start``: their first channels and levels, or a generator that draws them.
    ``delta``, ``ties``: as in :func:`rafed`.
    """
    at = device_set(problem, active)
    first = random_allocation(problem, start, at) if isinstance(start, np.random.Generator) else start
    same = np.array_equal(first.active, at)
    require(same, "start", first.active.tolist(), "an allocation of exactly the active devices")
    swept = _swept(problem, first, at, delta, ties, may_rest=False)
    return solved(swept.value, fixed_bound(problem, at), swept.choice, swept.seconds)


def random_allocation(
    problem: AllocationProblem, rng: np.random.Generator, active: Integers | None = None
) -> Allocation:
    """Return uniform channels and usable levels for ``active``; default: each device takes part with probability ½."""
    allowed = problem.allowed
    chosen = np.flatnonzero(allowed.any(1) & (rng.random(problem.devices) < 0.5)) if active is None else active
    at = device_set(problem, chosen) if active is not None else chosen
    channel, level = np.full(problem.devices, SILENT), np.zeros(problem.devices, np.int64)
    channel[at] = rng.integers(problem.channels, size=at.size)
    level[at] = np.where(allowed[at], rng.random((at.size, problem.levels)), -1.0).argmax(1)
    return Allocation(channel, level)


def _swept(
    problem: AllocationProblem, start: Allocation, devices: Integers, delta: float, ties: Ties, *, may_rest: bool
) -> Solution[Allocation]:
    from fedfloor.solvers.allocation import kernels, moves

    require(ties in get_args(Ties), "ties", ties, " or ".join(map(repr, get_args(Ties))))
    require(delta >= 0, "delta", delta, "at least 0")
    check(problem, start)
    began = time.perf_counter()
    tables = level_tables(problem)
    data, other = kernels.channel_data(tables), cost_terms(problem)
    channel, rank = start.channel.astype(np.int64), tables.ranks(start)
    no_device = np.empty(0, np.int64)
    before, _ = moves.sweep(data, other, channel, rank, problem.channels, no_device, may_rest, False)
    goes_on = True
    while goes_on:
        now, moved = moves.sweep(data, other, channel, rank, problem.channels, devices, may_rest, ties == "log")
        goes_on = moved and ((ties == "log" and delta == 0) or _gain(before, now) > delta)
        before = now
    allocation = tables.allocation(channel, rank)
    seconds = time.perf_counter() - began
    return solved(cost(problem, allocation), lower_bound(problem), allocation, seconds)


def _gain(before: float, now: float) -> float:
    with np.errstate(over="ignore"):
        first, second = float(np.exp(before)), float(np.exp(now))
    return math.inf if math.isinf(first) else first - second
