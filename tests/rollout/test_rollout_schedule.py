"""Training that starts by itself: when it is due, what is remembered, and a park of real processes that drifts."""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import math
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from fedfloor import config
from fedfloor.base.errors import RunError
from fedfloor.data.files import buffer
from fedfloor.deploy import kept, live, machines, park_file, settings
from fedfloor.deploy.live import TrialPark
from fedfloor.deploy.mqtt import topic
from fedfloor.deploy.settings import CloudSettings, Endpoint, Schedule
from fedfloor.plan.nodes import Site, Train, Work
from fedfloor.rollout import registry, schedule
from fedfloor.rollout.alarms import AlarmKeeper
from fedfloor.rollout.drift import BLOCK, LEARN
from fedfloor.rollout.schedule import Clock, Past, Scheduler, Sight, reasons
from fedfloor.rollout.serving import report
from fedfloor.runs import privacy
from fedfloor.runs.folder import owned
from fedfloor.runs.privacy import Spent
from fedfloor.sensors.buffer import writing
from fedfloor.sensors.grid import Row
from parks import PARK, needs_mosquitto, until
from refusals import refused
from rollouts import model, provisioned, registered

ZONE = dt.timezone(dt.timedelta(hours=1))
NOON = dt.datetime(2026, 11, 26, 12, tzinfo=ZONE)
DAY = NOON.date().isoformat()


def due(given: Schedule, past: Past, now: dt.datetime = NOON, sight: Sight | None = None, stride: int = 1) -> list[str]:
    return [row["reason"] for row in reasons(given, past, now, sight or Sight(), stride) if row["due"]]


def ago(hours: float, **more: Any) -> Past:
    return Past(NOON.timestamp() - 3600 * hours, DAY, **more)


# -- when a run is due -------------------------------------------------------------------------------------------------


def test_every_counts_from_the_start_of_the_last_run() -> None:
    assert due(Schedule(every="24h"), ago(24)) == ["every"]
    assert due(Schedule(every="24h"), ago(23.9)) == []


@pytest.mark.parametrize(("clock", "expected"), [((1, 59), []), ((2, 0), ["at"]), ((2, 59), ["at"]), ((3, 0), [])])
def test_at_holds_for_an_hour_of_a_day_that_is_not_done_with(clock: tuple[int, int], expected: list[str]) -> None:
    now = NOON.replace(hour=clock[0], minute=clock[1])
    assert due(Schedule(at="02:00"), Past(0.0, "2026-11-25"), now) == expected
    assert due(Schedule(at="02:00"), Past(0.0, DAY), now) == []


def test_windows_of_all_devices_count_together_and_a_buffer_that_was_made_anew_counts_whole() -> None:
    given = Schedule(windows=22)
    past = ago(2, rows={"a": 1000, "b": 50})
    sight = Sight({"a": 1189, "b": 40})  # 18 + 4 windows, as b is a new buffer
    assert due(given, past, sight=sight, stride=10) == ["windows"]
    assert due(replace(given, windows=23), past, sight=sight, stride=10) == []


def test_a_device_that_drifted_when_the_last_run_was_started_does_not_count_again() -> None:
    sight = Sight(drift={"a": True, "b": True, "c": False})
    assert due(Schedule(drift=2), ago(2), sight=sight) == ["drift"]
    assert due(Schedule(drift=2), ago(2, drift=frozenset({"a"})), sight=sight) == []


