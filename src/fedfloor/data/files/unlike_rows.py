"""Rows of a table that are no samples: names of columns in several rows, and sums between or below the samples."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from fedfloor.base import regular
from fedfloor.base.errors import SettingError
from fedfloor.base.names import count, excerpt, legible, toml_list
from fedfloor.data.files.columnar import is_parquet
from fedfloor.data.files.excerpt import Excerpt
from fedfloor.data.files.layout import looks_like_time
from fedfloor.data.files.preamble import NUMBER, units_below
from fedfloor.data.files.recipes import ConversionError, code_of, converted, then
from fedfloor.data.files.rows import Row, decoded, is_workbook
from fedfloor.data.files.sheet import text_rows

OF_ROWS = ("names-in-rows", "sums")  # keys of errors
TOP = 12  # rows searched for names
LISTED = 20  # rows that a setting lists; further ones are left out by code
TAIL = 1 << 16  # bytes at a file's end
MOST = 4  # of so many rows one may be a sum
SUM = r"(zwischen|teil|gesamt|end)?summen?|(sub|grand )?-?totals?|gesamt(ergebnis|wert)?|insgesamt|sum|[øΣ∑]"
MEAN = r"(gesamt)?mittel(wert)?|durchschnitt|mean|average|avg|moyenne|somme|ergebnis"
SUMS = re.compile(rf"({SUM}|{MEAN})[.:]?", re.IGNORECASE)
OF_PART = re.compile(rf"(.+?)[ -]+({SUM}|{MEAN})[.:]?", re.IGNORECASE)  # "Pump 1 Total", as spreadsheets write it
BESIDE = re.compile(r"(min|max)(imum)?|std(abw|dev)?|(standard)?abweichung|anzahl|count|median", re.IGNORECASE)
AT_END = re.compile(rf"(?im)^[\"';,|\s]*([^;,|\t\n]+[ -])?({SUM}|{MEAN})[.:]?[\"']?\s*[;,|\t]".encode())


def check_names(path: Path, given: Mapping[str, Any]) -> None:
    """Refuse names in two rows or more, groups of columns above their names, with the settings that name the columns.

    Names in a single row, with titles above and units below, are read without a setting.
    """
    if is_parquet(path) or given.get("header") or given.get("skip"):
        return
    top = [(line, [*map(legible, cells)]) for line, cells in _rows(path, {**given, "skip": None}, TOP)]
    found = named_by_rows([row for row in top if any(row[1])])
    if found is None:
        return
    names, used, above = found
    text = " and ".join(map(str, used))
    raise SettingError(
        f"{path.name}: the names of its columns are in rows {text}, such as {excerpt([*map(repr, names)], 4)}. Name "
        f"them together: --set 'data.skip={above}' --set {shlex.quote(f'data.header={toml_list(names)}')}.",
        key=OF_ROWS[0],
    )


def _rows(path: Path, given: Mapping[str, Any], many: int | None = None) -> list[Row]:
    """Return the first rows of a table, or all, in its encoding."""

    def read(encoding: str | None) -> list[Row]:
        with text_rows(path, {**given, "encoding": encoding}) as rows:
            return [(line, [cell.strip() for cell in cells]) for line, cells in islice(rows, many)]

    return decoded(path, given.get("encoding"), read)


def named_by_rows(top: Sequence[Row]) -> tuple[list[str], list[int], list[int]] | None:
    """Return names made of several rows, the numbers of these rows, and of all rows above the first values.

    None if a single row has a name for each column, or the rows together have not. A group stands above the first of
    its columns. A column is called by its lower name, after that of its group where another has the same. Rows with a
    number or a time are no names: the first life of a table may have ended at a time that the others lack.

    >>> rows = [["line", "motor", "", "pump", ""], ["", "temp", "load", "temp", "flow"], ["", "C", "A", "C", "l/s"]]
    >>> values = [["a", "51", "2", "40", "7"]] * 2
    >>> named_by_rows([*enumerate(rows + values, start=1)])
    (['line', 'motor temp', 'load', 'pump temp', 'flow'], [1, 2], [1, 2, 3])
    """
    width = max((len(cells) for _, cells in top), default=0)
    filled = [(line, cells + [""] * (width - len(cells))) for line, cells in top]
    first = next((i for i, (_, cells) in enumerate(filled) if _holds_values(cells)), None)
    if not first or len(top[first][1]) < width:  # a title with more cells: of another delimiter
        return None
    heads = [row for row in filled[:first] if sum(map(bool, row[1])) > 1]
    if len(heads) > 2 or (len(heads) == 2 and _are_full(heads[0][1])):
        unit = units_below([heads[-1], *filled[first:]])
        told = [any(cells) for cells in zip(*(cells for _, cells in heads[:-1]), strict=True)]
        heads = heads[:-1] if unit and all(told[i] for i, cell in enumerate(heads[-1][1]) if cell) else heads
    alone = any("" not in cells and _are_full(cells) for _, cells in heads)  # a single row names every column
    if len(heads) < 2 or alone or _are_full(heads[-1][1]) or any(map(_is_value, chain(*(row[1] for row in heads)))):
        return None
    names = heads[0][1]
    for _, lower in heads[1:]:
        names = _joined(names, lower)
    if not _are_full(names):
        return None
    names = [name or f"column {number}" for number, name in enumerate(names, start=1)]
    return names, [line for line, _ in heads], [line for line, _ in filled[:first]]


def _holds_values(cells: Sequence[str]) -> bool:
    """Return whether a third of a row's filled cells, at least, and two of them, are numbers or times."""
    known = [cell for cell in cells if cell]
    values = sum(map(_is_value, known))
    return values > 1 and 3 * values >= len(known)


