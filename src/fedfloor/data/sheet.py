"""Reading a table (CSV): named columns, numbers as numbers, and errors that say in which row and column."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Indices, Times, Values
from fedfloor.data.lines import Row, decoded, in_blocks, opened, place
from fedfloor.data.reading import Columns, Reading
from fedfloor.data.times import NUMBERS, READ, CellError, ChoiceError, Clock, Form, day, decide, shared
from fedfloor.data.times import read as read_times
from fedfloor.errors import SettingError, nearest

log = logging.getLogger(__name__)

MISSING = {"", "na", "n/a", "nan", "null", "none", "-", "?"}
NO_LABEL = MISSING - {"none", "-", "?"}
LARGEST = float(np.finfo(np.float32).max)
TIME_LIKE = re.compile(
    r"(?<![\d.])(\d{4}([./-])\d{1,2}\2\d{1,2}|\d{1,2}([./-])\d{1,2}\3(\d{4}|\d{2}))(?![\d.])|\b\d{1,2}:\d{2}\b"
    r"|\d.*\b(jan|feb|mar|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])[a-z]*\b.*\d",
    re.IGNORECASE,
)
MARKS = {"'": "'’", " ": " \xa0\u202f"}  # other signs for a mark between thousands
CATEGORY = "category "  # before the name of a column of texts that is a sensor, as a role
STEPS = 100  # a sensor whose values lie within fewer steps of a float32 has lost most of what it says


@dataclass(frozen=True, eq=False)
class Sheet:
    """A table's content, or that of arrays.

    Args:
        path: its file.
        columns: C names of the sensors.
        x: float32 [T, C], NaN where a value is missing; arrays may be ready-made samples, uint8 or float32 [T, …].
        line: int64 [T], the number of each row as editors and spreadsheets count them: the header is row 1.
        text: what stands in the columns for device, factory, label and id, by role, as far as the table has them.
        time: float64 [T] (seconds since 1970 where times are written as dates), or None.
        name: of the file in messages; the last part of its path where it is empty.
        cell: how a column is named in messages.
        clock: the times before :func:`settled` has them; None after, or where there are none.
        order: in which order the dates' numbers stand, where that was decided by :func:`settled`.
    """

    path: Path
    columns: tuple[str, ...]
    x: Values
    line: Indices
    text: dict[str, list[str]]
    time: Times | None
    name: str = ""
    cell: str = "column '{}'"
    clock: Clock | None = None
    order: str | None = None

    @property
    def title(self) -> str:
        """The file's name in messages."""
        return self.name or self.path.name

    def place(self, row: int, column: str) -> str:
        """Return the place of a cell in words."""
        return f"{self.title}, row {self.line[row]}, {self.cell.format(column)}"


def looks_like_time(text: str) -> bool:
    """Return whether a text has the shape of a date or a time of day, readable or not.

    >>> [looks_like_time(text) for text in ("05.10.2026 06:00", "3/1/26", "1 Mar 2026 6h", "06:00 Uhr", "1.2.3", "M3")]
    [True, True, True, True, False, False]
    """
    return TIME_LIKE.search(text) is not None


def read(path: Path, reading: Reading, required: Sequence[str], *, lenient: bool = False) -> Sheet:
    """Read a table by itself: :func:`scan` and :func:`settled`."""
    (sheet,) = settled([scan(path, reading, required, lenient=lenient)], reading)
    return sheet


def settled(sheets: Sequence[Sheet], reading: Reading) -> list[Sheet]:
    """Return tables with their times, for which all of them decide together how dates are to be read.

    Raises:
        SettingError: they are written in several ways, or can be read in several; see :mod:`fedfloor.data.times`.
    """
    clocks = [sheet.clock for sheet in sheets if sheet.clock is not None]
    if not clocks or len(clocks) < len(sheets):
        return list(sheets)  # whoever joins them refuses tables with and without times
    form, column = shared([clock.form for clock in clocks]), reading.columns.time
    if not isinstance(form, Form):
        raise SettingError(
            f"{sheets[form].place(0, column)}: times are {clocks[form].form}, but {sheets[0].title} has "
            f"{clocks[0].form}. Write all times in one way."
        )
    ends = np.cumsum([len(clock.values) for clock in clocks])
    try:
        time, order = decide(np.concatenate([clock.values for clock in clocks]), form, reading.time_format)
    except ChoiceError as error:
        number = int(np.searchsorted(ends, error.row, "right"))
        row = error.row - int(ends[number]) + len(clocks[number].values)
        raise SettingError(f"{sheets[number].place(row, column)}: {error.message}") from error
    if order and reading.time_format is None:
        where = f"{sheets[0].title}, column '{column}'"
        log.info("%s: dates are read %s: the first one is %s.", where, order, day(float(time[0])))
    parts = np.split(time, ends[:-1])
    return [replace(sheet, time=part, clock=None, order=order) for sheet, part in zip(sheets, parts, strict=True)]


