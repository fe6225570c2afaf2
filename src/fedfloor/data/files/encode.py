"""Conversion of texts to numbers: devices, classes, ranges of numbers, and lives."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError, nearest
from fedfloor.base.names import count, misspelt, some
from fedfloor.data.ended import over, told
from fedfloor.data.files.joined import JOIN
from fedfloor.data.files.marks import grouped, grouped_hint, other_marks
from fedfloor.data.files.sheet import Sheet
from fedfloor.data.reading import Problem, Reading
from fedfloor.tasks.reconstruction import CLASSES
from fedfloor.tasks.survival import TARGETS
from fedfloor.tasks.task import Task

T = TypeVar("T", np.float32, np.float64)

log = logging.getLogger(__name__)

FEW = 20  # different numbers to one text in a column of measured values, at least
SHOWN = 5  # labels in a message, at most
MOST_RARE = 50  # classes of a few samples each, at most
RECURRING = 4  # samples of a class on average where there are more
MOST_NUMBERS = 100  # numeric classes that need not be listed, at most
ONE_CLASS = (
    "Training a classifier needs labelled samples of two classes or more, such as normal operation and a fault; add "
    "samples with another label. Or train on normal operation only: [data] task = 'reconstruction' (anomalies)."
)


def natural_order(names: Sequence[str]) -> list[str]:
    """Return names in natural order, with the numbers in them ordered by value.

    >>> natural_order(["press 10", "press 2", "3"])
    ['3', 'press 2', 'press 10']
    """

    def part(text: str) -> tuple[int, int, str]:
        digits = text.lstrip("0")
        return (0, len(digits), digits) if text.isdecimal() else (1, 0, text)  # the longer number is larger

    def key(name: str) -> list[tuple[int, int, str]]:
        return [part(text) for text in re.split(r"(\d+)", name) if text]

    return sorted(set(names), key=lambda name: (key(name), name))


def classes_of(
    labels: Sequence[str], wanted: Sequence[str], place: Callable[[int], str], least: int = 2
) -> tuple[str, ...]:
    """Return the class names: ``wanted`` if given, otherwise the labels that occur, of which ``least`` are required."""
    allowed = set(wanted)
    odd = next((i for i, label in enumerate(labels) if wanted and label not in allowed), None)
    if odd is not None:
        near = nearest(labels[odd], wanted)
        known = ", ".join(wanted)
        raise SettingError(
            f"{place(odd)}: '{labels[odd]}' is not one of [data] classes.{near} Known: {known}.", key="unknown-class"
        )
    occur = natural_order(labels)
    if len(occur) < least:
        raise SettingError(
            f"{place(0)}: '{occur[0]}', as in all other rows: the data have a single class. {ONE_CLASS}",
            key="single-class",
        )
    return tuple(wanted) or tuple(occur)


class OddLabelsError(SettingError):
    """An error: labels are measured values except for the few different texts ``texts``."""

    key = "odd-labels"

    def __init__(self, message: str, texts: Sequence[str]) -> None:
        super().__init__(message)
        self.texts = tuple(texts)


def check_no_measure(labels: Sequence[str], where: str, reading: Reading, most: int = MOST_NUMBERS) -> None:
    """Refuse labels that are measured values: numbers with fractions, or more than ``most`` different numbers.

    One in :data:`FEW` different labels may be another text, such as ``<5``.
    """
    values = natural_order(labels)
    odd = [value for value in values if sorted_numbers([value]) is None]
    hints = [hint for value in odd if (hint := other_marks(value, reading.decimal))]
    if len(values) > most and 2 * len(hints) > len(values):
        raise SettingError(f"{where}: '{odd[0]}' is no number. {hints[0]}.", key="grouped-numbers")
    values = [value for value in values if value not in odd] if FEW * len(odd) <= len(values) else []
    if (numbers := sorted_numbers(values)) is None or not numbers:
        _check_recurring(labels, where)
        return
    fraction = next((value for value in values if _number(value) % 1), None)
    if fraction is None and len(values) <= most:
        return
    if odd:
        raise OddLabelsError(
            f"{where}: '{odd[0]}' is not a number, but {len(values):,} of the label's {len(values) + len(odd):,} "
            f"different values are, such as {fraction or values[0]}; the others: {some([*map(repr, odd)], 10)}. A "
            "measured value needs a number in each row: correct these cells; if each value is a class, list all: "
            "[data] classes.",
            odd,
        )
    edges = ", ".join(thirds(numbers))
    which = f"such as {values[0]}" if fraction is None else f"with fractions such as {fraction}"
    text = (
        f"{where}: {len(values)} different numbers, {which}: measured values and no classes. To predict the number "
        f"itself: --set data.task=regression. To make classes of its ranges: --set 'data.bins=[{edges}]'. Or name the "
        "column that holds classes (--set data.columns.label=NAME); if each number is a class, list them all: [data] "
        "classes."
    )
    reading.tell(Problem("measure", text))


def _check_recurring(labels: Sequence[str], where: str) -> None:
    """Refuse texts that hardly recur, such as 4.59 mm, a date or a remark: no class of a few samples can be learnt."""
    different = list(dict.fromkeys(labels))
    if len(different) <= MOST_RARE or len(labels) >= RECURRING * len(different):
        return
    raise SettingError(
        f"{where}: {len(different):,} different texts in {len(labels):,} rows, such as '{different[0]}': they hardly "
        "recur, and are no classes. Name the column that holds classes: --set data.columns.label=NAME. If these are "
        "measured values, write plain numbers, without a unit: --set data.task=regression. If each is a class, list "
        "them all: [data] classes.",
        key="no-classes",
    )


def _number(text: str) -> float:
    return float(text.replace(",", ".", 1))


def is_number(text: str) -> bool:
    """Return whether a text is a finite number, with a comma or a point as the decimal mark.

    >>> [is_number(text) for text in ("29,5", "-3e2", "inf", "n.a.", "")]
    [True, True, False, False, False]
    """
    try:
        return math.isfinite(_number(text))
    except ValueError:
        return False


def sorted_numbers(texts: Iterable[str]) -> list[float] | None:
    """Return the numbers in texts, ascending; None if a text is no number."""
    try:
        return sorted(map(_number, texts))
    except ValueError:
        return None


def thirds(numbers: Sequence[float]) -> list[str]:
    """Return the edges that divide numbers into thirds, for a message."""
    return [f"{edge:.3g}" for edge in np.quantile(numbers, (1 / 3, 2 / 3))]


def normal_label(labels: Sequence[str], task: Task) -> str:
    """Return the first label that denotes normal operation, by default its usual name."""
    kinds = zip(labels, task.spelled(labels), strict=True)
    return next((label for label, kind in kinds if kind == CLASSES[0]), CLASSES[0])


def codes(values: Sequence[str], names: Sequence[str]) -> NDArray[np.int32]:
    """Return the index of each value in ``names``, int32 [N]."""
    number = {name: i for i, name in enumerate(names)}
    return np.array([number[value] for value in values], np.int32)


def qualified(device: Sequence[str], factory: Sequence[str] | None) -> list[str]:
    """Return the devices' names, prefixed by the factory if two factories have a device of the same name.

    >>> qualified(["press", "press", "mill"], ["north", "south", "north"])
    ['north/press', 'south/press', 'north/mill']
    """
    if factory is None or len(set(zip(device, factory, strict=True))) == len(set(device)):
        return list(device)
    return [f"{hall}/{name}" for name, hall in zip(device, factory, strict=True)]


def names_of(edges: Sequence[float], classes: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of ranges, the lowest first: ``classes`` if given, otherwise names made from the edges.

    >>> names_of([30, 80]), names_of([-1, 0.5], ["low", "middle", "high"])
    (('<30', '30-80', '>=80'), ('low', 'middle', 'high'))
    """
    if classes:
        return tuple(classes)
    labels = [f"{edge:g}" for edge in edges]
    mark = " to " if min(edges) < 0 else "-"
    middle = [f"{low}{mark}{high}" for low, high in pairwise(labels)]
    return (f"<{labels[0]}", *middle, f">={labels[-1]}")


