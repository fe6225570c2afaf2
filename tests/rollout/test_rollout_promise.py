"""The release of a model with other thresholds: judged by what is promised, on devices and in its run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from fedfloor import config, run
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import settings
from fedfloor.deploy.own import Labelled
from fedfloor.deploy.settings import CloudSettings, Endpoint, Schedule
from fedfloor.experiment import Experiment
from fedfloor.rollout import gate, promise, registry, schedule
from fedfloor.rollout import model as models
from fedfloor.rollout.model import Model
from fedfloor.rollout.registry import Registry
from fedfloor.rollout.schedule import Scheduler
from fedfloor.rollout.statement import Statement
from fedfloor.rollout.training import judge
from fedfloor.runs.keeping import keeping
from fedfloor.runs.parks import build_park
from refusals import refused
from rollouts import provisioned

PLANT: dict[str, Any] = {
    "name": "kept", "rounds": 2, "model": {"name": "mlp-sensor"}, "method": {"name": "fedavg"},
    "park": {"devices": 6}, "work": {"batch_size": 16, "momentum": 0.5, "lr": 0.02},
    "evaluate": {"every": 2, "validation": 0.3},
}  # fmt: skip
TASKS = {
    "life": {"kind": "regression", "cap": 100, "coverage": 0.75},
    "odd": {"kind": "reconstruction", "false_alarms_per_1000": 150},
}


def what(task: str, seed: int = 0) -> Experiment:
    data = {"name": "machines", "window": {"length": 6, "step": 3}, "task": TASKS[task], "machines": {"runs": 3}}
    return config.from_table(PLANT | {"data": data, "seed": seed})


@pytest.fixture(scope="module", params=TASKS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return a task, and a folder with the runs ``first`` and ``again``, whose thresholds are those of newer rows."""
    folder = tmp_path_factory.mktemp(request.param)
    run(what(request.param), out=folder / "first", ranks=1)
    run(keeping(what(request.param, 1), folder / "first"), out=folder / "again", ranks=1)
    return request.param, folder


@pytest.fixture(scope="module")
def known(made: tuple[str, Path]) -> Registry:
    """Return a registry in which all devices use the first run's version, and the recalibrated one is registered."""
    place = made[1] / "park"
    place.mkdir()
    known, version = registry.register(registry.read(provisioned(place)), made[1] / "first")
    known, second = registry.register(registry.release(known, version), made[1] / "again")
    assert (version, second) == (1, 2)
    return known


def opened(known: Registry, version: int) -> Model:
    sha256, size = known.versions[version].file("d0")
    return models.load(known.data(sha256), Statement("trial", "d0", version, version, "mlp-sensor", sha256, size))


def held(task: str) -> Labelled:
    """Return the present test samples of one device as those that it holds out."""
    data = build_park(what(task, 1)).dataset
    rows = np.flatnonzero(data.owner_test == 0) if data.owner_test is not None else np.arange(60)
    target = None if data.target_test is None else data.target_test[rows]
    return Labelled(data.take_test(rows), data.y_test[rows], target, data.classes, data.task)


def test_a_device_measures_the_share_within_both_versions_thresholds(made: tuple[str, Path], known: Registry) -> None:
    seen = held(made[0])
    said = judge(lambda: seen, None)(opened(known, 2), opened(known, 1))
    recorded = json.loads((made[1] / "again/evaluation.json").read_text())["recalibrated"]
    assert said["samples"] == len(seen.x)
    assert said["kept new"] == pytest.approx(recorded["after"]["devices"][0], abs=1e-6)
    assert said["kept old"] == pytest.approx(recorded["before"]["devices"][0], abs=1e-6)
    assert all(isinstance(value, str | int | float) for value in said.values()), "a signed judgement is flat"
    first, second = promise.distances(said, recorded["promised"])
    assert first == pytest.approx(abs(said["kept new"] - recorded["promised"]))
    assert second == pytest.approx(abs(said["kept old"] - recorded["promised"]))
    assert "kept new" not in judge(lambda: seen, None)(opened(known, 2), None)


