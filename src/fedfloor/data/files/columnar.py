"""Tables read by columns with pyarrow: Parquet, and plain CSV faster than by rows."""

from __future__ import annotations

import codecs
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.files import unreadable
from fedfloor.data.files.rows import delimiter_of, place, unpacked_bytes
from fedfloor.data.files.times import ISO, NUMBERS, Form
from fedfloor.errors import SettingError

PARQUET = (".parquet", ".pq")
QUICK = 1 << 20  # bytes of a CSV file above which pyarrow is faster, including its import
PIECE = 1 << 22  # bytes of a batch of CSV
ROWS = 1 << 16  # rows of a batch of Parquet
TEXTS = 1 << 11  # rows converted to texts at once: usually only the first rows are needed
LONGEST = 1 << 20  # bytes of a header
LARGEST = float(np.finfo(np.float32).max)
EXACT = 2.0**53  # microseconds that float64 represents exactly
NULLS = [
    "", "NA", "na", "N/A", "n/a", "NaN", "nan", "NAN", "NULL", "null", "Null", "NONE", "none", "None", "-", "?",
]  # fmt: skip
FAILURES = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
ISO_LENGTHS = (10, 19, 23, 26)  # days, seconds, milliseconds, microseconds

Floats = NDArray[np.float64]
Parse = Callable[[list[str], int, int], Floats]


class UnfitError(ValueError):
    """A table that must be read by rows: with quotes, blank lines, or a mistake to report."""


@dataclass(frozen=True)
class ColumnSelection:
    """The columns of a table to read, by their numbers.

    Args:
        names: the names of all columns.
        values: the sensors.
        text: the columns of roles.
        time: the times, or None.
        decimal: the decimal mark.
        worded: whether times are left as texts, because their format was given.
        delimiter: the delimiter of CSV, where it was given.
    """

    names: tuple[str, ...]
    values: tuple[int, ...]
    text: Mapping[str, int]
    time: int | None
    decimal: str
    worded: bool = False
    delimiter: str | None = None


@dataclass(frozen=True, eq=False)
class ColumnBatch:
    """A batch of a table's rows.

    Args:
        x: float64 [n, C], NaN where a value is missing.
        text: the texts by role, without surrounding blanks; empty where a cell is empty.
        time: the format and values [n, 1] of times; or texts; or None.
    """

    x: Floats
    text: Mapping[str, list[str]]
    time: tuple[Form, Floats] | list[str] | None

    def __len__(self) -> int:
        return len(self.x)


def is_parquet(path: Path) -> bool:
    """Return whether a file's name has the ending of a Parquet file."""
    return path.name.casefold().endswith(PARQUET)


# -- CSV ---------------------------------------------------------------------------------------------------------------


def csv_batches(path: Path, wanted: ColumnSelection, *, header: bool) -> Iterator[ColumnBatch]:
    """Yield the rows of a CSV file in UTF-8 in batches, with the same values as when read by rows.

    Raises:
        UnfitError: quotation marks, blank lines, NUL, other line ends, or a cell that is not clearly of its type.
    """
    import pyarrow as pa
    from pyarrow import csv

    kinds = dict.fromkeys(map(str, wanted.values), pa.float64())
    others = [*wanted.text.values(), *(() if wanted.time is None else (wanted.time,))]
    kinds |= dict.fromkeys(map(str, others), pa.string())
    try:
        with unpacked_bytes(path) as stream:
            body = _Body(stream, wanted, header=header)
            reader = csv.open_csv(
                pa.PythonFile(body, mode="r"),
                csv.ReadOptions(block_size=PIECE, column_names=[str(i) for i in range(len(wanted.names))]),
                csv.ParseOptions(delimiter=body.delimiter, quote_char=False),
                csv.ConvertOptions(
                    check_utf8=False, column_types=kinds, null_values=NULLS, include_columns=list(kinds),
                    decimal_point=wanted.decimal,
                ),
            )  # fmt: skip
            rows = 0
            for batch in reader:
                rows += batch.num_rows
                if batch.num_rows:
                    yield _of_csv({int(name): batch.column(name) for name in kinds}, wanted)
    except FAILURES as error:
        raise UnfitError(str(error)) from error
    finally:
        pa.default_memory_pool().release_unused()
    if rows != body.lines:
        raise UnfitError("blank lines")


