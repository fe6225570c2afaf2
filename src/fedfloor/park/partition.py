"""Partitions of samples over devices, and assignment and mobility of devices between factories.

A sample belongs to at most one device, and every device has at least one sample.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.random import Generator

from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError, require, unknown
from fedfloor.data.dataset import Indices, Labels, Owners

MAX_ALPHA = 1e6
DIRICHLET_DRAWS = 100
MAX_SAMPLES = 10**9
PREFERRED_PERCENT = {1: 100, 2: 50, 3: 80, 4: 50}  # share of the preferred label in FLDG's cases


@dataclass(frozen=True)
class Natural:
    """The natural partition: each owner is a device; fewer devices are a random subset of owners, in their order.

    Args:
        at_least: owners with fewer training samples are left out (LEAF's ``-k``).
    """

    kind: Literal["natural"] = field(default="natural", kw_only=True)
    at_least: int = 1

    def __post_init__(self) -> None:
        require(self.at_least >= 1, "partition at_least", self.at_least, "a whole number of at least 1")

    def owners(self, owner: Owners) -> Owners:
        """Return the owners that are large enough to be devices, in ascending order."""
        names, sizes = np.unique(owner, return_counts=True)
        return names[sizes >= self.at_least]

    def split(self, y: Labels, owner: Owners | None, classes: int, devices: int, rng: Generator) -> list[Indices]:  # noqa: ARG002
        """Deal the samples by their owners.

        Args:
            y: int64 [N] labels.
            owner: int32 [N].

        Returns:
            K sorted arrays of sample numbers, in the order of the owners.

        Raises:
            SettingError: there are no owners, or fewer owners than devices.

        >>> Natural().split(np.zeros(5, int), np.array([1, 0, 1, 2, 0], np.int32), 1, 3, np.random.default_rng(0))
        [array([1, 4]), array([0, 2]), array([3])]
        """
        if owner is None:
            raise no_owners()
        _room(y, devices)
        names = self.owners(owner)
        if devices > len(names):
            raise SettingError(
                f"[park] devices = {devices}: only {len(names)} natural owners have at least {self.at_least} training "
                "samples. Lower devices or the partition's at_least, or use iid, dirichlet, shards or dominant."
            )
        chosen = names if devices == len(names) else np.sort(rng.choice(names, devices, replace=False))
        order = np.argsort(owner, kind="stable")
        start = np.searchsorted(owner[order], chosen, side="left")
        stop = np.searchsorted(owner[order], chosen, side="right")
        return [order[a:b].astype(np.int64) for a, b in zip(start, stop, strict=True)]


@dataclass(frozen=True)
class Iid:
    """The IID partition: samples dealt at random to devices whose sizes differ by at most one."""

    kind: Literal["iid"] = field(default="iid", kw_only=True)

    def split(self, y: Labels, owner: Owners | None, classes: int, devices: int, rng: Generator) -> list[Indices]:  # noqa: ARG002
        """Deal all N samples to ``devices`` devices; see :meth:`Natural.split` for the arguments.

        Raises:
            SettingError: there are more devices than samples.

        >>> [len(part) for part in Iid().split(np.zeros(7, int), None, 1, 3, np.random.default_rng(0))]
        [3, 2, 2]
        """
        _room(y, devices)
        return [np.sort(part) for part in np.array_split(rng.permutation(len(y)), devices)]


@dataclass(frozen=True)
class Dirichlet:
    """The Dirichlet partition: for each class c, p_c ~ Dir_K(α, …, α); device k has the share p_{c,k} of its samples.

    Every sample is dealt exactly once (the cumulated shares are rounded). A draw that leaves a device empty is
    repeated, up to 100 times. Hsu et al. 2019, arXiv 1909.06335; Li et al. 2021 (MOON).

    Args:
        alpha: α > 0; small: each class on few devices, large: IID.
        at_least: smallest number of samples of a device; a draw with fewer is repeated.
    """

    kind: Literal["dirichlet"] = field(default="dirichlet", kw_only=True)
    alpha: float = 0.3
    at_least: int = 1

    def __post_init__(self) -> None:
        require(self.at_least >= 1, "partition at_least", self.at_least, "a whole number of at least 1")
        ok = math.isfinite(self.alpha) and 0 < self.alpha <= MAX_ALPHA
        require(ok, "partition alpha", self.alpha, f"a number above 0 and at most {MAX_ALPHA:,.0f}")

    def split(self, y: Labels, owner: Owners | None, classes: int, devices: int, rng: Generator) -> list[Indices]:  # noqa: ARG002
        """Deal all N samples to ``devices`` devices; see :meth:`Natural.split` for the arguments.

        Raises:
            SettingError: there are more devices than samples, or every draw left a device empty.

        >>> parts = Dirichlet(alpha=0.5).split(np.arange(100) % 4, None, 4, 5, np.random.default_rng(0))
        >>> sorted(np.concatenate(parts).tolist()) == list(range(100))
        True
        """
        _room(y, devices)
        totals = np.bincount(y, minlength=classes)
        for _ in range(DIRICHLET_DRAWS):
            shares = rng.dirichlet(np.full(devices, self.alpha), size=classes)
            cuts = np.rint(np.cumsum(shares, axis=1) * totals[:, None]).astype(np.int64)
            cuts[:, -1] = totals  # the sum of the shares may be 1 − 1e-16
            sizes = np.diff(cuts, axis=1, prepend=0)
            if sizes.sum(axis=0).min() >= self.at_least:
                return _deal_classes(y, cuts, devices, rng)
        raise SettingError(
            f"partition dirichlet with alpha = {self.alpha} left one of {devices} devices with fewer than "
            f"{self.at_least} samples in each of {DIRICHLET_DRAWS} draws from {len(y):,}. "
            "Use a larger alpha or fewer devices.",
            key="partition",
        )


@dataclass(frozen=True)
class Shards:
    """The pathological partition: sorted by label, cut into K·ξ equal shards, each device draws ξ without replacement.

    Shard sizes differ by at most one; nothing is dropped. McMahan et al. 2017, arXiv 1602.05629; FedSR's ξ.

    Args:
        per_device: ξ ≥ 1.
    """

    kind: Literal["shards"] = field(default="shards", kw_only=True)
    per_device: int = 2

    def __post_init__(self) -> None:
        require(self.per_device >= 1, "partition per_device", self.per_device, "a whole number of at least 1")

    def split(self, y: Labels, owner: Owners | None, classes: int, devices: int, rng: Generator) -> list[Indices]:  # noqa: ARG002
        """Deal all N samples to ``devices`` devices; see :meth:`Natural.split` for the arguments.

        Raises:
            SettingError: there are more shards than samples.

        >>> parts = Shards(per_device=1).split(np.array([1, 0, 1, 0]), None, 2, 2, np.random.default_rng(0))
        >>> sorted(part.tolist() for part in parts)
        [[0, 2], [1, 3]]
        """
        _room(y, devices)
        shards = devices * self.per_device
        if shards > len(y):
            raise SettingError(
                f"partition shards: {devices} devices × per_device = {self.per_device} needs {shards:,} shards, "
                f"but there are {len(y):,} samples. Use fewer devices or a smaller per_device.",
                key="partition",
            )
        pieces = np.array_split(np.argsort(y, kind="stable"), shards)
        drawn = rng.permutation(shards).reshape(devices, self.per_device)
        return [np.sort(np.concatenate([pieces[s] for s in row])).astype(np.int64) for row in drawn]


@dataclass(frozen=True)
class Dominant:
    """The partition by a preferred label per device: FLDG's four cases, FLSim's bias (Wang et al. 2020, FAVOR).

    Device k prefers label p = k mod F, with ⌊(s·n + 50)/100⌋ of its n samples, where s = 100, 50, 80, 50 % in cases 1
    to 4. The papers define neither the preferred labels nor the draw of the rest: here a random cycle through all
    labels is drawn for each F consecutive devices. In case 2 the rest is of the label after p in the cycle; in cases 3
    and 4 of all other labels in equal numbers, with a remainder for the first ones after p. Each other label is thus
    equally likely, and F consecutive devices together have n samples of each label. No sample is dealt twice.

    Args:
        case: 1: one label; 2: two labels evenly; 3: 80 % one label, 20 % others; 4: 50 % one label, 50 % others.
        samples: n ≥ 1, samples per device (FLDG: 600, 600 and 500 on 100 devices); None: ⌊N/K⌋.
        labels: ``"equal"``: preferred labels as above; ``"drawn"``: each device draws its own and the cycle after it,
            as in FLSim, so that a label may be preferred by twice as many devices as another one.
    """

    kind: Literal["dominant"] = field(default="dominant", kw_only=True)
    case: Literal[1, 2, 3, 4] = 1
    samples: int | None = None
    labels: Literal["equal", "drawn"] = "equal"

    def __post_init__(self) -> None:
        require(self.labels in ("equal", "drawn"), "partition labels", self.labels, "equal or drawn")
        require(self.case in PREFERRED_PERCENT, "partition case", self.case, "1, 2, 3 or 4")
        ok = self.samples is None or 1 <= self.samples <= MAX_SAMPLES
        require(ok, "partition samples", self.samples, f"a whole number from 1 to {MAX_SAMPLES:,}")

    def split(self, y: Labels, owner: Owners | None, classes: int, devices: int, rng: Generator) -> list[Indices]:  # noqa: ARG002
        """Deal n samples to each of ``devices`` devices; see :meth:`Natural.split` for the arguments.

        Raises:
            SettingError: there are more devices than samples, too few of a label, or only one class in cases 2 to 4.

        >>> y = np.arange(8) % 2
        >>> [y[part].tolist() for part in Dominant(case=1).split(y, None, 2, 2, np.random.default_rng(0))]
        [[0, 0, 0, 0], [1, 1, 1, 1]]
        """
        _room(y, devices)
        require(self.case == 1 or classes >= 2, "partition case", self.case, "1 for data with a single class")
        wanted = len(y) // devices if self.samples is None else self.samples
        have = np.bincount(y, minlength=classes)
        after = self._places(devices, classes, rng)
        shares = self._shares(after, wanted)
        short = np.flatnonzero(shares.sum(axis=0) > have)
        if len(short):
            # if n fits, all smaller numbers fit, as each share grows with n
            fit = bisect.bisect(
                range(1, wanted), False, key=lambda n: bool((self._shares(after, n).sum(0) > have).any())
            )
            label = int(short[0])
            raise SettingError(
                f"partition dominant, case {self.case}: {devices} devices with {wanted:,} samples each need "
                f"{shares[:, label].sum():,} of label {label}, but there are {have[label]:,}. "
                + (f"Set the partition's samples to at most {fit:,}." if fit else "Use fewer devices."),
                key="partition",
            )
        cuts = np.concatenate([np.cumsum(shares.T, axis=1), have[:, None]], axis=1)
        return _deal_classes(y, cuts, devices + 1, rng)[:-1]  # the last part is the unused rest

    def _places(self, devices: int, classes: int, rng: Generator) -> Indices:
        """Return int64 [K, F]: the place of each label in a device's cycle, which begins with the preferred one."""
        if self.labels == "drawn":
            return np.stack([rng.permutation(classes) for _ in range(devices)]).astype(np.int64)
        cycles = [rng.permutation(classes) for _ in range(0, devices, classes)]
        places: Indices = np.concatenate([(place - place[:, None]) % classes for place in cycles])[:devices]
        return places.astype(np.int64)

    def _shares(self, after: Indices, samples: int) -> Indices:
        """Return int64 [K, F]: each device's number of samples of each label, from the labels' places in its cycle."""
        first = (PREFERRED_PERCENT[self.case] * samples + 50) // 100
        others = 1 if self.case == 2 else max(after.shape[1] - 1, 1)
        place = np.arange(1, after.shape[1])
        rest = np.where(place <= others, (samples - first + others - place) // others, 0)
        table: Indices = np.array([first, *rest], np.int64)[after]
        return table


@dataclass(frozen=True)
class Blocks:
    """The partition into K consecutive blocks of samples whose sizes differ by at most one.

    One long recording can thus represent several machines. Windows of L rows every S rows share rows with their
    neighbours, and a gap of ⌈L/S⌉ − 1 windows separates the devices' rows.

    Args:
        gap: samples left out between two blocks.
    """

    kind: Literal["blocks"] = field(default="blocks", kw_only=True)
    gap: int = 0

    def __post_init__(self) -> None:
        require(self.gap >= 0, "partition gap", self.gap, "a whole number of at least 0")

    def split(self, y: Labels, owner: Owners | None, classes: int, devices: int, rng: Generator) -> list[Indices]:  # noqa: ARG002
        """Deal all except (K − 1)·gap of the samples; see :meth:`Natural.split` for the arguments.

        Raises:
            SettingError: there are more devices than remaining samples.

        >>> [part.tolist() for part in Blocks(gap=1).split(np.zeros(8, int), None, 1, 3, np.random.default_rng(0))]
        [[0, 1], [3, 4], [6, 7]]
        """
        left = len(y) - self.gap * (devices - 1)
        _room(y[: max(left, 0)], devices)
        ends = np.cumsum([len(part) for part in np.array_split(np.arange(left), devices)])
        starts = np.concatenate([[0], ends[:-1]])
        return [np.arange(a, b) + k * self.gap for k, (a, b) in enumerate(zip(starts, ends, strict=True))]


def no_owners() -> SettingError:
    """Return the error for data without natural owners."""
    return SettingError(
        "partition kind = 'natural': these data have no natural owners. Deal the samples "
        'with [data] partition = { kind = "iid" }, dirichlet, shards or dominant, and [park] devices; or, if the data '
        "are your own, name the owners (the array device of an .npz file).",
        key="partition",
    )


Partition = Natural | Iid | Dirichlet | Shards | Dominant | Blocks


def _room(y: Labels, devices: int) -> None:
    require(devices >= 1, "[park] devices", devices, "a whole number of at least 1")
    if devices > len(y):
        raise SettingError(
            f"[park] devices = {devices}: there are {len(y):,} training samples, and every device needs one. "
            "Use fewer devices."
        )


def _deal_classes(y: Labels, cuts: Indices, devices: int, rng: Generator) -> list[Indices]:
    """Return for device k the samples cuts[c, k−1] … cuts[c, k] − 1 of each class c in random order."""
    parts: list[list[Indices]] = [[] for _ in range(devices)]
    for label, row in enumerate(cuts):
        members = rng.permutation(np.flatnonzero(y == label))
        for part, piece in zip(parts, np.split(members, row[:-1]), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)).astype(np.int64) for part in parts]