def test_the_runs_measure_decides_where_no_device_judges(
    made: tuple[str, Path], known: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "judged", lambda *_: [{"device": "d0", "samples": None, "why": "it holds none out."}])
    recorded = json.loads((made[1] / "again/evaluation.json").read_text())["recalibrated"]
    verdict = gate.verdict(known, 2, (), 1.0)
    assert verdict.better is recorded["nearer"]
    assert f"the promised {recorded['promised']:.4g}" in verdict.why
    for nearer in (True, False, None):
        about = dict(known.entries[-1].about)
        about["run"] = {**about["run"], "recalibrated": {**about["run"]["recalibrated"], "nearer": nearer}}
        other = replace(known, entries=(*known.entries[:-1], replace(known.entries[-1], about=about)))
        assert gate.verdict(other, 2, (), 1.0).better is nearer
        assert bool(registry.no_better(other, 2)) is (nearer is False)


@pytest.mark.parametrize(
    ("pairs", "better"),
    [([(0.02, 0.3), (0.05, 0.4)], True), ([(0.3, 0.02), (0.4, 0.05)], False), ([(0.1, 0.1), (0.1, 0.1)], False)],
)
def test_devices_decide_by_their_distances(
    known: Registry, monkeypatch: pytest.MonkeyPatch, pairs: list[tuple[float, float]],
    better: bool,
) -> None:  # fmt: skip
    rows = [
        {"device": f"d{k}", "samples": 40, "new": new, "in use": old, "why": None} for k, (new, old) in enumerate(pairs)
    ]
    monkeypatch.setattr(gate, "judged", lambda *_: rows)
    verdict = gate.verdict(known, 2, (), 1.0)
    assert verdict.better is better
    assert "a distance from the promise of" in verdict.why


@pytest.mark.parametrize("body", [{"kept new": 2.0, "kept old": 0.5}, {"kept new": 0.5}, {"kept new": "0.5"}])
def test_shares_that_cannot_be_are_refused(body: dict[str, Any]) -> None:
    with refused("range", RefusedError):
        promise.distances({"samples": 40, **body}, 0.9)


def test_a_device_without_a_share_says_why() -> None:
    with refused("without"):
        promise.distances({"why": "without: it holds no samples out."}, 0.9)


# -- a schedule --------------------------------------------------------------------------------------------------------


def cloud(folder: Path, given: Schedule) -> Path:
    (folder / "e.toml").write_text(config.brief(what("life", 1)))
    made = CloudSettings("trial", Path("e.toml"), Path("state/run"), (), Endpoint("127.0.0.1", 1), schedule=given)
    (folder / "cloud.toml").write_text(settings.to_toml(made))
    return folder / "cloud.toml"


def test_a_schedule_of_thresholds_keeps_the_released_model(
    made: tuple[str, Path], known: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").mkdir()
    scheduler = Scheduler(cloud(tmp_path, Schedule(every="1s", what="thresholds")), known.place)
    scheduler._config(tmp_path / "state/run-1")
    asked = config.read(settings.read(CloudSettings, tmp_path / "state/run-1.toml").experiment, [])
    assert (asked.rounds, asked.model.keep) == (1, True)
    assert asked.model.init_from == str(made[1] / "first/model.safetensors")
    nothing = Registry(known.place, known.ca, known.floor, known.entries[:-3])  # nothing is released
    monkeypatch.setattr(registry, "read", lambda _: nothing)
    assert scheduler.run(Event(), once=True) == 0  # it waits for the first second
    monkeypatch.setattr(
        schedule, "reasons", lambda *_: [{"reason": "every", "there": "1 s", "needed": "1s", "due": True}]
    )
    assert scheduler.run(Event(), once=True) == 2
    lines = [json.loads(one) for one in (tmp_path / "state/run-schedule.jsonl").read_text().splitlines()]
    assert [one["event"] for one in lines] == ["began", "started", "ended"]
    assert "release one first" in lines[-1]["result"]


def test_thresholds_need_the_authority_and_another_kind_is_refused(tmp_path: Path) -> None:
    with refused("schedule.what"):
        Scheduler(cloud(tmp_path, Schedule(every="1h", what="thresholds")))
    with refused("schedule.what"):
        Schedule(every="1h", what="limits")  # type: ignore[arg-type]


def test_a_rollback_returns_to_the_thresholds_of_before(known: Registry) -> None:  # the last one: it writes the journal
    known = registry.release(known, 2)
    back = registry.rollback(known)
    assert {use.version for use in known.used.values()} == {2}
    assert {use.version for use in back.used.values()} == {1}
    assert back.versions[1].files != back.versions[2].files
