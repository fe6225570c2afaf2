"""The tables of each device, read apart: what does not fit at one device keeps no other one from being read.

Readers of experiments refuse tables whose columns differ. Here each table is read with the columns that it has: those
of roles by their names, numbers as sensors, and texts as labels or categories.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.base.errors import SettingError
from fedfloor.base.names import excerpt
from fedfloor.data.files import buffer, expanded, own
from fedfloor.data.files.encode import natural_order
from fedfloor.data.files.excerpt import Excerpt, head
from fedfloor.data.files.joined import JOIN, SPANS, parts_of
from fedfloor.data.files.layout import CATEGORY, OddTextError
from fedfloor.data.files.preamble import preamble
from fedfloor.data.files.sheet import Sheet, scan, settled
from fedfloor.data.files.tree import DataFile, files_in, of_file, stem_of, tables
from fedfloor.data.files.union import JoinedTables
from fedfloor.data.files.units import units_of
from fedfloor.data.kinds import kind_of, mostly_text
from fedfloor.data.reading import Columns, DraftReading, Reading
from fedfloor.data.roles import profiles_of, roles_of

log = logging.getLogger(__name__)

LOOKED_AT = 2000  # rows by which columns are judged
TRIES = 8  # readings of a table, each of which may find another column of texts
NO_SENSORS = ("row number", "quality", "time", "text")  # kinds of columns, where no experiment states them


@dataclass(frozen=True, eq=False)
class ApartTable:
    """A table of a device.

    Args:
        device, factory: their names; "" without a factory.
        sheet: its rows; the role ``label`` has the classes.
        units: sensor → unit, as a row below the header states it.
        decimal: its decimal mark.
        roles: role → column, of time, label, run and id.
        problems: sentences on what cannot be read, or not in order of time.
    """

    device: str
    factory: str
    sheet: Sheet | None
    units: Mapping[str, str]
    decimal: str
    roles: Mapping[str, str]
    problems: tuple[str, ...] = ()


def read(path: Path, reading: Reading | None = None, device: str = "") -> list[ApartTable]:
    """Return the tables of all devices.

    Args:
        path: a table, or a folder of tables.
        reading: the settings of an experiment; None: the roles of columns are guessed, and if neither folders nor a
            column name devices, each file is one.
        device: the device of all tables.

    Raises:
        SettingError: no such path, or no table in it that can be read.
    """
    path = expanded(path)
    root = path if path.is_dir() else path.parent
    if not path.exists():
        own.load(path, Reading(), 0)  # refuses it
    kind = (reading and reading.format) or own.format_of(path)
    if kind == "npz":
        raise SettingError(
            f"{path}: arrays. Ask about them by an experiment: fedfloor new {path} writes one.", key="ask"
        )
    if kind == "buffer":
        return [ApartTable(device or path.stem, "", buffer.sheet(path, reading or Reading()), {}, ".", {})]
    files = files_in(path) if path.is_dir() else [DataFile(path, path.name, (), None)]
    files = [file for file in files if file.path.name.casefold().endswith(tables(files))] if path.is_dir() else files
    if not files:
        raise SettingError(f"{path}: contains no tables. Questions about sites are about tables of sensors.", key="ask")
    rank = {name: i for i, name in enumerate(natural_order([file.name for file in files]))}
    scanned = [_scanned(file, reading) for file in sorted(files, key=lambda file: rank[file.name])]
    if all(each.sheet is None for each in scanned):
        raise SettingError(f"{path}: no table can be read. {scanned[0].problems[0]}", key="ask")
    timed = _timed([each for each in scanned if each.sheet is not None], reading or Reading())
    labelled = _labels_above(files, reading)
    found = list[ApartTable]()
    for file, each in zip(sorted(files, key=lambda file: rank[file.name]), scanned, strict=True):
        where = _place(file, reading, root, labelled=labelled) | ({"device": device} if device else {})
        found += _of_devices(replace(each, sheet=timed.get(id(each.sheet), each.sheet)), where, reading or Reading())
    return found if device or any(file.folders for file in files) else _told_apart(found)


def _told_apart(found: Sequence[ApartTable]) -> list[ApartTable]:
    """Return tables in which devices of one name with overlapping times in several files have the file's name first."""
    named: dict[str, list[tuple[float, float, Sheet]]] = {}
    for table in found:
        if table.sheet is not None and table.sheet.time is not None:
            span = float(table.sheet.time.min()), float(table.sheet.time.max()), table.sheet
            named.setdefault(table.device, []).append(span)
    twice = dict[str, str]()
    for name, spans in named.items():
        spans.sort(key=lambda span: span[:2])
        if any(end >= begin for (_, end, _), (begin, _, _) in pairwise(spans)):
            twice[name] = (
                f"a device '{name}' is in {excerpt([sheet.title for *_, sheet in spans], 3)} at the same times, and a "
                "run takes them for one machine. Give each a name of its own, or put each table into a folder of its "
                "factory: --set data.device=column --set data.factory=folder."
            )
    return [
        replace(table, device=f"{stem_of(table.sheet.title)}/{table.device}",
                problems=(*table.problems, twice[table.device]))
        if table.device in twice and table.sheet is not None else table
        for table in found
    ]  # fmt: skip


