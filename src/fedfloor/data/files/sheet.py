"""Reading of a table with named columns, as numbers and texts."""

from __future__ import annotations

import logging
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError
from fedfloor.base.names import count, legible
from fedfloor.data.dataset import Indices, Times, Values
from fedfloor.data.files import columnar
from fedfloor.data.files.clocks import copied, universal
from fedfloor.data.files.layout import NUMBER, WORDS, MarksError, OddTextError, TableLayout, coarse
from fedfloor.data.files.marks import ungrouped
from fedfloor.data.files.packed import BombError
from fedfloor.data.files.quality import emptied
from fedfloor.data.files.rows import Row, decoded, in_blocks, is_workbook, opened, opened_workbook, place
from fedfloor.data.files.spellings import respelt
from fedfloor.data.files.times import (
    NUMBERS,
    NUMERALS,
    Form,
    TimeColumn,
    TimeError,
    day,
    decide,
    numeral,
    shared,
    written,
)
from fedfloor.data.files.titles import tell_lost
from fedfloor.data.reading import Reading, skipped

log = logging.getLogger(__name__)

SEARCHED = 100_000  # rows searched for more texts among a sensor's numbers


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
        local: whether times are dates without a time zone.
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
    local: bool = False

    @property
    def title(self) -> str:
        """The name of the file in messages."""
        return self.name or self.path.name

    def place(self, row: int, column: str) -> str:
        """Return the place of a cell in messages."""
        return f"{self.title}, row {self.line[row]}, {self.cell.format(column)}"

    def named(self, *roles: str) -> Iterable[tuple[str, ...]]:
        """Return the texts of some roles for each row, without those that the table lacks."""
        parts = [self.text[role] for role in roles if role in self.text]
        return zip(*parts, strict=True) if parts else [()] * len(self.line)

    def copies(self) -> NDArray[np.bool_]:
        """Return a mask of the rows that equal an earlier one in time, sensors and texts, [T]."""
        codes = [np.unique(np.array(words), return_inverse=True)[1].ravel() for words in self.text.values()]
        return copied([self.x, *([] if self.time is None else [self.time]), *codes])

    def take(self, rows: Indices) -> Sheet:
        """Return some of the rows."""
        text = {role: [words[row] for row in rows.tolist()] for role, words in self.text.items()}
        time = None if self.time is None else self.time[rows]
        return replace(self, x=self.x[rows], line=self.line[rows], text=text, time=time)


def read(path: Path, reading: Reading, required: Sequence[str], *, lenient: bool = False) -> Sheet:
    """Return a single table, read by :func:`scan` and :func:`settled`."""
    (sheet,) = settled([scan(path, reading, required, lenient=lenient)], reading)
    return sheet


def settled(sheets: Sequence[Sheet], reading: Reading, owners: Sequence[tuple[str, ...]] | None = None) -> list[Sheet]:
    """Return tables with times converted; the format and the order of day and month are determined by all tables.

    Args:
        sheets: the tables.
        reading: the settings of times and copies.
        owners: the folders of each table, or the device whose file it is; None if a column alone tells devices apart.
    """
    clocks = [sheet.clock for sheet in sheets if sheet.clock is not None]
    if not clocks or len(clocks) < len(sheets):
        # a mixture of tables with and without times is refused later
        return _without_copies(sheets) if reading.copies else list(sheets)
    form = shared([clock.form for clock in clocks])
    column = reading.columns.time
    if not isinstance(form, Form):
        raise SettingError(
            f"{sheets[form].place(0, column)}: times are {clocks[form].form}, but {sheets[0].title} has "
            f"{clocks[0].form}. Write all times in the same format.",
            key="forms-of-times",
        )
    ends = np.cumsum([len(clock.values) for clock in clocks])
    try:
        time, order = decide(np.concatenate([clock.values for clock in clocks]), form, reading.time_format)
    except TimeError as error:
        number = int(np.searchsorted(ends, error.row, "right"))
        row = error.row - int(ends[number]) + len(clocks[number].values)
        raise SettingError(f"{sheets[number].place(row, column)}: {error.message}", key="no-time") from error
    if order and reading.time_format is None:
        where = f"{sheets[0].title}, column '{column}'"
        log.info("%s: dates are read %s: the first one is %s.", where, order, day(float(time[0])))
    if reading.time_format is None and form == NUMBERS and (known := numeral(time)) not in (None, "s"):
        log.warning(
            "%s, column '%s': %.15g and the like are read as seconds, but seem to be %s: --set 'data.time_format=%s'.",
            sheets[0].title, column, time[0], NUMERALS[known], known,
        )  # fmt: skip
    if reading.zone and (form == NUMBERS or form.zone):
        raise SettingError(
            f"{sheets[0].place(0, column)}: [data] zone = '{reading.zone}' is for dates without a time zone, but these "
            f"are {form}. Leave it out."
        )
    local = not reading.zone and form != NUMBERS and not form.zone
    timed = [
        replace(sheet, time=part, clock=None, order=order, dated=form != NUMBERS, local=local)
        for sheet, part in zip(sheets, np.split(time, ends[:-1]), strict=True)
    ]
    timed = _zoned(timed, reading.zone, column, owners or [()] * len(timed)) if reading.zone else timed
    return _without_copies(timed) if reading.copies else timed


