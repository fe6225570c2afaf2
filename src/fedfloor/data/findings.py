"""Sensors that are probably none: counters, copies of the label or of one another, constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.categories import sources
from fedfloor.data.dataset import Dataset

MOST = 50_000  # training samples that are looked at, evenly spread
DEVICES, IN_A_ROW = 20, 500  # devices and samples of each that counters are looked for in
FEW = 50  # values of a sensor that may tell a class
SHOWN = 5  # samples of a value before it says anything
MARGIN = 0.1  # of a sensor's range in training, by which a value is beyond it
BEYOND = 0.1  # share of test samples with such values
SAME = 1e-6  # 1 − |correlation| of copies
MARKS = (*(sign * float(nines) for nines in (99, 999, 9999, 99999, 999999) for sign in (1, -1)), 32767, -32768, 65535)
OFTEN = 3  # times that a mark for missing values occurs


@dataclass(frozen=True)
class Finding:
    """A sensor to look at.

    Args:
        sensor: its name.
        text: what it seems to be, to be read after its name.
        leave: whether it should be left out.
    """

    sensor: str
    text: str
    leave: bool = True


def findings(data: Dataset) -> list[Finding]:
    """Return sensors that are constant, count up, tell the class by themselves, or copy another.

    Args:
        data: rows of sensors, or windows, of which the last row is looked at.
    """
    if data.inputs.kind != "table" or data.made is not None or not len(data.y):
        return []
    every = np.arange(min(len(data.y), MOST)) * len(data.y) // min(len(data.y), MOST)
    x, y = _last_row(data, every), data.y[every]
    counted = _counters(data)
    told: dict[int, str] = {}
    texts = _texts(data)
    for i in range(x.shape[1]):
        column = x[:, i]
        known = column[~np.isnan(column)]
        if len(known) and known.min() == known.max() and not texts[i]:
            told[i] = f"is {known[0]:g} in every row looked at: it tells nothing"
        elif i in counted:
            told[i] = "counts up from row to row: a row number or a running time, which new data do not continue"
        else:
            text = _tells(column, y, data.classes)
            if text:
                told[i] = text
    told |= {i: text for i, text in _copies(x, data.inputs.columns, texts).items() if i not in told}
    marks = {i: text for i in range(x.shape[1]) if i not in told and (text := _mark(x[:, i]))}
    return [Finding(data.inputs.columns[i], (told | marks)[i], leave=i in told) for i in sorted(told | marks)]


def values_beyond(data: Dataset) -> dict[str, float]:
    """Return the sensors of which at least :data:`BEYOND` of the test samples lie outside training, and their share.

    Outside is below min − m·r or above max + m·r, with m = :data:`MARGIN` and r = max − min of the training samples. Up
    to :data:`MOST` samples of either part are looked at, evenly spread, and of windows the last row.

    Args:
        data: rows of sensors, or windows; nothing is returned for others.
    """
    if data.inputs.kind != "table" or data.made is not None or not len(data.y) or not len(data.y_test):
        return {}
    train, test = (np.arange(min(n, MOST)) * n // min(n, MOST) for n in (len(data.y), len(data.y_test)))
    x, z = _last_row(data, train), _last_row(data, test, tests=True)
    low, high = np.fmin.reduce(x), np.fmax.reduce(x)
    margin = MARGIN * (high - low)
    share = ((z < low - margin) | (z > high + margin)).mean(axis=0)
    return {data.inputs.columns[i]: float(share[i]) for i in np.flatnonzero(share >= BEYOND)}


def _last_row(data: Dataset, indices: NDArray[np.int64], *, tests: bool = False) -> NDArray[np.float64]:
    blocks = [indices[first : first + 5000] for first in range(0, len(indices), 5000)]
    parts = [data.take_test(block) if tests else data.take(block, 0) for block in blocks]
    x = np.concatenate(parts).astype(np.float64)
    return x if x.ndim == 2 else x[:, :, -1]


def _counters(data: Dataset) -> set[int]:
    """Return the sensors that rise from each sample of a device, or a recording, to its next, in whole numbers."""
    owner = data.run if data.run is not None else data.owner
    owner = np.zeros(len(data.y), np.int32) if owner is None else owner
    rises, seen = np.ones(data.shape[0], np.bool_), 0
    for device in np.unique(owner)[:DEVICES].tolist():
        mine = np.flatnonzero(owner == device)[:IN_A_ROW]
        if len(mine) < SHOWN:
            continue
        x = _last_row(data, mine)
        rises &= (np.diff(x, axis=0) > 0).all(axis=0) & (x == np.floor(x)).all(axis=0)
        seen += 1
    return {*np.flatnonzero(rises).tolist()} if seen else set()


def _tells(column: NDArray[np.float64], y: NDArray[np.int64], classes: Sequence[str]) -> str:
    """Return how a sensor of few values tells the class, if it does."""
    values, code, count = np.unique(column, return_inverse=True, return_counts=True)
    if not 2 <= len(values) <= FEW or len(values) * SHOWN > len(column):
        return ""
    table = np.zeros((len(values), len(classes)), np.int64)
    np.add.at(table, (code.ravel(), y), 1)
    pure = table.max(axis=1) == count
    if pure.all() and len({*table.argmax(axis=1).tolist()}) > 1:
        return f"tells the class: each of its {len(values)} values occurs with one class only. A copy of the label?"
    usual = int(np.bincount(y).argmax())
    odd = np.flatnonzero(pure & (count >= SHOWN) & (table.argmax(axis=1) != usual))
    if len(values) <= SHOWN and len(odd):
        value, name = values[odd[0]], classes[int(table[odd[0]].argmax())]
        return f"is {value:g} for '{name}' only ({count[odd[0]]} times): a consequence of the label?"
    return ""


def _mark(column: NDArray[np.float64]) -> str:
    """Return which value of a sensor seems to stand for a missing one: -999 and its like, far from all others."""
    for value in MARKS:
        count = int((column == value).sum())
        others = column[(column != value) & ~np.isnan(column)]
        if count >= OFTEN and len(others) and np.abs(others - value).min() > np.ptp(others) > 0:
            return (
                f"is {value:g} in {count:,} of the rows looked at, far from all its other values: if that stands for a "
                "missing value, empty these cells"
            )
    return ""


def _texts(data: Dataset) -> list[str]:
    """Return for each sensor the column of texts that it stands for a value of; empty for others."""
    columns = data.inputs.columns
    found = sources(columns, data.inputs.coding.get("categories", ()))
    return ["" if text == name else text for name, text in zip(columns, found, strict=True)]


def _copies(x: NDArray[np.float64], names: Sequence[str], texts: Sequence[str]) -> dict[int, str]:
    """Return the sensors that are another one, or a multiple of it and a constant, but for those of one category."""
    filled = np.where(np.isnan(x), 0.0, x)
    centred = filled - filled.mean(axis=0)
    length = np.sqrt((centred**2).sum(axis=0))
    unit = np.divide(centred, length, out=np.zeros_like(centred), where=length > 0)
    alike = np.abs(unit.T @ unit)
    told: dict[int, str] = {}
    for i in range(1, len(names)):
        before = [
            j for j in range(i)
            if j not in told and alike[i, j] > 1 - SAME and length[i] > 0 and not (texts[i] and texts[i] == texts[j])
        ]  # fmt: skip
        if before:
            same = np.array_equal(filled[:, i], filled[:, before[0]])
            how = "holds the same as" if same else "is a multiple of (and perhaps a constant more than)"
            told[i] = f"{how} '{names[before[0]]}'"
    return told
