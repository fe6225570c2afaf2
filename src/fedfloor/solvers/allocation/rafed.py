"""RaFed's own procedure (Algorithm 1) in its working reading, and what its experiments compare it with.

Gao, Zhao, Min, Ni, Jiang, "Resource Allocation for Latency-aware Federated Learning in Industrial Internet-of-Things".
As printed the algorithm keeps the smaller latency where Eq. 13 asks for the larger one and accepts what is worse. Here:
from a random start, device after device takes the choice (silent, or a channel and a level) of the smallest cost while
all others keep theirs, until a sweep gains no more than δ. The cost never rises, and there are finitely many
allocations, so it ends.
"""

from __future__ import annotations

import math
import time
from typing import Literal, get_args

import numpy as np

from fedfloor.errors import require
from fedfloor.solvers.allocation.bound import fixed_bound, lower_bound
from fedfloor.solvers.allocation.problem import SILENT, Allocation, Integers, Problem, check, cost, of_devices
from fedfloor.solvers.allocation.tables import tables, terms
from fedfloor.solvers.solution import Solution, solved

Ties = Literal["none", "log"]


def rafed(
    problem: Problem, start: Allocation | np.random.Generator, *, delta: float = 0.0, ties: Ties = "none"
) -> Solution[Allocation]:
    """Return what RaFed's sweeps end at.

    Args:
        problem: the problem.
        start: an allocation, or a generator that draws one.
        delta: δ in seconds: stop when a sweep gains no more.
        ties: ``"log"``: of choices of equal cost take the one with the smallest Σ_{i∈S} ln t_i, and sweep on while
            that falls (with δ = 0); ours, since one bad device otherwise hides every improvement of the others.

    Raises:
        SettingError: a start, δ or tie rule that cannot be.
    """
    first = random_allocation(problem, start) if isinstance(start, np.random.Generator) else start
    return _swept(problem, first, np.arange(problem.devices), delta, ties, may_rest=True)


def fixed(
    problem: Problem, active: Integers, start: Allocation | np.random.Generator, *, delta: float = 0.0,
    ties: Ties = "log",
) -> Solution[Allocation]:  # fmt: skip
    """Return channels and powers for a given set of devices by the same sweeps (RaFed's reading of FEDL).

    :func:`fedfloor.solvers.allocation.arranging.arranged` does it better; both have the same bound, for this set.

    Args:
        problem: the problem.
        active: the devices that take part, all with a usable level.
        start: their first channels and levels, or a generator that draws them.
        delta, ties: as in :func:`rafed`.

    Raises:
        SettingError: nobody, or a device that cannot take part.
    """
    at = of_devices(problem, active)
    first = random_allocation(problem, start, at) if isinstance(start, np.random.Generator) else start
    same = np.array_equal(first.active, at)
    require(same, "start", first.active.tolist(), "an allocation of exactly the active devices")
    found = _swept(problem, first, at, delta, ties, may_rest=False)
    return solved(found.value, fixed_bound(problem, at), found.choice, found.seconds)


def random_allocation(problem: Problem, rng: np.random.Generator, active: Integers | None = None) -> Allocation:
    """Return uniform channels and usable levels for ``active``; default: each device takes part with probability ½.

    Args:
        problem: the problem.
        rng: draws.
        active: who takes part.

    Raises:
        SettingError: nobody, or a device that cannot take part.
    """
    allowed = problem.allowed
    chosen = np.flatnonzero(allowed.any(1) & (rng.random(problem.devices) < 0.5)) if active is None else active
    at = of_devices(problem, chosen) if active is not None else chosen
    channel, level = np.full(problem.devices, SILENT), np.zeros(problem.devices, np.int64)
    channel[at] = rng.integers(problem.channels, size=at.size)
    level[at] = np.where(allowed[at], rng.random((at.size, problem.levels)), -1.0).argmax(1)
    return Allocation(channel, level)


def _swept(
    problem: Problem, start: Allocation, devices: Integers, delta: float, ties: Ties, *, may_rest: bool
) -> Solution[Allocation]:
    from fedfloor.solvers.allocation import kernels, sweeping

    require(ties in get_args(Ties), "ties", ties, " or ".join(map(repr, get_args(Ties))))
    require(delta >= 0, "delta", delta, "at least 0")
    check(problem, start)
    began = time.perf_counter()
    of = tables(problem)
    data, other = kernels.data(of), terms(problem)
    channel, rank = start.channel.astype(np.int64), of.ranks(start)
    nobody = np.empty(0, np.int64)
    before, _ = sweeping.sweep(data, other, channel, rank, problem.channels, nobody, may_rest, False)
    goes_on = True
    while goes_on:
        now, moved = sweeping.sweep(data, other, channel, rank, problem.channels, devices, may_rest, ties == "log")
        goes_on = moved and ((ties == "log" and delta == 0) or _gain(before, now) > delta)
        before = now
    found = of.allocation(channel, rank)
    seconds = time.perf_counter() - began
    return solved(cost(problem, found), lower_bound(problem), found, seconds)


def _gain(before: float, now: float) -> float:
    """Return the seconds gained, of log costs that may be beyond what seconds can be."""
    with np.errstate(over="ignore"):
        first, second = float(np.exp(before)), float(np.exp(now))
    return math.inf if math.isinf(first) else first - second