def scan(path: Path, reading: Reading, required: Sequence[str], *, lenient: bool = False) -> Sheet:
    """Read a table but for its times; see :func:`fedfloor.data.lines.opened` for how it may be packed and delimited.

    Where ``[data] header`` names the columns the first row holds values; for a model, unless it holds those names.

    Empty cells, ``NA``, ``n/a``, ``NaN``, ``null``, ``none``, ``-`` and ``?`` are missing values.

    Args:
        path: the file.
        reading: the names of the columns and the decimal mark.
        required: roles (device, factory, time, label, id) that must be there; the others may.
        lenient: for a model that is there already: no role need be there or filled in, and errors do not advise to
            change ``[data]``.

    Raises:
        SettingError: not a table, a column is missing, or a cell cannot be what it must be; file, row and column named.
    """

    def in_encoding(encoding: str | None) -> Sheet:
        return _scan(path, replace(reading, encoding=encoding), required, lenient=lenient)

    return decoded(path, reading.encoding, in_encoding)


def _scan(path: Path, reading: Reading, required: Sequence[str], *, lenient: bool) -> Sheet:
    same: dict[str, str] = {}  # one object for equal texts: names of devices and classes are in every row
    low, high = np.array(np.inf), np.array(-np.inf)
    with opened(path, reading.encoding) as rows:
        first = next(rows, (1, []))
        header: Sequence[str] = first[1]
        if reading.header is not None and not (lenient and {*reading.columns.values} <= {*map(str.strip, header)}):
            header, rows = reading.header, chain([first] if header else [], rows)
        found = _Layout.of(path, header, reading, required, lenient=lenient)
        blocks, lines, text = [], [], {role: list[str]() for role in found.text}
        times: list[NDArray[np.float64]] = []
        form: Form | None = None
        for block in in_blocks(rows):
            found.check_widths(block)
            lines.append(np.array([line for line, _ in block], np.int64))
            x = found.numbers(block)
            low, high = np.fmin(low, np.fmin.reduce(x)), np.fmax(high, np.fmax.reduce(x))
            blocks.append(x.astype(np.float32))
            for role in found.text:
                words = found.words(block, role)
                text[role] += words if role == "id" else [same.setdefault(word, word) for word in words]
            if found.time is not None:
                form, values = found.moments(block, form)
                times.append(values)
    if not lines:
        raise SettingError(f"{path.name}: a header, but no rows below it.")
    _say_coarse(path, found.names, low, high)
    clock = None if form is None else Clock(form, np.concatenate(times))
    return Sheet(path, found.names, np.concatenate(blocks), np.concatenate(lines), text, None, clock=clock)


def _say_coarse(path: Path, columns: Sequence[str], low: NDArray[np.float64], high: NDArray[np.float64]) -> None:
    """Say which sensors vary so little around a large value that 24 bits hardly tell their values apart."""
    step = np.spacing(np.fmax(np.abs(low), np.abs(high)).astype(np.float32)).astype(np.float64)
    for i in np.flatnonzero((high > low) & (high - low < STEPS * step)).tolist():
        log.warning(
            "%s, column '%s': values from %r to %r; single precision tells them apart in steps of %.2g. Subtract a "
            "constant from this column to keep the rest.",
            path.name, columns[i], float(low[i]), float(high[i]), step[i],
        )  # fmt: skip


