"""Reading of a table with named columns, as numbers and texts, with errors that name row and column."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Indices, Times, Values
from fedfloor.data.files import columnar
from fedfloor.data.files.joined import Joined, joined
from fedfloor.data.files.rows import CALLED, Row, decoded, in_blocks, is_workbook, opened, opened_workbook, place
from fedfloor.data.files.times import NUMBERS, READ, Form, TimeColumn, TimeError, day, decide, shared
from fedfloor.data.files.times import read as read_times
from fedfloor.data.reading import Columns, Reading, skipped
from fedfloor.errors import SettingError, nearest
from fedfloor.tasks.kinds import TASKS

log = logging.getLogger(__name__)

MISSING = {"", "na", "n/a", "nan", "null", "none", "-", "?"}
NO_LABEL = MISSING - {"none", "-", "?"}
TIME_LIKE = re.compile(
    r"(?<![\d.])(\d{4}([./-])\d{1,2}\2\d{1,2}|\d{1,2}([./-])\d{1,2}\3(\d{4}|\d{2}))(?![\d.])|\b\d{1,2}:\d{2}\b"
    r"|\d.*\b(jan|feb|mar|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])[a-z]*\b.*\d",
    re.IGNORECASE,
)
NUMBER = re.compile(r"[+-]?\d+([.,]\d*)?(e[+-]?\d+)?", re.IGNORECASE)
WORDS = {mark: word for word, mark in CALLED.items()}
MARKS = {"'": "'’", " ": " \xa0\u202f"}  # equivalent characters of a mark between thousands
LISTED = 40  # names of columns in a message, at most
LARGE = 1 << 26  # bytes of blocks that are joined early
CATEGORY = "category "  # prefix of the role of a column of texts that is a sensor
STEPS = 100  # float32 steps between a sensor's least and largest value, below which most information is lost


@dataclass(frozen=True, eq=False)
class Sheet:
    """The content of a table, or of arrays.

    Args:
        path: the table's file.
        columns: C names of the sensors.
        x: float32 [T, C], NaN where a value is missing; arrays may be ready-made samples, uint8 or float32 [T, …].
        line: int64 [T], the number of each row in an editor or spreadsheet, where the header is row 1.
        text: role (device, factory, label, id) → the cells of its column, if the table has it.
        time: float64 [T] (seconds since 1970 where times are written as dates), or None.
        name: the name of the file in messages; if empty, the last part of its path.
        cell: the term for a column in messages.
        clock: the times until :func:`settled` converts them; None afterwards, or without times.
        order: the order of day, month and year in dates, determined by :func:`settled`.
        dated: whether times are dates instead of numbers.
    """

    path: Path
    columns: tuple[str, ...]
    x: Values
    line: Indices
    text: dict[str, list[str]]
    time: Times | None
    name: str = ""
    cell: str = "column '{}'"
    clock: TimeColumn | None = None
    order: str | None = None
    dated: bool = False

    @property
    def title(self) -> str:
        """The name of the file in messages."""
        return self.name or self.path.name

    def place(self, row: int, column: str) -> str:
        """Return the place of a cell in messages."""
        return f"{self.title}, row {self.line[row]}, {self.cell.format(column)}"


def looks_like_time(text: str) -> bool:
    """Return whether a text looks like a date or a time of day, readable or not.

    >>> [looks_like_time(text) for text in ("05.10.2026 06:00", "3/1/26", "1 Mar 2026 6h", "06:00 Uhr", "1.2.3", "M3")]
    [True, True, True, True, False, False]
    """
    return TIME_LIKE.search(text) is not None


def read(path: Path, reading: Reading, required: Sequence[str], *, lenient: bool = False) -> Sheet:
    """Return a single table, read by :func:`scan` and :func:`settled`."""
    (sheet,) = settled([scan(path, reading, required, lenient=lenient)], reading)
    return sheet


def settled(sheets: Sequence[Sheet], reading: Reading) -> list[Sheet]:
    """Return tables with times converted; the format and the order of day and month are determined by all tables."""
    clocks = [sheet.clock for sheet in sheets if sheet.clock is not None]
    if not clocks or len(clocks) < len(sheets):
        return list(sheets)  # a mixture of tables with and without times is refused later
    form, column = shared([clock.form for clock in clocks]), reading.columns.time
    if not isinstance(form, Form):
        raise SettingError(
            f"{sheets[form].place(0, column)}: times are {clocks[form].form}, but {sheets[0].title} has "
            f"{clocks[0].form}. Write all times in the same format."
        )
    ends = np.cumsum([len(clock.values) for clock in clocks])
    try:
        time, order = decide(np.concatenate([clock.values for clock in clocks]), form, reading.time_format)
    except TimeError as error:
        number = int(np.searchsorted(ends, error.row, "right"))
        row = error.row - int(ends[number]) + len(clocks[number].values)
        raise SettingError(f"{sheets[number].place(row, column)}: {error.message}") from error
    if order and reading.time_format is None:
        where = f"{sheets[0].title}, column '{column}'"
        log.info("%s: dates are read %s: the first one is %s.", where, order, day(float(time[0])))
    return [
        replace(sheet, time=part, clock=None, order=order, dated=form != NUMBERS)
        for sheet, part in zip(sheets, np.split(time, ends[:-1]), strict=True)
    ]


def scan(path: Path, reading: Reading, required: Sequence[str], *, lenient: bool = False) -> Sheet:
    """Return a table without its times; see :func:`~fedfloor.data.files.rows.opened` for compression and delimiters.

    With ``[data] header``, the first row holds values; for predictions it may also be the header.

    Empty cells, ``NA``, ``n/a``, ``NaN``, ``null``, ``none``, ``-`` and ``?`` are missing values.

    Raises:
        SettingError: the file is no table, a column is missing, or a cell has a wrong type; the message names file, row
            and column.
    """
    return decoded(
        path, reading.encoding,
        lambda encoding: _scan(path, replace(reading, encoding=encoding), required, lenient=lenient),
    )  # fmt: skip


def _scan(path: Path, reading: Reading, required: Sequence[str], *, lenient: bool) -> Sheet:
    layout_of = partial(_Layout.of, path, reading=reading, required=required, lenient=lenient)
    if columnar.is_parquet(path):
        layout = layout_of(columnar.parquet_names(path))
        if layout.joined:
            return _by_rows(layout, columnar.parquet_rows(path))
        return _collected(layout, columnar.parquet_batches(path, layout.wanted, layout.column), first=1)
    with _rows(path, reading.dialect() | {"decimal": reading.decimal}) as rows:
        line, first = next(rows, (1, []))
        named = lenient and {*reading.columns.values} <= {*map(str.strip, first)}
        named = named or reading.header is None
        if not named:
            check_header(path, first, reading.header)
        layout = layout_of(named_columns(first) if named else reading.header or ())
        plain = not is_workbook(path) and reading.encoding is None and reading.thousands is None
        if plain and not layout.joined and not reading.skip and line == 1 and path.stat().st_size >= columnar.QUICK:
            try:
                batches = columnar.csv_batches(path, layout.wanted, header=named)
                return _collected(layout, batches, first=1 + named)
            except columnar.UnfitError:
                pass  # reading by rows locates the mistake, if any
        return _by_rows(layout, rows if named or not first else chain([(line, first)], rows))


def _by_rows(layout: _Layout, rows: Iterator[Row]) -> Sheet:
    """Return a table read row by row."""
    gathered = _Gathered(layout)
    for block in in_blocks(rows):
        layout.check_widths(block)
        if layout.joined:
            block = [(line, [*cells, *(each.cell(cells) for each in layout.joined)]) for line, cells in block]
        time = None if layout.time is None else layout.moments(block, gathered.form)
        words = {role: layout.words(block, role) for role in layout.text}
        gathered.add(np.array([line for line, _ in block], np.int64), layout.numbers(block), words, time)
    return gathered.sheet()


@dataclass(frozen=True)
class Excerpt:
    """The first rows of a table as texts.

    Args:
        names: the names of the columns, from the first row or ``[data] header``, followed by joined columns.
        rows: the other rows, of any length.
        first: the unchanged first row of the table.
    """

    names: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    first: list[str] = field(default_factory=list)

    def cells(self, name: str) -> list[str]:
        """Return the cells of a column, for rows that are long enough."""
        place = self.names.index(name)
        return [row[place] for row in self.rows]

    def whole(self) -> Excerpt:
        """Return the rows that have the header's length and do not repeat it."""
        return replace(self, rows=[row for row in self.rows if len(row) == len(self.names) and row != self.names])

    def top(self, many: int) -> Excerpt:
        """Return the first rows."""
        return replace(self, rows=self.rows[:many])


