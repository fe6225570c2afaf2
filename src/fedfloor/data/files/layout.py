"""The roles of a table's columns, the conversion of its cells, and their errors, which name row and column."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError, nearest
from fedfloor.base.names import toml_key, toml_list, typed
from fedfloor.data.ended import MISSING, several
from fedfloor.data.files.joined import SPANS, Joined, joined
from fedfloor.data.files.marks import other_marks, rewritten, ungrouped
from fedfloor.data.files.rows import CALLED, Row, place
from fedfloor.data.files.spellings import TRUTH
from fedfloor.data.files.times import NUMBERS, READ, Form, TimeError
from fedfloor.data.files.times import read as read_times
from fedfloor.data.reading import SKEWED, Columns, Reading, dealt, skipped
from fedfloor.tasks.kinds import TASKS

NO_LABEL = MISSING - {"none", "-", "?"}
TIME_LIKE = re.compile(
    r"(?<![\d.])(\d{4}([./-])\d{1,2}\2\d{1,2}|\d{1,2}([./-])\d{1,2}\3(\d{4}|\d{2}))(?![\d.])|\b\d{1,2}:\d{2}\b"
    r"|\d.*\b(jan|feb|mar|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])[a-z]*\b.*\d",
    re.IGNORECASE,
)
LONGEST_TIME = 100  # characters; the search takes time quadratic in them
NUMBER = re.compile(r"[+-]?\d+([.,]\d*)?(e[+-]?\d+)?", re.IGNORECASE)
WORDS = {mark: word for word, mark in CALLED.items()}
MOST_TEXTS = 10  # different texts of a sensor that probably denote missing values, at most
DISTINCT = 1000  # different cells of a sensor by which its texts are judged, far more than these texts
MOST_CODES = 20  # different numbers among labels that are probably classes, at most
LISTED = 40  # names of columns in a message, at most
CATEGORY = "category "  # prefix of the role of a column of texts that is a sensor
LARGEST = float(np.finfo(np.float32).max)
STEPS = 100  # float32 steps between a sensor's least and largest value, below which most information is lost


def coarse(low: NDArray[np.float64], high: NDArray[np.float64]) -> dict[int, float]:
    """Return the sensors with variations around a large value that single precision hardly resolves, with its steps.

    Args:
        low, high: float64 [C], the least and largest value of each sensor.

    Returns:
        Sensor → the distance of two neighbouring numbers in single precision.

    >>> coarse(np.array([2.0**40, 50.0, 7.0]), np.array([2.0**40 + 900, 51.0, 7.0]))
    {0: 131072.0}
    """
    with np.errstate(invalid="ignore"):
        step = np.spacing(np.fmax(np.abs(low), np.abs(high)).astype(np.float32)).astype(np.float64)
        odd = (high > low) & (high - low < STEPS * step)
    return {int(i): float(step[i]) for i in np.flatnonzero(odd)}


def looks_like_time(text: str) -> bool:
    """Return whether a text looks like a date or a time of day, readable or not.

    >>> [looks_like_time(text) for text in ("05.10.2026 06:00", "3/1/26", "1 Mar 2026 6h", "06:00 Uhr", "1.2.3", "M3")]
    [True, True, True, True, False, False]
    """
    return len(text) <= LONGEST_TIME and TIME_LIKE.search(text) is not None


@dataclass(frozen=True)
class TableLayout:
    """The roles of a table's columns."""

    path: Path
    reading: Reading
    header: tuple[str, ...]
    values: tuple[int, ...]
    text: dict[str, int]
    time: int | None
    lenient: bool
    joined: tuple[Joined, ...] = ()

    @classmethod
    def of(
        cls, path: Path, header: Sequence[str], reading: Reading, required: Sequence[str], *, lenient: bool
    ) -> TableLayout:
        """Return the roles of the columns in a table's header; refuse missing and repeated names."""
        names = [name.strip() for name in header]
        if not any(names):
            raise SettingError(f"{place(path, 1)}: empty. A table must begin with a row of its columns' names.")
        often = Counter(names)
        for number, name in enumerate(names, start=1):
            if not name or often[name] > 1:
                problem = f"the name '{name}' is given twice" if name else "has no name, as most columns"
                raise SettingError(
                    f"{place(path, 1)} (the header): column {number}: {problem}. Give each column a unique name."
                    f"{_no_header(names)}",
                    key="names-of-columns",
                )
        more = joined(names, reading.columns.roles(), reading.time_format, reading.until)
        names += [each.name for each in more]
        where = {name: number for number, name in enumerate(names)}
        roles = {role: where[name] for role, name in reading.columns.roles().items() if name in where}
        default = Columns().roles()
        for role, name in reading.columns.roles().items():
            if role not in roles and not lenient and (role in required or name not in ("", default.get(role))):
                raise NoColumnError(path, name, role, names)
        roles = {role: number for role, number in roles.items() if role not in SPANS}  # they are numbers
        categories = tuple(reading.columns.categories or ())
        for name in (*reading.columns.values, *reading.columns.ignore, *categories):
            if name not in where:
                role = "values" if name in reading.columns.values else "ignore"
                role = "categories" if name in categories else role
                known = {*reading.columns.values, *categories}
                raise NoColumnError(path, name, "" if lenient else role, names, reading.delimiter, taken=known)
        roles |= {CATEGORY + name: where[name] for name in categories}
        taken = {*(names[i] for i in roles.values()), *reading.columns.ignore}
        taken |= {names[i] for each in more for i in each.parts}
        others = () if reading.named else tuple(name for name in names if name not in taken)
        sensors = reading.columns.values or others
        spans = tuple(name for role in SPANS if (name := getattr(reading.columns, role)) is not None)
        sensors += () if lenient else tuple(name for name in spans if name not in sensors)
        if not sensors and not categories:
            raise SettingError(
                f"{place(path, 1)} (the header): no sensors, only {', '.join(names)}. Add columns with numbers."
            )
        time = roles.pop("time", None)
        values = tuple(where[name] for name in sensors)
        return cls(path, reading, tuple(names), values, roles, time, lenient, more)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sensors."""
        return tuple(self.header[i] for i in self.values)

    @property
    def texts(self) -> list[int]:
        """The columns of roles, including the time."""
        return [*self.text.values(), *(() if self.time is None else (self.time,))]

    def check_widths(self, block: list[Row]) -> None:
        """Refuse rows with another number of cells than the header, and a repeated header."""
        width = len(self.header) - len(self.joined)
        for line, cells in block:
            if cells and cells[0].strip() == self.header[0] and tuple(map(str.strip, cells)) == self.header[:width]:
                raise SettingError(
                    f"{place(self.path, line)}: the header again. Remove this row.", key="repeated-header"
                )
            if len(cells) != width:
                many = len(cells) > width
                where = place(self.path, line, None if many else self.header[len(cells)])
                hint = "Put cells that contain the delimiter in quotes." if many else "Fill the row up, or remove it."
                if many and not any(cells[width:]):
                    hint = "Remove the delimiter at the row's end, or give the column a name."
                raise SettingError(
                    f"{where}: {len(cells)} cells, but the header has {width}. {hint}", key="length-of-row"
                )

    def numbers(self, block: list[Row]) -> NDArray[np.float64]:
        """Return the values [rows, C], converted by columns or, if this fails, by cells to locate the error."""
        columns = [self.quick([cells[i] for _, cells in block]) for i in self.values]
        values = [column for column in columns if column is not None]
        if len(values) == len(columns):
            return np.stack(values, axis=1) if values else np.empty((len(block), 0))
        return np.array([[self.number(line, cells[i], i) for i in self.values] for line, cells in block])

    def column(self, cells: list[str], first: int, column: int) -> NDArray[np.float64]:
        """Return the numbers [rows] in a column of texts, whose first row is ``first``."""
        values = self.quick(cells)
        return np.array([self.number(*cell, column) for cell in enumerate(cells, first)]) if values is None else values

    def quick(self, cells: Sequence[str]) -> NDArray[np.float64] | None:
        """Return the numbers of all cells; None if one of them must be parsed by :meth:`number`."""
        if self.reading.thousands is not None:
            cells = [self.ungrouped(cell) for cell in cells]
        joined = "\0".join(cells)
        if "_" in joined or (self.reading.decimal == "," and "." in joined):
            return None
        if self.reading.decimal == ",":
            many = len(cells)
            cells = joined.replace(",", ".").split("\0")
            if len(cells) != many:  # a cell contains a NUL
                return None
        try:
            values = np.array([float(cell) if cell else np.nan for cell in cells])
        except ValueError:
            try:
                values = np.array([np.nan if cell.strip().casefold() in MISSING else float(cell) for cell in cells])
            except ValueError:
                return None
        return None if (np.abs(values) > LARGEST).any() else values

    def number(self, line: int, cell: str, column: int) -> float:
        """Return the number in a cell, NaN if it is missing; refuse other texts."""
        text = self.ungrouped(cell.strip())
        value: float | None
        try:
            value = float(text if self.reading.decimal == "." else text.replace(",", ".", 1))
        except ValueError:
            value = np.nan if text.casefold() in MISSING else None
            if value is None and self.reading.whole:  # of a model of booleans, which Parquet and pandas have
                value = TRUTH.get(text.casefold())
        if value is None or "_" in text or (self.reading.decimal == "," and "." in text):
            raise self.not_a_number(line, cell, column)
        if abs(value) > LARGEST:
            raise SettingError(
                f"{place(self.path, line, self.header[column])}: '{cell}' is not a finite number.", key="not-finite"
            )
        return value

    def ungrouped(self, cell: str) -> str:
        """Return a number without the marks between groups of three digits; other texts unchanged."""
        return ungrouped(cell, self.reading.thousands, self.reading.decimal)

    def not_a_number(self, line: int, cell: str, column: int) -> SettingError:
        """Return the error for a cell that holds another text."""
        name = self.header[column]
        decimal = self.reading.decimal
        marks = other_marks(cell.strip(), decimal)
        if self.lenient:
            hint = f"The model was trained on tables with the decimal mark '{decimal}'."
            hint += rewritten(self.path, self.reading.delimiter, decimal) if marks else ""
            if not any(map(str.isdecimal, cell)):
                known = ", ".join(["empty cells, NA", *(self.reading.missing_texts or ())])
                hint = f"Missing values of this model are {known}: empty the cell, or train with data.missing_texts."
        elif marks:
            return MarksError(place(self.path, line, name), cell, column, marks, decimal)
        elif self.time is None and looks_like_time(cell):
            hint = f"If this is the time: {typed('data.columns.time', name)}. {READ}"
        else:
            return OddTextError(place(self.path, line, name), cell, name, column)
        return SettingError(f"{place(self.path, line, name)}: '{cell}' is not a number. {hint}")

    def listed(self, error: OddTextError, rows: Iterable[Row]) -> OddTextError:
        """Return the error for a sensor's text with all such texts of all sensors that are mostly numbers.

        A column of other texts has its own remedy: only those of columns whose different cells are mostly numbers stand
        for missing values.
        """
        cells: dict[int, set[str]] = {column: set() for column in self.values}
        for _, row in rows:
            for column, known in cells.items():
                cell = row[column].strip() if column < len(row) else ""
                if len(known) < DISTINCT or not self._is_number(cell, column):
                    known.add(cell)
        texts = {column: self._texts(column, known) for column, known in cells.items()}
        if not texts.get(error.column):
            return error
        return OddTextError(error.place, error.cell, error.name, error.column, sorted(set().union(*texts.values())))

    def mixed(self, error: MarksError, rows: Iterable[Row]) -> SettingError:
        """Return the error for a number with another decimal mark, of a column in which others have the usual one."""
        decimal = self.reading.decimal
        for line, row in rows:
            cell = row[error.column].strip() if error.column < len(row) else ""
            if decimal in cell and self._is_number(cell, error.column):
                marks = other_marks(error.cell.strip(), decimal, decimals=False)
                return SettingError(
                    f"{error.place}: '{error.cell}' is not a number with the decimal mark '{decimal}', as '{cell}' in "
                    f"row {line} is. {marks + '. Otherwise' if marks else 'One of the marks is wrong:'} write all "
                    "numbers of the table with the same mark."
                )
        return error

    def _texts(self, column: int, cells: set[str]) -> set[str]:
        """Return the texts among a column's different cells if these are few and mostly numbers, otherwise none."""
        texts = {text for text in cells - {""} if not self._is_number(text, column)}
        return texts if len(texts) <= MOST_TEXTS and 2 * len(texts) < len(cells) else set()

    def _is_number(self, cell: str, column: int) -> bool:
        try:
            self.number(0, cell, column)
        except SettingError:
            return False
        return True

    def check_words(self, lines: Sequence[int] | NDArray[np.int64], values: Sequence[str], role: str) -> None:
        """Refuse rows without a text for a role, except in predictions."""
        bad = {text for text in {*values} if not text or (role == "label" and text.casefold() in NO_LABEL)}
        # lives that are not over, and samples that a detector leaves out
        optional = role == "label" and (several(self.reading.ended) or self.reading.asked.detects)
        if self.lenient or role.startswith(CATEGORY) or not bad or optional:
            return
        row = next(row for row, text in enumerate(values) if text in bad)
        problem = f"'{values[row]}' is no label" if values[row] else "empty"
        where = place(self.path, int(lines[row]), self.header[self.text[role]])
        problem = f"{where}: {problem}. Every row needs a {role}."
        if role in ("device", "factory") and row > 0 and not values[row]:
            cells = f"table[{self.header[self.text[role]]!r}]"
            problem += f" If cells are merged, or stand for the rows below, too, in pandas: {cells} = {cells}.ffill()."
        if role != "label" or self.joined:
            raise SettingError(problem, key="empty-cell")
        known = [text for text in {*values} if text not in bad]
        measured = len(numbers_of(known)) == len(known) > MOST_CODES or self.reading.number is not None
        raise UnlabelledError(
            problem, self.path, self.header[self.text[role]], self.reading.dialect(), classes=not measured
        )

    def moments(
        self, lines: Sequence[int] | NDArray[np.int64], cells: Sequence[str], form: Form | None
    ) -> tuple[Form, NDArray[np.float64]]:
        """Return the format of times, which all rows must share, and the possible times of each row."""
        if form == NUMBERS and (values := self.quick(cells)) is not None and np.isfinite(values).all():
            return form, values[:, None]
        try:
            return read_times(cells, form, self.reading.time_format, self.reading.decimal)
        except TimeError as error:
            where = place(self.path, int(lines[error.row]), self.header[self.time or 0])
            hint = "Write times in the format of the training." if self.lenient else READ
            if not cells[error.row].strip() and not self.lenient:  # as in a row of sums below the table
                rows = sorted({*skipped(self.reading.skip), int(lines[error.row])})
                hint = f"If the row is no data, such as a sum: --set 'data.skip={rows}'. {READ}"
            raise SettingError(f"{where}: {error.message.replace(READ, hint)}", key="no-time") from error


