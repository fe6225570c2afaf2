"""The user's data by path: a table, a folder per device, arrays, or a buffer of sensor rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fedfloor.base.errors import SettingError, nearest
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import buffer, conversions, expanded, folder, is_there, npz, table
from fedfloor.data.files.columnar import PARQUET
from fedfloor.data.files.layout import UnlabelledError
from fedfloor.data.files.packed import unpacked_bytes
from fedfloor.data.files.rows import DAMAGED, PACKED, WORKBOOKS, marked, unpacked
from fedfloor.data.reading import DraftReading, Reading

TABLES = (".csv", ".tsv", ".txt")
WHOLE = (*PARQUET, *WORKBOOKS)  # tables in packed formats
SHEETS = (".xls", ".ods")
BEGINNING = 256  # bytes by which a binary file is recognised


def load(path: Path, reading: Reading, seed: int, device: str = "") -> Dataset:
    """Read the user's data as a data set.

    Data in a form that cannot be read, or that would be misread, are refused with a conversion, before they are parsed
    for the first time; those of a draft, which asked for conversions itself, only if reading fails.

    Args:
        path: the path of the file or folder.
        reading: the format (by default implied by the path) and the conversion to samples.
        seed: the seed of random splits.
        device: the owner of the data, if they belong to a single device; a folder is then the folder of this device.

    Raises:
        SettingError: the path does not exist, has no known format, or contains a mistake.
    """
    path = expanded(path)
    if device:
        reading = replace(reading, device=None, factory=None)  # the owner is known
    if not is_there(path):
        beside = [neighbour.name for neighbour in path.parent.iterdir()] if path.parent.is_dir() else []
        raise SettingError(
            f"[data] path: {path.absolute()} does not exist.{nearest(path.name, beside)} If the data were moved, "
            "correct [data] path (--set data.path=PATH)."
        )
    if not path.is_file() and not path.is_dir():
        raise SettingError(
            f"[data] path: {path} is neither a file nor a folder (a pipe, a socket, a device). Give a file or a folder."
        )
    stated = {**reading.settings(), "columns": vars(reading.columns)} | ({"device": "folder"} if device else {})
    tests = [expanded(reading.test)] if reading.test else []
    unasked = tests if isinstance(reading, DraftReading) else [path, *tests]

    def ask(paths: Sequence[Path] = unasked) -> None:
        for each in paths:
            conversions.check(each, stated)

    try:
        return _loaded(path, reading, seed, device, ask)
    except SettingError:
        if not reading.told:  # a draft solves what it was told
            ask([path, *tests])
        raise


def _loaded(path: Path, reading: Reading, seed: int, device: str, ask: Callable[[], None]) -> Dataset:
    kind = reading.format or format_of(path)
    if (kind == "folder") != path.is_dir():
        noun = "a folder" if path.is_dir() else "a file"
        raise SettingError(f"[data] format = {kind}, but {path} is {noun}. Leave format out, or correct the path.")
    if reading.format == "table" and reading.encoding is None:  # whatever its name says
        check_text(path)
    try:
        if kind == "folder":
            return folder.load(path, reading, seed, device, ask)
        if kind == "table":
            return table.load(path, reading, seed, ask)
        return {"npz": npz.load, "buffer": buffer.load}[kind](path, reading, seed)
    except UnlabelledError as error:
        raise conversions.unlabelled(error) from error


def format_of(path: Path) -> str:
    """Return the format that a path's name implies."""
    if path.is_dir():
        return "folder"
    name = path.name.casefold()
    if name.endswith(".npz"):
        return "npz"
    if name.endswith(buffer.BUFFERS):
        return "buffer"
    if unpacked(name).endswith(TABLES) or name.endswith(WHOLE):
        return "table"
    if name.endswith(SHEETS):
        raise SettingError(
            f"[data] path: {path} is a workbook of an unsupported kind. Save it as .xlsx, or its sheet as CSV."
        )
    check_text(path)
    raise SettingError(
        f"[data] path: {path} is no folder, no .npz and no table ({', '.join(WHOLE)}; or {', '.join(TABLES)}, "
        f"each also compressed: {', '.join(PACKED)}). If it is a table as text: --set data.format=table."
    )


def check_text(path: Path) -> None:
    """Refuse a binary file that is no table: text has no zero bytes, other than in UTF-16.

    Raises:
        SettingError: the file begins with zero bytes among others.
    """
    if path.name.casefold().endswith(WHOLE):
        return
    start = b""
    with suppress(OSError, SettingError, *DAMAGED), unpacked_bytes(path) as stream:  # its reader reports the problem
        start = stream.read(BEGINNING)
    if 0 in start and marked(start) is None:
        sign = start[:4].decode("latin-1")
        shown = f" (it begins with '{sign}')" if sign.isprintable() else ""
        raise SettingError(
            f"{path}: a binary file{shown}, in a format that is not read. Write its rows as CSV or Parquet, with the "
            "program that made it or a Python library for its format. If it is text in UTF-16: --set "
            "data.encoding=utf-16.",
            key="binary-file",
        )
