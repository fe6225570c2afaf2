"""The rows of a table (CSV or a sheet of a workbook) as texts, with the line in which each begins."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import logging
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime, time
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from fedfloor.base import regular
from fedfloor.base.errors import SettingError, nearest
from fedfloor.base.names import typed
from fedfloor.data.files import unreadable
from fedfloor.data.files.packed import check_ratio, unpacked_bytes

DELIMITERS = ",;\t|"
CALLED = {"tab": "\t", "blanks": " "}  # delimiters with names in [data] delimiter
FRACTION = re.compile(r"\s*+[+-]?[\d.' ]*+,\d+(e[+-]?\d+)?\s*", re.IGNORECASE)  # a number with a decimal comma
PACKED = (".gz", ".bz2", ".xz", ".zip")  # endings; the first bytes determine the compression
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
BLOCK = 500  # rows converted at once, so that their cells stay in the processor's cache
STATED = re.compile(r'"?sep=([,;\t|])"?')  # the delimiter in a line above the header
LONGEST_LINE = 1 << 24  # characters
MOST_ROWS = 1 << 20  # of a sheet in a workbook
MOST_COLUMNS = 1 << 12  # proposals of fedfloor new cost the square of it: 4 s, 0.5 GB
LONGEST_HEADER = 100  # lines, because quoted names may contain line breaks

LEGACY = "cp1252"  # Windows-1252, a superset of Latin-1's letters, for tables that are not UTF-8
CONTROLS = bytes({*range(32)} - {*b"\t\n\f\r"})  # bytes that do not occur in text

Row = tuple[int, list[str]]
Result = TypeVar("Result")

log = logging.getLogger(__name__)


class EncodingError(SettingError):
    """An error: a table is not in the expected encoding."""

    key = "encoding"


class SheetsError(SettingError):
    """An error: a workbook has several non-empty ``sheets``, and none is chosen."""

    key = "sheets"

    def __init__(self, message: str, sheets: Sequence[str]) -> None:
        super().__init__(message)
        self.sheets = list(sheets)


def place(path: Path, line: int, column: str | None = None) -> str:
    """Return a place in a table, for messages.

    >>> place(Path("a/b.csv"), 3, "time")
    "b.csv, row 3, column 'time'"
    """
    return f"{path.name}, row {line}" + ("" if column is None else f", column '{column}'")


def decoded(path: Path, given: str | None, read: Callable[[str | None], Result]) -> Result:
    """Return ``read(given)``, or ``read("cp1252")`` if no encoding was given and the table is not UTF-8."""
    try:
        return read(given)
    except EncodingError as error:
        if given is not None or not _is_legacy(path):
            raise
        log.info(
            "%s: not UTF-8, therefore read as Windows-1252 (Latin-1), like further tables of this kind; first: %s. If "
            "this is wrong, set data.encoding.",
            path.name, str(error).removeprefix(f"{path.name}, ").split(": '")[0],
            extra={"once": True},
        )  # fmt: skip
    return read(LEGACY)


def _is_legacy(path: Path) -> bool:
    """Return whether a file is text in Windows-1252, without control characters and undefined bytes."""
    with suppress(OSError, UnicodeDecodeError, *DAMAGED), unpacked_bytes(path) as stream:
        while piece := stream.read(1 << 20):
            if piece.decode(LEGACY) and piece.translate(None, CONTROLS) != piece:
                return False
        return True
    return False


@contextmanager
def opened(
    path: Path, encoding: str | None = None, decimal: str = ".", delimiter: str | None = None,
    skip: Collection[int] = (),
) -> Iterator[Iterator[Row]]:  # fmt: skip
    """Open a table, also compressed (gzip, bzip2, xz, or the only file in a zip archive); yield its non-empty rows.

    A row is (line number, cells); rows in ``skip`` are left out. The delimiter is ``delimiter``, or that of a line
    ``sep=;`` above the header, as Excel writes it; otherwise :func:`delimiter_of` derives it from the first row. The
    default encoding is UTF-8, or UTF-16 after a byte-order mark.

    Raises:
        EncodingError: the table has another encoding.
        SettingError: the table is unreadable, incomplete, or has an unmatched quotation mark; an archive holds several
            files or is encrypted.
    """
    try:
        with unpacked_bytes(path) as stream:
            encoding = encoding or marked(stream.peek(2)) or "utf-8-sig"
            with io.TextIOWrapper(stream, encoding=encoding, newline="") as text:
                yield _parsed(path, text, decimal, delimiter, skip)
    except UnicodeError as error:
        raise _undecodable(path, encoding, decimal, delimiter) from error
    except DAMAGED as error:
        raise SettingError(
            f"{path.name}: not a complete table ({error}). Copy or export it again.", key="damaged-table"
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def marked(start: bytes) -> str | None:
    """Return the encoding that a byte-order mark at the start of a file stands for; None without a mark."""
    return "utf-16" if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else None


def in_blocks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Yield the rows in lists of :data:`BLOCK`."""
    while block := list(islice(rows, BLOCK)):
        yield block


