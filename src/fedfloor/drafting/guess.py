"""Guesses of the roles of a table's columns, for a draft that the user can correct."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.base.errors import SettingError
from fedfloor.base.names import typed
from fedfloor.data.files.excerpt import Excerpt
from fedfloor.data.files.joined import JOIN, MIDNIGHT, Joined
from fedfloor.data.files.rows import place
from fedfloor.data.files.sheet import check_header
from fedfloor.data.files.times import NUMERALS, numeral
from fedfloor.data.kinds import (
    ANSWERS,
    CALLED,
    is_date,
    is_number,
    is_time,
    word_of,
)  # fmt: skip
from fedfloor.data.reading import Columns, ignoring
from fedfloor.data.recordings import are_identifiers, recordings
from fedfloor.data.roles import (
    NAMED,
    declared,
    finer,
    is_grouped,
    is_nameless,
    machines_of,
    recordings_of,
    roles_of,
)
from fedfloor.drafting.candidates import PLACES
from fedfloor.drafting.profile import TableProfile
from fedfloor.drafting.sensors import sensors_of

MATRIX = (
    " If each file holds one sensor, and a row is a sample with its values over time: fedfloor datasets matrices "
    "--help. If there are too many names to write: docs/data-reference.md, section 'Conversions'."
)
CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[ap]\.?m\.?)?", re.IGNORECASE)


@dataclass(frozen=True)
class Guess:
    """Keys of ``[data]``, and the evidence for columns that are left out or name recordings, as predicates."""

    settings: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, str] = field(default_factory=dict)


def guess(profile: TableProfile, given: Mapping[str, Any], needed: Sequence[str] = ("device", "label")) -> Guess:
    """Return the keys of ``[data]`` that a table probably needs in addition to ``given``.

    A column with a common name is taken for the device, factory, time or label, and the only column of dates for the
    time. Of the other columns, those with few texts become categories; row numbers, qualities of values beside them,
    and columns with many texts or a copy of the label are ignored. ``decimal`` is a comma if fractions are written with
    commas and the delimiter is not a comma; if numbers such as 1.500,0 have both marks, the other mark is
    ``thousands``. Without a device or a label only the roles of other columns are guessed, and the reader of the table
    reports the missing role. Unreadable dates are never ignored.

    Raises:
        SettingError: the first row holds values, or the time cannot be read because dates have an unknown format or are
            in two columns.
    """
    if not profile.start.first:
        return Guess()
    check_header(profile.path, profile.start.first, given.get("header"))
    _check_names(profile.path, profile.start.names, given)
    table = profile.top
    before = given.get("columns", {})
    form = given.get("time_format")
    columns: dict[str, Any] = {**before}
    if "time" not in columns and (pair := _day_and_clock(table, form)):
        columns["time"] = pair
        given = {**given, "columns": {**columns}}
        profile = profile.joined(columns)
        table = profile.top
    out = () if "device" in needed else ("device", "factory") if "label" in needed else ("device", "factory", "label")
    roles = {role: name for role, name in roles_of(table, columns, form).items() if role not in out}
    roles |= _places(profile, roles, given, device="device" in needed)
    evidence = _recorded(profile, roles, columns) if "label" in needed else {}
    for name in evidence:
        columns["run"] = name
        roles = {role: column for role, column in roles.items() if column != name}
        roles = {**roles_of(table, columns | roles, form), **roles}
    named: dict[str, Any] = {role: name for role, name in roles.items() if name != Columns().roles().get(role)}
    if not {*needed} <= roles.keys() or not set(filter(None, roles.values())) <= set(table.names):
        known = {role: name for role, name in named.items() if name in table.names}
        return Guess({"columns": columns | known} if known else {})
    sensors = sensors_of(profile, given, columns | named, roles)
    written = _numeral(table, roles) if form is None else None
    settings = {**sensors.settings, **({} if written is None else {"time_format": written})}
    changed = {} if sensors.columns == before else {"columns": dict(sensors.columns)}
    return Guess(changed | settings, {**evidence, **sensors.evidence})


def _numeral(table: Excerpt, roles: Mapping[str, str]) -> str | None:
    """Return the format of a time column of numbers that are recognised as moments, unless they are seconds."""
    name = roles.get("time")
    cells = [cell.replace(",", ".") for cell in table.cells(name)] if name in table.names else []
    known = numeral(np.array([*map(float, cells)])) if all(map(is_number, cells)) else None
    return None if known == "s" else known


def _day_and_clock(table: Excerpt, form: str | None) -> str | None:
    """Return the joined name of a table's column of days and its column of times of day, if it has one of each."""
    cells = {name: table.cells(name) for name in table.names}
    clocks = [name for name in cells if table.rows and all(map(CLOCK.fullmatch, cells[name]))]
    days = [name for name in cells if clocks and all(is_date(cell, None) for cell in cells[name])]
    days = [name for name in days if not any(":" in MIDNIGHT.sub("", cell) for cell in cells[name])]
    if len(clocks) != 1 or len(days) != 1:
        return None
    time = Joined("", (table.names.index(days[0]), table.names.index(clocks[0])), "time")
    return days[0] + JOIN + clocks[0] if is_time(list(map(time.cell, table.rows)), form, numbers=False) else None