def test_windows_and_drift_wait_for_the_pause() -> None:
    sight = Sight({"a": 9}, {"a": True})
    given = Schedule(windows=1, drift=1)
    assert due(given, ago(0.9, rows={"a": 0}), sight=sight) == []
    assert due(replace(given, pause="50m"), ago(0.9, rows={"a": 0}), sight=sight) == ["windows", "drift"]


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "schedule"),
        ({"every": "1 day"}, "schedule.every"),
        ({"every": "0h"}, "schedule.every"),
        ({"every": "1h", "look": "367d"}, "schedule.look"),
        ({"at": "24:00"}, "schedule.at"),
        ({"windows": 0}, "schedule.windows"),
        ({"drift": 1, "release": "some"}, "schedule.release"),
        ({"drift": 1, "release": "canary"}, "schedule.canary"),
        ({"drift": 1, "canary": ("d0",)}, "schedule.canary"),
        ({"drift": 1, "epsilon": 0.0}, "schedule.epsilon"),
    ],
)
def test_settings_that_cannot_be_are_named(given: dict[str, Any], message: str) -> None:
    with refused(message):
        Schedule(**given)


def test_a_park_file_hands_its_schedule_to_the_cloud(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text('name = "tiny"\n')
    path = tmp_path / "plant.toml"
    table = '[schedule]\nat = "02:00"\ndrift = 2\nrelease = "canary"\ncanary = ["{}"]\n'
    path.write_text(PARK + table.format("camera"))
    assert park_file.read(path).schedule == Schedule(at="02:00", drift=2, release="canary", canary=("camera",))
    path.write_text(PARK + table.format("camara"))
    with refused("unknown device in schedule.canary"):
        park_file.read(path)
    path.write_text(PARK + "[schedule]\nevry = '24h'\n")
    with refused("unknown-key"):
        park_file.read(path)


def test_every_key_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "schedule.md").read_text(encoding="utf-8")
    assert not [one.name for one in fields(Schedule) if f"| `{one.name}` |" not in page]


def test_the_clouds_machine_has_a_unit_for_a_schedule_that_needs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text('name = "tiny"\n')
    path = tmp_path / "plant.toml"
    for table, units in (("at = '02:00'", 1), ("at = '02:00'\ndrift = 2", 0), ("every = '1d'\nrelease = 'all'", 0)):
        path.write_text(f"{PARK}[schedule]\n{table}\n")
        park = park_file.read(path)
        services = [one for one in machines.cloud_services(park) if one.name == "fedfloor-schedule"]
        assert len(services) == units
    path.write_text(f"{PARK}[schedule]\nat = '02:00'\n")
    unit = machines.unit(machines.cloud_services(park_file.read(path))[2], park)
    assert "ExecStart=/opt/fedfloor/bin/fedfloor park schedule cloud.toml" in unit
    assert "Restart=always" in unit


# -- a schedule at work, without a park --------------------------------------------------------------------------------


