"""Quartiles and operating regimes by questions to devices: against pooled rows, on every engine, in predictions."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import fedfloor
from commands import lines
from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.data.reading import TimeSplit, Window
from fedfloor.experiment import EngineSettings
from fedfloor.inference import inputs
from fedfloor.inference.trained import load_model
from fedfloor.park.build import build
from fedfloor.park.normalise import prepared
from fedfloor.park.survey import (
    NORMAL,
    RegimeNormaliser,
    Regimes,
    RobustNormaliser,
    RowClusters,
    RowQuestion,
    RowSurvey,
    added,
)
from fedfloor.runs import launch
from fedfloor.runs.orders import Orders
from fedfloor.runs.parks import build_park, load_data
from live_park import experiment as live_experiment
from live_park import live, simulated
from plant_tables import experiment
from refusals import refused

Rows = NDArray[np.float32]
POINTS = np.array([[0, 0], [10, 0.25], [20, 0.7], [25, 0.62], [35, 0.84], [42, 0.84]])  # speed, load
SENSORS = ("speed", "load", "heat", "force")
BY = RegimeNormaliser(("speed", "load"), 6)


def survey(*devices: Rows) -> RowSurvey:
    return RowSurvey(lambda question: added(question.answer(rows) for rows in devices))


def quartiles(devices: Sequence[Rows], rounds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    learned = RobustNormaliser(rounds=rounds).learn(survey(*devices), (), 0)
    return learned.median, learned.scale


def machines(jitter: float = 0.002, many: int = 4, rows: int = 300) -> list[Rows]:
    """Rows of machines: two settings, one sensor with a level per regime, one constant in the third regime."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(many):
        regime = rng.integers(0, 6, rows)
        sensors = np.c_[50 * regime + rng.normal(size=rows), np.where(regime == 2, 3.0, regime * rng.normal(size=rows))]
        found.append(np.c_[POINTS[regime] + jitter * rng.normal(size=(rows, 2)), sensors].astype(np.float32))
    return found


# -- quartiles ---------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6), shape=st.sampled_from(["normal", "cauchy", "steps", "large"]), rounds=st.integers(1, 8)
)
def test_quartiles_are_the_pooled_rows_within_the_stated_error(seed: int, shape: str, rounds: int) -> None:
    rng = np.random.default_rng(seed)
    draw = {
        "normal": lambda n: rng.normal(size=(n, 3)), "cauchy": lambda n: rng.standard_cauchy((n, 3)),
        "steps": lambda n: rng.integers(0, 4, (n, 3)) / 4, "large": lambda n: 1e5 + rng.normal(size=(n, 3)),
    }[shape]  # fmt: skip
    devices = [draw(int(n)).astype(np.float32) for n in rng.integers(1, 60, 4)]
    devices[0][0, 1] = np.nan
    median, scale = quartiles(devices, rounds)
    pooled = np.concatenate(devices).astype(np.float64)
    first, middle, third = np.nanquantile(pooled, [0.25, 0.5, 0.75], axis=0, method="inverted_cdf")
    error = np.sqrt(3) * np.nanstd(pooled, axis=0) / 16**rounds * (1 + 1e-6) + 1e-9
    assert (np.abs(median - middle) <= error).all()
    apart = third - first
    wide = apart > 4 * error
    assert (np.abs(scale - apart / NORMAL)[wide] <= 2 * error[wide] / NORMAL).all()


def test_wild_values_move_the_mean_and_not_the_median() -> None:
    rows = np.random.default_rng(0).normal(size=(1000, 1)).astype(np.float32)
    wild = rows.copy()
    wild[:50] = 1e6
    (median, scale), (before, width) = (quartiles([x], 8) for x in (wild, rows))
    assert abs(median - before) < 0.1
    assert abs(scale / width - 1) < 0.2


def test_a_sensor_that_is_mostly_or_always_one_value() -> None:
    x = np.full((100, 2), 7, np.float32)
    x[:10, 0] = 107
    median, scale = quartiles([x], 4)
    assert median == pytest.approx([7, 7], abs=1e-3)
    assert scale == pytest.approx([30, 1])  # the deviation of 10 in 100 at 100 more: 100·√(0.1·0.9)


def test_answers_are_as_long_whatever_the_number_of_rows_and_add_up() -> None:
    devices = machines()
    clusters = RowClusters(np.array([0, 1]), np.zeros(2), np.ones(2), POINTS)
    for question in (
        RowQuestion("sums"), RowQuestion("spread", np.ones((1, 4))),
        RowQuestion("below", np.arange(12.0).reshape(4, 3)),
        RowQuestion("sums", None, clusters), RowQuestion("spread", np.zeros((6, 4)), clusters),
        RowQuestion("clusters", None, clusters),
    ):  # fmt: skip
        pooled = question.answer(np.concatenate(devices))
        assert question.answer(devices[0][:1]).shape == pooled.shape == question.shape(4)
        assert np.allclose(added(question.answer(rows) for rows in devices), pooled, rtol=1e-6)
        again = RowQuestion.from_dict(json.loads(json.dumps(question.to_dict())))
        assert np.array_equal(again.answer(devices[1]), question.answer(devices[1]))


