"""C-MAPSS: simulated turbofan engines, recorded until failure for training and until an earlier cycle for testing.

Saxena, Goebel, Simon and Eklund, Damage propagation modeling for aircraft engine run-to-failure simulation, PHM 2008;
the files are NASA's Turbofan Engine Degradation Simulation Data Set.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError, nearest, require
from fedfloor.base.names import count
from fedfloor.data.cache import Writer, remember
from fedfloor.data.dataset import Dataset, Indices, Inputs, Owned
from fedfloor.data.files import content, damaged, find, matrix, needed
from fedfloor.data.files.encode import names_of
from fedfloor.data.reading import Reading
from fedfloor.data.series import assemble, rows_left
from fedfloor.data.split import Rows, runs
from fedfloor.tasks.regression import Regression

log = logging.getLogger(__name__)

# engines for training and testing, as in the published files; their readme swaps the numbers 248 and 249 of FD004
SUBSETS = {"FD001": (100, 100), "FD002": (260, 259), "FD003": (100, 100), "FD004": (249, 248)}
SETTINGS = ("altitude", "Mach", "TRA")  # the settings of an operating regime
SENSORS = (  # table 2 of the paper
    "T2", "T24", "T30", "T50", "P2", "P15", "P30", "Nf", "Nc", "epr", "Ps30", "phi", "NRf", "NRc", "BPR", "farB",
    "htBleed", "Nf_dmd", "PCNfR_dmd", "W31", "W32",
)  # fmt: skip
COLUMNS = (*SETTINGS, *SENSORS)
# if the experiment sets no task, as in nearly all of the literature
TASK = Regression(cap=125.0, unit="cycles", names=("remaining life",))


@dataclass(frozen=True)
class Cmapss:
    """The engines to read, and their assignment to devices.

    Args:
        subsets: FD001 to FD004, each a factory: one operating regime (FD001, FD003) or six, one kind of fault (FD001,
            FD002) or two.
        engines: the number of engines of each device, in the files' order; the last device of a subset has the rest.
        sensors: ``varying``: all sensors that vary in the training rows; ``all``: 24 columns; or names of columns.
    """

    subsets: tuple[str, ...] = ("FD001",)
    engines: int = 10
    sensors: Literal["varying", "all"] | tuple[str, ...] = "varying"

    @property
    def six_regimes(self) -> bool:
        """Whether engines have six operating regimes, which affect every sensor, and their settings are read."""
        if not isinstance(self.sensors, str) and not {*SETTINGS} <= {*self.sensors}:
            return False
        return not {"FD002", "FD004"}.isdisjoint(self.subsets)

    def __post_init__(self) -> None:
        object.__setattr__(self, "subsets", tuple(self.subsets))
        known = bool(self.subsets) and len(set(self.subsets)) == len(self.subsets) and set(self.subsets) <= {*SUBSETS}
        require(known, "data.cmapss.subsets", list(self.subsets), f"some of {', '.join(SUBSETS)}, once each")
        most = max(map(max, SUBSETS.values()))
        require(1 <= self.engines <= most, "data.cmapss.engines", self.engines, f"from 1 to {most}")
        if isinstance(self.sensors, str):
            return
        object.__setattr__(self, "sensors", tuple(self.sensors))
        require(bool(self.sensors), "data.cmapss.sensors", [], "'varying', 'all' or at least one name")
        odd = next((name for name in self.sensors if name not in COLUMNS or self.sensors.count(name) > 1), None)
        if odd is not None:
            problem = f"'{odd}' twice." if odd in COLUMNS else f"no column is called '{odd}'.{nearest(odd, COLUMNS)}"
            raise SettingError(f"data.cmapss.sensors: {problem} Columns: {', '.join(COLUMNS)}.")


def load(name: str, folder: Path, reading: Reading, like: Cmapss | None = None) -> Dataset:
    """Read engines as windows: all windows of training engines, and the last window of each test engine.

    The target of a row is the number of cycles left. A training engine fails after its last row; for a test engine the
    cycles left after it are published. An engine with fewer rows than a window is padded in front with copies of its
    first row; the number of padded engines is logged. Whole engines are held out.

    Args:
        name: the data set's name.
        folder: the folder of ``train_FD001.txt[.gz]``, ``test_FD001.txt[.gz]``, ``RUL_FD001.txt[.gz]``, ….
        reading: the settings of task and windows; for a classification ``bins``, the edges between classes of life.
        like: the engines and sensors to read; None for the defaults.

    Raises:
        SettingError: a file is missing or damaged, a classification has no ``bins``, or sensors never change.
    """
    like = like or Cmapss()
    paths = [path for subset in like.subsets for path in _files(folder, subset)]
    entry = remember("cmapss 1", paths, lambda writer: _parse(paths, writer))
    arrays = entry.arrays
    need = (reading.window.length if reading.window is not None else 1) + reading.asked.ahead
    row = _taken(name, arrays["segment"], arrays["part"], need)
    x, left, part, engine, subset = (arrays[key][row] for key in ("x", "left", "part", "engine", "subset"))
    age = row - np.searchsorted(arrays["segment"], arrays["segment"], "left")[row]
    columns = _columns(name, like.sensors, x, part)
    names, owner, factory = _devices(like, engine, subset, part)
    classes = tuple[str, ...]([""])
    y = np.zeros(len(row), np.int64)
    if reading.number is None and reading.asked.labelled and not reading.lasting:
        if reading.bins is None:
            raise SettingError(
                f"{name}: its labels are remaining cycles. Set [data] bins, such as [30, 80], for classes of life, "
                'or task = "regression".',
                key="cmapss-labels",
            )
        classes = names_of(reading.bins, reading.classes)
        y = np.searchsorted(reading.bins, left, "right")
    order = np.lexsort((np.arange(len(row)), owner))  # a device's training engines, then its engines for testing
    rows = Rows(
        np.ascontiguousarray(x[order][:, columns]), y[order].astype(np.int64), arrays["segment"][row][order],
        owner[order], part[order], target=rows_left(reading, left[order], age[order]), whole=True,
    )  # fmt: skip
    inputs = Inputs("table", tuple(COLUMNS[at] for at in columns), missing="refuse")
    owned = Owned(names, factory, like.subsets)
    data = assemble(name, classes, rows, reading, inputs, owned, entry.facts["digest"], seed=0)
    if isinstance(data.task, Regression) and not data.task.names:
        return replace(data, task=replace(data.task, names=TASK.names, unit=data.task.unit or TASK.unit))
    return data


def counted(folder: Path) -> None:
    """Check that the files of a subset are present; return None, because the number of samples depends on windows."""
    for subset in SUBSETS:
        with suppress(SettingError):
            _files(folder, subset)
            return
    _files(folder, next(iter(SUBSETS)))


def _files(folder: Path, subset: str) -> list[Path]:
    """Return a subset's three files."""
    names = [f"{kind}_{subset}.txt" for kind in ("train", "test", "RUL")]
    missing = [name for name in names if find(folder, name) is None]
    if missing:
        raise SettingError(
            f"{folder}: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing (packed as .gz or not). "
            "`fedfloor datasets get cmapss` prints the address of NASA's archive; or leave the subset out of "
            "data.cmapss.subsets.",
            key="published-file-missing",
        )
    return [needed(folder, name) for name in names]


