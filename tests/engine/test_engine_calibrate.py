"""Promised intervals and alarm rates: thresholds against closed forms, pooled ones and simulated parks."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfloor import compare, config, run
from fedfloor.engine.calibrate import bisected, packed, settings, table
from fedfloor.experiment import Experiment
from fedfloor.inference.trained import load_model
from fedfloor.park.build import _units
from fedfloor.park.park import Park
from fedfloor.report.ledger import collect
from fedfloor.report.page import render
from fedfloor.runs.parks import build_park
from fedfloor.tasks.kinds import made, read
from fedfloor.tasks.reconstruction import Reconstruction
from fedfloor.tasks.regression import Regression
from refusals import refused

ERROR = 2 ** (80 / 64**4) - 1


def found(devices: list[np.ndarray], share: float, units: int) -> np.ndarray:
    """Return the thresholds of devices' scores [n_k, S]."""
    return bisected(
        lambda low, width: (np.sum([table(one, low, width) for one in devices], axis=0), units),
        share, devices[0].shape[1],
    )[0]  # fmt: skip


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any), st.integers(1, 3),
    st.floats(0.02, 0.98), st.integers(0, 2**32 - 1), st.booleans(),
)  # fmt: skip
def test_a_promised_threshold_is_the_corrected_order_statistic_however_samples_are_divided(
    sizes: list[int], many: int, share: float, seed: int, ties: bool
) -> None:
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    scores = np.exp2(rng.integers(-3, 3, (n, many)) if ties else rng.normal(0, 4, (n, many)))
    devices = np.split(scores, np.cumsum(sizes)[:-1])
    order = min(n, math.ceil((n + 1) * share - 1e-9))  # ⌈(n + 1)c⌉
    wanted = np.sort(scores, axis=0)[order - 1]
    got = found(devices, share, n)
    assert (wanted <= got).all()
    assert (got <= wanted * (1 + ERROR) * (1 + 1e-12)).all()


def test_units_raise_the_share_and_equal_scores_are_their_threshold() -> None:
    scores = np.arange(1.0, 101.0)[:, None]
    assert found([scores], 0.9, 0)[0] == pytest.approx(90, rel=1e-5)  # a plain quantile
    assert found([scores], 0.9, 100)[0] == pytest.approx(91, rel=1e-5)  # 0.9·101 = 90.9
    assert found([scores], 0.9, 10)[0] == pytest.approx(99, rel=1e-5)  # 0.9·(1 + 1/10)
    assert found([scores], 0.9, 2)[0] == pytest.approx(100, rel=1e-5)  # more than all
    assert found([np.full((7, 2), 3.0)], 0.5, 7) == pytest.approx(3.0, rel=1e-5)
    assert found([np.zeros((0, 2))], 0.5, 0).tolist() == [0.0, 0.0]


def test_new_samples_of_new_units_are_covered_as_promised() -> None:
    rng = np.random.default_rng(0)
    kept = []
    for _ in range(400):  # 20 recordings of 10 rows with a level of their own, and a new one
        levels = rng.normal(0, 2, (21, 1))
        scores = np.exp2(levels + rng.normal(0, 1, (21, 10)))
        limit = found([scores[:20].reshape(-1, 1)], 0.9, 20)[0]
        kept.append(
            [(scores[20] <= limit).mean(), (scores[20] <= found([scores[:20].reshape(-1, 1)], 0.9, 200)[0]).mean()]
        )
    by_recording, by_row = np.mean(kept, axis=0)
    deviation = np.std(kept, axis=0)[0] / np.sqrt(len(kept))
    assert by_recording >= 0.9 - 2 * deviation
    assert by_row < by_recording  # rows of a recording counted as independent promise too much


