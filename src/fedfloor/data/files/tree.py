"""The files of a data folder: found by walking it, each with its device and the roles of the folders above it."""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedfloor.data.files import unreadable
from fedfloor.data.files.columnar import PARQUET
from fedfloor.data.files.encode import natural_order
from fedfloor.data.files.rows import PACKED, WORKBOOKS
from fedfloor.data.reading import DEVICE, Reading
from fedfloor.errors import SettingError

DEEPEST = 5  # folders: train or test, factory, device, label, and one too many to complain about
IGNORED = {"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"}
PARTS = ("train", "test")


@dataclass(frozen=True)
class DataFile:
    """A file, or an empty folder.

    Args:
        path: its location.
        name: its path from the data folder on, with slashes.
        folders: the names of the folders it lies in, without ``train`` and ``test``; of a folder, with its own.
        part: 0 in ``train``, 1 in ``test``; None where the data do not come split.
        empty: True for a folder with nothing in it.
    """

    path: Path
    name: str
    folders: tuple[str, ...]
    part: int | None
    empty: bool = False


def walk(root: Path) -> list[DataFile]:
    """Return the files of a folder in the order of their names, and its empty folders.

    Hidden files (``.…``) and files of file managers (``Thumbs.db``, ``desktop.ini``, ``__MACOSX``) are passed over.
    A link is followed only within the folder; nothing but plain files and folders is ever opened. Where the
    folder holds ``train`` and ``test`` and nothing else, its files come split.

    Raises:
        SettingError: a link that leads out of the folder or nowhere, a pipe or device, a folder that cannot be listed,
            or names that are no Unicode text.
    """
    top = _entries(root, "")
    split = {path.name for path in top} == set(PARTS) and all(path.is_dir() for path in top)
    files = []
    for path, folders, empty in _walk(root, root.resolve(), ()):
        name = "/".join(folders if empty else (*folders, path.name))
        clean, part = tuple(map(normal, folders)), None
        if split:
            clean, part = clean[1:], PARTS.index(clean[0])
        files.append(DataFile(path, name, clean, part, empty))
    return files


def _walk(folder: Path, root: Path, above: tuple[str, ...]) -> Iterator[tuple[Path, tuple[str, ...], bool]]:
    entries = _entries(folder, "/".join(above))
    if not entries:
        yield folder, above, True
    for path in entries:
        name = "/".join((*above, path.name))
        try:
            _check_inside(path, root, name)
            kind = path.stat().st_mode
        except OSError as error:
            raise unreadable(path, error) from error
        if stat.S_ISDIR(kind):
            if len(above) == DEEPEST:
                raise SettingError(f"{name}: too deep. The levels of the folder are factory, device and label.")
            yield from _walk(path, root, (*above, path.name))
        elif stat.S_ISREG(kind):
            yield path, above, False
        else:
            raise SettingError(f"{name}: neither a file nor a folder (a pipe, a socket, a device); it was not opened.")


def _entries(folder: Path, name: str) -> list[Path]:
    try:
        paths = sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise SettingError(f"{name or folder}: cannot be listed ({error.strerror}). Check its permissions.") from error
    for path in paths:
        try:
            path.name.encode()
        except UnicodeEncodeError as error:
            raise SettingError(f"{name or folder}: {path.name!a} is no Unicode text. Rename it.") from error
    return [path for path in paths if path.name[0] != "." and path.name.casefold() not in IGNORED]


def _check_inside(path: Path, root: Path, name: str) -> None:
    if not path.is_symlink():
        return
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise SettingError(f"{name}: a link that leads nowhere ({path.readlink()}). Remove it.") from error
    if path.parent.resolve().is_relative_to(target) and target.is_relative_to(root):
        raise SettingError(f"{name}: a link to a folder that it lies in itself. Remove it.")
    if not target.is_relative_to(root):
        raise SettingError(
            f"{name}: a link to {target}, which is not in the data folder. Nothing outside it is read: put a copy in "
            "its place."
        )


TABLES = (*(kind + packed for kind in (".csv", ".tsv") for packed in ("", *PACKED)), *PARQUET, *WORKBOOKS)
TEXTS = (".txt", ".dat", ".asc")  # tables where a folder has no other ones: beside those they may be notes


@dataclass(frozen=True)
class Naming:
    """The rule by which a table's path names its device, in training and in predictions.

    Args:
        device: the ``folder`` or the ``file``'s name; ``column``: the table itself.
        labelled: whether the folder that the table lies in is its label, and the device the one above.
        file_name: the part of the file's name that is the device's, as ``[data] file_name``; None: the whole name.
        factory: whether the folder above stands before the device's name, as factories have devices of one name.
    """

    device: Literal["column", "folder", "file"]
    labelled: bool = False
    file_name: str | None = None
    factory: bool = False

    @property
    def place(self) -> int:
        """The place of the device's name among the folders of a table; a file that is a device is the last."""
        return -2 if self.labelled else -1

    def devices(self, path: Path, column: Sequence[str] | None, rows: int) -> Sequence[str] | None:
        """Return the device of each row of a table; None where neither its path nor a column names one.

        >>> Naming("folder").devices(Path("north/lathe-1/june.csv"), None, 1)
        ['lathe-1']
        >>> Naming("file", file_name="DEVICE_*", factory=True).devices(Path("north/lathe-1_june.csv"), None, 1)
        ['north/lathe-1']
        """
        folders = [normal(part) for part in Path(os.path.abspath(path)).parts[1:-1]]  # noqa: PTH100: links stay
        if self.device == "file":
            folders.append(of_file(path.name, self.file_name) or "")
        if column is None:
            name = "" if self.device == "column" else _at(folders, self.place)
            column = [name] * rows if name else None
        above = _at(folders, -1 if self.device == "column" else self.place - 1) if self.factory else ""
        return column if column is None or not above else [f"{above}/{name}" for name in column]


