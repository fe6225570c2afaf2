"""Models in use and alarms of a park's devices, from the files of the process that keeps alarms."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Container
from pathlib import Path
from typing import Any

from fedfloor.deploy import kept
from fedfloor.watch.files import Tail, short

Row = dict[str, Any]
MOST_SERVED = 1000  # most listed devices, those in alarm first
MOST_ALARMS = 100  # most listed lines
TAIL_BYTES = 100_000  # bytes read from the end of the lines
STALE_S = 4 * kept.BEAT_S  # age of devices.json from which the process counts as stopped


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
            with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
                self._lines.append(_line(json.loads(text)))
        serving = {**self._known, "kept": fresh, "last": None if fresh else at or None}
        return {"serving": serving, "alarms": list(reversed(self._lines))}

    def _read(self, path: Path) -> float:
        """Read new reports of the devices; return the time of writing in s since 1970, or 0 without a file."""
        try:
            status = os.stat(path)
            stamp = (status.st_ino, status.st_mtime_ns)
            if stamp != self._stamp:
                self._known = _known(json.loads(path.read_bytes()))
                self._stamp = stamp
        except (OSError, ValueError, TypeError, KeyError, RecursionError, AttributeError):
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
    drift, decision = [*map(short, row["drift"])], [short(row["decision"])] if row["decision"] else []
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