def _check_names(path: Path, names: Sequence[str], given: Mapping[str, Any]) -> None:
    """Refuse a first row of values."""
    if is_nameless(path, names, given):
        header = ", ".join(f'"c{i}"' for i in range(1, len(names) + 1)) if len(names) <= NAMED else '"…", …'
        raise SettingError(
            f"{place(path, 1)}: it holds values ({', '.join(map(repr, names[:3]))}, …), no names. Name the "
            f"{len(names)} columns: --set 'data.header=[{header}]'." + (MATRIX if len(names) > NAMED else ""),
            key="no-names-of-columns",
        )


def _places(
    profile: TableProfile, roles: Mapping[str, str], given: Mapping[str, Any], *, device: bool
) -> dict[str, str]:
    """Return the guessed columns of device and factory, judged by more rows than the first.

    The device is the column that distinguishes most machines, and the factory a column with one value for each device;
    no other column with a common name is taken for the factory. Without a device there is no factory.
    """
    table = profile.counted
    columns = given.get("columns", {})
    if roles.get("device") not in table.names:
        none = roles.get("device") == "" and "factory" not in columns and "factory" in roles
        return {"factory": ""} if none else {}
    found = {"device": roles["device"]}
    factory = roles.get("factory")
    if "device" not in columns:
        found["device"] = finer(table, roles["device"], machines_of(table, roles, columns))
    devices = table.cells(found["device"])
    if factory is not None and factory in table.names and "factory" not in columns and factory != Columns().factory:
        one = len({*zip(devices, table.cells(factory), strict=True)}) == len({*devices})
        found |= {} if one else {"factory": ""}
    if device and factory is None:
        told = {*roles.values(), *declared(columns)}
        known = (name for name in table.names if word_of(name) in PLACES and name not in told)
        found |= next(({"factory": name} for name in known if is_grouped(devices, table.cells(name))), {})
    return found


def _recorded(profile: TableProfile, roles: Mapping[str, str], columns: Mapping[str, Any]) -> dict[str, str]:
    """Return the column that names recordings, with the evidence; {} without one, or where one is given."""
    table = profile.top
    taken = {
        *declared(columns),
        *(roles.get(role, "") for role in ("device", "factory", "label")),
        columns.get("id", "id"),
    }
    free = [name for name in table.names if name not in taken and are_identifiers(name, table.cells(name))]
    if "run" in roles or roles.get("label") not in table.names or not free:
        return {}
    more = profile.counted
    devices = recordings_of(more, roles)
    labels = more.cells(roles["label"])
    every = {name: recordings(name, more.cells(name), devices, labels) for name in free}
    return dict([(name, text) for name, text in every.items() if text][:1])


def doubtful(sensors: Sequence[str]) -> list[str]:
    """Return a sentence for each sensor whose name is one of a role's common names.

    >>> print(*doubtful(["speed", "Timestamp"]))
    'Timestamp' is read as a sensor. If it is the time: --set data.columns.time=Timestamp; or leave it out: --set \
'data.columns.ignore=["Timestamp"]'
    """
    sentences = []
    for role, called in (CALLED | {"label": (*CALLED["label"], *ANSWERS)}).items():
        for name in sensors:
            if word_of(name) in called:
                setting = typed(f"data.columns.{role}", name)
                sentences.append(
                    f"'{name}' is read as a sensor. If it is the {role}: {setting}; or leave it out: {ignoring(name)}"
                )
    return sentences


def words(guess: Guess, given: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each guess."""
    guessed = guess.settings
    before = given.get("columns", {})
    columns = guessed.get("columns", {})

    def evident(role: str) -> str:
        return f"{text} and " if role == "run" and (text := guess.evidence.get(columns["run"])) else ""

    sentences = [
        f"'{columns[role]}' {evident(role)}is taken for the {role}"
        for role in CALLED
        if columns.get(role) and role not in before and not (role == "label" and given.get("remaining"))
    ]
    for name, how in columns.get("categories", {}).items():
        if name in before.get("categories", ()):
            continue
        order = f'--set \'data.columns.categories.{json.dumps(name, ensure_ascii=False)}=["low", "high"]\''
        each = f"a sensor for each (one-hot); in an order: {order}"
        each = each if how == "one-hot" else f"0 for '{how[0]}', 1 for '{how[-1]}'"
        out = ignoring(*columns.get("ignore", ()), name)
        sentences.append(f"'{name}' holds a few texts: {each}. Or leave it out: {out}")
    new = [name for name in columns.get("ignore", ()) if name not in before.get("ignore", ())]
    sentences += [f"'{name}' {guess.evidence.get(name, 'holds no numbers')} and is ignored" for name in new]
    if "time_format" in guessed:
        sentences.append(
            f"times are numbers, read as {NUMERALS[guessed['time_format']]} (data.time_format); if they are not: --set "
            "data.time_format=s"
        )
    sentences += [f"'{guessed['thousands']}' stands between thousands"] if "thousands" in guessed else []
    return sentences + (["fractions are written with commas"] if "decimal" in guessed else [])