@dataclass
class Desk:
    """A schedule whose clocks and runs are made up."""

    folder: Path
    wall: dt.datetime = NOON
    steady_s: float = 0.0

    def cloud(self, given: Schedule | None) -> Path:
        (self.folder / "e.toml").write_text('name = "e"\nmodel.name = "logistic"\n')
        cloud = CloudSettings(
            "trial", Path("e.toml"), Path("state/run"), (), Endpoint("127.0.0.1", 1), schedule=given
        )  # fmt: skip
        (self.folder / "cloud.toml").write_text(settings.to_toml(cloud))
        return self.folder / "cloud.toml"

    def scheduler(self, given: Schedule | None, place: Path | None = None, alarms: Path | None = None) -> Scheduler:
        return Scheduler(self.cloud(given), place, alarms, clock=Clock(lambda: self.wall, lambda: self.steady_s))

    def passes(self, hours: float, jump_h: float = 0.0) -> None:
        """Let time pass; the machine's clock is set forward beside that."""
        self.steady_s += 3600 * hours
        self.wall += dt.timedelta(hours=hours + jump_h)

    def events(self) -> list[str]:
        lines = (self.folder / "state/run-schedule.jsonl").read_text().splitlines()
        return [json.loads(line)["event"] for line in lines]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of runs that were started; each ends well at once."""
    started: list[list[str]] = []

    def cloud(words: list[str], record: Path, ended: Event) -> int:
        started.append([Path(words[0]).stem, *words[1:]])
        out = settings.read(CloudSettings, words[0]).out
        out.mkdir(exist_ok=True)
        return 0

    monkeypatch.setattr(schedule, "_cloud", cloud)
    return started


def looks(desk: Desk, made: Scheduler, *steps: Callable[[], None]) -> None:
    """Look once, and once more after each step, in one process."""

    left = list(steps)

    class Ended(Event):
        def wait(self, timeout: float | None = None) -> bool:
            if left:
                left.pop(0)()
            else:
                self.set()
            return self.is_set()

    made.run(Ended())


def test_a_run_is_started_when_it_is_due_and_not_again(desk: Desk, runs: list[list[str]]) -> None:
    hour = lambda: desk.passes(1)  # noqa: E731
    looks(desk, desk.scheduler(Schedule(every="2h")), hour, hour, hour, hour)
    assert runs == [["run-1"], ["run-2"]]
    assert desk.events() == ["began", "started", "ended", "started", "ended"]


def test_a_clock_counts_as_set_if_it_moves_by_more_than_a_minute(desk: Desk, runs: list[list[str]]) -> None:
    made = desk.scheduler(Schedule(every="24h"))
    looks(desk, made, lambda: desk.passes(1, 60 / 3600), lambda: desk.passes(1, -60 / 3600))
    assert [line for line in made.lines if line["event"] == "clock"] == []
    looks(desk, made, lambda: desk.passes(1, 61 / 3600))
    assert [line["by_s"] for line in made.lines if line["event"] == "clock"] == [61.0]


def test_a_clock_that_is_set_moves_no_period(desk: Desk, runs: list[list[str]]) -> None:
    made = desk.scheduler(Schedule(every="24h"))
    looks(desk, made, lambda: desk.passes(1, 1000), lambda: desk.passes(1, -2000), lambda: desk.passes(21.9))
    assert runs == []
    assert [line["by_s"] for line in made.lines if line["event"] == "clock"] == [3.6e6, -7.2e6]
    looks(desk, desk.scheduler(Schedule(every="24h")), lambda: desk.passes(0.2))
    assert runs == [["run-1"]]


def test_a_night_has_one_run_also_where_the_clock_is_set_back(desk: Desk, runs: list[list[str]]) -> None:
    made = desk.scheduler(Schedule(at="02:00"))
    night, back = lambda: desk.passes(14.5), lambda: desk.passes(0.1, -1)
    looks(
        desk, made, night, back, lambda: desk.passes(1), lambda: desk.passes(0, 24 * 400), lambda: desk.passes(0, -9600)
    )
    assert runs == [["run-1"], ["run-2"]]  # the second on the day that the clock showed for a while
    looks(desk, desk.scheduler(Schedule(at="02:00")), lambda: desk.passes(24))
    assert runs == [["run-1"], ["run-2"], ["run-3"]]


def test_a_night_that_nothing_waited_in_is_left_out(desk: Desk, runs: list[list[str]]) -> None:
    looks(desk, desk.scheduler(Schedule(at="02:00")))
    desk.passes(24)
    looks(desk, desk.scheduler(Schedule(at="02:00")))
    assert runs == []
    assert desk.events() == ["began", "missed"]


def test_a_clock_set_back_while_no_schedule_was_there_stops_no_period_for_good(
    desk: Desk, runs: list[list[str]]
) -> None:
    looks(desk, desk.scheduler(Schedule(every="24h")))
    desk.passes(0, -24 * 365)
    looks(desk, desk.scheduler(Schedule(every="24h")), lambda: desk.passes(24))
    assert runs == [["run-1"]]


def test_once_looks_once_and_a_dry_run_writes_nothing(desk: Desk, runs: list[list[str]]) -> None:
    made = desk.scheduler(Schedule(every="2h"))
    assert made.look() == [{"reason": "every", "there": "0 s", "needed": "2h", "due": False}]
    assert not (desk.folder / "state").exists()
    assert made.run(Event(), once=True) == 0
    desk.passes(2)
    assert desk.scheduler(Schedule(every="2h")).look()[0]["due"]
    assert runs == []
    desk.scheduler(Schedule(every="2h")).run(Event(), once=True)
    assert runs == [["run-1"]]


def test_a_run_that_has_not_ended_goes_on_first(desk: Desk, runs: list[list[str]]) -> None:
    looks(desk, desk.scheduler(Schedule(every="2h")), lambda: desk.passes(2))
    log = desk.folder / "state/run-schedule.jsonl"
    log.write_text(
        "".join(log.read_text().splitlines(keepends=True)[:-1]) + '{"at": "2026-11-'
    )  # killed while it wrote
    (desk.folder / "state/run-1/experiment.toml").touch()
    looks(desk, desk.scheduler(Schedule(every="2h")))
    assert runs == [["run-1"], ["run-1", "--resume"]]
    assert desk.events() == ["began", "started", "ended"]


def test_a_run_that_outlived_its_schedule_is_waited_for(desk: Desk, runs: list[list[str]]) -> None:
    looks(desk, desk.scheduler(Schedule(every="2h")), lambda: desk.passes(2))
    log = desk.folder / "state/run-schedule.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    at_work = (desk.folder / "state/run-1.log").open("ab")
    fcntl.flock(at_work, fcntl.LOCK_EX)
    seen: list[int] = []

    def leave() -> None:
        seen.append(len(runs))
        at_work.close()

    threading.Timer(0.5, leave).start()
    looks(desk, desk.scheduler(Schedule(every="2h")))
    assert seen == [1]
    assert runs == [["run-1"], ["run-1"]]


def test_a_runs_process_is_known_from_its_first_moment(tmp_path: Path) -> None:
    """Before it has made its folder, and also where its schedule was killed: no second one is started beside it."""
    program = tmp_path / "program"
    record = tmp_path / "run-1.log"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o700)
    started = f"import sys; sys.executable = {str(program)!r}; from fedfloor.rollout import schedule; "
    call = f"from pathlib import Path; from threading import Event; schedule._cloud([], Path({str(record)!r}), Event())"
    scheduler = subprocess.Popen([sys.executable, "-c", started + call])
    children = Path(f"/proc/{scheduler.pid}/task/{scheduler.pid}/children")
    assert not schedule._at_work(record)
    assert until(lambda: children.read_text() != "", 60)
    run = int(children.read_text())
    scheduler.kill()
    scheduler.wait()
    assert schedule._at_work(record)
    os.kill(run, signal.SIGKILL)
    assert until(lambda: not schedule._at_work(record))


def test_schedules_of_two_runs_in_one_folder_have_logs_of_their_own(desk: Desk, runs: list[list[str]]) -> None:
    looks(desk, desk.scheduler(Schedule(every="2h")), lambda: desk.passes(2))
    file = desk.cloud(Schedule(every="2h"))
    file.write_text(file.read_text().replace("state/run", "state/other"))
    looks(desk, Scheduler(file, clock=Clock(lambda: desk.wall, lambda: desk.steady_s)), lambda: desk.passes(2))
    assert runs == [["run-1"], ["other-1"]]


def test_a_run_that_fails_is_not_repeated_before_the_next_reason(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def cloud(words: list[str], record: Path, ended: Event) -> int:
        record.write_text("note: edge north (0) is connected.\nerror: no edge connected\n")
        return 1

    monkeypatch.setattr(schedule, "_cloud", cloud)
    hour = lambda: desk.passes(1)  # noqa: E731
    made = desk.scheduler(Schedule(every="2h"))
    looks(desk, made, hour, hour, hour)
    assert [(line["code"], line["result"]) for line in made.lines if line["event"] == "ended"] == [
        (1, "failed: error: no edge connected")
    ]


def test_two_schedules_do_not_start_the_same(desk: Desk, runs: list[list[str]]) -> None:
    with owned(desk.folder / "state/run"), refused("folder-in-use"):
        desk.scheduler(Schedule(every="2h")).run(Event())
    assert runs == []


def test_a_damaged_log_is_named_with_its_line(desk: Desk, runs: list[list[str]]) -> None:
    looks(desk, desk.scheduler(Schedule(every="2h")))
    with (desk.folder / "state/run-schedule.jsonl").open("a") as file:
        file.write('{"event": "started"}\n')
    with refused("damaged-log"):
        desk.scheduler(Schedule(every="2h")).run(Event())
    assert runs == []


def test_a_line_of_the_log_may_hold_any_character(desk: Desk, runs: list[list[str]]) -> None:
    made = desk.scheduler(Schedule(every="2h"))
    looks(desk, made)
    made._write(event="ended", number=1, code=0, result="recall of a\u2028b\x85")
    assert made._past().number == 0
    assert runs == []


def test_a_key_that_needs_another_folder_is_refused_without_it(desk: Desk) -> None:
    for given in (Schedule(windows=1), Schedule(drift=1)):
        with refused("schedule"):
            desk.scheduler(given)
    with refused("schedule"):
        desk.scheduler(Schedule(every="1h", release="all"))
    with refused("schedule"):
        desk.scheduler(None)


# -- private runs ------------------------------------------------------------------------------------------------------

PRIVATE = """
name = "e"
rounds = 5
park.devices = 50
model.name = "logistic"
[method]
name = "fedavg"
mix = { kind = "private", clip = 1.0, noise = 1.0, delta = 1e-2 }
selection = { kind = "poisson", share = 0.4 }
"""


def private(desk: Desk, budget: float | None) -> Scheduler:
    file = desk.cloud(Schedule(every="2h", epsilon=budget))
    (desk.folder / "e.toml").write_text(PRIVATE)
    return Scheduler(file, clock=Clock(lambda: desk.wall, lambda: desk.steady_s))


@pytest.fixture
def spends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs that spend what the experiment has them spend."""
    started: list[str] = []

    def cloud(words: list[str], record: Path, ended: Event) -> int:
        out = settings.read(CloudSettings, words[0]).out
        out.mkdir()
        (out / "experiment.toml").write_text(PRIVATE)
        (out / privacy.BEGUN).write_text("5\n")
        started.append(out.name)
        return 0

    monkeypatch.setattr(schedule, "_cloud", cloud)
    return started


