"""Automatic training: the ``[schedule]`` of ``cloud.toml``, its log, and the release of the trained models.

The log, ``run-schedule.jsonl`` beside the run's folder ``run``, is the whole state of a schedule. Its lines, each with
``at``, UTC:

===========  ===========================================================================================
``began``    the schedule was first used
``seen``     devices whose sensors are counted from now on, with their ``rows`` so far
``started``  run ``number``, and ``why``; ``rows`` and the devices in ``drift`` at that time
``ended``    run ``number`` with exit ``code``; ``result``: released, announced, or the reason why not; with
                          ``epsilon`` of all runs so far if the experiment is private
             ``calm``     devices that drifted at the start of the last run, and no longer do
             ``withheld``  no run is started, as ``epsilon`` with one more run would exceed that of the settings
             ``missed``   the time of day in ``at`` passed while no run could be started
             ``clock``    the machine's clock was set forward by ``by_s`` seconds: earlier times are shifted by it
===========  ===========================================================================================
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import glob
import hashlib
import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

from fedfloor import config
from fedfloor.base import regular
from fedfloor.base.checking import below
from fedfloor.base.errors import MALFORMED, FedfloorError, RunError, SettingError, disk_error, unknown
from fedfloor.base.strict import json_text
from fedfloor.deploy import kept, machines, processes, settings
from fedfloor.deploy.checks import printable
from fedfloor.deploy.settings import CloudSettings, Schedule, span_s
from fedfloor.rollout import delivery, gate, registry
from fedfloor.rollout.registry import Registry
from fedfloor.runs import privacy
from fedfloor.runs.folder import owned, write
from fedfloor.runs.keeping import keeping

log = logging.getLogger(__name__)
Line = Mapping[str, Any]
STALE_S = 60.0  # age of a file of devices' reports that is out of date; it is written every few seconds
RELEASED_S = 30.0  # wait for devices' reports on a release
STEP_S = 0.2
LATE_S = 3600.0  # longest delay of a run after the time of day in ``at``
JUMP_S = 60.0  # difference to a monotonic clock that counts as a set clock; a time server makes smaller ones
INTERRUPTED = 130


@dataclass(frozen=True)
class Sight:
    """The last reports of devices, as stored by ``fedfloor model alarms --follow``.

    Args:
        rows: device → number of rows in its sensor buffer so far.
        drift: device → whether it reports drift.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    drift: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Past:
    """The state of a schedule according to its log.

    Args:
        since: start of the last run or of the schedule, seconds since 1970 by the current clock.
        day: the last day whose ``at`` needs no further run, in ISO 8601 format.
        number: number of the last run.
        run: folder of the last run if it has not ended; otherwise "".
        rows, drift: devices' rows, and the drifting devices, at its start; devices that are calm since are left out.
        withheld: whether the next run is withheld because of the budget of ε.
    """

    since: float
    day: str
    number: int = 0
    run: str = ""
    rows: Mapping[str, int] = field(default_factory=dict)
    drift: frozenset[str] = frozenset()
    withheld: bool = False

    def after(self, line: Line) -> Past:
        """Return the state after one more line of the log."""
        event = line["event"]
        since = dt.datetime.fromisoformat(line["at"]).timestamp()
        past = replace(self, day=line.get("day", self.day))
        if event == "clock":
            return replace(past, since=self.since + line["by_s"])
        if event == "calm":
            return replace(past, drift=self.drift - {*line["devices"]})
        if event == "ended":
            return replace(past, run="")
        if event == "withheld":
            return replace(past, withheld=True)
        if event == "started":
            past = replace(past, withheld=False, number=line["number"], run=line["run"], drift=frozenset(line["drift"]))
        if event in ("seen", "started"):
            past = replace(past, rows={**self.rows, **line["rows"]})
        return replace(past, since=since) if event in ("began", "started") else past


