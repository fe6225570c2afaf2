"""Recognition of data in unsupported formats; ``conversions.toml`` has the lines of code that convert them."""

from __future__ import annotations

import re
import shlex
import sqlite3
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from fedfloor.base import regular
from fedfloor.base.errors import SettingError
from fedfloor.base.names import count
from fedfloor.data.files.columnar import is_parquet
from fedfloor.data.files.excerpt import Excerpts
from fedfloor.data.files.layout import NO_LABEL, UnlabelledError
from fedfloor.data.files.recipes import PEEKED, RECIPES, ConversionError, code_of, converted, then
from fedfloor.data.files.rows import unpacked
from fedfloor.data.files.tree import TABLES, TEXTS, stem_of
from fedfloor.data.files.unlike_folders import beside, check_folder
from fedfloor.data.files.unlike_tables import check_table

TEXT_TABLES = (".csv", ".tsv", *TEXTS)
FORMATS = tuple(ending for recipe in RECIPES["files"] for ending in recipe["endings"])  # endings
SQLITE = b"SQLite format 3\0"  # the beginning of such a file


def check(path: Path, given: Mapping[str, Any], excerpts: Excerpts | None = None) -> None:
    """Refuse data in a format that would be read wrongly or not at all; the error has lines of code that convert them.

    Args:
        path: a file or a folder. A missing or damaged one is accepted here: its reader reports the problem.
        given: keys of ``[data]``, whose columns and folders are taken to be correct.
        excerpts: reads the first rows of tables, for others too; by default for this check alone.

    Raises:
        SettingError: data in an unsupported format.
    """
    excerpts = excerpts or Excerpts()
    if path.is_dir():
        with suppress(OSError):
            check_folder(path, given, excerpts)
    elif path.is_file():
        _check_file(path, given, excerpts)


def check_files(root: Path, files: Sequence[Path], odd: Path) -> None:
    """Refuse files of a folder in a format that has a conversion; its lines convert all files of this ending.

    Args:
        root: the folder.
        files: all its files.
        odd: the first of them that is neither a picture nor a table.
    """
    ending = next((end for end in FORMATS if odd.name.casefold().endswith(end)), "?")
    alike = [file for file in files if file.name.casefold().endswith(ending)]
    if len(alike) < max(2, len(files)) or _out(recipe := _recipe_of(odd)) == ".npz":
        check(odd, {})
        return
    source, target = code_of(root), beside(root, "-tables")
    loop = [
        f'files = [path for path in pathlib.Path({source}).rglob("[!.]*") if path.name.lower().endswith("{ending}")]',
        "for file in files:",
        f"    out = pathlib.Path({code_of(target)}, file.relative_to({source})).with_suffix({code_of(_out(recipe))})",
        "    out.parent.mkdir(parents=True, exist_ok=True)",
    ]
    first, *lines = _code(recipe)
    raise ConversionError(
        {**recipe, "problem": "$path: $noun, which is not read, as $others.", "what": "them",
         "after": " ".join(filter(None, [recipe.get("each"), recipe.get("after", "$then")])),
         "code": "\n".join(["import pathlib", first, *loop, *(f"    {line}" for line in lines)])},
        path=odd, noun=recipe["noun"], others=f"{count(len(alike) - 1, 'other file')} of {root}", then=then(target),
    )  # fmt: skip


def _check_file(path: Path, given: Mapping[str, Any], excerpts: Excerpts) -> None:
    name = path.name.casefold()
    _check_archive(path, given)
    if given.get("format") is None:
        _check_database(path)
    if given.get("format") is None and name.endswith(FORMATS):
        recipe = _recipe_of(path)
        ending = next(end for end in recipe["endings"] if name.endswith(end))
        out = path.name[: -len(ending)] + _out(recipe)
        first, *lines = _code(recipe)
        code = "\n".join([first, f"file, out = {code_of(path)}, {code_of(out)}", *lines])
        raise ConversionError(
            {"problem": "$path: $noun, which is not read.", **recipe, "code": code}, path=path, noun=recipe["noun"],
            then=then(out),
        )  # fmt: skip
    if name.endswith((*TABLES, *TEXTS)) or given.get("format") == "table":
        check_table(path, given, excerpts)


