"""The allocation solvers by name: RaFed's own procedure, a local search, and the best allocation with a proof.

Gao, Zhao, Min, Ni, Jiang, "Resource Allocation for Latency-aware Federated Learning in Industrial Internet-of-Things".
As printed, the paper's Algorithm 1 keeps the smaller latency where Eq. 13 needs the larger one, and accepts worse
allocations. Here, from a random start, one device after the other takes the choice (silent, or a channel and a level)
with the smallest cost while all others keep theirs, until a sweep gains at most δ. It ends, as the cost never rises
and the number of allocations is finite.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import require, unknown
from fedfloor.solvers.allocation.problem import (
    SILENT,
    Allocation,
    AllocationProblem,
    ChannelData,
    LevelTables,
    able,
    alone_s,
    check,
    cost,
    cost_terms,
    device_set,
    divergence,
    fixed_bound,
    iterations,
    latest,
    level_tables,
    lower_bound,
    most,
)
from fedfloor.solvers.solution import PROOF, Floats, Integers, Solution, solved

Ties = Literal["none", "log"]


def rafed(
    problem: AllocationProblem, start: Allocation | np.random.Generator, *, delta: float = 0.0, ties: Ties = "none"
) -> Solution[Allocation]:
    """Return the allocation at which RaFed's sweeps end.

    ``start``: an allocation, or a generator that draws one. ``delta``: δ in seconds: stop when a sweep gains at most δ.
    ``ties``: ``"log"``: among choices of equal cost take that with the smallest Σ_{i∈S} ln t_i, and continue sweeps
    while it falls (with δ = 0); an addition, since a single slow device otherwise hides every improvement of the
    others.
    """
    first = random_allocation(problem, start) if isinstance(start, np.random.Generator) else start
    return _swept(problem, first, np.arange(problem.devices), delta, ties, may_rest=True)


def fixed(
    problem: AllocationProblem, active: Integers, start: Allocation | np.random.Generator
) -> Solution[Allocation]:
    """Return channels and powers for given devices by RaFed's sweeps with ties ``log`` (RaFed's version of FEDL).

    ``active``: devices with a usable level. ``start``: initial channels and levels, or a generator that draws them.
    """
    at = device_set(problem, active)
    first = random_allocation(problem, start, at) if isinstance(start, np.random.Generator) else start
    same = np.array_equal(first.active, at)
    require(same, "start", first.active.tolist(), "an allocation of exactly the active devices")
    swept = _swept(problem, first, at, 0.0, "log", may_rest=False)
    return solved(swept.value, fixed_bound(problem, at), swept.choice, swept.seconds)


def random_allocation(
    problem: AllocationProblem, rng: np.random.Generator, active: Integers | None = None
) -> Allocation:
    """Return random channels and usable levels for ``active``; default: each device takes part with probability ½."""
    allowed = problem.allowed
    chosen = np.flatnonzero(allowed.any(1) & (rng.random(problem.devices) < 0.5)) if active is None else active
    at = device_set(problem, chosen) if active is not None else chosen
    channel = np.full(problem.devices, SILENT)
    level = np.zeros(problem.devices, np.int64)
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
    data = kernels.channel_data(tables)
    other = cost_terms(problem)
    channel = start.channel.astype(np.int64)
    rank = tables.ranks(start)
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
        first = float(np.exp(before))
        second = float(np.exp(now))
    return math.inf if math.isinf(first) else first - second


PROPOSALS = 16_000
ACTIVE = 16  # number of active devices to which the number of proposals refers
POOL = 32  # least number of devices among which the search selects; more if more take part
# temperatures of the log cost, times the number of active devices
HOT = 0.16
COLD = 0.016
CLASSES = (
    (1.0,),
    (1 / 64, 1 / 16, 1 / 4, 1.0),
)  # shares of the classes' weight: the whole weight at once, and in steps if it is large
FINAL = 1e-12  # relative precision of the final latency


def search(problem: AllocationProblem, *, proposals: int = PROPOSALS, seed: int = 0) -> Solution[Allocation]:
    """Return a good allocation, with a bound on the cost of all allocations.

    For latencies T in geometric steps, devices are put, in descending order of tolerated interference, on the first
    channel that still serves all its devices within T. From the best n(k)·T, simulated annealing moves and exchanges
    devices. Powers are not searched, but computed as the least powers that a channel needs. The same seed gives the
    same result. ``proposals``: their number per 16 active devices; 0: the initial filling is the result.
    """
    require(proposals >= 0, "proposals", proposals, "at least 0")
    require(0 <= seed < 2**63, "seed", seed, "a whole number of at least 0 and below 2^63")
    from fedfloor.solvers.allocation import kernels, moves

    began = time.perf_counter()
    tables = level_tables(problem)
    data = kernels.channel_data(tables)
    channel = np.full(problem.devices, SILENT)
    # the fastest device alone; if even its latency overflows, any device that may upload
    channel[int(np.where(problem.allowed.any(1), np.minimum(data[6], 1e308), np.inf).argmin())] = 0
    limit = kernels.scan(data, problem.channels, problem.iterations_scale, problem.iterations_offset, channel)
    allocation = with_least_powers(problem, tables, data, channel)
    filled = channel
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
    """Return the devices among which the annealing selects.

    No better allocation has a latency above some T: the devices that tolerate most interference within T, and active
    ones.
    """
    from fedfloor.solvers.allocation import kernels

    active = np.flatnonzero(channel != SILENT)
    classes = 1 + problem.divergence_weight * divergence(problem, active)
    value = iterations(problem, active.size) * limit * classes
    room = POOL if problem.divergence_weight == 0 else 2 * POOL  # slower devices may have the right classes
    promising = kernels.promise(data, latest(problem, value))[: max(room, 2 * active.size)]
    return np.union1d(active, promising)


def cheaper(problem: AllocationProblem, first: Allocation, second: Allocation) -> Allocation:
    """Return the cheaper of two allocations, which the annealing compares only with its own precision."""
    return second if cost(problem, second) < cost(problem, first) else first


def with_least_powers(
    problem: AllocationProblem, tables: LevelTables, data: ChannelData, channel: Integers
) -> Allocation:
    """Return the allocation with the least powers for which the slowest channel is as fast as possible."""
    from fedfloor.solvers.allocation import kernels

    work = kernels.workspace(problem.devices)
    rank = work[0]
    rows = [np.flatnonzero(channel == c) for c in range(problem.channels)]
    rows = [row for row in rows if row.size]
    limit = max(kernels.fastest(data, row, len(row), 0.0, np.inf, FINAL, work) for row in rows)
    for row in rows:
        kept = rank[row]
        if kernels.least_powers(data, row, len(row), limit, work) > limit:  # rounding: the last step at this precision
            rank[row] = kept
    return tables.allocation(channel, rank)


SLACK = 1e-6  # from the number of devices
# sets in the first linear programme, and added in each iteration
START = 300
MORE = 300


class UnprovenError(Exception):
    """The failure to find sets or a proof, mostly for lack of time."""


def pack_sets(
    items: NDArray[np.int32], starts: NDArray[np.int32], devices: int, channels: int, k: int, deadline: float
) -> list[Integers] | None:
    """Return at most C disjoint sets with at least k devices together, or None if there are none.

    maximise Σ_U |U| x_U  s.t.  Σ_{U ∋ i} x_U ≤ 1 for every device, Σ_U x_U ≤ C,  x binary

    With prices π ≥ 0 of the devices, Σπ + C·max_U (|U| − π(U)) is at least the optimum, whatever the prices; the prices
    of the linear programme make it smallest. If |U| − π(U) of a set is farther below that maximum than the bound is
    above k, the set is in no solution with k devices, so that few sets remain for the integer programme.

    ``items``, ``starts``: the sets' members, 0 … M − 1, and the start of each set, and the end. ``devices``,
    ``channels``, ``k``: M, C and the required number of devices. ``deadline``: by ``time.perf_counter``.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csc_array

    matrix = csc_array((np.ones(items.size), items, starts), shape=(devices, starts.size - 1))
    sizes = np.diff(starts).astype(np.float64)
    worth, bound = _column_generation(matrix, sizes, channels, k, deadline)
    if bound < k - SLACK:
        return None
    kept = np.flatnonzero(worth.max() - worth <= bound - k + SLACK)
    rows = LinearConstraint(matrix[:, kept], ub=1.0), LinearConstraint(np.ones((1, kept.size)), ub=channels)
    enough = LinearConstraint(sizes[kept][None, :], lb=k - 0.5)
    left = deadline - time.perf_counter()
    if left <= 0:
        raise UnprovenError
    result = milp(
        np.zeros(kept.size), integrality=np.ones(kept.size), bounds=Bounds(0, 1), constraints=[*rows, enough],
        options={"time_limit": left},
    )  # fmt: skip
    if result.x is not None:
        return [items[starts[u] : starts[u + 1]].astype(np.int64) for u in kept[result.x > 0.5]]
    if result.status == 2:  # infeasible
        return None
    raise UnprovenError