def head(path: Path, many: int, given: Mapping[str, Any]) -> Excerpt:
    """Return the first rows of a table."""

    def texts_in(encoding: str | None) -> list[list[str]]:
        with _rows(path, {**given, "encoding": encoding}) as rows:
            texts = [[cell.strip() for cell in cells] for _, cells in islice(rows, many)]
        return [named_columns(texts[0]), *texts[1:]] if texts and not given.get("header") else texts

    if columnar.is_parquet(path):
        rows = [columnar.parquet_names(path), *(cells for _, cells in islice(columnar.parquet_rows(path), many))]
    else:
        rows = decoded(path, given.get("encoding"), texts_in)
    first = rows[0] if rows else []
    names, body = (list(given["header"]), rows) if given.get("header") else (first, rows[1:])
    roles = {role: name for role, name in given.get("columns", {}).items() if isinstance(name, str)}
    added = joined(names, roles)
    body = [row + [each.cell(row) for each in added if len(row) >= len(names)] for row in body]
    return Excerpt(names + [each.name for each in added], body, first)


def named_columns(header: Sequence[str]) -> list[str]:
    """Return the names of columns, with ``column N`` for missing names, unless most are missing, as below a title.

    >>> named_columns(["", "speed ", "load"]), named_columns(["Report", "", ""])
    (['column 1', 'speed', 'load'], ['Report', '', ''])
    """
    names = [name.strip() for name in header]
    titled = 2 * sum(map(bool, names)) <= len(names)
    return names if titled else [name or f"column {number}" for number, name in enumerate(names, start=1)]


