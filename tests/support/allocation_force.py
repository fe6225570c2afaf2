"""Brute force over every allocation, written apart from the package."""

from __future__ import annotations

import itertools
import math

import numpy as np

from fedfloor.solvers.allocation.problem import AllocationProblem


def times(problem: AllocationProblem, devices: list[int], levels: tuple[int, ...]) -> list[float]:
    """Latencies of devices that share a channel."""
    s = [problem.received_w[i, p] for i, p in zip(devices, levels, strict=True)]
    out = []
    for a, (i, p) in enumerate(zip(devices, levels, strict=True)):
        q = math.exp(-problem.threshold * problem.noise_w / s[a])
        for b in range(len(s)):
            if a != b:
                ratio = problem.threshold * s[b] / s[a]
                q *= math.exp(-ratio) if problem.reception == "mean" else 1 / (1 + ratio)
        out.append(problem.compute_s[i] + (problem.airtime_s[i, p] / q if q > 1e-290 else math.inf))
    return out


def all_levels(problem: AllocationProblem, devices: list[int]) -> float:
    """The least largest latency on one channel, over all levels: :func:`times` of all their combinations at once."""
    allowed = [np.flatnonzero(problem.allowed[i]) for i in devices]
    picked = np.stack([one.ravel() for one in np.meshgrid(*allowed)], axis=1)  # one row per combination
    s = problem.received_w[devices, picked]
    ratio = problem.threshold * s[:, None, :] / s[:, :, None]
    harm = np.exp(-ratio) if problem.reception == "mean" else 1 / (1 + ratio)
    harm[:, range(len(devices)), range(len(devices))] = 1.0  # none to itself
    q = np.exp(-problem.threshold * problem.noise_w / s) * harm.prod(axis=2)
    with np.errstate(divide="ignore", over="ignore"):
        sent = np.where(q > 1e-290, problem.airtime_s[devices, picked] / q, math.inf)
    return float((problem.compute_s[devices] + sent).max(axis=1).min(initial=math.inf))


def factor(problem: AllocationProblem, devices: list[int]) -> float:
    n = problem.iterations_scale * (problem.iterations_offset + 1 / len(devices))
    if problem.divergence_weight == 0:
        return n
    assert problem.counts is not None
    assert problem.target is not None
    held = problem.counts[devices].sum(axis=0)
    return n * (1 + problem.divergence_weight * float(np.sqrt(((held / held.sum() - problem.target) ** 2).sum())))


def everything(problem: AllocationProblem) -> float:
    """The least cost over all (1 + C·P)^N allocations."""
    choices = [(-1, 0), *itertools.product(range(problem.channels), range(problem.levels))]
    best = math.inf
    for picked in itertools.product(choices, repeat=problem.devices):
        active = [i for i, (c, _) in enumerate(picked) if c >= 0]
        if not active or not all(problem.allowed[i, picked[i][1]] for i in active):
            continue
        worst = 0.0
        for channel in range(problem.channels):
            here = [i for i in active if picked[i][0] == channel]
            worst = max([worst, *times(problem, here, tuple(picked[i][1] for i in here))])
        best = min(best, worst * factor(problem, active))
    return best


def by_sets(problem: AllocationProblem) -> float:
    """The same least cost, by all sets, all their splits over the channels, and all levels of each part."""
    alone: dict[tuple[int, ...], float] = {}
    for k in range(1, problem.devices + 1):
        for part in itertools.combinations(range(problem.devices), k):
            alone[part] = all_levels(problem, list(part))
    best = math.inf
    for on in itertools.product(range(-1, problem.channels), repeat=problem.devices):
        active = [i for i, c in enumerate(on) if c >= 0]
        if active:
            parts = [tuple(i for i in active if on[i] == c) for c in range(problem.channels)]
            best = min(best, max(alone[part] for part in parts if part) * factor(problem, active))
    return best
