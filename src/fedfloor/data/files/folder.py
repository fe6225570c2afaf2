"""Folders per device with pictures by label, or with tables, each of them a recording."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.base.errors import SettingError
from fedfloor.data.cache import Writer, remember
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import conversions, evaluated, expanded, pictures
from fedfloor.data.files.categories import describe, encoded, listed
from fedfloor.data.files.encode import finished, labelled, natural_order, qualified
from fedfloor.data.files.excerpt import head
from fedfloor.data.files.layout import NoColumnError, UnlabelledError
from fedfloor.data.files.pictures import SUFFIXES
from fedfloor.data.files.sheet import Sheet, scan, settled
from fedfloor.data.files.spellings import respelt
from fedfloor.data.files.table import MEANT, check_labels, of_entry, tell_grouped, write
from fedfloor.data.files.tables_beside import joins
from fedfloor.data.files.tree import DataFile, Naming, are_labels, check_layout, dated, named, of_file, tables, walk
from fedfloor.data.reading import DEVICE, Reading, dealt

log = logging.getLogger(__name__)

KINDS = 20  # tables of a folder, at most, that are examined for different kinds
LISTED = 6  # columns of a table that a message names


def load(root: Path, reading: Reading, seed: int, device: str = "", ask: Callable[[], None] = lambda: None) -> Dataset:
    """Read ``[FACTORY/]DEVICE/LABEL/`` with pictures, or ``[FACTORY/]DEVICE[/LABEL]/`` with tables.

    Tables outside folders have a column for the device; see :func:`_owned` for tables that are devices. The layout must
    be clear from the files, or set in ``[data] layout``. If the folder holds only ``train`` and ``test``, each of them
    has this layout.

    Args:
        root: the folder.
        reading: the format of its files and the conversion to samples.
        seed: the seed of random splits.
        device: the owner of all files, if they belong to a single device.
        ask: refuses data that would be misread; called before they are parsed, unless the cache has them.

    Raises:
        SettingError: an empty folder, a file of another kind or in the wrong place, a link out of the folder, or a
            mistake in a file, which the message names.
    """
    entries = [replace(file, folders=(device, *file.folders)) if device else file for file in walk(root)]
    if reading.test is not None:
        entries = _with_tests(entries, root, reading.test)
    files = [file for file in entries if not file.empty]
    if not files:
        holds = "pictures in a folder per label, or tables" if device else "a folder per device"
        raise SettingError(f"{root}: contains no files. A folder of data contains {holds}.", key="empty-folder")
    endings = tables(files)
    odd = next((file for file in files if not _is(file, SUFFIXES) and not _is(file, endings)), None)
    if odd is not None:
        conversions.check_files(root, [file.path for file in files], odd.path)
        raise SettingError(
            f"{odd.name}: neither a picture ({', '.join(SUFFIXES)}) nor a table ({', '.join(endings)}). Remove it "
            "from the folder; if it is a table as text, rename it with the ending .csv.",
            key="foreign-file",
        )
    images = _is(files[0], SUFFIXES)
    other = next((file for file in files if _is(file, SUFFIXES) != images), None)
    if other is not None:
        raise SettingError(
            f"{files[0].name} and {other.name}: pictures and tables in one folder. Separate them.",
            key="pictures-and-tables",
        )
    if not images and not device:
        reading, files = _owned(files, reading)
        if reading.device != "folder":
            _check_empty(entries, 2)
            return _load_tables(root, files, reading, seed, ask)
        reading = replace(reading, device=None)
    deepest = 2 if device else 3
    least = 2 if images and (device or reading.layout != "label/file") else 1
    depth = _depth(files, range(least, deepest + 1), "pictures" if images else "tables", bool(device))
    _check_empty(entries, depth)
    if not device:
        check_layout(files, reading, images=images)
    if images:
        return pictures.load(root, files, reading, seed, ask)
    return _load_tables(root, files, reading, seed, ask, own=bool(device))


def _with_tests(entries: Sequence[DataFile], root: Path, given: str) -> list[DataFile]:
    """Return the files of a folder for training, and the files in ``given`` for testing."""
    test = expanded(given)
    if not test.is_dir():
        raise SettingError(f"[data] test = '{given}': no folder. Test samples for a folder must be in a folder.")
    inside = test.resolve().is_relative_to(root.resolve()) or root.resolve().is_relative_to(test.resolve())
    tests = walk(test)
    if inside or any(file.part is not None for file in (*entries, *tests)):
        why = "one of the two folders is inside the other" if inside else "one of the folders holds train and test"
        raise SettingError(f"[data] test = '{given}': {why}. Keep training and test samples apart, or leave test out.")
    return [replace(file, part=0) for file in entries] + [
        replace(file, name=f"{test.name}/{file.name}", part=1) for file in tests
    ]


def _owned(files: Sequence[DataFile], reading: Reading) -> tuple[Reading, list[DataFile]]:
    """Return the reading with the source of the devices' names, and the tables with the relevant folders.

    If devices are in a column, no folder or only the factory's is relevant; if files are devices, their names act as
    folders.
    """
    way = reading.device or ("folder" if any(file.folders for file in files) else "column")
    if way == "folder":
        return replace(reading, device=way), list(files)
    placed = []
    for file in files:
        if reading.factory == "folder" and len(file.folders) != 1:
            raise SettingError(
                f'{file.name}: with [data] factory = "folder" each table must be in a folder, its '
                "factory. Move it into one.",
                key="place-in-folder",
            )
        if way == "file" and file.folders and reading.factory != "folder":
            raise SettingError(
                f"{file.name}: [data] device = \"file\", but the file is in a folder. If '{file.folders[0]}' is its "
                "factory: --set data.factory=folder. If the folder is the device: --set data.device=folder.",
                key="place-in-folder",
            )
        factory = file.folders if reading.factory == "folder" else ()
        device = of_file(file.path.name, reading.file_name) if way == "file" else ""
        if device is None:
            raise SettingError(
                f"{file.name}: its name does not match '{reading.file_name}' ({DEVICE}: the device's name, *: any "
                "text). Set data.file_name to a pattern that matches all files, or rename the file.",
                key="name-of-file",
            )
        placed.append(replace(file, folders=(*factory, device) if device else factory))
    return replace(reading, device=way), placed


def _is(file: DataFile, suffixes: tuple[str, ...]) -> bool:
    return file.path.name.casefold().endswith(suffixes)


def _depth(files: Sequence[DataFile], allowed: range, noun: str, own: bool) -> int:
    """Return the number of folders above each file, which must be the same for all."""
    above = "" if own else "[FACTORY/]DEVICE/"
    wanted = f"{above}LABEL/FILE" + (f" or {above}FILE" if 1 in allowed else "")
    for file in files:
        depth = len(file.folders)
        if depth not in allowed:
            hint = ""
            if depth == 1 and noun == "pictures" and not own:
                hint = (
                    f" If '{file.folders[0]}' is a device, it needs a folder per label; if it is a label, put it into "
                    "a folder named for the device. Or if no folder is a device, deal the pictures to made-up ones: "
                    f"{dealt('data.layout=label/file')}."
                )
            raise SettingError(
                f"{file.name}: in the wrong place. {noun.capitalize()} must be in {wanted}.{hint}",
                key="place-in-folder",
            )
        if depth != len(files[0].folders):
            raise SettingError(
                f"{files[0].name} and {file.name}: in folders of different depth. All {noun} must be in {wanted}, "
                "with a factory for all devices or for none.",
                key="place-in-folder",
            )
    return len(files[0].folders)


def _check_empty(entries: Sequence[DataFile], depth: int) -> None:
    """Refuse empty folders of devices and factories; a device may have an empty folder of a label."""
    for file in entries:
        if file.empty and (len(file.folders) < depth or depth == 1):
            raise SettingError(
                f"{file.name}: an empty folder. Put the device's files into it, or remove it.", key="empty-folder"
            )


RECIPE = "recordings 11"


def _load_tables(
    root: Path, files: Sequence[DataFile], reading: Reading, seed: int, ask: Callable[[], None], *, own: bool = False
) -> Dataset:
    """Read tables, whose devices are the natural owners in the order of their names. No window crosses files.

    Two folders are a factory and a device if the tables have a column for the label, but a device and a label if this
    column repeats the folder's name in every file. Without this column ``[data] layout`` must be set. A split by time
    takes the end of a device's recordings in the order of their first times; without times, or with a folder per label,
    the end of each file.
    """
    reading.only((*MEANT, "layout", "device", "factory", "file_name"), "tables")

    def parse(writer: Writer) -> Mapping[str, Any]:
        ask()
        return _parse_tables(files, reading, writer, own=own)

    entry = remember(f"{RECIPE} {reading.recipe()}", [file.path for file in files], parse, root)
    return of_entry(root.name or root.resolve().name, entry, reading, seed, apart=entry.facts["apart"])


def _parse_tables(files: Sequence[DataFile], reading: Reading, writer: Writer, *, own: bool) -> Mapping[str, Any]:
    rank = {name: i for i, name in enumerate(natural_order([file.name for file in files]))}
    files = sorted(files, key=lambda file: rank[file.name])
    depth = len(files[0].folders)
    columns = reading.device == "column"
    required = _required(depth, reading)
    try:
        readings = evaluated.readings([file.path for file in files], reading)
        scanned = [_read(file, own_columns, required) for file, own_columns in zip(files, readings, strict=True)]
    except SettingError:
        if not (others := _different_kinds(files, reading)):
            raise
        raise SettingError(others, key="different-tables") from None
    scanned = evaluated.normal_without_label(scanned, reading)
    tell_grouped(scanned, reading)
    sheets, running = finished(settled(scanned, reading, [file.folders for file in files]), reading)
    sheets, reading = labelled(sheets, reading)
    categories = listed(sheets, reading.columns.categories)
    sheets = encoded(sheets, categories, reading)
    by_folder = reading.device is None and (depth == 3 or (depth == 2 and _are_labels(files, sheets, reading, own=own)))
    if not by_folder:
        check_labels(sheets, reading)
    naming = Naming(reading.device or "folder", by_folder, reading.file_name)
    places = _places(files, depth, naming)
    for sheet, place in zip(sheets, places, strict=True):
        _check_agreement(sheet, place, reading)
    factory = _factories(sheets, places, reading)
    device = None
    if not columns or reading.columns.device:  # otherwise rows are dealt to devices
        device = _texts(sheets, places, "device")
    if device is not None and columns and reading.factory == "folder":
        device = qualified(unqualified := device, factory)
        naming = replace(naming, factory=device != unqualified)
    elif not columns:
        both = zip(places, files, strict=True)
        naming = replace(naming, factory=any(a["device"] != b.folders[naming.place] for a, b in both))
    known = by_folder or all("label" in sheet.text for sheet in sheets)
    label = respelt(_texts(sheets, places, "label"), reading.spellings) if reading.asked.labelled or known else None
    part = None
    if files[0].part is not None:
        part = np.repeat(np.array([file.part for file in files], np.int8), [len(sheet.line) for sheet in sheets])
    return {
        **write(writer, sheets, device, factory, label, reading, part),
        "apart": by_folder or any(sheet.time is None for sheet in sheets),
        "categories": describe(categories),
        "running": running,
        "device_of": {} if own or (columns and not naming.factory) else asdict(naming),
    }


def _required(depth: int, reading: Reading) -> tuple[str, ...]:
    """Return the roles for which every table needs a column."""
    roles: tuple[str, ...] = ("label",) if depth == 1 or "label" not in (reading.layout or "label") else ()
    if reading.device in ("column", "file"):
        named = ("device",) if reading.device == "column" and reading.columns.device else ()
        roles = ("label", *named, *(("factory",) if reading.factory == "column" else ()))
    return tuple(role for role in roles if role != "label" or reading.labelled)


def _read(file: DataFile, reading: Reading, required: Sequence[str]) -> Sheet:
    above = file.name.removesuffix(file.path.name)
    try:
        return replace(scan(file.path, reading, required), name=file.name)
    except UnlabelledError as error:
        raise error.within(above) from error
    except SettingError as error:  # its message names the file, but not its folder
        if reading.device != "column" or not isinstance(error, NoColumnError) or error.role != "device":
            raise SettingError(above + str(error) + _of_classes(file, error), key=error.key) from error
        hint = " If each file is a device: --set data.device=file."
        if several := dated([each.name for each in file.path.parent.iterdir() if each.name[0] != "."]):
            hint += (
                f" Devices with a file per date ({named(several[1])}): --set data.device=file "
                f"--set 'data.file_name={several[0]}'."
            )
        lack = NoColumnError(error.path, error.name, error.role, error.names, hint=hint)
        raise SettingError(f"{above}{lack}", key=lack.key) from lack


def _of_classes(file: DataFile, error: SettingError) -> str:
    """Return the remedy for tables in a folder per label, if a table has no column for it; "" for other errors."""
    if not isinstance(error, NoColumnError) or error.role != "label" or len(file.folders) != 1:
        return ""
    name = file.folders[0]
    return (
        f" If the folder's name, '{name}', is the label: move it into a folder of its machine, MACHINE/{name}/, with "
        "--layout device/label/file; tables of a single machine can be dealt to made-up ones: --set park.devices=10 "
        "--set 'data.partition={kind=\"blocks\"}'."
    )


def _different_kinds(files: Sequence[DataFile], reading: Reading) -> str:
    """Return the message on tables most of whose columns are in no other table; "" for tables of one kind.

    Such a folder is the export of a database: measurements in one table, and failures, repairs, machines in others.
    """
    form = reading.dialect() | {"decimal": reading.decimal}
    names = {file: {*head(file.path, 1, form).names} for file in files[:KINDS]}
    alone = [
        len(columns - set().union(*(others for each, others in names.items() if each is not file)))
        for file, columns in names.items()
    ]
    alike = 2 * sum(alone) <= len(set().union(*names.values())) or len({*map(len, names.values())}) == 1
    if alike or len(files) > KINDS:
        return ""
    main = max((file.path for file in names), key=lambda path: path.stat().st_size)
    table = shlex.quote(str(main))
    beside = "\n".join(f"  - {joins(main, file.path, form)}" for file in names if file.path != main)
    contents = "; ".join(f"{file.name}: {', '.join(head(file.path, 1, form).names[:LISTED])}" for file in names)
    return (
        f"its tables are of different kinds ({contents}); a folder holds tables with the same columns. Give the table "
        f"with the measurements: fedfloor new {table}. The others can be joined to its rows:\n{beside}"
    )


def _are_labels(files: Sequence[DataFile], sheets: Sequence[Sheet], reading: Reading, *, own: bool) -> bool:
    """Return whether the lower of two folders is a label."""
    advice = "Give all tables one (in FACTORY/DEVICE/), or none (in DEVICE/LABEL/)."
    if not _in_all(sheets, "label", reading, advice):
        return own or are_labels(files, reading, sheets[0].columns)
    same = all({*sheet.text["label"]} == {file.folders[-1]} for file, sheet in zip(files, sheets, strict=True))
    return same or "label" in (reading.layout or "")


def _in_all(sheets: Sequence[Sheet], role: str, reading: Reading, advice: str) -> bool:
    """Return whether all tables have a column for a role; refuse tables with and without it."""
    has_column = [role in sheet.text for sheet in sheets]
    if any(has_column) and not all(has_column):
        has, lacks = (sheets[has_column.index(each)].title for each in (True, False))
        raise SettingError(
            f"{has} has a column '{reading.columns.roles()[role]}', but {lacks} has none. {advice}",
            key="columns-differ",
        )
    return all(has_column)


def _places(files: Sequence[DataFile], depth: int, naming: Naming) -> list[dict[str, str]]:
    """Return for each table the roles (device, factory, label) that its path determines, as role → value."""
    if naming.device == "column":
        return [{"factory": file.folders[0]} if depth else {} for file in files]
    factory = [file.folders[0] for file in files] if depth + naming.place + 1 == 2 else None
    names = qualified([file.folders[naming.place] for file in files], factory)
    return [
        {"device": name}
        | ({} if factory is None else {"factory": file.folders[0]})
        | ({"label": file.folders[-1]} if naming.labelled else {})
        for file, name in zip(files, names, strict=True)
    ]


def _texts(sheets: Sequence[Sheet], places: Sequence[Mapping[str, str]], role: str) -> list[str]:
    """Return the value of a role for each row of all tables."""
    both = zip(sheets, places, strict=True)
    return [
        text for sheet, place in both
        for text in ([place[role]] * len(sheet.line) if role in place else sheet.text[role])
    ]  # fmt: skip


def _factories(sheets: Sequence[Sheet], places: Sequence[Mapping[str, str]], reading: Reading) -> list[str] | None:
    """Return the factory of each row of all tables; None without factories."""
    if "factory" not in places[0]:
        advice = "Give all tables one, or none."
        if reading.device not in ("column", "file") or not _in_all(sheets, "factory", reading, advice):
            return None
    return _texts(sheets, places, "factory")


def _check_agreement(sheet: Sheet, place: Mapping[str, str], reading: Reading) -> None:
    """Refuse a table with a column that contradicts its folder."""
    for role, given in place.items():
        if role == "device":
            given = given.removeprefix(f"{place.get('factory')}/")
        where = "the file's name" if role == "device" and reading.device == "file" else "the folder"
        for row, text in enumerate(sheet.text.get(role, ())):
            if text != given:
                raise SettingError(
                    f"{sheet.place(row, reading.columns.roles()[role])}: '{text}', but {where} is '{given}'. "
                    "Correct one of them.",
                    key="folder-and-column-differ",
                )
