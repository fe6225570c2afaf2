"""The rows of a workbook's sheet (Excel), as texts like those of a CSV file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from fedfloor.data.files import unreadable
from fedfloor.data.lines import Row
from fedfloor.errors import SettingError, nearest

WORKBOOKS = (".xlsx", ".xlsm")


def is_workbook(path: Path) -> bool:
    """Return whether a file is a workbook, by its name."""
    return path.name.casefold().endswith(WORKBOOKS)


@contextmanager
def opened(path: Path, sheet: str | None, decimal: str = ".") -> Iterator[Iterator[Row]]:
    """Open a workbook; yield the rows of a sheet that are not empty, with the numbers that Excel gives them.

    Formulas count as the values that were saved with them; dates become ISO 8601.

    Args:
        path: an Excel file.
        sheet: its sheet; needed where several hold something.
        decimal: the mark that fractions are written with.

    Raises:
        SettingError: it cannot be read, or it is open which sheet.
    """
    import openpyxl

    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except OSError as error:
        raise unreadable(path, error) from error
    except Exception as error:
        raise _damaged(path, error) from error
    try:
        yield _whole(path, _rows(_chosen(path, book, sheet), decimal))
    finally:
        book.close()


def _whole(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield rows; its parts are unpacked and parsed as they are read."""
    try:
        yield from rows
    except Exception as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> SettingError:
    """Return the error for a file that openpyxl fails on, which raises anything from KeyError to zlib.error."""
    return SettingError(f"{path.name}: not a whole workbook ({error or type(error).__name__}). Save it as .xlsx again.")


def _chosen(path: Path, book: Any, wanted: str | None) -> Any:
    sheets = {one.title: one for one in book.worksheets}
    if wanted in sheets:
        return sheets[wanted]
    filled = [name for name, one in sheets.items() if next(_whole(path, _rows(one, ".")), None) is not None]
    if wanted is not None:
        near = nearest(wanted, sheets)
        raise SettingError(f"{path.name}: no sheet '{wanted}'.{near} There are: {', '.join(sheets)}.")
    if len(filled) > 1:
        raise SettingError(
            f"{path.name}: {len(filled)} sheets ({', '.join(filled)}). Choose one: --set 'data.sheet={filled[0]}'. If "
            "each is a table of its own, save them as files into a folder."
        )
    return sheets[filled[0]] if filled else book.worksheets[0]


def _rows(sheet: Any, decimal: str) -> Iterator[Row]:
    width = 0
    for number, cells in enumerate(sheet.iter_rows(values_only=True), start=1):
        texts = [_text(cell, decimal) for cell in cells]
        while texts and not texts[-1]:
            texts.pop()
        if texts:
            width = width or len(texts)
            yield number, texts + [""] * (width - len(texts))


def _text(cell: object, decimal: str) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float):
        return repr(cell).replace(".", decimal)
    if isinstance(cell, datetime | date | time):
        return cell.isoformat()
    return str(cell)
