"""Tables of normal operation without a label, beside others with labels that only serve evaluation."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedfloor.data.files.encode import normal_label
from fedfloor.data.files.excerpt import head
from fedfloor.data.files.sheet import Sheet
from fedfloor.data.reading import Reading
from fedfloor.tasks.reconstruction import Reconstruction

log = logging.getLogger(__name__)


def readings(paths: Sequence[Path], reading: Reading) -> list[Reading]:
    """Return the reading of each table; ignored columns, and labels only for evaluation, may be missing in some."""
    columns = reading.columns
    optional = {columns.label, *columns.ignore} - {""}
    if reading.asked.labelled or reading.header is not None or not optional or len(paths) < 2:
        return [reading] * len(paths)
    form = reading.dialect() | {"decimal": reading.decimal}
    lacking = [optional - {*head(path, 1, form).names} for path in paths]
    everywhere = set[str].intersection(*lacking)  # a name that occurs in no table is a mistake

    def own(names: set[str]) -> Reading:
        label = "" if columns.label in names else columns.label
        ignore = tuple(name for name in columns.ignore if name not in names)
        return replace(reading, columns=replace(columns, label=label, ignore=ignore))

    return [own(names - everywhere) if names - everywhere else reading for names in lacking]


def normal_without_label(sheets: Sequence[Sheet], reading: Reading) -> list[Sheet]:
    """Return tables of a detector, with the label of normal operation where a label is missing that others have."""
    labels = sorted({text for sheet in sheets for text in sheet.text.get("label", ())})
    if not labels or not isinstance(reading.asked, Reconstruction):
        return [*sheets]
    normal = normal_label(labels, reading.asked)
    filled = []
    for sheet in sheets:
        if "label" not in sheet.text:
            log.info("%s: no column '%s': all rows count as normal.", sheet.title, reading.columns.label)
        filled.append(replace(sheet, text={"label": [normal] * len(sheet.line)} | sheet.text))
    return filled
