"""A number as the label: ranges of it are classes, such as classes of wear from the remaining life."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import SettingError

if TYPE_CHECKING:
    from fedfloor.data.reading import Reading
    from fedfloor.data.sheet import Sheet


def names_of(edges: Sequence[float], classes: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the classes of ranges, the lowest first: those given, or names made of the edges.

    >>> names_of([30, 80]), names_of([-1, 0.5], ["low", "middle", "high"])
    (('<30', '30-80', '>=80'), ('low', 'middle', 'high'))
    """
    if classes:
        return tuple(classes)
    shown = [f"{edge:g}" for edge in edges]
    mark = " to " if min(edges) < 0 else "-"
    middle = [f"{low}{mark}{high}" for low, high in pairwise(shown)]
    return (f"<{shown[0]}", *middle, f">={shown[-1]}")


def binned(
    texts: Sequence[str], edges: Sequence[float], names: Sequence[str], place: Callable[[int], str]
) -> list[str]:
    """Return the class of each number: class c holds edge c−1 ≤ v < edge c.

    Args:
        texts: the numbers as they stand in a table, a comma or a point as the decimal mark.
        edges: between classes, ascending.
        names: of the classes.
        place: row → where it stands, in words.

    Raises:
        SettingError: one is no finite number; the message names where.

    >>> binned(["29.5", "30", "81"], [30, 80], ["low", "middle", "high"], str)
    ['low', 'middle', 'high']
    """
    known: dict[str, str] = {}
    for row, text in enumerate(texts):
        if text not in known:
            try:
                number = float(text.replace(",", ".", 1))
            except ValueError:
                number = np.nan
            if not np.isfinite(number):
                raise SettingError(f"{place(row)}: '{text}' is no number, and data.bins makes classes of numbers.")
            known[text] = names[int(np.searchsorted(edges, number, "right"))]
    return [known[text] for text in texts]


def numbers(texts: Sequence[str], place: Callable[[int], str]) -> NDArray[np.float32]:
    """Return numbers as they stand in a table, a comma or a point as the decimal mark, float32 [N, 1].

    Raises:
        SettingError: one is no finite number; the message names where.

    >>> numbers(["29,5", "30"], str).ravel().tolist()
    [29.5, 30.0]
    """
    known: dict[str, float] = {}
    for row, text in enumerate(texts):
        if text not in known:
            try:
                known[text] = float(text.replace(",", ".", 1))
            except ValueError:
                known[text] = np.nan
            if not np.isfinite(np.float32(known[text])):
                raise SettingError(
                    f"{place(row)}: '{text}' is no finite number, and with data.task = 'regression' the label is one. "
                    "Correct it, leave the row out, or name another column (data.columns.label)."
                )
    return np.array([known[text] for text in texts], np.float32)[:, None]


def labelled(sheets: Sequence[Sheet], reading: Reading) -> tuple[list[Sheet], Reading]:
    """Return tables with classes for labels, and the reading that lists these, where ``[data] bins`` are set.

    Raises:
        SettingError: a label is no number.
    """
    if reading.number is not None and reading.remaining:
        return [replace(one, text=one.text | {"label": list(map(str, _left(one)))}) for one in sheets], reading
    if reading.bins is None or reading.number is not None:
        return list(sheets), reading
    names = names_of(reading.bins, reading.classes)
    told = []
    for sheet in sheets:
        texts = list(map(str, _left(sheet))) if reading.remaining else sheet.text.get("label", [])
        label = binned(texts, reading.bins, names, lambda row: sheet.place(row, reading.columns.label))  # noqa: B023
        told.append(replace(sheet, text=sheet.text | ({"label": label} if texts else {})))
    return told, replace(reading, classes=names)


def _left(sheet: Sheet) -> list[int]:
    """Return how many rows of its recording come after each row: by time, or in the table's order."""
    none = [""] * len(sheet.line)
    whose = zip(sheet.text.get("device", none), sheet.text.get("run", none), strict=True)
    group = np.unique(["\0".join(both) for both in whose], return_inverse=True)[1]
    time = np.arange(len(group)) if sheet.time is None else sheet.time
    order = np.lexsort((time, group))
    end = np.searchsorted(group[order], group[order], "right")
    left = np.empty(len(group), np.int64)
    left[order] = end - 1 - np.arange(len(group))
    return left.tolist()