def check_header(path: Path, first: Sequence[str], header: Sequence[str] | None) -> None:
    """Refuse a ``[data] header`` that repeats the table's first row, or has another number of names."""
    if header and [name.strip() for name in first] == [*header]:
        raise SettingError(
            f"{place(path, 1)}: the same names as in [data] header, which is for tables without a row of names. Leave "
            "it out."
        )
    if header and first and (len(first) < len(header) or any(map(str.strip, first[len(header) :]))):
        raise SettingError(
            f"{place(path, 1)}: {len(first)} cells, but [data] header names {len(header)} columns. Give a name for "
            "each column."
        )


def _rows(path: Path, given: Mapping[str, Any]) -> AbstractContextManager[Iterator[Row]]:
    """Open a table to read row by row: CSV, or a sheet of a workbook."""
    decimal, skip = given.get("decimal", "."), skipped(given.get("skip"))
    if is_workbook(path):
        return opened_workbook(path, given.get("sheet"), decimal, skip)
    return opened(path, given.get("encoding"), decimal, given.get("delimiter"), skip)


def _collected(layout: _Layout, batches: Iterable[columnar.ColumnBatch], first: int) -> Sheet:
    """Return a table read by columns, with rows numbered from ``first``."""
    gathered = _Gathered(layout)
    for batch in batches:
        lines = np.arange(first, first + len(batch), dtype=np.int64)
        first += len(batch)
        time = batch.time
        if isinstance(time, list):
            time = layout.moments_of(lines, time, gathered.form)
        if time is not None and gathered.form not in (None, time[0]):
            raise columnar.UnfitError("times in two forms")
        for role in layout.text:
            layout.check_words(lines, batch.text[role], role)
        gathered.add(lines, batch.x, batch.text, time)
    return gathered.sheet()


