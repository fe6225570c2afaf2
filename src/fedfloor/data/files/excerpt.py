"""The first rows of tables as texts, each read once for those who judge them in turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from fedfloor.base.errors import SettingError
from fedfloor.data.files import preamble
from fedfloor.data.files.joined import joined
from fedfloor.data.files.rows import decoded
from fedfloor.data.files.sheet import named_columns, text_rows

# settings of [data] on which the texts of rows depend
DIALECT = ("skip", "header", "decimal", "delimiter", "sheet", "encoding", "missing_texts", "quality", "good")


@dataclass(frozen=True)
class Excerpt:
    """The first rows of a table as texts.

    Args:
        names: the names of the columns, from the first row or ``[data] header``, followed by joined columns.
        rows: the other rows, of any length.
        first: the unchanged first row of the table.
    """

    names: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    first: list[str] = field(default_factory=list)

    def cells(self, name: str) -> list[str]:
        """Return the cells of a column, for rows that are long enough."""
        place = self.names.index(name)
        return [row[place] for row in self.rows]

    def whole(self) -> Excerpt:
        """Return the rows that have the header's length and do not repeat it."""
        return replace(self, rows=[row for row in self.rows if len(row) == len(self.names) and row != self.names])

    def top(self, many: int) -> Excerpt:
        """Return the first rows."""
        return replace(self, rows=self.rows[:many])

    def joined(self, roles: Mapping[str, Any]) -> Excerpt:
        """Return the rows with the columns that roles join from several."""
        added = joined(self.names, {role: name for role, name in roles.items() if isinstance(name, str)})
        rows = [row + [each.cell(row) for each in added if len(row) >= len(self.names)] for row in self.rows]
        return Excerpt(self.names + [each.name for each in added], rows, self.first)


class Excerpts:
    """The first rows of tables, and the rows above their headers, read once for all who ask for as many or fewer.

    Args:
        least: rows that are read where fewer are asked for, because more will be.
    """

    def __init__(self, least: int = 0) -> None:
        self.least = least
        self._rows: dict[str, list[list[str]]] = {}
        self._asked: dict[str, int] = {}
        self._above: dict[str, list[int]] = {}

    def head(self, path: Path, many: int, given: Mapping[str, Any]) -> Excerpt:
        """Return the first rows of a table.

        Args:
            path: the table's file.
            many: the number of rows, with that of the names.
            given: the settings of ``[data]``.
        """
        key = _key(path, given)
        if self._asked.get(key, 0) < many and len(self._rows.get(key, ())) == self._asked.get(key, 0):
            self._asked[key], self._rows[key] = self._read(path, many, given)
        return _excerpt(self._rows[key][:many], given)

    def preamble(self, path: Path, given: Mapping[str, Any]) -> list[int]:
        """Return the rows above a table's header and a row of units below it: :func:`.preamble.preamble`."""
        key = _key(path, given)
        if key not in self._above:
            self._above[key] = preamble.preamble(path, given)
        return self._above[key]

    def _read(self, path: Path, many: int, given: Mapping[str, Any]) -> tuple[int, list[list[str]]]:
        """Return the number of rows that were asked for, and the rows, which are fewer where the table ends."""
        if self.least > many:
            try:
                return self.least, _texts(path, self.least, given)
            except SettingError:  # a mistake in a row that may be beyond those needed
                pass
        return many, _texts(path, many, given)


def head(path: Path, many: int, given: Mapping[str, Any]) -> Excerpt:
    """Return the first rows of a table."""
    return Excerpts().head(path, many, given)


def _key(path: Path, given: Mapping[str, Any]) -> str:
    return repr([path, *(given.get(key) for key in DIALECT)])


def _texts(path: Path, many: int, given: Mapping[str, Any]) -> list[list[str]]:
    """Return the first rows that are not empty; the first one as names, unless these are given."""

    def texts_in(encoding: str | None) -> list[list[str]]:
        with text_rows(path, {**given, "encoding": encoding}) as rows:
            filled = ([cell.strip() for cell in cells] for _, cells in rows)
            texts = [*islice((cells for cells in filled if any(cells)), many)]
        return [named_columns(texts[0]), *texts[1:]] if texts and not given.get("header") else texts

    return decoded(path, given.get("encoding"), texts_in)


def _excerpt(rows: list[list[str]], given: Mapping[str, Any]) -> Excerpt:
    first = rows[0] if rows else []
    names, body = (list(given["header"]), rows) if given.get("header") else (first, rows[1:])
    return Excerpt(names, body, first).joined(given.get("columns", {}))