@dataclass(frozen=True)
class _Layout:
    """Which column of a table is what."""

    path: Path
    columns: Columns
    header: tuple[str, ...]
    values: tuple[int, ...]
    text: dict[str, int]
    time: int | None
    decimal: str
    lenient: bool
    time_format: str | None = None
    thousands: str | None = None

    @classmethod
    def of(
        cls, path: Path, header: Sequence[str], reading: Reading, required: Sequence[str], *, lenient: bool
    ) -> _Layout:
        names = [name.strip() for name in header]
        if not any(names):
            raise SettingError(f"{place(path, 1)}: empty. A table begins with a row that names its columns.")
        often = Counter(names)
        for number, name in enumerate(names, start=1):
            if not name or often[name] > 1:
                what = f"the name '{name}' is given twice" if name else "has no name"
                raise SettingError(
                    f"{place(path, 1)} (the header): column {number}: {what}. Give each column a name of its own."
                    f"{_values_on_top(names)}"
                )
        where = {name: number for number, name in enumerate(names)}
        roles = {role: where[name] for role, name in reading.columns.roles().items() if name in where}
        default = Columns().roles()
        for role, name in reading.columns.roles().items():
            if role not in roles and not lenient and (role in required or name not in ("", default.get(role))):
                raise _no_column(path, name, role, names)
        categories = tuple(reading.columns.categories or ())
        for name in (*reading.columns.values, *reading.columns.ignore, *categories):
            if name not in where:
                role = "values" if name in reading.columns.values else "ignore"
                role = "categories" if name in categories else role
                raise _no_column(path, name, "" if lenient else role, names)
        roles |= {CATEGORY + name: where[name] for name in categories}
        taken = {*(names[i] for i in roles.values()), *reading.columns.ignore}
        sensors = reading.columns.values or tuple(name for name in names if name not in taken)
        if not sensors and not categories:
            raise SettingError(f"{place(path, 1)} (the header): no sensors, only {', '.join(names)}.")
        time = roles.pop("time", None)
        values = tuple(where[name] for name in sensors)
        return cls(
            path, reading.columns, tuple(names), values, roles, time, reading.decimal, lenient, reading.time_format,
            reading.thousands,
        )  # fmt: skip

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.header[i] for i in self.values)

    def check_widths(self, block: list[Row]) -> None:
        width = len(self.header)
        for line, cells in block:
            if len(cells) != width:
                many = len(cells) > width
                where = place(self.path, line, None if many else self.header[len(cells)])
                hint = "Put cells that hold the delimiter in quotes." if many else "Fill the row up, or remove it."
                raise SettingError(f"{where}: {len(cells)} cells, but the header has {width}. {hint}")

    def numbers(self, block: list[Row]) -> NDArray[np.float64]:
        """Return [rows, C]: whole columns at a time, and only where that fails cell by cell, for the error."""
        columns = [self.quick([cells[i] for _, cells in block]) for i in self.values]
        found = [column for column in columns if column is not None]
        if len(found) == len(columns):
            return np.stack(found, axis=1) if found else np.empty((len(block), 0))
        return np.array([[self.number(line, cells[i], i) for i in self.values] for line, cells in block])

    def quick(self, cells: list[str]) -> NDArray[np.float64] | None:
        """Return what :meth:`number` makes of cells, or None where one of them must be looked at by itself."""
        if self.thousands is not None:
            cells = [self.ungrouped(cell) for cell in cells]
        joined = "\0".join(cells)
        if "_" in joined or (self.decimal == "," and "." in joined):
            return None
        if self.decimal == ",":
            many, cells = len(cells), joined.replace(",", ".").split("\0")
            if len(cells) != many:  # one of them holds a NUL
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
        text = self.ungrouped(cell.strip())
        value: float | None
        try:
            value = float(text if self.decimal == "." else text.replace(",", ".", 1))
        except ValueError:
            value = np.nan if text.casefold() in MISSING else None
        if value is None or "_" in text or (self.decimal == "," and "." in text):
            raise self.not_a_number(line, cell, column)
        if abs(value) > LARGEST:
            raise SettingError(f"{place(self.path, line, self.header[column])}: '{cell}' is not a finite number.")
        return value

    def ungrouped(self, cell: str) -> str:
        """Return a number without the marks between its groups of three digits; any other text as it is."""
        marks = MARKS.get(self.thousands or "", self.thousands or "")
        if not any(mark in cell for mark in marks):
            return cell
        whole, mark, fraction = cell.strip().partition(self.decimal)
        fits = re.fullmatch(rf"[+-]?\d{{1,3}}([{re.escape(marks)}])\d{{3}}(\1\d{{3}})*", whole, re.ASCII)
        return re.sub(rf"[{re.escape(marks)}]", "", whole) + mark + fraction if fits else cell

    def not_a_number(self, line: int, cell: str, column: int) -> SettingError:
        mark, name = "." if self.decimal == "," else ",", self.header[column]
        if self.lenient:
            hint = f"The model was trained on tables with the decimal mark '{self.decimal}'."
        elif cell.strip().replace(mark, "", 1).lstrip("+-").isdigit() and mark in cell:
            hint = f"If '{mark}' is the decimal mark: --set data.decimal={mark}"
            hint += f"; if it stands between thousands: --set data.thousands={mark}"
        elif self.time is None and looks_like_time(cell):
            hint = f"If this is the time: --set data.columns.time={name}. {READ}"
        else:
            hint = (
                f'If its texts are values: [data] columns.categories = {{ {name} = "one-hot" }}. If it is no '
                f'sensor, leave the column out: [data] columns = {{ ignore = ["{name}"] }}.'
            )
        return SettingError(f"{place(self.path, line, name)}: '{cell}' is not a number. {hint}")

    def words(self, block: list[Row], role: str) -> list[str]:
        column = self.text[role]
        found = [cells[column].strip() for _, cells in block]
        if self.lenient or role.startswith(CATEGORY):
            return found
        for (line, _), text in zip(block, found, strict=True):
            if not text or (role == "label" and text.casefold() in NO_LABEL):
                what = f"'{text}' is no label" if text else "empty"
                raise SettingError(f"{place(self.path, line, self.header[column])}: {what}. Every row needs a {role}.")
        return found

    def moments(self, block: list[Row], form: Form | None) -> tuple[Form, NDArray[np.float64]]:
        """Return how times are written and what each row's may be; all must be written in one way."""
        column = self.time or 0
        if form == NUMBERS:
            values = self.quick([cells[column] for _, cells in block])
            if values is not None and np.isfinite(values).all():
                return form, values[:, None]
        try:
            return read_times([cells[column].strip() for _, cells in block], form, self.time_format, self.decimal)
        except CellError as error:
            where = place(self.path, block[error.row][0], self.header[column])
            hint = "Write times as the tables of the training have them." if self.lenient else READ
            raise SettingError(f"{where}: {error.message.replace(READ, hint)}") from error


