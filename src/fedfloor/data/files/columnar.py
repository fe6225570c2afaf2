"""Tables read by columns with pyarrow: Parquet, and plain CSV faster than by rows."""

from __future__ import annotations

import codecs
import lzma
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import regular
from fedfloor.base.errors import SettingError
from fedfloor.base.names import legible, toml_list, typed
from fedfloor.data.ended import MISSING
from fedfloor.data.files import unreadable
from fedfloor.data.files.layout import LARGEST, TableLayout
from fedfloor.data.files.packed import BombError, check_ratio, unpacked_bytes
from fedfloor.data.files.rows import check_columns, delimiter_of, place
from fedfloor.data.files.times import EPOCHS as PER_SECOND
from fedfloor.data.files.times import ISO, NUMBERS, Form

PARQUET = (".parquet", ".pq")
QUICK = 1 << 20  # bytes of a CSV file above which pyarrow is faster, including its import
PIECE = 1 << 22  # bytes of a batch of CSV
ROWS = 1 << 16  # rows of a batch of Parquet
TEXTS = 1 << 11  # rows converted to texts at once: usually only the first rows are needed
LONGEST = 1 << 20  # bytes of a header
MOST_TEXT = 1 << 28  # bytes of a column's texts in a batch
NULLS = ["NaN", *{form(word) for word in MISSING for form in (str, str.upper, str.capitalize)}]  # in usual capitals
FAILURES = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)

Floats = NDArray[np.float64]


class UnfitError(ValueError):
    """A table that must be read by rows: with quotes, blank lines, or a mistake to report."""


@dataclass(frozen=True, eq=False)
class ColumnBatch:
    """A batch of a table's rows.

    Args:
        lines: int64 [n], the number of each row.
        x: float64 [n, C], NaN where a value is missing.
        text: the texts by role, without surrounding blanks; empty where a cell is empty.
        time: the times as texts without surrounding blanks; of a typed column format and values [n, 1]; or None.
    """

    lines: NDArray[np.int64]
    x: Floats
    text: Mapping[str, list[str]]
    time: tuple[Form, Floats] | list[str] | None

    def empty(self) -> NDArray[np.bool_]:
        """Return a mask of the rows without any value, [n]."""
        empty: NDArray[np.bool_] = np.asarray(np.isnan(self.x).all(axis=1))
        for words in (*self.text.values(), *([self.time] if isinstance(self.time, list) else [])):
            if empty.any():
                empty &= np.array([not word for word in words])
        return empty & np.isnan(self.time[1]).all(axis=1) if isinstance(self.time, tuple) else empty

    def take(self, rows: NDArray[np.bool_]) -> ColumnBatch:
        """Return the rows of a mask."""
        text = {role: [*compress(words, rows)] for role, words in self.text.items()}
        time = (self.time[0], self.time[1][rows]) if isinstance(self.time, tuple) else self.time
        return ColumnBatch(
            self.lines[rows], self.x[rows], text, [*compress(time, rows)] if isinstance(time, list) else time
        )


def is_parquet(path: Path) -> bool:
    """Return whether a file's name has the ending of a Parquet file."""
    return path.name.casefold().endswith(PARQUET)


# -- CSV ---------------------------------------------------------------------------------------------------------------


def csv_batches(layout: TableLayout, *, header: bool) -> Iterator[ColumnBatch]:
    """Yield the rows of a CSV file in UTF-8 in batches, with the same values as when read by rows.

    Raises:
        UnfitError: quotation marks, blank lines, NUL, other line ends, or a cell that is not clearly of its type.
    """
    import pyarrow as pa
    from pyarrow import csv

    kinds = dict.fromkeys(map(str, layout.values), pa.float64())
    kinds |= dict.fromkeys(map(str, layout.texts), pa.string())
    try:
        with unpacked_bytes(layout.path) as stream:
            body = _Body(stream, layout, header=header)
            reader = csv.open_csv(
                pa.PythonFile(body, mode="r"),
                csv.ReadOptions(block_size=PIECE, column_names=[str(i) for i in range(len(layout.header))]),
                csv.ParseOptions(delimiter=body.delimiter, quote_char=False),
                csv.ConvertOptions(
                    check_utf8=False, column_types=kinds, null_values=NULLS, include_columns=list(kinds),
                    decimal_point=layout.reading.decimal,
                ),
            )  # fmt: skip
            rows = 0
            for batch in reader:
                if batch.num_rows:
                    lines = np.arange(batch.num_rows) + rows + 1 + header
                    yield _of_csv(lines, {int(name): batch.column(name) for name in kinds}, layout)
                rows += batch.num_rows
    except FAILURES as error:
        raise UnfitError(str(error)) from error
    finally:
        pa.default_memory_pool().release_unused()
    if rows != body.lines:
        raise UnfitError("blank lines")


