"""The files of a data folder: found by walking it, and by nothing that leads out of it."""

from __future__ import annotations

import stat
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedfloor.data.files import unreadable
from fedfloor.errors import SettingError

DEEPEST = 5  # folders: train or test, factory, device, label, and one too many to complain about
IGNORED = {"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"}
PARTS = ("train", "test")


@dataclass(frozen=True)
class Found:
    """A file, or a folder with nothing in it.

    Args:
        path: where it lies.
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


def walk(root: Path) -> list[Found]:
    """Return the files of a folder in the order of their names, and its empty folders.

    Hidden files (``.…``) and what file managers leave (``Thumbs.db``, ``desktop.ini``, ``__MACOSX``) are passed over.
    A link is followed only within the folder; nothing but plain files and folders is ever opened.

    Args:
        root: the folder; it may be a link itself. With ``train`` and ``test`` and nothing else in it, it comes split.

    Raises:
        SettingError: a link that leads out of the folder or nowhere, a pipe or device, a folder that cannot be listed,
            or names that are no Unicode text.
    """
    top = _entries(root, "")
    split = {path.name for path in top} == set(PARTS) and all(path.is_dir() for path in top)
    return [_found(path, folders, empty, split) for path, folders, empty in _walk(root, root.resolve(), ())]


def _found(path: Path, folders: tuple[str, ...], empty: bool, split: bool) -> Found:
    name = "/".join(folders if empty else (*folders, path.name))
    clean = tuple(unicodedata.normalize("NFC", folder) for folder in folders)  # some systems take letters apart
    if not split:
        return Found(path, name, clean, None, empty)
    return Found(path, name, clean[1:], PARTS.index(clean[0]), empty)


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
                raise SettingError(f"{name}: too deep. In the data folder there are a factory, a device and a label.")
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
