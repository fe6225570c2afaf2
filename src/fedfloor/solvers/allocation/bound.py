"""What no allocation can beat."""

from __future__ import annotations

import math

import numpy as np

from fedfloor.solvers.allocation.problem import Floats, Problem

PRECISION = 1e-6  # relative, of a latency


def clean_bound(problem: Problem) -> float:
    """Return min_k n(k)·(k-th smallest latency of a device alone on a channel): everybody has a channel of their own.

    Args:
        problem: the problem.
    """
    alone = np.sort(alone_s(problem))
    k = np.arange(1, len(alone) + 1)
    with np.errstate(over="ignore"):
        return float((problem.iterations_scale * (problem.iterations_offset + 1 / k) * alone).min())


def alone_s(problem: Problem) -> Floats:
    """Return each device's latency alone on a channel at its best level [N]; inf where it has none."""
    with np.errstate(over="ignore"):
        clean = problem.airtime_s * np.exp(problem.threshold * problem.noise_w / problem.received_w)
    return np.asarray(problem.compute_s + np.where(problem.allowed, clean, np.inf).min(1))


def lower_bound(problem: Problem) -> float:
    """Return a value that no allocation beats.

    Within a latency T device i bears −ln q of at most b_i = max_p ln((T − c_i)/airtime_i). With ``"mean"`` reception
    and X the powers on its channel, γ(X − s_i)/s_i ≤ b_i, so that it takes the share s_i/X ≥ 1/(1 + b_i/γ) of the
    channel; shares add up to at most 1 on a channel and C in all. With ``"exact"`` reception two devices do each other
    ln(1 + γr) + ln(1 + γ/r) ≥ 2 ln(1 + γ), so m devices on a channel need Σ b_i ≥ m(m − 1) ln(1 + γ). Either way
    at most some k(T) devices meet T, and the least n(k)·T over k with k(T) ≥ k is the bound.

    Args:
        problem: the problem.
    """
    compute, alone = problem.compute_s, alone_s(problem)
    usable = np.isfinite(alone)
    compute, upload = compute[usable], (alone - compute)[usable]
    if not usable.any():
        return math.inf
    best = math.inf
    for k in range(1, len(compute) + 1):
        n = problem.iterations_scale * (problem.iterations_offset + 1 / k)
        low, high = float(np.partition(alone[usable], k - 1)[k - 1]), best / n
        if low >= high or not _fits(problem, compute, upload, k, min(high, 1e300)):
            continue
        high = min(high, 1e300)
        while high > low * (1 + PRECISION):
            middle = 0.5 * (low + high) if high < 2 * low else math.sqrt(low) * math.sqrt(high)
            low, high = (low, middle) if _fits(problem, compute, upload, k, middle) else (middle, high)
        best = min(best, n * low)
    return best


def _fits(problem: Problem, compute: Floats, upload: Floats, k: int, limit: float) -> bool:
    """Tell whether k devices might meet a latency."""
    able = compute + upload <= limit * (1 + 1e-12)
    if np.count_nonzero(able) < k:
        return False
    bears = np.maximum(np.log((limit - compute[able]) / upload[able]), 0.0)
    if problem.reception == "mean":
        shares = np.partition(1 / (1 + bears / problem.threshold), k - 1)[:k]
        return bool(shares.sum() <= problem.channels * (1 + 1e-9))
    each, more = divmod(k, problem.channels)
    pairs = problem.channels * each * (each - 1) + 2 * more * each
    most = -np.partition(-bears, k - 1)[:k]
    return bool(most.sum() * (1 + 1e-9) >= pairs * math.log1p(problem.threshold) - 1e-12)
