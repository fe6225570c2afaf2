"""Columns of identifiers that divide a table into recordings, such as the numbers of welds, batches or parts."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.kinds import CALENDAR, FEW, is_date, is_text, word_of

# recordings, and those of each of two labels, at least
LEAST = 8
AGAIN = 2
ROWS = 5  # of half of the recordings, at least
SERIAL = 10_000  # whole numbers from which identifiers need not count

Codes = NDArray[np.int64]


def recordings(name: str, cells: Sequence[str], devices: Sequence[str], labels: Sequence[str]) -> str:
    """Return the evidence that a column names recordings, as a predicate; "" if it does not.

    Each of its texts or whole numbers, many in all, is in adjacent rows of a device, and never again on this device;
    numbers count these blocks or are serial numbers. Each block has a single label, which changes from block to block
    and does not follow from the identifier, as it would from a phase. An operator, a product or a level that is set
    recurs, has several labels, has few values, or rises in other steps.

    Args:
        name: its name.
        cells: its cell in each row.
        devices: the device of each row.
        labels: the label of each row.

    >>> cells, labels = [str(number) for number in range(8) for _ in range(5)], (["ok"] * 5 + ["nok"] * 5) * 4
    >>> recordings("weld", cells, ["a"] * 40, labels)
    'names 8 recordings of about 5 adjacent rows, each with one label'
    >>> recordings("operator", ["Ann", "Bob"] * 20, ["a"] * 40, labels)
    ''
    """
    if not cells or not are_identifiers(name, cells):
        return ""
    device, own, label = (np.unique(texts, return_inverse=True)[1].ravel() for texts in (devices, cells, labels))
    order = np.argsort(device, kind="stable")
    device = device[order]
    own = own[order]
    label = label[order]
    changes = (np.diff(device, prepend=-1) != 0) | (np.diff(own, prepend=-1) != 0)
    first = np.flatnonzero(changes)
    rows = np.diff(np.append(first, len(own)))
    many = len(first)
    if many < max(LEAST, AGAIN * (device[-1] + 1)) or np.median(rows) < ROWS:
        return ""
    if not _different(device, own) == _different(device, own, label) == many:
        return ""
    if not _vary(device[first], own[first], label[first]):
        return ""
    texts = np.asarray(cells)[order][first]
    if not is_text(list(texts), ".") and not _count(texts.astype(np.int64), device[first]):
        return ""
    return f"names {many:,} recordings of about {np.median(rows):.0f} adjacent rows, each with one label"


def are_identifiers(name: str, cells: Sequence[str]) -> bool:
    """Return whether cells are texts but no dates, or whole numbers, and the name is none of a calendar."""
    if not cells:
        return False
    few = {*cells[:: max(1, len(cells) // FEW)]}
    if not all(re.fullmatch(r"\d{1,18}", cell) for cell in few) and not is_text([*few], "."):
        return False
    whole = all(re.fullmatch(r"\d{1,18}", cell) for cell in {*cells})
    text = not whole and "" not in {*cells} and is_text(cells, ".") and not is_date(cells[0], None)
    return word_of(name) not in CALENDAR and (whole or text)


def _different(*codes: Codes) -> int:
    """Return the number of different combinations."""
    return len(np.unique(np.stack(codes), axis=1).T)


def _vary(device: Codes, own: Codes, label: Codes) -> bool:
    """Return whether labels of blocks change within devices, recur, and do not follow from identifiers.

    Numbers that are to be predicted need not recur.
    """
    several = np.bincount(label)
    recur = (several >= AGAIN).sum() >= AGAIN or len(several) > FEW
    apart = _different(own) == len(own) or _different(own, label) > _different(own)
    return bool(recur and apart and (np.diff(label)[np.diff(device) == 0] != 0).any())


def _count(numbers: Codes, device: Codes) -> bool:
    """Return whether the numbers of blocks are serial numbers, or rise on each device, mostly by 1."""
    step = np.diff(numbers)[np.diff(device) == 0]
    return bool(numbers.min() >= SERIAL or ((step > 0).all() and np.median(step) == 1))
