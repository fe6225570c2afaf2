"""The park: devices with their data, and their factories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import require
from fedfloor.base.names import NUMBERED, Names
from fedfloor.data.dataset import Dataset, Indices, Labels, Owners, Targets, Values
from fedfloor.park.local import LocalSets, Pictures, Roster, only_test, owner_of, spread
from fedfloor.park.partition import Mobility
from fedfloor.park.privacy import noisy, shares
from fedfloor.park.statistics import Normalised, RemoteStatistics, device_sums, standard
from fedfloor.park.stream import WHOLE, Static, Stream, Windows, most_copies

CACHE_BYTES = 1 << 28  # 256 MiB, some 340,000 pictures of 28×28


@dataclass(frozen=True, eq=False)
class Park:
    """A park: devices 0 … K − 1 with their samples and factories.

    Args:
        dataset: the data set of the devices' samples.
        indices: the training samples of each device, int64, not empty; stored as :class:`LocalSets`.
        factory_of: int32 [K], the factory 0..M−1 of each device.
        stream: the stream of each device's samples.
        seed: the seed of the windows of the stream, of the noise of a census and of mobility.
        cache_bytes: bytes of rendered samples kept in this process.
        factory_names: the names of factory 0, 1, …; empty if the data have none.
        census_epsilon: ε of a census; None for counts without noise.
        mobility: the movement of devices between factories; None: no movement.
        remote: statistics of samples that stay on real devices; None: the samples are in this process.
        validating: the same park with the samples held out for validation as its test samples; None if there are none
            besides the test samples.
        recent: the data set with the samples that devices hold out for evaluations before a release as test samples;
            None without such samples.
        secret: the secret key of a real device for the noise of its census, instead of the seed.
        normalised: the normalisation of its samples so far; None: none.
        machines: the names of real devices and edges, for display where the data have none.
    """

    dataset: Dataset
    indices: Sequence[Indices]
    factory_of: Owners
    stream: Stream = field(default_factory=Static)
    seed: int = 0
    cache_bytes: int = CACHE_BYTES
    factory_names: tuple[str, ...] = ()
    census_epsilon: float | None = None
    mobility: Mobility | None = None
    remote: RemoteStatistics | None = None
    recent: Dataset | None = field(default=None, repr=False)
    secret: int | None = field(default=None, repr=False)
    normalised: Normalised | None = None
    validating: Park | None = field(default=None, repr=False)
    machines: Names = NUMBERED

    def __post_init__(self) -> None:
        object.__setattr__(self, "indices", LocalSets.of(self.indices))

    @property
    def devices(self) -> int:
        """K, the number of devices."""
        return len(self.indices)

    @property
    def stored(self) -> Dataset:
        """The data set with its samples as stored in files."""
        before = None if self.normalised is None else self.normalised.stored
        return self.dataset if before is None else before

    @cached_property
    def listed(self) -> NDArray[np.int64]:
        """int64, ascending: the devices listed in files; of more than 5,000 devices, 5,000 evenly spread ones."""
        return spread(self.devices)

    @property
    def factories(self) -> int:
        """M, the number of factories."""
        return int(self.factory_of.max()) + 1

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """int64 [K], the number of training samples of each device."""
        return LocalSets.of(self.indices).sizes

    @cached_property
    def holdings(self) -> NDArray[np.int64]:
        """int64 [K], the number of samples of each device at a time: those of its window, or all."""
        if self.stream.kind == "static":
            return self.sizes
        sizes, which = np.unique(self.sizes, return_inverse=True)
        return np.array([self.stream.holds(size) for size in sizes.tolist()], np.int64)[which]

    @cached_property
    def copies(self) -> NDArray[np.int64]:
        """int64 [K], how often a sample occurs at most among those that each device holds at a time."""
        sizes, which = np.unique(self.sizes, return_inverse=True)
        return np.array([most_copies(self.stream, size) for size in sizes.tolist()], np.int64)[which]

    def factory_at(self, tick: int) -> Owners:
        """Return int32 [K], the factory of each device at a tick."""
        return self.factory_of if self.mobility is None else self.mobility.factory_of(self.factory_of, self.seed, tick)

    def members(self, factory: int) -> tuple[int, ...]:
        """Return the devices that belong to a factory, in ascending order.

        Raises:
            SettingError: the factory is unknown.
        """
        require(0 <= factory < self.factories, "factory", factory, f"from 0 to {self.factories - 1}")
        return tuple(np.flatnonzero(self.factory_of == factory).tolist())

    def counts(self) -> NDArray[np.int64]:
        """Return int64 [K, F]: the number of training samples of each device in each class, computed once."""
        return self._counts

    def counts_of(self, devices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64 [len(devices), F], the rows of :meth:`counts` of some devices."""
        return self._counts[devices] if "_counts" in vars(self) else self._counted(devices)

    def samples(self, device: int) -> tuple[Values, Labels | Targets]:
        """Return a device's training samples, uint8 or float32 [n, *shape], and their targets; do not modify them.

        Targets are the task's: classes int64 [n], or float32 [n, T].
        """
        indices = self.indices[device]
        y = self.dataset.targets(indices)
        return self._pictures.of(device) if self.dataset.rendered else self.dataset.take(indices, device), y

    def held(self, device: int, tick: int, visits: int) -> tuple[Values, Labels | Targets]:
        """Return a device's current samples, as :meth:`samples` does; device −1 is the cloud.

        The cloud has the samples of all devices in their order, each at the position for the cloud's number of visits.

        Args:
            visits: number of visits to the device so far in the run.
        """
        devices = range(self.devices) if device < 0 else (device,)
        return self.together(devices, tick, (visits,) * len(devices))[:2]

    def together(
        self, devices: Sequence[int], tick: int, visits: Sequence[int]
    ) -> tuple[Values, Labels | Targets, NDArray[np.int64]]:
        """Return the concatenated current samples and targets of devices, and int64 [len(devices)], samples per device.

        Args:
            visits: number of visits so far in the run, for each of ``devices``.

        Raises:
            SettingError: ``devices`` is empty, or ``visits`` has another length.
        """
        require(len(devices) >= 1, "devices together", len(devices), "at least 1")
        x, y = self._joined(devices, self.windows.held(devices, tick, visits))
        return self.windows.altered(x, devices, tick, visits), y, self.holdings[np.asarray(devices)]

    def census(self, devices: Sequence[int], tick: int, visits: Sequence[int]) -> NDArray[np.int64]:
        """Return int64 [len(devices), F]: the class counts that devices report of their current samples.

        With ``census_epsilon`` they have noise (:func:`~fedfloor.park.privacy.noise`); negative counts are reported as
        0, and a device without positive counts reports 1 of every class. With ``secret`` a static device reports the
        same counts at all ticks, as the mean of new reports would reveal the counts without noise.

        Args:
            visits: number of visits so far in the run, for each of ``devices``.

        Raises:
            SettingError: the length of ``visits`` is not that of ``devices``.
        """
        if self.stream.kind == "static" and self.census_epsilon is None:  # the cached counts serve all devices
            self.windows.check(devices, visits)
            everyone = devices == range(self.devices)
            return self._counts.copy() if everyone else self.counts_of(np.asarray(devices, np.int64))
        now = self.windows.at(devices, tick, visits)
        rows = [block.counts[position - block.first] for block, position in now]
        if self.census_epsilon is not None:
            once = self.secret is not None and self.stream.kind == "static"
            places = [(-1, 0) if once else (tick, place) for _, place in now]
            reports = zip(rows, devices, places, strict=True)
            rows = [self.reported(row, when, k, place).clip(0) for row, k, (when, place) in reports]
            rows = [row if row.any() else row + 1 for row in rows]
        return np.array(rows, np.int64).reshape(len(rows), len(self.dataset.classes))

    def classes(self, device: int) -> NDArray[np.int64]:
        """Return int64 [F]: the class counts of a device's whole local data, which it reports once, before tick 0.

        With ``census_epsilon`` they have noise and may be negative.
        """
        if self.remote is not None and self.remote.counts is not None:
            return np.asarray(self.remote.counts[device])
        return self.reported(self.counts_of(np.array([device]))[0], -1, device, 0)

    def reported(self, counts: NDArray[np.int64], tick: int, device: int, position: int) -> NDArray[np.int64]:
        """Return class counts with the noise of ``census_epsilon``, as :func:`~fedfloor.park.privacy.noisy` does."""
        return noisy(counts, self.census_epsilon, self.seed, tick, device, position, self.secret)

    @cached_property
    def distribution(self) -> NDArray[np.float64]:
        """float64 [F]: the class shares of all devices' reports of their local sets (FedGS, Eq. 2)."""
        if self.census_epsilon is None:
            return shares([self._counts.sum(axis=0)])
        return shares(self.classes(device) for device in range(self.devices))

    def test(self, indices: Indices | None = None) -> tuple[Values, Labels | Targets]:
        """Return the test samples, or those of the given numbers, as :meth:`samples` does."""
        chosen = np.arange(len(self.dataset.y_test)) if indices is None else indices
        return self.dataset.take_test(chosen), self.dataset.targets_test(chosen)

    @property
    def test_samples(self) -> int:
        """The number of test samples."""
        return len(self.dataset.y_test)

    def pooled(self) -> tuple[Values, Labels | Targets]:
        """Return all training samples in device order, for centralised training."""
        return self._joined(range(self.devices), [WHOLE] * self.devices)

    def _joined(self, devices: Sequence[int], held: Sequence[Indices | slice]) -> tuple[Values, Labels | Targets]:
        indices = np.concatenate([self.indices[k][part] for k, part in zip(devices, held, strict=True)])
        if not self.dataset.rendered:
            return self.dataset.take(indices, -1), self.dataset.targets(indices)
        x: Values = np.concatenate([self._pictures.of(k)[part] for k, part in zip(devices, held, strict=True)])
        return x, self.dataset.targets(indices)

    @cached_property
    def test_devices(self) -> NDArray[np.int64]:
        """int64 [test samples]: the device of each test sample, the first one of its owner; −1 for none."""
        owners = self.dataset.owner_test
        natural = self.natural_owners
        if owners is None or natural is None:
            return np.full(self.test_samples, -1)
        device_of = np.full(max(int(owners.max(initial=0)), int(natural.max())) + 1, -1)
        device_of[natural[::-1]] = np.arange(self.devices)[::-1]  # for equal indices the last assignment counts
        return np.asarray(device_of[owners])

    @cached_property
    def roster(self) -> Roster:
        """The devices with metrics, and whether their metrics are measured or expected.

        An owner of test samples without training samples in the data only tests. An owner with training samples that is
        not a device of this park, because the park is smaller than the data, is left out. If a partition has mixed the
        owners, metrics are measured if every owner of test samples only tests, otherwise expected.
        """
        listed = self.listed
        owned = self.dataset.owned
        data = self.dataset
        natural = self.natural_owners
        names = tuple(self.display_names.own("device", k) or None for k in listed.tolist())
        home = self.factory_of[listed].astype(np.int64)
        factories = tuple(self.display_names.own("factory", m) or None for m in range(self.factories))
        only = only_test(data)
        if data.owner_test is None or (natural is None and not np.isin(data.owner_test, only).all()):
            return Roster("expected", listed, listed[:0], names, home, self.sizes[listed], factories)
        only = only[spread(len(only))]
        away = np.full(len(only), -1)
        if owned.factory is not None and (self.factory_names or natural is None):
            named = [owned.factories[m] for m in owned.factory[only].tolist()]
            factories = (*factories, *dict.fromkeys(name for name in named if name not in factories))
            away = np.array([factories.index(name) for name in named], np.int64)
        mine = np.full(len(listed), -1) if natural is None else natural[listed]
        tests = np.bincount(data.owner_test, minlength=int(max(mine.max(), 0)) + 1)
        owners = np.concatenate([mine, only]).astype(np.int64)
        weights = np.where(owners < 0, 0, tests[owners])
        numbers = np.concatenate([listed, self.devices + np.arange(len(only))])
        names += tuple(owned.names[k] if owned.names else None for k in only.tolist())
        return Roster("measured", numbers, owners, names, np.concatenate([home, away]), weights, factories)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The devices' names; empty if devices are not natural owners, or owners have no names."""
        owners = self.natural_owners
        names = self.dataset.owned.names
        return () if owners is None or not names else tuple(names[k] for k in owners)

    @cached_property
    def display_names(self) -> Names:
        """The names of devices and factories for all output."""
        own = self.factory_names or self.machines.factories or ("",) * self.factories
        return Names(dict(enumerate(self.names)) or self.machines.devices, own)

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        table = self._counted(None)
        table.flags.writeable = False  # returned repeatedly
        return table

    @cached_property
    def listed_counts(self) -> NDArray[np.int64]:
        """int64 [listed, F]: the class counts of each device that is ``listed``."""
        return self._counts if len(self.listed) == self.devices else self._counted(self.listed)

    def _counted(self, devices: NDArray[np.int64] | None) -> NDArray[np.int64]:
        if self.remote is not None and self.remote.counts is not None:
            table = self.remote.counts.clip(0)
            return table if devices is None else table[devices]
        classes = len(self.dataset.classes)
        table = np.zeros((self.devices if devices is None else len(devices), classes), np.int64)
        for part, indices, whose in LocalSets.of(self.indices).chunks(devices):
            rows = table[part]
            cell = whose * classes + self.dataset.labels(indices)
            rows[:] = np.bincount(cell, minlength=rows.size).reshape(rows.shape)
        return table

    @cached_property
    def natural_owners(self) -> Owners | None:
        """The natural owner of each device, or None if a device holds samples of several."""
        return owner_of(self.dataset, self.indices)

    @cached_property
    def _pictures(self) -> Pictures:
        return Pictures(lambda device: self.dataset.take(self.indices[device], device), self.cache_bytes)

    @cached_property
    def standard(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and standard deviation, float64 [C], of all devices' training samples, from per-device sums."""
        if self.remote is not None and self.remote.standard is not None:
            return self.remote.standard
        sums = (device_sums(self.samples(device)[0]) for device in range(self.devices))
        return standard(sums, self.dataset.scale)

    @cached_property
    def windows(self) -> Windows:
        """The windows of the devices' streams, as sample numbers."""
        return Windows(self.stream, self.seed, self.dataset.labels, self.indices, len(self.dataset.classes))
