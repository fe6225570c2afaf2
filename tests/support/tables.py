"""Tables of sensors made up on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedfloor.data.dataset import Dataset
from fedfloor.data.files import table
from fedfloor.data.reading import Reading

SENSORS = ("temp", "pressure", "flow", "speed", "current", "level")
HEADER = ["device", "factory", "time", *SENSORS, "label"]
DEVICES = 4
ROWS = 30
Lines = list[list[str]]
Mistake = Callable[[Lines], object]


def plant(mistake: Mistake | None = None) -> Lines:
    """Return a table's cells: 4 devices in 2 factories take turns for 30 rows each; two classes; a mistake planted.

    The row with number r, as a reader counts, is element r − 1; row 2 + 4·t + k is that of device k at time t.
    """
    rng = np.random.default_rng(0)
    rows = [list(HEADER)]
    for moment in range(ROWS):
        for device in range(DEVICES):
            sensors = [f"{value:.3f}" for value in rng.normal(10 * (moment % 2), 1, len(SENSORS))]
            label = "worn" if moment % 2 else "good"
            rows.append([f"press {device}", f"hall {device % 2}", str(moment), *sensors, label])
    if mistake is not None:
        mistake(rows)
    return rows


def text(rows: Lines, delimiter: str = ",", end: str = "\n") -> str:
    """Return a table as CSV; cells that need quotation marks bring them along."""
    return "".join(delimiter.join(row) + end for row in rows)


def load(folder: Path, rows: Lines, reading: Reading | None = None, seed: int = 0) -> Dataset:
    """Write a table and read it."""
    path = folder / "plant.csv"
    path.write_text(text(rows))
    return table.load(path, reading or Reading(), seed)


def put(row: int, column: str, value: str) -> Mistake:
    """Return the mistake that a cell (row as a reader counts) holds a value."""
    return lambda rows: rows[row - 1].__setitem__(HEADER.index(column), value)


def everywhere(column: str, value: str) -> Mistake:
    """Return the mistake that a column holds one value."""
    return lambda rows: [row.__setitem__(HEADER.index(column), value) for row in rows[1:]]


def without(column: str) -> Mistake:
    """Return the mistake that a column is not there."""
    return lambda rows: [row.pop(HEADER.index(column)) for row in rows]
