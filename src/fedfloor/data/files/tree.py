"""The files of a data folder, with their devices and the roles of the folders above them."""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedfloor.base.errors import SettingError
from fedfloor.data.files import unreadable
from fedfloor.data.files.columnar import PARQUET
from fedfloor.data.files.encode import natural_order
from fedfloor.data.files.rows import PACKED, WORKBOOKS
from fedfloor.data.reading import DEVICE, Reading

DEEPEST = 5  # folders: train or test, factory, device, label, and one more for the error
IGNORED = {"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"}
PARTS = ("train", "test")


@dataclass(frozen=True)
class DataFile:
    """A file of a data folder, or an empty folder.

    Args:
        path: its location.
        name: its path relative to the data folder, with slashes.
        folders: the names of the folders above it, without ``train`` and ``test``; for a folder, including its own.
        part: 0 in ``train``, 1 in ``test``; None without these folders.
        empty: whether it is an empty folder.
    """

    path: Path
    name: str
    folders: tuple[str, ...]
    part: int | None
    empty: bool = False


def walk(root: Path) -> list[DataFile]:
    """Return the files of a folder, sorted by name, and its empty folders.

    Hidden files (``.…``) and files of file managers (``Thumbs.db``, ``desktop.ini``, ``__MACOSX``) are ignored. Links
    are followed only within the folder; only plain files and folders are opened. If the folder holds only ``train`` and
    ``test``, they are the parts of the data.

    Raises:
        SettingError: a link that leads out of the folder or nowhere, a pipe or device, a folder that cannot be listed,
            or names that are not Unicode text.
    """
    top = _entries(root, "")
    split = {path.name for path in top} == set(PARTS) and all(path.is_dir() for path in top)
    files = []
    for path, folders, empty in _walk(root, root.resolve(), ()):
        name = "/".join(folders if empty else (*folders, path.name))
        clean = tuple(map(normal, folders))
        part = None
        if split:
            clean, part = clean[1:], PARTS.index(clean[0])
        files.append(DataFile(path, name, clean, part, empty))
    return files


def files_in(root: Path) -> list[DataFile]:
    """Return the files of a folder, as :func:`walk` does, without its empty folders."""
    return [file for file in walk(root) if not file.empty]


def _walk(folder: Path, root: Path, above: tuple[str, ...]) -> Iterator[tuple[Path, tuple[str, ...], bool]]:
    entries = _entries(folder, "/".join(above))
    if not entries:
        yield folder, above, True
    for path in entries:
        name = "/".join((*above, path.name))
        if is_folder(path, root, name):
            if len(above) == DEEPEST:
                raise SettingError(
                    f"{name}: too many levels of folders. The possible levels are factory, device and label.",
                    key="depth-of-folder",
                )
            yield from _walk(path, root, (*above, path.name))
        else:
            yield path, above, False


def is_folder(path: Path, root: Path, name: str) -> bool:
    """Return whether an entry of the data folder ``root`` (a resolved path) is a folder; otherwise it is a plain file.

    Raises:
        SettingError: a link that leads out of ``root`` or nowhere, a pipe, a socket or a device.
    """
    try:
        _check_inside(path, root, name)
        kind = path.stat().st_mode
    except OSError as error:
        raise unreadable(path, error) from error
    if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
        raise SettingError(
            f"{name}: neither a file nor a folder (a pipe, a socket, a device), therefore not opened. Remove it.",
            key="not-a-file",
        )
    return stat.S_ISDIR(kind)


def _entries(folder: Path, name: str) -> list[Path]:
    try:
        paths = sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise SettingError(f"{name or folder}: cannot be listed ({error.strerror}). Check its permissions.") from error
    for path in paths:
        try:
            path.name.encode()
        except UnicodeEncodeError as error:
            raise SettingError(
                f"{name or folder}: {path.name!a} is not Unicode text. Rename it.", key="not-unicode"
            ) from error
    return [path for path in paths if path.name[0] != "." and path.name.casefold() not in IGNORED]


def _check_inside(path: Path, root: Path, name: str) -> None:
    if not path.is_symlink():
        return
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise SettingError(f"{name}: a link that leads nowhere ({path.readlink()}). Remove it.", key="link") from error
    if path.parent.resolve().is_relative_to(target) and target.is_relative_to(root):
        raise SettingError(f"{name}: a link to a folder above itself. Remove it.", key="link")
    if not target.is_relative_to(root):
        raise SettingError(
            f"{name}: a link to {target}, which is outside the data folder and is not read. Replace the link by "
            "a copy.",
            key="link",
        )


TABLES = (*(kind + packed for kind in (".csv", ".tsv") for packed in ("", *PACKED)), *PARQUET, *WORKBOOKS)
TEXTS = (".txt", ".dat", ".data", ".asc")  # tables only if a folder has no other tables; otherwise they may be notes


