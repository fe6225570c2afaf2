"""Storage of alarms from predicting devices: a log of limited size, and the current report of each device."""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
import os
import queue
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from filelock import FileLock, Timeout

from fedfloor.base import regular
from fedfloor.base.errors import MALFORMED, RunError
from fedfloor.base.ranges import COUNT, RefusedError, number, rows, table, whole
from fedfloor.base.strict import json_text
from fedfloor.deploy import authority
from fedfloor.deploy.checks import MessageFilter, printable
from fedfloor.deploy.kept import BEAT_S, LINES, MOST_BYTES, NOW, OLDER, stamp, words
from fedfloor.deploy.mqtt import Connection, MqttConnection, topic, topic_parts
from fedfloor.deploy.settings import ALARMS, AlarmSettings
from fedfloor.rollout.delivery import Report, read_report

log = logging.getLogger(__name__)
Row = dict[str, Any]
MESSAGE_BYTES = 1 << 14
EVERY_S = 60.0  # shortest interval between two lines of a device and kind; messages in between are counted
WRITE_S = 1.0  # shortest interval between two versions of devices.json
WAITING = 256  # messages in the queue; a full queue blocks a broker's connection
TICK_S = 0.25  # shortest interval between two checks for lines whose minute is over
FLOOD = 6000  # messages of a topic in a minute, after which it is unread for the rest of that minute
MOST_DRIFT = 20
DRIFT_CHARS = 100
FILE_CHARS = 255
FLOAT = 3.5e38  # beyond the range of float32
UNKNOWN: Row = {
    "state": "waiting",
    "version": None,
    "why": "",
    "drift": [],
    "decision": None,
    "since": None,
    "written": None,
}


def read_alarm(payload: bytes) -> Row:
    """Return the checked fields of an alarm: drift, or a model's decision with its class or score.

    Raises:
        RefusedError: the message is not an alarm, or a field is out of range.
    """
    if len(payload) > MESSAGE_BYTES:
        raise RefusedError("oversized", f"an alarm has at most {MESSAGE_BYTES} bytes.")
    try:
        body = table(json.loads(payload), 20, "an alarm")
    except (ValueError, RecursionError) as error:
        raise RefusedError("form", "it is not JSON.") from error
    made: Row = {
        "kind": "drift" if "drift" in body else "decision", "version": whole(body.get("version"), 1, COUNT, "version"),
        "file": _text(body.get("file"), FILE_CHARS, "file"),
        "rows": [whole(row, 1, COUNT, "a row") for row in rows(body.get("rows"), 2, "rows")],
    }  # fmt: skip
    if "drift" in body:
        return made | {"drift": _drift(rows(body["drift"], None, "drift"))}
    if body.get("alarm") is not True:
        raise RefusedError("form", "it has neither drift nor an alarm.")
    if "class" in body:
        chance = number(body.get("probability"), 0.0, 1.0, "probability")
        return made | {"class": _text(body["class"], FILE_CHARS, "class"), "probability": chance}
    score = body.get("score")
    return made | {"score": None if score is None else number(score, -FLOAT, FLOAT, "score")}


