"""A first allocation: fill the channels within one latency, for many latencies (compiled)."""

from __future__ import annotations

import numpy as np

from fedfloor.solvers.allocation.kernels import INFINITE, SLACK, Work, settle
from fedfloor.solvers.allocation.problem import Integers
from fedfloor.solvers.allocation.tables import Data
from fedfloor.solvers.compiled import compiled

PATIENCE = 100  # devices in a row that do not fit
COARSE, FINE = 1.1, 1.015  # steps of the latency


@compiled
def pack(
    data: Data, order: Integers, limit: float, channel: Integers, members: Integers, size: Integers, work: Work
) -> int:
    """Put each device in turn on the first channel that then still serves all its devices within ``limit``.

    A channel on which 100 devices in a row found no room is full. Returned is how many devices found room.

    Args:
        data: tables.
        order: devices in the order in which they are tried.
        limit: latency.
        channel: [N], filled.
        members: [C, N], filled.
        size: [C], filled.
        work: changed.
    """
    channels = len(size)
    failed, still_open = np.zeros(channels, np.int64), np.arange(channels)
    channel[:] = -1
    size[:] = 0
    found, many = 0, channels
    for i in order:
        kept = 0
        for a in range(many):
            c = still_open[a]
            if channel[i] < 0:
                members[c, size[c]] = i
                failed[c] += 1
                if settle(data, members[c], size[c] + 1, limit, work) < INFINITE:
                    size[c] += 1
                    channel[i] = c
                    found += 1
                    failed[c] = 0
            if failed[c] < PATIENCE:
                still_open[kept] = c
                kept += 1
        many = kept
        if many == 0:
            break
    return found


@compiled
def promise(data: Data, limit: float) -> Integers:
    """Return the devices that can meet a latency alone, those that bear most interference first.

    −ln q may be at most ln((T − compute)/airtime): the device with the longest time left for its upload is first.
    """
    compute, alone = data[0], data[6]
    able = np.flatnonzero(alone < limit)
    left = np.empty(len(able))
    for a, i in enumerate(able):
        left[a] = -(limit - compute[i]) / max(alone[i] - compute[i], 1e-300)
    return able[np.argsort(left)]


@compiled
def scan(data: Data, channels: int, scale: float, offset: float, best: Integers) -> float:
    """Fill the channels for latencies in coarse steps, then in fine ones about the best.

    Args:
        data: tables.
        channels: C.
        scale, offset: μ and λ.
        best: [N], becomes the channels of the best filling; nothing is changed if there is none.

    Returns:
        its latency T, at which n(k)·T is least; inf if there is none.
    """
    n = len(best)
    members, size, channel = np.empty((channels, n), np.int64), np.zeros(channels, np.int64), np.empty(n, np.int64)
    work = (np.zeros(n, np.int64), np.empty(n), np.empty(n))
    least, chosen = INFINITE, INFINITE
    fewest = scale * (offset + 1.0 / n)  # iterations, if all took part
    start, end = data[6].min() * (1.0 + SLACK), INFINITE
    for step in (COARSE, FINE):
        limit = start
        while fewest * limit < least and limit < end:
            k = pack(data, promise(data, limit), limit, channel, members, size, work)
            value = scale * (offset + 1.0 / k) * limit if k > 0 else INFINITE
            if value < least:
                least, chosen = value, limit
                best[:] = channel
            limit *= step
        start, end = max(start, chosen / COARSE), chosen * COARSE
    return chosen