def _labels_above(files: Sequence[DataFile], reading: Reading | None) -> bool:
    """Return whether the lowest folders are labels: as set, or as their names occur in several folders."""
    if reading is not None and reading.layout is not None:
        return "label" in reading.layout
    places = {file.folders for file in files}
    deep = all(len(folders) >= 2 for folders in places)
    return deep and len({folders[-1] for folders in places}) < len(places)


def _place(file: DataFile, reading: Reading | None, root: Path, *, labelled: bool) -> dict[str, str]:
    """Return what a table's path states: device, factory and label, as role → name."""
    way = None if reading is None else reading.device
    folders = [*file.folders]
    place = {"label": folders.pop()} if labelled and folders else {}
    if way == "file" or (way is None and not folders):
        form = None if reading is None else reading.file_name
        name = of_file(file.path.name, form) or stem_of(file.path.name)
        return place | {"file": name} | ({"factory": folders[0]} if folders else {})
    if way == "column":
        return place | ({"factory": folders[0]} if folders else {})
    above = {"factory": folders[-2]} if len(folders) > 1 else {}
    return place | above | {"device": folders[-1] if folders else root.name}


def _scanned(file: DataFile, reading: Reading | None) -> ApartTable:
    """Return a table with its rows, or with the reason why it cannot be read; its device is still unknown."""
    base = reading or Reading()
    given: dict[str, Any] = {name: value for name, value in base.dialect().items() if name != "until"}
    given["decimal"] = base.decimal
    try:
        if "skip" not in given and (above := preamble(file.path, given)):
            given["skip"] = tuple(above)
        table = head(file.path, LOOKED_AT, given)
        texts = {mark: _texts(table.whole(), mark) for mark in dict.fromkeys((base.decimal, *".,"))}
        decimal = given["decimal"] = min(texts, key=lambda mark: len(texts[mark]))
        roles, ignored = _roles(table.whole(), reading, decimal)
        sheet, problems = _retried(file, texts[decimal], roles, ignored, given)
    except SettingError as error:
        return ApartTable("", "", None, {}, base.decimal, {}, (f"cannot be read: {error}",))
    text = {role: words for role, words in sheet.text.items() if not role.startswith(CATEGORY)}
    if (label := CATEGORY + roles.get("label", "")) in sheet.text:
        text["label"] = sheet.text[label]
    sheet = replace(sheet, name=file.name, text=text)
    stated = {role: name for role, name in roles.items() if role in ("time", "label", "run", "id")}
    units = {name: unit.strip("[]() ") for name, unit in units_of(file.path, given).items()}
    return ApartTable("", "", sheet, units, decimal, stated, (*_lacking(roles, reading), *problems))


def _texts(table: Excerpt, decimal: str) -> list[str]:
    """Return the columns that hold texts, with a decimal mark."""
    return [name for name in table.names if mostly_text(table.cells(name), decimal)]


