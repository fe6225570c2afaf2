"""Lower bounds on the cost of every allocation."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

import numpy as np

from fedfloor.solvers.allocation.problem import AllocationProblem, divergence, iterations
from fedfloor.solvers.solution import Floats, Integers

PRECISION = 1e-5  # relative, of a latency
EDGES = 33  # latencies first looked at


def clean_bound(problem: AllocationProblem) -> float:
    """Return min_k n(k)·(k-th smallest latency of a device alone on a channel): every device has its own channel."""
    alone = np.sort(alone_s(problem))
    k = np.arange(1, len(alone) + 1)
    with np.errstate(over="ignore"):
        return float((problem.iterations_scale * (problem.iterations_offset + 1 / k) * alone).min())


def alone_s(problem: AllocationProblem) -> Floats:
    """Return each device's latency alone on a channel at its best level [N] in seconds; inf where it has none."""
    with np.errstate(over="ignore"):
        clean = problem.airtime_s * np.exp(problem.threshold * problem.noise_w / problem.received_w)
    return np.asarray(problem.compute_s + np.where(problem.allowed, clean, np.inf).min(1))


def lower_bound(problem: AllocationProblem) -> float:
    """Return a value that no allocation beats.

    Within a latency T device i bears −ln q of at most b_i = max_p ln((T − c_i)/airtime_i). With ``"mean"`` reception
    and X the powers on its channel, γ(X − s_i)/s_i ≤ b_i, so that it takes the share s_i/X ≥ 1/(1 + b_i/γ) of the
    channel; shares add up to at most 1 on a channel and C in all. With ``"exact"`` reception two devices do each other
    ln(1 + γr) + ln(1 + γ/r) ≥ 2 ln(1 + γ), so m devices on a channel need Σ b_i ≥ m(m − 1) ln(1 + γ). Either way
    at most some k(T) devices meet T, and the least n(k)·T over k with k(T) ≥ k is the bound.
    """
    compute, upload = able(problem)
    if compute.size == 0:
        return math.inf
    return _within(problem, _edges(problem, compute, upload), lambda limit: most(problem, compute, upload, limit))


def latest(problem: AllocationProblem, value: float) -> float:
    """Return a latency that no allocation of at most this finite cost exceeds, by the same argument; coarse."""
    compute, upload = able(problem)
    edges = _edges(problem, compute, upload)
    for a, b in zip(edges[-2::-1], edges[:0:-1], strict=True):
        k = most(problem, compute, upload, b)
        if k and iterations(problem, k) * a <= value:
            return float(b)
    return float(edges[0])


def fixed_bound(problem: AllocationProblem, active: Integers) -> float:
    """Return a cost that a given set of devices [k] cannot beat, whatever their channels and powers."""
    alone = alone_s(problem)[active]
    compute, upload = problem.compute_s[active], alone - problem.compute_s[active]
    low = high = float(alone.max())
    while most(problem, compute, upload, high) < active.size and math.isfinite(high):
        low, high = high, 2 * high
    while high > low * (1 + PRECISION) and math.isfinite(high):
        middle = math.sqrt(low * high)
        fits = most(problem, compute, upload, middle) == active.size
        low, high = (low, middle) if fits else (middle, high)
    return iterations(problem, active.size) * low * (1 + problem.divergence_weight * divergence(problem, active))


def able(problem: AllocationProblem) -> tuple[Floats, Floats]:
    """Return training and upload alone on a channel, in seconds, of the devices that can upload [M]."""
    alone = alone_s(problem)
    usable = np.isfinite(alone)
    return problem.compute_s[usable], (alone - problem.compute_s)[usable]


def _edges(problem: AllocationProblem, compute: Floats, upload: Floats) -> Floats:
    low = float((compute + upload).min())
    high = iterations(problem, 1) * low / iterations(problem, len(compute)) * (1 + PRECISION)
    return np.geomspace(low, high, EDGES)


def _within(problem: AllocationProblem, edges: Floats, most_at: Callable[[float], int]) -> float:
    """Return the least n(k(T))·T for T between the edges, k(T) not falling, from below.

    From a to b it is at least n(k(b))·a. The interval for which that is least is halved until it is narrow enough.
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

    ``compute`` and ``upload`` [M] are of the devices that can upload: see :func:`able`.
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
