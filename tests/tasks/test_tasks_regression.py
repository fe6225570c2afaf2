"""Regression: losses against closed forms, bins, figures, and runs from tables and arrays."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfloor import Experiment, run
from fedfloor.base.checking import checked
from fedfloor.data.files.own import load
from fedfloor.data.reading import Columns, Reading
from fedfloor.tasks.figures import Errors, coverage, nasa_score, r_squared, rmse
from fedfloor.tasks.kinds import made
from fedfloor.tasks.regression import Regression
from refusals import refused

UNIT = {"center": (0.0,), "scale": (1.0,)}


def test_squared_and_huber_are_those_of_scaled_targets() -> None:
    out = torch.tensor([[0.5], [-1.0]])
    y = torch.tensor([[13.0], [9.0]])
    task = Regression(center=(10.0,), scale=(2.0,))
    z = torch.tensor([1.5, -0.5])  # (13 − 10)/2, (9 − 10)/2
    assert torch.equal(task.losses(out, y), (out[:, 0] - z).square())
    huber = Regression(loss="huber", delta=0.75, center=(10.0,), scale=(2.0,))
    expected = [0.75 * (1.0 - 0.375), 0.5 * 0.5**2]  # |0.5 − 1.5| = 1 is beyond δ, |−1 + 0.5| = 0.5 is not
    assert huber.losses(out, y).tolist() == pytest.approx(expected)


def test_the_cap_is_the_largest_target() -> None:
    task = Regression(cap=125.0, **UNIT)
    out = torch.tensor([[120.0]])
    y = torch.tensor([[300.0]])
    assert task.losses(out, y).tolist() == [25.0]
    assert task.fitted(np.array([[300.0], [25.0]])).center == (75.0,)


def test_pinball_is_least_at_the_quantile() -> None:
    y = torch.from_numpy(np.random.default_rng(0).exponential(size=(4001, 1)).astype(np.float32))
    task = Regression(loss="quantile", levels=(0.1, 0.5, 0.9), **UNIT)
    best = np.quantile(y.numpy(), task.levels)
    least = float(task.losses(torch.tensor([best.tolist()]).expand(len(y), 3).float(), y, "mean"))
    for place in range(3):
        for step in (-0.05, 0.05):
            moved = best.copy()
            moved[place] += step
            assert float(task.losses(torch.tensor([moved.tolist()]).expand(len(y), 3).float(), y, "mean")) > least


def test_quantiles_are_sorted_and_answered_with_their_interval() -> None:
    """Two targets of three levels: 10 + 2·(3, 1, 2) is (12, 14, 16) sorted, 100 + 5·(−1, 0, 2) is (95, 100, 110)."""
    task = Regression(
        loss="quantile", levels=(0.1, 0.5, 0.9), center=(10.0, 100.0), scale=(2.0, 5.0), edges=(13.0, 15.0), unit="mm"
    )
    out = torch.tensor([[3.0, 1.0, 2.0, -1.0, 0.0, 2.0]])
    assert task.values(out).tolist() == [[[12.0, 14.0, 16.0], [95.0, 100.0, 110.0]]]
    assert task.predicted(out).tolist() == [1]  # of the first target the middle level, 14, lies between 13 and 15
    answer = task.answer(out, torch.zeros(1))
    assert answer.value.tolist() == [[14.0, 100.0]]
    assert (answer.low.tolist(), answer.high.tolist()) == ([[12.0, 95.0]], [[16.0, 110.0]])
    assert answer.level == pytest.approx(0.8)
    assert answer.names == ("value 1", "value 2")
    assert (answer.unit, answer.scale) == ("mm", (2.0, 5.0))


def test_a_single_number_has_no_interval() -> None:
    task = Regression(center=(10.0,), scale=(2.0,), names=("wear",), cap=20.0)
    answer = task.answer(torch.tensor([[3.0], [-1.0]]), torch.zeros(1))
    assert answer.value.tolist() == [[16.0], [8.0]]
    assert (answer.low, answer.high, answer.level) == (None, None, None)
    assert (answer.names, answer.above) == (("wear",), 20.0)


def test_nasa_is_its_score_and_linear_far_away() -> None:
    task = Regression(loss="nasa", center=(0.0,), scale=(4.0,))
    d = torch.tensor([-26.0, -13.0, 0.0, 10.0, 30.0])
    expected = [math.expm1(2), math.expm1(1), 0.0, math.expm1(1), math.expm1(3)]
    found = task.losses(d[:, None] / 4, torch.zeros(5, 1))
    assert found.tolist() == pytest.approx([one / 4 for one in expected], rel=1e-6)
    far = torch.tensor([[60.0], [70.0], [80.0]]).div(4)
    losses = task.losses(far, torch.zeros(3, 1))
    assert float(losses[2] - losses[1]) == pytest.approx(float(losses[1] - losses[0]), rel=1e-5)
    assert float(losses[0]) == pytest.approx((math.exp(5) * 2 - 1) / 4, rel=1e-5)  # e⁵ at 50, slope e⁵/10 for ten more


def test_bins_are_of_equal_frequency_and_the_same_for_both_libraries() -> None:
    y = np.arange(100, dtype=np.float32)[:, None]
    task = Regression(bins=4).fitted(y)
    assert np.bincount(task.bin(y)).tolist() == [25, 25, 25, 25]
    out = torch.from_numpy((y - task.center[0]) / task.scale[0]).float()
    assert task.hits(out, torch.from_numpy(y)).float().mean() > 0.95  # rounding at the edges alone
    capped = Regression(bins=4, cap=50.0).fitted(y)
    assert (capped.bin(y)[50:] == capped.bin(y)[99]).all()


def test_figures_by_hand() -> None:
    errors = Errors(np.array([[10.0], [20.0], [200.0]]), np.array([[[13.0]], [[16.0]], [[125.0]]]), cap=125.0)
    assert rmse(errors) == pytest.approx(math.sqrt((9 + 16) / 3))
    assert nasa_score(errors) == pytest.approx(math.expm1(0.3) + math.expm1(4 / 13))
    assert nasa_score(Errors(np.array([[3000.0]]), np.array([[[0.0]]]))) == math.inf  # e²³⁰: kW, no cycles
    mean = (10 + 20 + 125) / 3
    assert r_squared(errors) == pytest.approx(1 - 25 / sum((one - mean) ** 2 for one in (10, 20, 125)))
    assert coverage(errors) is None
    assert coverage(Errors(np.array([[1.0], [5.0]]), np.array([[[0.0, 1, 2]], [[6.0, 7, 8]]]))) == 0.5


def test_a_task_survives_its_description() -> None:
    task = Regression(loss="quantile", cap=125.0).fitted(np.arange(50.0)[:, None])
    assert made(json.loads(json.dumps(task.describe()))) == task


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    rows = ["machine,hall,cycle,temp,vib,life"]
    for m in range(8):
        life = int(rng.integers(40, 70))
        for t in range(life):
            worn = (t / life) ** 2
            noise = rng.normal(0, 0.1, 2)
            rows.append(f"m{m},h{m % 2},{t},{3 * worn + noise[0]:.3f},{1 - worn + noise[1]:.3f},{life - t - 1}")
    path = tmp_path_factory.mktemp("life") / "life.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def experiment(table: Path, **task: object) -> Experiment:
    return checked(Experiment, {
        "name": "life", "rounds": 6, "work": {"lr": 0.05, "momentum": 0.9, "epochs": 2},
        "model": {"name": "mlp-sensor"},
        "data": {
            "path": str(table), "split": {"kind": "device", "test": 0.25}, "window": {"length": 4, "step": 1},
            "columns": {"device": "machine", "factory": "hall", "time": "cycle", "label": "life"},
            "task": {"kind": "regression", **task},
        },
    }, "")  # fmt: skip


@pytest.mark.parametrize("loss", ["squared", "huber", "quantile", "nasa"])
def test_every_loss_learns_the_remaining_life(table: Path, tmp_path: Path, loss: str) -> None:
    done = run(experiment(table, loss=loss, cap=50.0), out=tmp_path)
    first, last = done.lines[0].figures, done.lines[-1].figures
    assert first is not None
    assert last is not None
    assert next(iter(last)) == "RMSE"
    assert last["RMSE"] < 10 < np.std(load(table, experiment(table).data, 0).target_test[:, 0])  # type: ignore[index]
    assert last["RMSE uncapped"] >= last["RMSE"]
    assert ("coverage" in last) == (loss == "quantile")


def test_ranks_do_not_change_a_number(table: Path, tmp_path: Path) -> None:
    one = run(experiment(table), out=tmp_path / "one")
    two = run(experiment(table), out=tmp_path / "two", ranks=2)
    assert [line.figures for line in one.lines] == [line.figures for line in two.lines]
    assert [line.accuracy for line in one.lines] == [line.accuracy for line in two.lines]


def test_life_is_counted_from_the_end_of_recordings(table: Path, tmp_path: Path) -> None:
    text = "\n".join(line.rpartition(",")[0] for line in table.read_text().splitlines()) + "\n"
    (tmp_path / "runs.csv").write_text(text)
    given = experiment(table).data
    counted = experiment(tmp_path / "runs.csv").data
    columns = replace(counted.columns, label="label")
    own = load(tmp_path / "runs.csv", replace(counted, remaining=True, columns=columns), 0)
    assert np.array_equal(own.target, load(table, given, 0).target)  # type: ignore[arg-type]


def test_recordings_that_still_run_have_no_targets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of two recordings of each device the first fails; rows for testing may be in a table of their own."""

    def write(name: str, ends: dict[str, tuple[str, str]], rows: int = 12) -> Path:
        cells = [
            f"{device},{run},{t},{t * 0.5},{status}"
            for device, states in ends.items() for run, status in enumerate(states) for t in range(rows)
        ]  # fmt: skip
        (tmp_path / name).write_text("\n".join(["device,run,time,heat,status", *cells]) + "\n")
        return tmp_path / name

    path = write("runs.csv", {"a": ("failed", "running"), "b": ("failed", "running")})
    test = write("test.csv", {"a": ("failed", "running"), "c": ("running", "running")}, rows=5)
    reading = Reading(
        columns=Columns(run="run", label="status"), remaining=True, ended="failed", test=str(test), task="regression"
    )
    with caplog.at_level("INFO"):
        data = load(path, reading, 0)
    assert "5 of 8 recordings do not end with 'failed' (data.ended), and are left out" in caplog.text
    assert data.target is not None
    assert data.target_test is not None
    assert data.target[:, 0].tolist() == [*range(11, -1, -1)] * 2
    assert data.target_test[:, 0].tolist() == [4, 3, 2, 1, 0]
    assert data.owned.names == ("a", "b")  # type: ignore[union-attr]
    assert data.inputs.columns == ("heat",)
    assert data.inputs.names["label"] == ""  # so that tables for predictions may have the column
    with refused("no-ended-recording"):
        load(path, replace(reading, ended="broken"), 0)
    with refused("data.ended"):
        replace(reading, remaining=None)


