"""Metrics on resampled test samples: how far a metric may be off because other samples could have been tested.

Units that were held out together, and so are independent of each other, are drawn with replacement: whole devices or
recordings, stretches of time, or single samples. The draws depend only on the number of units, so that two models that
were evaluated on the same samples are compared draw by draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.chance import resampled as resampled_units
from fedfloor.data.dataset import Dataset, Indices
from fedfloor.park.local import only_test

DRAWS = 1000
FEWEST = 200  # draws of metrics of very many numbers
NUMBERS = 50_000_000  # numbers that all draws of a metric may read, before there are fewer draws
LEAST = 5  # units; with fewer, no draws describe what other units would give
STRETCHES = 20  # batches of a time series, which are then nearly independent: Schmeiser, Operations Research 30 (1982)
DIGITS = 6
OF_LOSS = {"loss", "reconstruction error"}  # metrics that are the mean loss
WITHOUT = {*OF_LOSS, "VUS-PR", "NAB"}  # of predictions alone: need losses of single samples, or all rows in order

Value = Callable[[Indices], float | None]


@dataclass(frozen=True, eq=False)
class Units:
    """The independent units of test samples.

    Args:
        noun: ``"device"``, ``"recording"``, ``"stretch of time"`` or ``"sample"``.
        of: int64 [n], the unit of each test sample, 0 … many − 1.
    """

    noun: str
    of: Indices

    @property
    def many(self) -> int:
        """The number of units."""
        return int(self.of.max(initial=-1)) + 1

    def draws(self, most: int) -> Iterator[Indices]:
        """Yield up to ``most`` times the samples of as many units as there are, drawn with replacement."""
        many = self.many
        order = np.argsort(self.of, kind="stable")
        members = np.split(order, np.cumsum(np.bincount(self.of, minlength=many))[:-1])
        single = many == len(self.of)
        for drawn in islice(resampled_units(many), most):
            yield order[drawn] if single else np.concatenate([members[unit] for unit in drawn.tolist()])


def units(data: Dataset) -> Units:
    """Return the independent units of a data set's test samples.

    These are devices that never train; otherwise recordings that were held out as a whole; otherwise, of test samples
    that follow training in time or overlap, stretches of recordings or devices; otherwise single samples.
    """
    tests = len(data.y_test)
    owner = data.owner_test
    recording = data.recording_test
    if recording is not None and data.recording_of is not None:
        recording = data.recording_of[recording]  # a gap divides a recording into pieces that are not independent
    if owner is not None and np.isin(owner, only_test(data)).all():
        return _whole("device", owner)
    timed = data.time is not None or data.inputs.length is not None
    supplied = not data.split and recording is not None and timed
    if not (supplied or data.split in ("time", "last", "run") or data.first_test is not None):
        return Units("sample", np.arange(tests))
    noun, course = ("recording", recording) if recording is not None else ("device", owner)
    courses = _whole(noun, np.zeros(tests, np.int64) if course is None else course)
    fewest = {"run": 1, "time": STRETCHES, "last": STRETCHES}.get(data.split, LEAST)
    return courses if courses.many >= fewest else _stretches(courses)


def _whole(noun: str, of: NDArray[Any]) -> Units:
    return Units(noun, np.unique(of, return_inverse=True)[1])


def _stretches(courses: Units) -> Units:
    """Return each course cut into equally many stretches of consecutive samples, about twenty in total."""
    each = -(-STRETCHES // courses.many)
    of = np.empty(len(courses.of), np.int64)
    first = 0
    for course in range(courses.many):
        for stretch in np.array_split(np.flatnonzero(courses.of == course), each):
            if len(stretch):
                of[stretch] = first
                first += 1
    return Units("stretch of time", of)


def resampled(units: Units, values: dict[str, tuple[Value, int]]) -> dict[str, Any]:
    """Return metrics on resampled test samples as JSON: the entry ``resampled`` of ``evaluation.json``.

    Args:
        values: name → a function from test samples to the metric, and the numbers that it reads for each sample.

    Returns:
        ``unit`` and ``units``, their noun and number; ``figures``: name → the metric in each draw, null where it is
        undefined. Without draws of fewer than five units.
    """
    figures: dict[str, list[float | None]] = {name: [] for name in values if units.many >= LEAST}
    for name in figures:
        value, numbers = values[name]
        most = min(DRAWS, max(FEWEST, NUMBERS // max(1, numbers * len(units.of))))
        figures[name] = [_short(value(rows)) for rows in units.draws(most)]
    return {"unit": units.noun, "units": units.many, "figures": figures}


def _short(value: float | None) -> float | None:
    return float(f"{value:.{DIGITS}g}") if value is not None and math.isfinite(value) else None
