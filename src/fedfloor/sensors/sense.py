"""The reading agent: it writes the values reported by a source as rows of a ring buffer."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from fedfloor.base.errors import RunError, SettingError, shown
from fedfloor.sensors import events
from fedfloor.sensors.account import ValueAccount, absent, suggestions
from fedfloor.sensors.buffer import Buffer, Label, held, writing
from fedfloor.sensors.events import Event, Missing, Refusal, Signal, Update
from fedfloor.sensors.folder import whole_rows
from fedfloor.sensors.grid import Row, RowGrid
from fedfloor.sensors.quality import judged
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
    source = judged(settings.source.events(_addresses(settings), stop, position), settings)
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
        return recorder.status(end=True)


def _addresses(settings: SenseSettings) -> list[str]:
    labels = settings.labels
    more = [labels.address] if labels.address else []
    more += [f"{labels.topic}#"] if labels.topic else []
    more += dict.fromkeys(settings.quality.values())
    return [*settings.tags.values(), *more] if settings.tags else []


def _columns(settings: SenseSettings, source: Iterator[Event], first: list[Event]) -> tuple[str, ...]:
    """Return the numeric addresses of the first update, the columns if neither tags nor a buffer determine them."""
    for event in source:
        first.append(event)
        if isinstance(event, Update) and event.values:
            label = settings.labels.address
            names = [name for name, value in event.values.items()
                     if name != label and (value is None or isinstance(events.number(value), float))]  # fmt: skip
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

    def __post_init__(self) -> None:
        settings = self.settings
        newest = self.buffer.newest or (0, -math.inf)
        self.account = ValueAccount(self.columns, [settings.offsets.get(name, 0) for name in self.columns])
        self.stored = RowGrid(
            len(self.columns), settings.period_s, settings.wait_s, settings.gap, settings.hold_s or math.inf, *newest
        )
        self.grid = self.stored.detach()
        self._stored_at = math.inf  # time of the last stored value received
        self._resumed = math.inf  # time of the first row of this connection
        self._addresses = [settings.tags.get(name, name) for name in self.columns]
        self._place = {address: i for i, address in enumerate(self._addresses)}
        self._rows = list[Row]()
        self._labels = list[Label]()
        self._position = ""
        self._written = time.monotonic()
        self._alive = False
        self._later = LabelFile(settings.labels.file) if settings.labels.file else None

    def take(self, event: Event) -> None:
        """Process an event, and write the complete rows."""
        now = time.monotonic()
        self._alive = event is Signal.ALIVE or (self._alive and isinstance(event, Update))
        if isinstance(event, Update):
            self._update(event, now)
        elif isinstance(event, Refusal):
            self.account.refuse(event)
            self._position = event.position or self._position
        elif event is Signal.LOST and self.grid.broken:
            self.grid.forget()
        elif event is Signal.LOST:
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
        self._rows = []
        self._labels = []
        self._position = ""

    def _again(self, rows: Iterator[Row]) -> None:
        """Process rows from before the reconnection."""
        self._rows += [row for row in rows if row.time < self._resumed]

    def status(self, *, end: bool = False) -> dict[str, Any]:
        """Return the number of rows and columns, and the account of the values so far, after a review of it.

        Args:
            end: whether no further values follow.
        """
        newest = self.buffer.newest
        self.account.review(self._addresses, time.monotonic(), end=end)
        return {
            "rows": self.buffer.rows, "columns": len(self.columns), "newest": None if newest is None else newest[1],
            "read": self.counts["rows"], "lost": self.buffer.lost, "alive": self._alive, **self.account.status(),
            **{key: count for key, count in sorted((self.counts + self.grid.counts).items()) if key != "rows"},
        }  # fmt: skip

    def _update(self, update: Update, now: float) -> None:
        """Account for an update's values, and add them to the rows."""
        self._position = update.position or self._position
        self.account.suggest(update.others)
        moment, initial = self._moment(update)
        if moment is None:
            return
        cells, label = self._values(update, now)
        if not cells and label is None:
            return
        if not update.stored:
            self.grid.add(moment, cells, label, now, initial=initial)
            self._stored_at = min(self._stored_at, now)
        elif moment > self.stored.last:
            self._stored_at = now
            self.counts["stored"] += 1
            self.stored.add(moment, cells, label, now)
        else:
            self.grid.counts["late"] += len(cells)

    def _moment(self, update: Update) -> tuple[float | None, bool]:
        """Return the time of an update, None if it is refused, and whether its values yield no row of their own."""
        own = time.time()
        by_arrival = self.settings.clock == "arrival" and not update.stored
        if update.repeated and (by_arrival or math.isnan(update.time)):
            return -math.inf, True  # of unknown age: the held value at most
        moment = own if by_arrival else update.time
        ahead_s = moment - own
        reason = ""
        if math.isnan(moment):
            reason = "no time"
        elif moment < 0 or not math.isfinite(moment):
            reason = "time before 1970"
        elif ahead_s > self.settings.ahead_s:
            reason = "time in the future"
        if reason:
            ahead = "" if math.isnan(ahead_s) else f", {ahead_s:+,.0f} s from now"
            remedy = 'Correct the clock of the source or its field of times, or set clock = "arrival".'
            detail = f"values of {self._shown(update)}{ahead}. {remedy}"
            self.account.refuse(Refusal(reason, "", detail))
            return None, False
        if update.repeated and moment <= self.grid.last:
            self.grid.counts["repeated"] += len(update.values)
            return moment, True
        return moment, update.initial

    def _values(self, update: Update, now: float) -> tuple[dict[int, float], str | None]:
        """Return the values of an update by column, and its label, None if it has none."""
        cells = dict[int, float]()
        label: str | None = None
        for address, value in update.values.items():
            place = self._place.get(address)
            if place is not None:
                cells[place] = self.account.number(place, value, now)
            elif address == self.settings.labels.address:
                label = self.account.label(value)
            elif address == f"{self.settings.labels.topic}#":
                spans = label_of(value)
                self._labels += spans
                self.account.spans(value, len(spans))
            elif isinstance(events.number(value), float):
                text = f"{shown(address)} was not among the first values, which are the sensors. Name it in [tags]."
                self.account.refuse(Refusal("no sensor", address, text))
        return cells, label

    @staticmethod
    def _shown(update: Update) -> str:
        return ", ".join(shown(address, 100) for address in list(update.values)[:3])


