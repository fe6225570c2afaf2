"""Tables beside the measurements, such as repairs, changes of state or lab samples, and how each is joined to them."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedfloor.base.errors import SettingError
from fedfloor.data.files.excerpt import Excerpt, head
from fedfloor.data.files.layout import looks_like_time
from fedfloor.data.files.recipes import LOOKED_AT, as_text, code_of
from fedfloor.data.files.rows import is_workbook
from fedfloor.data.kinds import is_number, word_of

BEFORE = re.compile(r"(from|old|previous|before|von|alt|vorher)(_\w+)?|\w+_(from|old|von|alt)")
AFTER = re.compile(r"(to|new|next|after|nach|neu|nachher)(_\w+)?|\w+_(to|new|nach|neu)")


def joins(main: Path, other: Path, given: Mapping[str, Any]) -> str:
    """Return how a further table is joined to one of measurements: a command, after lines of pandas where needed.

    Args:
        main: the table of measurements.
        other: the further table.
        given: the settings of ``[data]``.
    """
    rows, table = (head(path, LOOKED_AT, given).whole() for path in (main, other))
    times = [next((name for name in each.names if _are_times(each, name)), "") for each in (rows, table)]
    key, own = _shared(rows, table)
    if not key:
        return f"{other.name}: no column has the names that a column of {main.name} has; one must name the machine."
    if not times[1] or not times[0]:
        return _samples(main, other, table, key, own, given)
    free = [name for name in table.names if name not in (own, times[1]) and not _are_times(table, name)]
    changes = [next((name for name in free if form.fullmatch(word_of(name))), "") for form in (BEFORE, AFTER)]
    if all(changes):
        return _states(main, other, (own, times[0], times[1]), changes[1], given)
    repeated = sorted((len({*table.cells(name)}), name) for name in free if _recurs(table, name))
    kind = f" --kind {shlex.quote(repeated[0][1])}" if repeated else ""
    return (
        f"{other.name}: events of machines ('{own}'). To label the rows before them: {_label(main, other, own)}{kind} "
        "--within 24h --out marked.csv, or any span that is longer than from row to row; or the time until the next "
        "one: --remaining in place of --kind and --within."
    )


def check_log(path: Path, table: Excerpt) -> None:
    """Refuse a log of changes of state, each from one to another, without a column of numbers."""
    texts = [name for name in table.names if not _are_times(table, name)]
    if any(all(is_number(cell.replace(",", ".")) for cell in table.cells(name) if cell) for name in texts):
        return
    pair = [next((name for name in texts if form.fullmatch(word_of(name))), "") for form in (BEFORE, AFTER)]
    if all(pair) and len(texts) < len(table.names) and {*table.cells(pair[0])} & {*table.cells(pair[1])}:
        raise SettingError(
            f"{path.name}: a log of changes of state, from '{pair[0]}' to '{pair[1]}', without measurements. Put it in "
            "a folder beside the table of the measurements: fedfloor new FOLDER shows how its states become their "
            "labels.",
            key="log-of-states",
        )


def _label(main: Path, other: Path, own: str) -> str:
    paths = shlex.join([str(main), str(other)])
    return f"fedfloor datasets label {paths} --event-device {shlex.quote(own)}"


def _states(main: Path, other: Path, names: tuple[str, str, str], state: str, given: Mapping[str, Any]) -> str:
    """Return the lines that give each state of a log of changes its end, so that rows take the state in force."""
    own, time, moment = names
    following = f"log.groupby({code_of(own)})[{code_of(moment)}].shift(-1)"
    label = f"{_label(main, Path('states.csv'), own)} --kind {shlex.quote(state)} --end end --out marked.csv"
    return (
        f"{other.name}: changes of state, of '{own}' to '{state}'. To give each row the state in force, in pandas:\n\n"
        "    import pandas\n"
        f"    rows, log = {_read(main, given)}, {_read(other, given)}\n"
        f'    log["end"] = {following}.fillna(rows[{code_of(time)}].max())\n'
        '    log.to_csv("states.csv", index=False)\n\n'
        f"    Then: {label}. Rows "
        "before a machine's first change are labelled none."
    )


def _samples(main: Path, other: Path, table: Excerpt, key: str, own: str, given: Mapping[str, Any]) -> str:
    """Return the lines that join samples without times by their key, several of one key together."""
    how = {
        name: "mean" if all(is_number(cell.replace(",", ".")) for cell in table.cells(name) if cell) else "texts"
        for name in table.names
        if name != own and not _numbers_samples(table, own, name)
    }
    many = len(table.rows) - len({*table.cells(own)})
    agg = ", ".join(f"{code_of(name)}: {'texts' if kind == 'texts' else code_of(kind)}" for name, kind in how.items())
    decimal = ', decimal=","' if given.get("decimal") == "," else ""
    return (
        f"{other.name}: rows of '{own}', without a time{' and several of one' if many else ''}. To join them by it, "
        "numbers as their mean and different texts side by side, in pandas:\n\n"
        "    import pandas\n"
        '    texts = lambda cells: " / ".join(sorted({*cells.dropna().astype(str)}))\n'
        f"    beside = {_read(other, given, decimal)}.groupby({code_of(own)}).agg({{{agg}}})\n"
        f"    rows = {_read(main, given, decimal)}\n"
        f'    rows = rows.merge(beside, left_on={code_of(key)}, right_index=True, how="left")\n'
        '    rows.to_csv("joined.csv", index=False)\n\n'
        "    Then: fedfloor new joined.csv. Rows without a sample have empty cells, which it names."
    )


def _read(path: Path, given: Mapping[str, Any], more: str = "") -> str:
    if is_workbook(path):
        return f"pandas.read_excel({code_of(path)})"
    if path.suffix == ".parquet":
        return f"pandas.read_parquet({code_of(path)})"
    return f"pandas.read_csv({', '.join([code_of(path), *as_text(path, given)])}{more})"


def _shared(rows: Excerpt, table: Excerpt) -> tuple[str, str]:
    """Return the columns of both tables that have the same names of machines or batches, equal names first."""
    sets = [
        {name: {*each.cells(name)} - {""} for name in each.names if not _are_times(each, name)}
        for each in (rows, table)
    ]
    fits = [
        (name != own, -len(here & there), name, own)
        for name, here in sets[0].items()
        for own, there in sets[1].items()
        if 2 * len(here & there) >= min(len(here), len(there)) > 0 and _are_keys(there, same=name == own)
    ]
    return min(fits)[2:] if fits else ("", "")


def _are_keys(cells: set[str], *, same: bool) -> bool:
    """Return whether cells may be names; whole numbers may where the column has the same name in both tables."""
    return all(map(str.isdigit, cells)) if same and all(map(is_number, cells)) else not all(map(is_number, cells))


def _are_times(table: Excerpt, name: str) -> bool:
    cells = [cell for cell in table.cells(name) if cell]
    return bool(cells) and all(map(looks_like_time, cells[:20]))


def _numbers_samples(table: Excerpt, own: str, name: str) -> bool:
    """Return whether a column numbers the rows of each key: 1, 2, 3."""
    seen = Counter[str]()
    for key, cell in zip(table.cells(own), table.cells(name), strict=True):
        seen[key] += 1
        if cell != str(seen[key]):
            return False
    return bool(seen)


def _recurs(table: Excerpt, name: str) -> bool:
    cells = table.cells(name)
    return len({*cells}) < len(cells) and not all(is_number(cell) for cell in cells if cell)
