"""Compiled local search of the allocation: simulated annealing, and RaFed's sweep over the devices.

**Annealing.** A state is a row of devices per channel, and a last row for silent devices. A proposal moves a device to
another row or exchanges two devices. The random number of its acceptance is drawn *before* it is evaluated: it limits
the cost and thereby the latency of the changed channel, and mostly one test of this channel is enough to reject it.

**Sweep.** One device after the other gets the choice that is best while all others keep theirs. Costs are logarithms,
as exp(γI/s) exceeds floating-point numbers with many devices on a channel.
"""

from __future__ import annotations

import math

import numpy as np

from fedfloor.solvers.allocation.kernels import INFINITE, Unsigned, Workspace, draw, fastest, log_factor, log_harm
from fedfloor.solvers.allocation.problem import ChannelData, CostTerms
from fedfloor.solvers.solution import Floats, Integers, compiled

SHARPNESS = 24.0  # β: the channels' latencies count as (Σ f^β)^(1/β), so that those below the largest count, too
PRECISION = 1e-3  # relative precision of a channel's latency in the search
STAGE = 64  # proposals per temperature
SMALLEST = 1e-9  # smallest gain of the log cost

Rows = tuple[Integers, Integers, Integers, Integers]  # members [C + 1, N], size [C + 1], row [N], place in it [N]


@compiled
def rows_of(channel: Integers, channels: int, pool: Integers) -> Rows:
    """Return the rows with the devices of ``pool`` by channel."""
    members = np.empty((channels + 1, len(pool)), np.int64)
    size = np.zeros(channels + 1, np.int64)
    row = np.full(len(channel), channels, np.int64)
    place = np.zeros(len(channel), np.int64)
    for i in pool:
        c = channel[i] if channel[i] >= 0 else channels
        row[i], place[i] = c, size[c]
        members[c, size[c]] = i
        size[c] += 1
    return members, size, row, place


@compiled
def move(rows: Rows, i: int, to: int) -> None:
    """Put a device into another row; the last device of its old row takes its place."""
    members, size, row, place = rows
    c = row[i]
    at = place[i]
    size[c] -= 1
    last = members[c, size[c]]
    members[c, at] = last
    place[last] = at
    members[to, size[to]] = i
    row[i], place[i] = to, size[to]
    size[to] += 1


@compiled
def changed(rows: Rows, c: int, leaves: int, joins: int, out: Integers) -> int:
    """Write row c without ``leaves`` and with ``joins`` (−1: none) into ``out``; return its size."""
    members, size, _, _ = rows
    k = 0
    for a in range(size[c]):
        if members[c, a] != leaves:
            out[k] = members[c, a]
            k += 1
    if joins >= 0:
        out[k] = joins
        k += 1
    return k


@compiled
def propose(rows: Rows, state: Unsigned) -> tuple[int, int, int, int]:
    """Return a random proposal (i, its row, j, its row): exchange i and j, or with j = −1 move i to the second row.

    i = −1: no proposal is possible.
    """
    members, size, _, _ = rows
    silent = len(size) - 1
    kind = draw(state)
    first = int(draw(state) * silent)
    second = silent
    if 0.45 <= kind < 0.75 and silent > 1:  # the other row is a channel, too
        second = int(draw(state) * (silent - 1))
        second += second >= first
    if kind >= 0.9:  # a device joins
        first, second = second, first
    if size[first] == 0:
        return -1, first, -1, second
    i = members[first, int(draw(state) * size[first])]
    exchange = kind < 0.65
    if exchange and size[second] == 0:
        return -1, first, -1, second
    j = members[second, int(draw(state) * size[second])] if exchange else -1
    return i, first, j, second


@compiled
def slowness(data: ChannelData, trial: Integers, size: int, budget: float, unit: float, work: Workspace) -> float:
    """Return (f/unit)^β of a set with the latency f on a channel if that is at most ``budget``, else inf."""
    if size == 0:
        return 0.0
    if budget <= 0.0:
        return INFINITE
    high = unit * budget ** (1.0 / SHARPNESS)
    latency = fastest(data, trial, size, 0.0, high, PRECISION, work)
    return INFINITE if latency == INFINITE else (latency / unit) ** SHARPNESS


