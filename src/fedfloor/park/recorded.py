"""The record of a run's rows: hashes of the rows that trained, validated and tested, by which copies are recognised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Indices, Values
from fedfloor.park.park import Park
from fedfloor.park.statistics import first_rows

FILE = "rows.npz"  # file in a run's folder: part → sorted hashes
PARTS = ("training", "validation", "test")  # a row in several parts counts as of the first
MOST = 20_000_000  # numbers of rows times a window's length that are hashed, at most
CHUNK = 1024  # samples hashed at a time
START = np.uint64(0x9E3779B97F4A7C15)
FACTOR = np.uint64(0xBF58476D1CE4E5B9)
Hashes = NDArray[np.uint32]


def hashes(rows: Values) -> Hashes:
    """Return a hash of 32 bits of each row [n, …], of its values alone: equal rows of any table have equal hashes.

    With N recorded rows, another row has the hash of one of them with a probability of N/2³².

    >>> a, b, c = hashes(np.array([[1, np.nan], [-0.0, 2], [0, 2]], np.float32))
    >>> (a == b, b == c)
    (np.False_, np.True_)
    """
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
    if flat.dtype == np.uint8:
        words = np.pad(flat, ((0, 0), (0, -flat.shape[1] % 4))).view(np.uint32)
    else:  # a single NaN and a single zero
        words = np.where(np.isnan(flat), np.float32(np.nan), flat.astype(np.float32) + np.float32(0)).view(np.uint32)
    state = np.full(len(words), START)
    for column in words.T:
        state = (state ^ column.astype(np.uint64)) * FACTOR
        state ^= state >> np.uint64(29)
    return (state * FACTOR >> np.uint64(32)).astype(np.uint32)


def record(park: Park) -> dict[str, Hashes]:
    """Return the hashes of a park's rows by part; empty for generated or too many samples, or samples elsewhere."""
    data = park.stored
    length = park.dataset.inputs.length or 1
    many = (int(park.sizes.sum()) + park.test_samples) * length
    if data.made is not None or data.rendered or park.remote is not None or many > MOST:
        return {}
    held_out = park if park.validating is None else park.validating
    parts = {
        "training": [*_training(park)],
        "validation": [*_testing(held_out)] if park.validating is not None else [],
        "test": [*_testing(park)],
    }
    none = np.zeros(0, np.uint32)
    return {part: np.unique(np.concatenate([none, *found])) for part, found in parts.items()}


def _training(park: Park) -> Iterator[Hashes]:
    data = park.stored
    for device in range(park.devices):
        for chunk in _chunks(park.indices[device]):
            x = data.task.in_tables(data.take(chunk, device), _some(data.target, chunk))
            yield hashes(_rows(x, _some(data.first, chunk)))


def _testing(park: Park) -> Iterator[Hashes]:
    data = park.stored
    for chunk in _chunks(np.arange(park.test_samples)):
        x = data.task.in_tables(data.take_test(chunk), _some(data.target_test, chunk))
        yield hashes(_rows(x, _some(data.first_test, chunk)))


def _some(values: NDArray[Any] | None, chunk: Indices) -> NDArray[Any] | None:
    return None if values is None else values[chunk]


def _chunks(indices: Indices) -> Iterator[Indices]:
    for start in range(0, len(indices), CHUNK):
        yield indices[start : start + CHUNK]


def _rows(x: Values, first: Indices | None) -> Values:
    """Return the rows of samples; pictures as they are."""
    return x if x.ndim > 3 else first_rows(x, first, None)


def parts_of(x: Values, recorded: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the part of each sample [n, …], "" for new ones: that of more than half of a window's rows.

    Args:
        x: rows [n, C], windows [n, C, L] or pictures [n, C, H, W], as stored in files.
        recorded: part → sorted hashes.
    """
    if x.ndim == 3:
        each = hashes(x.transpose(0, 2, 1).reshape(-1, x.shape[1])).reshape(len(x), x.shape[2])
    else:
        each = hashes(x)[:, None]
    whose = np.full(len(x), "", object)
    for part in reversed(PARTS):
        whose[np.isin(each, recorded.get(part, ())).mean(axis=1) > 0.5] = part
    return whose.tolist()