@pytest.mark.parametrize(
    "task",
    [Regression(coverage=0.8), Regression(loss="quantile", coverage=0.8),
     Regression(loss="quantile", levels=(0.1, 0.3, 0.5, 0.7, 0.9), coverage=0.6), Regression(cap=1.5, coverage=0.8)],
)  # fmt: skip
@pytest.mark.parametrize("margins", [(0.7, 0.25), (-0.2, -0.05)])
def test_an_interval_holds_a_number_if_its_score_is_within_the_threshold(
    task: Regression, margins: tuple[float, float]
) -> None:
    rng = np.random.default_rng(1)
    known = made({**task.describe(), "center": [1.0, -2.0], "scale": [0.5, 3.0]})
    assert isinstance(known, Regression)
    out = torch.from_numpy(rng.normal(0, 1, (200, known.outputs(5, 2, (3,))))).double()
    y = torch.from_numpy(rng.normal([1.0, -2.0], [0.6, 3.5], (200, 2)))
    with_margins = known.calibrated([2.0**margin for margin in margins])
    assert with_margins.margins == pytest.approx(margins)
    values = with_margins.values(out)
    low, high = values[:, :, 0], values[:, :, -1]
    inside = (low <= known.capped(y)) & (known.capped(y) <= high)
    within = known.strangeness(out, y) <= torch.exp2(torch.tensor(margins).double()) * (1 + 1e-9)
    crossed = (
        known.values(out)[:, :, -1] + 2 * torch.tensor(margins) * torch.tensor(known.scale) < known.values(out)[:, :, 0]
    )  # margins below 0 beyond half of an interval leave the prediction alone
    assert torch.equal(inside[~crossed], within[~crossed])
    assert (values.diff(dim=2) >= 0).all()
    answer = with_margins.answer(out, out)
    assert answer.level == pytest.approx(task.coverage)


PLANT: dict[str, Any] = {
    "name": "promise", "rounds": 2, "model": {"name": "mlp-sensor"}, "method": {"name": "fedavg"},
    "park": {"devices": 6}, "work": {"batch_size": 16, "momentum": 0.5, "lr": 0.02},
    "evaluate": {"every": 2, "validation": 0.3},
}  # fmt: skip


def what(task: dict[str, Any], **more: Any) -> Experiment:
    data = {"name": "machines", "window": {"length": 6, "step": 3}, "task": task, "machines": {"runs": 3}}
    return config.from_table(PLANT | {"data": data} | more)


def held(park: Park) -> Any:
    assert park.validating is not None
    return park.validating.dataset


def test_a_run_promises_measures_and_answers_with_intervals(tmp_path: Path) -> None:
    task = {"kind": "regression", "cap": 100, "coverage": 0.75}
    asked = what(task)
    whole = held(build_park(asked))
    assert len(np.unique(whole.unit_test)) == 6  # one of two recordings of each machine
    run(asked, out=tmp_path / "run", ranks=1)
    promise = json.loads((tmp_path / "run/evaluation.json").read_text())["promise"]
    assert (promise["promised"], promise["units"], len(promise["devices"])) == (0.75, 6, 6)
    assert promise["measured"] == pytest.approx(np.mean(promise["devices"]), abs=0.1)
    assert 0.4 < promise["measured"] <= 1
    model = load_model(tmp_path / "run")
    assert isinstance(model.task, Regression)
    assert len(model.task.margins) == 1
    x = whole.take_test(np.arange(len(whole.y_test)))
    answer = model.answer(x)
    true = np.minimum(whole.target_test, 100)
    inside = (answer.parts()["low"] <= true + 1e-3) & (true - 1e-3 <= answer.parts()["high"])
    assert 0.75 * (1 + 1 / 6) <= inside.mean() <= 0.75 * (1 + 1 / 6) + 0.02  # of the held-out samples themselves
    page = render(collect([tmp_path / "run"]))
    assert "Promised and measured" in page
    assert "Calibration of the levels" not in page, "an interval is promised with both ends together"
    assert "interval of 75 %" in answer.phrase


def test_nothing_is_measured_on_the_samples_that_set_the_margins(tmp_path: Path) -> None:
    task = {"kind": "regression", "cap": 100, "coverage": 0.75}
    run(what(task, evaluate={"every": 2, "validation": 0.3, "on": "validation"}), out=tmp_path / "run", ranks=1)
    promise = json.loads((tmp_path / "run/evaluation.json").read_text())["promise"]
    assert (promise["promised"], promise["measured"], {*promise["devices"]}) == (0.75, None, {None})
    assert "0 of 0" in render(collect([tmp_path / "run"]))


