"""The true numbers of a file's samples, as far as they stand in it: a regression's labels, a forecast's rows ahead."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.files.encode import numbers
from fedfloor.data.files.sheet import NO_LABEL, Sheet
from fedfloor.errors import SettingError

Targets = NDArray[np.float32]


def labels(sheet: Sheet, rows: NDArray[np.int64], targets: int, column: str) -> Targets:
    """Return the labels of rows as numbers, float32 [n, T], NaN where a cell is empty or the table has none.

    Raises:
        SettingError: one is no number.
    """
    found = np.full((len(rows), targets), np.nan, np.float32)
    words = sheet.text.get("label")
    if words is None or targets != 1:  # tables have one label
        return found
    known = [i for i, row in enumerate(rows.tolist()) if words[row].strip().lower() not in NO_LABEL]
    if known:
        place = [int(rows[i]) for i in known]
        found[known] = numbers([words[row] for row in place], lambda i: sheet.place(place[i], column))
    return found


def rows_ahead(values: NDArray[np.float32], whose: NDArray[np.int64], end: NDArray[np.int64], horizon: int) -> Targets:
    """Return the next rows of each sample, float32 [n, S·H] sensor by sensor, NaN beyond its recording.

    Args:
        values: [rows, S], recordings one after the other.
        whose: the recording of each row.
        end: the first row after each sample, n of them.
        horizon: H.

    >>> rows_ahead(np.array([[1], [2], [3], [9]], np.float32), np.array([0, 0, 0, 1]), np.array([1, 2]), 2).tolist()
    [[2.0, 3.0], [3.0, nan]]
    """
    place = end[:, None] + np.arange(horizon)
    inside = np.minimum(place, len(values) - 1)
    there = (place < len(values)) & (whose[inside] == whose[end - 1][:, None])
    found = np.where(there[:, :, None], values[inside], np.float32(np.nan))  # [n, H, S]
    return found.transpose(0, 2, 1).reshape(len(end), -1)


def of_array(given: NDArray[Any] | None, count: int, targets: int, where: str) -> Targets:
    """Return numbers that stand beside samples in an ``.npz``, float32 [n, T]; NaN where there are none.

    Raises:
        SettingError: no numbers, or not as many as the samples have targets.
    """
    if given is None:
        return np.full((count, targets), np.nan, np.float32)
    if given.dtype.kind not in "iuf" or given.size != count * targets or len(given) != count:
        raise SettingError(
            f"{where} is {given.dtype} of shape {given.shape}: the model predicts {targets} number"
            f"{'s' if targets > 1 else ''} of each of {count} samples. Leave y out where they are not known."
        )
    return given.reshape(count, targets).astype(np.float32)
