"""Rows of a table without data: titles above its header, and units below it."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from fedfloor.data.ended import MISSING
from fedfloor.data.files.columnar import is_parquet
from fedfloor.data.files.packed import unpacked_bytes
from fedfloor.data.files.rows import (
    DAMAGED,
    STATED,
    delimiter_of,
    is_workbook,
    marked,
    opened_workbook,
)  # fmt: skip

SEARCHED = 60  # rows searched for the header
BELOW = 3  # rows below a header, if present, that must have as many cells
LONGEST_LINE = 1 << 20  # bytes
LONGEST_UNIT = 16  # characters
UNIT = re.compile(
    r"[\[(]?(n|u|µ|μ|m)?s[\])]?|[\[(]?(sec|min|h|°C|°F|K|bar|Pa|%|V|A|W|kW|Hz|rpm|1/min|mm|m/s|N|Nm|g)[\])]?"
)
NUMBER = re.compile(r"[+-]?\d[\d' ]*([.,]\d{3})*([.,]\d*)?(e[+-]?\d+)?", re.IGNORECASE)  # excludes dates

Rows = Sequence[tuple[int, list[str]]]


def preamble(path: Path, given: Mapping[str, Any]) -> list[int]:
    """Return the numbers, counted from 1, of the rows above a table's header and of a row of units below it.

    The header is the last row of names with more filled cells than each row above it and as many cells as the rows
    below it; such rows above it are names and values of the recording. It is an earlier one whose first cell alone is
    empty, as `write.csv` of R and `to_csv` of pandas write it above the names of rows, if the later one has numbers.
    Empty rows are not counted. For an unreadable file the list is empty, and the reader of the table reports the
    problem.
    """
    if is_parquet(path) or given.get("header"):
        return []
    if is_workbook(path):
        with opened_workbook(path, given.get("sheet"), given.get("decimal", ".")) as rows:
            first = list(islice(rows, SEARCHED))
        width = max((len(cells) for _, cells in first), default=0)  # without empty cells at a row's end
        return _preamble([[(number, cells + [""] * (width - len(cells))) for number, cells in first]])
    try:
        with unpacked_bytes(path) as stream:
            start = b"".join(stream.readline(LONGEST_LINE) for _ in range(SEARCHED))
    except (OSError, *DAMAGED):
        return []
    encoding = given.get("encoding") or marked(start) or "utf-8-sig"
    lines = list(enumerate(start.decode(encoding, "replace").splitlines(), start=1))
    lines = [(number, line) for number, line in lines if line.strip() and not (number == 1 and STATED.fullmatch(line))]
    decimal = given.get("decimal", ".")
    delimiter = given.get("delimiter")
    marks = dict.fromkeys(delimiter_of(line, decimal, delimiter) for _, line in lines)
    return _preamble([[(number, _cells(line, mark)) for number, line in lines] for mark in marks])


def _preamble(readings: Sequence[Rows]) -> list[int]:
    """Return the rows to skip of the reading whose header is found first."""
    headers = [
        (_header(rows, places), rows)
        for rows in readings
        if (places := [*filter(partial(_is_header, rows), range(len(rows)))])
    ]
    if not headers:
        return []
    place, rows = min(headers, key=lambda header: header[0])
    return [number for number, _ in rows[:place]] + units_below(rows[place + 1 :])


def _cells(line: str, mark: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=mark, skipinitialspace=mark == " "), [])
    except csv.Error:
        return [line]


def _filled(cells: Sequence[str]) -> int:
    return sum(bool(cell.strip()) for cell in cells)


def _header(rows: Rows, places: Sequence[int]) -> int:
    """Return the header's place of all that have the form of one."""
    *earlier, last = places
    if _numbers(rows[last][1]):
        for place in earlier:
            first, *names = rows[place][1]
            if not first.strip() and not _numbers(names) and len({*names}) == len(names):
                return place
    return last


def _numbers(cells: Sequence[str]) -> int:
    return sum(NUMBER.fullmatch(cell.strip()) is not None for cell in cells)


def _is_header(rows: Rows, place: int) -> bool:
    cells = rows[place][1]
    below = rows[place + 1 : place + 1 + BELOW]
    names = [cell for cell in cells if cell.strip()]
    return (
        len(names) >= max(2, len(cells) - 1)
        and 2 * _numbers(names) < len(names)
        and all(_filled(above) < len(names) for _, above in rows[:place])
        and bool(below)
        and all(len(row) == len(cells) for _, row in below)
    )


def units_below(rows: Rows) -> list[int]:
    """Return the number of the first of some rows if it holds only short texts above columns of numbers."""
    if len(rows) < 2:
        return []
    (number, first), *rest = rows
    measured = [
        i for i in range(len(first))
        if all(i < len(row) and (not row[i].strip() or NUMBER.fullmatch(row[i].strip())) for _, row in rest)
        and any(row[i].strip() for _, row in rest)
    ]  # fmt: skip
    cells = [first[i].strip() for i in measured]
    words = [cell for cell in cells if cell]
    odd = [cell for cell in words if NUMBER.fullmatch(cell) or cell.casefold() in MISSING or len(cell) > LONGEST_UNIT]
    alone = all(UNIT.fullmatch(cell.strip()) for cell in first if cell.strip())  # one unit, of the time
    return [] if odd or not words or (2 * len(words) < len(cells) and not alone) else [number]
