"""The Tennessee Eastman process: a simulated chemical plant with 52 variables, normal operation and 21 faults.

Downs and Vogel, Computers & Chemical Engineering 17 (1993) 245; the recordings are those of Russell, Chiang and Braatz,
Data-driven Techniques for Fault Detection and Diagnosis in Chemical Processes, Springer 2000.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.data.cache import Writer, remember
from fedfloor.data.dataset import Dataset, Inputs, Owned
from fedfloor.data.files import content, damaged, matrix, needed
from fedfloor.data.reading import Reading
from fedfloor.data.series import assemble
from fedfloor.data.split import Rows

COLUMNS = (*(f"XMEAS({i})" for i in range(1, 42)), *(f"XMV({i})" for i in range(1, 12)))
CLASSES = ("normal", *(f"IDV({i})" for i in range(1, 22)))
FILES = tuple(f"d{fault:02d}{part}.dat" for part in ("", "_te") for fault in range(len(CLASSES)))
TEST_ROWS = 960
ONSET = 160  # rows of a test recording before the onset of its fault: eight hours at three minutes a row
TRAINING_ROWS = (480, 500)  # of a recording with a fault (from its first row), and of normal operation


def load(name: str, folder: Path, reading: Reading) -> Dataset:
    """Read the 22 training and 22 test recordings: rows of 52 numbers, or windows of them.

    The class of a row is its present fault: the first 160 rows of a test recording are normal. ``d00.dat`` is published
    transposed, 52 × 500.

    Args:
        name: the data set's name.
        folder: the folder of ``d00.dat[.gz]`` … ``d21_te.dat[.gz]``.
        reading: the settings of windows; test samples are supplied, and no values are missing.
    """
    paths = [needed(folder, file) for file in FILES]
    entry = remember("tep 1", paths, lambda writer: _parse(paths, writer))
    arrays = entry.arrays
    rows = Rows(arrays["x"], arrays["y"], arrays["segment"], part=arrays["part"])
    inputs = Inputs("table", COLUMNS, missing="refuse")
    return assemble(name, CLASSES, rows, reading, inputs, Owned(), entry.facts["digest"], seed=0)


def samples(folder: Path) -> tuple[int, int]:
    """Return the published numbers of training and test rows, if all files are present."""
    for file in FILES:
        needed(folder, file)
    faults = len(CLASSES) - 1
    return TRAINING_ROWS[1] + faults * TRAINING_ROWS[0], TEST_ROWS * len(CLASSES)


def _parse(paths: list[Path], writer: Writer) -> Mapping[str, Any]:
    digest = hashlib.sha256()
    for number, path in enumerate(paths):
        data = content(path)
        digest.update(data)
        test, fault = divmod(number, len(CLASSES))
        x = matrix(path, data, len(COLUMNS), either_way=True)
        published = TEST_ROWS if test else TRAINING_ROWS[fault == 0]
        if len(x) != published:
            raise damaged(path, f"{len(x)} rows instead of {published}")
        y = np.full(len(x), fault, np.int64)
        if test:
            y[:ONSET] = 0
        writer.append("x", x, np.float32)
        writer.append("y", y)
        writer.append("segment", np.full(len(x), number, np.int32))
        writer.append("part", np.full(len(x), test, np.int8))
    return {"digest": digest.hexdigest()}
