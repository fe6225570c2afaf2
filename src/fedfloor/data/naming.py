"""Which device a table belongs to by the place it lies in: its folders, its own name."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedfloor.data.columnar import PARQUET
from fedfloor.data.lines import PACKED
from fedfloor.data.reading import DEVICE
from fedfloor.data.workbook import WORKBOOKS

TABLES = (*(kind + packed for kind in (".csv", ".tsv") for packed in ("", *PACKED)), *PARQUET, *WORKBOOKS)


@dataclass(frozen=True)
class Naming:
    """How the place of a table names its device, in training and in predictions.

    Args:
        device: the ``folder`` or the ``file``'s name; ``column``: the table itself.
        labelled: whether the folder that the table lies in is its label, and the device the one above.
        file_name: which part of the file's name is the device's, as ``[data] file_name``; None for all of it.
        factory: whether the folder above stands before the device's name, as factories have devices of one name.
    """

    device: Literal["column", "folder", "file"]
    labelled: bool = False
    file_name: str | None = None
    factory: bool = False

    @property
    def place(self) -> int:
        """Where the device's name stands among the folders of a table, a file that is a device being the last."""
        return -2 if self.labelled else -1

    def devices(self, path: Path, column: Sequence[str] | None, rows: int) -> Sequence[str] | None:
        """Return the device of each row of a table; None where neither its place nor a column names one.

        Args:
            path: of the table, which may lie anywhere.
            column: what its column for the device holds; None where it has none.
            rows: how many there are.

        >>> Naming("folder").devices(Path("north/lathe-1/june.csv"), None, 1)
        ['lathe-1']
        >>> Naming("file", file_name="DEVICE_*", factory=True).devices(Path("north/lathe-1_june.csv"), None, 1)
        ['north/lathe-1']
        """
        folders = [normal(part) for part in Path(os.path.abspath(path)).parts[1:-1]]  # noqa: PTH100: links stay
        if self.device == "file":
            folders.append(of_file(path.name, self.file_name) or "")
        if column is None:
            name = "" if self.device == "column" else _at(folders, self.place)
            column = [name] * rows if name else None
        above = _at(folders, -1 if self.device == "column" else self.place - 1) if self.factory else ""
        return column if column is None or not above else [f"{above}/{name}" for name in column]


def _at(folders: Sequence[str], place: int) -> str:
    return folders[place] if len(folders) >= -place else ""


def of_file(name: str, form: str | None) -> str | None:
    """Return the name of the device that a table belongs to by its own name; None where this is not of the form.

    >>> of_file("lathe-1_june.csv.gz", "DEVICE_*")
    'lathe-1'
    """
    stem = normal(stem_of(name))
    if form is None:
        return stem
    pattern = re.escape(normal(form)).replace(r"\*", ".*").replace(DEVICE, "(.+?)")
    match = re.fullmatch(pattern, stem)
    return None if match is None else match[1]


def stem_of(name: str) -> str:
    """Return a table's name without endings."""
    end = next((end for end in sorted(TABLES, key=len, reverse=True) if name.casefold().endswith(end)), None)
    return name if end is None else name[: -len(end)] or name


def normal(text: str) -> str:
    """Return a name with its letters in one piece: some systems take them apart."""
    return unicodedata.normalize("NFC", text)
