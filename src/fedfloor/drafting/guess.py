"""Guesses of the roles of a table's columns, for a draft that the user can correct."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.base.errors import SettingError
from fedfloor.base.names import typed
from fedfloor.data.files.columnar import is_parquet
from fedfloor.data.files.encode import natural_order
from fedfloor.data.files.excerpt import Excerpt, Excerpts
from fedfloor.data.files.joined import JOIN, MIDNIGHT, SPANS, Joined, parts_of
from fedfloor.data.files.layout import MISSING, looks_like_time, other_marks
from fedfloor.data.files.rows import place
from fedfloor.data.files.sheet import check_header
from fedfloor.data.files.times import NUMERALS, READ, numeral
from fedfloor.data.kinds import (
    ANSWERS,
    CALLED,
    FEW,
    STATE,
    answers,
    filled,
    is_date,
    is_number,
    is_text,
    is_time,
    judged_by,
    kind_of,
    mostly_text,
    names_machine,
    normal_of,
    textual,
    word_of,
)  # fmt: skip
from fedfloor.data.reading import Columns, ignoring
from fedfloor.data.recordings import are_identifiers, recordings
from fedfloor.data.roles import (
    LOOKED_AT,
    NAMED,
    declared,
    finer,
    is_grouped,
    is_nameless,
    machines_of,
    profiles_of,
    recordings_of,
    roles_of,
    stated,
)
from fedfloor.drafting.sketch import Decision

MOST_FILES = 40  # files of a folder in which texts are counted
COUNTED = 20_000  # rows in which texts are counted
ROWS = COUNTED + 1  # with that of the names
UNIT = re.compile(r"[+-]?\d[\d.,' ]*?\s*((?:[^\W\d_]|[°%])[^\W_]{0,3}(?:/[^\W_]{1,3})?|)")  # the unit after a number
CANDIDATES = 4  # columns named for a role in an error
FLAGS = 3  # adjacent columns of 0 and 1 that are taken for a label
MATRIX = (
    " If each file holds one sensor, and a row is a sample with its values over time: fedfloor datasets matrices "
    "--help. If there are too many names to write: docs/data-reference.md, section 'Conversions'."
)
LEFT_OUT = ("quality", "row number")  # kinds of columns that are no sensors
SWITCHES = (("false", "true"), ("no", "yes"), ("n", "y"), ("off", "on"), ("nein", "ja"), ("aus", "an"), ("aus", "ein"))
FAILED = re.compile(r"fail(ed|ure)?|broken|dead|event|eol|end.of.life|ausgefallen|ausfall|defekt", re.IGNORECASE)
RUNNING = re.compile(
    r"(still.)?running|censored|suspended|active|alive|surviv(ed|ing)|ok|operat(ing|ional)|in.(service|operation|betrieb|use)"
    r"|läuft(.noch)?|aktiv|not.failed",
    re.IGNORECASE,
)  # of a recording that does not end in failure
CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[ap]\.?m\.?)?", re.IGNORECASE)
PLACES = (  # columns taken for the factory if each device has one value, and a value several devices
    "line", "production_line", "assembly_line", "linie", "fertigungslinie", "produktionslinie", "montagelinie",
    "building", "gebäude", "area", "bereich", "zone", "cell", "zelle", "department", "abteilung", "region", "shop",
    "shop_floor", "workshop", "werkstatt", "fab", "mill", "park", "wind_farm", "station", "arbeitsplatz", "anlage",
)  # fmt: skip


@dataclass(frozen=True)
class TableProfile:
    """The rows of a table from which the roles of its columns are guessed, read once.

    Args:
        path: the table's file.
        start: its first rows, of any length.
        looked: the number of those by which kinds of columns are judged; texts are counted in all.
    """

    path: Path
    start: Excerpt
    looked: int = LOOKED_AT

    @classmethod
    def of(cls, path: Path, given: Mapping[str, Any], excerpts: Excerpts | None = None) -> TableProfile:
        """Read the profile of a table, with the settings of ``[data]`` that its format needs."""
        start = (excerpts or Excerpts()).head(path, ROWS, given)
        return cls(path, start, LOOKED_AT - (not given.get("header")))

    @cached_property
    def top(self) -> Excerpt:
        """The rows by which kinds of columns are judged, without incomplete ones."""
        return self.start.top(self.looked).whole()

    @cached_property
    def counted(self) -> Excerpt:
        """All rows without incomplete ones."""
        return self.start.whole()

    def joined(self, roles: Mapping[str, Any]) -> TableProfile:
        """Return the profile with the columns that roles join."""
        return replace(self, start=self.start.joined(roles))


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
    columns |= named
    marks, left_out = _sort_sensors(profile, given, columns, roles)
    evidence |= left_out
    if form is None and (written := _numeral(table, roles)) is not None:
        marks["time_format"] = written
    return Guess(({"columns": columns} if columns != before else {}) | marks, evidence)


def _numeral(table: Excerpt, roles: Mapping[str, str]) -> str | None:
    """Return the format of a time column of numbers that are recognised as moments, unless they are seconds."""
    name = roles.get("time")
    cells = [cell.replace(",", ".") for cell in table.cells(name)] if name in table.names else []
    known = numeral(np.array([*map(float, cells)])) if all(map(is_number, cells)) else None
    return None if known == "s" else known


def _sort_sensors(
    profile: TableProfile, given: Mapping[str, Any], columns: dict[str, Any], roles: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Add columns that are no numbers of sensors to ``columns``, as categories or ignored.

    Returns:
        The guessed marks in numbers and qualities of values, and the evidence for the columns that are ignored.
    """
    table = profile.top
    taken = {
        *(name for role, name in Columns().roles().items() if roles.get(role) != ""),
        *roles.values(),
        *(part for name in roles.values() for part in parts_of(name)),
        *(part for role in SPANS for part in parts_of(columns.get(role, ""))),
        *declared(columns),
        columns.get("id", "id"),
    }
    free = [name for name in table.names if name not in taken]
    sensors = [name for name in table.names if name in free or name in columns.get("values", ())]
    measured = [cell for name in sensors for cell in table.cells(name)]
    # numbers of a Parquet file have no decimal mark: its texts may have commas beside them
    written = [table.cells(name) for name in sensors] if is_parquet(profile.path) else [measured]
    told = not is_parquet(profile.path) and given.get("decimal") == ","
    comma = told or (given.get("decimal", ",") == "," and any(map(_commas, written)))
    decimal = "," if comma else "."
    mark = given.get("thousands") or _thousands(measured, decimal)
    guessed: dict[str, Any] = {"thousands": mark, "decimal": "," if comma else ""}
    guessed = {key: text for key, text in guessed.items() if text and key not in given}
    if columns.get("values"):
        return guessed, {}
    profiles = profiles_of(table, free, roles, decimal, mark)
    texts = [name for name in free if mostly_text(profiles[name].cells, decimal)]
    if texts and "time" not in given.get("columns", {}):
        of_texts = {name: table.cells(name) for name in texts}
        _check_times(profile.path.name, of_texts, given.get("time_format"), has_time="time" in roles)
    odd = {name: kind for name in free if (kind := kind_of(profiles[name])).kind in LEFT_OUT or name in texts}
    more = profile.counted if odd else table
    few = {}
    profiles = profiles_of(more, odd, roles, decimal, mark)
    for name in odd:
        cells = more.cells(name)
        odd[name] = kind = kind_of(profiles[name])
        if name in texts and kind.kind not in LEFT_OUT:
            _check_numbers(profile.path.name, name, table.cells(name), decimal)
            odd[name] = kind = textual(profiles[name])
        if kind.kind == "category" and not _copies(cells, more, roles.get("label", "label")):
            few[name] = coded(cells)
    if few:
        columns["categories"] = {**columns.get("categories", {}), **few}
    evidence = {name: kind.evidence for name, kind in odd.items() if name not in few}
    judged = {judged_by(profiles[name]): name for name in odd if name not in few}
    judged = {value: name for value, name in judged.items() if value in free}
    if judged and "quality" not in given:
        guessed["quality"] = judged
        makes = "which makes its other values missing (data.quality),"
        evidence |= {name: f"{evidence[name]}, {makes}" for name in judged.values()}
    if evidence:
        columns["ignore"] = [*columns.get("ignore", ()), *evidence]
    return guessed, evidence


