"""Titles and units of a further table, which may be in other rows than those of the tables that settings were made for.

A historian writes two lines above one export and three above the next; rows that ``[data] skip`` lists for the one hold
values in the other.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from fedfloor.base.names import some
from fedfloor.data.ended import MISSING
from fedfloor.data.files.columnar import is_parquet
from fedfloor.data.files.joined import JOIN
from fedfloor.data.files.preamble import NUMBER, SEARCHED, preamble
from fedfloor.data.files.rows import Row, decoded, is_workbook, opened, opened_workbook
from fedfloor.data.reading import Reading, skipped

log = logging.getLogger(__name__)


def own_titles(path: Path, reading: Reading) -> Reading:
    """Return a reading that skips this table's own titles and units, if its header has the reading's sensors.

    Rows that the reading skips elsewhere stay left out unless they hold values here.
    """
    if reading.header and not is_parquet(path):
        return _under_header(path, reading)
    told = skipped(reading.skip)
    found = () if is_parquet(path) else tuple(preamble(path, _dialect(reading)))
    if found == told:
        return reading
    rows = _rows(path, reading, found)
    names = [cell.strip() for cell in rows[0][1]] if rows else []
    needed = [part for name in reading.columns.values for part in ([name] if name in names else name.split(JOIN))]
    if not needed or not {*needed} <= {*names}:
        return reading
    places = [names.index(name) for name in needed]
    lost = _with_values(rows[1:], told, places)
    skip = tuple(sorted({*found, *(line for line in told if line > rows[0][0] and line not in lost)}))
    if skip == told:
        return reading
    about = f"rows left out as titles or units: {_listed(skip)}" if skip else "no row is a title or a unit"
    log.info("%s: %s; in training: %s.", path.name, about, _listed(told) or "none")
    return replace(reading, skip=skip or None)


def _under_header(path: Path, reading: Reading) -> Reading:
    """Return a reading for names that ``[data] header`` gives, of a table that may have them in a row of its own.

    Rows that the reading skips are left out unless they hold values here.
    """
    rows = _rows(path, reading, ())
    cells = [[*map(str.strip, row)] for _, row in rows]
    if any({*reading.columns.values} <= {*row} and row.count("") < 2 for row in cells):
        return own_titles(path, replace(reading, header=None, skip=None))
    told = skipped(reading.skip)
    names = list(reading.header or ())
    places = [names.index(name) for name in reading.columns.values if name in names]
    lost = _with_values(rows, told, places)
    if not lost:
        return reading
    log.info("%s: rows with values are read, which data.skip left out in training: %s.", path.name,
             _listed(sorted(lost)))  # fmt: skip
    return replace(reading, skip=tuple(line for line in told if line not in lost) or None)


def tell_lost(path: Path, reading: Reading, header: int, places: Sequence[int]) -> None:
    """Note the rows below a header that ``[data] skip`` leaves out although they hold values of sensors.

    Args:
        header: the number of the header's row.
        places: the sensors' columns.
    """
    told = skipped(reading.skip)
    rows = _rows(path, reading, [line for line in told if line < header])
    if lost := _with_values(rows[1:], told, places):
        log.info("%s: data.skip leaves out rows with values: %s. If they are samples, take them out of data.skip, or "
                 "write all tables with the same rows above them.", path.name, _listed(sorted(lost)))  # fmt: skip


def _with_values(rows: Sequence[Row], told: Sequence[int], places: Sequence[int]) -> set[int]:
    return {line for line, cells in rows if line in told and holds_values(cells, places)}


def _listed(lines: Sequence[int]) -> str:
    return some([*map(str, lines)], 5)


def holds_values(cells: Sequence[str], places: Sequence[int]) -> bool:
    """Return whether the cells at these places are numbers, or missing, but not all missing.

    >>> holds_values(["1", "2,5", ""], [0, 1, 2]), holds_values(["s", "bar", "-"], [0, 1, 2])
    (True, False)
    """
    words = [cells[place].strip() if place < len(cells) else "" for place in places]
    known = [word for word in words if word.casefold() not in MISSING]
    return bool(known) and all(NUMBER.fullmatch(word) for word in known)


def _dialect(reading: Reading) -> dict[str, object]:
    return {**reading.dialect(), "decimal": reading.decimal, "skip": None}


def _rows(path: Path, reading: Reading, skip: Sequence[int]) -> list[Row]:
    if is_workbook(path):
        with opened_workbook(path, reading.sheet, reading.decimal, skip) as rows:
            return [*islice(rows, SEARCHED)]

    def read(encoding: str | None) -> list[Row]:
        with opened(path, encoding, reading.decimal, reading.delimiter, skip) as rows:
            return [*islice(rows, SEARCHED)]

    return decoded(path, reading.encoding, read)