def delimiter_of(head: str, decimal: str = ".", given: str | None = None) -> str:
    """Return the delimiter of a table.

    It is the most frequent of ``, ; tab |`` in the first row outside quotes; a blank (or several) if none occurs. A
    comma is passed over for another delimiter if commas are decimal marks, by ``decimal`` or judged by the cells.

    >>> delimiter_of('"Temp, inside";"Temp, outside";label'), delimiter_of("unit  cycle label")
    (';', ' ')
    >>> delimiter_of("1,5;2,5;3,5"), delimiter_of("1,5 2,5", ","), delimiter_of("a,b;c"), delimiter_of("a,b;c", ",")
    (';', ' ', ',', ';')
    """
    if given is not None:
        return CALLED.get(given, given)
    bare = re.sub(r'"[^"]*"', "x", head).strip(" \r\n")
    most = max(DELIMITERS, key=bare.count)
    if most not in bare:
        return " " if " " in bare else most
    if most == ",":
        other = max(DELIMITERS[1:], key=bare.count)
        if other in bare and (decimal == "," or _has_fractions(bare, other)):
            return other
        if decimal == "," and " " in bare and _has_fractions(bare, " "):
            return " "
    return most


def _has_fractions(bare: str, delimiter: str) -> bool:
    """Return whether commas are decimal marks in all cells with commas; in a tie, in one of them."""
    fractions = [FRACTION.fullmatch(cell) is not None for cell in bare.split(delimiter) if "," in cell]
    return any(fractions) if bare.count(delimiter) == bare.count(",") else all(fractions)


def unpacked(name: str) -> str:
    """Return a file's name in lower case, without the ending of a compression.

    >>> unpacked("May.CSV.xz"), unpacked("may.csv")
    ('may.csv', 'may.csv')
    """
    name = name.casefold()
    return name.removesuffix(next((end for end in PACKED if name.endswith(end)), ""))


def _parsed(
    path: Path, text: io.TextIOWrapper, decimal: str, given: str | None, skip: Collection[int]
) -> Iterator[Row]:
    body = _lines(path, text)
    head = [next(body, "")]
    line = 1
    stated = STATED.fullmatch(head[0].strip())
    if stated:
        head = [next(body, "")]
        line = 2
    while line in skip or (skip and head[0].isspace()):  # titles need not be complete rows
        head = [next(body, "")]
        line = line + 1
    while "".join(head).count('"') % 2 and len(head) < LONGEST_HEADER:
        head.append(next(body, ""))
    delimiter = stated[1] if stated and given is None else delimiter_of("".join(head), decimal, given)
    lines = chain(head, body)
    blanks = delimiter == " "
    if blanks:  # several blanks are one delimiter; blanks at a line's ends are ignored
        lines = (line.strip() + "\n" for line in lines)  # type: ignore[assignment]
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=blanks, strict=True)
    above = line - 1
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise SettingError(
                f"{place(path, line)}: not a complete row ({error}). Look for an unclosed quotation mark; inside a "
                'cell, write it twice, as "".'
            ) from error
        if cells is None:
            return
        if (cells or line == 1) and line not in skip:
            check_columns(place(path, line), len(cells))
            yield line, cells
        line = above + reader.line_num + 1  # the line of the next row: cells may contain line breaks


def _lines(path: Path, text: io.TextIOWrapper) -> Iterator[str]:
    while line := text.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise SettingError(
                f"{path.name}: a line of more than {LONGEST_LINE:,} characters, therefore no table. Give the rows of "
                "a table in lines.",
                key="long-line",
            )
        yield line


def check_columns(where: str, columns: int) -> None:
    """Refuse a table with more than :data:`MOST_COLUMNS` columns."""
    if columns > MOST_COLUMNS:
        raise SettingError(
            f"{where}: {columns:,} columns; at most {MOST_COLUMNS:,}. If they are the values of one sensor, such as a "
            "spectrum or a window, write them as windows: np.savez(FILE, x=…, y=…) with x float32 [samples, sensors, "
            "values]. Otherwise leave columns out of the file.",
            key="many-columns",
        )


