"""Recordings become a data set: divided into training and test, cut into windows, missing values dealt with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Dataset, Indices, Inputs, Missing, Owned, Owners, Times, Values
from fedfloor.data.reading import LastSplit, Reading, RunSplit
from fedfloor.data.split import Cut, Rows, divided, runs
from fedfloor.data.targets import Asked, asked, with_rows_ahead, without_abnormal

log = logging.getLogger(__name__)

Rows32 = NDArray[np.float32]


def assemble(
    name: str, classes: tuple[str, ...], rows: Rows, reading: Reading, inputs: Inputs, owned: Owned, digest: str,
    seed: int,
) -> Dataset:  # fmt: skip
    """Make a data set of recordings: their rows [N, …], or windows [N, C, L] that are cut out when they are asked for.

    Args:
        name: the data set's name.
        classes: F names.
        rows: the recordings.
        reading: window, split, what to do with missing values and with small devices.
        inputs: names of the columns.
        owned: names and factories of the devices.
        digest: of the content.
        seed: of random splits.

    Raises:
        SettingError: a device has too few rows, overlapping windows are to be split at random, or nothing is left.
    """
    cut = divided(name, rows, with_rows_ahead(name, rows, reading), owned, seed)
    cut = without_abnormal(name, classes, rows, cut, reading)
    if reading.window is not None:
        inputs = replace(inputs, length=reading.window.length, step=reading.window.stride)
    data = _dataset(name, asked(name, classes, rows, cut, reading, inputs), rows, cut, inputs, owned, digest)
    last = cut.last[~cut.test]
    if isinstance(reading.split, RunSplit) or rows.whole:
        return replace(data, run=rows.runs[last])
    if isinstance(reading.split, LastSplit) and (data.time is None or reading.split.of == "run"):
        whole = rows.segment if rows.owner is None or reading.split.of == "run" else rows.owner
        return replace(data, through=_through(whole)[last])
    return data


def fill(x: Rows32, segment: Owners) -> Rows32:
    """Return the rows with each missing value replaced by the last one before it in its recording, or else the next.

    What a recording never measured stays missing.

    >>> fill(np.array([[np.nan], [1], [np.nan], [np.nan]], np.float32), np.array([0, 0, 0, 1])).ravel()
    array([ 1.,  1.,  1., nan], dtype=float32)
    """
    x = x.copy()
    for first, last in runs(segment, None):
        piece = x[first:last]
        known = ~np.isnan(piece)
        if known.all():
            continue
        row = np.arange(len(piece))[:, None]
        before = np.maximum.accumulate(np.where(known, row, -1), axis=0)
        after = np.minimum.accumulate(np.where(known, row, len(piece))[::-1], axis=0)[::-1]
        source = np.where(before >= 0, before, np.minimum(after, len(piece) - 1))
        x[first:last] = np.take_along_axis(piece, source, axis=0)
    return x


def say_missing(name: str, counts: Mapping[str, int], each: int, sensors: int, missing: Missing) -> None:
    """Log how many values were missing, of which sensor the most, and what was done about it.

    Args:
        name: of the data set.
        counts: missing values by sensor.
        each: values of one sensor, missing ones among them.
        sensors: how many there are.
        missing: what is done.
    """
    if counts and missing != "refuse":
        count, total, worst = sum(counts.values()), each * sensors, max(counts, key=lambda key: counts[key])
        done = {
            "previous": "each was given its recording's last value before it",
            "mean": "each counts as its sensor's mean over all devices",
            "drop": "samples with one are left out",
        }[missing]
        log.info("%s: %s of %s values are missing (%.2g %%; of '%s' the most, %.2g %%): %s.", name, f"{count:,}",
                 f"{total:,}", 100 * count / total, worst, 100 * counts[worst] / each, done)  # fmt: skip


def _dataset(
    name: str, what: Asked, rows: Rows, cut: Cut, inputs: Inputs, owned: Owned, digest: str
) -> Dataset:  # fmt: skip
    train, start, start_test = ~cut.test, cut.start[~cut.test], cut.start[cut.test]
    last, last_test = cut.last[train], cut.last[cut.test]
    x, length = rows.x, inputs.length if rows.x.ndim == 2 else None
    overlap = length is not None and inputs.step is not None and inputs.step < cut.length
    apart = overlap if rows.time is None else rows.apart
    owner = None if rows.owner is None else rows.owner[last].astype(np.int32)
    tested = None if rows.owner is None else rows.owner[last_test].astype(np.int32)
    return Dataset(
        name, what.classes, x.shape[1:] if length is None else (x.shape[1], length),
        what.y[train], what.y[cut.test], owner, tested, digest,
        lambda indices, device: _gather(x, start[indices], length),  # noqa: ARG005
        lambda indices: _gather(x, start_test[indices], length),
        scale=1 / 255 if x.dtype == np.uint8 else 1.0, time=None if rows.time is None else rows.time[last],
        first=start if overlap else None, first_test=start_test if overlap else None,
        through=_through(rows.segment)[last] if apart else None, owned=owned, inputs=inputs, task=what.task,
        target=None if what.target is None else what.target[train],
        target_test=None if what.target is None else what.target[cut.test],
        recording_test=rows.segment[last_test].astype(np.int32) if rows.noun == "rows" and rows.ordered else None,
    )  # fmt: skip


def _through(segment: Owners) -> Times:
    """Return how far through its recording each row lies.

    >>> _through(np.array([0, 0, 0, 0, 1]))
    array([0.25, 0.5 , 0.75, 1.  , 1.  ])
    """
    return np.concatenate([np.arange(1, end - first + 1) / (end - first) for first, end in runs(segment, None)])


def _gather(x: Values, start: Indices, length: int | None) -> Values:
    """Return samples [n, …], or windows [n, C, L], as arrays of their own."""
    if length is None:
        return x[start]
    return np.ascontiguousarray(x[start[:, None] + np.arange(length)].transpose(0, 2, 1))
