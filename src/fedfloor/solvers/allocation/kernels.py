"""Compiled kernels of the allocation: the least powers on a channel, initial fillings, and all sets of devices.

A channel can serve a set within a latency if and only if the *least* powers can. They are found from below: every
device starts at its weakest level and rises while the others' power requires it. No device ever exceeds its level in
any solution, as more interference never allows a lower level. This is power control with a standard interference
function (Yates, IEEE JSAC 13(7), 1995), on a finite set of levels and for both models of reception.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedfloor.solvers.allocation.problem import ChannelData, CostTerms, LevelTables
from fedfloor.solvers.solution import Floats, Integers, compiled

Workspace = tuple[Integers, Floats, Floats]  # by device: the rank of its level, ln(limit − compute), its least share
Unsigned = NDArray[np.uint64]
INFINITE = math.inf
SLACK = 1e-12  # relative tolerance where rounding must not exclude a solution


def channel_data(tables: LevelTables) -> ChannelData:
    """Return the tables in the kernels' form; the last two [N]: latency alone on a channel, and ln of its upload."""
    harm = np.where(np.arange(tables.power.shape[1]) < tables.count[:, None], tables.threshold / tables.power, np.inf)
    with np.errstate(over="ignore"):
        log_upload = (tables.log_airtime + harm).min(1)
        alone = tables.compute + np.exp(log_upload)
    return (
        tables.compute, tables.power, tables.log_airtime, tables.count, tables.threshold, tables.fading, alone,
        log_upload,
    )  # fmt: skip


def workspace(devices: int) -> Workspace:
    """Return the work arrays that kernels need for a channel."""
    return np.zeros(devices, np.int64), np.empty(devices), np.empty(devices)