Assignment = Literal["random", "equal"] | tuple[int, ...]
RANDOM_DRAWS = 1000


def assign(devices: int, factories: int, how: Assignment, rng: Generator) -> Owners:
    """Assign K devices to M factories, with at least one device per factory.

    ``equal``: a random permutation in shares whose sizes differ by at most one. ``random``: each device independently
    and uniformly (FedGS's reference code), repeated while a factory is empty, up to 1,000 times. A list of numbers:
    the factory of each device, as in a real park.

    Args:
        how: ``"random"``, ``"equal"``, or K numbers from 0 to M−1.

    Returns:
        int32 [K], the factory of each device.

    Raises:
        SettingError: M > K, the assignment is unknown, its numbers do not fit, or every draw left a factory empty.

    >>> np.bincount(assign(7, 3, "equal", np.random.default_rng(0)))
    array([3, 2, 2])
    """
    require(factories >= 1, "[park] factories", factories, "a whole number of at least 1")
    if factories > devices:
        few = f"there are {devices} devices, and every factory needs one. Use fewer factories or more devices."
        raise SettingError(f"[park] factories = {factories}: {few}")
    if not isinstance(how, str):
        numbers = list(how)
        require(len(how) == devices, "[park] assignment", numbers, f"one number for each of {devices} devices")
        allowed = f"numbers from 0 to {factories - 1}, each at least once"
        require(set(how) == set(range(factories)), "[park] assignment", numbers, allowed)
        return np.array(how, np.int32)
    if how == "equal":
        factory_of = np.empty(devices, np.int32)
        factory_of[rng.permutation(devices)] = np.arange(devices) % factories
        return factory_of
    if how != "random":
        raise unknown("assignment of devices to factories", how, ("random", "equal"))
    for _ in range(RANDOM_DRAWS):
        drawn = rng.integers(factories, size=devices, dtype=np.int32)
        if np.bincount(drawn, minlength=factories).min() > 0:
            return drawn
    raise SettingError(
        f"[park] assignment = 'random' left one of {factories} factories without any of the {devices} devices in each "
        f"of {RANDOM_DRAWS:,} draws. Use assignment = 'equal', or fewer factories."
    )