def _taken(name: str, segment: NDArray[np.int32], part: NDArray[np.int8], need: int) -> Indices:
    """Return the rows to use: all of a training engine, the last ``need`` of a test engine; short ones padded."""
    taken = []
    short = {0: 0, 1: 0}
    for first, end in runs(segment, None):
        test = int(part[first])
        short[test] += end - first < need
        start = end - need if test else min(first, end - need)
        taken.append(np.maximum(np.arange(start, end), first))
    if any(short.values()):
        log.info(
            "%s: %s for training and %s for testing have fewer than the %d rows of a window, and are padded in front "
            "with their first row.", name, count(short[0], "engine"), count(short[1], "engine"), need,
        )  # fmt: skip
    return np.concatenate(taken)


def _columns(name: str, sensors: Sequence[str], x: NDArray[np.float32], part: NDArray[np.int8]) -> list[int]:
    """Return the indices of the columns that are sensors."""
    varies = np.ptp(x[part == 0], axis=0) > 0
    if sensors == "all":
        return list(range(len(COLUMNS)))
    if sensors == "varying":
        if constant := [column for column, moves in zip(COLUMNS, varies, strict=True) if not moves]:
            log.info("%s: left out because they are constant in all training rows: %s.", name, ", ".join(constant))
        return np.flatnonzero(varies).tolist()
    chosen = [COLUMNS.index(name) for name in sensors]
    if not varies[chosen].any():
        raise SettingError(f"data.cmapss.sensors: {', '.join(sensors)} never change in training. Name other sensors.")
    return chosen