def label_of(value: object) -> list[Label]:
    """Return the label of a time span in a message; an empty list if the message is no label.

    >>> label_of({"since": 0, "until": "1970-01-01T00:01:00Z", "label": "worn"}), label_of({"label": "worn"})
    ([(0.0, 60.0, 'worn')], [])
    """
    if not isinstance(value, dict):
        return []
    since, until = (events.seconds(value.get(key)) for key in ("since", "until"))
    text = events.label(value.get("label"))
    if since is None or until is None or until < since or isinstance(text, Missing):
        return []
    return [(since, until, text)]


class LabelFile:
    """A growing CSV file of labels with the columns since, until and label.

    Args:
        path: the path of the file, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._done = 0
        self._checked = -math.inf

    def news(self) -> list[Label]:
        """Return the labels of new rows; the file is read at most once a second.

        Raises:
            SettingError: the file has other columns.
        """
        if time.monotonic() - self._checked < 1 or not self._path.is_file():
            return []
        self._checked = time.monotonic()
        labels = list[Label]()
        for end, cells in whole_rows(self._path, self._done, ","):
            texts = () if isinstance(cells, Missing) else tuple(cells)
            if not self._done and texts != LABELS:
                raise SettingError(
                    f"labels.file {self._path}: columns {', '.join(texts)}; must be {', '.join(LABELS)}."
                )
            if self._done:
                spans = label_of(dict(zip(LABELS, texts, strict=False)))
                labels += spans
                if not spans:
                    log.warning(
                        "%s: left out a row that is not a label with since, until and label: %.200r", self._path, cells
                    )
            self._done = end
        return labels


def check(settings: SenseSettings, seconds: float) -> list[dict[str, Any]]:
    """Connect for a time in seconds; return a row for each sensor with the values received, and a note if it has none.

    Raises:
        SettingError: the connection is refused, or the source lacks an address.
    """
    stop = threading.Event()
    ends = time.monotonic() + seconds
    news = math.inf
    wanted = {address: name for name, address in settings.tags.items()}
    wanted |= {settings.labels.address: "(label)"} if settings.labels.address and wanted else {}
    seen = dict[str, tuple[object, float]]()  # address → its newest value, which may be missing, and its time
    others = dict[str, None]()
    for event in judged(settings.source.events(_addresses(settings), stop, None), settings):
        now = time.monotonic()
        if isinstance(event, Update):
            news = now
            seen |= {address: (value, event.time) for address, value in event.values.items()}
            suggestions(others, event.others)
        elif isinstance(event, Refusal):
            log.warning("left out (%s): %s", event.reason, event.detail)
        if now > ends or (not wanted and now > news + QUIET_S) or (wanted and {*wanted} <= {*seen}):
            break
    stop.set()
    return [_checked(settings, address, wanted, seen, {**others, **seen}) for address in {**wanted, **seen}]


def _checked(
    settings: SenseSettings,
    address: str,
    wanted: dict[str, str],
    seen: dict[str, tuple[object, float]],
    known: Collection[str],
) -> dict[str, Any]:
    """Return the row of ``--check`` for an address."""
    value, moment = seen.get(address, (Missing("no value"), math.nan))
    age_s = round(time.time() - moment, 1)
    usable = events.label(value) if address == settings.labels.address else events.number(value)
    note = ""
    if address not in seen:
        note = absent(address, known).strip()
    elif address in wanted and isinstance(usable, Missing):
        note = f"no {'label' if address == settings.labels.address else 'number'}: {usable.reason}"
    missing = value is None or isinstance(value, Missing)
    plain = isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
    return {
        "sensor": wanted.get(address, ""),
        "address": address,
        "kind": events.kind(value),
        "value": None if missing else value if plain else str(value)[:60],
        "age_s": age_s if math.isfinite(age_s) else None,
        "note": note or None,
    }