def test_arrays_may_have_several_targets(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    np.savez(tmp_path / "two.npz", x=x, y=x[:, :2] * [2, 30] + [0, 100])
    data = load(tmp_path / "two.npz", Reading(task="regression"), 0)
    assert data.outputs == 2
    assert data.target is not None
    assert data.target.shape == (160, 2)
    assert len(data.task.center) == 2  # type: ignore[attr-defined]


def test_bad_targets_are_refused_by_their_place(table: Path, tmp_path: Path) -> None:
    lines = table.read_text().splitlines()
    (tmp_path / "odd.csv").write_text("\n".join([*lines[:3], lines[3].rpartition(",")[0] + ",worn", *lines[4:]]))
    with refused("odd-text"):
        load(tmp_path / "odd.csv", experiment(tmp_path / "odd.csv").data, 0)
    same = [lines[0], *(line.rpartition(",")[0] + ",7" for line in lines[1:])]
    (tmp_path / "same.csv").write_text("\n".join(same) + "\n")
    with refused("constant-target"):
        load(tmp_path / "same.csv", experiment(tmp_path / "same.csv").data, 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": {"objective": "focal"}}, "objective"),
        ({"evaluate": {"headline": "RMSE"}, "data": {"name": "labels"}, "park": {"devices": 3}}, "evaluate.headline"),
    ],
)
def test_what_does_not_fit_is_refused(table: Path, tmp_path: Path, changes: dict[str, object], said: str) -> None:
    document: dict[str, object] = {
        "rounds": 1, "data": {"path": str(table), "task": "regression", "columns": {
            "device": "machine", "factory": "hall", "time": "cycle", "label": "life"}}, **changes,
    }  # fmt: skip
    with refused(said):
        run(checked(Experiment, document, ""), out=tmp_path)
