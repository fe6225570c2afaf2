"""A first allocation: fill the channels within one latency, for many latencies (compiled)."""

from __future__ import annotations

import math

import numpy as np

from fedfloor.solvers.allocation.kernels import INFINITE, settle
from fedfloor.solvers.allocation.problem import Integers
from fedfloor.solvers.allocation.tables import Data
from fedfloor.solvers.compiled import compiled

PATIENCE = 100  # devices in a row that fit nowhere


@compiled
def pack(data: Data, order: Integers, limit: float, channel: Integers, members: Integers, size: Integers) -> int:
    """Put each device in turn on the first channel that then still serves all its devices within ``limit``.

    Args:
        data: tables.
        order: devices in the order in which they are tried.
        limit: latency.
        channel: [N], filled.
        members: [C, N], filled.
        size: [C], filled.

    Returns:
        how many found room.
    """
    rank = np.zeros(len(channel), np.int64)
    channel[:] = -1
    size[:] = 0
    found, failed = 0, 0
    for i in order:
        failed += 1
        for c in range(len(size)):
            members[c, size[c]] = i
            if settle(data, members[c], size[c] + 1, limit, rank) < INFINITE:
                size[c] += 1
                channel[i] = c
                found += 1
                failed = 0
                break
        if failed >= PATIENCE:
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
def scan(data: Data, channels: int, scale: float, offset: float, step: float, best: Integers) -> float:
    """Fill the channels for latencies in geometric steps; return the least n(k)·T; ``best`` [N] holds its channels."""
    n = len(best)
    members = np.empty((channels, n), np.int64)
    size = np.zeros(channels, np.int64)
    channel = np.empty(n, np.int64)
    least = INFINITE
    fewest = scale * (offset + 1.0 / n)  # iterations, if all took part
    limit = data[6].min() * (1.0 + 1e-12)
    while fewest * limit < least:
        k = pack(data, promise(data, limit), limit, channel, members, size)
        if k > 0:
            value = scale * (offset + 1.0 / k) * limit
            if value < least:
                least = value
                best[:] = channel
        limit *= step
    return least if least < INFINITE else math.inf
