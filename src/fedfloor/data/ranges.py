"""Values of test samples beyond the range of training."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Dataset

MOST = 50_000  # training samples examined at most, evenly spread
MARGIN = 0.1  # share of a sensor's range in training by which a value exceeds the range
BEYOND = 0.1  # share of test samples with such values
MARKS = (  # values that denote missing ones: nines, limits of whole numbers, and an overload
    *(sign * nines for nines in (99.0, 99.9, 999.0, 999.9, 9999.0, 9999.9, 99999.0, 999999.0) for sign in (1, -1)),
    32767.0, -32768.0, 65535.0, 9.9e37, -9.9e37,
)  # fmt: skip
OFTEN = 3  # occurrences of a mark for missing values, at least


def mark_of(column: NDArray[np.floating[Any]]) -> tuple[float, int] | None:
    """Return a value, such as -999, that seems to denote missing ones, as it is far from all others; and its count.

    >>> mark_of(np.array([20.5, -999, 21, -999, 20, -999])), mark_of(np.array([20.5, 99, 21]))
    ((-999.0, 3), None)
    """
    for value in MARKS:
        marked = column == np.float32(value)
        others = column[~marked & ~np.isnan(column)]
        if marked.sum() >= OFTEN and len(others) and np.abs(others - value).min() > np.ptp(others) > 0:
            return value, int(marked.sum())
    return None


def values_beyond(data: Dataset) -> dict[str, float]:
    """Return sensor → share of test samples outside the range of training, for shares of at least :data:`BEYOND`.

    Outside is below min − m·r or above max + m·r, with m = :data:`MARGIN` and r = max − min of the training samples. Up
    to :data:`MOST` samples of each part are examined, evenly spread; of windows the last row.
    """
    train = looked_at(data)
    test = looked_at(data, tests=True)
    if train is None or test is None:
        return {}
    x = last_row(data, train)
    z = last_row(data, test, tests=True)
    low, high = np.fmin.reduce(x), np.fmax.reduce(x)
    margin = MARGIN * (high - low)
    share = ((z < low - margin) | (z > high + margin)).mean(axis=0)
    return {data.inputs.columns[i]: float(share[i]) for i in np.flatnonzero(share >= BEYOND)}


def looked_at(data: Dataset, *, tests: bool = False) -> NDArray[np.int64] | None:
    """Return the indices of up to :data:`MOST` samples, evenly spread; None without samples, or for pictures."""
    many = len(data.y_test if tests else data.y)
    if data.inputs.kind != "table" or data.made is not None or not many:
        return None
    return np.arange(min(many, MOST)) * many // min(many, MOST)


def last_row(data: Dataset, indices: NDArray[np.int64], *, tests: bool = False) -> NDArray[np.float64]:
    """Return the values of samples, of windows those of the last row, float64 [n, C]; NaN where no network reads."""
    blocks = [indices[first : first + 5000] for first in range(0, len(indices), 5000)]
    parts = [data.take_test(block) if tests else data.take(block, -1) for block in blocks]
    x = np.concatenate(parts).astype(np.float64)
    x = x if x.ndim == 2 else x[:, :, -1]
    x[:, [*data.task.unread]] = np.nan
    return x