class _Body:
    """A file object of the rows below a CSV file's header; raises UnfitError where pyarrow and csv differ."""

    def __init__(self, stream: BinaryIO, wanted: ColumnSelection, *, header: bool) -> None:
        first = stream.readline(LONGEST).removeprefix(codecs.BOM_UTF8)
        self.delimiter = delimiter_of(first.decode(), wanted.decimal, wanted.delimiter)
        if (
            self.delimiter == " "
            or b"\r" in first.rstrip(b"\r\n")
            or (b'"' in first and (first.count(b'"') % 2 or not header))
        ):
            raise UnfitError("a header of several lines, or no plain delimiter")
        self._stream, self._rest = stream, b"" if header else first
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._last = b"\n"
        self.lines, self.closed = 0, False

    def read(self, size: int = -1) -> bytes:
        block, self._rest = self._rest or self._stream.read(PIECE if size < 0 else size), b""
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


def _of_csv(columns: Mapping[int, Any], wanted: ColumnSelection) -> ColumnBatch:
    x = np.empty((len(next(iter(columns.values()))), len(wanted.values)))
    for place_, number in enumerate(wanted.values):
        values = columns[number].to_numpy(zero_copy_only=False)
        if (np.abs(values) > LARGEST).any() or int(np.isnan(values).sum()) != columns[number].null_count:
            raise UnfitError("numbers that are not finite")
        x[:, place_] = values
    text = {role: _words(columns[number]) for role, number in wanted.text.items()}
    return ColumnBatch(x, text, None if wanted.time is None else _times(columns[wanted.time], wanted))


def _words(column: Any) -> list[str]:
    """Return texts without surrounding blanks, with equal texts as one object; empty for missing ones."""
    coded = column.dictionary_encode()
    known = [("" if word is None else word).strip() for word in coded.dictionary.to_pylist()]
    if coded.null_count:
        return ["" if code is None else known[code] for code in coded.indices.to_pylist()]
    return [known[code] for code in coded.indices.to_numpy().tolist()]


def _times(column: Any, wanted: ColumnSelection) -> tuple[Form, Floats] | list[str]:
    """Return format and values of plain numbers and dates, otherwise texts."""
    import pyarrow as pa

    if wanted.worded:
        return [text.strip() for text in column.to_pylist()]
    if wanted.decimal == "." and (values := _cast(column, pa.float64())) is not None:
        numbers = values.to_numpy(zero_copy_only=False)
        if np.isfinite(numbers).all():
            return NUMBERS, numbers[:, None]
    if (dates := _dates(column)) is not None:
        return dates
    return [text.strip() for text in column.to_pylist()]


def _dates(column: Any) -> tuple[Form, Floats] | None:
    """Return format and values of ISO 8601 dates of equal length, without a zone or with Z; None for others."""
    import pyarrow as pa
    from pyarrow import compute

    first = column[0].as_py()
    zone = first[-1:] == "Z"
    if len(first) - zone not in ISO_LENGTHS or (zone and len(first) == 11):
        return None
    if not compute.all(compute.equal(compute.binary_length(column), len(first))).as_py():
        return None
    if zone:
        if not compute.all(compute.ends_with(column, "Z")).as_py():
            return None
        column = compute.utf8_slice_codeunits(column, 0, len(first) - 1)
    values = _cast(column, pa.timestamp("us"))
    if values is None:
        return None
    microseconds = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
    exact = np.abs(microseconds) < EXACT
    return (ISO[zone], (microseconds / 1e6)[:, None]) if exact.all() else None


def _cast(column: Any, kind: Any) -> Any:
    import pyarrow as pa

    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        return None


# -- Parquet -----------------------------------------------------------------------------------------------------------


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except pa.ArrowException as error:
        raise SettingError(
            f"{path.name}: not a complete Parquet file ({str(error).splitlines()[0]}). Write it again."
        ) from error
    except OSError as error:
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
            raise unreadable(path, error) from error
        raise SettingError(
            f"{path.name}: not a complete Parquet file ({str(error).splitlines()[0]}). Write it again."
        ) from error


