"""What ends a run before or in its rounds is told at once, to the machine that can mend it, and kept."""

from __future__ import annotations

import json
import sys
import threading
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_deploy_failures import away, raises, replies

from fedfloor.base.errors import RunError
from fedfloor.deploy import cloud, joining
from fedfloor.deploy import live as live_of
from fedfloor.deploy.processes import Crew, ParkProcess
from fedfloor.deploy.settings import DataSource, Deadlines
from fedfloor.report.groups import groups
from fedfloor.report.ledger import collect
from fedfloor.report.notes import failed, unfinished
from fedfloor.rollout.delivery import read_report
from fedfloor.runs.orders import Limits
from fedfloor.watch.state import Watched
from live_park import Inside, experiment, live
from parks import until
from refusals import refused

X = np.zeros((3, 1, 28, 28), np.uint8)
SHORT = "methods.fedavg.work.batch_size = 3\n"
DAY_NS = 86_400 * 10**9


@pytest.fixture
def sensor(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module whose function fails on devices 1 and 3, of different factories."""
    made = types.ModuleType("sensor")

    def see(device: int, _: int) -> Any:
        if device in (1, 3):
            raise ValueError(f"no light at {device}")
        return X, [0, 1, 2]

    made.see = see  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sensor", made)
    return made


def source(_: int) -> DataSource:
    return DataSource("function", name="sensor:see")


@pytest.mark.usefixtures("sensor")
def test_all_misfits_are_named_at_once_also_one_that_joins_after_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "MISFITS_S", 20.0)
    with live(tmp_path, experiment(tmp_path, "fedavg", devices=4), data=source) as park:
        away(park, 3)
        timer = threading.Timer(1.0, park.join, (3,))
        timer.start()
        with refused("holdings"):
            park.run()
        timer.join()


@pytest.mark.usefixtures("sensor")
def test_a_misfit_is_named_soon_although_another_device_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "MISFITS_S", 0.5)
    with live(tmp_path, experiment(tmp_path, "fedavg", devices=4), data=source) as park:
        park.deadlines = Deadlines(join_s=60.0)
        away(park, 2)
        began = time.monotonic()
        with refused("holdings"):
            park.run()
    assert time.monotonic() - began < 30


@pytest.mark.usefixtures("sensor")
def test_with_a_quorum_a_run_begins_without_devices_that_keep_it_from_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One device, missing or with samples that do not fit, kept every run of the park from beginning."""
    monkeypatch.setattr(joining, "MISFITS_S", 0.5)
    what = experiment(tmp_path, "fedavg", rounds=2, devices=6, more=SHORT + "deploy.quorum = 0.3\n")
    with live(tmp_path, what, data=source) as park:
        park.deadlines = Deadlines(join_s=3.0, round_s=120)
        away(park, 5)
        first = park.run(limits=Limits(stop_after=1))
        assert "begins without device 1, 3, 5, which take no part until the next run" in caplog.text
        assert "d5 has not reported" in caplog.text
        park.join(5)  # late, with samples that fit: it would change the sums of the run
        lines = park.run(resume=True)
    assert [line.lost for line in first + lines[1:]] == [3, 3]
    assert all(line.participants == 3 and sorted(map(int, line.lost_by or ())) == [1, 3, 5] for line in lines)
    assert sorted(json.loads((tmp_path / "live/left.json").read_text())) == ["1", "3", "5"]


@pytest.mark.parametrize("who", ["a device's claims", "an edge's answer", "an edge"])
def test_with_a_quorum_neither_claims_nor_an_edge_keep_a_run_from_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sensor: Any, who: str
) -> None:
    """Implausible claims, a malformed answer and a failing edge ended every run before its first round."""
    monkeypatch.setattr(joining, "MISFITS_S", 0.5)
    monkeypatch.setattr(sensor, "see", lambda device, tick: (X, [0, 1, 2]))
    what = experiment(tmp_path, "fedavg", rounds=1, devices=6, more=SHORT + "deploy.quorum = 2\n")
    with live(tmp_path, what, data=source) as park:
        park.deadlines = Deadlines(join_s=3.0, round_s=120)
        bad = park.edges[1]
        usual = park.agents[5].holding
        claims = {"samples": 10**6, "counts": [10**6, *[0] * 61]}
        if who == "a device's claims":
            park.agents[5].holding = lambda *a, **kw: {**usual(*a, **kw), **claims}  # type: ignore[method-assign]
        elif who == "an edge":
            bad.gather = raises(RunError("no"))  # type: ignore[method-assign]
        else:
            bad.gather = lambda _: ("gathered", {"held": 3}, {})  # type: ignore[method-assign]
        plain = park.settings()
        listed = [replace(e, devices=tuple(park.edges[e.factory].settings.devices)) for e in plain.edges]
        cloud.run(replace(plain, edges=tuple(listed)), Inside(park.edges))
    left = {*map(int, json.loads((tmp_path / "live/left.json").read_text()))}
    assert left == ({5} if who == "a device's claims" else set(bad.own))


