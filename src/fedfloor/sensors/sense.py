"""The reading agent: it writes the values reported by a source as rows of a ring buffer."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from fedfloor.errors import RunError, SettingError
from fedfloor.sensors import events
from fedfloor.sensors.buffer import Buffer, Label, held, writing
from fedfloor.sensors.events import Event, Signal, Update, warn_once
from fedfloor.sensors.folder import whole_rows
from fedfloor.sensors.grid import Row, RowGrid
from fedfloor.sensors.settings import SenseSettings

log = logging.getLogger(__name__)

BLOCK = 2_000  # rows written at a time
WRITE_S = 0.5  # between two writes
LABELS = ("since", "until", "label")
QUIET_S = 2.0  # time without updates that ends a check
STORED_S = 10.0  # time after a stored value until a source's stored values count as complete
Report = Callable[[dict[str, Any]], None]


def run(
    settings: SenseSettings, into: Path, stop: threading.Event, report: Report, every_s: float = 10.0
) -> dict[str, Any]:
    """Fill a buffer until ``stop`` is set; return the last status.

    Args:
        report: called with the status every ``every_s`` seconds.

    Raises:
        SettingError: the source lacks an address, or the buffer has other sensors.
        RunError: another process writes to the buffer.
    """
    known, position = held(into)
    source = settings.source.events(_addresses(settings), stop, position)
    first: list[Event] = []
    columns = tuple(settings.tags) or known or _columns(settings, source, first)
    with writing(into, columns, settings.buffer.max_mb, settings.buffer.max_age_h, settings.gap) as buffer:
        recorder = Recorder(settings, buffer, columns)
        shown = time.monotonic()
        for event in chain(first, source):
            recorder.take(event)
            if time.monotonic() - shown >= every_s:
                shown = time.monotonic()
                report(recorder.status())
        recorder.flush(end=True)
        return recorder.status()


def _addresses(settings: SenseSettings) -> list[str]:
    labels = settings.labels
    more = [labels.address] if labels.address else []
    more += [f"{labels.topic}#"] if labels.topic else []
    return [*settings.tags.values(), *more] if settings.tags else []


def _columns(settings: SenseSettings, source: Iterator[Event], first: list[Event]) -> tuple[str, ...]:
    """Return the numeric addresses of the first update, the columns if neither tags nor a buffer determine them."""
    for event in source:
        first.append(event)
        if isinstance(event, Update) and event.values:
            label = settings.labels.address
            names = [name for name, value in event.values.items()
                     if name != label and events.number(value) is not None]  # fmt: skip
            if names:
                return tuple(names)
    raise RunError("the source sent no value, therefore no buffer was written. --check shows its reports.")


@dataclass
class Recorder:
    """The conversion of events to rows, which it writes to a buffer."""

    settings: SenseSettings
    buffer: Buffer
    columns: Sequence[str]
    counts: Counter[str] = field(default_factory=Counter)
    alerts: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        settings, newest = self.settings, self.buffer.newest or (0, -math.inf)
        self.stored = RowGrid(
            len(self.columns), settings.period_s, settings.wait_s, settings.gap, settings.hold_s or math.inf, *newest
        )
        self.grid = self.stored.detach()
        self._stored_at = math.inf  # time of the last stored value received
        self._resumed = math.inf  # time of the first row of this connection
        self._place = {settings.tags.get(name, name): i for i, name in enumerate(self.columns)}
        self._rows, self._labels, self._position = list[Row](), list[Label](), ""
        self._written, self._alive = time.monotonic(), False
        self._later = LabelFile(settings.labels.file) if settings.labels.file else None

    def take(self, event: Event) -> None:
        """Process an event, and write the complete rows."""
        now = time.monotonic()
        self._alive = event is Signal.ALIVE or (self._alive and isinstance(event, Update))
        if isinstance(event, Update):
            self._update(event, now)
        elif event is Signal.LOST and not self.grid.broken:
            self._again(self.stored.rows(now, end=True))
            self.stored, self.grid = self.grid, self.grid.detach()
            self._stored_at = self._resumed = math.inf
            self.counts["connection lost"] += 1
        waited = now if isinstance(event, Signal) else -math.inf  # waiting updates are never late
        for row in self.grid.rows(waited, alive=self._alive):
            self._resumed = min(self._resumed, row.time)
            self._rows.append(row)
        if math.isfinite(self._stored_at):
            self._again(self.stored.rows(waited, end=waited - self._stored_at >= STORED_S))
        if len(self._rows) >= BLOCK or now - self._written >= WRITE_S:
            self.flush()

    def flush(self, *, end: bool = False) -> None:
        """Write the complete rows; with ``end``, also rows that wait for further values."""
        now = self._written = time.monotonic()
        if end:
            self._again(self.stored.rows(now, end=True))
            self._rows += self.grid.rows(now, end=True)
        later = self._later.news() if self._later is not None else []
        self.counts["rows"] += len(self._rows)
        self.buffer.write(self._rows, [*self._labels, *later], self._position or None)
        self._rows, self._labels, self._position = [], [], ""

    def _again(self, rows: Iterator[Row]) -> None:
        """Process rows from before the reconnection."""
        self._rows += [row for row in rows if row.time < self._resumed]

    def status(self) -> dict[str, Any]:
        """Return the number of rows, columns and losses so far."""
        newest = self.buffer.newest
        return {
            "rows": self.buffer.rows, "columns": len(self.columns), "newest": None if newest is None else newest[1],
            "read": self.counts["rows"], "lost": self.buffer.lost, "alive": self._alive,
            **{key: count for key, count in sorted((self.counts + self.grid.counts).items()) if key != "rows"},
        }  # fmt: skip

    def _update(self, update: Update, now: float) -> None:
        own = time.time()
        moment = own if self.settings.clock == "arrival" and not update.stored else update.time
        if not math.isfinite(moment) or moment < 0 or moment > own + self.settings.ahead_s:
            self.counts["refused times"] += 1
            text = (
                "left out a value without a time, before 1970 or in the future (%.0f s ahead of this machine), and "
                'will leave out others. Correct the clock of the source, or set clock = "arrival".'
            )
            warn_once(self.alerts, "clock", text, moment - own)
            return
        cells, label = {}, ""
        for address, value in update.values.items():
            place = self._place.get(address)
            if place is not None:
                cells[place] = self._number(address, value)
            elif address == self.settings.labels.address:
                label = events.label(value)
            elif address == f"{self.settings.labels.topic}#":
                self._labels += label_of(value)
        self._position = update.position or self._position
        if not cells and not label:
            return
        if not update.stored:
            self.grid.add(moment, cells, label, now, initial=update.initial)
            self._stored_at = min(self._stored_at, now)
        elif moment > self.stored.last:
            self._stored_at = now
            self.counts["stored"] += 1
            self.stored.add(moment, cells, label, now)

    def _number(self, address: str, value: object) -> float:
        number = events.number(value)
        if number is None:
            self.counts["no numbers"] += 1
            kind = type(value).__name__
            text = "'%s' is %s and no number: it counts as missing."
            warn_once(self.alerts, f"{address} {kind}", text, address, kind)
            return math.nan
        if math.isnan(number):
            self.counts["missing"] += 1
        return number


def label_of(value: object) -> list[Label]:
    """Return the label of a time span in a message; an empty list if the message is no label.

    >>> label_of({"since": 0, "until": "1970-01-01T00:01:00Z", "label": "worn"}), label_of({"label": "worn"})
    ([(0.0, 60.0, 'worn')], [])
    """
    if not isinstance(value, dict):
        return []
    since, until = (events.seconds(value.get(key)) for key in ("since", "until"))
    text = events.label(value.get("label"))
    if since is None or until is None or until < since or not text:
        log.warning("left out a label without since, until or label, or with until before since: %.200r", value)
        return []
    return [(since, until, text)]


class LabelFile:
    """A growing CSV file of labels with the columns since, until and label.

    Args:
        path: the path of the file, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._done, self._checked = path, 0, -math.inf

    def news(self) -> list[Label]:
        """Return the labels of new rows; the file is read at most once a second.

        Raises:
            SettingError: the file has other columns.
        """
        if time.monotonic() - self._checked < 1 or not self._path.is_file():
            return []
        self._checked, labels = time.monotonic(), list[Label]()
        for end, cells in whole_rows(self._path, self._done, ","):
            if self._done:
                labels += label_of(dict(zip(LABELS, cells, strict=False)))
            elif tuple(cells) != LABELS:
                raise SettingError(
                    f"labels.file {self._path}: columns {', '.join(cells)}; must be {', '.join(LABELS)}."
                )
            self._done = end
        return labels