def _undecodable(path: Path, encoding: str | None, decimal: str, given: str | None) -> EncodingError:
    """Return the error for a file in another encoding; if UTF-8 was expected, it names the first wrong cell."""
    advice = "Save the table as CSV in UTF-8, or name its encoding: data.encoding."
    if encoding != "utf-8-sig":
        return EncodingError(f"{path.name}: not text in {encoding}. {advice}")
    with suppress(OSError, *DAMAGED), unpacked_bytes(path) as stream:  # the file may be incomplete, too
        head = stream.readline()
        delimiter = delimiter_of(head.decode("utf-8", "replace"), decimal, given)
        for number, line in enumerate(chain([head], stream), start=1):
            cells = line.decode("utf-8", "surrogateescape").rstrip("\r\n").split(delimiter)
            for column, cell in enumerate(cells, start=1):
                if any("\udc80" <= letter <= "\udcff" for letter in cell):
                    excerpt = cell.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
                    where = f"{place(path, number)}, column {column}"
                    return EncodingError(f"{where}: '{excerpt}' is not UTF-8 text. {advice}")
    return EncodingError(f"{path.name}: not UTF-8 text. {advice}")


WORKBOOKS = (".xlsx", ".xlsm")


def is_workbook(path: Path) -> bool:
    """Return whether a file's name has the ending of a workbook."""
    return path.name.casefold().endswith(WORKBOOKS)


@contextmanager
def opened_workbook(
    path: Path, sheet: str | None, decimal: str = ".", skip: Collection[int] = ()
) -> Iterator[Iterator[Row]]:
    """Open a workbook; yield the rows of a sheet that are neither empty nor in ``skip``, with Excel's row numbers.

    The cells of formulas are their saved values; dates become ISO 8601.
    """
    import openpyxl

    with _complete(path), zipfile.ZipFile(regular.check(path)) as packed:
        unpacked = sum(part.file_size for part in packed.infolist())
    check_ratio(path, path.stat().st_size, unpacked, "save the table as .csv")
    with _complete(path):
        book = openpyxl.load_workbook(regular.check(path), read_only=True, data_only=True)
    try:
        yield _sheet_rows(path, _chosen(path, book, sheet), decimal, skip)
    finally:
        book.close()


@contextmanager
def _complete(path: Path) -> Iterator[None]:
    """Convert the errors of openpyxl, which range from KeyError to zlib.error."""
    try:
        yield
    except OSError as error:
        raise unreadable(path, error) from error
    except Exception as error:
        why = str(error)[:200] or type(error).__name__
        raise SettingError(
            f"{path.name}: not a complete workbook ({why}). Save it as .xlsx again.",
            key="damaged-table",
        ) from error


def _chosen(path: Path, book: Any, wanted: str | None) -> Any:
    sheets = {sheet.title: sheet for sheet in book.worksheets}
    if not sheets:
        raise SettingError(
            f"{path.name}: a workbook without a sheet of cells. Save the table as .xlsx again.", key="damaged-table"
        )
    if wanted in sheets:
        return sheets[wanted]
    filled = [name for name, sheet in sheets.items() if next(_sheet_rows(path, sheet, "."), None) is not None]
    if wanted is not None:
        near = nearest(wanted, sheets)
        raise SettingError(
            f"{path.name}: no sheet '{wanted}'.{near} Available: {', '.join(sheets)}. Rename the sheet, or set [data] "
            "sheet; a trained model reads the sheet with the same name as in training.",
            key="no-sheet",
        )
    if len(filled) > 1:
        raise SheetsError(
            f"{path.name}: {len(filled)} sheets ({', '.join(filled)}). Choose one: {typed('data.sheet', filled[0])}. "
            "If each is a separate table, save them as files in a folder.", filled,
        )  # fmt: skip
    return sheets[filled[0]] if filled else book.worksheets[0]


def _sheet_rows(path: Path, sheet: Any, decimal: str, skip: Collection[int] = ()) -> Iterator[Row]:
    width = 0
    with _complete(path):
        for number, cells in enumerate(sheet.iter_rows(values_only=True), start=1):
            if number > MOST_ROWS:  # rows up to a false number would be empty ones, without end
                raise ValueError(f"a cell below row {MOST_ROWS:,}, the last one of a sheet")
            texts = [_text(cell, decimal) for cell in cells]
            while texts and not texts[-1]:
                texts.pop()
            if texts and number not in skip:
                width = width or len(texts)
                yield number, texts + [""] * (width - len(texts))


def _text(cell: object, decimal: str) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float):
        return repr(cell).replace(".", decimal)
    return cell.isoformat() if isinstance(cell, datetime | date | time) else str(cell)
