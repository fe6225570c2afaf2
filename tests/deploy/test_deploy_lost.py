"""Lost visits are named where people look: ledger, terminal, report, page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from test_deploy_failures import away, raises, replies
from test_deploy_faults import losing

from fedfloor.base.errors import RunError, SettingError
from fedfloor.deploy import cloud
from fedfloor.deploy.settings import CloudEdge, CloudSettings, Named
from fedfloor.engine.summing import SecureAggregation
from fedfloor.report.groups import groups
from fedfloor.report.ledger import collect
from fedfloor.report.notes import lost
from fedfloor.runs import ledger
from fedfloor.runs.terminal import losses, progress
from fedfloor.watch.state import Watched
from live_park import Inside, Live, experiment, live, simulated
from refusals import refused


def named(park: Live) -> CloudSettings:
    """The cloud's settings as provisioned: they list the devices of every edge."""
    members = {m: tuple(edge.settings.devices) for m, edge in park.edges.items()}
    own = {m: tuple(Named(one.name, one.device) for one in some) for m, some in members.items()}
    return replace(park.settings(), edges=tuple(CloudEdge(f"e{m}", m, some) for m, some in own.items()))


def untrained(lines: Sequence[ledger.Line]) -> list[list[int]]:
    return [line.measured["untrained"] for line in lines if line.measured is not None]