def binned(
    texts: Sequence[str], edges: Sequence[float], names: Sequence[str], place: Callable[[int], str], decimal: str = ""
) -> list[str]:
    """Return the class of each number: class c holds edge c−1 ≤ v < edge c; ``decimal`` is the table's mark, if known.

    >>> binned(["29.5", "30", "81"], [30, 80], ["low", "middle", "high"], str)
    ['low', 'middle', 'high']
    """
    values = _parsed(
        texts,
        place,
        np.float64,
        "not a number, but data.bins makes classes from numbers. Correct it, or leave data.bins out.",
        decimal,
    )
    return [names[place] for place in np.searchsorted(edges, values, "right")]


def numbers(texts: Sequence[str], place: Callable[[int], str], decimal: str = "") -> NDArray[np.float32]:
    """Return the numbers in texts with a comma or a point as the decimal mark, float32 [N, 1].

    ``decimal`` is the table's mark, if known.

    >>> numbers(["29,5", "30"], str).ravel().tolist()
    [29.5, 30.0]
    """
    problem = (
        "not a finite number, but data.task = 'regression' needs numbers as labels. Correct it, leave the row out, or "
        "name another column (data.columns.label)."
    )
    return _parsed(texts, place, np.float32, problem, decimal)[:, None]


def _parsed(texts: Sequence[str], place: Callable[[int], str], kind: type[T], problem: str, decimal: str) -> NDArray[T]:
    """Return the finite numbers in texts with a comma or a point as the decimal mark, as ``kind`` [N].

    Raises:
        SettingError: a text is no number, or the mark seems to stand between thousands.
    """
    known: dict[str, T] = {}
    for row, text in enumerate(texts):
        if text not in known:
            try:
                known[text] = kind(_number(text))
            except ValueError:
                known[text] = kind("nan")
            if not np.isfinite(known[text]):
                raise SettingError(f"{place(row)}: '{text}' is {problem}", key="odd-text")
    for mark in ",.":
        if pair := grouped(known, mark, alone=bool(decimal) and mark != decimal):
            row = list(texts).index(pair[0])
            raise SettingError(f"{place(row)}: {grouped_hint(pair, mark)}", key="grouped-numbers")
    return np.array([known[text] for text in texts], kind)


