"""The ring buffer of sensor rows: an SQLite file, bounded in size and age."""

from __future__ import annotations

import json
import logging
import secrets
import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedfloor.base.errors import RunError, SettingError
from fedfloor.base.strict import json_text
from fedfloor.data.files.buffer import FORMAT, TYPES, WAIT_S, opened, undamaged
from fedfloor.sensors.grid import Row

log = logging.getLogger(__name__)

TABLES = """
CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rows (epoch INTEGER, time REAL, x BLOB NOT NULL, label TEXT NOT NULL,
    PRIMARY KEY (epoch, time)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS labels (since REAL, until REAL, label TEXT NOT NULL, UNIQUE (since, until));
"""
COUNT = """INSERT INTO about VALUES ('written', ?)
    ON CONFLICT (key) DO UPDATE SET value = CAST(CAST(value AS INTEGER) + excluded.value AS TEXT)"""
OVERHEAD = 48  # bytes of a row in addition to its values
FILL = 1.25  # ratio of the size of pages to that of their rows
WAITING = 20_000  # rows in memory while the disk is full
Label = tuple[float, float, str]  # since, until, label


class Buffer:
    """A ring buffer open for writing, by one process at a time.

    Args:
        base: the connection to SQLite.
        path: the path of the file.
        columns: the columns of the sensors.
        most: the maximum number of rows.
        age_s: the maximum age of a row, relative to the newest.
    """

    def __init__(self, base: sqlite3.Connection, path: Path, columns: Sequence[str], most: int, age_s: float) -> None:
        self.path = path
        self.columns = tuple(columns)
        self.most = most
        self.age_s = age_s
        self._base = base
        self._waiting: deque[Row] = deque(maxlen=min(WAITING, most))
        self._labels: list[Label] = []
        self._position: str | None = None
        self._full = ""
        self.lost = 0  # number of rows lost while the disk was full
        (self.rows,) = base.execute("SELECT count(*) FROM rows").fetchone()

    @property
    def newest(self) -> tuple[int, float] | None:
        """The epoch and the time (s since 1970) of the newest row; None without rows."""
        row: tuple[int, float] | None
        row = self._base.execute("SELECT epoch, time FROM rows ORDER BY epoch DESC, time DESC LIMIT 1").fetchone()
        return row

    def write(self, rows: Iterable[Row], labels: Iterable[Label] = (), position: str | None = None) -> None:
        """Write rows, labels and the source's position in one transaction; delete the oldest rows beyond the bounds.

        While the disk is full, a limited number of rows waits in memory, to be written once there is room.
        """
        for row in rows:
            self.lost += len(self._waiting) == self._waiting.maxlen
            self._waiting.append(row)
        self._labels += labels
        self._position = position or self._position
        if not self._waiting and not self._labels and self._position is None:
            return
        try:
            with self._base:  # as a transaction
                self._write()
        except sqlite3.OperationalError as error:
            if self._full != str(error):
                self._full = str(error)
                log.error(
                    "%s cannot be written (%s). Free disk space: up to %d rows wait in memory, then the oldest are "
                    "lost.",
                    self.path, error, self._waiting.maxlen,
                )  # fmt: skip
            return
        self._waiting.clear()
        self._labels.clear()
        self._position = None
        if self._full:
            log.warning("%s can be written again; %d rows were lost.", self.path, self.lost)
            self._full = ""

    def _write(self) -> None:
        base = self._base
        first = min(((row.epoch, row.time) for row in self._waiting), default=(0, 0.0))
        since = "SELECT count(*) FROM rows WHERE (epoch, time) >= (?, ?)"
        rows = self.rows - base.execute(since, first).fetchone()[0]
        base.executemany(
            "INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)",
            [(row.epoch, row.time, row.values.astype(TYPES[FORMAT]).tobytes(), row.label) for row in self._waiting],
        )
        rows += base.execute(since, first).fetchone()[0]
        base.execute(COUNT, (str(rows - self.rows),))
        base.executemany("INSERT OR REPLACE INTO labels VALUES (?, ?, ?)", self._labels)
        if self._position is not None:
            base.execute("INSERT OR REPLACE INTO about VALUES ('position', ?)", (self._position,))
        newest = self.newest
        before = base.total_changes
        if newest is not None:
            base.execute("DELETE FROM rows WHERE epoch <= ? AND time < ?", (newest[0], newest[1] - self.age_s))
        rows -= base.total_changes - before
        if rows > self.most:
            oldest = "SELECT epoch, time FROM rows ORDER BY epoch, time LIMIT ?"
            base.execute(f"DELETE FROM rows WHERE (epoch, time) IN ({oldest})", (rows - self.most,))
            base.execute("DELETE FROM labels WHERE until < (SELECT min(time) FROM rows)")
            rows = self.most
        self.rows = rows