class _Body:
    """A file object of the rows below a CSV file's header; raises UnfitError where pyarrow and csv differ."""

    def __init__(self, stream: BinaryIO, layout: TableLayout, *, header: bool) -> None:
        first = stream.readline(LONGEST).removeprefix(codecs.BOM_UTF8)
        self.delimiter = delimiter_of(first.decode(), layout.reading.decimal, layout.reading.delimiter)
        if (
            self.delimiter == " "
            or b"\r" in first.rstrip(b"\r\n")
            or (b'"' in first and (first.count(b'"') % 2 or not header))
        ):
            raise UnfitError("a header of several lines, or no plain delimiter")
        self._stream = stream
        self._rest = b"" if header else first
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._last = b"\n"
        self.lines = 0
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        block = self._rest or self._stream.read(PIECE if size < 0 else size)
        self._rest = b""
        if b'"' in block or b"\0" in block:
            raise UnfitError("quotation marks or NUL")
        if b"\r" in block or self._last == b"\r":
            whole = self._last + block if self._last == b"\r" else block
            if whole.count(b"\r") - whole.endswith(b"\r") != whole.count(b"\r\n") or (not block and whole):
                raise UnfitError("line ends of another kind")
        if not block.isascii() or not block:
            self._decoder.decode(block, final=not block)
        self.lines += block.count(b"\n") if block else self._last != b"\n"
        self._last = block[-1:] or b"\n"
        return block

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


def _of_csv(lines: NDArray[np.int64], columns: Mapping[int, Any], layout: TableLayout) -> ColumnBatch:
    x = np.empty((len(lines), len(layout.values)))
    for place_, number in enumerate(layout.values):
        values = columns[number].to_numpy(zero_copy_only=False)
        if (np.abs(values) > LARGEST).any() or int(np.isnan(values).sum()) != columns[number].null_count:
            raise UnfitError("numbers that are not finite")
        x[:, place_] = values
    text = {role: _words(columns[number]) for role, number in layout.text.items()}
    return ColumnBatch(lines, x, text, None if layout.time is None else _stripped(columns[layout.time]))


def _stripped(column: Any) -> list[str]:
    return [text.strip() for text in column.to_pylist()]


def _words(column: Any) -> list[str]:
    """Return texts without surrounding blanks, with equal texts as one object; empty for missing ones."""
    coded = column.dictionary_encode()
    known = [("" if word is None else word).strip() for word in coded.dictionary.to_pylist()]
    if coded.null_count:
        return ["" if code is None else known[code] for code in coded.indices.to_pylist()]
    return [known[code] for code in coded.indices.to_numpy().tolist()]


# -- Parquet -----------------------------------------------------------------------------------------------------------


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        schema = parquet.read_schema(regular.check(path))
        texts = [field.name for field in schema if _is_text(field.type)]  # kept as references to a list of texts
        with parquet.ParquetFile(regular.check(path), read_dictionary=texts) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
            raise unreadable(path, error) from error
        raise SettingError(
            f"{path.name}: not a complete Parquet file ({str(error).splitlines()[0]}). Write it again.",
            key="damaged-table",
        ) from error


def parquet_names(path: Path) -> list[str]:
    """Return the names of a Parquet file's columns."""
    with _parquet(path) as file:
        names: list[str] = file.schema_arrow.names
        check_columns(path.name, len(names))
        if odd := [name for name in names if legible(name) != name]:
            raise SettingError(
                f"{path.name}: the name {odd[0]!a} of a column has control characters. Rename it.",
                key="names-of-columns",
            )
        return names


def parquet_count(path: Path) -> int:
    """Return the number of rows of a Parquet file."""
    with _parquet(path) as file:
        return int(file.metadata.num_rows)