def test_forecasts_are_promised_each_row_ahead(tmp_path: Path) -> None:
    task = {
        "kind": "forecasting",
        "horizon": 3,
        "sensors": ["vibration", "pressure"],
        "loss": "quantile",
        "coverage": 0.8,
    }
    run(what(task), out=tmp_path / "run", ranks=1)
    found_task = load_model(tmp_path / "run").task
    assert len(found_task.margins) == 6  # type: ignore[attr-defined]
    told = json.loads((tmp_path / "run/evaluation.json").read_text())
    assert told["promise"]["measured"] == pytest.approx(np.mean([one["inside"] for one in told["errors"]["targets"]]))
    inside = [one["inside"] for one in told["errors"]["targets"]]
    assert min(inside) > 0.7, inside
    assert max(inside) - min(inside) < 0.2, "rows further ahead have wider intervals"


def test_false_alarms_are_promised_by_the_thousand(tmp_path: Path) -> None:
    task = {"kind": "reconstruction", "false_alarms_per_1000": 150}
    run(what(task), out=tmp_path / "run", ranks=1)
    told = json.loads((tmp_path / "run/evaluation.json").read_text())
    assert told["promise"]["promised"] == pytest.approx(0.85)
    assert told["promise"]["measured"] == pytest.approx(1 - told["figures"]["false alarms"])
    plain = {"kind": "reconstruction", "quantile": 0.85}
    run(what(plain), out=tmp_path / "plain", ranks=1)
    low, high = (load_model(tmp_path / name).task.threshold for name in ("plain", "run"))  # type: ignore[attr-defined]
    assert low < high
    assert "promise" not in json.loads((tmp_path / "plain/evaluation.json").read_text())


@pytest.mark.parametrize(
    ("task", "key"),
    [({"kind": "regression", "cap": 100, "coverage": 0.9}, "promise"),
     ({"kind": "reconstruction", "false_alarms_per_1000": 0.1}, "promise"),
     ({"kind": "regression", "coverage": 0.0}, "data.task.coverage"),
     ({"kind": "regression", "coverage": 1}, "data.task.coverage"),
     ({"kind": "forecasting", "coverage": 1.5}, "data.task.coverage"),
     ({"kind": "regression", "loss": "quantile", "levels": [0.1, 0.2, 0.5, 0.8, 0.9], "coverage": 0.6},
      "data.task.coverage"),
     ({"kind": "reconstruction", "false_alarms_per_1000": 600}, "data.task.false_alarms_per_1000"),
     ({"kind": "reconstruction", "false_alarms_per_1000": 1, "false_alarms_per_hour": 1, "period_s": 1},
      "data.task.false_alarms_per_1000")],
)  # fmt: skip
def test_what_cannot_be_promised_is_refused_with_what_can(task: dict[str, Any], key: str, tmp_path: Path) -> None:
    with refused(key):
        run(what(task), out=tmp_path / "run", ranks=1)


def test_a_park_whose_devices_hold_out_nothing_promises_nothing(tmp_path: Path) -> None:
    alone = {"machines": {"runs": 2}, "window": {"length": 6, "step": 3}, "name": "machines"}
    task = {"kind": "regression", "cap": 100, "coverage": 0.4}
    asked = what({}, data=alone | {"task": task}, park={"devices": 1})  # one recording is for testing, one for training
    with refused("data.task.coverage"):
        run(asked, out=tmp_path / "run", ranks=1)


def test_bins_of_several_scores_are_checked_one_by_one() -> None:
    assert settings(packed(np.array([-40.0, -38.75])), 80 / 64) == ""
    for low in ("", "-40.0 nan", "-40.0 -39.0", "-40.0 x", "-40.0 50.0"):
        assert settings(low, 80 / 64)