def _copies(cells: Sequence[str], table: Excerpt, label: str) -> bool:
    """Return whether each text of a column occurs with one label only."""
    return label in table.names and len({*zip(cells, table.cells(label), strict=True)}) == len({*filled(cells)})


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


def coded(cells: Sequence[str]) -> str | list[str]:
    """Return the coding of a column with few texts: 0 and 1 for two, such as off and on, otherwise a sensor per text.

    >>> coded(["True", "False", "NA"]), coded(["ja", "nein"]), coded(["b", "a"]), coded(["low", "mid", "high"])
    (['False', 'True'], ['nein', 'ja'], ['a', 'b'], 'one-hot')
    """
    known = {*filled(cells)}
    texts = {cell.casefold(): cell for cell in known}
    switch = next((pair for pair in SWITCHES if {*pair} == {*texts}), ())
    if len(switch) == len(known):
        return [texts[text] for text in switch]
    return natural_order([*known]) if len(known) == 2 else "one-hot"


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


def marks(profile: TableProfile, given: Mapping[str, Any], guessed: Mapping[str, Any], *, judged: bool) -> Decision:
    """Leave out columns that mark anomalies, but keep the first as the label for evaluation.

    :func:`~fedfloor.data.kinds.kind_of` decides. As a sensor such a column would reveal the anomalies. If its name has
    a legend of its codes, such as ``Attack (1: no attack, -1: attack)``, the code of normal operation is taken from it.
    """
    columns: dict[str, Any] = {**given.get("columns", {}), **guessed.get("columns", {})}
    table = profile.counted
    told = {*columns.get("values", ()), *columns.get("ignore", ()), *given.get("columns", {}).get("categories", ())}
    told |= {name for role, name in columns.items() if role in CALLED and role != "label"}
    free = [name for name in table.names if name not in told]
    marked = [name for name, profile in profiles_of(table, free, {}).items() if kind_of(profile).kind == "label"]
    marked = [name for name in (*answers(marked), *marked) if name in marked]
    marked = [*dict.fromkeys(marked)]
    sentences = []
    settings = {}
    if judged and marked and "label" not in columns and "label" not in table.names:
        columns["label"] = marked[0]
        sentences.append(f"'{marked[0]}' is taken for the label, which is only used for evaluation")
    label = columns.get("label", "label")
    task = _task_of(given)
    if judged and label in table.names and "normal" not in task and (normal := normal_of(label)) is not None:
        settings = {"task": {**task, "normal": normal}}
        sentences.append(f"'{normal}' is normal operation, by the name of '{label}'")
    rest = [name for name in marked if name != label]
    if rest:
        columns["ignore"] = [*columns.get("ignore", ()), *rest]
        sentences.append(
            f"{', '.join(map(repr, rest))}: left out, because these columns mark anomalies and are no sensors"
        )
    if sentences:
        settings |= {"columns": _without(columns, "categories") | _coded_but(columns, marked)}
    return Decision(settings, sentences)


