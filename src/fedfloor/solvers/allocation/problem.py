"""The allocation problem, a choice of uploading devices with channels and powers, and its tables for the kernels.

Gao, Zhao, Min, Ni, Jiang, "Resource Allocation for Latency-aware Federated Learning in Industrial Internet-of-Things"
(RaFed), Eq. 6-13.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError, require
from fedfloor.solvers.solution import Floats, Integers, Solution, confirm

Reception = Literal["mean", "exact"]
SILENT = -1  # the channel of a device that does not take part


@dataclass(frozen=True, eq=False)
class AllocationProblem:
    """The allocation problem of a round with N devices, P power levels and F classes.

    minimise n(|S|)·max_{i∈S} t_i·(1 + w·‖P_S − P_target‖₂),  t_i = compute_i + airtime_i(p_i)/q_i,  n(k) = μ(λ + 1/k)

    where q_i = P(SINR ≥ γ) with Rayleigh fading, and I_i is the sum of the received powers s_j of the other devices on
    the channel. ``"mean"``: exp(−γ(I_i + N0)/s_i), interferers with their mean gain; ``"exact"``: averaged over their
    fading, too, exp(−γN0/s_i)·Π_j 1/(1 + γ s_j/s_i), which is never smaller.

    Args:
        compute_s: t_c [N], the seconds of training.
        airtime_s: D_up/r_i(p) [N, P], the seconds of a transmission without interference.
        received_w: s [N, P], the mean received power in W at each level.
        noise_w: N0 over the band in W.
        threshold: γ, the SINR that a packet needs, as a ratio.
        channels: C, the number of channels.
        reception: the formula of q, see above.
        iterations_scale, iterations_offset: μ and λ.
        usable: bool [N, P], whether a level is within p_min … p_max and the outage constraint (Eq. 9); default: all.
        counts: the samples of each class [N, F], needed if divergence_weight is above 0.
        target: the target class shares P_target [F].
        divergence_weight: w; 0 is RaFed.
    """

    compute_s: Floats
    airtime_s: Floats
    received_w: Floats
    noise_w: float
    threshold: float
    channels: int
    reception: Reception = "mean"
    iterations_scale: float = 89.154
    iterations_offset: float = 0.00934
    usable: NDArray[np.bool_] | None = None
    counts: Floats | None = None
    target: Floats | None = None
    divergence_weight: float = 0.0

    def __post_init__(self) -> None:
        for name in ("compute_s", "airtime_s", "received_w", "counts", "target"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=np.float64))
        self._check_shapes()
        self._check_numbers()
        self._check_classes()
        if not self.allowed.any():
            raise SettingError(
                "no device has a usable power level: allow more power (p_max), accept a larger outage probability ζ "
                "or lower the SINR threshold γ.",
                key="powers",
            )

    def _check_shapes(self) -> None:
        n = self.compute_s.shape
        require(len(n) == 1 and n[0] > 0, "shape of compute_s", n, "(N,), with at least one device")
        shape = self.airtime_s.shape
        require(len(shape) == 2 and shape[0] == n[0] and shape[1] > 0, "shape of airtime_s", shape, f"({n[0]}, P ≥ 1)")
        require(self.received_w.shape == shape, "shape of received_w", self.received_w.shape, f"{shape}, as airtime_s")
        if self.usable is not None:
            object.__setattr__(self, "usable", np.ascontiguousarray(self.usable, dtype=np.bool_))
            require(self.usable.shape == shape, "shape of usable", self.usable.shape, f"{shape}, as airtime_s")

    def _check_numbers(self) -> None:
        for name in ("airtime_s", "received_w", "noise_w", "threshold", "iterations_scale"):
            _positive(name, getattr(self, name))
        for name in ("compute_s", "iterations_offset", "divergence_weight"):
            _positive(name, getattr(self, name), zero=True)
        whole = isinstance(self.channels, int | np.integer) and self.channels >= 1
        require(whole, "channels", self.channels, "a whole number of at least 1")
        known = get_args(Reception)
        require(self.reception in known, "reception", self.reception, " or ".join(map(repr, known)))

    def _check_classes(self) -> None:
        if self.divergence_weight == 0:
            return
        if self.counts is None or self.target is None:
            raise SettingError("divergence_weight above 0 needs counts [N, F] and target [F].", key="divergence_weight")
        shape = (len(self.compute_s), self.target.size)
        require(self.counts.shape == shape, "shape of counts", self.counts.shape, f"{shape}: N devices, F classes")
        require(self.target.ndim == 1 and self.target.size > 0, "shape of target", self.target.shape, "(F,)")
        _positive("counts", self.counts, zero=True)
        _positive("target", self.target, zero=True)
        require(bool(self.target.sum() > 0), "sum of target", float(self.target.sum()), "positive")
        object.__setattr__(self, "target", self.target / self.target.sum())

    @property
    def devices(self) -> int:
        """The number N of devices."""
        return len(self.compute_s)

    @property
    def levels(self) -> int:
        """The number P of power levels."""
        return int(self.airtime_s.shape[1])

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """Whether each level may be used, bool [N, P]."""
        return np.ones(self.airtime_s.shape, np.bool_) if self.usable is None else self.usable


def only_level(problem: AllocationProblem, level: int) -> AllocationProblem:
    """Return the problem with a single power level for all devices: RaFed-min is level 0, RaFed-max level −1."""
    p = problem.levels
    require(-p <= level < p, "level", level, f"a whole number of {-p} … {p - 1}")
    usable = np.zeros_like(problem.allowed)
    usable[:, level] = problem.allowed[:, level]
    return dataclasses.replace(problem, usable=usable)


def _positive(name: str, values: Floats | float, *, zero: bool = False) -> None:
    flat = np.atleast_1d(np.asarray(values, np.float64)).ravel()
    bad = flat[~(np.isfinite(flat) & ((flat >= 0) if zero else (flat > 0)))]
    require(bad.size == 0, name, float(bad[0]) if bad.size else None, f"finite and {'at least' if zero else 'above'} 0")


@dataclass(frozen=True, eq=False)
class Allocation:
    """Each device's channel and power level.

    Args:
        channel: int64 [N], 0 … C − 1; −1: silent.
        level: int64 [N], 0 … P − 1; without meaning for silent devices.
    """

    channel: Integers
    level: Integers

    @property
    def active(self) -> Integers:
        """The indices of the devices that take part, ascending."""
        return np.flatnonzero(self.channel != SILENT)


def iterations(problem: AllocationProblem, k: int) -> float:
    """Return n(k) = μ(λ + 1/k) for k devices, Eq. 12; inf for none."""
    return problem.iterations_scale * (problem.iterations_offset + 1 / k) if k else math.inf


def reception(problem: AllocationProblem, allocation: Allocation) -> Floats:
    """Return q_i = P(SINR_i ≥ γ) [N], Eq. 10 (see :class:`AllocationProblem`); nan for silent devices."""
    out = np.full(problem.devices, np.nan)
    for channel in np.unique(allocation.channel[allocation.active]):
        at = np.flatnonzero(allocation.channel == channel)
        s = problem.received_w[at, allocation.level[at]]
        ratio = problem.threshold * s[None, :] / s[:, None]  # row i: the harm of each other device to i
        np.fill_diagonal(ratio, 0.0)
        harm = ratio.sum(1) if problem.reception == "mean" else np.log1p(ratio).sum(1)
        out[at] = np.exp(-harm - problem.threshold * problem.noise_w / s)
    return out


def latency(problem: AllocationProblem, allocation: Allocation) -> Floats:
    """Return t_i = compute_i + airtime_i(p_i)/q_i in seconds [N], Eq. 6-7; nan for silent devices."""
    airtime = problem.airtime_s[np.arange(problem.devices), allocation.level]
    with np.errstate(divide="ignore", over="ignore"):
        return problem.compute_s + airtime / reception(problem, allocation)


def training_latency(n: float, compute: Floats, airtime: Floats, q: Floats) -> float:
    """Return n·max_i (compute_i + airtime_i/q_i), Eq. 13, the seconds of n iterations with k devices; arguments [k].

    >>> training_latency(8, np.array([2.0, 3.0]), np.array([4.0, 2.0]), np.array([0.8, 0.8]))
    56.0
    """
    with np.errstate(divide="ignore", over="ignore"):
        return float(n * (compute + airtime / q).max())


def divergence(problem: AllocationProblem, active: Integers) -> float:
    """Return ‖P_S − P_target‖₂ with the active devices' class shares P_S; 0 if classes are not considered."""
    if problem.divergence_weight == 0 or problem.counts is None or problem.target is None:
        return 0.0
    held = problem.counts[active].sum(0)
    return float(np.linalg.norm(held / max(held.sum(), 1e-300) - problem.target))


