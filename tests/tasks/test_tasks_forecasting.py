"""Forecasting: targets are the rows ahead, errors are measured beside repeating the value before."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fedfloor
from fedfloor import Experiment, run
from fedfloor.base.checking import checked
from fedfloor.data.files.own import load
from fedfloor.runs.parks import load_data
from fedfloor.runs.references import repeated
from fedfloor.tasks.forecasting import Forecasting
from fedfloor.tasks.kinds import made
from fedfloor.tasks.residual import FromLast
from refusals import refused


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    rows = ["machine,cycle,wave,ramp,still"]
    for m in range(4):
        for t in range(150):
            rows.append(f"m{m},{t},{np.sin(t / 3 + m) + rng.normal(0, 0.02):.4f},{t},5")
    path = tmp_path_factory.mktemp("waves") / "waves.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def experiment(table: Path, data: dict[str, object] | None = None, **task: object) -> Experiment:
    return checked(Experiment, {
        "name": "waves", "rounds": 8, "work": {"lr": 0.05, "momentum": 0.9, "epochs": 3, "batch_size": 16},
        "model": {"name": "mlp-sensor"},
        "data": {
            "path": str(table), "window": {"length": 8, "step": 1}, "columns": {"device": "machine", "time": "cycle"},
            "task": {"kind": "forecasting", "horizon": 4, "sensors": ["wave", "ramp"], **task}, **(data or {}),
        },
    }, "")  # fmt: skip


def test_targets_are_the_rows_ahead_of_a_window(table: Path) -> None:
    data = load_data(experiment(table))
    x, y = data.take(np.array([0, 7]), 0), data.targets(np.array([0, 7]))
    assert x.shape == (2, 3, 8)
    assert y.shape == (2, 8)
    assert y[:, 4:].tolist() == [[8, 9, 10, 11], [15, 16, 17, 18]]  # of the ramp: the window ends with 7, or 14
    assert x[:, 1, -1].tolist() == [7, 14]
    wave = load(table, experiment(table, sensors=["wave"]).data, 0)
    assert np.allclose(wave.targets(np.array([0]))[0, 0], x[1, 0, 1])  # row 8 is in the window that ends with row 14


def test_no_target_of_training_lies_in_a_test_window(table: Path) -> None:
    data = load_data(experiment(table))
    whose = data.owner == 0  # type: ignore[operator]
    last = data.targets(np.flatnonzero(whose))[:, -1].max()
    first = data.take_test(np.flatnonzero(data.owner_test == 0))[:, 1].min()
    assert last < first


def test_mase_divides_by_repeating_the_value_before(table: Path, tmp_path: Path) -> None:
    task = load_data(experiment(table)).task
    assert isinstance(task, Forecasting)
    assert task.naive[4:] == (1.0,) * 4  # the ramp rises by 1
    done = run(experiment(table, sensors=["wave"]), out=tmp_path)
    figures = done.lines[-1].figures
    assert figures is not None
    naive = load_data(experiment(table, sensors=["wave"])).task.naive[0]  # type: ignore[attr-defined]
    assert figures["MASE"] == pytest.approx(figures["MAE"] / naive, rel=1e-6)  # type: ignore[operator]
    assert figures["MASE"] < 0.6  # type: ignore[operator]
    assert figures["R2"] > 0.97  # type: ignore[operator]


def test_an_untrained_network_repeats_the_newest_row(table: Path) -> None:
    data = load_data(experiment(table))
    task = data.task
    assert isinstance(task, Forecasting)
    body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(int(np.prod(data.shape)), task.targets))
    module, _ = task.around(body, "1")
    x = torch.randn(5, *data.shape)
    newest = x[:, list(task.channels), -1].repeat_interleave(task.horizon, 1)
    assert torch.equal(module(x), newest)
    torch.nn.init.normal_(body[1].weight)
    raised = x.clone()
    raised[:, list(task.channels)] += 3.0
    torch.testing.assert_close(module(raised), module(x) + 3.0)  # the level of a machine does not matter
    plain, path = replace(task, from_last=False).around(body, "1")
    assert (plain, path) == (body, "1")


def test_a_network_sees_forecast_sensors_from_their_newest_row_and_others_as_they_are() -> None:
    """Sensors (5, 7) and (1, 4), of which the second is forecast: it is (1, 4) − 4 = (−3, 0) for the network.

    Its outputs, one row and two rows ahead, are then 5·1 + 7·2 − 3·3 + 0·4 = 10 and half of that, beside the newest 4.
    """
    body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    module = FromLast(body, (1,), 2)
    x = torch.tensor([[[5.0, 7.0], [1.0, 4.0]]])
    assert module(x).tolist() == [[4.0, 4.0]]
    body[1].weight.data = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.5, 1.0, 1.5, 2.0]])
    assert module(x).tolist() == [[14.0, 9.0]]
    rows = FromLast(torch.nn.Sequential(torch.nn.Linear(3, 2)), (0, 2), 1)  # one row: as it is
    rows.body[0].weight.data = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    assert rows(torch.tensor([[5.0, 7.0, 2.0]])).tolist() == [[10.0, 11.0]]


def test_sensors_that_never_change_are_not_forecast_by_themselves(table: Path) -> None:
    task = load_data(experiment(table, sensors=[])).task
    assert task.sensors == ("wave", "ramp")  # type: ignore[attr-defined]


@pytest.mark.parametrize("broken", [{"channels": (1, 0)}, {"naive": (float("nan"),) * 8}, {"naive": (1.0,)}])
def test_a_header_with_other_channels_or_naive_errors_is_refused(table: Path, broken: dict[str, object]) -> None:
    data = load_data(experiment(table))
    task = data.task
    assert isinstance(task, Forecasting)
    task.check_fitted(len(task.edges) + 1, data.inputs.columns)
    with pytest.raises(ValueError, match=r"channels|naive"):
        replace(task, **broken).check_fitted(len(task.edges) + 1, data.inputs.columns)  # type: ignore[arg-type]


def test_a_season_is_what_seasons_repeat(table: Path) -> None:
    period = load_data(experiment(table, sensors=["wave"], season=19)).task  # 2π·3 = 18.85 rows
    before = load_data(experiment(table, sensors=["wave"])).task
    assert period.naive[0] < 0.3 * before.naive[0]  # type: ignore[attr-defined]


def test_a_task_survives_its_description(table: Path) -> None:
    task = load_data(experiment(table)).task
    assert made(json.loads(json.dumps(task.describe()))) == task


def test_intervals_cover_what_comes(table: Path, tmp_path: Path) -> None:
    done = run(experiment(table, sensors=["wave"], loss="quantile", levels=[0.1, 0.5, 0.9]), out=tmp_path)
    figures = done.lines[-1].figures
    assert figures is not None
    assert 0.4 < figures["coverage"] <= 1  # type: ignore[operator]


@pytest.mark.parametrize(
    ("data", "task", "said"),
    [
        ({"window": None}, {}, "data.task"),
        ({}, {"horizon": 200}, "window-too-long"),
        ({}, {"sensors": ["wawe"]}, "data.task.sensors"),
        ({}, {"sensors": ["still"]}, "constant-sensors"),
        ({"normalise": "device"}, {}, "data.normalise"),
        ({}, {"season": 500}, "data.task.season"),
        ({}, {"horizon": 0}, "data.task.horizon"),
    ],
)
def test_what_cannot_be_forecast_is_refused(
    table: Path, data: dict[str, object], task: dict[str, object], said: str
) -> None:
    with refused(said):
        load_data(experiment(table, data, **task))


# -- references that learn nothing -------------------------------------------------------------------------------------


def naive(table: Path, out: Path, data: dict[str, object] | None = None, **task: object) -> dict[str, dict[str, float]]:
    """Return the figures of FedAvg and of all references by name."""
    what = replace(experiment(table, data, **task), rounds=1)
    fedfloor.compare(what, ["fedavg"], out=out, ranks=1, references=True)
    read = {one.parent.name: json.loads(one.read_text()) for one in out.glob("*/evaluation.json")}
    return {name.removesuffix("-seed0"): one["figures"] for name, one in read.items()}


def test_persistence_is_off_by_what_a_ramp_rises(table: Path, tmp_path: Path) -> None:
    found = naive(table, tmp_path, sensors=["ramp"])
    assert {*found} - {"scikit-learn"} == {"fedavg", "local-only", "pooled", "persistence"}
    assert found["persistence"]["MAE"] == pytest.approx(2.5, rel=1e-5)  # (1 + 2 + 3 + 4)/4
    assert found["persistence"]["MASE"] == pytest.approx(2.5, rel=1e-5)  # it rises by 1
    told = json.loads((tmp_path / "persistence-seed0" / "evaluation.json").read_text())
    assert [one["figures"]["MASE"] for one in told["devices"]] == pytest.approx([2.5] * 4, rel=1e-5)


def test_seasonal_values_are_those_a_season_before(table: Path, tmp_path: Path) -> None:
    found = naive(table, tmp_path / "a", {"window": {"length": 20, "step": 3}}, sensors=["ramp"], season=3)
    assert found["seasonal"]["MAE"] == pytest.approx((3 + 3 + 3 + 6) / 4, rel=1e-5)  # ⌈h/3⌉·3 rows before
    assert found["persistence"]["MAE"] == pytest.approx(2.5, rel=1e-5)
    wave = naive(table, tmp_path / "b", {"window": {"length": 20, "step": 3}}, sensors=["wave"], season=19)
    assert wave["seasonal"]["MAE"] < 0.25 * wave["persistence"]["MAE"]


def test_a_season_longer_than_the_window_is_left_out_with_the_reason(
    table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert "seasonal" not in naive(table, tmp_path, season=19)
    assert "a season of 19 rows (data.task.season) is longer than the window of 8 rows" in caplog.text


def test_naive_forecasts_of_quantiles_have_the_interval_of_their_training_errors(table: Path, tmp_path: Path) -> None:
    found = naive(table, tmp_path, sensors=["wave"], loss="quantile", levels=[0.1, 0.5, 0.9])["persistence"]
    assert found["coverage"] == pytest.approx(0.8, abs=0.1)
    ramp = naive(table, tmp_path / "ramp", sensors=["ramp"], loss="quantile")["persistence"]
    assert ramp["interval width"] == pytest.approx(2.5, rel=1e-4)  # from the last value to what it is always off by


def test_naive_forecasts_are_in_the_sensors_units_whatever_the_normalisation(table: Path, tmp_path: Path) -> None:
    found = naive(table, tmp_path, {"normalise": "device"}, sensors=["ramp"], from_last=False)
    assert found["persistence"]["MAE"] == pytest.approx(2.5, rel=1e-5)


def test_missing_values_are_the_last_before_them() -> None:
    task = Forecasting(horizon=2, sensors=("b",), center=(7.0, 8.0), scale=(1.0, 1.0))
    data = SimpleNamespace(task=task, inputs=SimpleNamespace(columns=("a", "b")), scale=1.0)
    x = np.array([[[1, 2, 3], [4, 5, np.nan]], [[1, 2, 3], [np.nan] * 3]])
    assert repeated(x, 1, data).tolist() == [[5, 5], [7, 7]]  # type: ignore[arg-type]