@pytest.mark.usefixtures("sensor")
def test_a_quorum_that_is_not_met_ends_the_wait_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MISFITS_S", 0.5)
    with live(
        tmp_path, experiment(tmp_path, "fedavg", devices=4, more=SHORT + "deploy.quorum = 3\n"), data=source
    ) as park:
        park.deadlines = Deadlines(join_s=2.0)
        with refused("holdings"):
            park.run()


class Nobody:
    """Edges that must not be asked."""

    def request(self, *_: object) -> Any:
        raise AssertionError("an edge was asked")


def test_a_second_run_in_a_folder_is_refused_before_edges_are_asked(tmp_path: Path) -> None:
    with live(tmp_path, experiment(tmp_path, "fedavg", rounds=1, devices=2)) as park:
        park.run()
        settings = park.settings()
    with refused("exists") as error:
        cloud.run(settings, Nobody())
    assert "--out" not in str(error.value)
    with refused("--resume"):
        cloud.run(park.settings("other"), Nobody(), resume=True)


def test_a_run_that_fails_keeps_its_error_until_it_is_resumed(tmp_path: Path) -> None:
    with live(tmp_path, experiment(tmp_path, "fedavg", rounds=3, devices=2)) as park:
        for who in (0, 1):
            replies(park, "visit", 2, raises(RunError("no light")), who=who)
        with pytest.raises(RunError, match="no light"):
            park.run()
        kept = json.loads((tmp_path / "live/failed.json").read_text())
        assert kept["round"] == 2
        assert "no light" in kept["why"]
        compared = groups(collect([tmp_path / "live"]))
        assert "in round 2 of 3" in failed(compared)
        assert "no light" in failed(compared)
        assert unfinished(compared) == ""
        page = Watched(tmp_path / "live")
        page.poll()
        assert page.document["run"]["state"] == "failed"
        assert "no light" in page.document["run"]["why"]
        for who in (0, 1):
            del park.agents[who].worker
        lines = park.run(resume=True)
    assert [line.round for line in lines] == [1, 2, 3]
    assert not (tmp_path / "live/failed.json").exists()
    assert failed(groups(collect([tmp_path / "live"]))) == ""


def test_a_device_learns_why_its_edge_refuses_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with live(tmp_path, experiment(tmp_path, "fedavg", devices=2)) as park:
        agent = park.agents[0]
        agent._session = time.time_ns() + 2 * DAY_NS  # as after a start with its clock two days ahead
        agent.announce()
        assert until(lambda: "refuses this device" in caplog.text)
    (text,) = {
        one.getMessage()
        for one in caplog.records
        if "refuses this device" in one.getMessage() and "e0" in one.getMessage()
    }
    assert "clock" in text


def test_an_edge_that_ended_is_not_waited_for(tmp_path: Path) -> None:
    crew = Crew(tmp_path)
    edge = crew.start(
        "edge-a", "edge", [sys.executable, "-c", "print('not yet valid'); raise SystemExit(2)"], tmp_path, {}
    )
    process: ParkProcess = crew.start(
        "cloud", "cloud", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path, {}
    )
    try:
        crew.children[edge.pid].wait(30)
        with refused("process-died", RunError):
            live_of.follow(crew, process, lambda _: None)
    finally:
        crew.children[process.pid].kill()
        crew.children[process.pid].wait()


def test_drift_that_is_a_text_is_no_report() -> None:
    whole = {"state": "serving", "number": 1, "version": 1, "why": "", "drift": ["heat"]}
    report = read_report(json.dumps(whole).encode())
    assert report is not None
    assert report.drift == ("heat",)
    for drift in ("abc", {"a": 1}, 3, [1], None):
        assert read_report(json.dumps({**whole, "drift": drift}).encode()) is None