def test_devices_without_training_are_counted_and_named_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FedAvg visits all 4 devices in each of 3 rounds: d1 is away, d3 fails in round 2. Lost: 3 + 1 of 12 visits."""
    what = experiment(tmp_path, "fedavg", rounds=3, devices=4)
    with live(tmp_path, what) as park:
        away(park, 1)
        replies(park, "visit", 2, raises(RunError("no light")), who=3)
        settings = named(park)
        names = cloud.machines(settings, 2)
        with progress("trial", 3, names) as follow:
            cloud.run(settings, Inside(park.edges), report=follow)
    lines = ledger.read(tmp_path / "live/ledger.jsonl")
    assert [(line.participants, line.lost, line.visits) for line in lines] == [(3, 1, 4), (2, 2, 4), (3, 1, 4)]
    assert [line.lost_by for line in lines] == [{"1": [1, 1]}, {"1": [1, 1], "3": [1, 1]}, {"1": [1, 1]}]
    assert untrained(lines) == [[1], [1], [1]]
    measured = [line.measured or {} for line in lines]
    assert [row["absent"] for row in measured] == [["d1"]] * 3
    assert [set(row["failed"]) for row in measured] == [{"d1"}, {"d1", "d3"}, {"d1"}]
    assert measured[1]["failed"]["d3"] == "no light"
    shown = [row for row in capsys.readouterr().err.splitlines() if "visits lost" in row]  # others log there, too
    assert ["d1" in row for row in shown] == [True] * 3
    assert ["d1, d3" in row for row in shown] == [False, True, False]
    assert "1 of 4" in shown[0]
    assert "2 of 4" in shown[1]
    text = lost(groups(collect([tmp_path / "live"])))
    assert "4 of 12 visits of FedAvg in 3 of 3 rounds, of d1 3 and d3 1." in text
    assert text.endswith("never trained: d1 in FedAvg.")
    page = Watched(tmp_path / "live")
    page.poll()
    assert [row["visits"] for row in page.document["rounds"]] == [4, 4, 4]
    assert (page.document["run"]["untrained"], page.document["run"]["untrained_names"]) == (1, "d1")
    troubles = {(row["round"], row["who"], row["kind"]) for row in page.document["troubles"]}
    assert {(1, "d1", "absent"), (2, "d3", "failed")} <= troubles
    assert [device["name"] for device in json.loads((tmp_path / "live/park.json").read_text())["devices"]] == [
        "d0", "d1", "d2", "d3",
    ]  # fmt: skip


def test_a_device_that_trains_later_is_no_longer_among_those_that_never_did(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=3, devices=4)
    with live(tmp_path, what) as park:
        replies(park, "visit", 1, raises(RunError("no light")), who=3)
        got = park.run()
    assert untrained(got) == [[3], [], []]
    assert [line.lost_by for line in got] == [{"3": [1, 1]}, None, None]


def test_an_edge_that_does_not_answer_is_named_with_its_devices(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=1, devices=4)
    with live(tmp_path, what) as park:

        def fails(_: object) -> None:
            raise SettingError("no disk")

        park.edges[0].walk = fails  # type: ignore[method-assign, assignment]
        settings = named(park)
        cloud.run(settings, Inside(park.edges))
    (line,) = ledger.read(tmp_path / "live/ledger.jsonl")
    own = [device.name for device in settings.edges[0].devices]
    assert untrained([line]) == [[device.device for device in settings.edges[0].devices]]
    assert (line.measured or {})["absent"] == ["e0"]
    text = losses(vars(line), cloud.machines(settings, 2))
    assert all(name in text for name in own)
    assert "edge e0" in text


def test_participants_of_a_simulation_are_those_whose_visit_arrived(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=4, devices=8, more="faults.visit = 0.5")
    _, lines = simulated(what, tmp_path / "simulated")
    assert sum(line.lost for line in lines) > 0
    for line in lines:
        assert line.participants == 8 - line.lost  # each device has one visit
        assert sum(own for own, _ in (line.lost_by or {}).values()) == line.lost
        assert line.visits == (8 if line.lost else None)
        assert line.measured is None


def test_a_run_whose_sums_are_all_refused_ends_with_an_error_and_writes_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SecureAggregation, "excess", lambda *_: "the mean update is too long")
    what = experiment(tmp_path, "fedavg", rounds=2, devices=6, more="method.travel = 'secure-sum'")
    with live(tmp_path, what) as park, refused("no-change", RunError):
        park.run()
    run = tmp_path / "live"
    lines = ledger.read(run / "ledger.jsonl")
    assert [(line.participants, line.lost, line.visits) for line in lines] == [(0, 6, 6), (0, 6, 6)]
    assert json.loads((run / "failed.json").read_text())["round"] == 2
    assert not (run / "model.safetensors").exists()
    assert "round 1: every visit was lost or refused" in caplog.text
    assert "mean update is too long" in caplog.text
    text = lost(groups(collect([run])))
    assert "12 of 12 visits" in text
    assert "2 rounds lost every visit" in text


def test_a_run_in_which_a_rule_never_has_its_models_ends_with_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Krum with one outlier needs 2 · 1 + 3 models; of five devices one is always lost, and the first round of all."""
    more = "method.mix = { kind = 'krum', outliers = 1 }"
    what = experiment(tmp_path, "fedavg", rounds=3, devices=5, more=more)
    with losing(lambda key: key.device == 0 or key.round == 1), refused("no-change", RunError):
        simulated(what, tmp_path / "none")
    assert [line.lost for line in ledger.read(tmp_path / "none/ledger.jsonl")] == [5, 1, 1]
    caplog.clear()
    with losing(lambda key: key.device == 0 and key.round < 3):
        simulated(what, tmp_path / "last")
    assert [one.levelname for one in caplog.records if "fewer models or answers" in one.getMessage()] == ["WARNING"]
    assert (tmp_path / "last/model.safetensors").exists()


def test_a_run_that_learns_in_one_round_of_several_is_finished(tmp_path: Path) -> None:
    what = experiment(tmp_path, "hierfavg", rounds=3, devices=4)
    with losing(lambda key: key.round != 2):
        _, lines = simulated(what, tmp_path / "some")
    assert [line.lost for line in lines] == [8, 0, 8]
    assert (tmp_path / "some/model.safetensors").exists()
    with losing(lambda _: True), refused("no-change", RunError):
        simulated(what, tmp_path / "none")