class NoColumnError(SettingError):
    """An error: a table lacks a column.

    Args:
        path: the path of the table.
        name: the name of the column.
        role: the use of the column: a role, ``values``, ``ignore`` or ``categories``; "" if a model needs it.
        names: the names of the table's columns.
        delimiter: the delimiter of the training's tables, in predictions.
        candidates: the columns that may have the role, with descriptions.
        labels: the columns that may be the label, with descriptions, if both the device and the label are missing.
        hint: another remedy, which comes first.
        ordered: whether the task is of series without labels, so that devices need parts of the series.
        taken: the columns that are needed under their own names, which this one hence is not.
    """

    key = "no-column"

    def __init__(
        self, path: Path, name: str, role: str, names: Sequence[str], delimiter: str | None = None,
        candidates: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None, ordered: bool = False,
        hint: str = "", taken: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.path = path
        self.name = name
        self.role = role
        self.names = names
        self.hint = hint
        free = [other for other in names if other not in taken]
        same = [other for other in free if other.casefold() == name.casefold()]
        near = nearest(name, free, cutoff=0.8 if name == Columns().roles().get(role) else 0.55)  # the default name
        near = f" Did you mean '{same[0]}'?" if same else near
        advice = f"If it has another name: --set data.columns.{role}=NAME." if role else "The model needs it."
        if candidates:
            advice = f"It may be {_either(candidates, role)}. {advice}"
        if not role and delimiter is not None:
            advice += f" The tables of the training have the delimiter '{delimiter}'."
        if role == "label":
            advice += f" {_unlabelled()}"
        if role == "device":
            blocks = 'kind="blocks"'
            how = (
                "parts of the series, one after the other" if ordered else f"or in blocks of their order: {{{blocks}}}"
            )
            advice = (
                f"{advice.removesuffix('.')}, and likewise label, factory and time. If no column names machines, deal "
                f"the rows to made-up ones: {dealt('data.columns.device=', blocks if ordered else SKEWED)} ({how})."
            )
            if labels is not None:
                named = f"candidates: {_either(labels, 'label')}" if labels else "--set data.columns.label=NAME"
                advice += f" No label either; {named}. {_unlabelled()}"
        if role in ("values", "ignore", "categories"):
            advice = f"Correct [data] columns.{role}." if are_names(names) else ""
        more = f", … ({len(names) - LISTED} more)" if len(names) > LISTED else ""
        super().__init__(
            f"{place(path, 1)} (the header): no column '{name}'.{hint}{near} Available: {', '.join(names[:LISTED])}"
            f"{more}.{advice and ' '}{advice}{_no_header(names)}"
        )


def _unlabelled() -> str:
    """Return the tasks that need no label, as options."""
    offers = [f"--set data.task={kind} {task.offers}" for kind, task in TASKS.items() if task.offers]
    offers.append(
        "--set data.task=regression --set data.remaining=true predicts the remaining rows of recordings to failure"
    )
    return f"Or without labels: {'; '.join(offers)}."


def _either(candidates: Mapping[str, str], role: str) -> str:
    """Return the columns that may have a role, and the option that chooses the first one."""
    names = " or ".join(f"'{name}' ({words})" for name, words in candidates.items())
    return f"{names}: {typed(f'data.columns.{role}', next(iter(candidates)))}"


class OddTextError(SettingError):
    """An error: a sensor's cell holds a text.

    Args:
        place: the file, row and column of the cell.
        cell: the text.
        name: the name of the column.
        column: its index.
        texts: all such texts of a column that otherwise holds numbers.
    """

    key = "odd-text"

    def __init__(self, place: str, cell: str, name: str, column: int, texts: Sequence[str] = ()) -> None:
        self.place = place
        self.cell = cell
        self.name = name
        self.column = column
        self.texts = tuple(texts)
        missing = json.dumps([*texts], ensure_ascii=False)
        hint = f"If its texts denote missing values: --set 'data.missing_texts={missing}'. " if texts else ""
        super().__init__(
            f"{place}: '{cell}' is not a number. {hint}If its texts are categories: [data] columns.categories = "
            f'{{ {toml_key(name)} = "one-hot" }}. If it is no sensor, leave the column out: [data] columns = '
            f"{{ ignore = {toml_list([name])} }}."
        )


class MarksError(SettingError):
    """An error: a number has other marks.

    Args:
        place: the file, row and column of the cell.
        cell: the number.
        column: the index of the column.
        marks: the settings with which it could be read.
        decimal: the decimal mark.
    """

    key = "marks"

    def __init__(self, place: str, cell: str, column: int, marks: str, decimal: str) -> None:
        self.place = place
        self.cell = cell
        self.column = column
        super().__init__(
            f"{place}: '{cell}' is not a number. {marks}. Numbers are read with the decimal mark '{decimal}': write "
            "all numbers with it."
        )


class UnlabelledError(SettingError):
    """An error: rows of a table have no label.

    Args:
        message: the place and the content of the first such cell.
        path: the path of the table.
        column: the column of the labels.
        dialect: the format of the table, as keys of ``[data]``.
        texts: the texts that are no labels, in lower case.
        classes: whether rows without a label may be a class.
    """

    key = "unlabelled"

    def __init__(
        self, message: str, path: Path, column: str, dialect: Mapping[str, Any], texts: Collection[str] = NO_LABEL, *,
        classes: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.path = path
        self.column = column
        self.dialect = dialect
        self.texts = sorted(texts)
        self.classes = classes

    def within(self, folder: str) -> UnlabelledError:
        """Return the error with the table's folder in its message."""
        message = f"{folder}{self}"
        return UnlabelledError(message, self.path, self.column, self.dialect, self.texts, classes=self.classes)


def _no_header(names: Sequence[str]) -> str:
    """Return a hint if a header contains values or a title instead of names."""
    if names[0].startswith("#") or 2 * sum(map(bool, names)) < len(names) or len(names) == 1:
        return " If row 1 is a title or a comment, remove the rows above the header."
    mark = next((mark for mark in ";|\t" if any(mark in name for name in names)), None)
    if mark is not None:
        return f" If '{WORDS.get(mark, mark)}' is the delimiter: [data] delimiter = \"{WORDS.get(mark, mark)}\"."
    if are_names(names):
        return ""
    return f' If row 1 holds values, name the {len(names)} columns: [data] header = ["…", …].'


def are_names(row: Sequence[str]) -> bool:
    """Return whether less than half of a row's cells are numbers, so that they may be names of columns."""
    return 2 * len(numbers_of(row)) < len(row)


def numbers_of(names: Sequence[str]) -> list[float]:
    """Return the numbers among names of columns.

    >>> numbers_of(["1,5", "2", "3 bar"])
    [1.5, 2.0]
    """
    return [float(name.replace(",", ".")) for name in names if NUMBER.fullmatch(name)]
