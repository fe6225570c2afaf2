"""Roles of a table's columns by their names and cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedfloor.data.files.columnar import is_parquet
from fedfloor.data.files.excerpt import Excerpt
from fedfloor.data.files.layout import are_names, numbers_of
from fedfloor.data.kinds import (
    ANSWERS,
    CALLED,
    COUNTERS,
    STEPS,
    ColumnProfile,
    answers,
    called_label,
    is_text,
    is_time,
    kind_of,
    names_machine,
    rises,
    word_of,
)  # fmt: skip

LOOKED_AT = 200  # rows
NAMED = 40  # columns for which an error lists names to copy
UNEVEN = 10.0  # ratio of the steps between numbers that may be names


def profiles_of(
    table: Excerpt, names: Iterable[str], roles: Mapping[str, str], decimal: str = ".", mark: str = ""
) -> dict[str, ColumnProfile]:
    """Return the profiles of columns, without marks between thousands."""
    recording = recordings_of(table, roles)
    words = {word_of(name): name for name in table.names}
    return {
        name: ColumnProfile(name, [cell.replace(mark, "") for cell in table.cells(name)], recording, words, decimal)
        for name in names
    }


def recordings_of(table: Excerpt, roles: Mapping[str, str]) -> list[str]:
    """Return the recording of each row, by its device and run."""
    parts = [table.cells(roles[role]) for role in ("device", "run") if roles.get(role) in table.names]
    return ["\0".join(both) for both in zip(*parts, strict=True)] or [""] * len(table.rows)


def declared(columns: Mapping[str, Any]) -> set[str]:
    """Return the columns that the settings declare as sensors, categories or ignored."""
    return {name for role in ("values", "ignore", "categories") for name in columns.get(role) or ()}


def stated(columns: Mapping[str, Any]) -> set[str]:
    """Return the columns that the settings name, in whatever role."""
    return {name for each in columns.values() for name in ([each] if isinstance(each, str) else each or ())}


def is_nameless(path: Path, names: Sequence[str], given: Mapping[str, Any]) -> bool:
    """Return whether a first row holds values; numbers in even steps may be names, such as wavelengths or pixels."""
    numbers = numbers_of(names)
    columns = given.get("columns", {})
    known = {word for called in CALLED.values() for word in called} | {*ANSWERS, "id"}
    named = any(word_of(name) in known or name in columns.values() or name in declared(columns) for name in names)
    steps = sorted(after - before for before, after in pairwise(numbers))
    ordered = not steps or (steps[0] * steps[-1] > 0 and max(map(abs, steps)) <= UNEVEN * min(map(abs, steps)))
    return not (given.get("header") or is_parquet(path) or named or ordered or are_names(names))


def roles_of(table: Excerpt, given: Mapping[str, Any], form: str | None = None) -> dict[str, str]:
    """Return role → column: the given column, otherwise the first column with one of the role's common names."""
    names = [name for name in table.names if name not in declared(given)]
    roles = {role: str(given[role]) for role in CALLED if role in given}
    words = {name: word_of(name) for name in names}
    run = next((name for name, word in words.items() if word in CALLED["run"]), None)
    for role, called in CALLED.items():
        for word in called if role not in roles else ():
            if word in STEPS and run is None:
                continue
            match = [name for name, own in words.items() if own == word and name not in roles.values()]
            cells = table.cells(match[0]) if match else []
            fits = role != "time" or word == "time" or is_time(cells, form)
            whose = recordings_of(table, {"device": roles.get("device", ""), "run": run or ""})
            if match and fits and (word not in COUNTERS + STEPS or rises(cells, whose)):
                roles[role] = match[0]
                break
    machines = machines_of(table, roles, given)
    if "device" not in roles:
        texts = [name for name in machines if names_machine(word_of(name))]
        roles |= {"device": texts[0]} if texts else {}
    elif "device" not in given:
        roles["device"] = finer(table, roles["device"], machines)
    if "label" not in roles:
        taken = {*roles.values(), *given.get("values", ()), *given.get("ignore", ())}
        free = [name for name in names if name not in taken]
        usual = answers(free)
        marked = [name for name, each in profiles_of(table, free, roles).items() if called_label(each)]
        marked = usual[:1] or (marked if len(marked) == 1 else [])  # several are named by the refusal
        roles |= {"label": marked[0]} if marked else {}
    if "time" not in roles:
        known = {*roles.values(), *given.get("values", ()), *given.get("ignore", ()), given.get("id", "id")}
        dates = [name for name in names if name not in known and is_time(table.cells(name), form, numbers=False)]
        if len(dates) == 1:
            roles["time"] = dates[0]
        free = [name for name in names if name not in known]
        profiles = profiles_of(table, () if dates else free, roles, ",")
        clocks = [name for name, profile in profiles.items() if kind_of(profile).kind == "time"]
        roles |= {"time": clocks[0]} if clocks else {}
    return roles


def machines_of(table: Excerpt, roles: Mapping[str, str], given: Mapping[str, Any]) -> list[str]:
    """Return other columns that may name machines; those that :func:`names_machine` only if they hold texts."""
    free = [name for name in table.names if name not in roles.values() and name not in given.get("ignore", ())]
    texts = [name for name in free if names_machine(word_of(name)) and is_text(table.cells(name), ".")]
    return [*texts, *(name for name in free if word_of(name) in CALLED["device"])]


def finer(table: Excerpt, device: str, others: Sequence[str]) -> str:
    """Return the first of the other columns that divides each device into separate machines, otherwise ``device``."""
    whole = table.cells(device)
    cells = ((name, table.cells(name)) for name in others)
    return next((name for name, own in cells if 2 * len({*own}) <= len(own) and is_grouped(own, whole)), device)


def is_grouped(devices: Sequence[str], places: Sequence[str]) -> bool:
    """Return whether each device has a single place, and there are several places, some with several devices.

    >>> is_grouped(["a", "b", "c"], ["x", "x", "y"]), is_grouped(["a", "b"], ["x", "y"])
    (True, False)
    >>> is_grouped(["a", "a"], ["x", "y"])
    False
    """
    return len({*zip(devices, places, strict=True)}) == len({*devices}) > len({*places}) > 1
