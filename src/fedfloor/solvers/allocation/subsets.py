"""Every set of a few devices: its latency on one channel, and on several (compiled dynamic programmes)."""

from __future__ import annotations

import math

import numpy as np

from fedfloor.solvers.allocation.annealing import log_factor
from fedfloor.solvers.allocation.kernels import INFINITE, Work, fastest
from fedfloor.solvers.allocation.problem import Floats, Integers
from fedfloor.solvers.allocation.tables import Data, Terms
from fedfloor.solvers.compiled import compiled

PRECISION = 1e-12  # of a set's latency, relative


@compiled
def unpack(mask: int, devices: Integers, out: Integers) -> int:
    """Write the devices of a set; return how many."""
    size = 0
    for a in range(len(devices)):
        if mask >> a & 1:
            out[size] = devices[a]
            size += 1
    return size


@compiled
def one_channel(data: Data, devices: Integers, high: float, work: Work) -> Floats:
    """Return every set's least largest latency on one channel [2^M]; inf above ``high``.

    A set is never faster than a set within it, which gives the search its lower end and rules most sets out.
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
def one_more(single: Floats, before: Floats, part: Integers) -> Floats:
    """Return every set's latency with one channel more; ``part`` holds what the new channel takes (0: nothing).

    Of the parts that a set can be split into, the new channel's is the one with the lowest device.
    """
    out = before.copy()
    part[:] = 0
    for mask in range(1, len(single)):
        lowest = mask & -mask
        rest = mask ^ lowest
        sub = rest
        while True:
            mine = single[sub | lowest]
            if mine < out[mask]:
                value = max(mine, before[rest ^ sub])
                if value < out[mask]:
                    out[mask] = value
                    part[mask] = sub | lowest
            if sub == 0:
                break
            sub = (sub - 1) & rest
    return out


@compiled
def cheapest(terms: Terms, devices: Integers, latency: Floats) -> tuple[int, float]:
    """Return the set of the smallest cost, and its logarithm."""
    held = np.zeros(len(terms[4]))
    members = np.empty(len(devices), np.int64)
    best, which = INFINITE, 0
    for mask in range(1, len(latency)):
        if latency[mask] == INFINITE:
            continue
        size = unpack(mask, devices, members)
        held[:] = 0.0
        for a in range(size):
            held += terms[3][members[a]]
        value = log_factor(terms, size, held, -1, -1) + math.log(latency[mask])
        if value < best:
            best, which = value, mask
    return which, best
