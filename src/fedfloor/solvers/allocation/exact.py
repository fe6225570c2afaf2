"""The best allocation, with a proof where time allows."""

from __future__ import annotations

import math
import time

import numpy as np

from fedfloor.errors import require
from fedfloor.solvers.allocation.bound import able, alone_s, most
from fedfloor.solvers.allocation.problem import SILENT, Allocation, Integers, Problem, cost, iterations
from fedfloor.solvers.allocation.search import finished, search
from fedfloor.solvers.allocation.setpacking import UnprovenError, packed
from fedfloor.solvers.allocation.tables import Data, tables, terms
from fedfloor.solvers.solution import PROOF, Solution, solved

FEW, CLASSES_FEW = 14, 18  # devices whose sets are all looked at; where classes count, which packing cannot do
CLOSE = 1.01  # value/bound below which the value itself is tried
ROOM = 8_000_000  # members of all sets that a channel serves: with more the programmes get too large
SMALLEST_STEP = 0.05  # of the way from the bound to the value


def exact(problem: Problem, time_limit_s: float = 60.0) -> Solution[Allocation]:
    """Return the best allocation.

    The search's cost V rules out every device whose latency alone on a channel is above V/n(N). Of up to 14 that are
    left (18 where classes count) all sets are looked at: f₁(S), the least largest latency of S on one channel (power
    control and bisection), and f_c(S) = min_{U ⊆ S} max(f₁(U), f_{c−1}(S∖U)) on c channels; the answer is
    min_S n(|S|)·f_C(S)·(1 + w·divergence).

    Of more devices, a cost V is out of reach if for no k there are C disjoint sets of k devices in all that a channel
    each serves within V/n(k). Those sets are listed and packed (:mod:`fedfloor.solvers.allocation.setpacking`); V goes
    from the bound up to the value. Where classes count this still proves a bound, but rarely that one is the best.

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
    if math.isinf(known.value) or left.size == 0:
        return known
    if left.size > (CLASSES_FEW if problem.divergence_weight > 0 else FEW):
        found, bound = _closed(problem, data, known, began + time_limit_s)
    else:
        found = best_subset(problem, data, left, known)
        bound = cost(problem, found)
    return solved(cost(problem, found), bound, found, time.perf_counter() - began)


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
    """Return the best allocation of a few devices: the known one, or a better one."""
    from fedfloor.solvers.allocation import kernels, subsets

    high = known.value * (1 + 1e-9) / iterations(problem, devices.size)
    latency = single = subsets.one_channel(data, devices, high, kernels.work(problem.devices))
    parts: list[Integers] = []
    for _ in range(min(problem.channels, devices.size) - 1):
        parts.append(np.zeros(single.size, np.int64))
        latency = subsets.one_more(single, latency, parts[-1])
    mask, _ = subsets.cheapest(terms(problem), devices, latency)
    rows: list[Integers] = []
    for part in reversed(parts):
        rows.append(_bits(int(part[mask]), devices))
        mask ^= int(part[mask])
    return _better(problem, data, [*rows, _bits(mask, devices)], known.choice)


def _bits(mask: int, devices: Integers) -> Integers:
    return devices[(mask >> np.arange(devices.size) & 1).astype(np.bool_)]


def _better(problem: Problem, data: Data, rows: list[Integers], known: Allocation) -> Allocation:
    """Return the allocation with these devices on the channels, or the known one if that costs no more."""
    channel = np.full(problem.devices, SILENT)
    for c, row in enumerate(rows):
        channel[row] = c
    if not (channel != SILENT).any():
        return known
    found = finished(problem, tables(problem), data, channel)
    return found if cost(problem, found) < cost(problem, known) else known


def _closed(problem: Problem, data: Data, known: Solution[Allocation], deadline: float) -> tuple[Allocation, float]:
    """Raise the bound and lower the value until they meet or time is up; return the allocation and the bound.

    Where the sets are too many to list, the bound is raised by less.
    """
    choice, bound, step = known.choice, known.bound, 0.5
    while step > SMALLEST_STEP and time.perf_counter() < deadline:
        value = cost(problem, choice)
        whole = value < bound * CLOSE and step == 0.5
        sought = value * (1 - PROOF / 2) if whole else bound * (value / bound) ** step
        if sought <= bound:
            break
        try:
            rows = _cheaper(problem, data, sought, deadline)
        except UnprovenError:
            step /= 2
            continue
        if rows is None:
            bound = sought
            continue
        better = _better(problem, data, rows, choice)
        if better is choice:  # classes: cheaper but for the divergence
            break
        choice = better
    return choice, bound


def _cheaper(problem: Problem, data: Data, value: float, deadline: float) -> list[Integers] | None:
    """Return what to put on each channel for a cost (but for the divergence) of at most ``value``; None: impossible."""
    from fedfloor.solvers.allocation import kernels, listing

    alone = alone_s(problem)
    compute, upload = able(problem)
    for k in range(1, compute.size + 1):
        limit = value / iterations(problem, k)
        if most(problem, compute, upload, limit) < k:
            continue
        devices = np.flatnonzero(alone <= limit)
        items, starts, whole = listing.listed(data, devices, limit, ROOM, kernels.work(problem.devices))
        if not whole or time.perf_counter() > deadline:
            raise UnprovenError
        sets = packed(items, starts, devices.size, problem.channels, k, deadline)
        if sets is not None:
            return [devices[one] for one in sets]
    return None
