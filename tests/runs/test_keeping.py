"""A kept model: to the bit, with the thresholds of a first calibration on the rows that are held out now."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedfloor import config, run
from fedfloor.experiment import Experiment
from fedfloor.inference.trained import load_model
from fedfloor.models.saved import content
from fedfloor.report.ledger import collect
from fedfloor.report.page import render
from fedfloor.runs import keeping
from fedfloor.runs.parks import build_park
from refusals import refused

PLANT: dict[str, Any] = {
    "name": "kept", "rounds": 2, "model": {"name": "mlp-sensor"}, "method": {"name": "fedavg"},
    "park": {"devices": 6}, "work": {"batch_size": 16, "momentum": 0.5, "lr": 0.02},
    "evaluate": {"every": 2, "validation": 0.3},
}  # fmt: skip
LIFE = {"kind": "regression", "cap": 100, "coverage": 0.75}
ODD = {"kind": "reconstruction", "false_alarms_per_1000": 150}


def what(task: dict[str, Any], **more: Any) -> Experiment:
    data = {"name": "machines", "window": {"length": 6, "step": 3}, "task": task, "machines": {"runs": 3}}
    return config.from_table(PLANT | {"data": data | more.pop("data", {})} | more)


def newer(task: dict[str, Any], first: Path, **more: Any) -> Experiment:
    """Return the experiment that keeps the model of ``first``, on recordings of other machines of the same kind."""
    model = {"name": "mlp-sensor", "init_from": str(first), "keep": True} | more.pop("model", {})
    return what(task, **({"seed": 1, "rounds": 1, "model": model} | more))


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("life") / "first"
    run(what(LIFE), out=folder, ranks=1)
    return folder


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd") / "first"
    run(what(ODD, data={"normalise": "device"}), out=folder, ranks=1)
    return folder


def told(folder: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((folder / "evaluation.json").read_text())
    return body


def assert_kept(first: Path, again: Path, *changed: str) -> None:
    """Assert that two models differ at most in the fields of the task named, and in their number of rounds."""
    (old, weights), (new, same) = content(first / "model.safetensors"), content(again / "model.safetensors")
    assert list(weights) == list(same)
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    assert {**old, "task": None, "round": 0} == {**new, "task": None, "round": 0}
    assert {name for name in old["task"] if old["task"][name] != new["task"][name]} == {*changed}


def within(folder: Path, park: Any) -> float:
    """Return the share of a park's test samples within the intervals of the model in a folder."""
    data = park.dataset
    parts = load_model(folder).answer(data.take_test(np.arange(len(data.y_test)))).parts()
    true = np.minimum(data.target_test, 100)
    return float(((parts["low"] <= true + 1e-4) & (true - 1e-4 <= parts["high"])).mean())


def test_the_model_stays_and_its_margin_is_the_order_statistic_of_the_rows_held_out_now(
    life: Path, tmp_path: Path
) -> None:
    asked = newer(LIFE, life)
    done = run(asked, out=tmp_path / "again", ranks=1)
    assert [line.round for line in done.lines] == [1]
    assert_kept(life, tmp_path / "again", "margins")
    park = build_park(what(LIFE, seed=1))
    assert park.validating is not None
    held = park.validating.dataset
    model = load_model(life)
    value = model.answer(held.take_test(np.arange(len(held.y_test)))).parts()["value"]
    away = np.abs(value - np.minimum(held.target_test, 100))[:, 0] / model.task.scale[0]  # type: ignore[attr-defined]
    units = len(np.unique(held.unit_test))
    order = math.ceil(len(away) * 0.75 * (1 + 1 / units) - 1e-9)
    margin = load_model(tmp_path / "again").task.margins[0]  # type: ignore[attr-defined]
    assert margin == pytest.approx(np.sort(away)[order - 1], abs=2e-5)
    measured = told(tmp_path / "again")["recalibrated"]
    assert measured["promised"] == 0.75
    assert measured["before"]["measured"] == pytest.approx(within(life, park), abs=1e-9)
    assert measured["after"]["measured"] == pytest.approx(within(tmp_path / "again", park), abs=1e-9)
    assert [len(measured[when]["devices"]) for when in ("before", "after")] == [6, 6]
    distance = [abs(measured[when]["measured"] - 0.75) for when in ("before", "after")]
    assert measured["nearer"] is (distance[1] < distance[0])
    page = render(collect([tmp_path / "again"]))
    assert "Before and after the recalibration" in page
    assert "were within the earlier ones" in page


def test_on_the_rows_of_the_first_calibration_nothing_changes(life: Path, tmp_path: Path) -> None:
    run(newer(LIFE, life, seed=0), out=tmp_path / "again", ranks=1)
    assert_kept(life, tmp_path / "again")
    measured = told(tmp_path / "again")["recalibrated"]
    assert measured["before"] == measured["after"]
    assert measured["nearer"] is False


