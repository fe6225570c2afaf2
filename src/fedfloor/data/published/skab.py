"""SKAB, the Skoltech Anomaly Benchmark: a pump's test bench, 8 sensors at 1 Hz, one anomaly in each recording.

Katser and Kozitsin, Skoltech Anomaly Benchmark (SKAB), 2020, doi:10.34740/KAGGLE/DSV/1693952, version 0.9.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError, require
from fedfloor.data.cache import Writer, remember
from fedfloor.data.dataset import Dataset, Inputs, Owned
from fedfloor.data.files import content, damaged
from fedfloor.data.reading import Reading
from fedfloor.data.series import assemble
from fedfloor.data.split import Rows, runs
from fedfloor.tasks.reconstruction import CLASSES, Reconstruction

# recordings of a closing inlet valve, an outlet valve, other faults, and of normal operation without labels
SUBSETS = ("valve1", "valve2", "other", "anomaly-free")
SENSORS = (
    "Accelerometer1RMS", "Accelerometer2RMS", "Current", "Pressure", "Temperature", "Thermocouple", "Voltage",
    "Volume Flow RateRMS",
)  # fmt: skip
LABELS = ("anomaly", "changepoint")
TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d", re.ASCII)
TASK = Reconstruction()  # if the experiment sets no task


@dataclass(frozen=True)
class Skab:
    """The recordings to read, each a device, and their rows for training.

    Args:
        subsets: valve1, valve2, other, anomaly-free, each a factory.
        rows: the number of first rows of a recording for training, 400 on the benchmark's leaderboard; the others are
            for testing.
    """

    subsets: tuple[str, ...] = ("valve1",)
    rows: int = 400

    def __post_init__(self) -> None:
        object.__setattr__(self, "subsets", tuple(self.subsets))
        known = bool(self.subsets) and len(set(self.subsets)) == len(self.subsets) and set(self.subsets) <= {*SUBSETS}
        require(known, "data.skab.subsets", list(self.subsets), f"some of {', '.join(SUBSETS)}, once each")
        require(self.rows >= 1, "data.skab.rows", self.rows, "a whole number of at least 1")


def load(name: str, folder: Path, reading: Reading, like: Skab | None = None) -> Dataset:
    """Read recordings, the first rows of each for training and the rest for testing; gaps in time are ignored.

    Rows of the recording without labels are normal. Change points are not read, because no model uses them.

    Args:
        name: the data set's name.
        folder: the folder of ``valve1``, ``valve2``, ``other`` and ``anomaly-free``, with a table for each run.
        reading: the settings of task and windows.
        like: the recordings to read; None for the defaults.

    Raises:
        SettingError: a folder is missing, a file is damaged, or a recording has no rows for testing.
    """
    like = like or Skab()
    paths = [path for subset in like.subsets for path in _files(folder, subset)]
    entry = remember("skab 1", paths, lambda writer: _parse(paths, writer))
    device = entry.arrays["device"]
    part = np.ones(len(device), np.int8)
    for first, end in runs(device, None):
        if end - first <= like.rows:
            raise SettingError(
                f"{paths[device[first]]}: {end - first} rows, of which data.skab.rows = {like.rows} are for training: "
                "none is left for testing. Set fewer.",
                key="data.skab.rows",
            )
        part[first : first + like.rows] = 0
    rows = Rows(entry.arrays["x"], entry.arrays["y"], device, device, part=part, time=entry.arrays["time"])
    names = tuple(f"{path.parent.name}/{_stem(path)}" for path in paths)
    factory = np.array([like.subsets.index(path.parent.name) for path in paths], np.int32)
    inputs = Inputs("table", SENSORS, missing="refuse")
    owned = Owned(names, factory, like.subsets)
    return assemble(name, CLASSES, rows, reading, inputs, owned, entry.facts["digest"], seed=0)


def counted(folder: Path) -> None:
    """Check that a subset is present; return None, because the number of samples depends on the settings."""
    if not any((folder / subset).is_dir() for subset in SUBSETS):
        _files(folder, SUBSETS[0])


def _files(folder: Path, subset: str) -> list[Path]:
    """Return a subset's tables in the order of their numbers."""
    paths = {_stem(path): path for path in (folder / subset).glob("*.csv*") if path.name.endswith((".csv", ".csv.gz"))}
    if not paths:
        raise SettingError(
            f"{folder / subset}: no recordings (*.csv, packed as .gz or not). `fedfloor datasets get skab` prints "
            "instructions to get them; or leave the subset out of data.skab.subsets.",
            key="published-file-missing",
        )
    return [paths[key] for key in sorted(paths, key=lambda stem: (len(stem), stem))]


def _stem(path: Path) -> str:
    return path.name.partition(".csv")[0]


def _parse(paths: list[Path], writer: Writer) -> Mapping[str, Any]:
    digest = hashlib.sha256()
    for number, path in enumerate(paths):
        data = content(path)
        digest.update(data)
        time, values = _table(path, data)
        odd = values[:, len(SENSORS)] if values.shape[1] > len(SENSORS) else np.zeros(len(values))
        for row in np.flatnonzero(~np.isin(odd, (0, 1)))[:1].tolist():
            raise damaged(path, f"row {row + 2}: the anomaly must be 0 or 1")
        writer.append("x", values[:, : len(SENSORS)], np.float32)
        writer.append("y", odd, np.int64)
        writer.append("time", time, np.float64)
        writer.append("device", np.full(len(values), number, np.int32))
    return {"digest": digest.hexdigest()}


def _table(path: Path, data: bytes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the times of a recording in seconds since 1970, float64 [n], and its numbers, a row per time."""
    header, *lines = data.decode("utf-8", "replace").split("\n")
    columns = tuple(header.strip().split(";"))
    if columns not in (("datetime", *SENSORS), ("datetime", *SENSORS, *LABELS)):
        raise damaged(path, f"its columns are {', '.join(columns)[:200]}")
    cells = [line.strip().split(";") for line in lines if line.strip()]
    for row, line in enumerate(cells, 2):
        try:
            numbers = [float(cell) for cell in line[1:]]
            if not TIME.fullmatch(line[0]):  # NumPy accepts "NaT" and "now", too
                raise ValueError(f"{line[0][:40]!r} is no time such as 2020-03-09 10:14:33")
            np.datetime64(line[0], "s")
        except ValueError as error:
            raise damaged(path, f"row {row}: {error}") from error
        if len(line) != len(columns) or not np.isfinite(numbers).all():
            raise damaged(path, f"row {row}: not {len(columns) - 1} finite numbers")
    if not cells:
        raise damaged(path, "no rows")
    time = np.array([line[0] for line in cells], "datetime64[s]").astype(np.float64)
    return time, np.array([line[1:] for line in cells], np.float64)