def _zoned(sheets: Sequence[Sheet], zone: str, column: str, owners: Sequence[tuple[str, ...]]) -> list[Sheet]:
    """Return tables with local times converted to universal ones; the rows of a device are in order through tables."""
    ends = np.cumsum([len(sheet.line) for sheet in sheets])

    def at(row: int) -> str:
        number = int(np.searchsorted(ends, row, "right"))
        return sheets[number].place(row - int(ends[number]) + len(sheets[number].line), column)

    local = np.concatenate([cast(Times, sheet.time) for sheet in sheets])
    device = _numbered(
        (owner, *names) for sheet, owner in zip(sheets, owners, strict=True) for names in sheet.named("device")
    )
    run = _numbered((number, *names) for number, sheet in enumerate(sheets) for names in sheet.named("device", "run"))
    try:
        time, unsure = universal(local, device, run, zone)
    except TimeError as error:
        raise SettingError(f"{at(error.row)}: {error.message}") from error
    if unsure.any():
        row = int(unsure.argmax())
        wall = written(float(local[row]), dated=True).replace("T", " ")
        log.warning(
            "%s: %s occurs twice in %s, and the order of rows does not show which of both hours this is; %s in total, "
            "which may be an hour off. Put the recordings of each device in the order of time, or write the offset "
            "beside such times: 02:30+01:00.",
            at(row), wall, zone, count(int(unsure.sum()), "such row"),
        )  # fmt: skip
    return [replace(sheet, time=part) for sheet, part in zip(sheets, np.split(time, ends[:-1]), strict=True)]


def _numbered(names: Iterable[Hashable]) -> NDArray[np.int32]:
    """Return a number for each name, equal for equal names."""
    number: dict[Hashable, int] = {}
    return np.array([number.setdefault(name, len(number)) for name in names], np.int32)


def _without_copies(sheets: Sequence[Sheet]) -> list[Sheet]:
    """Return tables without the rows that equal an earlier row of the same table, and log their number."""
    kept = []
    for sheet in sheets:
        copies = sheet.copies()
        if copies.any():
            log.info(
                "%s: %s of %s rows are exact copies of earlier ones and are left out (data.copies).", sheet.title,
                f"{copies.sum():,}", f"{len(copies):,}",
            )  # fmt: skip
        kept.append(sheet.take(np.flatnonzero(~copies)) if copies.any() else sheet)
    return kept


def scan(path: Path, reading: Reading, required: Sequence[str], *, lenient: bool = False) -> Sheet:
    """Return a table without its times; see :func:`~fedfloor.data.files.rows.opened` for compression and delimiters.

    With ``[data] header``, the first row holds values; for predictions it may also be the header.

    Empty cells, ``NA``, ``n/a``, ``NaN``, ``null``, ``none``, ``-`` and ``?`` are missing values.

    Raises:
        SettingError: the file is no table, a column is missing, or a cell has a wrong type; the message names file, row
            and column.
    """
    sheet = decoded(
        path, reading.encoding,
        lambda encoding: _scan(path, replace(reading, encoding=encoding), required, lenient=lenient),
    )  # fmt: skip
    if "label" not in sheet.text or not (reading.thousands or reading.spellings):
        return sheet
    labels = respelt(sheet.text["label"], reading.spellings)
    if reading.thousands is not None:
        labels = [ungrouped(text, reading.thousands, reading.decimal) for text in labels]
    return replace(sheet, text=sheet.text | {"label": labels})


