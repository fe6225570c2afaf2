"""Qualities of values, as OPC servers state them beside each value: values that are not good become missing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfloor.base.errors import SettingError
from fedfloor.data.files.rows import Row, place

GOOD = 0xC0  # the bits of a good quality in OPC DA; of others: uncertain 0x40, bad 0


def is_good(cell: str) -> bool | None:
    """Return whether a quality of OPC DA or OPC UA, as a code or a text, is good; None if the cell is none.

    >>> [*map(is_good, ["192", "24", "Good", "GoodClamped", "Bad", "Uncertain (LUV)", "0x80340000", "ok", "300"])]
    [True, False, True, True, False, False, False, None, None]
    """
    if match := re.match(r"(good|bad|uncertain)", cell, re.IGNORECASE):
        return match[1].casefold() == "good"
    if re.fullmatch(r"0x[0-9a-f]{8}", cell, re.IGNORECASE):
        return int(cell, 16) < 1 << 30
    if re.fullmatch(r"\d+(\.0+)?", cell) and float(cell) < 256:
        return int(float(cell)) & GOOD == GOOD
    return None


def emptied(path: Path, rows: Iterator[Row], names: Sequence[str], given: Mapping[str, Any]) -> Iterator[Row]:
    """Yield rows with empty cells in place of values whose quality is not good.

    Args:
        path: the file, for messages.
        rows: the rows, below those of names; rows that repeat the names are unchanged.
        names: the names of the columns.
        given: ``quality``, column of values → column of its quality; and ``good``, the cells of good qualities, by
            default those of OPC, of which others than ``Good``, 192 to 255 and their like are refused.

    Raises:
        SettingError: a column is missing, or a filled cell is no quality of OPC.
    """
    pairs = given["quality"].items()
    for name in (name for pair in pairs for name in pair):
        if name not in names:
            raise SettingError(
                f"{path.name}: no column '{name}', which [data] quality names. Add it, or leave it out.", key="quality"
            )
    places = [(names.index(value), names.index(quality)) for value, quality in pairs]
    listed = {text.casefold() for text in given.get("good") or ()}
    known: dict[str, bool] = {"": False}

    def judged(cell: str, line: int, column: int) -> bool:
        if cell not in known:
            good = cell.casefold() in listed if listed else is_good(cell)
            if good is None:
                raise SettingError(
                    f"{place(path, line, names[column])}: '{cell}' is no quality of OPC. Name the good ones: "
                    "--set 'data.good=[…]'.",
                    key="quality",
                )
            known[cell] = good
        return known[cell]

    for line, cells in rows:
        whole = len(cells) == len(names) and [cell.strip() for cell in cells] != [*names]
        bad = [value for value, at in places if not judged(cells[at].strip(), line, at)] if whole else []
        yield line, ["" if i in bad else cell for i, cell in enumerate(cells)] if bad else cells
