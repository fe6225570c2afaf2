"""Recognition of data in unsupported formats; ``conversions.toml`` has the lines of code that convert them."""

from __future__ import annotations

import re
import shlex
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedfloor.base import regular
from fedfloor.base.errors import SettingError
from fedfloor.base.names import count
from fedfloor.data.files.columnar import is_parquet
from fedfloor.data.files.excerpt import Excerpts
from fedfloor.data.files.layout import NO_LABEL, UnlabelledError
from fedfloor.data.files.recipes import RECIPES, ConversionError, code_of, converted, then
from fedfloor.data.files.rows import unpacked
from fedfloor.data.files.tree import TABLES, TEXTS, stem_of
from fedfloor.data.files.unlike_folders import check_folder
from fedfloor.data.files.unlike_tables import check_table

TEXT_TABLES = (".csv", ".tsv", *TEXTS)
FORMATS = tuple(ending for recipe in RECIPES["files"] for ending in recipe["endings"])  # endings


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


def _check_file(path: Path, given: Mapping[str, Any], excerpts: Excerpts) -> None:
    name = path.name.casefold()
    _check_archive(path, given)
    if given.get("format") is None and name.endswith(FORMATS):
        recipe = _recipe_of(path)
        ending = next(end for end in recipe["endings"] if name.endswith(end))
        out = path.name[: -len(ending)] + recipe.get("out", ".parquet")
        first, *lines = recipe["code"].splitlines()
        code = "\n".join([first, "file, out = $source, $target", *lines])
        raise ConversionError(
            {"problem": "$path: $noun, which is not read.", **recipe, "code": code}, path=path, noun=recipe["noun"],
            source=code_of(path), target=code_of(out), then=then(out),
        )  # fmt: skip
    if name.endswith((*TABLES, *TEXTS)) or given.get("format") == "table":
        check_table(path, given, excerpts)


def _recipe_of(path: Path) -> Mapping[str, Any]:
    """Return the first recipe that fits a file's ending and its first bytes."""
    start = b""
    with suppress(OSError), regular.opened(path) as file:
        start = file.read(512)
    return next(
        recipe for recipe in RECIPES["files"]
        if path.name.casefold().endswith(tuple(recipe["endings"]))
        and re.match(recipe.get("begins", ""), start.decode("latin-1"))
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