def _scan(path: Path, reading: Reading, required: Sequence[str], *, lenient: bool) -> Sheet:
    layout_of = partial(TableLayout.of, path, reading=reading, required=required, lenient=lenient)
    if columnar.is_parquet(path):
        names = columnar.parquet_names(path)
        layout = layout_of(names)
        rows = _judged(path, columnar.parquet_rows(path, reading.decimal), reading.dialect(), names)
        by_rows = _by_rows(layout, _blanked(rows, reading.missing_texts or ()))
        if not (layout.joined or reading.missing_texts or reading.quality):
            with suppress(MarksError, OddTextError):  # reading by rows tells more of them
                return _Gathered(layout, columnar.parquet_batches(layout)).sheet()
        return _Gathered(layout, by_rows).sheet()
    with text_rows(path, reading.dialect() | {"decimal": reading.decimal}) as rows:
        line, first = next(rows, (1, []))
        named = lenient and {*reading.columns.values} <= {*map(str.strip, first)}
        named = named or reading.header is None
        if not named:
            check_header(path, first, reading.header)
        layout = layout_of(named_columns(first) if named else reading.header or ())
        if reading.skip and not lenient:
            tell_lost(path, reading, line, layout.values)
        unusual = reading.encoding or reading.thousands or reading.missing_texts or reading.quality
        plain = not (is_workbook(path) or unusual)
        if plain and not layout.joined and not reading.skip and line == 1 and path.stat().st_size >= columnar.QUICK:
            try:
                return _Gathered(layout, columnar.csv_batches(layout, header=named)).sheet()
            except BombError:
                raise
            except (columnar.UnfitError, SettingError):
                pass  # reading by rows locates the mistake, if any
        return _Gathered(layout, _by_rows(layout, rows if named or not first else chain([(line, first)], rows))).sheet()


def _by_rows(layout: TableLayout, rows: Iterator[Row]) -> Iterator[columnar.ColumnBatch]:
    """Yield the rows of a table in batches, read row by row."""
    blank = [""] * (len(layout.header) - len(layout.joined))
    for block in in_blocks(rows):
        # delimiters alone, as spreadsheets write below a table, may be fewer than the header's
        block = [(line, cells if any(map(str.strip, cells)) else blank) for line, cells in block]
        layout.check_widths(block)
        if layout.joined:
            block = [(line, [*cells, *(each.cell(cells) for each in layout.joined)]) for line, cells in block]
        lines = np.array([line for line, _ in block], np.int64)
        texts = {column: [cells[column].strip() for _, cells in block] for column in layout.texts}
        words = {role: texts[column] for role, column in layout.text.items()}
        try:
            numbers = layout.numbers(block)
        except OddTextError as error:
            raise layout.listed(error, chain(block, islice(rows, SEARCHED))) from error
        except MarksError as error:
            raise layout.mixed(error, chain(block, islice(rows, SEARCHED))) from error
        yield columnar.ColumnBatch(lines, numbers, words, None if layout.time is None else texts[layout.time])


def _blanked(rows: Iterator[Row], texts: Sequence[str]) -> Iterator[Row]:
    """Return rows with empty cells in place of ``[data] missing_texts``."""
    among = {text.casefold() for text in texts}
    return ((line, ["" if cell.strip().casefold() in among else cell for cell in cells]) for line, cells in rows)


def _judged(
    path: Path, rows: Iterator[Row], given: Mapping[str, Any], names: Sequence[str] | None
) -> Iterator[Row]:  # fmt: skip
    """Return rows with empty cells in place of values of bad quality; without ``names``, these are the first row."""
    if not given.get("quality"):
        return rows
    first = []
    if names is None:
        first = [*islice(rows, 1)]
        names = named_columns(first[0][1]) if first else []
    return chain(first, emptied(path, rows, names, given))


def named_columns(header: Sequence[str]) -> list[str]:
    """Return the names of columns, with ``column N`` for missing names, unless most are missing, as below a title.

    Control characters, such as line breaks in the cells of a workbook, become blanks.

    >>> named_columns(["", "speed ", "load"]), named_columns(["Report", "", ""])
    (['column 1', 'speed', 'load'], ['Report', '', ''])
    """
    names = [legible(name).strip() for name in header]
    titled = 2 * sum(map(bool, names)) <= len(names)
    return names if titled else [name or f"column {number}" for number, name in enumerate(names, start=1)]


