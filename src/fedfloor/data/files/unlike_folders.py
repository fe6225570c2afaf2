"""Folders whose folders or files would be mistaken for devices: each is refused with its conversion."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedfloor.base.errors import SettingError
from fedfloor.data.files.excerpt import Excerpt, Excerpts
from fedfloor.data.files.pictures import SUFFIXES
from fedfloor.data.files.recipes import LOOKED_AT, SORTED, ConversionError, as_text, code_of, literal, then
from fedfloor.data.files.times import moment
from fedfloor.data.files.tree import IGNORED, PARTS, TABLES, TEXTS, files_in, is_folder, named, stem_of, tables
from fedfloor.data.files.unlike_rows import OF_ROWS, check_sums
from fedfloor.data.files.unlike_tables import check_table
from fedfloor.data.kinds import is_number, is_text
from fedfloor.data.reading import SKEWED
from fedfloor.data.roles import roles_of

PARTITION = re.compile(r"([A-Za-z_][\w-]*)=.+")  # the name of a folder, such as year=2026
DATES = {"year", "month", "day", "hour", "minute", "date", "dt", "week", "quarter", "jahr", "monat", "stunde"}
TRAINING = ("train", "training")
TESTING = ("test", "testing", "val", "valid", "validation")
MOMENT = re.compile(  # a date, or a date and a time of day
    r"(?:19|20)\d\d(\D?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12]\d|3[01])(?:\D?[0-2]\d(\D?)[0-5]\d(?:\2[0-5]\d)?)?"
)
DEALT = ("data.layout=label/file", "park.devices=10", f"data.partition={{{SKEWED}}}")
MOST_LEVELS = 5  # nested folders
COMPARED = 1000  # tables in which rows of sums are looked for, at most
FEWEST = 3  # files named by moments, at least


def check_folder(root: Path, given: Mapping[str, Any], excerpts: Excerpts) -> None:
    """Refuse a folder whose subfolders or files would be mistaken for devices."""
    folders, files = _inside(root, root)
    if not (given.get("device") or given.get("layout")):
        _check_partitions(root, [root, *folders])
    if {folder.name for folder in folders} != {*PARTS} or files:
        _check_parts(root, [root, *folders], given)
    leaf = root
    while not files and folders and len(leaf.parts) < len(root.parts) + MOST_LEVELS:
        leaf = folders[0]
        folders, files = _inside(leaf, root)
    if files:
        _check_moments(leaf, files, given, excerpts, alone=leaf == root)
        if files[0].name.casefold().endswith((*TABLES, *TEXTS)):
            check_table(files[0], given, excerpts)
            _check_sums(root, files[0], given, excerpts)


def _check_sums(root: Path, first: Path, given: Mapping[str, Any], excerpts: Excerpts) -> None:
    """Refuse rows of sums in the tables after the first one: those of other machines may have them."""
    for file in _others(root, first):
        try:
            above = given.get("skip") or excerpts.preamble(file, given)
            known = {**given, "skip": above} if above else given
            check_sums(file, known, excerpts.head(file, LOOKED_AT, known), alone=False)
        except ConversionError:
            raise
        except SettingError as error:
            if error.key in OF_ROWS:  # the tables' reader reports other mistakes
                above = str(file.relative_to(root)).removesuffix(file.name)
                raise SettingError(f"{above}{error}", key=error.key) from error


def _others(root: Path, first: Path) -> list[Path]:
    """Return the tables of a folder after the first one, at most :data:`COMPARED`."""
    try:
        files = files_in(root)
    except SettingError:  # the folder's reader reports it
        return []
    endings = tables(files)
    paths = [file.path for file in files if file.path.name.casefold().endswith(endings)]
    return [path for path in paths[:COMPARED] if path != first]


def _inside(folder: Path, root: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders and the files in a folder, sorted by name, without hidden ones.

    Args:
        folder: the data folder ``root``, or a folder in it.

    Raises:
        SettingError: a link out of the data folder, a pipe or a device, before any table is opened.
    """
    top = root.resolve()
    with os.scandir(folder) as entries:
        names = sorted(each.name for each in entries if each.name[0] != "." and each.name.casefold() not in IGNORED)
    folders = list[Path]()
    files = list[Path]()
    for path in (folder / name for name in names):
        (folders if is_folder(path, top, str(path.relative_to(root))) else files).append(path)
    return folders, files


def _name(folder: Path) -> str:
    return folder.name or folder.resolve().name


def beside(folder: Path, ending: str) -> str:
    """Return a path beside a folder, derived from its name."""
    return f"{'../' if folder.resolve() == Path.cwd() else ''}{_name(folder)}{ending}"