class _Gathered:
    """The part of a table read so far."""

    def __init__(self, layout: _Layout) -> None:
        self.layout = layout
        self._same: dict[str, str] = {}  # one object for equal texts: names recur in every row
        self._low, self._high = np.array(np.inf), np.array(-np.inf)
        self._x, self._lines, self._times = _Pile(), _Pile(), _Pile()
        self._text: dict[str, list[str]] = {role: [] for role in layout.text}
        self.form: Form | None = None

    def add(
        self, lines: NDArray[np.int64], x: NDArray[np.float64], text: Mapping[str, list[str]],
        time: tuple[Form, NDArray[np.float64]] | None,
    ) -> None:  # fmt: skip
        self._lines.add(lines)
        self._low, self._high = np.fmin(self._low, np.fmin.reduce(x)), np.fmax(self._high, np.fmax.reduce(x))
        self._x.add(x.astype(np.float32))
        same = self._same
        for role, words in text.items():
            self._text[role] += words if role == "id" else [same.setdefault(word, word) for word in words]
        if time is not None:
            self.form = time[0]
            self._times.add(time[1])

    def sheet(self) -> Sheet:
        path, layout = self.layout.path, self.layout
        if self._lines.empty:
            raise SettingError(f"{path.name}: a header, but no rows below it. Add rows.")
        self._warn_delimiters()
        # sensors with variations around a large value that 24 bits hardly resolve
        low, high = self._low, self._high
        step = np.spacing(np.fmax(np.abs(low), np.abs(high)).astype(np.float32)).astype(np.float64)
        for i in np.flatnonzero((high > low) & (high - low < STEPS * step)).tolist():
            log.warning(
                "%s, column '%s': values from %r to %r, where single precision has steps of %.2g. Subtract a constant "
                "from this column to keep its variation.",
                path.name, layout.names[i], float(low[i]), float(high[i]), step[i],
            )  # fmt: skip
        clock = None if self.form is None else TimeColumn(self.form, self._times.whole())
        return Sheet(path, layout.names, self._x.whole(), self._lines.whole(), self._text, None, clock=clock)

    def _warn_delimiters(self) -> None:
        """Warn of texts that may be several cells, because they contain another delimiter beside a number."""
        path, given = self.layout.path, self.layout.reading.delimiter
        if given is not None or columnar.is_parquet(path) or is_workbook(path):
            return
        for text in self._same:
            pieces = re.split(r"[;|\t]", text)
            if len(pieces) > 1 and any(re.fullmatch(NUMBER, piece.strip()) for piece in pieces):
                role = next(role for role, words in self._text.items() if text in words)
                mark = text[len(pieces[0])]
                mark = WORDS.get(mark, mark)
                advice = f'[data] delimiter = "{mark}"'
                if self.layout.lenient:
                    advice = "write the table in the format of the training"
                column = self.layout.header[self.layout.text[role]]
                log.warning(
                    "%s, column '%s': '%s' may be several cells. If '%s' is the delimiter: %s.",
                    path.name, column, text, mark, advice,
                )  # fmt: skip
                return


class _Pile:
    """Blocks of rows to be joined to an array; small blocks are joined early to avoid fragmentation of memory."""

    def __init__(self) -> None:
        self._large: list[NDArray[Any]] = []
        self._small: list[NDArray[Any]] = []
        self._bytes = 0

    @property
    def empty(self) -> bool:
        return not (self._large or self._small)

    def add(self, block: NDArray[Any]) -> None:
        self._small.append(block)
        self._bytes += block.nbytes
        if self._bytes >= LARGE:
            self._large.append(_joined(self._small))
            self._bytes = 0

    def whole(self) -> NDArray[Any]:
        self._large += self._small
        self._small = []
        return _joined(self._large)


def _joined(blocks: list[NDArray[Any]]) -> NDArray[Any]:
    """Return blocks as one array; each block is freed once it is copied, so that memory is not doubled."""
    whole = np.empty((sum(map(len, blocks)), *blocks[0].shape[1:]), blocks[0].dtype)
    end = len(whole)
    while blocks:
        block = blocks.pop()
        whole[end - len(block) : end] = block
        end -= len(block)
    return whole


