"""Roles shared by several columns: a date and a time of day, a line and a machine, a flag per fault."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FLAGS = {"0": False, "0.0": False, "false": False, "": False, "1": True, "1.0": True, "true": True}
MIDNIGHT = re.compile(r"[T ]00:00(:00(\.0+)?)?$")  # the time of day with which spreadsheets store a date
NONE = "none"
JOIN = " + "  # between the names of joined columns


def parts_of(name: str) -> list[str]:
    """Return the parts of a joined name.

    >>> parts_of("date + time of day"), parts_of("date")
    (['date', 'time of day'], ['date'])
    """
    return [part.strip() for part in name.split("+")]


@dataclass(frozen=True)
class Joined:
    """A column joined from several.

    Args:
        name: the names of its parts, joined by ``+``.
        parts: the indices of the parts among the table's columns.
        role: the column's role: the cells of a ``label`` may be flags.
    """

    name: str
    parts: tuple[int, ...]
    role: str

    def cell(self, cells: Sequence[str]) -> str:
        """Return the joined texts of a row's parts, separated by blanks; for flags, the names of those that are 1.

        >>> Joined("date + time", (0, 2), "time").cell(["2026-03-01T00:00:00", "7.5", "06:30"])
        '2026-03-01 06:30'
        >>> fault = Joined("heat + wear", (0, 1), "label")
        >>> fault.cell(["1", "0"]), fault.cell(["0", "0"]), fault.cell(["1", "1"])
        ('heat', 'none', 'heat + wear')
        """
        texts = [cells[i].strip() for i in self.parts]
        if self.role == "label" and all(text.casefold() in FLAGS for text in texts):
            names = zip(parts_of(self.name), texts, strict=True)
            return JOIN.join(name for name, text in names if FLAGS[text.casefold()]) or NONE
        if self.role == "time":
            texts[0] = MIDNIGHT.sub("", texts[0])
        return " ".join(filter(None, texts))


def joined(names: Sequence[str], roles: Mapping[str, str]) -> tuple[Joined, ...]:
    """Return the joined columns among ``roles`` (role → name), if no column of the table has the whole name."""
    wanted = [(role, name, parts_of(name)) for role, name in roles.items() if name not in names]
    return tuple(
        Joined(name, tuple(names.index(part) for part in parts), role)
        for role, name, parts in wanted
        if len(parts) > 1 and {*parts} <= {*names}
    )