def reasons(schedule: Schedule, past: Past, now: dt.datetime, sight: Sight, stride: int) -> list[dict[str, Any]]:
    """Return a row for each condition of a schedule: its progress, and whether a run is due.

    Args:
        now: the current time with its time zone.
        stride: rows of a buffer per new window.
    """
    rows = list[dict[str, Any]]()
    waited = now.timestamp() - past.since
    rested = waited >= span_s(schedule.pause, "pause")
    if schedule.every is not None:
        needed = span_s(schedule.every, "every")
        rows.append(_row("every", f"{max(0.0, waited):.0f} s", schedule.every, due=waited >= needed))
    if schedule.time is not None:
        today = now.date().isoformat()
        due = past.day < today and 0 <= _late_s(schedule.time, now) < LATE_S
        rows.append(_row("at", now.strftime("%H:%M"), schedule.at, due=due))
    if schedule.windows is not None:
        count = sum(_new(written, past.rows[name]) // stride for name, written in sight.rows.items())
        rows.append(_row("windows", count, schedule.windows, due=rested and count >= schedule.windows))
    if schedule.drift is not None:
        drifting = {name for name, drifts in sight.drift.items() if drifts} - past.drift
        rows.append(_row("drift", len(drifting), schedule.drift, due=rested and len(drifting) >= schedule.drift))
        rows[-1]["devices"] = ", ".join(sorted(drifting)) or None
    return rows


def _missed(schedule: Schedule, past: Past, now: dt.datetime) -> bool:
    """Return whether the time of day in ``at`` passed today without a run."""
    at = schedule.time
    return at is not None and past.day < now.date().isoformat() and _late_s(at, now) >= LATE_S


def _row(reason: str, there: object, needed: object, *, due: bool) -> dict[str, Any]:
    return {"reason": reason, "there": there, "needed": needed, "due": due}


def _new(written: int, before: int) -> int:
    """Return the number of new rows; all rows if the buffer was recreated."""
    return written - before if written >= before else written


def _late_s(at: dt.time, now: dt.datetime) -> float:
    """Return the seconds since a time of day by the local clock; negative before it."""
    return (now.replace(tzinfo=None) - dt.datetime.combine(now.date(), at)).total_seconds()


@dataclass(frozen=True)
class Clock:
    """The machine's clock with its time zone, and its monotonic clock in s, of which only differences are used."""

    wall: Callable[[], dt.datetime] = lambda: dt.datetime.now().astimezone()
    steady: Callable[[], float] = lambda: time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Scheduler:
    """The process that starts runs according to a schedule.

    Args:
        file: settings file of the cloud.
        place: the folder that ``fedfloor park provision`` wrote, with the authority; None without it.
        alarms: the folder of stored alarms; default: ``place``.
        say: called with each line of output.

    Raises:
        SettingError: there is no ``[schedule]``, or a key of it needs the authority, the alarms or an unknown device.
    """

    def __init__(
        self, file: Path, place: Path | None = None, alarms: Path | None = None,
        say: Callable[[str], None] = lambda _: None, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings.read(CloudSettings, file)
        self._place = place
        self._say = say
        self._clock = clock or Clock()
        given = self.settings.schedule
        if given is None:
            raise SettingError(
                f'{file}: has no [schedule], such as [schedule] every = "24h". Write it into the park file, and '
                "provision the park again.",
                key="schedule",
            )
        if self.settings.transport == "flower":
            raise SettingError("transport = 'flower': Flower starts the cloud's loop; a schedule needs 'mqtt'.")
        self.schedule = given
        self._keeps = given.what == "thresholds"
        if self._keeps and place is None:
            raise SettingError(
                '[schedule] what = "thresholds" finds those of the released model again: give --park DIR, the folder '
                "with the park's authority.",
                key="schedule.what",
            )
        kept_in = alarms or place
        if place is None and given.release:
            raise SettingError("[schedule] release needs the park's authority: give --park DIR.")
        if place is not None and given.canary:
            known = registry.read(place).devices
            for name in [one for one in given.canary if one not in known]:
                raise unknown("device in schedule.canary", name, known)
        self._reports: Path | None = None
        if given.reports:
            if kept_in is None:
                raise SettingError("[schedule] windows and drift need the folder of stored alarms: give --alarms DIR.")
            self._reports = kept.read(kept_in).state / kept.NOW
        self._experiment = config.read(Path(self.settings.experiment), [])
        window = self._experiment.data.window
        self._stride = 1 if window is None else window.stride
        self.path = self.settings.out.with_name(f"{self.settings.out.name}-schedule.jsonl")
        self.lines = list[Line]()  # lines written by this process
        if given.epsilon is not None and not privacy.planned(self._experiment, ()):
            raise SettingError("[schedule] epsilon limits the privacy loss, but this experiment is not private.")
        self._loss()  # raises now, not after a run, if a requirement is missing
        self._seen = self._clock.wall().timestamp(), self._clock.steady()

    def look(self) -> list[dict[str, Any]]:
        """Return the current row of each condition of the schedule, without starting or writing anything."""
        now = self._clock.wall()
        sight = self._sight()
        past = self._read() or _first(self._began(now))
        past = replace(past, rows={**sight.rows, **past.rows})
        rows = reasons(self.schedule, past, now, sight, self._stride)
        loss = self._loss()
        more = self._loss(1)
        if self._beyond(more):
            rows = [row | {"due": False} for row in rows]
        for name, after in more.items():
            there = f"{loss.get(name, 0.0):.3g}, {after:.3g} with one more run"
            limit = None if self.schedule.epsilon is None else f"at most {self.schedule.epsilon:g}"
            rows.append(_row(f"ε of {name}", there, limit, due=False))
        return rows

    def _loss(self, more: int = 0) -> dict[str, float]:
        """Return ε of all runs so far and ``more`` further runs, by protected unit; empty without noise."""
        plan = privacy.planned(self._experiment, ())
        if not plan:
            return {}
        out = self.settings.out
        folders = [out, *out.parent.glob(f"{glob.escape(out.name)}-[0-9]*")]
        spent = [one for folder in folders if folder.is_dir() for one in privacy.of_run(folder)]
        spent += privacy.planned(self._experiment, spent) * more
        devices = sum(len(edge.devices) for edge in self.settings.edges) or self._experiment.park.devices
        return {name: epsilon for name, (epsilon, _) in privacy.together(spent, devices).items()}

    def _beyond(self, loss: Mapping[str, float]) -> bool:
        most = self.schedule.epsilon
        return most is not None and any(epsilon > most for epsilon in loss.values())

    def run(self, ended: Event, *, once: bool = False) -> int:
        """Start a run whenever a condition holds, until ``ended`` is set; return the exit code of the last run.

        Args:
            once: check the conditions once, start a run if one is due, and return after it.

        Raises:
            SettingError: a run, or another schedule, with the same settings is active.
        """
        code = 0
        with owned(self.settings.out):
            past = self._read()
            if past is None:
                self._write(**self._began(self._clock.wall()))
            elif past.run:
                code = self._resumed(past, ended)
            while not ended.is_set():
                code = self._step(ended, code)
                if once:
                    break
                ended.wait(span_s(self.schedule.look, "look"))
        return code

    # -- a check -----------------------------------------------------------------------------------------------------

    def _step(self, ended: Event, code: int) -> int:
        """Check once; start a run if one is due, and return its exit code, otherwise ``code``."""
        self._check_clock()
        now = self._clock.wall()
        sight = self._sight()
        past = self._past()
        if seen := {name: written for name, written in sight.rows.items() if name not in past.rows}:
            self._write(event="seen", rows=seen)
        if calm := sorted(name for name in past.drift if sight.drift.get(name) is False):
            self._write(event="calm", devices=calm)
        past = self._past()
        rows = reasons(self.schedule, past, now, sight, self._stride)
        due = [row for row in rows if row["due"]]
        if due and self._beyond(loss := self._loss(1)):
            if not past.withheld:
                self._write(event="withheld", epsilon=_numbers(loss), why=_why(due))
        elif due:
            code = self._start(due, past, now, sight, ended)
        elif _missed(self.schedule, past, now):
            self._write(event="missed", day=now.date().isoformat())
        return code

    def _check_clock(self) -> None:
        """Record in the log that the machine's clock was set."""
        now = self._clock.wall()
        steady = self._clock.steady()
        past = self._past()
        jump = (now.timestamp() - self._seen[0]) - (steady - self._seen[1])
        self._seen = now.timestamp(), steady
        back = now.timestamp() - past.since  # negative if it was set back while no schedule was running
        by_s = jump if abs(jump) > JUMP_S else back if back < -JUMP_S else 0.0
        if by_s:
            self._write(event="clock", by_s=round(by_s, 1), day=min(past.day, now.date().isoformat()))

    def _sight(self) -> Sight:
        """Return the last reports of devices, without those of factories whose broker is not reachable."""
        if self._reports is None:
            return Sight()
        try:
            body = json.loads(regular.read_bytes(self._reports))
            if self._clock.wall().timestamp() - dt.datetime.fromisoformat(body["at"]).timestamp() > STALE_S:
                raise ValueError(f"it is of {body['at']}")
            reached = {one["factory"] for one in body["factories"] if one["reached"]}
            here = {str(row["device"]): row for row in body["devices"] if row["factory"] in reached}
            rows = {name: int(row["written"]) for name, row in here.items() if row["written"] is not None}
            return Sight(rows, {name: bool(row["drift"]) for name, row in here.items()})
        except (OSError, *MALFORMED) as error:
            follow = "windows and drift need devices' reports: start fedfloor model alarms --park DIR --follow."
            log.warning("%s: %s. %s", self._reports, error, follow)
            return Sight()

    # -- the log -----------------------------------------------------------------------------------------------------

    def _read(self) -> Past | None:
        """Return the state according to the log; None without a log.

        Raises:
            SettingError: the log is damaged.
        """
        try:
            text = regular.read_text(self.path, errors="replace")  # the file may end within a character
        except FileNotFoundError:
            return None
        past: Past | None = None
        for number, one in enumerate(text.split("\n")[:-1], 1):  # an incomplete last line
            try:
                line = json.loads(one)
                past = _first(line) if past is None else past.after(line)
            except MALFORMED as error:
                advice = "Delete that line, or move the file away to restart the schedule."
                raise SettingError(
                    f"{self.path}, line {number}: not a line of a schedule's log. {advice}", key="damaged-log"
                ) from error
        return past

    def _past(self) -> Past:
        past = self._read()
        if past is None:
            raise RunError(f"{self.path} was removed while its schedule was active. Start the schedule again.")
        return past

    def _began(self, now: dt.datetime) -> dict[str, Any]:
        passed = self.schedule.time is None or _late_s(self.schedule.time, now) >= 0
        day = now.date() if passed else now.date() - dt.timedelta(days=1)
        return {"event": "began", "at": kept.stamp(now), "day": day.isoformat()}

    def _write(self, **line: Any) -> None:
        line = {"at": kept.stamp(self._clock.wall()), **line}
        append(self.path, f"{json_text(line, ensure_ascii=False)}\n")
        self.lines.append(line)
        self._say(_words(line))

    # -- a run -------------------------------------------------------------------------------------------------------

    def _start(self, due: Sequence[Mapping[str, Any]], past: Past, now: dt.datetime, sight: Sight, ended: Event) -> int:
        """Start a run, wait for its end, release its model; return its exit code."""
        number = past.number + 1
        while (out := self.settings.out.with_name(f"{self.settings.out.name}-{number}")).exists():
            number += 1
        failed = ""
        try:
            file = self._config(out)
        except SettingError as error:
            failed = f"failed: {printable(str(error))}"
        day = now.date().isoformat() if any(row["reason"] == "at" for row in due) else past.day
        drift = sorted(name for name, drifts in sight.drift.items() if drifts)
        self._write(event="started", number=number, run=str(out), why=_why(due), day=day, rows=sight.rows, drift=drift)
        if failed:
            self._write(event="ended", number=number, code=2, result=failed)
            return 2
        return self._trained(number, out, file, ended)

    def _resumed(self, past: Past, ended: Event) -> int:
        """Continue an unfinished run, after waiting for its loop if that is still active; return its exit code."""
        out = Path(past.run)
        self._say(f"run {past.number} has not ended: it is continued")
        while not ended.is_set() and _at_work(_record(out)):
            time.sleep(STEP_S)
        return 0 if ended.is_set() else self._trained(past.number, out, self._file(out), ended)

    def _trained(self, number: int, out: Path, file: Path, ended: Event) -> int:
        words = ["--resume"] if (out / "experiment.toml").exists() else []
        record = _record(out)
        code = _cloud([str(file), *words], record, ended)
        if code != INTERRUPTED:
            result = self._released(out) if code == 0 else f"failed: {printable(processes.tail(record, 1))}"
            loss = self._loss()
            self._write(
                event="ended", number=number, code=code, result=result, **({"epsilon": _numbers(loss)} if loss else {})
            )
        return code

    def _file(self, out: Path) -> Path:
        return out.with_name(f"{out.name}.toml")

    def _config(self, out: Path) -> Path:
        """Write the settings file of a run, which starts from the released model if the experiment allows it."""
        what = config.read(self.settings.experiment, [])
        experiment = self.settings.experiment
        first = None if self._place is None else _in_use(registry.read(self._place))
        begins = what.model.init == "default" and not what.configured.needs.objective
        if self._keeps and first is None:
            raise SettingError("no version is released whose thresholds could be found again: release one first.")
        if first is not None and (begins or self._keeps):
            on = replace(what, model=replace(what.model, init_from=str(first)))
            made = config.with_paths(keeping(what, first) if self._keeps else on, Path.absolute)
            experiment = out.with_name(f"{out.name}-experiment.toml")
            write(experiment, config.brief(made))
        path = self._file(out)
        cloud = replace(self.settings, out=out, experiment=experiment, schedule=None)
        write(path, settings.to_toml(below(Path.cwd(), cloud)))
        return path

    def _released(self, out: Path) -> str:
        """Release a run's model if it is better than the version in use, or announce it; return the result as text."""
        if self._place is None:
            return f"trained: fedfloor model release {out} --park DIR releases it"
        try:
            before = registry.read(self._place)
            known, version = registry.register(before, out, own=True)
            verdict = gate.verdict(known, version, (), RELEASED_S)
            if verdict.better is False:
                return f"not released: {verdict.why}"
            if self.schedule.release is None or verdict.better is None:
                return (
                    f"{verdict.why}: fedfloor model release {version} --park {self._place} releases version {version}"
                )
            known = registry.release(known, version, (), self.schedule.canary)
            rows = delivery.deliver(known, list(known.entries[-1].about["devices"]), RELEASED_S, before)
        except FedfloorError as error:
            return f"not released: {printable(str(error))}"
        return f"version {version} released: " + ", ".join(f"{row['device']} {row['state']}" for row in rows)


def append(path: Path, line: str) -> None:
    """Remove an incomplete last line from a file, append a line, and flush it to the disk.

    Raises:
        RunError: the disk is full, or the file cannot be written.
    """
    try:
        with regular.opened(path, "a+b") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise disk_error(path, error) from error


def _why(due: Sequence[Line]) -> list[dict[str, Any]]:
    return [{key: row[key] for key in row if key != "due"} for row in due]


def _numbers(loss: Mapping[str, float]) -> dict[str, float | None]:
    """Return privacy losses as JSON, with None for infinity."""
    return {name: round(value, 4) if math.isfinite(value) else None for name, value in loss.items()}


def _first(began: Line) -> Past:
    return Past(0.0, began["day"]).after(began)


def _words(line: Line) -> str:
    """Return a line of the log as readable text.

    >>> _words({"at": "2026-11-26T01:00:00+00:00", "event": "calm", "devices": ["press-1"]})
    '2026-11-26T01:00:00+00:00 calm: devices press-1'
    """
    if line["event"] == "started":
        why = "; ".join(f"{row['reason']}: {row['there']} of {row['needed']}" for row in line["why"])
        return f"{line['at']} run {line['number']} started, {line['run']}: {why}"
    if line["event"] == "ended":
        loss = "".join(f"; ε of {name} so far: {value}" for name, value in line.get("epsilon", {}).items())
        return f"{line['at']} run {line['number']} ended with {line['code']}: {line['result']}{loss}"
    if line["event"] == "withheld":
        loss = ", ".join(f"ε of {name} {value}" for name, value in line["epsilon"].items())
        return f"{line['at']} no run is started: {loss} would exceed [schedule] epsilon"
    rest = {key: value for key, value in line.items() if key not in ("at", "event")}
    words = (f"{key} {', '.join(value) if isinstance(value, list | dict) else value}" for key, value in rest.items())
    return f"{line['at']} {line['event']}: {', '.join(words)}"


def _in_use(known: Registry) -> Path | None:
    """Return the folder of the run of the last released version; None if it is missing or its model has changed."""
    use = max(known.used.values(), key=lambda one: one.number, default=None)
    if use is None:
        return None
    run = known.versions[use.version].run
    folder = Path(str(run["folder"]))
    path = (folder if folder.is_dir() else folder.parent) / "model.safetensors"
    if path.is_file() and hashlib.sha256(regular.read_bytes(path)).hexdigest() == run.get("model_sha256"):
        return path.absolute()
    log.warning("%s: no longer the model of version %d; the run starts as set in its experiment.", path, use.version)
    return None


def _record(out: Path) -> Path:
    """Return the path of the file with the output of a run's process."""
    return out.with_name(f"{out.name}.log")


def _at_work(record: Path) -> bool:
    """Return whether a run's process holds the lock of its output file, that is, whether it is running."""
    with contextlib.suppress(FileNotFoundError), regular.opened(record) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _cloud(words: Sequence[str], record: Path, ended: Event) -> int:
    """Run the cloud's loop in a process, which ``ended`` stops after its round; return its exit code.

    The process has its own session, so that Ctrl-C reaches it only through this function, and writes to a file, which
    remains when the terminal is closed. The process itself holds the file's lock, also after the schedule has ended.
    """
    line = [sys.executable, "-m", "fedfloor", "park", "cloud", *words]
    with regular.opened(record, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        child = subprocess.Popen(
            line, env={**os.environ, **machines.ALONE}, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            start_new_session=True,
        )  # fmt: skip
    asked = False
    while (code := child.poll()) is None:
        if ended.is_set() and not asked:
            child.send_signal(signal.SIGINT)
            asked = True
        time.sleep(STEP_S)
    return INTERRUPTED if code and ended.is_set() else code if code >= 0 else 128 - code