@dataclass(frozen=True)
class _Layout:
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
    ) -> _Layout:
        names = [name.strip() for name in header]
        if not any(names):
            raise SettingError(f"{place(path, 1)}: empty. A table must begin with a row of its columns' names.")
        often = Counter(names)
        for number, name in enumerate(names, start=1):
            if not name or often[name] > 1:
                problem = f"the name '{name}' is given twice" if name else "has no name, as most columns"
                raise SettingError(
                    f"{place(path, 1)} (the header): column {number}: {problem}. Give each column a unique name."
                    f"{_no_header(names)}"
                )
        more = joined(names, reading.columns.roles())
        names += [each.name for each in more]
        where = {name: number for number, name in enumerate(names)}
        roles = {role: where[name] for role, name in reading.columns.roles().items() if name in where}
        default = Columns().roles()
        for role, name in reading.columns.roles().items():
            if role not in roles and not lenient and (role in required or name not in ("", default.get(role))):
                raise NoColumnError(path, name, role, names)
        categories = tuple(reading.columns.categories or ())
        for name in (*reading.columns.values, *reading.columns.ignore, *categories):
            if name not in where:
                role = "values" if name in reading.columns.values else "ignore"
                role = "categories" if name in categories else role
                raise NoColumnError(path, name, "" if lenient else role, names, reading.delimiter)
        roles |= {CATEGORY + name: where[name] for name in categories}
        taken = {*(names[i] for i in roles.values()), *reading.columns.ignore}
        taken |= {names[i] for each in more for i in each.parts}
        sensors = reading.columns.values or tuple(name for name in names if name not in taken)
        if not sensors and not categories:
            raise SettingError(
                f"{place(path, 1)} (the header): no sensors, only {', '.join(names)}. Add columns with numbers."
            )
        time = roles.pop("time", None)
        values = tuple(where[name] for name in sensors)
        return cls(path, reading, tuple(names), values, roles, time, lenient, more)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.header[i] for i in self.values)

    def check_widths(self, block: list[Row]) -> None:
        width = len(self.header) - len(self.joined)
        for line, cells in block:
            if cells and cells[0].strip() == self.header[0] and tuple(map(str.strip, cells)) == self.header[:width]:
                raise SettingError(f"{place(self.path, line)}: the header again. Remove this row.")
            if len(cells) != width:
                many = len(cells) > width
                where = place(self.path, line, None if many else self.header[len(cells)])
                hint = "Put cells that contain the delimiter in quotes." if many else "Fill the row up, or remove it."
                if many and not any(cells[width:]):
                    hint = "Remove the delimiter at the row's end, or give the column a name."
                raise SettingError(f"{where}: {len(cells)} cells, but the header has {width}. {hint}")

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

    def quick(self, cells: list[str]) -> NDArray[np.float64] | None:
        """Return the numbers of all cells; None if one of them must be parsed by :meth:`number`."""
        if self.reading.thousands is not None:
            cells = [self.ungrouped(cell) for cell in cells]
        joined = "\0".join(cells)
        if "_" in joined or (self.reading.decimal == "," and "." in joined):
            return None
        if self.reading.decimal == ",":
            many, cells = len(cells), joined.replace(",", ".").split("\0")
            if len(cells) != many:  # a cell contains a NUL
                return None
        try:
            values = np.array([float(cell) if cell else np.nan for cell in cells])
        except ValueError:
            try:
                values = np.array([np.nan if cell.strip().casefold() in MISSING else float(cell) for cell in cells])
            except ValueError:
                return None
        return None if (np.abs(values) > columnar.LARGEST).any() else values

    def number(self, line: int, cell: str, column: int) -> float:
        text = self.ungrouped(cell.strip())
        value: float | None
        try:
            value = float(text if self.reading.decimal == "." else text.replace(",", ".", 1))
        except ValueError:
            value = np.nan if text.casefold() in MISSING else None
        if value is None or "_" in text or (self.reading.decimal == "," and "." in text):
            raise self.not_a_number(line, cell, column)
        if abs(value) > columnar.LARGEST:
            raise SettingError(f"{place(self.path, line, self.header[column])}: '{cell}' is not a finite number.")
        return value

    def ungrouped(self, cell: str) -> str:
        """Return a number without the marks between groups of three digits; other texts unchanged."""
        marks = MARKS.get(self.reading.thousands or "", self.reading.thousands or "")
        if not any(mark in cell for mark in marks):
            return cell
        whole, mark, fraction = cell.strip().partition(self.reading.decimal)
        fits = re.fullmatch(rf"[+-]?\d{{1,3}}([{re.escape(marks)}])\d{{3}}(\1\d{{3}})*", whole, re.ASCII)
        return re.sub(rf"[{re.escape(marks)}]", "", whole) + mark + fraction if fits else cell

    def not_a_number(self, line: int, cell: str, column: int) -> SettingError:
        name, decimal = self.header[column], self.reading.decimal
        marks = other_marks(cell.strip(), decimal)
        if self.lenient:
            hint = f"The model was trained on tables with the decimal mark '{decimal}'."
        elif marks:
            hint = f"{marks}. Numbers are read with the decimal mark '{decimal}': write all numbers with it."
        elif self.time is None and looks_like_time(cell):
            hint = f"If this is the time: --set data.columns.time={name}. {READ}"
        else:
            hint = (
                f'If its texts are categories: [data] columns.categories = {{ {name} = "one-hot" }}. If it is no '
                f'sensor, leave the column out: [data] columns = {{ ignore = ["{name}"] }}.'
            )
        return SettingError(f"{place(self.path, line, name)}: '{cell}' is not a number. {hint}")

    @property
    def wanted(self) -> columnar.ColumnSelection:
        given = self.reading
        worded = given.time_format is not None and "%" in given.time_format
        return columnar.ColumnSelection(
            self.header, self.values, self.text, self.time, given.decimal, worded, given.delimiter
        )

    def words(self, block: list[Row], role: str) -> list[str]:
        column = self.text[role]
        values = [cells[column].strip() for _, cells in block]
        self.check_words([line for line, _ in block], values, role)
        return values

    def check_words(self, lines: Sequence[int] | NDArray[np.int64], values: Sequence[str], role: str) -> None:
        """Refuse rows without a text for a role, except in predictions."""
        bad = {text for text in {*values} if not text or (role == "label" and text.casefold() in NO_LABEL)}
        if self.lenient or role.startswith(CATEGORY) or not bad:
            return
        row = next(row for row, text in enumerate(values) if text in bad)
        problem = f"'{values[row]}' is no label" if values[row] else "empty"
        where = place(self.path, int(lines[row]), self.header[self.text[role]])
        problem = f"{where}: {problem}. Every row needs a {role}."
        if role != "label" or self.joined:
            raise SettingError(problem)
        raise UnlabelledError(problem, self.path, self.header[self.text[role]], self.reading.dialect())

    def moments(self, block: list[Row], form: Form | None) -> tuple[Form, NDArray[np.float64]]:
        """Return the format of times, which all rows must share, and the possible times of each row."""
        column = self.time or 0
        if form == NUMBERS:
            values = self.quick([cells[column] for _, cells in block])
            if values is not None and np.isfinite(values).all():
                return form, values[:, None]
        return self.moments_of([line for line, _ in block], [cells[column].strip() for _, cells in block], form)

    def moments_of(
        self, lines: Sequence[int] | NDArray[np.int64], cells: Sequence[str], form: Form | None
    ) -> tuple[Form, NDArray[np.float64]]:
        try:
            return read_times(cells, form, self.reading.time_format, self.reading.decimal)
        except TimeError as error:
            where = place(self.path, int(lines[error.row]), self.header[self.time or 0])
            hint = "Write times in the format of the training." if self.lenient else READ
            raise SettingError(f"{where}: {error.message.replace(READ, hint)}") from error