def labelled(sheets: Sequence[Sheet], reading: Reading) -> tuple[list[Sheet], Reading]:
    """Return tables with ``[data] bins`` applied to their labels, and the reading with the classes listed.

    The labels of a survival become its targets, as texts: time, failure, entry, and whether it counts as a life.
    """
    if reading.lasting:
        return [_with_lives(sheet, reading) for sheet in sheets], reading
    if reading.remaining:
        sheets = [replace(sheet, text=sheet.text | {"label": list(map(str, _left(sheet)[0]))}) for sheet in sheets]
    if reading.bins is None or reading.number is not None:
        return list(sheets), reading
    names = names_of(reading.bins, reading.classes)
    binned_sheets = []
    for sheet in sheets:
        texts = sheet.text.get("label", [])
        place = partial(sheet.place, column=reading.columns.label)
        label = binned(texts, reading.bins, names, place, reading.decimal)
        binned_sheets.append(replace(sheet, text=sheet.text | ({"label": label} if texts else {})))
    return binned_sheets, replace(reading, classes=names)


def finished(sheets: Sequence[Sheet], reading: Reading) -> tuple[list[Sheet], tuple[int, int]]:
    """Return tables without the recordings that still run, by ``[data] ended``, and the numbers of these and of all.

    A survival keeps them, because it learns from lives that are not over.

    Raises:
        SettingError: all recordings still run.
    """
    ended = reading.ended or ""
    kept = []
    running = 0
    seen = set[str]()
    total = 0
    for sheet in sheets if reading.ended is not None else ():
        labels = np.array(sheet.text["label"])
        last = _left(sheet)[1] if reading.remaining else np.arange(len(labels))
        ends = np.unique(last)
        seen |= {*labels[ends].tolist()}
        running = running + int((~over(labels[ends].tolist(), ended)).sum())
        total = total + len(ends)
        kept.append(sheet if reading.lasting else sheet.take(np.flatnonzero(over(labels[last].tolist(), ended))))
    if sheets and total:
        texts = Counter(text for sheet in sheets for text in sheet.text["label"])
        for text, meant in misspelt(texts).items():
            if over([meant], ended).all() and not over([text], ended).any():
                log.warning(
                    "%s, %s: '%s' in %s is not '%s' (data.ended), so that these count as still running. Correct it if "
                    "it is misspelt.", sheets[0].title, sheets[0].cell.format(reading.columns.label), text,
                    count(texts[text], "row"), meant,
                )  # fmt: skip
    if total and running == total:
        noun = "recording" if reading.remaining else "life"
        raise SettingError(
            f"{sheets[0].title}, {sheets[0].cell.format(reading.columns.label)}: no {noun} ends with "
            f"{told(ended)} (data.ended). Last rows have: {some(sorted(seen), SHOWN)}.",
            key="no-ended-recording",
        )
    return kept or list(sheets), (running, total)


