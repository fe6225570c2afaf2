"""Roles shared by several columns: a date and a time of day, a line and a machine, a flag per fault, two dates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedfloor.data.files.times import TimeError, decide, moment

FLAGS = {"0": False, "0.0": False, "false": False, "": False, "1": True, "1.0": True, "true": True}
MIDNIGHT = re.compile(r"[T ]00:00(:00(\.0+)?)?$")  # the time of day with which spreadsheets store a date
NONE = "none"
SPANS = ("life", "entry")  # roles whose parts are two dates
DAY = 86_400.0  # s
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
        role: the column's role: the cells of a ``label`` may be flags, those of a ``life`` are dates.
        form: the format of dates, ``[data] time_format``.
        until: the date in place of an empty end of a life.
    """

    name: str
    parts: tuple[int, ...]
    role: str
    form: str | None = None
    until: str | None = None

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
        if self.role in SPANS:
            return self._days(texts[0], texts[-1] or self.until or "")
        if self.role == "time":
            texts[0] = MIDNIGHT.sub("", texts[0])
        return " ".join(filter(None, texts))

    def _days(self, start: str, end: str) -> str:
        """Return the days from a date to another, "" if one is missing, or both if one cannot be read.

        >>> life = Joined("installed + removed", (0, 1), "life", until="2026-03-01")
        >>> life.cell(["2026-01-01", "2026-01-11 12:00"]), life.cell(["2026-02-01", ""]), life.cell(["x", "y"])
        ('10.5', '28', 'x to y')
        """
        if not (start and end):
            return ""
        dates = [moment(text, self.form) for text in (start, end)]
        known = [date for date in dates if date is not None]
        try:
            first, last = (float(decide(np.array([values]), form, self.form)[0][0]) for form, values in known)
        except (TimeError, ValueError):
            return f"{start} to {end}"
        return f"{(last - first) / DAY:.15g}"


def joined(
    names: Sequence[str], roles: Mapping[str, str], form: str | None = None, until: str | None = None
) -> tuple[Joined, ...]:
    """Return the joined columns among ``roles`` (role → name), if no column of the table has the whole name."""
    wanted = [(role, name, parts_of(name)) for role, name in roles.items() if name not in names]
    return tuple(
        Joined(name, tuple(names.index(part) for part in parts), role, form, until)
        for role, name, parts in wanted
        if len(parts) > 1 and {*parts} <= {*names}
    )