def other_marks(cell: str, decimal: str) -> str:
    """Return advice on settings with which a number with other marks can be read; empty if there are none.

    >>> other_marks("1,234", ".")
    "If ',' is the decimal mark: --set data.decimal=,; if it stands between thousands: --set data.thousands=,"
    >>> print(other_marks("1 234.5", "."))
    If ' ' stands between thousands: --set "data.thousands= "
    """
    other = "." if decimal == "," else ","
    fraction = re.fullmatch(rf"[+-]?\d*[{other}]\d+(e[+-]?\d+)?", cell, re.IGNORECASE | re.ASCII)
    hint = f"If '{other}' is the decimal mark: --set data.decimal={other}" if fraction else ""
    groups = re.fullmatch(rf"[+-]?\d{{1,3}}([{other}' ])\d{{3}}(\1\d{{3}})*([{decimal}]\d+)?", cell, re.ASCII)
    if groups:
        setting = f"data.thousands={groups[1]}"
        hint += ("; if it" if hint else f"If '{groups[1]}'") + " stands between thousands: --set "
        hint += f'"{setting}"' if groups[1] in "' " else setting
    if re.fullmatch(rf"[+-]?\d{{1,3}}(\{decimal}\d{{3}})+{other}\d+", cell, re.ASCII):
        hint = f"If '{decimal}' stands between thousands and '{other}' is the decimal mark: "
        hint += f"--set data.thousands={decimal} --set data.decimal={other}"
    return hint


