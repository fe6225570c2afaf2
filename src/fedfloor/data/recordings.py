"""Tables in ``[FACTORY/]DEVICE[/LABEL]/`` become a data set: each file is a recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.data import layout
from fedfloor.data.bins import labelled as labelled_by
from fedfloor.data.cache import Writer, remember
from fedfloor.data.categories import describe, encoded, listed
from fedfloor.data.dataset import Dataset
from fedfloor.data.names import natural_order, qualified
from fedfloor.data.naming import Naming
from fedfloor.data.reading import Reading
from fedfloor.data.sheet import Sheet, scan, settled
from fedfloor.data.table import MEANT, check_labels, of_entry, write
from fedfloor.data.tree import Found
from fedfloor.errors import SettingError

RECIPE = "recordings 4"


@dataclass(frozen=True)
class _Recording:
    """A table and what its place says of it; device, factory and label are None where it has a column for them."""

    sheet: Sheet
    device: str | None
    factory: str | None
    label: str | None
    part: int | None


def load(root: Path, files: Sequence[Found], reading: Reading, seed: int, *, own: bool = False) -> Dataset:
    """Read tables: their devices are the natural owners, in the order of their names. No window crosses files.

    Two folders are a factory and a device where the tables have a column for the label, but a device and a label where
    it says in every file what the folder is called; without such a column ``[data] layout`` must tell. A
    split by time takes the end of what a device recorded, by the files' first times; where there are no times, or a
    folder per label, the end of each file.

    Args:
        root: the data folder.
        files: the tables, all in one folder (device), two or three (factory, device, label).
        reading: columns, windows, split, missing values.
        seed: of random splits.
        own: whether it is a single device's folder, in which folders are labels.

    Raises:
        SettingError: a mistake in a table, a table that says otherwise than its folder, or folders that can be read in
            two ways.
    """
    reading.only((*MEANT, "layout", "device", "factory", "file_name"), "tables")
    paths, recipe = [one.path for one in files], f"{RECIPE} {reading.recipe()}"
    entry = remember(recipe, paths, lambda writer: _parse(files, reading, writer, own=own), root)
    return of_entry(
        root.name or root.resolve().name, entry.arrays, entry.facts, reading, seed, apart=entry.facts["apart"]
    )


def _parse(files: Sequence[Found], reading: Reading, writer: Writer, *, own: bool) -> Mapping[str, Any]:
    rank = {name: i for i, name in enumerate(natural_order([one.name for one in files]))}
    ordered = sorted(files, key=lambda one: rank[one.name])
    depth, columns = len(files[0].folders), reading.device == "column"
    required: tuple[str, ...] = ("label",) if depth == 1 or "label" not in (reading.layout or "label") else ()
    if reading.device in ("column", "file"):
        required = ("label", *(("device",) if columns else ()), *(("factory",) if reading.factory == "column" else ()))
    if reading.remaining or not reading.asked.labelled:
        required = tuple(role for role in required if role != "label")
    sheets, reading = labelled_by(settled([_read(one, reading, required) for one in ordered], reading), reading)
    categories = listed(sheets, reading.columns.categories)
    sheets = encoded(sheets, categories, known=reading.whole)
    labelled = reading.device is None and (
        depth == 3 or (depth == 2 and _are_labels(ordered, sheets, reading, own=own))
    )
    if not labelled:
        check_labels(sheets, reading)
    naming = Naming(reading.device or "folder", labelled, reading.file_name)
    taken = _recordings(ordered, sheets, depth, naming)
    apart = labelled or any(one.sheet.time is None for one in taken)
    for one in taken:
        _check_agreement(one, reading)
    factory = _factories(taken, reading)
    device = [text for one in taken for text in _texts(one.device, one.sheet, "device")]
    if columns and reading.factory == "folder":
        device = qualified(unqualified := device, factory)
        naming = replace(naming, factory=device != unqualified)
    elif not columns:
        both = zip(taken, ordered, strict=True)
        naming = replace(naming, factory=any(a.device != b.folders[naming.place] for a, b in both))
    label = None
    if reading.asked.labelled or all(one.label is not None or "label" in one.sheet.text for one in taken):
        label = [text for one in taken for text in _texts(one.label, one.sheet, "label")]
    part = [one.part or 0 for one in taken for _ in one.sheet.line] if taken[0].part is not None else None
    split = None if part is None else np.array(part, np.int8)
    return {
        **write(writer, [one.sheet for one in taken], device, factory, label, reading, split),
        "apart": apart,
        "categories": describe(categories),
        "device_of": {} if own or (columns and not naming.factory) else asdict(naming),
    }


def _read(one: Found, reading: Reading, required: Sequence[str]) -> Sheet:
    above = one.name.removesuffix(one.path.name)
    try:
        return replace(scan(one.path, reading, required), name=one.name)
    except SettingError as error:  # which names the file, but not its folder
        alone = reading.device == "column" and f"no column '{reading.columns.device}'" in str(error)
        hint = " Or if each file is a device: --set data.device=file." if alone else ""
        raise SettingError(f"{above}{error}{hint}") from error


def _are_labels(files: Sequence[Found], sheets: Sequence[Sheet], reading: Reading, *, own: bool) -> bool:
    """Return whether the last of two folders is a label."""
    if not _has_label(sheets, reading):
        return own or layout.labelled(files, reading, sheets[0].columns)
    same = all({*sheet.text["label"]} == {one.folders[-1]} for one, sheet in zip(files, sheets, strict=True))
    return same or "label" in (reading.layout or "")


def _has_label(sheets: Sequence[Sheet], reading: Reading) -> bool:
    """Return whether tables have a column for the label: all, or none."""
    column = reading.columns.label
    there = ["label" in sheet.text for sheet in sheets]
    if any(there) and not all(there):
        raise SettingError(
            f"{sheets[there.index(True)].title} has a column '{column}', but {sheets[there.index(False)].title} has "
            "none. Give all tables one (in FACTORY/DEVICE/), or none (in DEVICE/LABEL/)."
        )
    return all(there)


def _recordings(files: Sequence[Found], sheets: Sequence[Sheet], depth: int, naming: Naming) -> list[_Recording]:
    if naming.device == "column":
        return [
            _Recording(sheet, None, one.folders[0] if depth else None, None, one.part)
            for one, sheet in zip(files, sheets, strict=True)
        ]
    own = naming.place
    factory = [one.folders[0] for one in files] if depth + own + 1 == 2 else None
    names = qualified([one.folders[own] for one in files], factory)
    return [
        _Recording(sheet, names[i], None if factory is None else factory[i], label, one.part)
        for i, (one, sheet) in enumerate(zip(files, sheets, strict=True))
        for label in [one.folders[-1] if naming.labelled else None]
    ]


def _texts(name: str | None, sheet: Sheet, role: str) -> list[str]:
    return sheet.text[role] if name is None else [name] * len(sheet.line)


def _factories(taken: Sequence[_Recording], reading: Reading) -> list[str] | None:
    """Return the factory of each row of all tables; None where there is none."""
    if taken[0].factory is None:
        there = ["factory" in one.sheet.text for one in taken]
        if not all(there) or reading.device not in ("column", "file"):
            if any(there) and reading.device in ("column", "file"):
                raise SettingError(
                    f"{taken[there.index(True)].sheet.title} has a column '{reading.columns.factory}', but "
                    f"{taken[there.index(False)].sheet.title} has none. Give all tables one, or none."
                )
            return None
    return [text for one in taken for text in _texts(one.factory, one.sheet, "factory")]


def _check_agreement(one: _Recording, reading: Reading) -> None:
    """Refuse a table with a column that says otherwise than its folder."""
    device = None if one.device is None else one.device.removeprefix(f"{one.factory}/")
    for role, said in (("device", device), ("factory", one.factory), ("label", one.label)):
        column = reading.columns.roles()[role]
        where = "the file's name" if role == "device" and reading.device == "file" else "the folder"
        for row, text in enumerate(one.sheet.text.get(role, ())):
            if said is not None and text != said:
                raise SettingError(
                    f"{one.sheet.place(row, column)}: '{text}', but {where} says '{said}'. Correct one of them."
                )
