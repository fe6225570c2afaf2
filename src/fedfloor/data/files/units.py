"""Units of columns, as a row below the names of a table states them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from fedfloor.base.errors import SettingError
from fedfloor.data.files.columnar import is_parquet
from fedfloor.data.files.preamble import LONGEST_UNIT
from fedfloor.data.files.sheet import text_rows
from fedfloor.data.reading import skipped

SPELLING = re.compile(r"[\s\[\]().°]")  # what may differ in the spelling of a unit, beside capitals
PREFIXED = frozenset({"mw", "mwh", "mva", "mv", "mj", "mn", "mpa", "mbar", "mhz", "mohm", "mω"})  # milli or mega


def units_of(path: Path, given: Mapping[str, Any]) -> dict[str, str]:
    """Return column → unit, by the last row that is left out below the names; {} without one.

    Args:
        path: the table.
        given: the settings of ``[data]``, with the rows that are left out.
    """
    out = skipped(given.get("skip"))
    if not out or is_parquet(path):
        return {}
    with suppress(SettingError), text_rows(path, {**given, "skip": None}) as rows:
        top = [*takewhile(lambda row: row[0] <= max(out) + 1, islice(rows, max(out) + 1))]
        names = next((row for row in top if row[0] not in out and any(row[1])), None)
        units = [cells for line, cells in top if names and line in out and line > names[0]]
        if names and units:
            both = zip(names[1], units[-1], strict=False)
            short = {name.strip(): unit.strip() for name, unit in both if len(unit.strip()) <= LONGEST_UNIT}
            return {name: unit for name, unit in short.items() if name and unit}
    return {}


def spelt(unit: str) -> str:
    """Return a unit in one spelling.

    >>> spelt("[°C]"), spelt("C"), spelt("MM"), spelt("MW"), spelt("mW")
    ('c', 'c', 'mm', 'Mw', 'mw')
    """
    text = SPELLING.sub("", unit)
    plain = text.casefold()
    return text[0] + plain[1:] if plain in PREFIXED else plain


def same_unit(one: str, other: str) -> bool:
    """Return whether two texts are spellings of one unit.

    >>> same_unit("[°C]", "c"), same_unit("°C", "°F"), same_unit("mW", "MW")
    (True, False, False)
    """
    return spelt(one) == spelt(other)


def differing(tables: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a sentence for each column whose unit differs between tables, by the row below the names.

    Args:
        tables: the title of each table → column → unit.
    """
    told: dict[str, dict[str, str]] = {}  # column → unit as it is compared → the first table that has it
    for title, units in tables.items():
        for name, unit in units.items():
            told.setdefault(name, {}).setdefault(spelt(unit), f"{unit} in {title}")
    return [
        f"'{name}' is in different units by the row below the names: {', '.join(places.values())}. If these are not "
        "two spellings of one unit, convert it in its tables; where each device has one unit, its own scale allows for "
        "it: --set data.normalise=device."
        for name, places in told.items() if len(places) > 1
    ]  # fmt: skip


def agreed(tables: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return column → unit for the columns whose unit is the same in all tables that state one.

    >>> agreed([{"t": "°C", "p": "bar"}, {"t": "[°C]", "p": "psi"}, {}])
    {'t': '°C'}
    """
    units = dict[str, str]()
    differ = set[str]()
    for table in tables:
        for name, unit in table.items():
            if not same_unit(units.setdefault(name, unit), unit):
                differ.add(name)
    return {name: unit for name, unit in units.items() if name not in differ}