def cost(problem: AllocationProblem, allocation: Allocation) -> float:
    """Return the cost: the training latency in seconds, times 1 + w·divergence; inf if no device takes part."""
    at = allocation.active
    if at.size == 0:
        return math.inf
    airtime = problem.airtime_s[at, allocation.level[at]]
    seconds = training_latency(
        iterations(problem, at.size), problem.compute_s[at], airtime, reception(problem, allocation)[at]
    )
    return seconds * (1 + problem.divergence_weight * divergence(problem, at))


def device_set(problem: AllocationProblem, active: Integers) -> Integers:
    """Return a set of devices without repetitions, ascending; SettingError: it is empty, or a device cannot upload."""
    at = np.unique(np.asarray(active, np.int64))
    require(at.size > 0, "active devices", at.tolist(), "at least one device")
    inside = bool(at[0] >= 0 and at[-1] < problem.devices)
    require(inside, "active devices", at.tolist(), f"numbers of 0 … {problem.devices - 1}")
    cannot = at[~problem.allowed[at].any(1)]
    require(cannot.size == 0, "active devices without a usable power level", cannot.tolist(), "left out")
    return at


def check(problem: AllocationProblem, allocation: Allocation) -> None:
    """Raise SettingError for an allocation that the problem does not allow."""
    channel = allocation.channel
    level = allocation.level
    n = problem.devices
    bounds = (("channel", channel, SILENT, problem.channels), ("level", level, 0, problem.levels))
    for name, values, low, high in bounds:
        fits = values.shape == (n,) and values.min() >= low and values.max() < high
        require(bool(fits), f"{name} of an allocation", values.tolist(), f"{n} whole numbers of {low} … {high - 1}")
    at = allocation.active
    broken = at[~problem.allowed[at, level[at]]]
    require(broken.size == 0, "devices at a power level that they may not use", broken.tolist(), "none")