@compiled
def log_harm(data: ChannelData, members: Integers, size: int, rank: Integers, i: int, r: int, total: float) -> float:
    """Return −ln q of device i at its r-th level on a channel with the total power ``total``, its own included."""
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
def log_budgets(data: ChannelData, members: Integers, size: int, limit: float, work: Workspace) -> bool:
    """Write ln(limit − compute) of the members; return False if they cannot all meet the limit at any powers.

    With b the greatest −ln q that a device tolerates, ``"mean"`` reception needs Σ 1/(1 + b/γ) ≤ 1 and fading
    Σ b ≥ m(m − 1) ln(1 + γ): see :func:`fedfloor.solvers.allocation.problem.lower_bound`.
    """
    compute, _, _, _, threshold, fading, alone, log_upload = data
    shares = 0.0
    bears = 0.0
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
def start_levels(data: ChannelData, members: Integers, size: int, work: Workspace) -> None:
    """Set levels that are lower bounds of every solution, as a start (``"mean"`` reception).

    The powers' sum X is at least Σ max(weakest level, share·X). The least X for which this holds is found by Newton's
    method from below, which does not exceed it, as the sum is convex in X.
    """
    power = data[1]
    count = data[3]
    rank, _, share = work
    x = -1.0
    after = 0.0
    while after > x * (1.0 + SLACK):
        x = after
        least = 0.0
        shares = 0.0
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
def least_powers(data: ChannelData, members: Integers, size: int, limit: float, work: Workspace) -> float:
    """Write the levels of the least powers that keep every latency within ``limit`` into ``work[0]``.

    Return the largest latency at these powers, or inf if no powers keep the limit.
    """
    _, power, log_airtime, count, threshold, fading, _, _ = data
    rank, rooms_of, _ = work
    if not log_budgets(data, members, size, limit, work):
        return INFINITE
    if fading:
        for a in range(size):
            rank[members[a]] = 0
    else:
        start_levels(data, members, size, work)
    changed = True
    while changed:
        changed = False
        total = 0.0
        for a in range(size):
            total += power[members[a], rank[members[a]]]
        for a in range(size):
            i = members[a]
            r = rank[i]
            room = rooms_of[i]
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
def slowest(data: ChannelData, members: Integers, size: int, rank: Integers) -> float:
    """Return the largest latency in seconds on a channel at given levels."""
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
def fastest(
    data: ChannelData, members: Integers, size: int, low: float, high: float, precision: float, work: Workspace
) -> float:
    """Return the least possible largest latency of a set on a channel, to a relative precision.

    Its levels are written into ``work[0]``.

    ``low`` is a lower bound of the latency (0 is enough); the result is inf if no latency is at most ``high``.
    """
    alone = data[6]
    rank = work[0]
    for a in range(size):
        low = max(low, alone[members[a]])
    if low > high:
        return INFINITE
    best = least_powers(data, members, size, high, work)
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
        reached = least_powers(data, members, size, middle, work)
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
    """Return a random number in [0, 1) and advance the state [1] (splitmix64; Steele, Lea and Flood, OOPSLA 2014)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


PATIENCE = 100  # consecutive devices that do not fit
# factors between tried latencies
COARSE = 1.1
FINE = 1.015


@compiled
def log_factor(terms: CostTerms, k: int, held: Floats, joins: int, leaves: int) -> float:
    """Return ln n(k) + ln(1 + w·divergence) after a device joins and another leaves (−1: none)."""
    scale, offset, weight, counts, target = terms
    out = math.log(scale * (offset + 1.0 / k))
    if weight == 0.0:
        return out
    total = 0.0
    square = 0.0
    now = held.copy()
    if joins >= 0:
        now += counts[joins]
    if leaves >= 0:
        now -= counts[leaves]
    total = max(now.sum(), 1e-300)
    for f in range(len(target)):
        square += (now[f] / total - target[f]) ** 2
    return out + math.log(1.0 + weight * math.sqrt(square))


@compiled
def pack(
    data: ChannelData, order: Integers, limit: float, channel: Integers, members: Integers, size: Integers,
    work: Workspace,
) -> int:  # fmt: skip
    """Put each device of ``order`` on the first channel that still serves all its devices within ``limit``.

    A channel that cannot serve 100 consecutive devices counts as full. Fill ``channel`` [N], ``members`` [C, N] and
    ``size`` [C]; return the number of placed devices.
    """
    channels = len(size)
    failed = np.zeros(channels, np.int64)
    still_open = np.arange(channels)
    channel[:] = -1
    size[:] = 0
    placed = 0
    many = channels
    for i in order:
        kept = 0
        for a in range(many):
            c = still_open[a]
            if channel[i] < 0:
                members[c, size[c]] = i
                failed[c] += 1
                if least_powers(data, members[c], size[c] + 1, limit, work) < INFINITE:
                    size[c] += 1
                    channel[i] = c
                    placed += 1
                    failed[c] = 0
            if failed[c] < PATIENCE:
                still_open[kept] = c
                kept += 1
        many = kept
        if many == 0:
            break
    return placed


@compiled
def promise(data: ChannelData, limit: float) -> Integers:
    """Return the devices that can meet a latency alone, in descending order of tolerated interference.

    −ln q is at most ln((T − compute)/airtime): the device with the longest time left for its upload is first.
    """
    compute = data[0]
    alone = data[6]
    able = np.flatnonzero(alone < limit)
    left = np.empty(len(able))
    for a, i in enumerate(able):
        left[a] = -(limit - compute[i]) / max(alone[i] - compute[i], 1e-300)
    return able[np.argsort(left)]


@compiled
def scan(data: ChannelData, channels: int, scale: float, offset: float, best: Integers) -> float:
    """Fill the channels for latencies in coarse steps, then in fine steps about the best; μ and λ are scale and offset.

    ``best`` [N] becomes the channels of the best filling. Return its latency T, for which n(k)·T is least; inf without
    a filling.
    """
    n = len(best)
    members = np.empty((channels, n), np.int64)
    size = np.zeros(channels, np.int64)
    channel = np.empty(n, np.int64)
    work = (np.zeros(n, np.int64), np.empty(n), np.empty(n))
    least = INFINITE
    chosen = INFINITE
    fewest = scale * (offset + 1.0 / n)  # iterations, if all devices took part
    start, end = data[6].min() * (1.0 + SLACK), INFINITE
    for step in (COARSE, FINE):
        limit = start
        while fewest * limit < least and limit < end:
            k = pack(data, promise(data, limit), limit, channel, members, size, work)
            value = scale * (offset + 1.0 / k) * limit if k > 0 else INFINITE
            if value < least:
                least = value
                chosen = limit
                best[:] = channel
            limit *= step
        start, end = max(start, chosen / COARSE), chosen * COARSE
    return chosen


Places = NDArray[np.int32]


@compiled
def grown_array(values: Places, needed: int) -> Places:
    """Return the array, or a copy of twice the size if ``needed`` entries do not fit."""
    if needed <= len(values):
        return values
    out = np.empty(max(2 * len(values), needed), np.int32)
    out[: len(values)] = values
    return out


@compiled
def list_sets(
    data: ChannelData, devices: Integers, limit: float, room: int, work: Workspace
) -> tuple[Places, Places, bool]:
    """Return every set that meets ``limit`` on a channel, depth first: supersets of a failing set fail, too.

    The result is the members of all sets, one after the other, as indices of ``devices`` [M]; the start of each set,
    and the end; and whether the list is complete: it ends when it has more than ``room`` members.
    """
    m = len(devices)
    items = np.empty(4096, np.int32)
    starts = np.empty(1024, np.int32)
    count = 0
    filled = 0
    size = 0
    a = 0
    starts[0] = 0
    # the set, and the indices of its members in devices
    members = np.empty(m, np.int64)
    at = np.empty(m, np.int32)
    while a < m or size > 0:
        if a == m:
            size -= 1
            a = at[size] + 1
            continue
        members[size] = devices[a]
        if least_powers(data, members, size + 1, limit, work) < INFINITE:
            at[size] = a
            size += 1
            items = grown_array(items, filled + size)
            starts = grown_array(starts, count + 2)
            items[filled : filled + size] = at[:size]
            filled += size
            count += 1
            starts[count] = filled
            if filled > room:
                return items[:filled], starts[: count + 1], False
        a += 1
    return items[:filled], starts[: count + 1], True


PRECISION = 1e-12  # relative precision of a set's latency


@compiled
def unpack(mask: int, devices: Integers, out: Integers) -> int:
    """Write the devices of a set, given as a bit mask, into ``out``; return their number."""
    size = 0
    for a in range(len(devices)):
        if mask >> a & 1:
            out[size] = devices[a]
            size += 1
    return size


@compiled
def latencies_on_one_channel(data: ChannelData, devices: Integers, high: float, work: Workspace) -> Floats:
    """Return every set's least possible largest latency on a channel [2^M]; inf above ``high``.

    A set is never faster than its subsets, which gives the search a lower limit and excludes most sets.
    """
    m = len(devices)
    out = np.zeros(1 << m)
    members = np.empty(m, np.int64)
    for mask in range(1, 1 << m):
        low = 0.0
        for a in range(m):
            if mask >> a & 1:
                low = max(low, out[mask ^ (1 << a)])
        out[mask] = INFINITE
        if low < INFINITE:
            size = unpack(mask, devices, members)
            out[mask] = fastest(data, members, size, low, high, PRECISION, work)
    return out


@compiled
def latencies_with_one_more_channel(single: Floats, before: Floats, part: Integers) -> Floats:
    """Return every set's latency with an additional channel; ``part`` gets the subset on the new channel (0: empty).

    A set is split into subsets, one per channel; the new channel has the subset with the lowest device.
    """
    out = before.copy()
    part[:] = 0
    for mask in range(1, len(single)):
        lowest = mask & -mask
        rest = mask ^ lowest
        sub = rest
        while True:
            with_lowest = single[sub | lowest]
            if with_lowest < out[mask]:
                value = max(with_lowest, before[rest ^ sub])
                if value < out[mask]:
                    out[mask] = value
                    part[mask] = sub | lowest
            if sub == 0:
                break
            sub = (sub - 1) & rest
    return out


@compiled
def cheapest_set(terms: CostTerms, devices: Integers, latency: Floats) -> tuple[int, float]:
    """Return the set with the smallest cost, and the logarithm of the cost."""
    held = np.zeros(len(terms[4]))
    members = np.empty(len(devices), np.int64)
    best = INFINITE
    which = 0
    for mask in range(1, len(latency)):
        if latency[mask] == INFINITE:
            continue
        size = unpack(mask, devices, members)
        held[:] = 0.0
        for a in range(size):
            held += terms[3][members[a]]
        value = log_factor(terms, size, held, -1, -1) + math.log(latency[mask])
        if value < best:
            best = value
            which = mask
    return which, best