@pytest.mark.parametrize(
    "false",
    [
        {"deviation": [0.0]}, {"deviation": [-1.0]}, {"deviation": [1e-40]}, {"deviation": [float("nan")]},
        {"deviation": []}, {"mean": [float("inf")]}, {"centres": [[1.0, 2.0]]}, {"centres": []}, {"columns": []},
    ],
)  # fmt: skip
def test_a_question_whose_numbers_cannot_scale_is_refused(false: dict[str, Any]) -> None:
    """An edge that breaks the protocol states them; a deviation of 0 made infinite values of a device's rows."""
    true = {"columns": [0], "mean": [0.0], "deviation": [1.0], "centres": [[0.0]]}
    RowQuestion.from_dict({"kind": "clusters", "about": None, "clusters": true})
    with pytest.raises(ValueError, match=r"clusters|finite|single"):
        RowQuestion.from_dict({"kind": "clusters", "about": None, "clusters": true | false})


def test_distances_of_no_rows_leave_centres_finite() -> None:
    """One device stated them for a cluster without rows, and no device took the next question."""

    def answer(question: RowQuestion) -> np.ndarray:
        got = np.zeros(question.shape(1))
        if question.kind == "clusters":
            got[:, 0] = 10.0 * (np.arange(len(got)) != 1)
            got[:, -1] = 1e6 * (np.arange(len(got)) == 1) + 1.0
        return got

    rows = RowClusters(np.array([0]), np.zeros(1), np.ones(1), np.zeros((1, 1)))
    found = RegimeNormaliser(("a",), regimes=3)._clusters(RowSurvey(answer), rows, 0)
    assert np.isfinite(found.centres).all()


# -- regimes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_six_operating_points_are_found_whatever_the_seed(seed: int) -> None:
    devices = machines()
    found = BY.learn(survey(*devices), SENSORS, seed)
    x = np.concatenate(devices)
    true = np.abs(x[:, None, :2] - POINTS).sum(axis=2).argmin(axis=1)
    regime = found.clusters.nearest(x)[0]
    z = found.apply(x)
    assert len({*zip(true.tolist(), regime.tolist(), strict=True)}) == 6  # one to one
    for r in range(6):
        mine = z[regime == r]
        assert np.allclose(mine[:, 2].mean(), 0, atol=1e-4)
        assert np.allclose(mine[:, 2].std(), 1, atol=1e-4)
    constant = regime == regime[np.flatnonzero(true == 2)[0]]
    assert np.allclose(z[constant, 3], 0, atol=1e-5)
    assert np.allclose(z[:, :2].mean(axis=0), 0, atol=1e-4)  # the settings keep telling the regimes apart
    assert np.allclose(z[:, :2].std(axis=0), 1, atol=1e-3)


def test_fewer_operating_points_than_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    found = RegimeNormaliser(("speed", "load"), 9).learn(survey(*machines(jitter=0)), SENSORS, 0)
    assert len(found.clusters.centres) == 6
    assert "the rows of speed, load have 6 regimes, fewer than regimes = 9." in caplog.text
    still = RegimeNormaliser(("speed",), 3).learn(survey(np.ones((5, 4), np.float32)), SENSORS, 0)
    assert len(still.clusters.centres) == 1
    assert np.array_equal(still.apply(np.ones((2, 4), np.float32)), np.zeros((2, 4)))


def test_windows_are_normalised_row_by_row() -> None:
    rows = machines()[0]
    found = BY.learn(survey(rows), SENSORS, 0)
    windows = np.stack([rows[i : i + 5].T for i in range(20)])
    assert np.array_equal(found.apply(windows), np.stack([found.apply(rows)[i : i + 5].T for i in range(20)]))
    again = Regimes.from_dict(json.loads(json.dumps(found.to_dict())), 4)
    assert np.array_equal(again.apply(windows), found.apply(windows))


