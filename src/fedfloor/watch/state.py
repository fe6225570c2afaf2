"""The state of a run, updated from the files in its folder."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedfloor.base import regular
from fedfloor.base.checking import parsed
from fedfloor.base.errors import MALFORMED, SettingError
from fedfloor.base.names import NUMBERED
from fedfloor.deploy.processes import LIST, Crew, ParkProcess, has_open, opener, resident_mb
from fedfloor.plan.text import digest
from fedfloor.report.evaluation_records import EvaluationRecord
from fedfloor.report.ledger import read_plan
from fedfloor.report.plan_svg import STYLE, svg
from fedfloor.report.records import (
    DevicesRecord,
    ExperimentRecord,
    FailedRecord,
    ParkRecord,
    WaitRecord,
    experiment,
    record,
)
from fedfloor.watch.files import Row, Served, Tail, Visits, WatchedLine, by_device, newest, short

MOST_ROUNDS = 600  # most rounds on a page; if there are more, every second round of the older half is dropped
MOST_DEVICES = 200  # most listed entries
MOST_NAMED = 12  # most devices named in a sentence
MOST_LINES = 200  # most lines of logs and troubles
MOST_FOLLOWED = 1000  # most devices whose rounds are remembered
MOST_BYTES = 32_000_000  # most bytes of a checkpoint's metadata
SLOW_S = 1.0  # interval between two checks of processes
LOG_BYTES = 16_000  # bytes read from the end of a log
FLUENT = ("cloud", "edge", "device")  # kinds of processes with short logs, which are shown
MOST_PIDS = 4096  # processes whose time of computing is remembered
BUSY = 0.05  # share of a core above which a process counts as active


class Watched:
    """The watched folder of a run, a trial park or a provisioned park.

    Args:
        waiting: whether the run may begin later.
        alarms: folder of another park whose devices' alarms are shown.

    Attributes:
        document: section → content of the state; replaced as a whole and never modified.

    Raises:
        SettingError: the folder is none of these.
    """

    def __init__(self, folder: Path, *, waiting: bool = False, alarms: Path | None = None) -> None:
        park = (folder / LIST).is_file()
        self.folder = folder / "run" if park or (folder / "run" / "experiment.toml").is_file() else folder
        self.park = folder if self.folder != folder else folder.parent
        self._served = Served(alarms or folder)
        if alarms is not None and not self._served:
            raise SettingError(
                f"--park {alarms}: has no alarms.toml. Name the folder of `fedfloor park provision --out`."
            )
        if not (waiting or park or self._served or (self.folder / "experiment.toml").is_file()):
            raise SettingError(
                f"{folder} is neither a run's folder nor a park's: it has no experiment.toml, no {LIST} and no "
                "alarms.toml. Name the folder of `fedfloor run`, `fedfloor park live up` or `fedfloor park provision`.",
                key="folder-of-run",
            )
        self._ledger = Tail(self.folder / "ledger.jsonl")
        self._tested = Tail(self.folder / "devices.jsonl")
        self._courses: dict[int, deque[list[float]]] = {}
        self._logs: dict[str, Tail] = {}
        self._experiment: ExperimentRecord | None = None
        self._described: ParkRecord | None = None
        self._failure = ""
        self._returned = False  # whether it ended by evaluate.patience
        self._wait: WaitRecord | None = None
        self._plan_hash = ""
        self._stamps: dict[str, Any] = {}  # file → inode, size and time at the last read
        self._pid: int | None = None
        self._cpu_s: dict[int, tuple[float, float]] = {}
        self._looked = -SLOW_S
        self._fresh: tuple[Any, ...] = ()  # the contents of the sections about devices
        self._visits: tuple[int, dict[int, Visits]] = (0, {})
        self._history: dict[int, deque[list[float | None]]] = {}
        self._log: deque[Row] = deque(maxlen=MOST_LINES)
        self._faults: dict[str, str] = {}  # of files
        self._begin_ledger()
        self.document: Row = {}
        self._changed: Row = {}
        self._sections: Row = {}

    def _begin_ledger(self) -> None:
        self._troubles: deque[Row] = deque(maxlen=MOST_LINES)
        self._rounds: list[Row] = []
        self._trips: deque[Row] = deque(maxlen=MOST_LINES)  # the last visits in time
        self._hashes: deque[str] = deque(maxlen=7)
        self._walls: deque[float] = deque(maxlen=7)
        self._totals: dict[str, Counter[str]] = {"predicted": Counter(), "measured": Counter()}
        self._lost = 0
        self._wall_s = 0.0
        self._predicted_s = 0.0
        self._last: WatchedLine | None = None
        self._absent: dict[str, int] = {}
        self._failed: dict[str, str] = {}

    def poll(self) -> Row:
        """Read all files; return the changed sections, and under ``append`` the new rows of lists."""
        self._changed = {}
        gained = Counter[str]()
        self._read_about()
        gained["rounds"] = self._read_ledger()
        self._read_checkpoint()
        gained["log"] = self._read_logs()
        if time.monotonic() - self._looked >= SLOW_S:
            self._looked = time.monotonic()
            self._look_at_processes()
        self._put("run", self._run())
        for name, section in self._served.sections().items():
            self._put(name, section)
        fresh = (self._last, self._visits[0], self._described, self._sections["processes"])
        if fresh != self._fresh:
            self._fresh = fresh
            self._put("links", self._links())
            self._put("devices", self._devices())
            self._put("factories", self._factories())
        faults = [_trouble(None, name, "file", why) for name, why in self._faults.items()]
        self._put("troubles", [*faults, *reversed(self._troubles)])
        self._put("trips", list(self._trips))
        whole: dict[str, list[Row]] = {"rounds": self._rounds, "log": list(self._log)}
        append = {name: whole[name][-more:] for name, more in gained.items() if more > 0}
        for name, more in gained.items():
            if more < 0 or name not in self.document:
                self._changed[name] = list(whole[name])
                append.pop(name, None)
        if append:
            self._changed["append"] = append
        if self._changed:
            self.document = {**self._sections, "rounds": list(self._rounds), "log": list(self._log)}
        return self._changed

    def _put(self, name: str, value: Any) -> None:
        if self._sections.get(name, self) != value:
            self._sections[name] = self._changed[name] = value

    def _is_new(self, path: Path) -> bool:
        """Return whether a file has changed since the last call."""
        stamp = None
        with contextlib.suppress(OSError):
            status = path.stat()
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        new = stamp != self._stamps.get(path.name)
        self._stamps[path.name] = stamp
        return new and stamp is not None

    # -- the run ----------------------------------------------------------------------------------------------------

    def _read_about(self) -> None:
        for name, read in (
            ("experiment.toml", self._read_experiment),
            ("park.json", self._read_park),
            ("plan.json", self._draw),
            ("failed.json", self._read_failure),
            ("evaluation.json", self._read_evaluation),
            ("waiting.json", self._read_wait),
        ):
            if self._is_new(self.folder / name):
                self._faults.pop(name, None)
                try:
                    read(self.folder / name)
                except SettingError as error:
                    self._faults[name] = str(error)

    def _read_experiment(self, path: Path) -> None:
        self._experiment = experiment(path)[2]

    def _read_failure(self, path: Path) -> None:
        self._failure = short(record(FailedRecord, path, "a failed round").why)

    def _read_evaluation(self, path: Path) -> None:
        self._returned = record(EvaluationRecord, path, "an evaluation").returned is not None

    def _read_wait(self, path: Path) -> None:
        self._wait = record(WaitRecord, path, "a round that waits")

    def _read_park(self, path: Path) -> None:
        self._described = record(ParkRecord, path, "the description of a park")

    def _draw(self, path: Path) -> None:
        park = self._described  # written before the plan
        plan, title = (None, None) if park is None else read_plan(path, park)
        if plan is None or park is None:
            return
        self._plan_hash = digest(plan)
        factory_of = {k: device.factory for k, device in zip(park.numbers, park.devices, strict=True)}
        picture = svg(plan, None if park.of_devices else factory_of.__getitem__, park.names)
        # the page's policy forbids inline styles; its style sheet contains this one
        self._put("plan", {"method": title, "svg": picture.replace(f"<style>{STYLE}</style>", "")})

    def _run(self) -> Row:
        settings = self._experiment
        park = self._described
        last = self._last
        done = last.round if last else 0
        planned = settings.rounds if settings else None
        name, value = self._headline(last)
        wall = statistics.median(self._walls) if self._walls else None
        left = None if wall is None or planned is None else wall * (planned - done)
        untrained = last.measured.untrained if last and last.measured else ()
        return {
            "name": short((settings and settings.name) or self.folder.name),
            "method": settings and short(settings.method.name), "seed": settings and settings.seed,
            "data": park and short(park.dataset), "devices": park and park.size, "factories": park and park.factories,
            "live": (self.park / LIST).is_file() or bool(last and last.measured),
            "state": self._state(done, planned), "why": self._failure, "round": done, "rounds": planned,
            "since": self._since(), "waits": self._waits(),
            "round_s": wall, "left_s": left, "wall_s": round(self._wall_s, 4),
            "predicted_s": round(self._predicted_s, 4), "headline": short(name), "value": value, "lost": self._lost,
            "loss": last and last.loss, "train_loss": last and last.train_loss, "receipts_of": self._visits[0] or None,
            "untrained": len(untrained), "untrained_names": self._many(untrained),
            "same_plan": bool(self._hashes) and set(self._hashes) == {self._plan_hash},
        }  # fmt: skip

    @staticmethod
    def _headline(line: WatchedLine | None) -> tuple[str, float | None]:
        first = () if line is None else (line.figures or {"accuracy": line.accuracy}).items()
        return next(iter(first), ("accuracy", None))

    def _state(self, done: int, planned: int | None) -> str:
        if self._experiment is None:
            return "waiting"
        if self._pid is not None:
            return "running"
        if (self.folder / "diverged.json").exists():
            return "diverged"
        if (self.folder / "failed.json").exists():
            return "failed"
        if (self.folder / "evaluation.json").exists():
            return "finished" if done == planned or self._returned else "stopped"
        return "not running"

    def _waits(self) -> Row | None:
        """Return what the current round waits for, and the start and latest end of the wait in s since 1970."""
        wait = self._wait if self._pid is not None and (self.folder / "waiting.json").is_file() else None
        if wait is None:
            return None
        return {"why": short(wait.why), "since": round(wait.since, 1), "until": round(wait.until, 1)}

    def _since(self) -> float | None:
        """Return the start of the current round in s since 1970, from the times of files; None if unknown."""
        for name in ("ledger.jsonl", "plan.json", "park.json"):
            with contextlib.suppress(OSError):
                return round((self.folder / name).stat().st_mtime, 1)
        return None

    # -- rounds -----------------------------------------------------------------------------------------------------

    def _read_ledger(self) -> int:
        """Read new ledger lines; return the number of added rounds, or −1 if the list was restarted."""
        anew, lines = self._ledger.read()
        if anew:
            self._begin_ledger()
        before = len(self._rounds)
        for text in lines:
            try:
                line = parsed(WatchedLine, text, "ledger.jsonl", "a ledger line", "")
                if self._last is not None and line.round <= self._last.round:
                    raise SettingError(f"ledger.jsonl: round {line.round} after round {self._last.round}.")
            except SettingError as error:
                if not anew:  # earlier lines may have been truncated meanwhile: the next check reads all lines
                    self._ledger = Tail(self._ledger.path)
                    break
                self._note(None, "ledger.jsonl", "file", str(error))
                continue
            self._add(line)
        while len(self._rounds) > MOST_ROUNDS:
            anew = True
            half = MOST_ROUNDS // 2
            self._rounds = [*self._rounds[:half:2], *self._rounds[half:]]
        return -1 if anew else len(self._rounds) - before

    def _add(self, line: WatchedLine) -> None:
        self._last = line
        measured = line.measured
        self._hashes.append(line.plan_hash)
        if line.wall_s is not None:
            self._walls.append(line.wall_s)
            self._wall_s += line.wall_s
        if line.priced:
            self._predicted_s += line.priced.seconds or 0.0
        self._lost += line.lost or 0
        self._add_trips(line)
        if line.priced and line.priced.bytes:
            self._totals["predicted"].update({short(k): int(n) for k, n in line.priced.bytes.items()})
        if measured:
            self._totals["measured"].update({short(k): int(n) for k, n in measured.bytes.items()})
        self._rounds.append(
            {
                "round": line.round, "value": self._headline(line)[1], "loss": line.loss, "train_loss": line.train_loss,
                "wall_s": line.wall_s, "predicted_s": line.priced and line.priced.seconds,
                "floor_s": measured and measured.floor_s, "training_s": measured and measured.training_s,
                "participants": line.participants, "lost": line.lost,
                "visits": line.visits,
            }
        )  # fmt: skip
        if line.lost:
            of = "" if line.visits is None else f" of {line.visits:,}"
            self._note(line.round, f"{line.lost:,}{of} visits", "lost", self._many(map(int, line.lost_by or ())))
        refused = line.info.get("refused")
        for device, why in refused.items() if isinstance(refused, dict) else ():
            self._note(line.round, self._name(device), "refused", str(why))
        if measured is None:
            return
        self._failed |= measured.failed
        for machine in measured.absent:
            self._absent[machine] = line.round
            edge_lost = "its edge did not answer: its visits are lost"
            self._note(line.round, machine, "absent", measured.failed.get(machine, edge_lost))
        for machine, why in measured.failed.items():
            if machine not in measured.absent:
                self._note(line.round, machine, "failed", why)
        for machine, times in measured.against.items():
            self._note(line.round, machine, "against", f"its updates point against the others', in {times} rounds")
        for edge, senders in measured.refused.items():
            for sender, reasons in senders.items():
                why = ", ".join(f"{reason} ({times} so far)" for reason, times in reasons.items())
                self._note(line.round, sender, "refused", f"by {edge}: {why}")

    def _add_trips(self, line: WatchedLine) -> None:
        """Add the visits of a round that did not wait for all devices; late ones until the round ended."""
        if not line.arrivals:
            return
        began = min(row[2] for row in line.arrivals)
        ended = max(row[3] for row in line.arrivals)
        late = [(k, began, ended, None, ()) for k in sorted({*line.late})]
        visits = [(k, begin, end, line.round - 1 - version, rest) for k, version, begin, end, *rest in line.arrivals]
        for k, begin, end, age, training in [*visits, *late]:
            named = {"device": k, "name": short(self._name(str(k))), "round": line.round}
            times = {"begin": begin, "end": end, "ended": ended, "training": list(training)}
            self._trips.append({**named, **times, "age": age})

    def _note(self, number: int | None, machine: str, kind: str, why: str) -> None:
        self._troubles.append(_trouble(number, machine, kind, why))

    def _name(self, device: str) -> str:
        number = int(device) if device.isdecimal() else -1
        return device if self._described is None or number < 0 else self._described.names.site("device", number)

    def _many(self, devices: Iterable[int]) -> str:
        names = NUMBERED if self._described is None else self._described.names
        return names.many(devices, MOST_NAMED)

    def _links(self) -> list[Row]:
        """Return rows of predicted and measured bytes by link, for the last round and for all rounds."""
        last = self._last
        totals = self._totals
        priced = (last and last.priced and last.priced.bytes) or {}
        measured = (last and last.measured and last.measured.bytes) or {}
        return [
            {
                "link": link, "predicted": priced.get(link), "measured": measured.get(link),
                "predicted_all": totals["predicted"].get(link), "measured_all": totals["measured"].get(link),
            }
            for link in sorted({*totals["predicted"], *totals["measured"]})[:MOST_LINES]
        ]  # fmt: skip

    # -- devices and factories --------------------------------------------------------------------------------------

    def _read_checkpoint(self) -> None:
        place = newest(self.folder / "checkpoint")
        if place is None or self._stamps.get("checkpoint") == place.name:
            return
        try:
            with regular.opened(place / "state.json") as file:
                data = file.read(MOST_BYTES + 1)
            if len(data) > MOST_BYTES:
                raise ValueError("it is too large for display")
            about = json.loads(data)
            self._visits = (int(about["round"]), by_device(about["receipts"]))
            self._remember(*self._visits)
        except FileNotFoundError:
            return  # a newer checkpoint has just replaced it
        except (OSError, *MALFORMED) as error:
            self._faults["checkpoint"] = f"{place.name} cannot be read: {error}"
        self._stamps["checkpoint"] = place.name

    def _remember(self, number: int, visits: dict[int, Visits]) -> None:
        for k, seen in visits.items():
            if k in self._history or len(self._history) < MOST_FOLLOWED:
                row: list[float | None] = [number, seen.loss, seen.accuracy, seen.lost]
                self._history.setdefault(k, deque(maxlen=MOST_ROUNDS)).append(row)

    def device(self, number: int) -> Row | None:
        """Return a device's history; None without the device.

        ``rounds`` since the page is served: round, loss and accuracy in training, lost visits; checkpoints hold the
        last round alone, so that earlier rounds are unknown. ``tested``, from ``devices.jsonl``: round and headline.
        """
        if self._described is None or number not in self._described.numbers:
            return None
        self._read_tested()
        rounds = self._history.get(number, ())
        tested = self._courses.get(number, ())
        return {"device": number, "rounds": list(rounds), "tested": list(tested)}

    def _read_tested(self) -> None:
        """Read new lines of ``devices.jsonl``; damaged ones are left out."""
        while True:
            anew, lines = self._tested.read()
            if anew:
                self._courses = {}
            if not lines:
                return
            for text in lines:
                with contextlib.suppress(SettingError):
                    line = parsed(DevicesRecord, text, "devices.jsonl", "a line of devices", "")
                    for k, value in line.devices.items():
                        if value is not None and (k in self._courses or len(self._courses) < MOST_FOLLOWED):
                            course = self._courses.setdefault(k, deque(maxlen=MOST_ROUNDS))
                            course.append([line.round, value])

    def _devices(self) -> list[Row]:
        park = self._described
        (_, visits) = self._visits
        if park is None:
            return []
        machines = [row for row in self._sections["processes"] if row["kind"] == "device"]
        rows = []
        for k, device in zip(park.numbers, park.devices, strict=True):
            seen = visits.get(k, Visits())
            machine = machines[k] if len(machines) == park.size else None
            rows.append(
                {
                    "device": k, "name": short(park.names.site("device", k)), "factory": device.factory,
                    "samples": device.samples, "visits": seen.visits, "lost": seen.lost, "loss": seen.loss,
                    "accuracy": seen.accuracy, "seconds": seen.seconds or None,
                    "machine": machine and machine["state"], "why": seen.refused or self._why(k, machine),
                }
            )  # fmt: skip
        rows.sort(key=lambda row: (not row["why"], not row["lost"]) if len(rows) > MOST_DEVICES else ())
        return rows[:MOST_DEVICES]

    def _why(self, k: int, machine: Row | None) -> str:
        """Return the reason of a device's last failure; "" without one."""
        names = {f"device {k}", self._name(str(k)), machine["name"] if machine else ""}
        return next((short(why) for failed, why in self._failed.items() if failed in names), "")

    def _factories(self) -> list[Row]:
        park = self._described
        (_, visits) = self._visits
        if park is None:
            return []
        rows: list[Row] = []
        edges = [row for row in self._sections["processes"] if row["kind"] == "edge"]
        for m in range(min(park.factories, MOST_DEVICES)):
            members = [k for k, device in zip(park.numbers, park.devices, strict=True) if device.factory == m]
            seen = [visits[k] for k in members if k in visits]
            losses = [own.loss for own in seen if own.loss is not None]
            edge = edges[m] if len(edges) == park.factories else None
            own = edge["name"].removeprefix("edge-") if edge else park.names.site("factory", m)
            rows.append(
                {
                    "name": short(park.names.own("factory", m) or own), "devices": len(members), "visited": len(seen),
                    "lost": sum(own.lost for own in seen), "loss": statistics.fmean(losses) if losses else None,
                    "seconds": max((own.seconds for own in seen), default=None) or None,
                    "absent": self._absent.get(own), "machine": edge and edge["state"],
                }
            )  # fmt: skip
        return rows

    # -- processes and logs -----------------------------------------------------------------------------------------

    def _look_at_processes(self) -> None:
        lock = self.folder / ".lock"
        if self._pid is None or not has_open(self._pid, {str(lock.resolve())}):
            self._pid = opener({str(lock.resolve())}) if lock.exists() else None
        try:
            crew = Crew.of(self.park)
            rows = [self._process(crew, process) for process in crew.members[:MOST_DEVICES]]
        except MALFORMED as error:
            rows = []
            self._faults[LIST] = f"is damaged: {error}"
        self._put("processes", rows)

    def _process(self, crew: Crew, process: ParkProcess) -> Row:
        state = "ended" if process.kind == "cloud" else "dead"
        memory = None
        if crew.alive(process):
            state = "at work" if self._is_busy(process.pid) else "alive"
            memory = resident_mb(process.pid)
        return {
            "name": short(process.name), "kind": short(process.kind), "state": state,
            "memory_mb": None if memory is None else round(memory, -1),
        }  # fmt: skip

    def _is_busy(self, pid: int) -> bool:
        """Return whether a process has used more than a share of a core since the last call (Linux)."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            # in ticks of 10 ms
            now = time.monotonic()
            used = (int(fields[11]) + int(fields[12])) / 100
            at, before = self._cpu_s.pop(pid, (now, used))
            self._cpu_s[pid] = (now, used)
            if len(self._cpu_s) > MOST_PIDS:  # most are of processes that have ended
                del self._cpu_s[next(iter(self._cpu_s))]
            return now > at and (used - before) / (now - at) > BUSY
        return False

    def _read_logs(self) -> int:
        """Read new lines of the logs of cloud, edges and devices; return their number."""
        processes = [row["name"] for row in self._sections.get("processes", ()) if row["kind"] in FLUENT]
        for name in processes:
            if name not in self._logs and "/" not in name and not name.startswith("."):
                self._logs[name] = Tail(self.park / "logs" / f"{name}.log", LOG_BYTES)
        new = 0
        for name, tail in self._logs.items():
            for text in tail.read()[1][-MOST_LINES:]:
                line = short(text.decode(errors="replace"))
                if line:
                    self._log.append({"at": round(time.time(), 1), "from": name, "text": line})
                    new += 1
        return min(new, MOST_LINES)


def _trouble(number: int | None, machine: str, kind: str, why: str) -> Row:
    return {"round": number, "who": short(machine), "kind": kind, "why": short(why)}
