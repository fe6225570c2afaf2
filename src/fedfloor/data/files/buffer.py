"""A device's ring buffer of sensor rows, filled by ``fedfloor park sense``: an SQLite file, read as recordings.

The file has three tables: ``about`` (``format``, ``id``, ``columns`` as JSON, ``gap_s``), ``rows`` (epoch, time, the
values as float64 in little-endian order, a label) and ``labels`` for labels added later (from, to, label). Rows
further apart than ``gap_s``, and rows of different epochs (the clock was set back in between), belong to different
recordings.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedfloor.base import regular
from fedfloor.base.errors import MALFORMED, SettingError
from fedfloor.data.cache import CacheEntry, Writer
from fedfloor.data.dataset import Dataset
from fedfloor.data.files.encode import labelled, normal_label
from fedfloor.data.files.layout import LARGEST, coarse
from fedfloor.data.files.sheet import Sheet
from fedfloor.data.files.spellings import respelt
from fedfloor.data.files.table import check_labels, of_entry, write
from fedfloor.data.reading import Reading
from fedfloor.tasks.reconstruction import Reconstruction

log = logging.getLogger(__name__)

BUFFERS = (".sqlite", ".sqlite3")
FORMAT = "fedfloor sensors 2"
TYPES = {"fedfloor sensors 1": "<f4", FORMAT: "<f8"}  # format → the type of values
MEANT = (
    "columns",
    "classes",
    "spellings",
    "window",
    "missing",
    "split",
    "small",
    "bins",
    "task",
    "sort",
    "copies",
    "time_format",
    "zone",
    "gap_s",
)
WAIT_S = 20.0  # for another process to finish writing
ABOUT = ("format", "id", "columns", "gap_s")


@dataclass(frozen=True, eq=False)
class BufferedRows:
    """The rows of a buffer, the oldest first.

    Args:
        name: the name of the file.
        identity: the identity of the buffer, regardless of its rows.
        columns: C names of the sensors.
        time: float64 [n], s since 1970.
        x: float64 [n, C].
        label: the label of each row, "" for none.
        run: int64 [n], the number of its recording.
    """

    name: str
    identity: str
    columns: tuple[str, ...]
    time: NDArray[np.float64]
    x: NDArray[np.float64]
    label: list[str]
    run: NDArray[np.int64]


@contextmanager
def opened(path: Path, mode: str = "rw") -> Iterator[sqlite3.Connection]:
    """Open an SQLite file; errors name the file."""
    try:
        if path.exists():
            regular.check(path)
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", WAIT_S, uri=True)) as base:
            yield base
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise SettingError(
            f"{path}: not a buffer of sensor rows, or it cannot be read ({error}). Give a file that "
            "fedfloor park sense wrote.",
            key="not-a-buffer",
        ) from error


@contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """Name the file in the error of values that are not as :mod:`fedfloor.sensors.buffer` writes them."""
    try:
        yield
    except MALFORMED as error:
        raise SettingError(
            f"{path}: damaged: a value is not as fedfloor park sense writes it ({type(error).__name__}). Start a new "
            "buffer.",
            key="damaged-buffer",
        ) from error


def read(path: Path, newest: int | None = None) -> BufferedRows:
    """Return the rows of a buffer, or the newest ones.

    Raises:
        SettingError: the file is not a buffer, or has no rows.
    """
    with opened(path) as base:
        base.execute("PRAGMA query_only = 1")
        about = dict(base.execute("SELECT key, value FROM about"))
        if any(key not in about for key in ABOUT) or about["format"] not in TYPES:
            raise SettingError(
                f"{path}: not a buffer of sensor rows in the format '{FORMAT}'. Give a file that "
                "fedfloor park sense wrote."
            )
        most = "" if newest is None else f" LIMIT {newest:d}"
        rows = base.execute(f"SELECT epoch, time, x, label FROM rows ORDER BY epoch DESC, time DESC{most}").fetchall()
        later = base.execute("SELECT since, until, label FROM labels ORDER BY rowid").fetchall()
    if not rows:
        raise SettingError(
            f"{path}: no rows yet. Start fedfloor park sense to fill it; its --check tests the sensors.",
            key="empty-buffer",
        )
    rows.reverse()
    with undamaged(path):
        return _recorded(path, about, rows, later)


def _recorded(
    path: Path, about: Mapping[str, Any], rows: Sequence[Sequence[Any]], later: Sequence[Sequence[Any]]
) -> BufferedRows:
    """Return the rows of the tables of a buffer, the oldest first."""
    columns = tuple(map(str, json.loads(about["columns"])))
    kind = np.dtype(TYPES[about["format"]])
    if any(type(row[2]) is not bytes or len(row[2]) != kind.itemsize * len(columns) for row in rows):
        raise SettingError(
            f"{path}: damaged: the values of a row do not match its {len(columns)} sensors. Start a new buffer.",
            key="damaged-buffer",
        )
    x = np.frombuffer(b"".join(row[2] for row in rows), kind).reshape(len(rows), -1).astype(np.float64)
    x = np.where(np.abs(x) <= LARGEST, x, np.nan)
    time = np.array([row[1] for row in rows], np.float64)
    if not np.isfinite(time).all():
        raise ValueError("a time is not a number")
    epoch = np.array([row[0] for row in rows], np.int64)
    label = np.array([str(row[3]) for row in rows], object)
    for since, until, text in later:
        label[(time >= since) & (time <= until)] = str(text)
    change = (np.diff(epoch) != 0) | (np.diff(time) > float(about["gap_s"]))
    run = np.concatenate([[0], np.cumsum(change)]).astype(np.int64)
    return BufferedRows(path.name, str(about["id"]), columns, time, x, label.tolist(), run)


def written(path: Path) -> int | None:
    """Return the number of rows ever written to a buffer, including deleted rows; None if it has no count.

    Raises:
        SettingError: the file is not a buffer.
    """
    if not path.exists():
        return None
    with opened(path) as base:
        row = base.execute("SELECT value FROM about WHERE key = 'written'").fetchone()
    return int(row[0]) if row and str(row[0]).isdecimal() else None


def load(path: Path, reading: Reading, seed: int, newest: int | None = None) -> Dataset:
    """Read a buffer as a device's recordings, without unlabelled rows if the task needs labels.

    Args:
        newest: the number of newest rows to read; None: all.

    Raises:
        SettingError: the file is not a buffer, or its rows do not fit ``reading``.
    """
    reading.only(MEANT, "a buffer of sensor rows")
    if reading.remaining:
        raise SettingError("[data] remaining: a buffer has no complete recordings to failure. Leave it out.")
    recorded = read(path, newest)
    needed = reading.asked.labelled
    kept = np.array([bool(text) or not needed for text in recorded.label])
    if not kept.any():
        raise SettingError(
            f"{path}: none of {len(kept):,} rows has a label yet. Set [labels] in the file of its source, or a task "
            "without labels: [data] task = 'reconstruction'."
        )
    reading = replace(reading, columns=replace(reading.columns, device="", factory="", time="time", id="", run=None))
    _note_coarse(path, recorded)
    sheets, reading = labelled([_sheet(path, recorded, reading, rows) for rows in _runs(recorded.run, kept)], reading)
    label: list[str] | None = [text for sheet in sheets for text in sheet.text["label"]]
    if needed:
        check_labels(sheets, reading)
    else:
        label = _normal_without_label(label or [], reading)
    writer = _Arrays()
    facts = write(writer, sheets, None, None, label, reading)
    return of_entry(recorded.name, CacheEntry(writer.arrays(), facts), reading, seed)


def sheet(path: Path, reading: Reading) -> Sheet:
    """Return all rows of a buffer as a table; errors as of :func:`load`."""
    recorded = read(path)
    return _sheet(path, recorded, reading, np.arange(len(recorded.time)))


def newest(path: Path, reading: Reading, seed: int, samples: int) -> Dataset:
    """Return a data set of the newest rows of a buffer, as few as are needed for ``samples`` samples.

    Raises:
        SettingError: the buffer has too few rows so far.
    """
    length, step = (1, 1) if reading.window is None else (reading.window.length, reading.window.stride)
    rows = (samples - 1) * step + length + reading.asked.ahead
    while True:
        held = len(read(path, rows).time)
        try:
            data = load(path, reading, seed, rows)
        except SettingError:
            if length <= held < rows:
                raise
            data = None
        if data is not None and len(data.y) >= samples:
            return data
        if held < rows:
            found = 0 if data is None else len(data.y)
            raise SettingError(
                f"{path}: {found:,} of {samples:,} samples so far, of {held:,} rows. Start the run once its sensors "
                "have filled it, or set a smaller [data] stream window.",
                key="few-samples",
            )
        rows *= 2


def _normal_without_label(label: list[str], reading: Reading) -> list[str] | None:
    """Return labels, with normal operation for missing ones; None if there are no labels, or the task needs none."""
    names = sorted({*label} - {""})
    if not names or not isinstance(reading.asked, Reconstruction):
        return None
    normal = normal_label(names, reading.asked)
    return [text or normal for text in label]


class _Arrays(Writer):
    """A substitute for :class:`Writer` that keeps arrays in memory, because the rows of a buffer change."""

    def __init__(self) -> None:
        self._blocks: dict[str, list[NDArray[Any]]] = {}

    def append(self, name: str, block: NDArray[Any], kind: DTypeLike | None = None) -> None:  # noqa: ARG002
        self._blocks.setdefault(name, []).append(block)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {name: np.concatenate(blocks) for name, blocks in self._blocks.items()}


def _runs(run: NDArray[np.int64], kept: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Return the indices of the rows of each recording; a row that is not kept ends a recording."""
    rows = np.flatnonzero(kept)
    return np.split(rows, np.flatnonzero((np.diff(rows) > 1) | (np.diff(run[rows]) != 0)) + 1)