def lives(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the targets of a survival in texts made by :func:`labelled`, float32 [N, 4]."""
    known = {text: tuple(map(float, text.split())) for text in {*texts}}
    return np.array([known[text] for text in texts], np.float32).reshape(-1, TARGETS)


def _with_lives(sheet: Sheet, reading: Reading) -> Sheet:
    if reading.remaining:
        return _of_recordings(sheet, reading)
    if reading.columns.life is None:
        raise SettingError(
            f"{sheet.title}: data.task = 'survival' needs lives: name the column of a table with a life per row, --set "
            "data.columns.life=NAME (a time, or two dates: 'installed + removed'); or set data.remaining = true for "
            "recordings that run to failure. data.ended is the text of a failure; others still run.",
            key="no-lives",
        )
    return _lived(sheet, reading)


def _lived(sheet: Sheet, reading: Reading) -> Sheet:
    """Return a table of lives, a row each, with their targets as labels, and with the age at the entry as a sensor.

    The sensor has the name of the life: in a table to predict, this column is the present age.

    Raises:
        SettingError: a life is missing or not above 0, or does not end after its entry.
    """
    place = {name: number for number, name in enumerate(sheet.columns)}
    life = str(reading.columns.life)
    time = sheet.x[:, place[life]].astype(np.float64)
    entry = np.zeros(len(time))
    kept = [*place.values()]
    if (name := reading.columns.entry) is not None:
        entry = sheet.x[:, place[name]].astype(np.float64)
        kept.remove(place[name])
    for row in np.flatnonzero(~(time > 0) | ~(entry >= 0) | ~(entry < time))[:1].tolist():
        raise SettingError(_odd_life(sheet, row, reading, float(time[row]), float(entry[row])), key="odd-life")
    failed = np.ones(len(time), np.bool_)
    if reading.ended is not None:
        failed = over(sheet.text["label"], reading.ended)
    x = sheet.x.copy()
    x[:, place[life]] = entry
    columns = tuple(sheet.columns[number] for number in kept)
    rows = zip(time.tolist(), failed.tolist(), entry.tolist(), strict=True)
    labels = [f"{age!r} {ends:d} {begin!r} 1" for age, ends, begin in rows]
    return replace(sheet, x=x[:, kept], columns=columns, text=sheet.text | {"label": labels})


def _odd_life(sheet: Sheet, row: int, reading: Reading, time: float, entry: float) -> str:
    """Return the message on a row that is no life."""
    name = str(reading.columns.life)
    dates = JOIN in name
    if np.isnan(time):
        end = name.split(JOIN)[-1]
        hint = (
            f"If '{end}' is empty for machines that still run, give the date until which they were observed: --set "
            "'data.until=\"DATE\"'. Otherwise fill" if dates else "Fill"
        )  # fmt: skip
        return f"{sheet.place(row, name)}: no time. {hint} it, or remove the row."
    if not time > 0:
        hint = " Check the order of the two dates." if dates else ""
        return (
            f"{sheet.place(row, name)}: a life of {time:g}: must be above 0.{hint} Correct it, or write half a unit "
            "for a machine that failed at once."
        )
    return (
        f"{sheet.place(row, str(reading.columns.entry))}: the observation begins at the age {entry:g}; must be at "
        f"least 0 and below the end of the life, {time:g}. Correct it, or remove the row."
    )


def _of_recordings(sheet: Sheet, reading: Reading) -> Sheet:
    """Return recordings with the targets of a survival as labels, in rows since a recording's first row.

    A recording of n rows fails at n, or still ran at its last row, n − 1.
    """
    left, last = _left(sheet)
    _, group, many = np.unique(last, return_inverse=True, return_counts=True)
    length = many[group.ravel()]
    failed = np.ones(len(last), np.bool_)
    if reading.ended is not None:
        failed = over(np.array(sheet.text["label"])[last].tolist(), reading.ended)
    age = length - 1 - np.array(left)
    rows = zip((length - 1 + failed).tolist(), failed.tolist(), age.tolist(), strict=True)
    labels = [f"{time} {ends:d} {begin} 1" for time, ends, begin in rows]
    return replace(sheet, text=sheet.text | {"label": labels})


def _left(sheet: Sheet) -> tuple[list[int], NDArray[np.int64]]:
    """Return the rows left in the recording after each row, by time or in the table's order, and its last row."""
    none = [""] * len(sheet.line)
    whose = zip(sheet.text.get("device", none), sheet.text.get("run", none), strict=True)
    group = np.unique(["\0".join(both) for both in whose], return_inverse=True)[1]
    time = np.arange(len(group)) if sheet.time is None else sheet.time
    order = np.lexsort((time, group))
    end = np.searchsorted(group[order], group[order], "right")
    left = np.empty(len(group), np.int64)
    left[order] = end - 1 - np.arange(len(group))
    last = np.empty(len(group), np.int64)
    last[order] = order[end - 1]
    return left.tolist(), last
