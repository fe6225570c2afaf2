"""Partitions: which training samples each device holds. A sample goes to at most one device; none is left empty."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedfloor.errors import SettingError, require
from fedfloor.park.dataset import Indices, Labels, Owners

MAX_ALPHA = 1e6
DIRICHLET_DRAWS = 100


@dataclass(frozen=True)
class Natural:
    """Each owner is a device; with fewer devices than owners a random subset of them, in the owners' order.

    Args:
        at_least: owners with fewer training samples are left out (LEAF's ``-k``).
    """

    kind: Literal["natural"] = "natural"
    at_least: int = 1

    def __post_init__(self) -> None:
        require(self.at_least >= 1, "partition at_least", self.at_least, "a whole number of at least 1")

    def owners(self, owner: Owners) -> Owners:
        """Return the owners that are large enough to be devices, in ascending order."""
        names, sizes = np.unique(owner, return_counts=True)
        return names[sizes >= self.at_least]

    def split(
        self, y: Labels, owner: Owners | None, classes: int, devices: int, rng: np.random.Generator
    ) -> list[Indices]:
        """Deal the samples by their owners.

        Args:
            y: int64 [N] labels.
            owner: int32 [N].
            classes: F.
            devices: K, at most the number of owners.
            rng: draws the subset.

        Returns:
            K sorted arrays of sample numbers, in the order of the owners.

        Raises:
            SettingError: no owners, or fewer owners than devices.

        >>> Natural().split(np.zeros(5, int), np.array([1, 0, 1, 2, 0], np.int32), 1, 3, np.random.default_rng(0))
        [array([1, 4]), array([0, 2]), array([3])]
        """
        del classes
        if owner is None:
            raise SettingError(
                "partition kind = 'natural': these data have no natural owners. Use iid, dirichlet or shards."
            )
        _room(y, devices)
        names = self.owners(owner)
        if devices > len(names):
            raise SettingError(
                f"[park] devices = {devices}: only {len(names)} natural owners have at least {self.at_least} training "
                "samples. Lower devices, the partition's at_least, or use another partition (iid, dirichlet, shards)."
            )
        chosen = names if devices == len(names) else np.sort(rng.choice(names, devices, replace=False))
        order = np.argsort(owner, kind="stable")
        start = np.searchsorted(owner[order], chosen, side="left")
        stop = np.searchsorted(owner[order], chosen, side="right")
        return [order[a:b].astype(np.int64) for a, b in zip(start, stop, strict=True)]


@dataclass(frozen=True)
class Iid:
    """Samples dealt at random into devices whose sizes differ by at most one."""

    kind: Literal["iid"] = "iid"

    def split(
        self, y: Labels, owner: Owners | None, classes: int, devices: int, rng: np.random.Generator
    ) -> list[Indices]:
        """Deal all N samples to ``devices`` devices; see :meth:`Natural.split` for the arguments.

        Raises:
            SettingError: more devices than samples.

        >>> [len(part) for part in Iid().split(np.zeros(7, int), None, 1, 3, np.random.default_rng(0))]
        [3, 2, 2]
        """
        del owner, classes
        _room(y, devices)
        return [np.sort(part) for part in np.array_split(rng.permutation(len(y)), devices)]


@dataclass(frozen=True)
class Dirichlet:
    """For each class c draw p_c ~ Dir_K(α, …, α) and give device k the share p_{c,k} of its samples.

    Every sample is dealt exactly once (the cumulated shares are rounded). A draw that leaves a device empty is drawn
    again, up to 100 times. Hsu et al. 2019, arXiv 1909.06335; Li et al. 2021 (MOON).

    Args:
        alpha: α > 0; small = each class on few devices, large = IID.
        at_least: a draw that leaves a device with fewer samples is drawn again.
    """

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = 0.3
    at_least: int = 1

    def __post_init__(self) -> None:
        require(self.at_least >= 1, "partition at_least", self.at_least, "a whole number of at least 1")
        ok = math.isfinite(self.alpha) and 0 < self.alpha <= MAX_ALPHA
        require(ok, "partition alpha", self.alpha, f"a number above 0 and at most {MAX_ALPHA:,.0f}")

    def split(
        self, y: Labels, owner: Owners | None, classes: int, devices: int, rng: np.random.Generator
    ) -> list[Indices]:
        """Deal all N samples to ``devices`` devices; see :meth:`Natural.split` for the arguments.

        Raises:
            SettingError: more devices than samples, or every draw left a device empty.

        >>> parts = Dirichlet(alpha=0.5).split(np.arange(100) % 4, None, 4, 5, np.random.default_rng(0))
        >>> sorted(np.concatenate(parts).tolist()) == list(range(100))
        True
        """
        del owner
        _room(y, devices)
        totals = np.bincount(y, minlength=classes)
        for _ in range(DIRICHLET_DRAWS):
            shares = rng.dirichlet(np.full(devices, self.alpha), size=classes)
            cuts = np.rint(np.cumsum(shares, axis=1) * totals[:, None]).astype(np.int64)
            cuts[:, -1] = totals  # the shares' sum may be 1 − 1e-16
            sizes = np.diff(cuts, axis=1, prepend=0)
            if sizes.sum(axis=0).min() >= self.at_least:
                return _deal_classes(y, cuts, devices, rng)
        raise SettingError(
            f"partition dirichlet with alpha = {self.alpha} left one of {devices} devices with fewer than "
            f"{self.at_least} samples in each of {DIRICHLET_DRAWS} draws from {len(y):,}. "
            "Use a larger alpha or fewer devices."
        )


@dataclass(frozen=True)
class Shards:
    """The pathological partition: sorted by label, cut into K·ξ equal shards, each device draws ξ without replacement.

    Shard sizes differ by at most one; nothing is dropped. McMahan et al. 2017, arXiv 1602.05629; FedSR's ξ.

    Args:
        per_device: ξ ≥ 1.
    """

    kind: Literal["shards"] = "shards"
    per_device: int = 2

    def __post_init__(self) -> None:
        require(self.per_device >= 1, "partition per_device", self.per_device, "a whole number of at least 1")

    def split(
        self, y: Labels, owner: Owners | None, classes: int, devices: int, rng: np.random.Generator
    ) -> list[Indices]:
        """Deal all N samples to ``devices`` devices; see :meth:`Natural.split` for the arguments.

        Raises:
            SettingError: more shards than samples.

        >>> parts = Shards(per_device=1).split(np.array([1, 0, 1, 0]), None, 2, 2, np.random.default_rng(0))
        >>> sorted(part.tolist() for part in parts)
        [[0, 2], [1, 3]]
        """
        del owner, classes
        _room(y, devices)
        shards = devices * self.per_device
        if shards > len(y):
            raise SettingError(
                f"partition shards: {devices} devices × per_device = {self.per_device} needs {shards:,} shards, "
                f"but there are {len(y):,} samples. Use fewer devices or a smaller per_device."
            )
        pieces = np.array_split(np.argsort(y, kind="stable"), shards)
        drawn = rng.permutation(shards).reshape(devices, self.per_device)
        return [np.sort(np.concatenate([pieces[s] for s in row])).astype(np.int64) for row in drawn]


Partition = Natural | Iid | Dirichlet | Shards


def _room(y: Labels, devices: int) -> None:
    require(devices >= 1, "[park] devices", devices, "a whole number of at least 1")
    if devices > len(y):
        raise SettingError(
            f"[park] devices = {devices}: there are {len(y):,} training samples, and every device needs one. "
            "Use fewer devices."
        )


def _deal_classes(y: Labels, cuts: Indices, devices: int, rng: np.random.Generator) -> list[Indices]:
    """Give device k the samples cuts[c, k−1] … cuts[c, k] − 1 of class c, each class in random order."""
    parts: list[list[Indices]] = [[] for _ in range(devices)]
    for label, row in enumerate(cuts):
        members = rng.permutation(np.flatnonzero(y == label))
        for part, piece in zip(parts, np.split(members, row[:-1]), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)).astype(np.int64) for part in parts]