def verify(problem: AllocationProblem, solution: Solution[Allocation]) -> None:
    """Check a solution's allocation, value and bound by plain NumPy; an error names what differs."""
    check(problem, solution.choice)
    confirm("allocation", cost(problem, solution.choice), solution)


ChannelData = tuple[Floats, Floats, Floats, Integers, float, bool, Floats, Floats]  # see kernels.data
CostTerms = tuple[float, float, float, Floats, Floats]  # μ, λ, the divergence's weight, counts [N, F], target [F]


@dataclass(frozen=True, eq=False)
class LevelTables:
    """The problem's arrays for kernels; level m of device i is the m-th weakest level that it may use.

    Args:
        compute: the seconds of training [N].
        power: received power in units of the noise, ascending [N, P]; entries from ``count`` on have no meaning.
        log_airtime: ln of the seconds of a transmission [N, P].
        count: the number of usable levels [N].
        original: the level's number in the problem [N, P].
        threshold: γ.
        fading: whether interferers fade, too (``reception="exact"``).
    """

    compute: Floats
    power: Floats
    log_airtime: Floats
    count: Integers
    original: Integers
    threshold: float
    fading: bool

    def allocation(self, channel: Integers, rank: Integers) -> Allocation:
        """Return the allocation with the problem's level numbers, from levels given by their rank."""
        at = np.arange(len(rank))
        return Allocation(channel.copy(), np.where(channel == SILENT, 0, self.original[at, rank]))

    def ranks(self, allocation: Allocation) -> Integers:
        """Return the ranks of an allocation's levels [N]."""
        return np.asarray((self.original == allocation.level[:, None]).argmax(1), np.int64)


def cost_terms(problem: AllocationProblem) -> CostTerms:
    """Return the terms of the cost in the kernels' form: μ, λ, w, counts, target."""
    weight = problem.divergence_weight
    counts = problem.counts if weight > 0 and problem.counts is not None else np.zeros((problem.devices, 1))
    target = problem.target if weight > 0 and problem.target is not None else np.ones(1)
    return problem.iterations_scale, problem.iterations_offset, weight, counts, target


def level_tables(problem: AllocationProblem) -> LevelTables:
    """Return the tables with levels sorted by received power, equal powers by airtime."""
    refused = ~problem.allowed
    order = np.lexsort((problem.airtime_s, problem.received_w, refused), axis=1)
    power = np.take_along_axis(problem.received_w, order, 1) / problem.noise_w
    log_airtime = np.log(np.take_along_axis(problem.airtime_s, order, 1))
    count = problem.allowed.sum(1)
    fading = problem.reception == "exact"
    return LevelTables(
        problem.compute_s, power, log_airtime, count.astype(np.int64), order.astype(np.int64), problem.threshold, fading
    )


PRECISION = 1e-5  # relative precision of a latency
EDGES = 33  # number of initially tried latencies


def clean_bound(problem: AllocationProblem) -> float:
    """Return min_k n(k)·(k-th smallest latency of a device alone on a channel): the bound for a channel per device."""
    alone = np.sort(alone_s(problem))
    k = np.arange(1, len(alone) + 1)
    with np.errstate(over="ignore"):
        return float((problem.iterations_scale * (problem.iterations_offset + 1 / k) * alone).min())


def alone_s(problem: AllocationProblem) -> Floats:
    """Return each device's latency alone on a channel at its best level [N] in seconds; inf without a usable level."""
    with np.errstate(over="ignore"):
        clean = problem.airtime_s * np.exp(problem.threshold * problem.noise_w / problem.received_w)
    return np.asarray(problem.compute_s + np.where(problem.allowed, clean, np.inf).min(1))


