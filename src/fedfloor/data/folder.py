"""A folder per device: what its files are, and what the folders they lie in say about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedfloor.data import layout, pictures, recordings
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import expanded
from fedfloor.data.naming import TABLES, of_file
from fedfloor.data.picture import SUFFIXES
from fedfloor.data.reading import DEVICE, Reading
from fedfloor.data.tree import Found, walk
from fedfloor.errors import SettingError


def load(root: Path, reading: Reading, seed: int, device: str = "") -> Dataset:
    """Read ``[FACTORY/]DEVICE/LABEL/`` with pictures, or ``[FACTORY/]DEVICE[/LABEL]/`` with tables.

    Tables that lie in no folder have a column for the device; see :func:`_owned` for tables that are devices.

    Which of them it is must be plain from the files, or stand in ``[data] layout``: see :mod:`fedfloor.data.layout`.
    Where the folder holds ``train`` and ``test`` and nothing else, each of them is such a folder.

    Args:
        root: the folder. Nothing outside it is read.
        reading: classes, split, and how pictures or tables become samples.
        seed: of random splits.
        device: whose folder it is, where it is a single one's: then it holds what a DEVICE's folder does.

    Raises:
        SettingError: nothing in it, a file that is neither, or in the wrong place, a link that leads out, or a mistake
            in a file; the message names it.
    """
    found = [replace(one, folders=(device, *one.folders)) if device else one for one in walk(root)]
    if reading.test is not None:
        found = _with_tests(found, root, reading.test)
    files = [one for one in found if not one.empty]
    if not files:
        holds = "pictures in a folder per label, or tables" if device else "a folder per device"
        raise SettingError(f"{root}: no files in it. A folder of data holds {holds}.")
    odd = next((one for one in files if not _is(one, SUFFIXES) and not _is(one, TABLES)), None)
    if odd is not None:
        raise SettingError(
            f"{odd.name}: neither a picture ({', '.join(SUFFIXES)}) nor a table ({', '.join(TABLES)}). Take it out of "
            "the folder."
        )
    images = _is(files[0], SUFFIXES)
    other = next((one for one in files if _is(one, SUFFIXES) != images), None)
    if other is not None:
        raise SettingError(f"{files[0].name} and {other.name}: pictures and tables in one folder. Keep them apart.")
    if not images and not device:
        reading, files = _owned(files, reading)
        if reading.device != "folder":
            _check_empty(found, 2)
            return recordings.load(root, files, reading, seed)
        reading = replace(reading, device=None)
    deepest = 2 if device else 3
    depth = _depth(files, range(2 if images else 1, deepest + 1), "pictures" if images else "tables", bool(device))
    _check_empty(found, depth)
    if not device:
        layout.check(files, reading, images=images)
    if images:
        return pictures.load(root, files, reading, seed)
    return recordings.load(root, files, reading, seed, own=bool(device))


def _with_tests(found: Sequence[Found], root: Path, said: str) -> list[Found]:
    """Return the files of a folder for training, and those of another one for testing.

    Raises:
        SettingError: it is no folder, lies in the other one, or the data come split already.
    """
    test = expanded(said)
    if not test.is_dir():
        raise SettingError(f"[data] test = '{said}': no folder. The test samples of a folder lie in a folder like it.")
    inside = test.resolve().is_relative_to(root.resolve()) or root.resolve().is_relative_to(test.resolve())
    tests = walk(test)
    if inside or any(one.part is not None for one in (*found, *tests)):
        why = "one of the two folders lies in the other" if inside else "one of the folders holds train and test"
        raise SettingError(f"[data] test = '{said}': {why}. Keep training and test samples apart, or leave test out.")
    return [replace(one, part=0) for one in found] + [
        replace(one, name=f"{test.name}/{one.name}", part=1) for one in tests
    ]


def _owned(files: Sequence[Found], reading: Reading) -> tuple[Reading, list[Found]]:
    """Return what tells the devices of tables, and the tables in the folders that matter then.

    Where the device is a column there are none, or the factory's; where it is the file, its name stands for a folder.

    Raises:
        SettingError: folders that mean nothing, or a factory's folder that is not there.
    """
    way = reading.device or ("folder" if any(one.folders for one in files) else "column")
    if way == "folder":
        return replace(reading, device=way), list(files)
    placed = []
    for one in files:
        if reading.factory == "folder" and len(one.folders) != 1:
            raise SettingError(f'{one.name}: with [data] factory = "folder" each table lies in a folder: its factory.')
        if way == "file" and one.folders and reading.factory != "folder":
            raise SettingError(
                f"{one.name}: [data] device = \"file\", but the file lies in a folder. If '{one.folders[0]}' is its "
                "factory: --set data.factory=folder. If the folder is the device: --set data.device=folder."
            )
        factory = one.folders if reading.factory == "folder" else ()
        placed.append(replace(one, folders=(*factory, _device(one, reading)) if way == "file" else factory))
    return replace(reading, device=way), placed


def _device(one: Found, reading: Reading) -> str:
    """Return the name of the device that a table belongs to by its own name.

    Raises:
        SettingError: the table's name is not of the form that was given.
    """
    device = of_file(one.path.name, reading.file_name)
    if device is None:
        raise SettingError(
            f"{one.name}: its name is not of the form '{reading.file_name}' ({DEVICE} the device's name, * anything). "
            "Set data.file_name to one that all files have, or rename the file."
        )
    return device


def _is(one: Found, suffixes: tuple[str, ...]) -> bool:
    return one.path.name.casefold().endswith(suffixes)


def _depth(files: Sequence[Found], allowed: range, what: str, own: bool) -> int:
    """Return how many folders all files lie in.

    Raises:
        SettingError: too few or too many, or not as many as others.
    """
    above = "" if own else "[FACTORY/]DEVICE/"
    wanted = f"{above}LABEL/FILE" + (f" or {above}FILE" if 1 in allowed else "")
    for one in files:
        depth = len(one.folders)
        if depth not in allowed:
            hint = ""
            if depth == 1 and what == "pictures" and not own:
                hint = (
                    f" If '{one.folders[0]}' is a device, it needs a folder per label; if it is a label, put it into a "
                    "folder named for the device."
                )
            raise SettingError(f"{one.name}: in the wrong place. {what.capitalize()} lie in {wanted}.{hint}")
        if depth != len(files[0].folders):
            raise SettingError(
                f"{files[0].name} and {one.name}: not equally deep. All {what} lie in {wanted}, with a factory for all "
                "devices or for none."
            )
    return len(files[0].folders)


def _check_empty(found: Sequence[Found], depth: int) -> None:
    """Refuse empty folders of devices and factories; a label that a device has no sample of is no mistake."""
    for one in found:
        if one.empty and (len(one.folders) < depth or depth == 1):
            raise SettingError(f"{one.name}: an empty folder. Put the device's files into it, or remove it.")