def parquet_rows(path: Path, decimal: str = ".") -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a Parquet file as texts, numbered from 1; its numbers get the decimal mark of its texts."""
    number = 0

    def text(cell: object) -> str:
        return "" if cell is None else str(cell).replace(".", decimal) if isinstance(cell, float) else str(cell)

    for batch in _batches(path, TEXTS):
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            number += 1
            yield number, [*map(text, row)]


def parquet_batches(layout: TableLayout) -> Iterator[ColumnBatch]:
    """Yield the rows of a Parquet file in batches; errors name row and column."""
    import pyarrow as pa

    own = parquet_names(layout.path)  # with blanks around them, or none, where the header has a name to type
    before = 0
    for batch in _batches(layout.path, ROWS, [own[i] for i in (*layout.values, *layout.texts)]):
        if batch.num_rows:
            names = [layout.header[own.index(name)] for name in batch.schema.names]
            yield _of_parquet(pa.RecordBatch.from_arrays(batch.columns, names), layout, before)
        before += batch.num_rows


def _batches(path: Path, size: int, columns: list[str] | None = None) -> Iterator[Any]:
    """Yield batches of so many rows of a Parquet file; columns of text are dictionaries.

    Raises:
        BombError: the footer states far more numbers, of 4 bytes, than the file can hold; or the texts of a batch are
            longer than :data:`MOST_TEXT` where each row is written out.
    """
    with _parquet(path) as file:
        groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
        numbers = sum(group.num_rows for group in groups) * len(columns or file.schema_arrow.names)
        check_ratio(
            path, path.stat().st_size, 4 * numbers,
            "write it with compression='none' and use_dictionary=False, or read fewer columns: [data] columns.values",
        )  # fmt: skip
        for batch in file.iter_batches(size, columns=columns):
            batch.validate(full=True)  # a damaged page may hold texts that are not UTF-8
            for name in batch.schema.names:
                _check_texts(path, name, batch.column(name))
            yield batch


def _check_texts(path: Path, name: str, column: Any) -> None:
    import pyarrow as pa
    from pyarrow import compute

    if not pa.types.is_dictionary(column.type) or not _is_text(column.type.value_type):
        return
    total = compute.sum(compute.binary_length(column.dictionary).take(column.indices)).as_py() or 0
    if total > MOST_TEXT:
        raise BombError(
            f"{path.name}, column '{name}': {total:,} bytes of text in {len(column):,} rows; at most {MOST_TEXT:,}. "
            "Leave the column out of the file, or shorten its texts."
        )


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _of_parquet(batch: Any, layout: TableLayout, before: int) -> ColumnBatch:
    import pyarrow as pa

    path = layout.path
    x = np.empty((batch.num_rows, len(layout.values)))
    for place_, number in enumerate(layout.values):
        name = layout.header[number]
        column = batch.column(name)
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if _is_text(kind):
            texts = ["" if text is None else text for text in column.to_pylist()]
            x[:, place_] = layout.column(texts, before + 1, number)
            continue
        x[:, place_] = _numbers(column, f"{path.name}, column '{name}'")
        wrong = np.abs(x[:, place_]) > LARGEST
        if wrong.any():
            row = int(wrong.argmax())
            raise SettingError(
                f"{place(path, before + row + 1, name)}: '{x[row, place_]}' is not a finite number. "
                "Correct it, or empty the cell.",
                key="not-finite",
            )
    text = {role: _words(_texts(_plain(batch.column(layout.header[i])))) for role, i in layout.text.items()}
    time = None
    if layout.time is not None:
        name = layout.header[layout.time]
        column = _plain(batch.column(name))
        if column.null_count:
            row = next(i for i, cell in enumerate(column) if not cell.is_valid)
            raise SettingError(
                f"{place(path, before + row + 1, name)}: no time. Every row needs a time.", key="no-time"
            )
        time = _moments(column, worded="%" in (layout.reading.time_format or ""))
    return ColumnBatch(np.arange(batch.num_rows) + before + 1, x, text, time)


def _numbers(column: Any, where: str) -> Floats:
    """Return a column's numbers, float64 [n], NaN for missing values."""
    import pyarrow as pa

    column = _plain(column)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    kind = column.type
    if _is_numeric(kind) or pa.types.is_null(kind):
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)
    dates = pa.types.is_temporal(kind)
    name = where.split("'")[1]
    time = typed("data.columns.time", name)
    hint = f"If this is the time: {time}. Otherwise leave it out" if dates else "Leave it out"
    raise SettingError(
        f"{where}: holds {kind} and no numbers. {hint}: [data] columns = {{ ignore = {toml_list([name])} }}; or write "
        "numbers.",
        key="no-numbers",
    )


def _is_numeric(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _plain(column: Any) -> Any:
    import pyarrow as pa

    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _texts(column: Any) -> Any:
    """Return a column's values as texts, those of booleans as :func:`parquet_rows` writes them."""
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        return pa.array([None if cell is None else str(cell) for cell in column.to_pylist()], pa.string())
    return column.cast(pa.string())


def _moments(column: Any, *, worded: bool) -> tuple[Form, Floats] | list[str]:
    import pyarrow as pa

    column = column.cast(pa.timestamp("ms")) if pa.types.is_date(column.type) else column
    kind = column.type
    if pa.types.is_duration(kind):
        return NUMBERS, (column.cast(pa.int64()).to_numpy() / PER_SECOND[kind.unit])[:, None]
    if pa.types.is_timestamp(kind):
        count = column.cast(pa.int64()).to_numpy()
        if kind.unit == "ns":  # reduced to microseconds, as for dates in texts
            return ISO[kind.tz is not None], (count // 1000 / 1e6)[:, None]
        return ISO[kind.tz is not None], (count / PER_SECOND[kind.unit])[:, None]
    if _is_numeric(kind) and not worded:
        values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        if np.isfinite(values).all():
            return NUMBERS, values[:, None]
    return _stripped(column.cast(pa.string()))