@dataclass(frozen=True)
class Naming:
    """The rule for the device's name in a table's path, in training and predictions.

    Args:
        device: the name of the ``folder`` or of the ``file``; or a ``column`` of the table.
        labelled: whether the lowest folder is the label, and the folder above it the device.
        file_name: the pattern of the device's name in the file's name, as in ``[data] file_name``; None: the whole
            name.
        factory: whether the device's name is prefixed by the folder above, because factories have devices of the same
            name.
    """

    device: Literal["column", "folder", "file"]
    labelled: bool = False
    file_name: str | None = None
    factory: bool = False

    @property
    def place(self) -> int:
        """The index, from the end, of the device's name among a table's folders, with the file's name as the last."""
        return -2 if self.labelled else -1

    def devices(self, path: Path, column: Sequence[str] | None, rows: int) -> Sequence[str] | None:
        """Return the device of each row of a table; None if neither its path nor a column has it.

        >>> Naming("folder").devices(Path("north/lathe-1/june.csv"), None, 1)
        ['lathe-1']
        >>> Naming("file", file_name="DEVICE_*", factory=True).devices(Path("north/lathe-1_june.csv"), None, 1)
        ['north/lathe-1']
        """
        folders = [normal(part) for part in Path(os.path.abspath(path)).parts[1:-1]]  # links stay
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
    """Return the device in the name of a table; None if the name does not match the pattern ``form``.

    >>> of_file("lathe-1_june.csv.gz", "DEVICE_*"), of_file("lathe-1_june.csv", "DEVICE_*.csv")
    ('lathe-1', 'lathe-1')
    """
    stem = normal(stem_of(name))
    if form is None:
        return stem
    pattern = re.escape(normal(stem_of(form))).replace(r"\*", ".*").replace(DEVICE, "(.+?)")
    match = re.fullmatch(pattern, stem)
    return None if match is None else match[1]


def dated(names: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the pattern of file names made of a device's name and a date, and the devices; None for other names.

    >>> dated(["P-1_2026-01.csv", "P-1_2026-02.csv", "P-2_2026-01.csv"])
    ('DEVICE_*', ['P-1', 'P-2'])
    >>> dated(["pump_1_2026-01.csv", "pump_1_2026-02.csv"]), dated(["a.csv", "b.csv"])
    (('DEVICE_20*', ['pump_1']), None)
    """
    matches = [re.fullmatch(r"(.+?)([_ .-]+)(?:19|20)\d\d(?:\D?\d\d?){0,2}(?:\D.*)?", stem_of(name)) for name in names]
    known = [match for match in matches if match]
    devices = natural_order([match[1] for match in known])
    signs = {match[2] for match in known}
    if len(known) < len(names) or len(signs) != 1 or len(devices) == len(names):
        return None
    sign = signs.pop()
    return f"{DEVICE}{sign}{'20' if any(sign in name for name in devices) else ''}*", devices


def stem_of(name: str) -> str:
    """Return a table's name without endings."""
    end = next((end for end in sorted(TABLES + TEXTS, key=len, reverse=True) if name.casefold().endswith(end)), None)
    return name if end is None else name[: -len(end)] or name


def tables(files: Sequence[DataFile]) -> tuple[str, ...]:
    """Return the endings of files that count as tables in a folder."""
    return TABLES if any(file.path.name.casefold().endswith(TABLES) for file in files) else TABLES + TEXTS


def normal(text: str) -> str:
    """Return a name with composed letters (NFC), because some systems decompose them."""
    return unicodedata.normalize("NFC", text)


EXAMPLES = 3  # names in a message, at most
LAYOUTS = {
    1: ["device/file", "label/file"],
    2: ["device/label/file", "factory/device/file"],
    3: ["factory/device/label/file"],
}


def check_layout(files: Sequence[DataFile], reading: Reading, *, images: bool) -> None:
    """Refuse a folder if the lowest folders, which must be labels, may have another meaning.

    Pictures, and tables in three folders, are in folders named for labels. A name that occurs in several devices
    confirms this; otherwise the folders may be devices, parts or days, unless ``[data] classes`` or ``layout`` is set.
    """
    given = reading.layout
    depth = len(files[0].folders)
    if given is not None:
        if given.count("/") != depth or (images and "label" not in given) or (not images and given == "label/file"):
            known = [layout for layout in LAYOUTS[depth] if ("label" in layout if images else layout != "label/file")]
            raise SettingError(
                f"[data] layout = '{given}': {files[0].name} is in {depth} folder{'s' if depth > 1 else ''}"
                f"{', and pictures need a label' if images else ''}. Possible for "
                f"{'pictures' if images else 'tables'} at this depth: {', '.join(known)}."
            )
        return
    places = {file.folders for file in files}
    repeats = len({folders[-1] for folders in places}) < len(places)  # a folder's name occurs in several folders
    if (not images and depth < 3) or reading.classes or repeats:
        return
    levels = "factory/device/label" if depth == 3 else "device/label"
    column = "" if images else ", or a column for the label"
    last = natural_order([file.folders[-1] for file in files])
    raise SettingError(
        f"{files[0].name}: read as {levels}/file the labels are {named(last)}, but none of them occurs in two "
        f"devices. If this is correct: --set data.layout={levels}/file. If these folders are devices "
        f"(factory/device/file), the files of each need a folder per label{column}.",
        key="meaning-of-folders",
    )


def are_labels(files: Sequence[DataFile], reading: Reading, columns: Sequence[str]) -> bool:
    """Return whether the lowest folders of tables without a label column are labels; refuse ambiguous folders."""
    first, last = (natural_order([file.folders[level] for file in files]) for level in (0, 1))
    if reading.layout is not None or (reading.classes and {*last} <= {*reading.classes}):
        return "label" in (reading.layout or "label")
    raise SettingError(
        f"{files[0].name}: two folders, and no column '{reading.columns.label}': the meaning of the folders is "
        f"ambiguous. device/label/file: devices {named(first)}; labels {named(last)}: --set "
        "data.layout=device/label/file. Or "
        f"factory/device/file: factories {named(first)}; devices {named(last)}; and the label is a column of the "
        f"tables ({', '.join(columns)}): --set data.layout=factory/device/file --set data.columns.label=NAME.",
        key="meaning-of-folders",
    )


def named(names: Sequence[str]) -> str:
    """Return some names and, if there are more, their total number.

    >>> named(["a", "b", "c", "d"])
    "'a', 'b', 'c', … (4)"
    """
    some = ", ".join(f"'{name}'" for name in names[:EXAMPLES])
    return some if len(names) <= EXAMPLES else f"{some}, … ({len(names)})"
