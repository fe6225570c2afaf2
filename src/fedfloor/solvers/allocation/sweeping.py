"""RaFed's sweep: one device after the other gets the choice that is best while all others keep theirs (compiled).

Costs are logarithms: with many devices on a channel exp(γI/s) is beyond floating-point numbers, its logarithm is not.
"""

from __future__ import annotations

import math

import numpy as np

from fedfloor.solvers.allocation.annealing import log_factor
from fedfloor.solvers.allocation.kernels import INFINITE, log_harm
from fedfloor.solvers.allocation.problem import Floats, Integers
from fedfloor.solvers.allocation.tables import Data, Terms
from fedfloor.solvers.compiled import compiled

EQUAL = 1e-12  # log costs closer than this, relative where they are large, are ties

Loads = tuple[Floats, Floats]  # of each channel: the largest ln t, and Σ ln t


@compiled
def load(data: Data, members: Integers, size: int, rank: Integers) -> tuple[float, float]:
    """Return the largest and the sum of ln t on a channel; −inf and 0 for nobody."""
    compute, power, log_airtime, _, _, _, _, _ = data
    total, worst, logs = 0.0, -INFINITE, 0.0
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
def combined(loads: Loads, skip: int, other: int) -> tuple[float, float]:
    """Return the largest and the sum of ln t over all channels but two."""
    worst, logs = -INFINITE, 0.0
    for c in range(len(loads[0])):
        if c not in (skip, other):
            worst = max(worst, loads[0][c])
            logs += loads[1][c]
    return worst, logs


@compiled
def best_choice(
    data: Data, terms: Terms, members: Integers, size: Integers, rank: Integers, loads: Loads, held: Floats, i: int,
    k: int, may_rest: bool, ties: bool,
) -> tuple[float, float, int, int]:  # fmt: skip
    """Return (log cost, Σ ln t, channel, level) of the best choice for a device that is on no channel at present.

    ``k`` devices are active without it; resting is channel −1.
    """
    best = (INFINITE, INFINITE, -1, 0)
    if may_rest and k > 0:
        worst, logs = combined(loads, -1, -1)
        best = (log_factor(terms, k, held, -1, -1) + worst, logs, -1, 0)
    factor = log_factor(terms, k + 1, held, i, -1)
    before = rank[i]
    for c in range(len(size)):
        worst, logs = combined(loads, c, -1)
        members[c, size[c]] = i
        for r in range(data[3][i]):
            rank[i] = r
            here = load(data, members[c], size[c] + 1, rank)
            value, tie = factor + max(worst, here[0]), logs + here[1]
            if value < best[0] - EQUAL or (ties and value < best[0] + EQUAL and tie < best[1] - EQUAL):
                best = (min(value, best[0]), tie, c, r)
    rank[i] = before
    return best


@compiled
def on_channels(channel: Integers, channels: int) -> tuple[Integers, Integers]:
    """Return the devices on every channel [C, N], and how many they are [C]."""
    members, size = np.empty((channels, len(channel)), np.int64), np.zeros(channels, np.int64)
    for i, c in enumerate(channel):
        if c >= 0:
            members[c, size[c]] = i
            size[c] += 1
    return members, size


@compiled
def sweep(
    data: Data, terms: Terms, channel: Integers, rank: Integers, channels: int, devices: Integers, may_rest: bool,
    ties: bool,
) -> tuple[float, bool]:  # fmt: skip
    """Let each of ``devices`` choose anew; return the log cost and whether anyone chose differently.

    A device keeps its choice unless another has a smaller cost, or with ``ties`` an equal cost and a smaller Σ ln t.
    """
    members, size = on_channels(channel, channels)
    loads = (np.full(channels, -INFINITE), np.zeros(channels))
    held = np.zeros(len(terms[4]))
    for c in range(channels):
        loads[0][c], loads[1][c] = load(data, members[c], size[c], rank)
        for a in range(size[c]):
            held += terms[3][members[c, a]]
    k = size.sum()
    other = False
    for i in devices:
        c, r = channel[i], rank[i]
        worst, logs = combined(loads, -1, -1)
        now = log_factor(terms, k, held, -1, -1) + worst if k > 0 else INFINITE
        if c >= 0:  # taken out: the others' loads and k are without it
            remove(members, size, c, i)
            loads[0][c], loads[1][c] = load(data, members[c], size[c], rank)
            held -= terms[3][i]
            k -= 1
        value, tie, to, level = best_choice(data, terms, members, size, rank, loads, held, i, k, may_rest, ties)
        near = EQUAL * max(1.0, min(abs(now), 1e300))  # rounding grows with the numbers, and must not look like a gain
        fewer = tie < logs - EQUAL * max(1.0, min(abs(logs), 1e300))
        if value < now - near or (ties and value < now + near and fewer):
            c, r, other = to, level, True
        channel[i], rank[i] = c, r
        if c >= 0:
            members[c, size[c]] = i
            size[c] += 1
            held += terms[3][i]
            k += 1
            loads[0][c], loads[1][c] = load(data, members[c], size[c], rank)
    worst, _ = combined(loads, -1, -1)
    return (log_factor(terms, k, held, -1, -1) + worst if k > 0 else INFINITE), other


@compiled
def remove(members: Integers, size: Integers, c: int, i: int) -> None:
    """Take a device off its channel."""
    for a in range(size[c]):
        if members[c, a] == i:
            members[c, a] = members[c, size[c] - 1]
            break
    size[c] -= 1