@compiled
def attempt(
    data: ChannelData, terms: CostTerms, rows: Rows, held: Floats, slow: Floats, unit: float, limit: float, k: int,
    state: Unsigned, trial: Integers, work: Workspace,
) -> int:  # fmt: skip
    """Make a proposal, and carry it out if the log cost is at most ``limit``; return the new k, or −1 if rejected."""
    silent = len(slow)
    i, first, j, second = propose(rows, state)
    if i < 0:
        return -1
    joins = i if first == silent else (j if second == silent else -1)
    leaves = i if second == silent else (j if first == silent else -1)
    after = k + (joins >= 0) - (leaves >= 0)
    if after == 0:
        return -1
    budget = math.exp(SHARPNESS * (limit - log_factor(terms, after, held, joins, leaves)))
    for c in range(silent):
        if c not in (first, second):
            budget -= slow[c]
    new = (0.0, 0.0)
    for turn in range(2):
        c, out, came = (first, i, j) if turn == 0 else (second, j, i)
        if c < silent:
            share = slowness(data, trial, changed(rows, c, out, came, trial), budget, unit, work)
            if share == INFINITE:
                return -1
            budget -= share
            new = (share, new[1]) if turn == 0 else (new[0], share)
    move(rows, i, second)
    if j >= 0:
        move(rows, j, first)
    if first < silent:
        slow[first] = new[0]
    if second < silent:
        slow[second] = new[1]
    if terms[2] > 0.0:
        if joins >= 0:
            held += terms[3][joins]
        if leaves >= 0:
            held -= terms[3][leaves]
    return after


@compiled
def first_state(data: ChannelData, terms: CostTerms, rows: Rows, work: Workspace) -> tuple[Floats, Floats]:
    """Return the latency of every channel [C], and the active devices' samples of each class [F]."""
    members, size, _, _ = rows
    latency = np.zeros(len(size) - 1)
    held = np.zeros(len(terms[4]))
    for c in range(len(latency)):
        if size[c] > 0:
            latency[c] = fastest(data, members[c], size[c], 0.0, INFINITE, PRECISION, work)
        for a in range(size[c]):
            held += terms[3][members[c, a]]
    return latency, held


@compiled
def anneal(
    data: ChannelData, terms: CostTerms, channel: Integers, channels: int, pool: Integers, proposals: int, hot: float,
    cold: float, seed: int,
) -> None:  # fmt: skip
    """Improve an allocation by annealing; ``channel`` [N], with an active device, becomes the best allocation found.

    ``pool`` [M]: the devices that may be active; ``hot`` and ``cold``: the first and last temperature of the log cost.
    """
    rows = rows_of(channel, channels, pool)
    trial = np.empty(len(pool) + 1, np.int64)
    state = np.array([seed], np.uint64)
    work = (np.zeros(len(channel), np.int64), np.empty(len(channel)), np.empty(len(channel)))
    latency, held = first_state(data, terms, rows, work)
    k = len(pool) - rows[1][channels]
    unit = latency.max()
    slow = (latency / unit) ** SHARPNESS
    best = log_factor(terms, k, held, -1, -1)
    now = best + math.log(slow.sum()) / SHARPNESS
    temperature = hot
    cooling = (cold / hot) ** (STAGE / max(proposals, 1))
    for step in range(proposals):
        if step % STAGE == STAGE - 1:
            temperature *= cooling
        limit = now - temperature * math.log(1.0 - draw(state))
        after = attempt(data, terms, rows, held, slow, unit, limit, k, state, trial, work)
        if after < 0:
            continue
        k = after
        factor = log_factor(terms, k, held, -1, -1)
        now = factor + math.log(slow.sum()) / SHARPNESS
        value = factor + math.log(slow.max()) / SHARPNESS
        if value < best - SMALLEST:
            best = value
            for i in pool:
                channel[i] = rows[2][i] if rows[2][i] < channels else -1


EQUAL = 1e-12  # log costs closer than this are ties, relative for large costs

Loads = tuple[Floats, Floats]  # for each channel: the largest ln t, and Σ ln t


@compiled
def channel_loads(data: ChannelData, members: Integers, size: int, rank: Integers) -> tuple[float, float]:
    """Return the largest and the sum of ln t on a channel; −inf and 0 if it is empty."""
    compute, power, log_airtime, _, _, _, _, _ = data
    total = 0.0
    worst = -INFINITE
    logs = 0.0
    for a in range(size):
        total += power[members[a], rank[members[a]]]
    for a in range(size):
        i = members[a]
        airtime = log_airtime[i, rank[i]] + log_harm(data, members, size, rank, i, rank[i], total)
        low = math.log(compute[i]) if compute[i] > 0.0 else -INFINITE
        high = max(low, airtime)
        t = high + math.log1p(math.exp(min(low, airtime) - high))
        worst = max(worst, t)
        logs += t
    return worst, logs