def lower_bound(problem: AllocationProblem) -> float:
    """Return a lower bound of the cost of all allocations.

    Within a latency T device i tolerates −ln q of at most b_i = max_p ln((T − c_i)/airtime_i). With ``"mean"``
    reception and the total power X on its channel, γ(X − s_i)/s_i ≤ b_i, so that it takes the share s_i/X ≥ 1/(1 +
    b_i/γ) of the channel; shares add up to at most 1 on a channel, and C on all. With ``"exact"`` reception two devices
    lose together ln(1 + γr) + ln(1 + γ/r) ≥ 2 ln(1 + γ), so m devices on a channel need Σ b_i ≥ m(m − 1) ln(1 + γ). In
    both cases at most k(T) devices meet T, and the least n(k)·T over k with k(T) ≥ k is the bound.
    """
    compute, upload = able(problem)
    if compute.size == 0:
        return math.inf
    return _within(problem, _edges(problem, compute, upload), lambda limit: most(problem, compute, upload, limit))


def latest(problem: AllocationProblem, value: float) -> float:
    """Return a coarse upper bound of the latency of allocations costing at most ``value``; see :func:`lower_bound`."""
    compute, upload = able(problem)
    edges = _edges(problem, compute, upload)
    for a, b in zip(edges[-2::-1], edges[:0:-1], strict=True):
        k = most(problem, compute, upload, b)
        if k and iterations(problem, k) * a <= value:
            return float(b)
    return float(edges[0])


def fixed_bound(problem: AllocationProblem, active: Integers) -> float:
    """Return a lower bound of the cost of a given set of devices [k], whatever their channels and powers."""
    alone = alone_s(problem)[active]
    compute = problem.compute_s[active]
    upload = alone - problem.compute_s[active]
    low = high = float(alone.max())
    while most(problem, compute, upload, high) < active.size and math.isfinite(high):
        low, high = high, 2 * high
    while high > low * (1 + PRECISION) and math.isfinite(high):
        middle = math.sqrt(low * high)
        fits = most(problem, compute, upload, middle) == active.size
        low, high = (low, middle) if fits else (middle, high)
    return iterations(problem, active.size) * low * (1 + problem.divergence_weight * divergence(problem, active))


def able(problem: AllocationProblem) -> tuple[Floats, Floats]:
    """Return the seconds of training, and of an upload without interference, of devices that can upload, both [M]."""
    alone = alone_s(problem)
    usable = np.isfinite(alone)
    return problem.compute_s[usable], (alone - problem.compute_s)[usable]


def _edges(problem: AllocationProblem, compute: Floats, upload: Floats) -> Floats:
    low = float((compute + upload).min())
    high = iterations(problem, 1) * low / iterations(problem, len(compute)) * (1 + PRECISION)
    return np.geomspace(low, high, EDGES)


def _within(problem: AllocationProblem, edges: Floats, most_at: Callable[[float], int]) -> float:
    """Return a lower bound of n(k(T))·T for T between the edges, with k(T) not decreasing.

    From a to b it is at least n(k(b))·a. The interval with the least bound is halved until it is narrow enough.
    """
    counts = [most_at(edge) for edge in edges]
    heap = [
        (iterations(problem, k) * a, a, b, k) for a, b, k in zip(edges[:-1], edges[1:], counts[1:], strict=True) if k
    ]
    heapq.heapify(heap)
    while heap:
        bound, a, b, k = heapq.heappop(heap)
        if b <= a * (1 + PRECISION):
            return float(bound)
        middle = math.sqrt(a * b)
        fewer = most_at(middle)
        if fewer:
            heapq.heappush(heap, (iterations(problem, fewer) * a, a, middle, fewer))
        heapq.heappush(heap, (iterations(problem, k) * middle, middle, b, k))
    return math.inf


def most(problem: AllocationProblem, compute: Floats, upload: Floats, limit: float) -> int:
    """Return k(T), the largest number of devices that can meet the latency T = ``limit`` together.

    ``compute`` and ``upload`` [M] are the seconds of :func:`able`.
    """
    able = compute + upload <= limit * (1 + 1e-12)
    bears = np.maximum(np.log((limit - compute[able]) / upload[able]), 0.0)
    if problem.reception == "mean":
        shares = np.sort(1 / (1 + bears / problem.threshold))
        return int(np.searchsorted(shares.cumsum(), problem.channels * (1 + 1e-9), side="right"))
    k = np.arange(1, bears.size + 1)
    each, more = np.divmod(k, problem.channels)
    pairs = problem.channels * each * (each - 1) + 2 * more * each
    fits = (-np.sort(-bears)).cumsum() * (1 + 1e-9) + 1e-12 >= pairs * math.log1p(problem.threshold)
    return int(np.flatnonzero(fits)[-1] + 1) if fits.any() else 0