def _note_coarse(path: Path, recorded: BufferedRows) -> None:
    """Log the sensors whose variation is lost in single precision, the type of models' inputs."""
    for i, step in coarse(np.fmin.reduce(recorded.x), np.fmax.reduce(recorded.x)).items():
        log.warning(
            "%s, sensor '%s': its values vary by less than models resolve, whose inputs have steps of %.2g there. "
            "[offsets] in the source file of fedfloor park sense keeps its variation.",
            path.name,
            recorded.columns[i],
            step,
        )


def _sheet(path: Path, recorded: BufferedRows, reading: Reading, rows: NDArray[np.int64]) -> Sheet:
    columns = [name for name in recorded.columns if name not in reading.columns.ignore]
    columns = [*reading.columns.values] or columns
    unknown = next((name for name in columns if name not in recorded.columns), None)
    if unknown is not None:
        raise SettingError(f"{path}: no sensor '{unknown}'. Available: {', '.join(recorded.columns)}.")
    x = recorded.x[rows][:, [recorded.columns.index(name) for name in columns]].astype(np.float32)
    text = {"label": respelt([recorded.label[row] for row in rows.tolist()], reading.spellings)}
    return Sheet(path, tuple(columns), x, rows + 1, text, recorded.time[rows], dated=True)


def identity(path: Path) -> str:
    """Return the SHA-256 of a buffer's identity, regardless of its rows."""
    recorded = read(path, 1)
    return hashlib.sha256(json.dumps([recorded.identity, recorded.columns]).encode()).hexdigest()
