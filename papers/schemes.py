"""The schemes that RaFed compares itself with, as far as they allocate: each turns a problem and chance into a latency.

Gao, Zhao, Min, Ni, Jiang, "Resource Allocation for Latency-aware Federated Learning in Industrial Internet-of-Things",
Section IV, says little of them. The readings here: q-FFL and FEDL, which "do not consider the benefits of device
selection" and show what "the allocation of wireless resources can provide", take a random set of devices, with channels
and powers by RaFed's own sweeps with the set kept; FedCS chooses greedily under a deadline by computing and uploading
alone, and its devices send on random channels at full power; so does everybody in Native.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedfloor.base.errors import SettingError
from fedfloor.methods.contract import Resources
from fedfloor.methods.fedcs import in_time
from fedfloor.solvers.allocation.problem import SILENT, Allocation, AllocationProblem, cost
from fedfloor.solvers.allocation.solve import Ties, fixed, rafed, random_allocation, search
from fedfloor.solvers.solution import Integers


class Drawn(NamedTuple):
    """What a scheme comes to.

    Args:
        seconds: training latency n·max t; inf where nobody takes part, or beyond what a number can say.
        active: devices that take part.
    """

    seconds: float
    active: int


def algorithm(
    problem: AllocationProblem, rng: np.random.Generator, ties: Ties = "none", start: int | None = None
) -> Drawn:
    """Return where RaFed's Algorithm 1 ends.

    Args:
        problem: the problem.
        rng: draws the start.
        ties: as in :func:`fedfloor.solvers.allocation.solve.rafed`.
        start: how many random devices it starts from; left out, each takes part with probability ½.
    """
    some = None if start is None else chosen(problem, rng, start)
    return _drawn(problem, rafed(problem, random_allocation(problem, rng, some), ties=ties).choice)


def ours(problem: AllocationProblem, rng: np.random.Generator) -> Drawn:
    """Return what our search finds."""
    return _drawn(problem, search(problem, seed=int(rng.integers(2**31))).choice)


def allocated(problem: AllocationProblem, rng: np.random.Generator, size: int) -> Drawn:
    """Return q-FFL's and FEDL's latency: ``size`` random devices, channels and powers by sweeps that keep the set."""
    return _drawn(problem, fixed(problem, chosen(problem, rng, size), rng).choice)


def scattered(problem: AllocationProblem, rng: np.random.Generator, size: int) -> Drawn:
    """Return the latency of ``size`` random devices with random channels and powers."""
    return _drawn(problem, random_allocation(problem, rng, chosen(problem, rng, size)))


def fedcs(problem: AllocationProblem, rng: np.random.Generator, deadline_s: float) -> Drawn:
    """Return FedCS's latency: its greedy choice under a deadline, random channels, full power."""
    clean = problem.airtime_s[:, -1]
    known = Resources(problem.compute_s, np.zeros(problem.devices), clean)
    try:
        active = in_time(list(range(problem.devices)), known, problem.compute_s, deadline_s)
    except SettingError:  # nobody gets done in time
        return Drawn(math.inf, 0)
    return _drawn(problem, at_full_power(problem, rng, np.array(active, np.int64)))


def native(problem: AllocationProblem, rng: np.random.Generator) -> Drawn:
    """Return the latency of plain federated learning: everybody, random channels, full power."""
    return _drawn(problem, at_full_power(problem, rng, np.arange(problem.devices)))


def chosen(problem: AllocationProblem, rng: np.random.Generator, size: int) -> Integers:
    """Return ``size`` devices at random, or all if there are fewer."""
    return np.asarray(rng.choice(problem.devices, min(size, problem.devices), replace=False), np.int64)


def at_full_power(problem: AllocationProblem, rng: np.random.Generator, active: Integers) -> Allocation:
    """Return random channels for a set of devices that send with all their power."""
    channel = np.full(problem.devices, SILENT)
    channel[active] = rng.integers(problem.channels, size=len(active))
    return Allocation(channel, np.full(problem.devices, problem.levels - 1))


def _drawn(problem: AllocationProblem, allocation: Allocation) -> Drawn:
    return Drawn(cost(problem, allocation), len(allocation.active))