def test_another_promise_holds_for_each_device_on_two_ranks_as_on_one(life: Path, tmp_path: Path) -> None:
    task = LIFE | {"coverage": 0.6, "calibrate": "device"}
    for ranks in (1, 2):
        run(newer(task, life), out=tmp_path / f"{ranks}", ranks=ranks)
    assert_kept(life, tmp_path / "1", "margins", "coverage", "calibrate")
    for name in ("model.safetensors", "devices.json", "evaluation.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    run(newer(task, tmp_path / "1", seed=2), out=tmp_path / "third", ranks=1)  # from thresholds of each device
    known = json.loads((tmp_path / "1/devices.json").read_text())
    assert len({tuple(one["task"]["margins"]) for one in known.values()}) > 1
    assert told(tmp_path / "third")["recalibrated"]["before"]["measured"] is not None


def test_a_devices_own_normalisation_is_kept_though_its_rows_changed(odd: Path, tmp_path: Path) -> None:
    more = {"normalise": "device", "machines": {"runs": 4}}
    run(newer(ODD, odd, seed=0, data=more), out=tmp_path / "again", ranks=1)
    assert_kept(odd, tmp_path / "again", "threshold")
    first, again = (json.loads((folder / "normalisation.json").read_text()) for folder in (odd, tmp_path / "again"))
    assert first == again
    run(what(ODD, data=more), out=tmp_path / "anew", ranks=1)
    assert json.loads((tmp_path / "anew/normalisation.json").read_text()) != first


def test_a_plain_quantile_is_found_again_and_measured(tmp_path: Path) -> None:
    task = {"kind": "reconstruction", "quantile": 0.9}
    run(what(task), out=tmp_path / "first", ranks=1)
    run(newer(task, tmp_path / "first"), out=tmp_path / "again", ranks=1)
    assert_kept(tmp_path / "first", tmp_path / "again", "threshold")
    body = told(tmp_path / "again")
    assert body["recalibrated"]["promised"] == 0.9
    assert body["recalibrated"]["after"]["measured"] == pytest.approx(1 - body["figures"]["false alarms"])


def test_the_limits_of_a_control_chart_are_found_again(tmp_path: Path) -> None:
    method = {"method": {"name": "hotelling"}, "methods": {"hotelling": {"limits": "quantile"}}}
    data = {"normalise": "standard"}
    run(what(ODD, data=data, **method), out=tmp_path / "first", ranks=1)
    run(newer(ODD, tmp_path / "first", data=data, **method), out=tmp_path / "again", ranks=1)
    assert_kept(tmp_path / "first", tmp_path / "again", "threshold")


def test_samples_that_set_the_thresholds_measure_nothing(life: Path, tmp_path: Path) -> None:
    more = {"evaluate": {"every": 1, "validation": 0.3, "on": "validation"}}
    run(newer(LIFE, life, **more), out=tmp_path / "again", ranks=1)
    assert told(tmp_path / "again")["recalibrated"]["nearer"] is None
    assert "no other samples measure them" in render(collect([tmp_path / "again"]))


def test_a_run_that_is_killed_before_its_results_goes_on_to_the_same(
    life: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (life / "model.safetensors").read_bytes()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(keeping, "recalibrated", killed)
        with pytest.raises(KeyboardInterrupt):
            run(newer(LIFE, life), out=tmp_path / "again", ranks=1)
    assert not (tmp_path / "again/model.safetensors").exists()
    run(newer(LIFE, life), out=tmp_path / "again", ranks=1, resume=True)
    run(newer(LIFE, life), out=tmp_path / "whole", ranks=1)
    for name in ("model.safetensors", "evaluation.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert (life / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("more", "key"),
    [({"task": LIFE | {"coverage": 0.99}}, "promise"),  # with the level that its few units can promise
     ({"model": {"init_from": None}}, "model.keep"),
     ({"model": {"init_from": "nowhere"}}, "model.init_from"),
     ({"task": {"kind": "regression", "cap": 100}}, "model.keep"),
     ({"task": {"kind": "classification"}}, "model.keep"),
     ({"task": ODD}, "model.keep"),
     ({"task": LIFE | {"cap": 50}}, "model.keep"),
     ({"task": LIFE | {"loss": "quantile", "levels": [0.1, 0.5, 0.9]}}, "model.keep"),
     ({"data": {"normalise": "device"}}, "model.keep"),
     ({"method": {"name": "ifca"}}, "model.keep"),
     ({"method": {"name": "fedper"}}, "model.keep"),
     ({"model": {"name": "logistic"}}, "model.init_from")],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_before_the_round(
    life: Path, tmp_path: Path, more: dict[str, Any], key: str
) -> None:
    task = more.pop("task", LIFE)
    with refused(key):
        run(newer(task, life, **more), out=tmp_path / "again", ranks=1)
    assert not (tmp_path / "again/model.safetensors").exists()


def test_a_damaged_model_is_refused_by_name(life: Path, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    whole = (life / "model.safetensors").read_bytes()
    below = re.sub(rb'(\\"scale\\": \[)\d', rb"\1-", whole)  # a deviation below 0
    assert len(below) == len(whole)
    (tmp_path / "first/model.safetensors").write_bytes(below)
    with refused("damaged-model"):
        run(newer(LIFE, tmp_path / "first"), out=tmp_path / "again", ranks=1)