class NoColumnError(SettingError):
    """An error: a table lacks a column.

    Args:
        path: the path of the table.
        name: the name of the column.
        role: the use of the column: a role, ``values``, ``ignore`` or ``categories``; "" if a model needs it.
        names: the names of the table's columns.
        delimiter: the delimiter of the training's tables, in predictions.
        candidates: descriptions of columns that may have the role.
        labels: descriptions of columns that may be the label, if both the device and the label are missing.
        ahead: whether the task is a forecast, so that devices need parts of a series.
    """

    def __init__(
        self, path: Path, name: str, role: str, names: Sequence[str], delimiter: str | None = None,
        candidates: Sequence[str] = (), labels: Sequence[str] = (), ahead: bool = False,
    ) -> None:  # fmt: skip
        self.path, self.name, self.role, self.names = path, name, role, names
        same = [other for other in names if other.casefold() == name.casefold()]
        near = nearest(name, names, cutoff=0.8 if name == Columns().roles().get(role) else 0.55)  # the default name
        near = f" Did you mean '{same[0]}'?" if same else near
        advice = f"If it has another name: --set data.columns.{role}=NAME." if role else "The model needs it."
        if candidates:
            first = candidates[0].partition("' (")[0][1:]
            advice = f"It may be {' or '.join(candidates)}: --set 'data.columns.{role}={first}'. {advice}"
        if not role and delimiter is not None:
            advice += f" The tables of the training have the delimiter '{delimiter}'."
        if role == "label":
            offers = [f"--set data.task={kind} {task.offers}" for kind, task in TASKS.items() if task.offers]
            offers.append(
                "--set data.task=regression --set data.remaining=true predicts the remaining rows of recordings to "
                "failure"
            )
            advice += f" Or without labels: {'; '.join(offers)}."
        if role == "device":
            advice = (
                f"{advice.removesuffix('.')}, and likewise label, factory and time. If no column names machines, deal "
                "the rows to made-up ones: --set data.columns.device= --set park.devices=10 --set "
            )
            advice += (
                "'data.partition={kind=\"blocks\"}' (parts of the series, one after the other)."
                if ahead
                else '\'data.partition={kind="dirichlet",alpha=1.0}\' (or in blocks of their order: {kind="blocks"}).'
            )
            if labels:
                first = labels[0].partition("' (")[0][1:]
                advice += f" No label either; candidates: {' or '.join(labels)}: --set 'data.columns.label={first}'."
        if role in ("values", "ignore", "categories"):
            advice = "" if 2 * len(numbers_of(names)) >= len(names) else f"Correct [data] columns.{role}."
        more = f", … ({len(names) - LISTED} more)" if len(names) > LISTED else ""
        super().__init__(
            f"{place(path, 1)} (the header): no column '{name}'.{near} Available: {', '.join(names[:LISTED])}{more}."
            f"{advice and ' '}{advice}{_no_header(names)}"
        )


class UnlabelledError(SettingError):
    """An error: rows of a table have no label.

    Args:
        message: the place and the content of the first such cell.
        path: the path of the table.
        column: the column of the labels.
        dialect: the format of the table, as keys of ``[data]``.
    """

    def __init__(self, message: str, path: Path, column: str, dialect: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.path, self.column, self.dialect = path, column, dialect


def _no_header(names: Sequence[str]) -> str:
    """Return a hint if a header contains values or a title instead of names."""
    if names[0].startswith("#") or 2 * sum(map(bool, names)) < len(names) or len(names) == 1:
        return " If row 1 is a title or a comment, remove the rows above the header."
    mark = next((mark for mark in ";|\t" if any(mark in name for name in names)), None)
    if mark is not None:
        return f" If '{WORDS.get(mark, mark)}' is the delimiter: [data] delimiter = \"{WORDS.get(mark, mark)}\"."
    if 2 * len(numbers_of(names)) < len(names):
        return ""
    return f' If row 1 holds values, name the {len(names)} columns: [data] header = ["…", …].'


def numbers_of(names: Sequence[str]) -> list[float]:
    """Return the numbers among names of columns.

    >>> numbers_of(["1,5", "2", "3 bar"])
    [1.5, 2.0]
    """
    return [float(name.replace(",", ".")) for name in names if NUMBER.fullmatch(name)]
