"""Lines of code that convert data in unsupported forms, from ``conversions.toml``."""

from __future__ import annotations

import json
import shlex
import textwrap
import tomllib
from codecs import getincrementaldecoder
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from fedfloor.base.errors import SettingError
from fedfloor.data.files.columnar import is_parquet
from fedfloor.data.files.packed import unpacked_bytes
from fedfloor.data.files.rows import LEGACY, delimiter_of, is_workbook, marked
from fedfloor.data.files.tree import stem_of
from fedfloor.data.reading import skipped

LOOKED_AT = 2000  # rows
PEEKED = 1 << 16  # bytes
SORTED = "data.sort=true"
PAGE = "More: docs/data-reference.md, section 'Conversions'."
RECIPES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("conversions.toml").read_text("utf-8"))


class ConversionError(SettingError):
    """Data in an unsupported format, with lines of code that convert them.

    Args:
        recipe: a table of ``conversions.toml``, or its name.
        values: the replacement of each ``$NAME``.
    """

    key = "conversion"

    def __init__(self, recipe: str | Mapping[str, Any], **values: object) -> None:
        parts = {"after": "$then", **(RECIPES[recipe] if isinstance(recipe, str) else recipe)}
        problem, code, after = (Template(parts[key]).substitute(values) for key in ("problem", "code", "after"))
        needs = ""
        if "needs" in parts:
            needs = f" with {parts['needs']} (pip install {parts.get('pip', parts['needs'].replace(' and ', ' '))})"
        lines = textwrap.indent("\n".join(filter(None, code.splitlines())), "    ")
        super().__init__(f"{problem} To convert {parts.get('what', 'it')}{needs}:\n\n{lines}\n\n{after} {PAGE}")


def code_of(value: object) -> str:
    """Return a text, or a list of texts, as a Python literal in double quotes."""
    return json.dumps(value if isinstance(value, list) else str(value), ensure_ascii=False)


def then(out: str, *settings: str) -> str:
    """Return the command that reads the converted data."""
    words = ["fedfloor", "new", out, *(word for setting in settings for word in ("--set", setting))]
    return f"Then: {shlex.join(words)}."


def literal(text: str) -> str:
    """Return a text as it is written in an f-string."""
    return text.replace("{", "{{").replace("}", "}}")


def pivoted(index: list[str], key: str, value: str, write: str) -> str:
    """Return lines of code that make a column for each sensor."""
    how = f'index={code_of(index)}, columns={code_of(key)}, values={code_of(value)}, aggfunc="first", sort=False'
    return f"table = table.pivot_table({how})\ntable.reset_index().{write}"


def converted(path: Path, given: Mapping[str, Any], how: str) -> tuple[str, str, str]:
    """Return the pandas calls that read a table as texts and write the converted table, and the name of the latter."""
    out = f"{stem_of(path.name)}-{how}{'.parquet' if is_parquet(path) else '.csv'}"
    if is_parquet(path):
        return f"pandas.read_parquet({code_of(path)})", f"to_parquet({code_of(out)})", out
    settings = [code_of(path), "dtype=str", "keep_default_na=False"]
    if is_workbook(path):
        settings += [f"sheet_name={code_of(given['sheet'])}"] if given.get("sheet") else []
    else:
        settings += as_text(path, given)
    settings += [f"names={code_of([*given['header']])}"] if given.get("header") else []
    settings += [f"skiprows={[row - 1 for row in above]}"] if (above := skipped(given.get("skip"))) else []
    read = f"pandas.read_{'excel' if is_workbook(path) else 'csv'}({', '.join(settings)})"
    return read, f"to_csv({code_of(out)}, index=False)", out


def as_text(path: Path, given: Mapping[str, Any]) -> list[str]:
    """Return the pandas arguments for an unusual delimiter or encoding of a text table."""
    with unpacked_bytes(path) as stream:
        start = stream.read(PEEKED)
    encoding = given.get("encoding") or marked(start)
    if encoding is None:
        try:
            getincrementaldecoder("utf-8")().decode(start)  # the last character may be incomplete
        except UnicodeDecodeError:
            encoding = LEGACY
    above = skipped(given.get("skip"))
    lines = enumerate(start.decode(encoding or "utf-8-sig", "replace").splitlines(), start=1)
    first = next((line for number, line in lines if number not in above and line.strip()), "")
    mark = delimiter_of(first, given.get("decimal", "."), given.get("delimiter"))
    sep = [r'sep=r"\s+"' if mark == " " else f"sep={code_of(mark)}"] if mark != "," else []
    return sep + ([f"encoding={code_of(encoding)}"] if encoding else [])
