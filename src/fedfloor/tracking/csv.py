"""CSV: the ledgers of several runs as one tidy table, a row per run and round."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedfloor.tracking.points import PLAIN, About, points

FIRST = ("run", "method", "seed", "round", *PLAIN, "device:p10", "device:p50", "device:p90")
LATER = ("figure:", "class:", "priced:", "info:")


def table(runs: Sequence[About]) -> str:
    """Return the ledgers of runs as CSV; what was not measured is an empty cell.

    Columns: :data:`FIRST`, then ``figure:NAME``, ``class:NAME``, ``priced:NAME`` and ``info:NAME`` as far as the runs
    have them.
    """
    rows: list[dict[str, object]] = []
    for what, name in zip(runs, names([one.folder for one in runs]).values(), strict=True):
        head = {"run": name, "method": what.method, "seed": what.seed}
        for point in points(what):
            measured = {key.replace("/", ":", 1): value for key, value in point.figures.items()}
            rows.append({**head, "round": point.round, **measured})
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def names(folders: Sequence[Path]) -> Mapping[Path, str]:
    """Return a name for each run: its folder's, and as much of the way there as tells it from the others'.

    >>> list(names([Path("/r/a/fedavg-seed0"), Path("/r/b/fedavg-seed0")]).values())
    ['a/fedavg-seed0', 'b/fedavg-seed0']
    """
    whole = {folder: folder.resolve() for folder in folders}
    base = os.path.commonpath([path.parent for path in whole.values()])
    return {folder: path.relative_to(base).as_posix() for folder, path in whole.items()}


def _columns(rows: Sequence[Mapping[str, object]]) -> list[str]:
    found = dict.fromkeys(key for row in rows for key in row if key not in FIRST)
    return [*FIRST, *sorted(found, key=lambda key: next((i for i, p in enumerate(LATER) if key.startswith(p)), -1))]
