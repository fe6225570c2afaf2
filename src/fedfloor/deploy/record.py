"""A process's record of what it must never forget, such as what it has revealed, with a mark beside its state folder.

A record that is missing, or older than the process has written it, would be taken for that of a new process: it would
reveal what it must reveal only once. The mark has the record's name and the number of its changes, and a change counts
only once the mark states it, too.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedfloor.base import regular
from fedfloor.base.errors import SettingError

REVEALED = "revealed.sqlite"  # what a device has revealed, in its state folder
# of earlier versions
FORMER = "sums.sqlite"
FORMER_KEY = "census.key"
MARKS = "-begun"  # after the name of a state folder: the folder of its marks
TABLES = (
    "CREATE TABLE IF NOT EXISTS begun (name TEXT, number INTEGER)",
    "CREATE TABLE IF NOT EXISTS sums (part BLOB PRIMARY KEY, total BLOB) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS totals (digest BLOB PRIMARY KEY, text TEXT) WITHOUT ROWID",  # of column total above
    "CREATE TABLE IF NOT EXISTS places (part BLOB PRIMARY KEY, text TEXT) WITHOUT ROWID",  # of visits in sums
    "CREATE TABLE IF NOT EXISTS members (device INTEGER PRIMARY KEY, held TEXT)",  # samples, by the last sums
    "CREATE TABLE IF NOT EXISTS crew (id TEXT, text TEXT)",  # one row: with whom it is in sums
    "CREATE TABLE IF NOT EXISTS noisy (run BLOB PRIMARY KEY, round INTEGER, total BLOB) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS samples (mark INTEGER PRIMARY KEY, most INTEGER, last INTEGER)",
    "CREATE TABLE IF NOT EXISTS answers (what TEXT, digest BLOB, PRIMARY KEY (what, digest)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS spent (name TEXT PRIMARY KEY, number INTEGER) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS released (place BLOB PRIMARY KEY) WITHOUT ROWID",  # visits with noise
    "CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID",
)


class RevealRecord:
    """An SQLite file that is never silently made again.

    Args:
        path: the file; None: nothing is kept beyond the process.

    Raises:
        SettingError: the file is missing, damaged or older than its mark, or the disk is full.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = None if path is None else path.absolute()
        self._mark = None if self.path is None else mark_of(self.path)
        with self._explained():
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))  # it has a key
            self._base = sqlite3.connect(self.path or ":memory:", check_same_thread=False)
            for command in TABLES:
                self._base.execute(command)
        with self.changing() as base:
            self._begin(base)

    def _begin(self, base: sqlite3.Connection) -> None:
        """Compare the record with its mark; name a new one."""
        begun = base.execute("SELECT name, number FROM begun").fetchone()
        mark = read_mark(self._mark)
        if begun is None and mark is None:
            base.execute("INSERT INTO begun VALUES (?, 0)", (secrets.token_hex(8),))
        elif mark is not None and (begun is None or begun[0] != mark[0] or begun[1] < mark[1]):
            raise SettingError(
                f"{self.path}: {'is missing' if begun is None else 'is older than this machine has written it'}, by "
                f"{self._mark}. Without it this device does not know what it has revealed. Put back the newest one; if "
                "it is lost, delete the latter file, and begin a run in another folder with another seed.",
                key="record-missing",
            )

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """Change the record; after the body the change is on the disk, and the mark beside the folder states it."""
        with self._explained():
            with self._base:
                self._base.execute("BEGIN IMMEDIATE")
                yield self._base
                self._base.execute("UPDATE begun SET number = number + 1")
            if self._mark is not None:
                (begun,) = self.rows("SELECT name, number FROM begun")
                write_mark(self._mark, *begun)

    def rows(self, command: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._explained():
            return self._base.execute(command, values).fetchall()

    def count(self, name: str) -> int:
        """Return how often this name was counted, now included, over all runs and restarts."""
        with self.changing() as base:
            base.execute("INSERT OR IGNORE INTO spent VALUES (?, 0)", (name,))
            base.execute("UPDATE spent SET number = number + 1 WHERE name = ?", (name,))
            ((number,),) = base.execute("SELECT number FROM spent WHERE name = ?", (name,))
        return int(number)

    def released(self, place: bytes) -> bool:
        """Return whether an update with noise of this visit has left, or is recorded to leave."""
        return bool(self.rows("SELECT 1 FROM released WHERE place = ?", place))

    def release(self, place: bytes) -> bool:
        """Record that an update with noise of this visit leaves; return whether none had before."""
        with self.changing() as base:
            return base.execute("INSERT OR IGNORE INTO released VALUES (?)", (place,)).rowcount == 1

    def secret(self, name: str, size: int) -> bytes:
        """Return random bytes of this name, drawn from the operating system at the first call."""
        with self.changing() as base:
            base.execute("INSERT OR IGNORE INTO secrets VALUES (?, ?)", (name, os.urandom(size)))
        ((value,),) = self.rows("SELECT value FROM secrets WHERE name = ?", name)
        return bytes(value)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Convert errors of the database and the disk."""
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:  # ValueError: its tables are damaged
            raise SettingError(
                f"{self.path}: {error}. It and its mark {self._mark} must be writable. Make room on the disk, or put "
                "the file back; without it, this device does not know what it has revealed.",
                key="unwritable",
            ) from error


def of_device(state: Path) -> RevealRecord:
    """Return the record of what a device has revealed, in its state folder, with what earlier versions kept there."""
    path = state / REVEALED
    former = state / FORMER
    key = state / FORMER_KEY
    if former.exists() and not path.exists():
        former.rename(path)
    record = RevealRecord(path)
    if key.exists():
        with record.changing() as base:
            base.execute("INSERT OR IGNORE INTO secrets VALUES ('census', ?)", (regular.read_bytes(key),))
    return record


def mark_of(path: Path) -> Path:
    """Return the path of a record's mark, which is outside its folder.

    >>> mark_of(Path("/srv/state/revealed.sqlite")).as_posix()
    '/srv/state-begun/revealed.sqlite'
    """
    folder = path.absolute().parent
    return folder.with_name(folder.name + MARKS) / path.name


def read_mark(path: Path | None) -> tuple[str, int] | None:
    """Return a mark's name and number of changes; None without a mark.

    Raises:
        SettingError: the file has another content.
    """
    if path is None:
        return None
    with suppress(FileNotFoundError):
        name, _, number = regular.read_bytes(path).decode(errors="replace").strip().partition(" ")
        if not (number.isascii() and number.isdecimal()):
            raise SettingError(f"{path}: not the mark of a record. Put it back from a copy.")
        return name, int(number)
    return None


def write_mark(path: Path, name: str, number: int) -> None:
    """Replace a mark atomically, and wait until it is on the disk."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with part.open("w") as file:
        file.write(f"{name} {number}\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
