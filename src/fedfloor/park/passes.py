"""Finite local sets as endless streams: pass after pass, each reshuffled, and the drift of the class mix in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedfloor.chance import generator
from fedfloor.data.dataset import Indices, Labels
from fedfloor.errors import require


@dataclass(frozen=True)
class Cycle:
    r"""Classes that come one after the other, and come round again: a line that changes what it makes.

    Take P passes over a device's n samples as one stretch of P·n places, and let σ_j be the place that the sample at
    place j has once the stretch is put in order of classes (equal ones as they were). The stretch is handed out in
    order of (1 − s)·j + s·σ_j, so that with s = 1 class follows class, and with s = 0 nothing changes at all. Of two
    equally frequent classes about the first s/(4 − 2s) of the stretch shows only one, and the last as much the other.

    Every sample still comes P times in P passes. A device's classes stand in ascending order, from one on that is drawn
    by (seed, device): devices are not all at the same one. It is ours, not from a paper.

    Args:
        strength: s in [0, 1].
        period: P, passes until the classes come round again, at least 1.
    """

    strength: float = 1.0
    period: int = 1
    kind: Literal["cycle"] = "cycle"

    def __post_init__(self) -> None:
        require(0 <= self.strength <= 1, "data.stream.drift.strength", self.strength, "from 0 to 1")
        require(self.period >= 1, "data.stream.drift.period", self.period, "a whole number of passes, at least 1")

    def order(self, classes: Labels, seed: int, device: int) -> Indices:
        """Return the order in which the places of a stretch are handed out.

        Args:
            classes: int64 [P·n], the class at each place.
            seed, device: which class comes first is drawn by them.

        >>> Cycle(strength=0.0).order(np.array([1, 0, 1, 0]), seed=0, device=0).tolist()
        [0, 1, 2, 3]
        """
        present, number = np.unique(classes, return_inverse=True)
        first = int(generator(seed, "drift", device).integers(len(present)))
        by_class = np.argsort((number - first) % len(present), kind="stable")
        place, sorted_place = np.arange(len(classes)), np.empty(len(classes), np.int64)
        sorted_place[by_class] = place
        return np.argsort((1 - self.strength) * place + self.strength * sorted_place, kind="stable")


def endless(labels: Labels, seed: int, device: int, first: int, count: int, drift: Cycle | None = None) -> Indices:
    """Return a stretch of a device's endless stream: the local numbers of ``count`` samples from place ``first`` on.

    Pass p is the permutation of 0..n−1 drawn by (seed, device, p); place i of the stream is place i mod n of pass i//n.

    Args:
        labels: int64 [n], the classes of the device's local set, at least one.
        seed: of the draws.
        device: whose stream.
        first: at least 0.
        count: at least 1.
        drift: what else is done to the order.

    >>> both = endless(np.zeros(4, int), seed=0, device=1, first=0, count=8)
    >>> sorted(both[:4].tolist()), sorted(both[4:].tolist())
    ([0, 1, 2, 3], [0, 1, 2, 3])
    """
    passes = 1 if drift is None else drift.period
    length = passes * len(labels)  # of what is put in order together
    low, high = first // length, -(-(first + count) // length)
    numbers = range(low * passes, high * passes)
    whole = np.concatenate([generator(seed, "stream", device, one).permutation(len(labels)) for one in numbers])
    if drift is not None:
        stretches = whole.reshape(-1, length)
        whole = np.concatenate([plain[drift.order(labels[plain], seed, device)] for plain in stretches])
    return whole[first - low * length :][:count]


def windows(labels: Labels, seed: int, device: int, numbers: range, window: int, drift: Cycle | None = None) -> Indices:
    """Return int64 [P, n], consecutive windows of a device's endless stream: ``numbers``, and those that come for free.

    Window i is the places i·n … i·n + n − 1, n = ``window``. Those after ``numbers`` are given that end within passes
    which these need anyway.

    Args:
        labels, seed, device, drift: as :func:`endless` takes them.
        numbers: i from 0 on, one after the other, at least one.
        window: n, at least 1.

    >>> windows(np.zeros(5, int), seed=0, device=0, numbers=range(1), window=2).shape
    (2, 2)
    """
    length = len(labels) * (1 if drift is None else drift.period)
    first, enough = numbers.start * window, numbers.stop * window
    count = (-(-enough // length) * length - first) // window
    return endless(labels, seed, device, first, count * window, drift).reshape(count, window)
