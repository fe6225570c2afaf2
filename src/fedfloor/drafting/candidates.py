"""Columns that may have a role which a table needs and no column clearly has, for the message that asks for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.data.ended import MISSING
from fedfloor.data.files.excerpt import Excerpt, Excerpts
from fedfloor.data.files.joined import JOIN, parts_of
from fedfloor.data.kinds import ANSWERS, CALLED, FEW, STATE, filled, is_number, is_text, is_time, names_machine, word_of
from fedfloor.data.reading import Columns
from fedfloor.data.roles import LOOKED_AT, roles_of, stated
from fedfloor.drafting.profile import TableProfile, first_rows

CANDIDATES = 4  # columns named for a role in an error
FLAGS = 3  # adjacent columns of 0 and 1 that are taken for a label
PLACES = (  # columns taken for the factory if each device has one value, and a value several devices
    "line", "production_line", "assembly_line", "linie", "fertigungslinie", "produktionslinie", "montagelinie",
    "building", "gebäude", "area", "bereich", "zone", "cell", "zelle", "department", "abteilung", "region", "shop",
    "shop_floor", "workshop", "werkstatt", "fab", "mill", "park", "wind_farm", "station", "arbeitsplatz", "anlage",
)  # fmt: skip


def candidates(paths: Sequence[Path], given: Mapping[str, Any], role: str, excerpts: Excerpts) -> dict[str, str]:
    """Return columns with few values that may be the device or the label, with descriptions, the most likely first.

    Texts come before numbers, and names with a word of the role's common names before others; for devices, names come
    first, also those of sites. The rows of a device are adjacent, or the column has texts, none of them a state such as
    ``normal``. A label is no date, and no candidate has the common name of another role. The last column comes first if
    it may be the label or is a varying measure; a first column that is a varying measure comes last.
    """
    tables = first_rows(paths, given, excerpts)
    table = replace(tables[0], rows=[row for each in tables if each.names == tables[0].names for row in each.rows])
    columns = given.get("columns", {})
    columns = {
        key: name for key, name in columns.items() if (role, key) != ("device", "factory")
    }  # sites may be devices
    form = given.get("time_format")
    known = stated(columns)
    roles = roles_of(table.top(LOOKED_AT), columns, form)
    others = [name for other, name in roles.items() if (role, other) != ("device", "factory")]
    known |= {part for name in others for part in parts_of(name)}
    ranked = []
    for i, name in enumerate(table.names):
        cells = _with_points(table.cells(name))
        many = len({*cells} - MISSING)
        text = is_text(cells, ".")
        whole = all(re.fullmatch(r"-?\d+(\.0)?", cell) for cell in filled(cells))
        most = FEW if role == "label" else len(cells) // FEW
        state = role == "device" and any(STATE.search(cell) for cell in cells)
        if name in known or state or is_time(cells[:LOOKED_AT], form, numbers=False):
            continue
        last = role == "label" and i == len(table.names) - 1
        if role == "label" and (last or i == 0) and _is_measure(cells):
            words = f"the {'last' if last else 'first'} column, numbers"
            ranked.append((not last, True, True, i if last else len(table.names), name, words))
        if not 2 <= many <= most or not (text or whole):
            continue
        changes = sum(a != b for a, b in pairwise(cells))
        if role == "label" or text or changes < 2 * many:
            split = {*word_of(name).split("_")}
            called = split & {*CALLED[role], *(ANSWERS if role == "label" else filter(names_machine, split))}
            called |= {word_of(name)} & {*CALLED["factory"], *PLACES} if role == "device" else set()
            called -= {"unit"} if not word_of(name).startswith("unit") else set()  # of a measurement
            rank = (not called, not text) if role == "device" else (not text, not called)
            ranked.append((not last, *rank, i, name, f"{many} {'texts' if text else 'numbers'}"))
    flags = _flags(table) if role == "label" else {}
    return flags | {name: words for *_, name, words in sorted(ranked)[:CANDIDATES]}


def _with_points(cells: list[str]) -> list[str]:
    """Return cells with decimal points if some are numbers with a decimal comma.

    >>> _with_points(["7,8", "3", "-"]), _with_points(["a,b", "c"])
    (['7.8', '3', '-'], ['a,b', 'c'])
    """
    points = [cell.replace(",", ".") for cell in cells]
    measured = any("," in cell and is_number(point) for cell, point in zip(cells, points, strict=True))
    return points if measured else cells


def _is_measure(cells: Sequence[str]) -> bool:
    """Return whether a column holds more than :data:`FEW` different numbers and does not number the rows."""
    known = filled(cells)
    if len({*known}) <= FEW or not all(map(is_number, known)):
        return False
    return not (np.diff([float(cell) for cell in known]) > 0).all()


def _flags(table: Excerpt) -> dict[str, str]:
    """Return fault flags, with descriptions: joined adjacent columns, at most one of which is 1 in a row.

    >>> rows = [["3", "1", "0", "0"], ["4", "0", "0", "0"], ["5", "0", "1", "0"], ["6", "0", "0", "1"]]
    >>> _flags(Excerpt(["x", "bent", "cut", "bump"], rows))
    {'bent + cut + bump': '3 flags'}
    """
    marked = [name if {*table.cells(name)} == {"0", "1"} else "" for name in table.names]
    runs = [list(run) for is_flag, run in groupby(marked, bool) if is_flag]
    single = [
        run for run in runs if len(run) >= FLAGS
        and all(row.count("1") <= 1 for row in zip(*map(table.cells, run), strict=True))
    ]  # fmt: skip
    return {JOIN.join(run): f"{len(run)} flags" for run in reversed(single)}


def separating(path: Path, given: Mapping[str, Any], excerpts: Excerpts) -> str | None:
    """Return the first column with which no two rows of a device have the same time, such as the number of a run."""
    columns = given.get("columns", {})
    if not path.is_file() or columns.get("run"):
        return None
    table = TableProfile.of(path, given, excerpts).counted
    roles = Columns().roles() | {role: name for role, name in columns.items() if isinstance(name, str)}
    device, time = (table.cells(roles[role]) if roles[role] in table.names else [] for role in ("device", "time"))
    free = [name for name in table.names if name not in roles.values()]
    for name in sorted(free, key=lambda name: word_of(name) not in CALLED["run"]):
        group = [*zip(device or time, table.cells(name), strict=True)] if device else [*table.cells(name)]
        if FEW * len({*group}) <= len(group) == len({*zip(group, time, strict=False)}):
            return name
    return None
