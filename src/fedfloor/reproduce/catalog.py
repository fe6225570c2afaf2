"""The published tables by name, and what each costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedfloor.errors import unknown
from fedfloor.reproduce import fedsr
from fedfloor.reproduce.cells import Table
from fedfloor.reproduce.work import lacking

TABLES: Mapping[str, Table] = {table.name: table for table in fedsr.tables()}


def find(name: str) -> Table:
    """Return a table by name.

    Raises:
        SettingError: there is none of this name; the nearest one is named.
    """
    if name not in TABLES:
        raise unknown("table", name, TABLES)
    return TABLES[name]


def costs(scale: float) -> list[dict[str, Any]]:
    """Return a row per table: its runs and rounds with one seed, and how many of the runs are not possible here.

    Args:
        scale: share of the papers' rounds.

    Raises:
        SettingError: the scale is none.
    """
    rows = []
    for table in TABLES.values():
        rounds, reasons = table.scaled(scale), lacking(table.cells)
        runs = {cell.run for cell in table.cells}
        missing = {cell.run for cell in table.cells if cell.key in reasons}
        rows.append(
            {"table": table.name, "what": table.title, "source": table.source, "runs": len(runs)}
            | {"rounds_each": rounds, "rounds": (len(runs) - len(missing)) * rounds, "not_possible_here": len(missing)}
        )
    return rows