def parquet_names(path: Path) -> list[str]:
    """Return the names of a Parquet file's columns."""
    with _parquet(path) as file:
        names: list[str] = file.schema_arrow.names
        return names


def parquet_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a Parquet file as texts, numbered from 1."""
    with _parquet(path) as file:
        number = 0
        for batch in file.iter_batches(TEXTS):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                number += 1
                yield number, ["" if cell is None else str(cell) for cell in row]


def parquet_batches(path: Path, wanted: ColumnSelection, parse: Parse) -> Iterator[ColumnBatch]:
    """Yield the rows of a Parquet file in batches; errors name row and column."""
    with _parquet(path) as file:
        others = [*wanted.text.values(), *(() if wanted.time is None else (wanted.time,))]
        names = [wanted.names[i] for i in (*wanted.values, *others)]
        before = 0
        for batch in file.iter_batches(ROWS, columns=names):
            if batch.num_rows:
                yield _of_parquet(path, batch, wanted, before, parse)
            before += batch.num_rows


def _of_parquet(path: Path, batch: Any, wanted: ColumnSelection, before: int, parse: Parse) -> ColumnBatch:
    import pyarrow as pa

    x = np.empty((batch.num_rows, len(wanted.values)))
    for place_, number in enumerate(wanted.values):
        name = wanted.names[number]
        column = batch.column(name)
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            x[:, place_] = parse(["" if text is None else text for text in column.to_pylist()], before + 1, number)
            continue
        x[:, place_] = _numbers(column, f"{path.name}, column '{name}'")
        wrong = np.abs(x[:, place_]) > LARGEST
        if wrong.any():
            row = int(wrong.argmax())
            raise SettingError(
                f"{place(path, before + row + 1, name)}: '{x[row, place_]}' is not a finite number. "
                "Correct it, or empty the cell."
            )
    text = {role: _words(_plain(batch.column(wanted.names[i])).cast(pa.string())) for role, i in wanted.text.items()}
    time = None
    if wanted.time is not None:
        column = _plain(batch.column(wanted.names[wanted.time]))
        if column.null_count:
            row = next(i for i, cell in enumerate(column) if not cell.is_valid)
            raise SettingError(
                f"{place(path, before + row + 1, wanted.names[wanted.time])}: no time. Every row needs a time."
            )
        time = _moments(column, worded=wanted.worded)
    return ColumnBatch(x, text, time)


def _numbers(column: Any, where: str) -> Floats:
    """Return a column's numbers, float64 [n], NaN for missing values."""
    import pyarrow as pa

    column = _plain(column)
    kind = column.type
    known = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if known or pa.types.is_null(kind):
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)
    if pa.types.is_boolean(kind):
        return np.asarray(column.cast(pa.int8()).cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    dates = pa.types.is_temporal(kind)
    name = where.split("'")[1]
    hint = f"If this is the time: --set data.columns.time={name}. Otherwise leave it out" if dates else "Leave it out"
    raise SettingError(
        f'{where}: holds {kind} and no numbers. {hint}: [data] columns = {{ ignore = ["{name}"] }}; or write numbers.'
    )


def _plain(column: Any) -> Any:
    import pyarrow as pa

    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _moments(column: Any, *, worded: bool) -> tuple[Form, Floats] | list[str]:
    import pyarrow as pa

    column = column.cast(pa.timestamp("ms")) if pa.types.is_date(column.type) else column
    kind = column.type
    if pa.types.is_timestamp(kind):
        count = column.cast(pa.int64()).to_numpy()
        if kind.unit == "ns":  # reduced to microseconds, as for dates in texts
            return ISO[kind.tz is not None], (count // 1000 / 1e6)[:, None]
        return ISO[kind.tz is not None], (count / {"s": 1.0, "ms": 1e3, "us": 1e6}[kind.unit])[:, None]
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if numbers and not worded:
        values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        if np.isfinite(values).all():
            return NUMBERS, values[:, None]
    texts: Sequence[str] = column.cast(pa.string()).to_pylist()
    return [text.strip() for text in texts]
