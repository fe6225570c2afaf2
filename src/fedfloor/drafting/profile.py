"""The first rows of a user's tables, read once, from which a draft guesses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedfloor.data.files.excerpt import Excerpt, Excerpts
from fedfloor.data.roles import LOOKED_AT

MOST_FILES = 40  # files of a folder in which texts are counted
COUNTED = 20_000  # rows in which texts are counted
ROWS = COUNTED + 1  # with that of the names


@dataclass(frozen=True)
class TableProfile:
    """The rows of a table from which the roles of its columns are guessed, read once.

    Args:
        path: the table's file.
        start: its first rows, of any length.
        looked: the number of those by which kinds of columns are judged; texts are counted in all.
    """

    path: Path
    start: Excerpt
    looked: int = LOOKED_AT

    @classmethod
    def of(cls, path: Path, given: Mapping[str, Any], excerpts: Excerpts | None = None) -> TableProfile:
        """Read the profile of a table, with the settings of ``[data]`` that its format needs."""
        start = (excerpts or Excerpts()).head(path, ROWS, given)
        return cls(path, start, LOOKED_AT - (not given.get("header")))

    @cached_property
    def top(self) -> Excerpt:
        """The rows by which kinds of columns are judged, without incomplete ones."""
        return self.start.top(self.looked).whole()

    @cached_property
    def counted(self) -> Excerpt:
        """All rows without incomplete ones."""
        return self.start.whole()

    def joined(self, roles: Mapping[str, Any]) -> TableProfile:
        """Return the profile with the columns that roles join."""
        return replace(self, start=self.start.joined(roles))


def first_rows(paths: Sequence[Path], given: Mapping[str, Any], excerpts: Excerpts) -> list[Excerpt]:
    """Return the first rows of at most :data:`MOST_FILES` tables, without incomplete ones."""
    chosen = paths[:: math.ceil(len(paths) / MOST_FILES)]
    return [excerpts.head(path, COUNTED // len(chosen) + 1, given).whole() for path in chosen]