def _column_generation(matrix: Any, sizes: Floats, channels: int, k: int, deadline: float) -> tuple[Floats, float]:
    """Return |U| − π(U) of every set and the bound, for the best prices; or as soon as the bound is below k."""
    from scipy.optimize import linprog
    from scipy.sparse import csc_array, vstack

    devices = matrix.shape[0]
    inside = np.zeros(sizes.size, np.bool_)
    inside[np.argsort(-sizes, kind="stable")[:START]] = True
    least = np.inf
    best = np.zeros(sizes.size)
    while True:
        left = deadline - time.perf_counter()
        if left <= 0:
            raise UnprovenError
        at = np.flatnonzero(inside)
        rows = vstack([matrix[:, at], csc_array(np.ones((1, at.size)))], format="csc")
        most = np.append(np.ones(devices), channels)
        solved = linprog(-sizes[at], A_ub=rows, b_ub=most, method="highs", options={"time_limit": left})
        if solved.status != 0:
            raise UnprovenError
        price = np.maximum(-solved.ineqlin.marginals[:devices], 0.0)
        worth = sizes - matrix.T @ price
        bound = price.sum() + channels * max(float(worth.max()), 0.0)
        if bound < least:
            least = bound
            best = worth
        if least < k - SLACK or bound <= -solved.fun + SLACK or inside.all():
            return best, least
        order = np.argsort(-np.where(inside, -np.inf, worth), kind="stable")[:MORE]
        inside[order] = True