def _devices(
    like: Cmapss, engine: NDArray[np.int32], subset: NDArray[np.int32], part: NDArray[np.int8]
) -> tuple[tuple[str, ...], NDArray[np.int32], NDArray[np.int32]]:
    """Return the devices' names, the device of each row, and the factory of each device.

    Test engines are dealt to devices like training engines, so that every device has some of its subset.
    """
    names = list[str]()
    factory = list[int]()
    owner = np.empty(len(engine), np.int32)
    for number, title in enumerate(like.subsets):
        mine = subset == number
        many = int(engine[mine & (part == 0)].max())
        devices = -(-many // like.engines)
        owner[mine] = len(names) + np.minimum((engine[mine] - 1) // like.engines, devices - 1)
        for device in range(devices):
            first = device * like.engines + 1
            last = min(many, (device + 1) * like.engines)
            names.append(f"{title} engine{f's {first}-{last}' if last > first else f' {first}'}")
        factory += [number] * devices
    return tuple(names), owner, np.array(factory, np.int32)


def _parse(paths: list[Path], writer: Writer) -> Mapping[str, Any]:
    digest = hashlib.sha256()
    engines = 0
    for number in range(len(paths) // 3):
        train, test, life = paths[3 * number : 3 * number + 3]
        data = [content(path) for path in (train, test, life)]
        digest.update(b"".join(data))
        after = matrix(life, data[2], 1)[:, 0]
        for part, (path, text) in enumerate(((train, data[0]), (test, data[1]))):
            rows = matrix(path, text, 2 + len(COLUMNS))
            engine = _engines(path, rows)
            end = np.searchsorted(engine, engine, "right")
            left = end - 1.0 - np.arange(len(rows))
            if part:
                if len(after) != engine[-1]:
                    raise damaged(life, f"{len(after)} rows, but {test.name} has {engine[-1]} engines")
                if after.min() < 0:
                    raise damaged(life, f"row {int(after.argmin()) + 1}: {after.min():g} remaining cycles")
                left += after[engine - 1]
            writer.append("x", rows[:, 2:], np.float32)
            writer.append("left", left, np.float32)
            writer.append("engine", engine, np.int32)
            writer.append("segment", engines + engine, np.int32)
            writer.append("part", np.full(len(rows), part, np.int8))
            writer.append("subset", np.full(len(rows), number, np.int32))
            engines += int(engine[-1])
    return {"digest": digest.hexdigest()}


def _engines(path: Path, rows: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the engine of each row, after a check that engines and their cycles are numbered from 1."""
    engine = rows[:, 0]
    cycle = rows[:, 1]
    new = np.diff(engine, prepend=0.0)
    follows = np.where(new == 0, np.diff(cycle, prepend=0.0) == 1, (new == 1) & (cycle == 1))
    if not follows.all():
        row = int(np.flatnonzero(~follows)[0])
        raise damaged(
            path,
            f"row {row + 1} is cycle {cycle[row]:g} of engine {engine[row]:g}: engines and their cycles must be "
            "numbered consecutively from 1",
        )
    return engine.astype(np.int64)