@contextmanager
def writing(path: Path, columns: Sequence[str], max_mb: float, max_age_h: float, gap_s: float) -> Iterator[Buffer]:
    """Open a ring buffer for writing; create it if it does not exist.

    Args:
        columns: the columns of the sensors; if empty, those of the existing buffer.
        max_mb: the maximum size of the file, in MB (10^6 bytes).
        max_age_h: the maximum age of a row, in hours.
        gap_s: the pause, in s, beyond which rows belong to different recordings.

    Raises:
        SettingError: the file is not a buffer, or a buffer of other sensors.
        RunError: another process writes to the buffer, or the disk is full.
    """
    from filelock import FileLock, Timeout

    most = int(max_mb * 1e6 / FILL / (8 * len(columns) + OVERHEAD))
    if not path.parent.is_dir():
        raise SettingError(f"--into {path}: folder {path.parent} does not exist. Create it, or choose another one.")
    try:
        with FileLock(f"{path}.lock", timeout=0), opened(path, "rwc") as base:
            _prepare(base, path, columns, gap_s)
            yield Buffer(base, path, columns, most, max_age_h * 3600)
    except Timeout:
        raise RunError(
            f"{path}: another process writes to it. Stop that fedfloor park sense, or choose another file.",
            key="unwritable",
        ) from None
    except OSError as error:
        raise RunError(f"{path} could not be written: {error.strerror or error}.") from error


def _prepare(base: sqlite3.Connection, path: Path, columns: Sequence[str], gap_s: float) -> None:
    known, _ = held(path)
    base.execute(f"PRAGMA busy_timeout = {WAIT_S * 1000:.0f}")
    base.execute("PRAGMA journal_mode = WAL")  # readers and the writer do not wait for each other
    base.execute("PRAGMA synchronous = NORMAL")
    if known is not None and known != tuple(columns):
        raise SettingError(
            f"{path} holds rows of other sensors: {', '.join(known)}. Give another file with --into, or move this "
            "file away.",
            key="buffer-differs",
        )
    with base:
        base.execute("BEGIN")
        for statement in TABLES.split(";"):
            base.execute(statement)
        if known is None:
            facts = {"format": FORMAT, "id": secrets.token_hex(16), "columns": json_text([*columns])}
            base.executemany("INSERT INTO about VALUES (?, ?)", facts.items())
        _convert(base)
        base.execute("INSERT OR REPLACE INTO about VALUES ('gap_s', ?)", (repr(gap_s),))


def _convert(base: sqlite3.Connection) -> None:
    """Convert the values of a buffer in an earlier format."""
    (before,) = base.execute("SELECT value FROM about WHERE key = 'format'").fetchone()
    if before != FORMAT:
        kind = TYPES[before]
        base.create_function("converted", 1, lambda x: np.frombuffer(x, kind).astype(TYPES[FORMAT]).tobytes())
        base.execute("UPDATE rows SET x = converted(x)")
        base.execute("UPDATE about SET value = ? WHERE key = 'format'", (FORMAT,))


def held(path: Path) -> tuple[tuple[str, ...] | None, str | None]:
    """Return the sensors of a buffer and the position of its source, None without a buffer or without a position.

    For a source without positions, the position is the time of the newest row.

    Raises:
        SettingError: the file is not a buffer.
    """
    if not path.exists():
        return None, None
    with opened(path) as base:
        tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master")}
        about = dict(base.execute("SELECT key, value FROM about")) if "about" in tables else {}
        newest = base.execute("SELECT max(time) FROM rows").fetchone()[0] if "rows" in tables else None
    if tables and about.get("format") not in TYPES:
        raise SettingError(
            f"{path}: a database with other content, left unchanged. Give another file with --into.", key="not-a-buffer"
        )
    if not tables:
        return None, None
    with undamaged(path):
        return tuple(map(str, json.loads(about["columns"]))), about.get("position", newest and str(newest))
