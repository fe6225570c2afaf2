"""All sets of devices that one channel serves within a latency (compiled)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedfloor.solvers.allocation.kernels import INFINITE, Work, settle
from fedfloor.solvers.allocation.problem import Integers
from fedfloor.solvers.allocation.tables import Data
from fedfloor.solvers.compiled import compiled

Places = NDArray[np.int32]


@compiled
def roomier(values: Places, needed: int) -> Places:
    """Return the array, or a copy with twice the room if ``needed`` entries do not fit."""
    if needed <= len(values):
        return values
    out = np.empty(max(2 * len(values), needed), np.int32)
    out[: len(values)] = values
    return out


@compiled
def listed(data: Data, devices: Integers, limit: float, room: int, work: Work) -> tuple[Places, Places, bool]:
    """List every set that meets ``limit`` on one channel, depth first: a set that does not is in no set that does.

    Args:
        data: tables.
        devices: to choose from [M].
        limit: latency.
        room: list no more than about so many members of sets.
        work: changed.

    Returns:
        the members of all sets, one after the other, as places in ``devices``; where each set begins, and the end;
        whether these are all sets.
    """
    m = len(devices)
    items, starts = np.empty(4096, np.int32), np.empty(1024, np.int32)
    found, filled, size, a = 0, 0, 0, 0
    starts[0] = 0
    members, at = np.empty(m, np.int64), np.empty(m, np.int32)  # the set, and where its members stand in devices
    while a < m or size > 0:
        if a == m:
            size -= 1
            a = at[size] + 1
            continue
        members[size] = devices[a]
        if settle(data, members, size + 1, limit, work) < INFINITE:
            at[size] = a
            size += 1
            items, starts = roomier(items, filled + size), roomier(starts, found + 2)
            items[filled : filled + size] = at[:size]
            filled += size
            found += 1
            starts[found] = filled
            if filled > room:
                return items[:filled], starts[: found + 1], False
        a += 1
    return items[:filled], starts[: found + 1], True