def _check_partitions(root: Path, tops: Sequence[Path]) -> None:
    """Refuse a table partitioned into folders named ``key=value``, as Hive and Spark write it."""
    for top in tops:
        folders = _inside(top, root)[0]
        if folders and all(PARTITION.fullmatch(folder.name) for folder in folders):
            break
    else:
        return
    first = folders[0].name
    keys = []
    files = list[Path]()
    while folders and (match := PARTITION.fullmatch(folders[0].name)):
        keys.append(match[1])
        folders, files = _inside(folders[0], root)
    kinds = {".csv": "csv", ".orc": "orc", ".feather": "feather", ".arrow": "ipc", ".json": "json"}
    kind = next((kinds[end] for end in kinds if files and end in files[0].name), "parquet")
    dates = [key for key in keys if key in DATES]
    out = beside(root, ".parquet")
    raise ConversionError(
        "partitions", root=root, first=first, keys=", ".join(keys), top=code_of(top), kind=kind, out=code_of(out),
        without_dates=f"table = table.drop_columns({code_of(dates)})" if dates else "", then=then(out, SORTED),
    )  # fmt: skip


def _check_parts(root: Path, tops: Sequence[Path], given: Mapping[str, Any]) -> None:
    """Refuse folders for training and testing beside or below other folders, which the reader does not support."""
    for top in tops:
        names = {folder.name.casefold(): folder.name for folder in _inside(top, root)[0]}
        train, test = (next((names[word] for word in words if word in names), "") for words in (TRAINING, TESTING))
        if train and test:
            break
    else:
        return
    labels, _ = _inside(top / train, root)
    inner, files = _inside(labels[0], root) if labels else ([], [])
    pictures = not inner and any(file.name.casefold().endswith(SUFFIXES) for file in files)
    alone = top == root
    detects = "reconstruction" in str(given.get("task"))  # which needs no other labels to train on
    merged = pictures and len(labels) == 1 and not detects
    task = ("data.task=reconstruction",) if detects else ()
    out = beside(root, "-parts")
    others = [name for name in names.values() if name not in (train, test)]
    raise ConversionError(
        "merged_parts" if merged else "copied_parts", root=root, train=train, test=test,
        where="it" if alone else _name(top), path=code_of(root), label=labels[0].name if labels else "",
        train_name=code_of(train), test_name=code_of(test), found="name" if alone else 'f"*/{name}"',
        target=code_of(literal(out) + ("/{part}" if alone else "/{part}/{folder.parent.name}")),
        above="" if alone else "*/", starts="".join(sorted({train[0], test[0]})), out=code_of(out),
        device="" if alone else "file.parts[-4], ", then=then(out, *task, *DEALT * (pictures and alone)),
        left_out=f" Left out: {named(others)}." if others else "",
    )  # fmt: skip


def _check_moments(
    folder: Path, files: Sequence[Path], given: Mapping[str, Any], excerpts: Excerpts, *, alone: bool
) -> None:
    """Refuse files named by moments, which would be taken for devices; tables in a device's folder are recordings."""
    tables = [file.name.casefold().endswith((*TABLES, *TEXTS)) for file in files]
    if len(files) < FEWEST or given.get("file_name") or any(file.name.casefold().endswith(SUFFIXES) for file in files):
        return
    moments = [MOMENT.match(file.name) for file in files]
    stems = [stem_of(file.name) if table else file.name for file, table in zip(files, tables, strict=True)]
    if any(match is None or match[0] != stem for match, stem in zip(moments, stems, strict=True)):
        return
    way = given.get("device")
    table = Excerpt()
    with suppress(SettingError):
        table = excerpts.head(files[0], LOOKED_AT, given)
    known = {role: name for role, name in given.get("columns", {}).items() if name in table.names or name == ""}
    named_device = way is None and (not alone or "device" in roles_of(table, known))
    if tables[0] and (way in ("folder", "column") or named_device):
        return
    name = stems[0]
    codes = iter("mdHMS")
    form = "%Y" + re.sub(r"\d\d", lambda _: f"%{next(codes)}", name[4:])
    settings = [] if moment(name, None) is not None else [f"data.time_format={form}"]
    out = beside(folder, ".csv")
    how = as_text(files[0], {}) + ["header=None"] * any(map(is_number, table.first))
    read = f"pandas.read_csv({', '.join(['file', *how])})"
    if any(is_text(cells, ".") for cells in zip(*table.rows, strict=False)):
        read += '.select_dtypes("number")'
    raise ConversionError(
        "moments", folder=folder, many=len(files), first=files[0].name, path=code_of(folder), read=read,
        length=len(name), out=code_of(out), then=then(out, *settings),
    )  # fmt: skip
