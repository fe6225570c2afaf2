"""Readers of files that grow or are replaced meanwhile: of a run, and of the process that keeps a park's alarms."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfloor.base import regular
from fedfloor.base.errors import MALFORMED
from fedfloor.base.strict import printable
from fedfloor.deploy import kept
from fedfloor.report.records import LineRecord

CHUNK = 4_000_000  # bytes read at once; a longer line is skipped
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
CHARS = 400  # characters of a displayed line or reason
Row = dict[str, Any]
MOST_SERVED = 1000  # most listed devices, those in alarm first
MOST_ALARMS = 100  # most listed lines
TAIL_BYTES = 100_000  # bytes read from the end of the lines
STALE_S = 4 * kept.BEAT_S  # age of devices.json from which the process counts as stopped


def short(text: object) -> str:
    r"""Return a received text as one line without control characters, truncated for display.

    >>> short("\x1b[31mno\x1b[0m\nway\x07")
    'no way\\x07'
    """
    line = " ".join(ANSI.sub("", str(text)[: 4 * CHARS]).split())
    return printable(line if len(line) <= CHARS else f"{line[:CHARS]}…")


@dataclass(frozen=True)
class WatchedLine(LineRecord):
    """A ledger line with the digest of its plan."""

    plan_hash: str = ""


class Tail:
    """A reader of the new complete lines of a growing file, from its beginning or its last ``kept`` bytes on."""

    def __init__(self, path: Path, kept: int | None = None) -> None:
        self.path = path
        self._kept = kept
        self._place = 0  # offset
        self._seen = (0, 0, 0)  # inode, size and time at the last check

    def read(self) -> tuple[bool, list[bytes]]:
        """Return whether the file is read from its beginning (first call or truncated file), and the new lines."""
        try:
            status = os.stat(self.path)
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
            if seen == self._seen:
                return False, []
            anew = not self._place or seen[0] != self._seen[0] or seen[1] <= self._place
            start = 0 if anew else self._place
            if self._kept is not None:
                start = max(start, seen[1] - self._kept)
            with regular.opened(self.path) as file:
                file.seek(start)
                data = file.read(CHUNK)
        except OSError:
            gone = self._place > 0
            self._place = 0
            self._seen = (0, 0, 0)
            return gone, []
        end = data.rfind(b"\n") + 1
        if end == 0 and len(data) == CHUNK:
            end = len(data)
        self._place = start + end
        self._seen = seen if start + len(data) >= seen[1] else (seen[0], 0, 0)  # otherwise the rest is read next time
        return anew, data[:end].splitlines()


def newest(folder: Path) -> Path | None:
    """Return the newest checkpoint of a run; None before the first."""
    with contextlib.suppress(OSError):
        return max((place for place in folder.iterdir() if place.name.startswith("round-")), default=None)
    return None


@dataclass
class Visits:
    """A device's visits in a round: their number, the lost ones, the last loss and accuracy, and the total seconds."""

    visits: int = 0
    lost: int = 0
    loss: float | None = None
    accuracy: float | None = None
    seconds: float = 0.0
    refused: str = ""


def by_device(receipts: Iterable[Any]) -> dict[int, Visits]:
    """Return device → visits from a checkpoint's receipts.

    Raises:
        ValueError, TypeError, IndexError: the receipts are damaged.
    """
    devices: dict[int, Visits] = {}
    for row in receipts:
        device = devices.setdefault(int(row[0]), Visits())
        device.visits += 1
        device.seconds += finite(row[11]) or 0.0
        if row[9]:
            device.lost += 1
            device.refused = short(row[13]) if len(row) > 13 and row[13] else device.refused
        else:
            device.loss = finite(row[6])
            device.accuracy = finite(row[7])
    return devices


def finite(value: Any) -> float | None:
    """Return a finite number, or None for any other value."""
    return float(value) if isinstance(value, int | float) and abs(value) <= sys.float_info.max else None


class Served:
    """The files of the process that keeps a park's alarms, if the park has one.

    Args:
        folder: the park's folder; see :func:`fedfloor.deploy.kept.find`.

    Raises:
        SettingError: the settings of that process cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._state = None if kept.find(folder) is None else kept.read(folder).state
        self._tail = Tail((self._state or folder) / kept.LINES, TAIL_BYTES)
        self._stamp: tuple[int, int] | None = None
        self._known: Row = {}
        self._lines: deque[Row] = deque(maxlen=MOST_ALARMS)

    def __bool__(self) -> bool:
        return self._state is not None

    def sections(self) -> Row:
        """Return the current content of the files, ``serving`` and ``alarms``; empty if no alarms are kept."""
        if self._state is None:
            return {}
        at = self._read(self._state / kept.NOW)
        fresh = time.time() - at < STALE_S
        for text in self._tail.read()[1][-MOST_ALARMS:]:
            with contextlib.suppress(*MALFORMED):
                self._lines.append(_line(json.loads(text)))
        serving = {**self._known, "kept": fresh, "last": None if fresh else at or None}
        return {"serving": serving, "alarms": list(reversed(self._lines))}

    def _read(self, path: Path) -> float:
        """Read new reports of the devices; return the time of writing in s since 1970, or 0 without a file."""
        try:
            status = os.stat(path)
            stamp = (status.st_ino, status.st_mtime_ns)
            if stamp != self._stamp:
                self._known = _known(json.loads(regular.read_bytes(path)))
                self._stamp = stamp
        except (OSError, *MALFORMED):
            return 0.0
        return status.st_mtime


def _known(body: Row) -> Row:
    factories: list[Row] = [
        {"factory": short(row["factory"]), "broker": short(row["broker"]), "reached": bool(row["reached"])}
        for row in body["factories"]
    ]
    reached = {row["factory"] for row in factories if row["reached"]}
    devices = [_device(row, reached) for row in body["devices"]]
    alarming = sum(row["alarms"] > 0 for row in devices)
    devices.sort(key=lambda row: not row["alarms"])
    about = {"park": short(body["park"]), "total": len(devices), "alarming": alarming}
    return about | {"factories": factories, "devices": devices[:MOST_SERVED]}


def _device(row: Row, reached: Container[str]) -> Row:
    """Return a device's row; ``alarms`` is the number of its drifting sensors, plus one for its model's alarm.

    Args:
        reached: factories with a connected broker; for others the last known state is shown.
    """
    drift = [*map(short, row["drift"])]
    decision = [short(row["decision"])] if row["decision"] else []
    alarm = short("; ".join([*([f"drift: {', '.join(drift)}"] if drift else []), *decision]))
    version = None if row["version"] is None else int(row["version"])
    texts = {name: short(row[name] or "") for name in ("device", "factory", "state", "why", "since")}
    texts["state"] = texts["state"] if texts["factory"] in reached else "unreachable"
    return {**texts, "version": version, "alarms": len(drift) + len(decision), "alarm": alarm}


def _line(row: Row) -> Row:
    rows = "–".join(map(str, dict.fromkeys(row["rows"] or ())))
    place = "" if row["file"] is None else f"{row['file']}, row {rows}"
    texts = {name: row[name] for name in ("at", "device", "factory")} | {"alarm": kept.words(row), "place": place}
    return {name: short(text) for name, text in texts.items()} | {"messages": int(row["messages"])}
