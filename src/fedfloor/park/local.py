"""The devices' local sets as two arrays, whatever the number of devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Dataset, Indices, Owners

CHUNK = 1 << 20  # samples looked at together


class LocalSets(Sequence[Indices]):
    """Which training samples each device holds; there is no Python object per device.

    Args:
        first: int64 [K + 1], where in ``samples`` each device's begin, and their end.
        samples: int64, the sample numbers of one device after the other; None: 0, 1, 2, …, of which nothing is kept.

    >>> sets = LocalSets.of([np.array([4, 5]), np.array([0])])
    >>> len(sets), sets[0].tolist(), sets.sizes.tolist()
    (2, [4, 5], [2, 1])
    """

    def __init__(self, first: Indices, samples: Indices | None = None) -> None:
        self.first, self.samples = first, samples

    @classmethod
    def of(cls, parts: Sequence[Indices]) -> LocalSets:
        """Return the local sets that a sequence of arrays describes; itself where it is one."""
        if isinstance(parts, LocalSets):
            return parts
        first = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        return cls(first, np.concatenate(parts) if len(parts) else np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.first) - 1

    @overload
    def __getitem__(self, device: int) -> Indices: ...
    @overload
    def __getitem__(self, device: slice) -> list[Indices]: ...
    def __getitem__(self, device: int | slice) -> Indices | list[Indices]:
        """Return a device's samples, int64 [n]; do not write into them."""
        if isinstance(device, slice):
            return [self[k] for k in range(len(self))[device]]
        device = range(len(self))[device]  # an IndexError where there is none, which ends a loop over all
        low, high = int(self.first[device]), int(self.first[device + 1])
        return np.arange(low, high) if self.samples is None else self.samples[low:high]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """int64 [K], the number of samples of each device."""
        return np.diff(self.first)

    def chunks(self, devices: NDArray[np.int64] | None = None) -> Iterator[tuple[slice, Indices, Indices]]:
        """Go through devices, some 2²⁰ samples at a time.

        Args:
            devices: int64 [n], whose samples; all if None.

        Yields:
            A slice of ``devices``, the samples of these int64 [m], and int64 [m], whose each is, counted from the
            slice's start.
        """
        begin = self.first[:-1] if devices is None else self.first[devices]
        size = self.sizes if devices is None else self.sizes[devices]
        ends = np.cumsum(size)
        low = 0
        while low < len(size):
            done = int(ends[low - 1]) if low else 0
            high = max(low + 1, int(np.searchsorted(ends, done + CHUNK, side="right")))
            here = size[low:high]
            whose = np.repeat(np.arange(high - low), here)
            place = np.arange(len(whose)) + np.repeat(begin[low:high] - (ends[low:high] - here - done), here)
            yield slice(low, high), place if self.samples is None else self.samples[place], whose
            low = high


def owner_of(dataset: Dataset, parts: Sequence[Indices]) -> Owners | None:
    """Return int32 [K], the natural owner of each device, or None where a device holds samples of several."""
    if dataset.owner is None:
        return None
    sets = LocalSets.of(parts)
    found = np.empty(len(sets), np.int32)
    for part, indices, whose in sets.chunks():
        owner, begin = dataset.owner[indices], np.flatnonzero(np.diff(whose, prepend=-1))
        found[part] = owner[begin]
        if (owner != found[part][whose]).any():
            return None
    return found