def _at(folders: Sequence[str], place: int) -> str:
    return folders[place] if len(folders) >= -place else ""


def of_file(name: str, form: str | None) -> str | None:
    """Return the name of the device that a table belongs to by its own name; None where the name is not of the form.

    >>> of_file("lathe-1_june.csv.gz", "DEVICE_*")
    'lathe-1'
    """
    stem = normal(stem_of(name))
    if form is None:
        return stem
    pattern = re.escape(normal(form)).replace(r"\*", ".*").replace(DEVICE, "(.+?)")
    match = re.fullmatch(pattern, stem)
    return None if match is None else match[1]


def stem_of(name: str) -> str:
    """Return a table's name without endings."""
    end = next((end for end in sorted(TABLES + TEXTS, key=len, reverse=True) if name.casefold().endswith(end)), None)
    return name if end is None else name[: -len(end)] or name


def tables(files: Sequence[DataFile]) -> tuple[str, ...]:
    """Return the endings of files that are tables in a folder."""
    return TABLES if any(file.path.name.casefold().endswith(TABLES) for file in files) else TABLES + TEXTS


def normal(text: str) -> str:
    """Return a name with composed letters (NFC): some systems decompose them."""
    return unicodedata.normalize("NFC", text)


EXAMPLES = 3  # folder names in a message
LAYOUTS = {
    1: ["device/file", "label/file"],
    2: ["device/label/file", "factory/device/file"],
    3: ["factory/device/label/file"],
}


def check_layout(files: Sequence[DataFile], reading: Reading, *, images: bool) -> None:
    """Check that the last folders of files are labels where they have no other possible meaning.

    Pictures, and tables in three folders, lie in folders that are named for labels. The names show it where one of
    them stands in several devices; otherwise they might as well be devices, parts or days. ``[data] classes`` and
    ``layout`` settle it.
    """
    given, depth = reading.layout, len(files[0].folders)
    if given is not None:
        if given.count("/") != depth or (images and "label" not in given) or (not images and given == "label/file"):
            known = [layout for layout in LAYOUTS[depth] if ("label" in layout if images else layout != "label/file")]
            raise SettingError(
                f"[data] layout = '{given}': {files[0].name} lies in {depth} folder{'s' if depth > 1 else ''}"
                f"{', and pictures need a label' if images else ''}. Known for {'pictures' if images else 'tables'} at "
                f"this depth: {', '.join(known)}."
            )
        return
    places = {file.folders for file in files}
    repeats = len({folders[-1] for folders in places}) < len(places)  # a folder's name stands in several folders
    if (not images and depth < 3) or reading.classes or repeats:
        return
    levels = "factory/device/label" if depth == 3 else "device/label"
    last = natural_order([file.folders[-1] for file in files])
    raise SettingError(
        f"{files[0].name}: read as {levels}/file the labels are {named(last)}, but none of them stands in two "
        f"devices. If that is right: --set data.layout={levels}/file. If these are devices (factory/device/file): "
        f"the files of each need a folder per label below it{'' if images else ', or a column for the label'}."
    )


def are_labels(files: Sequence[DataFile], reading: Reading, columns: Sequence[str]) -> bool:
    """Return whether the last folders of tables without a column for the label are labels; refused where ambiguous."""
    first, last = (natural_order([file.folders[level] for file in files]) for level in (0, 1))
    if reading.layout is not None or (reading.classes and {*last} <= {*reading.classes}):
        return "label" in (reading.layout or "label")
    raise SettingError(
        f"{files[0].name}: two folders, and no column '{reading.columns.label}': they can be read in two ways. "
        f"device/label/file: devices {named(first)}; labels {named(last)}: --set data.layout=device/label/file. Or "
        f"factory/device/file: factories {named(first)}; devices {named(last)}; and the label is a column of the "
        f"tables ({', '.join(columns)}): --set data.layout=factory/device/file --set data.columns.label=NAME."
    )


def named(names: Sequence[str]) -> str:
    """Return some names and their total number.

    >>> named(["a", "b", "c", "d"])
    "'a', 'b', 'c', … (4)"
    """
    some = ", ".join(f"'{name}'" for name in names[:EXAMPLES])
    return some if len(names) <= EXAMPLES else f"{some}, … ({len(names)})"
