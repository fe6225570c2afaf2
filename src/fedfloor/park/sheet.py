"""Reading a table (CSV): named columns, numbers as numbers, and errors that say in which row and column."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fedfloor.errors import SettingError, nearest
from fedfloor.park.dataset import Indices, Times, Values
from fedfloor.park.reading import Columns, Reading

DELIMITERS = ",;\t|"
MISSING = {"", "na", "n/a", "nan", "null", "none", "-", "?"}
BLOCK = 20_000  # rows turned into numbers at once
LARGEST = float(np.finfo(np.float32).max)


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
    """

    path: Path
    columns: tuple[str, ...]
    x: Values
    line: Indices
    text: dict[str, list[str]]
    time: Times | None
    name: str = ""
    cell: str = "column '{}'"

    @property
    def title(self) -> str:
        """The file's name in messages."""
        return self.name or self.path.name

    def place(self, row: int, column: str) -> str:
        """Return the place of a cell in words."""
        return f"{self.title}, row {self.line[row]}, {self.cell.format(column)}"


def place(path: Path, line: int, column: str | None = None) -> str:
    """Return a place in a table in words.

    >>> place(Path("a/b.csv"), 3, "time")
    "b.csv, row 3, column 'time'"
    """
    return f"{path.name}, row {line}" + ("" if column is None else f", column '{column}'")


def read(path: Path, reading: Reading, required: Sequence[str], *, lenient: bool = False) -> Sheet:
    """Read a table; gzip is unpacked, and the delimiter is the one of ``, ; tab |`` that the header has most of.

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
    with _rows(path) as rows:
        _, header = next(rows, (1, []))
        found = _Layout.of(path, header, reading, required, lenient=lenient)
        blocks, text, times, lines = [], {role: list[str]() for role in found.text}, list[float](), list[int]()
        for block in _blocks(rows):
            lines += [line for line, _ in block]
            for line, cells in block:
                if len(cells) != len(header):
                    raise SettingError(f"{place(path, line)}: {len(cells)} cells, but the header has {len(header)}.")
            blocks.append(np.array([found.numbers(line, cells) for line, cells in block], np.float64))
            for role, where in found.text.items():
                text[role] += [found.word(line, cells, role, where) for line, cells in block]
            if found.time is not None:
                times += [found.moment(line, cells) for line, cells in block]
    if not lines:
        raise SettingError(f"{path.name}: a header, but no rows below it.")
    x = np.concatenate(blocks).astype(np.float32)
    return Sheet(path, found.names, x, np.array(lines, np.int64), text, np.array(times) if times else None)


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

    @classmethod
    def of(
        cls, path: Path, header: Sequence[str], reading: Reading, required: Sequence[str], *, lenient: bool
    ) -> _Layout:
        names = [name.strip() for name in header]
        if not any(names):
            raise SettingError(f"{path.name}: empty. A table begins with a row that names its columns.")
        for number, name in enumerate(names, start=1):
            if not name or names.count(name) > 1:
                what = f"the name '{name}' is given twice" if name else "has no name"
                raise SettingError(f"{place(path, 1)} (the header): column {number}: {what}.")
        roles = {role: names.index(name) for role, name in reading.columns.roles().items() if name in names}
        default = Columns().roles()
        for role, name in reading.columns.roles().items():
            if role not in roles and not lenient and (role in required or name != default[role]):
                raise _no_column(path, name, role, names)
        for name in (*reading.columns.values, *reading.columns.ignore):
            if name not in names:
                role = "values" if name in reading.columns.values else "ignore"
                raise _no_column(path, name, "" if lenient else role, names)
        others = [
            name for i, name in enumerate(names) if i not in roles.values() and name not in reading.columns.ignore
        ]
        sensors = reading.columns.values or tuple(others)
        if not sensors:
            raise SettingError(f"{place(path, 1)} (the header): no sensors, only {', '.join(names)}.")
        time = roles.pop("time", None)
        values = tuple(names.index(name) for name in sensors)
        return cls(path, reading.columns, tuple(names), values, roles, time, reading.decimal, lenient)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.header[i] for i in self.values)

    def numbers(self, line: int, cells: list[str]) -> list[float]:
        return [self.number(line, cells[i], i) for i in self.values]

    def number(self, line: int, cell: str, column: int) -> float:
        text = cell.strip()
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

    def not_a_number(self, line: int, cell: str, column: int) -> SettingError:
        mark, name = "." if self.decimal == "," else ",", self.header[column]
        if self.lenient:
            hint = f"The model was trained on tables with the decimal mark '{self.decimal}'."
        elif cell.strip().replace(mark, "", 1).lstrip("+-").isdigit() and mark in cell:
            hint = f"If '{mark}' is the decimal mark, set [data] decimal = \"{mark}\"."
        else:
            hint = f'If this is no sensor, leave the column out: [data] columns = {{ ignore = ["{name}"] }}.'
        return SettingError(f"{place(self.path, line, name)}: '{cell}' is not a number. {hint}")

    def word(self, line: int, cells: list[str], role: str, column: int) -> str:
        text = cells[column].strip()
        if self.lenient:
            return text
        if not text or (role == "label" and text.casefold() in MISSING - {"none", "-", "?"}):
            raise SettingError(f"{place(self.path, line, self.header[column])}: empty. Every row needs a {role}.")
        return text

    def moment(self, line: int, cells: list[str]) -> float:
        column = self.time or 0
        text = cells[column].strip()
        try:
            value = float(text)
        except ValueError:
            try:
                when = datetime.fromisoformat(text)
            except ValueError:
                raise SettingError(
                    f"{place(self.path, line, self.header[column])}: '{text}' is no time. Write numbers, or dates and "
                    "times such as 2026-03-01T06:30:00."
                ) from None
            value = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        if not np.isfinite(value):
            raise SettingError(f"{place(self.path, line, self.header[column])}: '{text}' is no time.")
        return value


def _no_column(path: Path, name: str, role: str, names: Sequence[str]) -> SettingError:
    near = nearest(name, names)
    advice = f"Say what it is called with [data] columns = {{ {role} = … }}." if role else "The model needs it."
    return SettingError(
        f"{place(path, 1)} (the header): no column '{name}'.{near} There are: {', '.join(names)}. {advice}"
    )


@contextmanager
def _rows(path: Path) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """Open a table and give its rows that are not empty: (line number, cells)."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
            yield _parsed(text)
    except UnicodeDecodeError as error:
        raise SettingError(f"{path.name}: not UTF-8 text ({error.reason}). Save the table as CSV in UTF-8.") from error
    except (csv.Error, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise SettingError(f"{path.name}: not a whole table ({error}).") from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise SettingError(f"{path}: cannot be read ({reason}). Check the path and its permissions.") from error


def _parsed(text: io.TextIOWrapper) -> Iterator[tuple[int, list[str]]]:
    head = text.readline()
    delimiter = max(DELIMITERS, key=head.count)
    for cells in csv.reader([head], delimiter=delimiter, strict=True):
        yield 1, cells
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    line = 2
    for cells in reader:
        if cells:
            yield line, cells
        line = reader.line_num + 2  # where the next row begins: cells may hold line ends


def _blocks(rows: Iterator[tuple[int, list[str]]]) -> Iterator[list[tuple[int, list[str]]]]:
    block = []
    for row in rows:
        block.append(row)
        if len(block) == BLOCK:
            yield block
            block = []
    if block:
        yield block