def shop(path: Path, holes: bool = False) -> Path:
    """Write a table: 4 machines; a fault adds 4 to a heat that the operating point moves by hundreds."""
    rng = np.random.default_rng(1)
    text = ["device,time,speed,load,heat,label"]
    for k in range(4):
        for time in range(150):
            r = int(rng.integers(0, 6))
            worn = (time // 10 + k) % 2
            speed, load = POINTS[r] + 0.002 * rng.normal(size=2)
            heat = "" if holes and rng.random() < 0.05 else f"{100 * (r * 7 % 5) + 4 * worn + rng.normal():.3f}"
            text.append(f"m{k},{time},{speed:.4f},{load:.4f},{heat},{('good', 'worn')[worn]}")
    path.write_text("\n".join(text) + "\n")
    return path


def test_regimes_show_a_fault_that_operating_points_hide(tmp_path: Path) -> None:
    shop(tmp_path / "shop.csv")
    accuracy = {}
    for name, kind in (("regime", BY), ("standard", "standard")):
        run = fedfloor.run(experiment(tmp_path / "shop.csv", kind, rounds=15), tmp_path / name, ranks=1)  # type: ignore[arg-type]
        accuracy[name] = lines(run.folder)[-1]["accuracy"]
    assert accuracy["regime"] > 0.9
    assert accuracy["standard"] < 0.7


@pytest.mark.parametrize("kind", ["robust", BY])
@pytest.mark.parametrize("window", [None, Window(6, 2)])
def test_predictions_and_onnx_are_the_evaluations(
    tmp_path: Path, kind: RegimeNormaliser, window: Window | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        what = experiment(shop(tmp_path / "shop.csv", holes=True), kind, TimeSplit(), window, missing="mean")
        run = fedfloor.run(what, tmp_path / "run", ranks=1)
    assert "questions to every device before round 1" in caplog.text
    trained = load_model(run.folder)
    park = build_park(what)
    x = load_data(what).take_test(np.arange(park.test_samples))
    y = park.test()[1]
    wanted = trained.predict(x)
    assert float((wanted.argmax(1) == y).mean()) == lines(run.folder)[-1]["accuracy"]
    (read,) = inputs.read([tmp_path / "shop.csv"], trained)
    known = {sample.tobytes(): row for sample, row in zip(read.x, trained.predict(read.x), strict=True)}
    assert all(np.allclose(known[sample.tobytes()], row, atol=1e-6) for sample, row in zip(x, wanted, strict=True))
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from fedfloor.inference.onnx import export

    export(trained, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert np.allclose(session.run(None, {"x": x})[0], wanted, atol=1e-5)


@pytest.mark.parametrize("kind", ["robust", BY])
def test_cohorts_and_single_visits_train_on_the_same_samples(tmp_path: Path, kind: RegimeNormaliser) -> None:
    table = shop(tmp_path / "shop.csv", holes=True)
    for name in ("ranks", "cohort"):
        how = EngineSettings(kind=name)  # type: ignore[arg-type]
        fedfloor.run(experiment(table, kind, missing="mean", engine=how), tmp_path / name, ranks=1)
    for one, two in zip(lines(tmp_path / "ranks"), lines(tmp_path / "cohort"), strict=True):
        assert one["loss"] == pytest.approx(two["loss"], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["robust", BY])
def test_two_ranks_are_the_same_bits(tmp_path: Path, kind: RegimeNormaliser) -> None:
    what = experiment(shop(tmp_path / "shop.csv"), kind, None, Window(6, 2))
    for ranks in (1, 2):
        launch.start(what, Orders(tmp_path / f"{ranks}"), ranks, lambda line: None, build_park(what))
    one, two = ((tmp_path / f"{ranks}/model.safetensors").read_bytes() for ranks in (1, 2))
    assert one == two


@pytest.mark.slow
def test_machines_that_read_the_experiments_data_train_the_simulations_bits(tmp_path: Path) -> None:
    more = f"data.path = '{shop(tmp_path / 'shop.csv')}'\n"
    more += "data.normalise = { kind = 'regime', columns = ['speed', 'load'], regimes = 6 }\n"
    what = live_experiment(tmp_path, "fedavg", devices=4, more=more)
    simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        park.run()
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()


# -- refused -----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    table = shop(tmp_path / "shop.csv")
    with refused("data"):
        build_park(experiment(table, RegimeNormaliser(("sped",), 2)))
    for kind in ("robust", BY):
        with refused("data.normalise"):
            prepared(build("labels", devices=2, samples_per_device=10), kind)  # type: ignore[arg-type]
    for text, message in (
        ("{ kind = 'robust', rounds = 13 }", "data.normalise.rounds = 13: must be a whole number from 1 to 12"),
        ("{ kind = 'regime', columns = [], regimes = 3 }", r"data.normalise.columns = \[\]: must be the names of"),
        ("{ kind = 'regime', columns = ['a'], regimes = 1 }", "regimes = 1: must be a whole number from 2 to 100"),
        ("{ kind = 'regime', columns = ['a'] }", "data.normalise.regimes is missing"),
        ("{ rows = 3 }", "needs kind = one of device, regime, robust"),
    ):
        (tmp_path / "a.toml").write_text(f"data.normalise = {text}\n")
        with pytest.raises(SettingError, match=message):
            config.read(tmp_path / "a.toml")


def test_damaged_regimes_of_a_model_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    run = fedfloor.run(experiment(shop(tmp_path / "shop.csv"), BY, rounds=1), tmp_path / "run", ranks=1)
    path = run.folder / "model.safetensors"
    from fedfloor.models.saved import content

    about = content(path)
    tensors = load_file(path)
    about[0]["normalise"]["regimes"]["means"].pop()
    (run.folder / "model.safetensors.sha256").unlink()
    save_file(tensors, path, {"fedfloor": json.dumps(about[0])})
    with refused("damaged-model"):
        load_model(run.folder)


def test_it_stands_in_an_experiment_file_and_comes_back(tmp_path: Path) -> None:
    for normalise in ("robust", RobustNormaliser(rounds=6), BY):
        what = experiment(tmp_path / "shop.csv", normalise)  # type: ignore[arg-type]
        for text in (config.brief(what), config.resolved(what)):
            (tmp_path / "again.toml").write_text(text)
            assert config.read(tmp_path / "again.toml").data.normalise == normalise