@pytest.mark.parametrize("margins", [[0.1, 0.2], [math.inf], [math.nan]])
def test_a_models_margins_are_checked(margins: list[float]) -> None:
    about = {**Regression(coverage=0.9, center=(0.0,), scale=(1.0,), edges=(0.0,)).describe(), "margins": margins}
    with refused("damaged-model"):
        read(about, 2, (), "model")
    assert Reconstruction(false_alarms_per_1000=10).share == pytest.approx(0.99)


def test_devices_have_intervals_of_their_own_drawn_towards_those_of_all(tmp_path: Path) -> None:
    task = {"kind": "regression", "cap": 100, "coverage": 0.75, "calibrate": "device"}
    run(what(task), out=tmp_path / "run", ranks=1)
    records = json.loads((tmp_path / "run/devices.json").read_text())
    own = {name: record["task"]["margins"][0] for name, record in records.items()}
    model = load_model(tmp_path / "run")
    shared = model.task.margins[0]  # type: ignore[attr-defined]
    alone = json.loads((tmp_path / "run/evaluation.json").read_text())["promise"]["devices"]
    assert len(set(own.values())) == len(alone) == 6
    assert min(own.values()) < shared < max(own.values())
    assert all(abs(margin - shared) < 0.5 for margin in own.values()), "one recording is too few to differ much"
    x = np.random.default_rng(0).normal(size=(1, *model.shape)).astype(np.float32)
    for name, margin in [*own.items(), ("another", shared), ("", shared)]:
        parts = model.answered(x, [name]).parts()
        half = float(parts["high"] - parts["low"]) / 2
        assert half == pytest.approx(margin * model.task.scale[0], rel=1e-4)  # type: ignore[attr-defined]
    run(what(task | {"calibrate": "park"}), out=tmp_path / "park", ranks=1)
    assert not (tmp_path / "park/devices.json").exists()
    assert load_model(tmp_path / "park").task.margins == (shared,)  # type: ignore[attr-defined]


def test_references_have_promises_only_if_they_are_calibrated(tmp_path: Path) -> None:
    task = {"kind": "regression", "cap": 100, "loss": "quantile", "coverage": 0.75}
    compare(what(task), ["fedavg"], out=tmp_path / "runs", ranks=1, references=True)
    told = {file.parent.name: json.loads(file.read_text()) for file in (tmp_path / "runs").rglob("evaluation.json")}
    kept = {name: one.get("promise", {}).get("promised") for name, one in told.items()}
    assert len(kept) == 4, kept
    (fitted,) = [name for name in kept if "scikit" in name]
    assert kept.pop(fitted) is None
    assert told[fitted]["errors"]["levels"] == [0.05, 0.5, 0.95]
    assert {*kept.values()} == {0.75}
    run(what({"kind": "reconstruction", "false_alarms_per_1000": 150}), out=tmp_path / "odd", ranks=1)
    (beside,) = (tmp_path / "odd").rglob("references*/*/evaluation.json")
    told = json.loads(beside.read_text())
    assert told["promise"]["measured"] == pytest.approx(1 - told["figures"]["false alarms"])


@pytest.mark.parametrize(
    ("first", "length", "units"),
    [([15, 16, 24, 25], 20, 1), ([0, 5, 10, 15, 20, 25, 30, 35], 10, 4), ([7, 16, 25], 10, 2), ([3, 13, 40], 10, 3)],
)
def test_units_are_windows_without_common_rows(first: list[int], length: int, units: int) -> None:
    """Windows from 15 to 25 on of 20 rows all have rows 25 to 34: one unit, though they begin in two blocks of 20."""
    data = build_park(what({"kind": "regression", "cap": 100})).dataset
    windows = replace(data, run=None, first=np.array(first), inputs=replace(data.inputs, length=length))
    found = _units(windows, np.arange(len(first)))
    assert found is not None
    assert len(np.unique(found)) == units
    disjoint = [first[0]]
    for start in first:
        if start >= disjoint[-1] + length:
            disjoint.append(start)
    assert units == len(disjoint)