def _roles(table: Excerpt, reading: Reading | None, decimal: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return role → column, as stated or, without an experiment, as guessed; and the columns that are no sensors."""
    if reading is not None:
        stated = reading.columns.roles().items()
        known = {*table.names}
        roles = {
            role: name for role, name in stated
            if name in known or (role not in SPANS and {*parts_of(name)} <= known)
        }  # fmt: skip
        kept = {*reading.columns.values, *(reading.columns.categories or ())}
        left = reading.columns.ignore
        names = [name for name in table.names if name not in roles.values()]
        return roles, tuple(name for name in names if name in left or (reading.columns.values and name not in kept))
    roles = roles_of(table, {})
    free = [name for name in table.names if name not in roles.values()]
    profiles = profiles_of(table, free, roles, decimal).items()
    return roles, tuple(name for name, profile in profiles if kind_of(profile).kind in NO_SENSORS)


def _lacking(roles: Mapping[str, str], reading: Reading | None) -> list[str]:
    """Return sentences on the roles that an experiment states and for which a table has no column."""
    stated = {} if reading is None else reading.columns.roles()
    usual = Columns().roles()
    return [
        f"no column '{name}', which data.columns.{role} states. Give the column this name in all tables"
        for role, name in stated.items()
        if name and name != usual.get(role) and role not in roles and not (role in SPANS and JOIN in name)
    ]  # fmt: skip


def _retried(
    file: DataFile, texts: Sequence[str], roles: Mapping[str, str], ignored: Sequence[str], given: dict[str, Any]
) -> tuple[Sheet, list[str]]:
    """Return a table's rows, and sentences on texts among the numbers of its sensors, which count as missing."""
    named: dict[str, Any] = {role: roles.get(role, "") for role in ("device", "factory", "time", "id")}
    taken = {*named.values(), roles.get("run"), *ignored}
    labels = [roles["label"]] if "label" in roles and JOIN.strip() not in roles["label"] else []
    coded: dict[str, Any] = dict.fromkeys((name for name in [*texts, *labels] if name not in taken), "one-hot")
    problems = list[str]()
    for _ in range(TRIES):
        columns = Columns(**named, label="", run=roles.get("run"), ignore=tuple(ignored), categories=coded)
        try:
            return scan(file.path, Reading(**given, columns=columns), ()), problems
        except OddTextError as error:
            if error.texts:
                problems.append(str(error))
                given["missing_texts"] = (*given.get("missing_texts", ()), *error.texts)
            else:
                coded[error.name] = "one-hot"
    return scan(file.path, Reading(**given, columns=columns), ()), problems


def _timed(found: Sequence[ApartTable], reading: Reading) -> dict[int, Sheet]:
    """Return the identity of each table's rows → these with times, whose format all tables decide, or each its own."""
    sheets = [each.sheet for each in found if each.sheet is not None]
    try:
        return {id(sheet): done for sheet, done in zip(sheets, settled(sheets, reading), strict=True)}
    except SettingError:
        done = {}
        for sheet in sheets:
            with suppress(SettingError):  # the times of other tables are still known
                done[id(sheet)] = settled([sheet], reading)[0]
        return done


def _of_devices(table: ApartTable, place: Mapping[str, str], reading: Reading) -> Iterator[ApartTable]:
    """Yield a table's part for each of its devices, with the problems of its times."""
    sheet = table.sheet
    name = place.get("device") or place.get("file", "")
    factory = place.get("factory", "")
    if sheet is None:
        yield replace(table, device=name, factory=factory)
        return
    if "label" in place:
        sheet = replace(sheet, text=sheet.text | {"label": [place["label"]] * len(sheet.line)})
    names = [name] * len(sheet.line) if "device" in place else sheet.text.get("device", [name] * len(sheet.line))
    whose = np.array(names)
    for own_name in natural_order(names):
        rows = np.flatnonzero(whose == own_name)
        mine = sheet if len(rows) == len(names) else sheet.take(rows)
        above = factory or (mine.text["factory"][0] if "factory" in mine.text else "")
        told = _told(mine, reading)
        yield replace(table, device=own_name, factory=above, sheet=mine, problems=(*table.problems, *told))


def _told(sheet: Sheet, reading: Reading) -> list[str]:
    """Return the problem of times that do not ascend, as the reader of an experiment refuses it."""
    if sheet.time is None:
        return []
    draft = DraftReading.of(reading)
    joined = JoinedTables([sheet.take(np.flatnonzero(~sheet.copies()))])  # copies are a fact of their own
    one = np.zeros(len(joined.line), np.int32)
    joined.in_time(np.lexsort((joined.run, one)), one, [], draft, reading.columns.roles())
    return [problem.text for problem in draft.told]