def check_header(path: Path, first: Sequence[str], header: Sequence[str] | None) -> None:
    """Refuse a ``[data] header`` that repeats the table's first row, or has another number of names."""
    if header and [name.strip() for name in first] == [*header]:
        raise SettingError(
            f"{place(path, 1)}: the same names as in [data] header, which is for tables without a row of names. Leave "
            "it out.",
            key="data.header",
        )
    if header and first and (len(first) < len(header) or any(map(str.strip, first[len(header) :]))):
        raise SettingError(
            f"{place(path, 1)}: {len(first)} cells, but [data] header names {len(header)} columns. Give a name for "
            "each column.",
            key="data.header",
        )


@contextmanager
def text_rows(path: Path, given: Mapping[str, Any]) -> Iterator[Iterator[Row]]:
    """Yield the rows of a table as texts, with those for missing values left out."""
    with _opened(path, given) as opened_rows:
        rows = _judged(path, opened_rows, given, given.get("header"))
        yield _blanked(rows, given["missing_texts"]) if given.get("missing_texts") else rows


def _opened(path: Path, given: Mapping[str, Any]) -> AbstractContextManager[Iterator[Row]]:
    """Open a table to read row by row: CSV, a sheet of a workbook, or Parquet with its names as row 0."""
    if columnar.is_parquet(path):
        return nullcontext(chain([(0, columnar.parquet_names(path))], columnar.parquet_rows(path)))
    decimal = given.get("decimal", ".")
    skip = skipped(given.get("skip"))
    if is_workbook(path):
        return opened_workbook(path, given.get("sheet"), decimal, skip)
    return opened(path, given.get("encoding"), decimal, given.get("delimiter"), skip)


class _Gathered:
    """A table read in batches."""

    def __init__(self, layout: TableLayout, batches: Iterable[columnar.ColumnBatch]) -> None:
        self.layout = layout
        self._same: dict[str, str] = {}  # one object for equal texts: names recur in every row
        self._low, self._high = np.array(np.inf), np.array(-np.inf)
        self._x = _Pile()
        self._lines = _Pile()
        self._times = _Pile()
        self._text: dict[str, list[str]] = {role: [] for role in layout.text}
        self._form: Form | None = None
        self._empty: list[int] = []  # numbers of rows without any value, which are left out
        for batch in batches:
            empty = batch.empty()
            self._empty += batch.lines[empty].tolist()
            if not empty.all():
                self._add(batch.take(~empty) if empty.any() else batch)

    def _add(self, batch: columnar.ColumnBatch) -> None:
        time = batch.time
        x = batch.x
        if isinstance(time, list):
            time = self.layout.moments(batch.lines, time, self._form)
        if time is not None:
            self._form = time[0]
            self._times.add(time[1])
        self._lines.add(batch.lines)
        self._low, self._high = np.fmin(self._low, np.fmin.reduce(x)), np.fmax(self._high, np.fmax.reduce(x))
        self._x.add(x.astype(np.float32))
        same = self._same
        for role, words in batch.text.items():
            self.layout.check_words(batch.lines, words, role)
            self._text[role] += words if role == "id" else [same.setdefault(word, word) for word in words]

    def sheet(self) -> Sheet:
        path = self.layout.path
        layout = self.layout
        if not self._lines.rows:
            raise SettingError(f"{path.name}: a header, but no rows below it. Add rows, or remove the file.")
        if self._empty:
            log.info(
                "%s: %s without any value, the first of which is row %d: left out.", path.name,
                count(len(self._empty), "row"), self._empty[0],
            )  # fmt: skip
        self._warn_delimiters()
        for i, step in coarse(self._low, self._high).items():
            log.warning(
                "%s, column '%s': values from %r to %r, where single precision has steps of %.2g. Subtract a constant "
                "from this column to keep its variation.",
                path.name, layout.names[i], float(self._low[i]), float(self._high[i]), step,
            )  # fmt: skip
        clock = None if self._form is None else TimeColumn(self._form, self._times.whole())
        return Sheet(path, layout.names, self._x.whole(), self._lines.whole(), self._text, None, clock=clock)

    def _warn_delimiters(self) -> None:
        """Warn of texts that may be several cells, because they contain another delimiter beside a number."""
        path = self.layout.path
        given = self.layout.reading.delimiter
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
    """Blocks of rows that grow to an array in place, so that memory is not doubled."""

    def __init__(self) -> None:
        self.rows = 0
        self._bytes = bytearray()
        self._block = np.empty(0)

    def add(self, block: NDArray[Any]) -> None:
        self._bytes += block.tobytes()
        self.rows = self.rows + len(block)
        self._block = block[:0]

    def whole(self) -> NDArray[Any]:
        return np.frombuffer(self._bytes, self._block.dtype).reshape(self.rows, *self._block.shape[1:])