def _no_column(path: Path, name: str, role: str, names: Sequence[str]) -> SettingError:
    same = [other for other in names if other.casefold() == name.casefold()]
    near = f" Did you mean '{same[0]}'?" if same else nearest(name, names)
    advice = f"Say what it is called: --set data.columns.{role}=NAME." if role else "The model needs it."
    if role == "label":
        advice += " Without labels nothing can be trained yet: anomaly detection is planned."
    if role == "device":
        advice = (
            advice.removesuffix(".") + ", and likewise label, factory and time. Or if no column names machines, deal "
        )
        advice += "the rows to made-up ones: --set data.columns.device= --set park.devices=10 --set "
        advice += "'data.partition={kind=\"dirichlet\",alpha=1.0}'."
    if role in ("values", "ignore", "categories"):
        advice = f"Mend [data] columns.{role}."
    return SettingError(
        f"{place(path, 1)} (the header): no column '{name}'.{near} There are: {', '.join(names)}. {advice}"
        f"{_values_on_top(names)}"
    )


def _values_on_top(names: Sequence[str]) -> str:
    """Return a hint where a header holds values rather than names."""
    values = [name for name in names if re.fullmatch(r"[+-]?\d+([.,]\d*)?(e[+-]?\d+)?", name, re.IGNORECASE)]
    if 2 * len(values) < len(names):
        return ""
    return f' If row 1 holds values, name the {len(names)} columns: [data] header = ["…", …].'
