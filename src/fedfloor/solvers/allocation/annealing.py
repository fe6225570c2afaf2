"""Simulated annealing over who takes part on which channel (compiled).

A state is a row of devices per channel and one more row, the last, for those that stay silent. A proposal moves one
device to another row or exchanges two. Its fate is drawn *before* it is evaluated: the draw says how much the cost may
be at most, that says how slow the changed channel may be at most, and mostly one test of that channel at that latency
is enough to refuse it.
"""

from __future__ import annotations

import math

import numpy as np

from fedfloor.solvers.allocation.kernels import INFINITE, Unsigned, Work, draw, fastest
from fedfloor.solvers.allocation.problem import Floats, Integers
from fedfloor.solvers.allocation.tables import Data, Terms
from fedfloor.solvers.compiled import compiled

SHARPNESS = 24.0  # β: the channels' latencies count as (Σ f^β)^(1/β), so that also those below the largest matter
PRECISION = 1e-3  # of a channel's latency while searching
STAGE = 64  # proposals at one temperature
SMALLEST = 1e-9  # gain of the log cost

Rows = tuple[Integers, Integers, Integers, Integers]  # members [C + 1, N], size [C + 1], row of [N], place in it [N]


@compiled
def log_factor(terms: Terms, k: int, held: Floats, joins: int, leaves: int) -> float:
    """Return ln n(k) + ln(1 + w·divergence) after a device (or −1, nobody) joins and another leaves."""
    scale, offset, weight, counts, target = terms
    out = math.log(scale * (offset + 1.0 / k))
    if weight == 0.0:
        return out
    total, square = 0.0, 0.0
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
def rows_of(channel: Integers, channels: int, pool: Integers) -> Rows:
    """Return the rows that hold the devices of ``pool`` on their channels."""
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
    """Put a device into another row; the last of its row takes its place."""
    members, size, row, place = rows
    c, at = row[i], place[i]
    size[c] -= 1
    last = members[c, size[c]]
    members[c, at] = last
    place[last] = at
    members[to, size[to]] = i
    row[i], place[i] = to, size[to]
    size[to] += 1


@compiled
def changed(rows: Rows, c: int, leaves: int, joins: int, out: Integers) -> int:
    """Write the row as it would be without ``leaves`` and with ``joins`` (−1: nobody); return its size."""
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
def propose(rows: Rows, state: Unsigned, same: bool) -> tuple[int, int, int, int]:
    """Draw a proposal: (i, its row, j, its row): exchange i and j, or with j = −1 move i to the second row.

    With ``same`` both rows are channels. i = −1: there is nothing to propose.
    """
    members, size, _, _ = rows
    silent = len(size) - 1
    kind = 0.45 + 0.3 * draw(state) if same else draw(state)
    first = int(draw(state) * silent)
    second = silent
    if 0.45 <= kind < 0.75 and silent > 1:  # the other row is a channel too
        second = int(draw(state) * (silent - 1))
        second += second >= first
    if kind >= 0.9:  # someone joins
        first, second = second, first
    if size[first] == 0 or (same and silent == 1):
        return -1, first, -1, second
    i = members[first, int(draw(state) * size[first])]
    exchange = kind < 0.65
    if exchange and size[second] == 0:
        return -1, first, -1, second
    j = members[second, int(draw(state) * size[second])] if exchange else -1
    return i, first, j, second


@compiled
def slowness(data: Data, trial: Integers, size: int, budget: float, unit: float, work: Work) -> float:
    """Return (f/unit)^β of a set on one channel if that is at most ``budget``, else inf."""
    if size == 0:
        return 0.0
    if budget <= 0.0:
        return INFINITE
    high = unit * budget ** (1.0 / SHARPNESS)
    found = fastest(data, trial, size, 0.0, high, PRECISION, work)
    return INFINITE if found == INFINITE else (found / unit) ** SHARPNESS


@compiled
def attempt(
    data: Data, terms: Terms, rows: Rows, held: Floats, slow: Floats, unit: float, limit: float, k: int,
    state: Unsigned, trial: Integers, work: Work, same: bool,
) -> int:  # fmt: skip
    """Make one proposal and carry it out if the log cost stays at most ``limit``; return the new k, or −1."""
    silent = len(slow)
    i, first, j, second = propose(rows, state, same)
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
            found = slowness(data, trial, changed(rows, c, out, came, trial), budget, unit, work)
            if found == INFINITE:
                return -1
            budget -= found
            new = (found, new[1]) if turn == 0 else (new[0], found)
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
def first_state(data: Data, terms: Terms, rows: Rows, work: Work) -> tuple[Floats, Floats]:
    """Return the latency of every channel [C] and the samples of each class that the active devices hold [F]."""
    members, size, _, _ = rows
    latency, held = np.zeros(len(size) - 1), np.zeros(len(terms[4]))
    for c in range(len(latency)):
        if size[c] > 0:
            latency[c] = fastest(data, members[c], size[c], 0.0, INFINITE, PRECISION, work)
        for a in range(size[c]):
            held += terms[3][members[c, a]]
    return latency, held


@compiled
def anneal(
    data: Data, terms: Terms, channel: Integers, channels: int, pool: Integers, proposals: int, hot: float,
    cold: float, seed: int, same: bool,
) -> None:  # fmt: skip
    """Improve an allocation; ``channel`` [N] is replaced by the best found.

    Args:
        data, terms: tables; the other factors of the cost.
        channel: to start from, at least one device active.
        channels: C.
        pool: devices that may be active [M].
        proposals: how many.
        hot, cold: first and last temperature, of the log cost.
        seed: of the draws.
        same: the same devices stay active.
    """
    rows = rows_of(channel, channels, pool)
    trial, state = np.empty(len(pool) + 1, np.int64), np.array([seed], np.uint64)
    work = (np.zeros(len(channel), np.int64), np.empty(len(channel)), np.empty(len(channel)))
    latency, held = first_state(data, terms, rows, work)
    k, unit = len(pool) - rows[1][channels], latency.max()
    slow = (latency / unit) ** SHARPNESS
    best = log_factor(terms, k, held, -1, -1)
    now = best + math.log(slow.sum()) / SHARPNESS
    temperature, cooling = hot, (cold / hot) ** (STAGE / max(proposals, 1))
    for step in range(proposals):
        if step % STAGE == STAGE - 1:
            temperature *= cooling
        limit = now - temperature * math.log(1.0 - draw(state))
        after = attempt(data, terms, rows, held, slow, unit, limit, k, state, trial, work, same)
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