@dataclass(frozen=True)
class Mobility:
    """The temporary movement of devices to other factories.

    Time is divided into turns of ``every`` ticks. In the first turn all devices are in their own factory. In each later
    turn max(2, share·K) newly drawn devices exchange factories in a ring: each moves to the factory of the previous
    one, which may be its own. Factories thus keep their sizes, and all other devices are in their own factory.

    Args:
        every: length of a turn in ticks, at least 1.
        share: share of the devices that move, in (0, 1].
    """

    every: int
    share: float = 0.1

    def __post_init__(self) -> None:
        require(self.every >= 1, "park.mobility.every", self.every, "a whole number of ticks, at least 1")
        require(0 < self.share <= 1, "park.mobility.share", self.share, "a share, above 0 and at most 1")

    def factory_of(self, home: Owners, seed: int, tick: int) -> Owners:
        """Return int32 [K], the factory of each device at a tick: a function of seed and turn.

        Args:
            home: int32 [K], the factory to which each device belongs.

        >>> home = np.array([0, 0, 1, 1], np.int32)
        >>> moving = Mobility(every=10, share=1.0)
        >>> moving.factory_of(home, seed=0, tick=9).tolist(), moving.factory_of(home, seed=0, tick=10).tolist()
        ([0, 0, 1, 1], [1, 1, 0, 0])
        """
        turn = tick // self.every
        devices = len(home)
        if turn == 0 or devices == 1:
            return home
        guests = min(devices, max(2, round(self.share * devices)))
        moving = generator(seed, "mobility", turn).choice(devices, guests, replace=False)
        now = home.copy()
        now[moving] = home[np.roll(moving, 1)]
        return now
