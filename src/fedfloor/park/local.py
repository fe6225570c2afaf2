"""Devices' local data sets as two arrays; the roster of evaluated devices; the cache of rendered samples."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Dataset, Indices, Owners, Values

CHUNK = 1 << 20  # samples processed together


class LocalSets(Sequence[Indices]):
    """The training samples of each device, without a Python object per device.

    Args:
        first: int64 [K + 1], the index in ``samples`` of each device's first sample, and the end.
        samples: int64, the sample numbers of all devices in turn; None: 0, 1, 2, …, which need no memory.

    >>> sets = LocalSets.of([np.array([4, 5]), np.array([0])])
    >>> len(sets), sets[0].tolist(), sets.sizes.tolist()
    (2, [4, 5], [2, 1])
    """

    def __init__(self, first: Indices, samples: Indices | None = None) -> None:
        self.first = first
        self.samples = samples

    @classmethod
    def of(cls, parts: Sequence[Indices]) -> LocalSets:
        """Return the local sets of a sequence of arrays; local sets are returned unchanged."""
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
        """Return the sample numbers of a device, int64 [n], which must not be modified."""
        if isinstance(device, slice):
            return [self[k] for k in range(len(self))[device]]
        device = range(len(self))[device]  # raises IndexError beyond the last device, which ends a loop over all
        low, high = int(self.first[device]), int(self.first[device + 1])
        return np.arange(low, high) if self.samples is None else self.samples[low:high]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """int64 [K], the number of samples of each device."""
        return np.diff(self.first)

    def chunks(self, devices: NDArray[np.int64] | None = None) -> Iterator[tuple[slice, Indices, Indices]]:
        """Yield (slice, samples [m], owners [m]) of devices, about 2²⁰ samples at a time.

        The slice is of ``devices`` (all if None), and owners are counted from its start.
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
    """Return int32 [K], the natural owner of each device, or None if a device holds samples of several."""
    if dataset.owner is None:
        return None
    sets = LocalSets.of(parts)
    owners = np.empty(len(sets), np.int32)
    for part, indices, whose in sets.chunks():
        owner = dataset.owner[indices]
        begin = np.flatnonzero(np.diff(whose, prepend=-1))
        owners[part] = owner[begin]
        if (owner != owners[part][whose]).any():
            return None
    return owners


LISTED = 5_000  # most devices listed one by one in metrics and files
Figures = Literal["measured", "expected"]


@dataclass(frozen=True, eq=False)
class Roster:
    """The devices with metrics: those of the park that are ``listed``, then those that only test a model.

    Args:
        figures: ``"measured"`` if test samples have owners, and devices are natural owners or these owners never
            train: a device's accuracy is that on its own test samples. ``"expected"`` otherwise: it follows from the
            device's mix of classes.
        numbers: int64 [n], numbers of devices; those of devices that only test begin at K.
        owners: int64 [n], their natural owners, −1 for none; empty if metrics are expected.
        names: [n], None for a device without a name.
        factory_of: int64 [n], an index into ``factories``; −1 if the factory is unknown.
        weights: int64 [n], number of the device's test samples if metrics are measured, otherwise of its training
            samples.
        factories: names of the park's factories, None without a name, then of those with only testing devices.
    """

    figures: Figures
    numbers: NDArray[np.int64]
    owners: NDArray[np.int64]
    names: tuple[str | None, ...]
    factory_of: NDArray[np.int64]
    weights: NDArray[np.int64]
    factories: tuple[str | None, ...]


def spread(count: int, most: int | None = None) -> NDArray[np.int64]:
    """Return int64, ascending: 0 … count − 1, or ``most`` (default: LISTED) evenly spread ones of more numbers.

    >>> spread(3), spread(10, most=2)
    (array([0, 1, 2]), array([0, 5]))
    """
    listed = min(count, LISTED if most is None else most)
    return np.arange(listed) * count // max(1, listed)


def only_test(data: Dataset) -> NDArray[np.int64]:
    """Return int64, ascending: the natural owners with test samples but without training samples in the data."""
    tested = np.zeros(0, np.int64) if data.owner_test is None else np.unique(data.owner_test).astype(np.int64)
    return tested if data.owner is None else tested[~np.isin(tested, np.unique(data.owner))]


class Pictures:
    """A cache that renders devices' samples on demand and keeps those of the most recently used devices.

    Args:
        make: device → all its samples.
        most: size in bytes; a device with more is rendered each time.
    """

    def __init__(self, make: Callable[[int], Values], most: int) -> None:
        self.make = make
        self.most = most
        self._kept: OrderedDict[int, Values] = OrderedDict()
        self._bytes = 0

    def of(self, device: int) -> Values:
        """Return a device's samples, which must not be modified."""
        x = self._kept.get(device)
        if x is not None:
            self._kept.move_to_end(device)  # the last entry is the most recently used
            return x
        x = self.make(device)
        if x.nbytes <= self.most:
            self._kept[device] = x
            self._bytes += x.nbytes
            while self._bytes > self.most:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
        return x
