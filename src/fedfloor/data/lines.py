"""The rows of a CSV file, and in which line each begins."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

from fedfloor.data.files import unreadable
from fedfloor.errors import SettingError

DELIMITERS = ",;\t|"
BLOCK = 500  # rows turned into numbers at once: their cells stay in the processor's cache
LONGEST_HEADER = 100  # lines: names in quotes may hold line ends

Row = tuple[int, list[str]]


def place(path: Path, line: int, column: str | None = None) -> str:
    """Return a place in a table in words.

    >>> place(Path("a/b.csv"), 3, "time")
    "b.csv, row 3, column 'time'"
    """
    return f"{path.name}, row {line}" + ("" if column is None else f", column '{column}'")


@contextmanager
def opened(path: Path) -> Iterator[Iterator[Row]]:
    """Open a table, packed with gzip or not, and give its rows that are not empty: (line number, cells).

    The delimiter is the one of ``, ; tab |`` that the first row has most of.

    Raises:
        SettingError: it cannot be read, is cut short, is not UTF-8, or has a quotation mark too many.
    """
    try:
        with _bytes(path) as stream, io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
            yield _parsed(path, text)
    except UnicodeDecodeError as error:
        raise _not_utf8(path) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise SettingError(f"{path.name}: not a whole table ({error}).") from error
    except OSError as error:
        raise unreadable(path, error) from error


def in_blocks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Return the rows, :data:`BLOCK` at a time."""
    block = []
    for row in rows:
        block.append(row)
        if len(block) == BLOCK:
            yield block
            block = []
    if block:
        yield block


def delimiter_of(head: str) -> str:
    """Return the delimiter that a header has most of, quoted names aside.

    >>> delimiter_of('"Temp, inside";"Temp, outside";label')
    ';'
    """
    bare = re.sub(r'"[^"]*"', "", head)
    return max(DELIMITERS, key=bare.count)


def _bytes(path: Path) -> BinaryIO:
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path)) if packed else path.open("rb")


def _parsed(path: Path, text: io.TextIOWrapper) -> Iterator[Row]:
    head = [text.readline()]
    while "".join(head).count('"') % 2 and len(head) < LONGEST_HEADER:
        head.append(text.readline())
    reader = csv.reader(chain(head, text), delimiter=delimiter_of("".join(head)), strict=True)
    line = 1
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise SettingError(
                f"{place(path, line)}: not a whole row ({error}). Look for a quotation mark that is not closed; one "
                'inside a cell is written twice, as "".'
            ) from error
        if cells is None:
            return
        if cells or line == 1:
            yield line, cells
        line = reader.line_num + 1  # where the next row begins: cells may hold line ends


def _not_utf8(path: Path) -> SettingError:
    """Return the error for a file that is no UTF-8 text, with the first cell that is not."""
    advice = "Save the table as CSV in UTF-8."
    with suppress(EOFError, OSError, zlib.error), _bytes(path) as stream:  # it may be cut short as well
        head = stream.readline()
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
            return SettingError(f"{place(path, 1)}: UTF-16 text. {advice}")
        delimiter = delimiter_of(head.decode("utf-8", "replace"))
        for number, line in enumerate(chain([head], stream), start=1):
            cells = line.decode("utf-8", "surrogateescape").rstrip("\r\n").split(delimiter)
            for column, cell in enumerate(cells, start=1):
                if any("\udc80" <= letter <= "\udcff" for letter in cell):
                    shown = cell.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
                    where = f"{place(path, number)}, column {column}"
                    return SettingError(f"{where}: '{shown}' is not UTF-8 text. {advice}")
    return SettingError(f"{path.name}: not UTF-8 text. {advice}")