@compiled
def total_loads(loads: Loads, skip: int, other: int) -> tuple[float, float]:
    """Return the largest and the sum of ln t over all channels but two."""
    worst = -INFINITE
    logs = 0.0
    for c in range(len(loads[0])):
        if c not in (skip, other):
            worst = max(worst, loads[0][c])
            logs += loads[1][c]
    return worst, logs


@compiled
def best_choice(
    data: ChannelData, terms: CostTerms, members: Integers, size: Integers, rank: Integers, loads: Loads,
    held: Floats, i: int, k: int, may_rest: bool, ties: bool,
) -> tuple[float, float, int, int]:  # fmt: skip
    """Return (log cost, Σ ln t, channel, level) of the best choice for a device that is not on a channel.

    ``k`` other devices are active; channel −1 is silence.
    """
    best = (INFINITE, INFINITE, -1, 0)
    if may_rest and k > 0:
        worst, logs = total_loads(loads, -1, -1)
        best = (log_factor(terms, k, held, -1, -1) + worst, logs, -1, 0)
    factor = log_factor(terms, k + 1, held, i, -1)
    before = rank[i]
    for c in range(len(size)):
        worst, logs = total_loads(loads, c, -1)
        members[c, size[c]] = i
        for r in range(data[3][i]):
            rank[i] = r
            load = channel_loads(data, members[c], size[c] + 1, rank)
            value = factor + max(worst, load[0])
            tie = logs + load[1]
            if value < best[0] - EQUAL or (ties and value < best[0] + EQUAL and tie < best[1] - EQUAL):
                best = (min(value, best[0]), tie, c, r)
    rank[i] = before
    return best


@compiled
def sweep(
    data: ChannelData, terms: CostTerms, channel: Integers, rank: Integers, channels: int, devices: Integers,
    may_rest: bool, ties: bool,
) -> tuple[float, bool]:  # fmt: skip
    """Give each of ``devices`` its best choice; return the log cost, and whether any choice changed.

    A choice changes only for a smaller cost, or with ``ties`` for an equal cost and a smaller Σ ln t.
    """
    # devices by channel
    members = np.empty((channels, len(channel)), np.int64)
    size = np.zeros(channels, np.int64)
    for i, c in enumerate(channel):
        if c >= 0:
            members[c, size[c]] = i
            size[c] += 1
    loads = (np.full(channels, -INFINITE), np.zeros(channels))
    held = np.zeros(len(terms[4]))
    for c in range(channels):
        loads[0][c], loads[1][c] = channel_loads(data, members[c], size[c], rank)
        for a in range(size[c]):
            held += terms[3][members[c, a]]
    k = size.sum()
    other = False
    for i in devices:
        c, r = channel[i], rank[i]
        worst, logs = total_loads(loads, -1, -1)
        now = log_factor(terms, k, held, -1, -1) + worst if k > 0 else INFINITE
        if c >= 0:  # removed: the others' loads and k do not include it
            for a in range(size[c]):
                if members[c, a] == i:
                    members[c, a] = members[c, size[c] - 1]
                    break
            size[c] -= 1
            loads[0][c], loads[1][c] = channel_loads(data, members[c], size[c], rank)
            held -= terms[3][i]
            k -= 1
        value, tie, to, level = best_choice(data, terms, members, size, rank, loads, held, i, k, may_rest, ties)
        near = EQUAL * max(1.0, min(abs(now), 1e300))  # rounding grows with the numbers, and must not count as a gain
        fewer = tie < logs - EQUAL * max(1.0, min(abs(logs), 1e300))
        if value < now - near or (ties and value < now + near and fewer):
            c = to
            r = level
            other = True
        channel[i] = c
        rank[i] = r
        if c >= 0:
            members[c, size[c]] = i
            size[c] += 1
            held += terms[3][i]
            k += 1
            loads[0][c], loads[1][c] = channel_loads(data, members[c], size[c], rank)
    worst, _ = total_loads(loads, -1, -1)
    return (log_factor(terms, k, held, -1, -1) + worst if k > 0 else INFINITE), other