def _text(value: object, most: int, noun: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise RefusedError("range", f"{noun} is not a text of 1 to {most} characters.")
    return printable(value)


def _drift(texts: list[Any]) -> list[str]:
    """Return the drifting quantities as reports hold them: the first 20, each cut to 100 characters."""
    if not all(isinstance(text, str) for text in texts):
        raise RefusedError("range", "drift is not a list of texts.")
    return [printable(text[:DRIFT_CHARS])[:DRIFT_CHARS] for text in texts[:MOST_DRIFT]]


@dataclass
class _Turn:
    """The state of a device's alarms of one kind: the time of the last line, and the newest message since."""

    written_s: float = -math.inf
    held: Row | None = None
    count: int = 0


class AlarmKeeper:
    """A writer of the alarms of a park's devices to files in a folder.

    ``alarms.jsonl`` receives at most one line a minute for each device and kind: the newest alarm, with the number of
    messages in that minute. ``devices.json`` holds the current report of each device.

    Args:
        told: called with each written line.
        clock: returns the time in s; only differences are used.
        now: returns the date and time.
    """

    def __init__(
        self, settings: AlarmSettings, told: Callable[[Row], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic, now: Callable[[], dt.datetime] = authority.now,
    ) -> None:  # fmt: skip
        settings.state.mkdir(parents=True, exist_ok=True)
        self.settings = settings
        self._told = told
        self._clock = clock
        self._now = now
        self._filter = MessageFilter()
        self._turns = dict[tuple[str, str], _Turn]()
        self._decided: dict[str, float] = {}  # device → time of its model's last alarm
        before = _restored(settings.state / NOW)
        self.devices: dict[str, Row] = {
            device: {"device": device, "factory": one.name, **UNKNOWN, **before.get(device, {})}
            for one in settings.factories for device in one.devices
        }  # fmt: skip
        self._known: Row = {}
        self._written_s = -math.inf

    def take(self, factory: str, topic: str, payload: bytes) -> None:
        """Process a message from a factory's broker; count and log one that is neither a report nor an alarm."""
        kind, names = topic_parts(topic)
        row = self.devices.get(names[0]) if len(names) == 1 else None
        if row is None or row["factory"] != factory or not payload:
            return
        try:
            if kind == "serving":
                self._report(row, payload)
            elif kind == "alarms":
                self._alarm(row, read_alarm(payload))
        except RefusedError as error:
            self._filter.refuse(row["device"], error)

    def _report(self, row: Row, payload: bytes) -> None:
        report = read_report(payload)
        if report is None:
            raise RefusedError("form", "it is not a report.")
        change: Row = {"state": report.state, "why": printable(report.why)}
        if report.state != "gone":  # the last will of a device holds no further fields
            change |= {"version": report.version, "drift": _drift(list(report.drift)), "written": report.rows}
            self._missed(row, report, change["drift"])
        self._change(row, change)

    def _missed(self, row: Row, report: Report, drift: list[str]) -> None:
        """Record a begin or end of drift whose message was sent while this process was not connected."""
        if drift != row["drift"]:
            about = {"kind": "drift", "version": report.version, "file": None, "rows": None, "drift": drift}
            self._line(row, about)

    def _alarm(self, row: Row, alarm: Row) -> None:
        self._line(row, alarm)
        if alarm["kind"] == "drift":
            self._change(row, {"drift": alarm["drift"]})
        else:
            self._decided[row["device"]] = self._clock()
            self._change(row, {"decision": words(alarm)})

    def _change(self, row: Row, change: Row) -> None:
        before = _standing(row)
        row |= change
        if _standing(row) != before:
            row["since"] = stamp(self._now())

    def _line(self, row: Row, alarm: Row) -> None:
        turn = self._turns.setdefault((row["device"], alarm["kind"]), _Turn())
        turn.count += 1
        turn.held = {"at": stamp(self._now()), "factory": row["factory"], "device": row["device"], **alarm}
        if self._clock() - turn.written_s >= EVERY_S:
            self._write(turn)

    def _write(self, turn: _Turn) -> None:
        if turn.held is None:
            return
        line = turn.held | {"messages": turn.count}
        append(self.settings.state, line)
        turn.held = None
        turn.count = 0
        turn.written_s = self._clock()
        self._told(line)

    def tick(self, reached: Mapping[str, bool], *, last: bool = False) -> None:
        """Write the lines whose minute is over, and the current reports of devices.

        Args:
            reached: factory → whether its broker is connected.
            last: whether this is the last call, which writes all lines.
        """
        now = self._clock()
        for turn in self._turns.values():
            if last or now - turn.written_s >= EVERY_S:
                self._write(turn)
        for device, at in list(self._decided.items()):
            if now - at >= EVERY_S:
                del self._decided[device]
        for row in self.devices.values():
            if row["decision"] and row["device"] not in self._decided:
                self._change(row, {"decision": None})
        factories = [{"factory": one.name, "broker": str(one.broker), "reached": reached.get(one.name, False)}
                     for one in self.settings.factories]  # fmt: skip
        known = {"park": self.settings.park, "factories": factories, "devices": [*map(dict, self.devices.values())]}
        late_s = now - self._written_s
        if last or late_s >= BEAT_S or (late_s >= WRITE_S and known != self._known):
            _replace(self.settings.state / NOW, known | {"at": stamp(self._now())})
            self._known = known
            self._written_s = now


def _standing(row: Row) -> Row:
    """Return the state whose begin is ``since``: further alarms of a model and further rows do not change it."""
    return row | {"decision": bool(row["decision"]), "since": None, "written": None}


def append(state: Path, line: Row) -> None:
    """Append a line to the log; a full file first replaces the older one."""
    path = state / LINES
    data = json_text(line, ensure_ascii=False).encode() + b"\n"
    if path.exists() and path.stat().st_size + len(data) > MOST_BYTES:
        os.replace(path, state / OLDER)
    with regular.opened(path, "a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            data = data if file.read() == b"\n" else b"\n" + data  # a process was killed while it wrote a line
        file.write(data)


def _replace(path: Path, body: Row) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(json_text(body), encoding="utf-8")
    os.replace(part, path)


def _restored(path: Path) -> dict[str, Row]:
    """Return the reports of devices before a restart: device → row; empty if the file is damaged."""
    try:
        known = json.loads(regular.read_bytes(path))["devices"]
        return {str(row["device"]): {name: row[name] for name in UNKNOWN} for row in known}
    except (OSError, *MALFORMED):
        return {}


class FloodGate:
    """A rate limit that unsubscribes from flooded topics, which would make the broker drop other devices' messages.

    Args:
        links: factory → its connection.
        clock: returns the time in s; only differences are used.
    """

    def __init__(self, links: Mapping[str, Connection], clock: Callable[[], float] = time.monotonic) -> None:
        self._links = links
        self._clock = clock
        self._began = clock()
        self._counts = Counter[tuple[str, str]]()

    def count(self, factory: str, topic: str) -> None:
        """Count a message; unsubscribe from its topic if there were too many within the minute."""
        self._counts[factory, topic] += 1
        if self._counts[factory, topic] == FLOOD:
            log.warning("%s: %d messages within a minute; further messages in this minute are not read.", topic, FLOOD)
            self._links[factory].unsubscribe([topic])

    def tick(self) -> None:
        """Subscribe to all topics again after each minute."""
        if self._clock() - self._began < EVERY_S:
            return
        for (factory, place), count in self._counts.items():
            if count >= FLOOD:
                self._links[factory].subscribe([place])
        self._counts.clear()
        self._began = self._clock()


def follow(settings: AlarmSettings, ended: Event, told: Callable[[Row], object] = lambda _: None) -> None:
    """Store the alarms of a park until ``ended`` is set; connections to brokers are retried.

    Raises:
        SettingError: the certificate or the key is not usable.
        RunError: another process stores the alarms already.
    """
    authority.check(settings.tls, ALARMS)
    keeper = AlarmKeeper(settings, told)
    waiting: queue.Queue[tuple[str, str, bytes]] = queue.Queue(WAITING)
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(settings.state / ".lock", timeout=0))
        except Timeout:
            raise RunError(f"another process keeps the alarms in {settings.state} already: end it first.") from None
        links = {one.name: MqttConnection(ALARMS, one.broker, settings.tls) for one in settings.factories}
        gate = FloodGate(links)
        ticked_s = -math.inf
        for one in settings.factories:
            topics = [topic(settings.park, kind, device) for kind in ("serving", "alarms") for device in one.devices]
            links[one.name].start(topics, receiver(waiting, one.name, frozenset(topics), ended), lambda: None)
            stack.callback(links[one.name].stop)
        while not ended.is_set():
            with _full_disk(settings.state, ended):
                with suppress(queue.Empty):
                    factory, place, payload = waiting.get(timeout=TICK_S)
                    gate.count(factory, place)
                    keeper.take(factory, place, payload)
                if time.monotonic() - ticked_s >= TICK_S:
                    ticked_s = time.monotonic()
                    gate.tick()
                    keeper.tick({name: link.connected for name, link in links.items()})
        with _full_disk(settings.state, ended):
            while not waiting.empty():
                keeper.take(*waiting.get_nowait())
            keeper.tick({}, last=True)


@contextmanager
def _full_disk(state: Path, ended: Event) -> Iterator[None]:
    """Log a disk error and wait before the next attempt; lines and messages are kept meanwhile."""
    try:
        yield
    except OSError as error:
        log.error("nothing can be written in %s: %s", state, error.strerror or error)
        ended.wait(BEAT_S)


def receiver(
    waiting: queue.Queue[tuple[str, str, bytes]], factory: str, topics: Collection[str], ended: Event
) -> Callable[[str, bytes], None]:
    """Return a handler that queues messages of a factory's broker, and truncates those that are too long."""

    def heard(topic: str, payload: bytes) -> None:
        if topic in topics and not ended.is_set():
            waiting.put((factory, topic, payload[: MESSAGE_BYTES + 1]))

    return heard