def check(settings: SenseSettings, seconds: float) -> list[dict[str, Any]]:
    """Connect for a time in seconds; return a row for each sensor with the values received.

    Raises:
        SettingError: the connection is refused, or the source lacks an address.
    """
    stop, ends, news = threading.Event(), time.monotonic() + seconds, math.inf
    wanted = {address: name for name, address in settings.tags.items()}
    wanted |= {settings.labels.address: "(label)"} if settings.labels.address and wanted else {}
    seen: dict[str, dict[str, Any]] = {}
    for event in settings.source.events(_addresses(settings), stop, None):
        now = time.monotonic()
        if isinstance(event, Update):
            news = now
            for address, value in event.values.items():
                row = seen.setdefault(address, {"updates": 0})
                row |= {"value": value, "time": event.time, "updates": row["updates"] + 1}
        if now > ends or now > news + QUIET_S or (wanted and {*wanted} <= {*seen}):
            break
    stop.set()
    rows = []
    for address in {**wanted, **seen}:
        row = seen.get(address, {"value": None, "time": math.nan, "updates": 0})
        value, age_s = row["value"], round(time.time() - row["time"], 1)
        kind = "number" if events.number(value) is not None else type(value).__name__
        rows.append({
            "sensor": wanted.get(address, ""), "address": address, "kind": kind if row["updates"] else "no value",
            "value": value if isinstance(value, bool | int | float | None) else str(value)[:60],
            "age_s": age_s if math.isfinite(age_s) else None,
        })  # fmt: skip
    return rows