# most devices for which all sets are enumerated, without and with classes
FEW = 14
CLASSES_FEW = 18
CLOSE = 1.01  # value/bound below which the value itself is tested
ROOM = 8_000_000  # greatest number of members of all sets that a channel serves: with more the programmes get too large
SMALLEST_STEP = 0.05  # share of the way from the bound to the value


def exact(problem: AllocationProblem, time_limit_s: float = 60.0) -> Solution[Allocation]:
    """Return the best allocation, with a proof if time allows.

    The cost V of :func:`search` excludes every device whose latency alone on a channel is above V/n(N). If up to 14
    devices remain (18 if classes count), all sets are enumerated: f₁(S), the least possible largest latency of S on one
    channel (power control and bisection), and f_c(S) = min_{U ⊆ S} max(f₁(U), f_{c−1}(S∖U)) on c channels; the result
    is min_S n(|S|)·f_C(S)·(1 + w·divergence).

    With more devices, a cost V is impossible if for no k there are C disjoint sets of k devices together, each of which
    a channel serves within V/n(k). These sets are listed and packed (:func:`pack_sets`), with V from the bound up to
    the value. If classes count, this still proves a bound, but rarely the optimum.

    ``time_limit_s``: the limit of the proof; after it the status is ``"feasible"``, with the bound proven so far.
    """
    require(time_limit_s > 0, "time_limit_s", time_limit_s, "above 0")
    from fedfloor.solvers.allocation import kernels

    began = time.perf_counter()
    known = search(problem)
    data = kernels.channel_data(level_tables(problem))
    left = candidates(problem, data, known.value)
    if math.isinf(known.value) or left.size == 0:
        return known
    if left.size > (CLASSES_FEW if problem.divergence_weight > 0 else FEW):
        choice, bound = _close_gap(problem, data, known, began + time_limit_s)
    else:
        choice = best_subset(problem, data, left, known)
        bound = cost(problem, choice)
    return solved(cost(problem, choice), bound, choice, time.perf_counter() - began)


def candidates(problem: AllocationProblem, data: ChannelData, value: float) -> Integers:
    """Return the devices that an allocation of at most the cost ``value`` can contain.

    An allocation among M devices needs at least n(M) iterations, so that none of its devices is slower than value/n(M).
    Fewer devices remain, for which the argument is repeated.
    """
    left = np.arange(problem.devices)
    while True:
        kept = left[data[6][left] * iterations(problem, left.size) <= value * (1 + 1e-9)]
        if kept.size == left.size or kept.size == 0:
            return kept
        left = kept


