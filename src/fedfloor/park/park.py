"""The park: devices with their data, and the factories they stand in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedfloor.chance import generator
from fedfloor.errors import SettingError, require, unknown
from fedfloor.park.dataset import Dataset, Images, Indices, Labels, Owners
from fedfloor.park.factories import Assignment, assign
from fedfloor.park.partition import Natural, Partition
from fedfloor.park.sources import load
from fedfloor.park.stream import Static, Stream
from fedfloor.park.validation import hold_out

CACHE_BYTES = 1 << 28  # 256 MiB, some 340,000 pictures of 28×28
STATISTICS_CHUNK = 1024  # images summed at once


@dataclass(frozen=True, eq=False)
class Park:
    """Devices 0..K−1, what each holds, and which factory it stands in.

    Args:
        dataset: whose samples the devices hold.
        indices: for each device its training samples, int64, none empty.
        factory_of: int32 [K], the factory 0..M−1 of each device.
        stream: what of its samples a device holds at a time.
        seed: of the windows of the stream.
        cache_bytes: how much of what had to be made (rendered images) is kept in this process.
    """

    dataset: Dataset
    indices: tuple[Indices, ...]
    factory_of: Owners
    stream: Stream = field(default_factory=Static)
    seed: int = 0
    cache_bytes: int = CACHE_BYTES

    @property
    def devices(self) -> int:
        """K, the number of devices."""
        return len(self.indices)

    @property
    def factories(self) -> int:
        """M, the number of factories."""
        return int(self.factory_of.max()) + 1

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """int64 [K], the number of training samples of each device."""
        return np.array([len(part) for part in self.indices], np.int64)

    def members(self, factory: int) -> tuple[int, ...]:
        """Return the devices of a factory in ascending order.

        Raises:
            SettingError: there is no such factory.
        """
        require(0 <= factory < self.factories, "factory", factory, f"from 0 to {self.factories - 1}")
        return tuple(np.flatnonzero(self.factory_of == factory).tolist())

    def counts(self) -> NDArray[np.int64]:
        """Return int64 [K, F]: how many training samples of each class each device has. Computed once."""
        return self._counts

    def samples(self, device: int) -> tuple[Images, Labels]:
        """Return all local training samples of a device: uint8 [n, C, H, W] and int64 [n]. Do not write into them.

        Images that have to be made are kept, the most recently used ones up to ``cache_bytes``.
        """
        indices = self.indices[device]
        y = self.dataset.y[indices]
        if not self.dataset.rendered:
            return self.dataset.take(indices, device), y
        kept = self._kept
        x = kept.pop(device, None)
        if x is None:
            x = self.dataset.take(indices, device)
            if x.nbytes > self.cache_bytes:
                return x, y
            while sum(images.nbytes for images in kept.values()) > self.cache_bytes - x.nbytes:
                kept.popitem(last=False)
        kept[device] = x  # the last one is the most recently used
        return x, y

    def census(self, devices: Sequence[int], tick: int, visits: Sequence[int]) -> NDArray[np.int64]:
        """Return int64 [len(devices), F]: the class counts of what each device holds now.

        Args:
            devices: whose.
            tick: the park's clock.
            visits: for each of ``devices``, how often it was visited so far.

        Raises:
            SettingError: ``visits`` has not one number per device.
        """
        if len(visits) != len(devices):
            raise SettingError(f"census: {len(visits)} visits for {len(devices)} devices. Give one number per device.")
        rows = [self._held(device, tick, seen) for device, seen in zip(devices, visits, strict=True)]
        return np.array(rows, np.int64).reshape(len(rows), len(self.dataset.classes))

    def test(self, indices: Indices | None = None) -> tuple[Images, Labels]:
        """Return the test samples, or those of the given numbers: uint8 [n, C, H, W] and int64 [n]."""
        chosen = np.arange(len(self.dataset.y_test)) if indices is None else indices
        return self.dataset.take_test(chosen), self.dataset.y_test[chosen]

    @property
    def test_samples(self) -> int:
        """The number of test samples."""
        return len(self.dataset.y_test)

    def pooled(self) -> tuple[Images, Labels]:
        """Return everybody's training samples in device order: what centralised training sees."""
        if not self.dataset.rendered:
            indices = np.concatenate(self.indices)
            return self.dataset.take(indices, -1), self.dataset.y[indices]
        parts = [self.samples(device) for device in range(self.devices)]
        return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])

    def device_accuracy(self, right: NDArray[np.bool_], by_class: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return float64 [K]: each device's accuracy, NaN where it cannot be told.

        Where test samples have owners and devices are those owners, the share of its own test samples that is right;
        otherwise Σ_c p_k(c)·accuracy(c), the expected accuracy on test samples in the device's own class mix p_k. A
        class without test samples says nothing: p_k is the mix of the device's training samples of the other classes,
        and the device's accuracy is NaN only where it holds none of them (or its owner has no test sample).

        Args:
            right: bool [test samples], whether each was classified rightly.
            by_class: float64 [F], accuracy per class, NaN where a class has no test sample.
        """
        owners, natural = self.dataset.owner_test, self._owner_of
        if owners is not None and natural is not None:
            most = max(int(owners.max()), int(natural.max())) + 1
            total = np.bincount(owners, minlength=most)
            hits = np.bincount(owners, weights=right, minlength=most)
            share = np.divide(hits, total, out=np.full(most, np.nan), where=total > 0)
            return np.asarray(share[natural], np.float64)
        tested = ~np.isnan(by_class)
        held = self._counts[:, tested]
        total = held.sum(axis=1, keepdims=True)
        mix = np.divide(held, total, out=np.full(held.shape, np.nan), where=total > 0)
        expected: NDArray[np.float64] = (mix * by_class[tested]).sum(axis=1)
        return np.where(total[:, 0] > 0, expected, np.nan)  # a sum over no class at all would be 0

    def normalisation(self, kind: Literal["unit", "standard"]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return float64 mean [C] and standard deviation [C]: value = (scale·uint8 − mean) / std.

        ``unit``: mean 0, std 1. ``standard``: mean = Σ_k S_k / n and std² = Σ_k Q_k / n − mean², of each device's sum
        S_k and sum of squares Q_k over its n_k pixels; a device tells no more than these. A constant channel has std 1.

        Raises:
            SettingError: another kind.
        """
        channels = self.dataset.shape[0]
        if kind == "unit":
            return np.zeros(channels), np.ones(channels)
        if kind != "standard":
            raise unknown("normalisation", kind, ("unit", "standard"))
        return self._standard

    def describe(self) -> dict[str, Any]:
        """Return the park's public facts as JSON: no images, only counts."""
        rows = zip(self.factory_of.tolist(), self.sizes.tolist(), self._counts.tolist(), strict=True)
        return {
            "dataset": self.dataset.name,
            "classes": list(self.dataset.classes),
            "shape": list(self.dataset.shape),
            "devices": [{"factory": factory, "samples": samples, "counts": row} for factory, samples, row in rows],
            "factories": self.factories,
            "test_samples": len(self.dataset.y_test),
        }

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        classes = len(self.dataset.classes)
        table = np.array([np.bincount(self.dataset.y[part], minlength=classes) for part in self.indices], np.int64)
        table.flags.writeable = False  # handed out again and again
        return table

    @cached_property
    def _owner_of(self) -> Owners | None:
        """The natural owner of each device, or None where a device holds samples of several."""
        owner = self.dataset.owner
        if owner is None or any(np.ptp(owner[part]) for part in self.indices):
            return None
        return np.array([owner[part[0]] for part in self.indices], np.int32)

    @cached_property
    def _kept(self) -> OrderedDict[int, Images]:
        return OrderedDict()

    @cached_property
    def _standard(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        channels, height, width = self.dataset.shape
        total, squares = np.zeros(channels), np.zeros(channels)
        for device in range(self.devices):
            device_sum, device_squares = device_sums(self.samples(device)[0])
            total += device_sum
            squares += device_squares
        pixels = int(self.sizes.sum()) * height * width
        mean = total / pixels
        variance = np.maximum(squares / pixels - mean**2, 0.0)
        scale = self.dataset.scale
        return scale * mean, np.where(variance > 0, scale * np.sqrt(variance), 1.0)

    def _held(self, device: int, tick: int, visits: int) -> NDArray[np.int64]:
        position = self.stream.position(tick, visits)
        window = self.stream.window(len(self.indices[device]), self.seed, device, position)
        if window is None:
            row: NDArray[np.int64] = self._counts[device]
            return row
        return np.bincount(self.dataset.y[self.indices[device][window]], minlength=len(self.dataset.classes))


def device_sums(x: Images) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what one device tells for the normalisation: per channel Σ v and Σ v² of its uint8 pixels, exact.

    Args:
        x: uint8 [n, C, H, W].

    >>> device_sums(np.array([[[[1, 2]]], [[[3, 4]]]], np.uint8))
    (array([10.]), array([30.]))
    """
    channels = x.shape[1]
    total, squares = np.zeros(channels, np.int64), np.zeros(channels, np.int64)
    for start in range(0, len(x), STATISTICS_CHUNK):
        part = x[start : start + STATISTICS_CHUNK].astype(np.int64)
        total += part.sum(axis=(0, 2, 3))
        squares += (part * part).sum(axis=(0, 2, 3))
    return total.astype(np.float64), squares.astype(np.float64)


def build(
    dataset_name: str,
    *,
    root: Path | str | None = None,
    devices: int | None = None,
    factories: int = 1,
    assignment: Assignment = "random",
    partition: Partition | None = None,
    stream: Stream | None = None,
    samples_per_device: int = 100,
    seed: int = 0,
    validation: float | None = None,
) -> Park:
    """Load a data set, deal it to devices, and put these into factories.

    Args:
        dataset_name: one of :data:`~fedfloor.park.sources.SOURCES`.
        root: where data sets lie; see :func:`~fedfloor.park.sources.load`.
        devices: K; None for all natural owners.
        factories: M.
        assignment: how devices come to factories, ``"random"`` or ``"equal"``.
        partition: which samples each device gets; natural owners if None.
        stream: what of them it holds at a time; all if None.
        samples_per_device: for generated data.
        seed: of the partition, the assignment, the stream and generated data.
        validation: share of each device's training samples held out as the test samples; the real ones if None.

    Raises:
        SettingError: anything of it that cannot be.

    >>> park = build("labels", devices=4, factories=2, assignment="equal", samples_per_device=30)
    >>> park.devices, park.factories, park.sizes.tolist(), park.counts().shape
    (4, 2, [30, 30, 30, 30], (4, 62))
    """
    split = partition or Natural()
    dataset = load(dataset_name, root=root, devices=devices, samples_per_device=samples_per_device, seed=seed)
    number = _owners(dataset, split) if devices is None else devices
    rng = generator(seed, "partition")
    parts = split.split(dataset.y, dataset.owner, len(dataset.classes), number, rng)
    factory_of = assign(number, factories, assignment, generator(seed, "factories"))
    if validation is not None:
        dataset, parts = hold_out(dataset, parts, validation, seed)
    return Park(dataset, tuple(parts), factory_of, stream or Static(), seed)


def _owners(dataset: Dataset, partition: Partition) -> int:
    if partition.kind != "natural" or dataset.owner is None:
        raise SettingError(
            f"[park] devices is not set: partition '{partition.kind}' of data set '{dataset.name}' needs a number of "
            "devices. Only a natural partition of data with owners has one of its own."
        )
    return len(np.unique(dataset.owner))