def _is_value(cell: str) -> bool:
    return NUMBER.fullmatch(cell) is not None or looks_like_time(cell)


def _are_full(names: Sequence[str]) -> bool:
    """Return whether all columns but one have a name, and no two the same."""
    known = [name for name in names if name]
    return len(known) >= max(2, len(names) - 1) and len({*known}) == len(known)


def _joined(upper: Sequence[str], lower: Sequence[str]) -> list[str]:
    """Return names of two rows: the lower one, or else the upper one; after the group's where it recurs."""
    groups = list[str]()
    for cell in upper:
        groups.append(cell or (groups[-1] if groups else ""))
    often = Counter(lower)
    return [
        (f"{group} {name}" if often[name] > 1 and group else name) if name else above
        for group, above, name in zip(groups, upper, lower, strict=True)
    ]


def check_sums(path: Path, given: Mapping[str, Any], table: Excerpt, *, alone: bool = True) -> None:
    """Refuse rows of sums and means, as spreadsheets write between machines or below the table.

    Such a row begins with a word for it and has no time. It would train as a sample, of a machine of its own.

    Args:
        path: the table's file.
        given: the settings of ``[data]``, with the rows above the table.
        table: its first rows.
        alone: whether it is the only table, so that rows can be left out by their number.
    """
    if is_parquet(path) or not (any(map(_begins_as_sum, table.rows)) or _ends_as_sum(path)):
        return
    body = _rows(path, given)[not given.get("header") :]
    found = sums_of(body)
    if not found or MOST * len(found) > len(body):
        return
    cells = dict(body)
    place = next(i for i, cell in enumerate(cells[found[0]]) if cell)
    words = [*dict.fromkeys(next(filter(None, cells[line])) for line in found)]
    column = table.names[place] if place < len(table.names) else f"column {place + 1}"
    told = (
        f"{path.name}, row {found[0]}, column '{column}': {excerpt([*map(repr, words)], 3)}: "
        f"{count(len(found), 'row')} of sums or means, no {'sample' if len(found) == 1 else 'samples'}."
    )
    if len(found) <= LISTED:
        above = given.get("skip") or []
        rows_out = sorted({*found, *(range(1, above + 1) if isinstance(above, int) else above)})
        them = "it" if len(found) == 1 else "them"
        leave = f", or leave {them} out: --set 'data.skip={rows_out}'" if alone else " from this table"
        raise SettingError(f"{told} Delete {them}{leave}.", key=OF_ROWS[1])
    read, write, out = converted(path, given, "samples")
    raise ConversionError(
        "sums", told=told, read=read, column=code_of(column), words=code_of(words), write=write, then=then(out)
    )


def sums_of(rows: Sequence[Row]) -> list[int]:
    """Return the numbers of the rows that begin with a word for a sum or a mean, and have no time.

    >>> sums_of([(2, ["P1", "3"]), (3, ["P1 Total", "3"]), (4, ["total", "3"]), (5, ["max", "3"])])
    [3, 4, 5]
    >>> sums_of([(2, ["max", "3"]), (3, ["flow total", "4"]), (4, ["total", "2026-03-01 06:00"])])
    []
    """
    starts = {next(filter(None, cells), "") for _, cells in rows}
    untimed = [row for row in rows if _begins_as_sum(row[1]) and not any(map(looks_like_time, row[1]))]
    found = []
    for line, cells in untimed:
        word = next(filter(None, cells), "")
        part = OF_PART.fullmatch(word)
        if SUMS.fullmatch(word) or (part and part[1] in starts):
            found.append(line)
    end = [line for line, cells in rows[-LISTED:] if BESIDE.fullmatch(next(filter(None, cells), ""))]
    last = rows[-1][0] if rows else 0
    return sorted({*found, *end}) if found and last in (*found, *end) else found


def _begins_as_sum(cells: Sequence[str]) -> bool:
    word = next(filter(None, cells), "")
    return SUMS.fullmatch(word) is not None or OF_PART.fullmatch(word) is not None


def _ends_as_sum(path: Path) -> bool:
    """Return whether one of the last lines of a text begins with a word for a sum."""
    if is_workbook(path):
        return False
    with regular.opened(path) as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - TAIL))
        return AT_END.search(file.read()) is not None