def _without(columns: Mapping[str, Any], *roles: str) -> dict[str, Any]:
    """Return the settings of columns without some."""
    return {role: name for role, name in columns.items() if role not in roles}


def _coded_but(columns: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the categories of columns without some of them, if others remain."""
    few = {name: how for name, how in columns.get("categories", {}).items() if name not in names}
    return {"categories": few} if few else {}


def _task_of(given: Mapping[str, Any]) -> dict[str, Any]:
    task = given.get("task")
    return dict(task) if isinstance(task, Mapping) else {"kind": task}


def endings(profile: TableProfile, given: Mapping[str, Any], guessed: Mapping[str, Any]) -> Decision:
    """Take the column that separates recordings to failure from those that still run for the label.

    Such a column has two texts: one for each recording, of which one matches :data:`FAILED` or :data:`RUNNING`; or one
    of them in the last rows of some recordings only, which marks their ends.
    """
    columns: dict[str, Any] = {**given.get("columns", {}), **guessed.get("columns", {})}
    table = profile.counted
    places = {role: columns.get(role, role) for role in ("device", "factory", "time", "run")}
    whose = [table.cells(name) for role, name in places.items() if role in ("device", "run") and name in table.names]
    recording = [*zip(*whose, strict=True)] or [()] * len(table.rows)
    label = given.get("columns", {}).get("label")
    last = {whole: row for row, whole in enumerate(recording)}.values()
    for name in table.names:
        if name in places.values() or label not in (None, name):
            continue
        cells = table.cells(name)
        failed = [text for text in {*cells} if FAILED.fullmatch(text)]
        failed = failed or [text for text in {*cells} if not RUNNING.fullmatch(text)]
        each = len({*zip(recording, cells, strict=True)}) == len({*recording})
        marks = Counter(cells[row] for row in last).items() & Counter(cells).items()  # they are in last rows only
        failed = failed if each else [text for text, times in marks if times > 1]
        if len({*cells}) == 2 and len(failed) == 1:
            ignore = [other for other in columns.get("ignore", ()) if other != name]
            rest = _without(columns, "ignore", "categories") | ({"ignore": ignore} if ignore else {})
            rest |= _coded_but(columns, [name])
            which = "" if each else "last "
            note = f"recordings whose {which}'{name}' is not '{failed[0]}' still run and are left out"
            return Decision({"columns": rest | {"label": name}, "ended": failed[0]}, [note])
    note = (
        "each recording is taken to end in failure; where some still run, name the column that distinguishes them, and "
        "its text for a failure: --set data.columns.label=NAME --set data.ended=TEXT"
    )
    return Decision(notes=[note])


def _check_times(table: str, texts: Mapping[str, Sequence[str]], form: str | None, *, has_time: bool) -> None:
    """Refuse to ignore columns of texts that are the time, judged by their names and cells."""
    for name, cells in texts.items():
        known = filled(cells)
        odd = [cell for cell in known if not is_date(cell, form)]
        shaped = 2 * sum(map(looks_like_time, known)) >= len(known)
        if odd and (shaped or word_of(name) in CALLED["time"]):
            raise SettingError(
                f"{table}, column '{name}': '{odd[0]}' looks like a date or time, but cannot be read. {READ} "
                f"Or leave the column out: {ignoring(name)}.",
                key="no-time",
            )
    dates = [name for name, cells in texts.items() if is_time(cells, form, numbers=False)]
    if dates and not has_time:
        raise SettingError(
            f"{table}: columns {', '.join(map(repr, dates))} hold dates. Choose the time: "
            f"{typed('data.columns.time', dates[0])}. Or leave them out: {ignoring(*dates)}.",
            key="choice-of-time",
        )


def _check_numbers(table: str, name: str, cells: Sequence[str], decimal: str) -> None:
    """Refuse to ignore a column of numbers that are written with a unit or with other marks."""
    known = filled(cells)
    units = Counter(match[1] for cell in known if (match := UNIT.fullmatch(cell)))
    if not units or 2 * max(units.values()) < len(known) or len({*known}) == 1:
        return
    unit = max(units, key=lambda each: units[each])
    odd = next(cell for cell in known if (match := UNIT.fullmatch(cell)) and match[1] == unit)
    if not unit and not (marks := other_marks(odd, decimal)):
        return
    hint = f"{marks}." if not unit else f"Write the numbers without '{unit}'."
    raise SettingError(
        f"{table}, column '{name}': '{odd}' looks like a number, but cannot be read as one. {hint} Or leave the column "
        f"out: {ignoring(name)}; if its texts are classes: --set 'data.columns.categories."
        f'{json.dumps(name, ensure_ascii=False)}="one-hot"\'.',
        key="no-number",
    )


def _commas(cells: Sequence[str]) -> bool:
    """Return whether some fractions are written with commas and none with points."""
    return any(re.fullmatch(r"[+-]?\d+,\d+", cell) for cell in cells) and not any(
        re.fullmatch(r"[+-]?\d*\.\d+", cell) for cell in cells
    )


def _thousands(cells: Sequence[str], decimal: str) -> str:
    """Return the mark between thousands, if numbers with both marks show it, otherwise ""."""
    mark = "." if decimal == "," else ","
    form = re.compile(rf"[+-]?\d{{1,3}}(?:[{mark}]\d{{3}})+[{decimal}]\d+")
    return mark if any(map(form.fullmatch, cells)) else ""


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


def first_rows(paths: Sequence[Path], given: Mapping[str, Any], excerpts: Excerpts) -> list[Excerpt]:
    """Return the first rows of at most :data:`MOST_FILES` tables, without incomplete ones."""
    chosen = paths[:: math.ceil(len(paths) / MOST_FILES)]
    return [excerpts.head(path, COUNTED // len(chosen) + 1, given).whole() for path in chosen]


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
        cells = table.cells(name)
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