def test_runs_of_a_private_experiment_stay_within_the_budget_together(desk: Desk, spends: list[str]) -> None:
    once, twice, thrice = (privacy.epsilon(1.0, 0.4, 5 * n, 1e-2, 50) for n in (1, 2, 3))
    made = private(desk, (twice + thrice) / 2)
    hours = [lambda: desk.passes(2)] * 5
    looks(desk, made, *hours)
    assert spends == ["run-1", "run-2"]
    assert desk.events() == ["began", "started", "ended", "started", "ended", "withheld"]
    assert [line["epsilon"]["a device"] for line in made.lines if "epsilon" in line] == pytest.approx(
        [once, twice, thrice], abs=1e-4
    )
    row = private(desk, (twice + thrice) / 2).look()
    assert not row[0]["due"]
    assert row[1]["there"] == f"{twice:.3g}, {thrice:.3g} with one more run"
    looks(desk, private(desk, 100.0))  # a larger budget
    assert spends == ["run-1", "run-2", "run-3"]


def test_a_budget_of_an_experiment_without_noise_is_refused(desk: Desk) -> None:
    with refused("schedule"):
        desk.scheduler(Schedule(every="2h", epsilon=1.0))


def test_losses_of_runs_are_added_by_what_they_protect(tmp_path: Path) -> None:
    """Two runs with noise on samples: ε and δ add up; secure sums compose as those of one run."""
    steps = [Spent("steps", 1.0, 0.1, 40, 1e-5, epsilon) for epsilon in (0.5, 0.75)]
    sums = [Spent("sums", 2.0, 1.0, n, 1e-3) for n in (3, 4)]
    found = privacy.together([*steps, *sums], 20)
    assert found["a sample"] == pytest.approx((1.25, 2e-5))
    assert found["a device"] == (privacy.sums_composed(((2.0, 7),), 1e-3), 1e-3)
    drawn = [Spent("drawn", noise, 0.4, 5, 1e-2) for noise in (1.0, 2.0)]
    (value, _) = privacy.together(drawn, 50)["a device"]
    assert privacy.epsilon(2.0, 0.4, 10, 1e-2, 50) < value < privacy.epsilon(1.0, 0.4, 10, 1e-2, 50)
    assert privacy.of_run(tmp_path) == []
    (tmp_path / "privacy.json").write_text("{")
    with refused("damaged-record"):
        privacy.of_run(tmp_path)


