"""Devices whose updates point against the others', round after round: they are named, never refused.

In a round the cosine of a device's update to the mean of the others' is compared with the median of all devices'
cosines. One that is negative and far below the median is against the others. The median matters because late in
training the updates of devices with different data nearly cancel, so that each points against the mean of the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from statistics import median

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

LEAST = 4  # devices of a factory whose updates can be compared
BELOW = 0.3  # distance from the median cosine
ROUNDS = 10  # the last rounds that count
AGAINST = 5  # rounds among these after which a device is named
BUCKETS = 1024  # numbers of a sketch; cosines are exact to about 1/√1024

Sketch = NDArray[np.float64]


def sketch(change: Tensor) -> Sketch:
    """Return a projection [BUCKETS] of a change, whose cosines are about those of the changes.

    Numbers are added up in buckets, with signs that a hash of their place draws (count sketch; Charikar, Chen,
    Farach-Colton, ICALP 2002).
    """
    numbers = change.double().numpy()
    place = np.arange(numbers.size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # wraps modulo 2^64
    place ^= place >> np.uint64(29)
    place *= np.uint64(0xBF58476D1CE4E5B9)
    signs = 1.0 - 2.0 * ((place >> np.uint64(63)) & np.uint64(1))
    buckets = ((place >> np.uint64(32)) % np.uint64(BUCKETS)).astype(np.int64)
    return np.bincount(buckets, weights=numbers * signs, minlength=BUCKETS).astype(np.float64)


def opposed(sketches: Mapping[int, Sketch]) -> set[int]:
    """Return the devices whose updates point against the mean of the others', unlike those of most devices."""
    if len(sketches) < LEAST:
        return set()
    total = np.sum(list(sketches.values()), axis=0)

    def cosine(own: Sketch) -> float:
        others = total - own
        length = float(np.linalg.norm(own) * np.linalg.norm(others))
        return float(own @ others) / length if 0 < length < np.inf else 0.0

    cosines = {k: cosine(own) for k, own in sketches.items()}
    middle = median(cosines.values())
    return {k for k, value in cosines.items() if value < min(0.0, middle - BELOW)}


class Directions:
    """The directions of devices' updates in the last rounds."""

    def __init__(self) -> None:
        self._round: dict[int, Sketch] = {}
        self._last: dict[int, Sketch] = {}  # of visits for which no round waits
        self._against: dict[int, deque[bool]] = {}

    def add(self, device: int, start: Tensor, end: Tensor) -> None:
        """Record a device's update; a later one in the same round is added to it."""
        change = sketch((end - start).cpu())
        self._round[device] = change + self._round.get(device, 0.0)

    def close(self) -> dict[int, int]:
        """End a round; return the devices to name, with the number of the last rounds in which each was against."""
        seen = self._round
        self._round = {}
        return self._named(seen, opposed(seen))

    def join(self, visit: Directions) -> dict[int, int]:
        """Compare the update of a visit for which no round waits with the others' last ones; return it as a round's."""
        self._last |= visit._round
        return self._named(visit._round, opposed(self._last))

    def _named(self, seen: Collection[int], against: Collection[int]) -> dict[int, int]:
        for device in seen:
            self._against.setdefault(device, deque(maxlen=ROUNDS)).append(device in against)
        times = {device: sum(self._against[device]) for device in seen}
        return {device: count for device, count in times.items() if count >= AGAINST}