def _out(recipe: Mapping[str, Any]) -> str:
    """Return the ending of a converted file."""
    return str(recipe.get("out", ".parquet"))


def _code(recipe: Mapping[str, Any]) -> list[str]:
    """Return the lines of a recipe, the first with its imports."""
    return str(recipe["code"]).replace("$columns\n", RECIPES["columns"]["code"]).splitlines()


def _recipe_of(path: Path) -> Mapping[str, Any]:
    """Return the first recipe that fits a file's ending and its beginning."""
    start = b""
    with suppress(OSError), regular.opened(path) as file:
        start = file.read(PEEKED)
    return next(
        recipe for recipe in RECIPES["files"]
        if path.name.casefold().endswith(tuple(recipe["endings"]))
        and re.match(recipe.get("begins", ""), start.decode("latin-1"))
    )  # fmt: skip


def _check_database(path: Path) -> None:
    """Refuse an SQLite file, whatever its name, unless it is a buffer of sensor rows."""
    with suppress(OSError), regular.opened(path) as file:
        if file.read(len(SQLITE)) != SQLITE:
            return
        sizes = dict[str, int]()
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as base:
            for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                quoted = name.replace('"', '""')
                sizes[name] = base.execute(f'SELECT count(*) FROM "{quoted}"').fetchone()[0]
        if not sizes or {"about", "rows"} <= {*sizes}:
            return  # its reader reports the problem
        largest = max(sizes, key=lambda name: sizes[name])
        out = f"{path.stem}.parquet"
        holds = ", ".join(f"'{name}' ({count(rows, 'row')})" for name, rows in sizes.items())
        name = largest if re.fullmatch(r"[A-Za-z_]\w*", largest) else '"' + largest.replace('"', '""') + '"'
        raise ConversionError(
            "database", path=path, holds=f" with {holds}", url=shlex.quote(f"sqlite:///{path}"),
            query=shlex.quote(f"SELECT * FROM {name}"), out=shlex.quote(out), then=then(out),
        )  # fmt: skip


def unlabelled(error: UnlabelledError) -> ConversionError:
    """Return the error for rows without a label, with lines of code that leave them out."""
    path = error.path
    read, write, out = converted(path, error.dialect, "labelled")
    column = code_of(error.column)
    among = f"str.strip().str.lower().isin({code_of(error.texts)})"
    missing = "isna()" if is_parquet(path) and {*error.texts} == NO_LABEL else among
    return ConversionError(
        "unlabelled", error=error, read=read, column=column, missing=missing, write=write, then=then(out),
        or_class=", or make them a separate class" if error.classes else "",
        comment=f'  # or as a class: table.loc[missing, {column}] = "none"' if error.classes else "",
    )  # fmt: skip


def _check_archive(path: Path, given: Mapping[str, Any]) -> None:
    """Refuse an archive of several files, or of a single table if the archive's name does not denote a table."""
    name = path.name.casefold()
    module = "zipfile" if name.endswith(".zip") else "tarfile" if re.search(r"\.(tar(\.\w+)?|tgz)$", name) else ""
    if not module:
        return
    inside: list[str] = []
    if module == "zipfile":
        try:
            with zipfile.ZipFile(regular.check(path)) as archive:
                inside = [each for each in archive.namelist() if not each.endswith("/") and "__MACOSX/" not in each]
        except (OSError, zipfile.BadZipFile):  # its reader reports the problem
            return
        if len(inside) == 1 and (given.get("format") or unpacked(name).endswith(TEXT_TABLES)):
            return
        if len(inside) == 1 and inside[0].casefold().endswith(TEXT_TABLES):
            raise SettingError(
                f"{path}: holds a table, {inside[0]}. To read it: --set data.format=table.", key="archive"
            )
    holds = f" of {count(len(inside), 'file')}" if inside else ""
    folder = stem_of(re.sub(r"\.(zip|tgz|tar(\.\w+)?)$", "", path.name, flags=re.IGNORECASE)) or "unpacked"
    raise ConversionError(
        "archive", path=path, holds=holds, module=module, quoted=shlex.quote(str(path)), folder=shlex.quote(folder),
        then=then(folder),
    )  # fmt: skip