def test_a_run_with_noise_on_samples_that_stated_nothing_has_no_bound(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text('name = "e"\nwork = { sample_clip = 1.0, sample_noise = 1.0 }\n')
    assert privacy.of_run(tmp_path)[0].epsilon == 0.0
    (tmp_path / privacy.VISITS).write_text('{"0": 2}')
    (one,) = privacy.of_run(tmp_path)
    assert (one.kind, one.rounds, one.epsilon) == ("steps", 2, math.inf)
    about = {"epsilon": 0.25, "noise_multiplier": 1.0, "share": 0.1, "rounds": 40, "delta": 1e-5}
    (tmp_path / "privacy.json").write_text(json.dumps({"samples": about}))
    assert privacy.of_run(tmp_path) == [Spent("steps", 1.0, 0.1, 40, 1e-5, 0.25)]
    privacy.begin_visits(tmp_path, Train(Site("device"), Work()))  # it goes on: what it stated is no longer so
    assert privacy.of_run(tmp_path)[0].epsilon == math.inf


def test_a_run_that_went_on_after_its_statement_counts_whole(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(PRIVATE)
    about = {"epsilon": 0.25, "noise_multiplier": 1.0, "share": 0.4, "rounds": 1, "delta": 1e-2}
    privacy.begin_round(tmp_path)
    (tmp_path / "privacy.json").write_text(json.dumps({"models": about}))
    assert privacy.of_run(tmp_path)[0].rounds == 1
    privacy.begin_round(tmp_path)  # and was killed before it stated anything again
    assert privacy.of_run(tmp_path) == [Spent("drawn", 1.0, 0.4, 2, 1e-2)]


def test_a_further_run_is_taken_to_have_as_many_sums_as_the_longest_so_far() -> None:
    text = 'name = "e"\nrounds = 5\n[method]\nname = "fedavg"\ntravel = "secure-sum"\n'
    mix = 'mix = { kind = "private", clip = 1.0, noise = 1.0, distributed = true }\n'
    what = config.from_table(tomllib.loads(text + mix))
    assert [one.rounds for one in privacy.planned(what, ())] == [5]
    before = [Spent("sums", 1.0, 1.0, n, 1e-5) for n in (4, 10)]  # two sums of a device in each round
    assert [one.rounds for one in privacy.planned(what, before)] == [10]


@pytest.mark.parametrize("torn", ["", '{"at": "2026', "x" * 10_000, "{\n\n"[:1]])
def test_a_line_is_appended_behind_the_last_whole_one(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "log"
    for whole in ("", "first\n", "first\nsecond\n"):
        path.write_text(whole + torn)
        schedule.append(path, "next\n")
        assert path.read_text() == whole + "next\n"
    with refused("unwritable", RunError):
        schedule.append(tmp_path / "none" / "log", "next\n")


# -- with a registry ---------------------------------------------------------------------------------------------------


def test_a_canary_that_is_no_device_is_refused(desk: Desk) -> None:
    with refused("unknown device in schedule.canary"):
        desk.scheduler(Schedule(every="1h", release="canary", canary=("d9",)), provisioned(desk.folder))


def test_what_devices_reported_counts_while_it_is_kept_and_their_broker_is_reached(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    place = provisioned(desk.folder)
    keeper = AlarmKeeper(kept.read(place), now=lambda: desk.wall)
    made = desk.scheduler(Schedule(drift=1, windows=5, pause="1s"), alarms=place / "alarms")
    assert made._sight() == Sight()
    assert "No such file" in caplog.text
    for device, factory in (("d0", "north"), ("d1", "south")):
        data = report(device, "serving", None, number=1, drifted=["heat"], written=100)
        keeper.take(factory, topic("trial", "serving", device), data)
    keeper.tick({"north": True}, last=True)
    assert made._sight() == Sight({"d0": 100}, {"d0": True, "d2": False})
    desk.passes(0.1)
    assert made._sight() == Sight()
    assert "it is of 2026-11-26T11:00:00+00:00" in caplog.text


def test_windows_count_from_the_moment_a_device_is_seen(
    desk: Desk, runs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = desk.scheduler(Schedule(windows=50), alarms=provisioned(desk.folder))
    sights = [Sight()]
    monkeypatch.setattr(made, "_sight", lambda: sights[-1])

    def sees(**rows: int) -> Callable[[], None]:
        def act() -> None:
            sights.append(Sight(rows))
            desk.passes(2)

        return act

    looks(desk, made, sees(d0=1000), sees(d0=1020, d1=5000), sees(d0=1049), sees(d0=1050, d1=5000), sees(d0=1099))
    assert runs == [["run-1"]]
    assert [line["rows"] for line in made.lines if line["event"] == "seen"] == [{"d0": 1000}, {"d1": 5000}]
    sights.append(Sight({"d0": 1077}))
    assert [row["there"] for row in made.look()] == [27]


def test_drift_that_ends_counts_again(desk: Desk, runs: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    made = desk.scheduler(Schedule(drift=1), alarms=provisioned(desk.folder))
    sights = [Sight(drift={"d0": False})]
    monkeypatch.setattr(made, "_sight", lambda: sights[-1])
    monkeypatch.setattr(made, "_released", lambda _: "announced")

    def sees(*, drift: bool | None) -> Callable[[], None]:
        def act() -> None:
            sights.append(Sight(drift={} if drift is None else {"d0": drift}))
            desk.passes(2)

        return act

    looks(desk, made, *(sees(drift=one) for one in (True, True, None, True, False, True)))
    assert runs == [["run-1"], ["run-2"]]
    assert desk.events() == ["began", "started", "ended", "calm", "started", "ended"]


def test_a_run_begins_with_the_released_model_as_long_as_it_is_that(desk: Desk) -> None:
    place = provisioned(desk.folder)
    run = desk.folder / "first"
    run.mkdir()
    (run / "model.safetensors").write_bytes(b"weights")
    known = registered(registry.read(place), model(1))
    assert schedule._in_use(known) is None  # nothing is released yet
    about = {**known.entries[-1].about, "version": 2, "run": registry._facts(run)}
    known = registry.release(known.appended("register", **about), 2)
    assert schedule._in_use(known) == run / "model.safetensors"
    (desk.folder / "state").mkdir()
    desk.scheduler(Schedule(every="1h"), place)._config(desk.folder / "state/run-1")
    what = settings.read(CloudSettings, desk.folder / "state/run-1.toml")
    assert config.read(what.experiment, []).model.init_from == str(run / "model.safetensors")
    (run / "model.safetensors").write_bytes(b"trained on")
    assert schedule._in_use(known) is None


# -- what devices count ------------------------------------------------------------------------------------------------


def test_a_buffer_counts_what_was_written_beyond_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "b.sqlite"
    assert buffer.written(path) is None
    rows = [Row(0, float(t), np.zeros(1, np.float32), "") for t in range(1000)]
    with writing(path, ("x",), 64, 0.1, 5.0) as made:
        made.write(rows[:500])
        made.write(rows[499:])  # one of them is there already
        assert made.rows == 361
    assert buffer.written(path) == 1000


# -- real processes ----------------------------------------------------------------------------------------------------

TRIAL = """
name = "trial"
rounds = 1
data.samples_per_device = 60
park = { devices = 2, factories = 1 }
model.name = "logistic"
method.name = "fedavg"
"""


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[TrialPark]:
    (tmp_path / "e.toml").write_text(TRIAL)
    made = live.prepare(config.read(tmp_path / "e.toml", []), tmp_path / "park", predict=True)
    path = made.place / "cloud" / "cloud.toml"
    given = Schedule(every="3s", drift=1, pause="1s", look="1s", release="all")
    path.write_text(settings.to_toml(replace(settings.read(CloudSettings, path), schedule=given)))
    keeps = [sys.executable, "-m", "fedfloor", "model", "alarms", "--park", str(made.place), "--follow"]
    keeper = subprocess.Popen(keeps, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield made
    keeper.terminate()
    keeper.wait()
    live.down(made.folder)


def pictures(trial: TrialPark, name: str, value: int, count: int) -> None:
    """Have a device predict pictures of one brightness, give or take."""
    x = np.random.default_rng(0).integers(value, value + 20, size=(count, 1, 28, 28)).astype(np.uint8)
    folder = trial.folder / "rows" / "device-1"
    np.save(folder / "part", x)
    (folder / "part.npy").rename(folder / f"{name}.npy")


@pytest.mark.slow
@pytest.mark.live
@needs_mosquitto
def test_a_park_of_real_processes_trains_and_releases_by_itself(trial: TrialPark) -> None:
    """First because time passed, then because a device drifts; Ctrl-C ends the wait, and leaves no process."""
    live.up(trial, lambda _: None)
    cloud = trial.place / "cloud" / "cloud.toml"
    words = [sys.executable, "-m", "fedfloor", "park", "schedule", str(cloud), "--park", str(trial.place)]
    waiting = subprocess.Popen([*words, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = trial.folder / "run-schedule.jsonl"
    assert until(lambda: log.exists() and '"ended"' in log.read_text(), 120), log.read_text()
    again = subprocess.run([*words, "--once"], capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "another process is using" in again.stderr
    waiting.send_signal(signal.SIGINT)
    out, told = waiting.communicate(timeout=120)
    lines = json.loads(out)["rows"]
    ended = next(line for line in lines if line["event"] == "ended")
    assert ended["result"] == "version 1 released: device-0 serving, device-1 serving", told

    given = settings.read(CloudSettings, cloud)
    cloud.write_text(settings.to_toml(replace(given, schedule=Schedule(drift=1, pause="1s", release="all"))))
    pictures(trial, "usual", 100, LEARN * BLOCK + BLOCK)
    pictures(trial, "zbrighter", 180, 8 * BLOCK)
    rows = trial.place / "devices/device-1/state/models/rows.json"
    assert until(lambda: rows.exists() and "zbrighter" in rows.read_text(), 120)
    now = kept.read(trial.place).state / kept.NOW
    assert until(lambda: '"drift": ["channel' in now.read_text(), 60), now.read_text()
    done = subprocess.run([*words, "--once", "--json"], capture_output=True, text=True, check=False, timeout=200)
    started = [line for line in json.loads(done.stdout)["rows"] if line["event"] == "started"]
    assert [(line["drift"], line["why"][0]["reason"]) for line in started] == [(["device-1"], "drift")], done.stderr
    assert (trial.folder / f"run-{started[0]['number']}" / "model.safetensors").exists()