def best_subset(
    problem: AllocationProblem, data: ChannelData, devices: Integers, known: Solution[Allocation]
) -> Allocation:
    """Return the best allocation of a few devices by enumeration: the known allocation, or a better one."""
    from fedfloor.solvers.allocation import kernels

    high = known.value * (1 + 1e-9) / iterations(problem, devices.size)
    latency = single = kernels.latencies_on_one_channel(data, devices, high, kernels.workspace(problem.devices))
    parts: list[Integers] = []
    for _ in range(min(problem.channels, devices.size) - 1):
        parts.append(np.zeros(single.size, np.int64))
        latency = kernels.latencies_with_one_more_channel(single, latency, parts[-1])
    mask, _ = kernels.cheapest_set(cost_terms(problem), devices, latency)
    rows: list[Integers] = []
    for part in reversed(parts):
        rows.append(_bits(int(part[mask]), devices))
        mask ^= int(part[mask])
    return _better(problem, data, [*rows, _bits(mask, devices)], known.choice)


def _bits(mask: int, devices: Integers) -> Integers:
    return devices[(mask >> np.arange(devices.size) & 1).astype(np.bool_)]


def _better(problem: AllocationProblem, data: ChannelData, rows: list[Integers], known: Allocation) -> Allocation:
    channel = np.full(problem.devices, SILENT)
    for c, row in enumerate(rows):
        channel[row] = c
    if not (channel != SILENT).any():
        return known
    return cheaper(problem, known, with_least_powers(problem, level_tables(problem), data, channel))


def _close_gap(
    problem: AllocationProblem, data: ChannelData, known: Solution[Allocation], deadline: float
) -> tuple[Allocation, float]:
    """Raise the bound and lower the value until they are equal or time is up; return the allocation and the bound.

    If there are too many sets to list, the bound is raised by less.
    """
    choice = known.choice
    bound = known.bound
    step = 0.5
    while step > SMALLEST_STEP and time.perf_counter() < deadline:
        value = cost(problem, choice)
        whole = value < bound * CLOSE and step == 0.5
        sought = value * (1 - PROOF / 2) if whole else bound * (value / bound) ** step
        if sought <= bound:
            break
        try:
            rows = _sets_within(problem, data, sought, deadline)
        except UnprovenError:
            step /= 2
            continue
        if rows is None:
            bound = sought
            continue
        better = _better(problem, data, rows, choice)
        if better is choice:  # with classes, it is cheaper only without the divergence
            break
        choice = better
    return choice, bound


def _sets_within(problem: AllocationProblem, data: ChannelData, value: float, deadline: float) -> list[Integers] | None:
    """Return the devices of each channel for a cost (without divergence) of at most ``value``; None if impossible."""
    from fedfloor.solvers.allocation import kernels

    alone = alone_s(problem)
    compute, upload = able(problem)
    for k in range(1, compute.size + 1):
        limit = value / iterations(problem, k)
        if most(problem, compute, upload, limit) < k:
            continue
        devices = np.flatnonzero(alone <= limit)
        items, starts, whole = kernels.list_sets(data, devices, limit, ROOM, kernels.workspace(problem.devices))
        if not whole or time.perf_counter() > deadline:
            raise UnprovenError
        sets = pack_sets(items, starts, devices.size, problem.channels, k, deadline)
        if sets is not None:
            return [devices[members] for members in sets]
    return None


SOLVERS: Mapping[str, Callable[[AllocationProblem, int], Solution[Allocation]]] = {
    "search": lambda problem, seed: search(problem, seed=seed),
    "rafed": lambda problem, seed: rafed(problem, np.random.default_rng(seed), ties="log"),
    "exact": lambda problem, seed: exact(problem),  # noqa: ARG005
}
WHAT: Mapping[str, str] = {
    "search": "A local search over active devices, channels and powers (ours)",
    "rafed": "RaFed's Algorithm 1, with its misprints mended, from a random start",
    "exact": "The least latency, with a proof (ours)",
}


def ready(name: str, problem: AllocationProblem) -> None:
    """Load a solver's machine code, so that the next call measures only solving."""
    two = np.array([0.1, 0.1])
    tiny = AllocationProblem(two, two[:, None], 1e-9 * np.ones((2, 1)), 1e-12, 1e-3, 1, problem.reception)
    solve(name, tiny)


def solve(name: str, problem: AllocationProblem, *, seed: int = 0) -> Solution[Allocation]:
    """Return an allocation, with a bound on the cost of all allocations.

    ``name``: ``search``, a local search; ``rafed``, Algorithm 1 of the paper from a random start, ties broken by Σ ln
    t; ``exact``, with a proof.
    """
    if name not in SOLVERS:
        raise unknown("allocation solver", name, SOLVERS)
    return SOLVERS[name](problem, seed)
