"""What the allocation solvers compute most often, compiled: one channel and the devices on it.

A channel can serve a set within a latency exactly if the *least* powers do. They are found from below: everyone starts
at the weakest level and goes up while the others' power asks for it; no one ever passes the level of any solution,
since more interference never lets a device go down. That is power control with a standard interference function (Yates,
IEEE JSAC 13(7), 1995), on a finite set of levels and for both models of reception.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedfloor.solvers.allocation.problem import Floats, Integers
from fedfloor.solvers.allocation.tables import Data, Tables
from fedfloor.solvers.compiled import compiled

Work = tuple[Integers, Floats, Floats]  # by device: its level's rank, ln(limit − compute), its least share
Unsigned = NDArray[np.uint64]
INFINITE = math.inf
SLACK = 1e-12  # relative, where rounding must not rule anything out


def data(of: Tables) -> Data:
    """Return the tables as kernels take them; the last two: latency alone on a channel, ln of its upload [N]."""
    harm = np.where(np.arange(of.power.shape[1]) < of.count[:, None], of.threshold / of.power, np.inf)
    with np.errstate(over="ignore"):
        log_upload = (of.log_airtime + harm).min(1)
        alone = of.compute + np.exp(log_upload)
    return of.compute, of.power, of.log_airtime, of.count, of.threshold, of.fading, alone, log_upload


def work(devices: int) -> Work:
    """Return what kernels write into while they look at a channel."""
    return np.zeros(devices, np.int64), np.empty(devices), np.empty(devices)


@compiled
def log_harm(data: Data, members: Integers, size: int, rank: Integers, i: int, r: int, total: float) -> float:
    """Return −ln q of device i at its r-th level among others on a channel whose powers add up to ``total`` with it."""
    _, power, _, _, threshold, fading, _, _ = data
    s = power[i, r]
    if not fading:
        return float(threshold * (total - power[i, rank[i]] + 1.0) / s)
    product = 1.0
    for a in range(size):
        j = members[a]
        if j != i:
            product *= 1.0 + threshold * power[j, rank[j]] / s
    return float(threshold / s + math.log(product))


@compiled
def rooms(data: Data, members: Integers, size: int, limit: float, work: Work) -> bool:
    """Write ln(limit − compute) of the members; return False if they cannot all meet the limit, whatever the powers.

    With b the most −ln q a device can bear, ``"mean"`` reception needs Σ 1/(1 + b/γ) ≤ 1 and fading
    Σ b ≥ m(m − 1) ln(1 + γ): see :func:`fedfloor.solvers.allocation.bound.lower_bound`.
    """
    compute, _, _, _, threshold, fading, alone, log_upload = data
    shares, bears = 0.0, 0.0
    for a in range(size):
        i = members[a]
        if alone[i] > limit:
            return False
        room = math.log(limit - compute[i])
        work[1][i] = room
        b = max(room - log_upload[i], 0.0)
        bears += b
        work[2][i] = threshold / (threshold + b)
        shares += work[2][i]
    if fading:
        return bears >= size * (size - 1) * math.log1p(threshold) * (1.0 - SLACK) - SLACK
    return shares <= 1.0 + SLACK


@compiled
def jump(data: Data, members: Integers, size: int, work: Work) -> None:
    """Start at levels that no solution lies below (``"mean"`` reception).

    The powers' sum X is at least Σ max(weakest level, share·X). The least such X is found by Newton's method from
    below, which does not pass it, as the sum is convex in X.
    """
    power, count = data[1], data[3]
    rank, _, share = work
    x, after = -1.0, 0.0
    while after > x * (1.0 + SLACK):
        x, least, shares = after, 0.0, 0.0
        for a in range(size):
            i = members[a]
            if share[i] * x > power[i, 0]:
                shares += share[i]
            else:
                least += power[i, 0]
        if shares >= 1.0 - SLACK:
            break
        after = least / (1.0 - shares)
    for a in range(size):
        i = members[a]
        r = 0
        while r < count[i] - 1 and power[i, r] < share[i] * x * (1.0 - SLACK):
            r += 1
        rank[i] = r


@compiled
def settle(data: Data, members: Integers, size: int, limit: float, work: Work) -> float:
    """Give the first ``size`` members the least powers at which everyone's latency is at most ``limit``.

    Returns:
        the largest latency then, or inf if no powers do; ``work[0]`` holds the levels.
    """
    _, power, log_airtime, count, threshold, fading, _, _ = data
    rank, rooms_of, _ = work
    if not rooms(data, members, size, limit, work):
        return INFINITE
    if fading:
        for a in range(size):
            rank[members[a]] = 0
    else:
        jump(data, members, size, work)
    changed = True
    while changed:
        changed = False
        total = 0.0
        for a in range(size):
            total += power[members[a], rank[members[a]]]
        for a in range(size):
            i = members[a]
            r, room = rank[i], rooms_of[i]
            if fading:
                while log_airtime[i, r] + log_harm(data, members, size, rank, i, r, total) > room:
                    r += 1
                    if r == count[i]:
                        return INFINITE
            else:
                load = threshold * (total - power[i, r] + 1.0)
                while load > (room - log_airtime[i, r]) * power[i, r]:
                    r += 1
                    if r == count[i]:
                        return INFINITE
            if r != rank[i]:
                total += power[i, r] - power[i, rank[i]]
                rank[i] = r
                changed = True
    return slowest(data, members, size, rank)


@compiled
def slowest(data: Data, members: Integers, size: int, rank: Integers) -> float:
    """Return the largest latency on a channel at given levels."""
    compute, power, log_airtime, _, _, _, _, _ = data
    total = 0.0
    for a in range(size):
        total += power[members[a], rank[members[a]]]
    worst = 0.0
    for a in range(size):
        i = members[a]
        r = rank[i]
        worst = max(worst, compute[i] + math.exp(log_airtime[i, r] + log_harm(data, members, size, rank, i, r, total)))
    return worst


@compiled
def fastest(data: Data, members: Integers, size: int, low: float, high: float, precision: float, work: Work) -> float:
    """Return the least largest latency of a set on one channel, to a relative precision; ``work[0]`` holds its levels.

    Args:
        data: tables.
        members, size: the set.
        low: a latency that cannot be beaten (0 will do).
        high: stop looking above it: inf is returned if nothing at most ``high`` exists.
        precision: relative.
        work: changed.
    """
    alone, rank = data[6], work[0]
    for a in range(size):
        low = max(low, alone[members[a]])
    if low > high:
        return INFINITE
    best = settle(data, members, size, high, work)
    if best == INFINITE and high < INFINITE:
        return INFINITE
    kept = np.empty(size, np.int64)
    for a in range(size):
        kept[a] = rank[members[a]]
    upper = min(best, 1e300)
    while upper > low * (1.0 + precision):
        middle = 0.5 * (low + upper) if upper < 2.0 * low else math.sqrt(low) * math.sqrt(upper)
        if middle <= low or middle >= upper:
            break
        reached = settle(data, members, size, middle, work)
        if reached == INFINITE:
            low = middle
        else:
            best = reached
            upper = min(middle, reached)
            for a in range(size):
                kept[a] = rank[members[a]]
    for a in range(size):
        rank[members[a]] = kept[a]
    return best


@compiled
def draw(state: Unsigned) -> float:
    """Return a number in [0, 1) and move the state [1] on (splitmix64; Steele, Lea and Flood, OOPSLA 2014)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)
