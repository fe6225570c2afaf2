"""Anomalies on real machines: the model, the threshold and what devices answer for it are the simulation's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_deploy_tasks import DEVICES, folder_of, plant

from fedfloor.base import ranges
from fedfloor.deploy import subtasks
from fedfloor.deploy.message import decode
from fedfloor.engine import calibrate
from fedfloor.engine.questions import question
from fedfloor.inference.trained import load_model
from fedfloor.plan.nodes import Probe
from fedfloor.runs.parks import load_data
from live_park import experiment, figures, live, simulated
from live_processes import needs_broker, processes
from refusals import refused

TEXT = """
name = "live"
rounds = {rounds}
engine.shortcuts = "off"
data = {{ name = "machines", window = {{ length = 6, step = 3 }}, task = "reconstruction", normalise = "standard" }}
park = {{ devices = 4, factories = 2 }}
model.name = "{model}"
method.name = "{method}"
work = {{ batch_size = 16, momentum = 0.5, lr = 0.02 }}
"""


def written(folder: Path, method: str, model: str, rounds: int = 2) -> Path:
    path = folder / "experiment.toml"
    path.write_text(TEXT.format(method=method, model=model, rounds=rounds))
    return path


@pytest.mark.parametrize(("method", "model"), [("fedavg", "mlp-sensor"), ("fedsr", "mlp-sensor"), ("pca", "monitor")])
def test_model_and_threshold_are_the_simulations_to_the_bit(tmp_path: Path, method: str, model: str) -> None:
    what = written(tmp_path, method, model, 1 if method == "pca" else 2)
    _, expected = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        lines = park.run()
    assert [figures(one) for one in lines] == [figures(one) for one in expected]
    same = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("live", "simulated")]
    assert same[0] == same[1]
    task = load_model(tmp_path / "live").task
    assert (task.threshold or 0) > 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("label", ["fault", ""])
def test_devices_with_recordings_of_their_own_hold_some_out_for_the_threshold(tmp_path: Path, label: str) -> None:
    root = plant(tmp_path, label)
    more = f"""
    data.path = "{root}"
    data.window = {{ length = 6, step = 2 }}
    data.task = "reconstruction"
    data.columns = {{ time = 'row'{f", label = '{label}'" if label else ""} }}
    evaluate.headline = "{"AUROC" if label else "reconstruction error"}"
    """
    what = experiment(tmp_path, "fedavg", devices=DEVICES, model="mlp-sensor", more=more)
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what, data=folder_of(root)) as park:
        got = park.run()
    assert [line.figures for line in got] == [line.figures for line in wanted]
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.live
@needs_broker
def test_real_processes_find_the_threshold_and_answer_with_scores_and_alarms(tmp_path: Path) -> None:
    what = written(tmp_path, "fedavg", "mlp-sensor")
    read, _ = simulated(what, tmp_path / "simulated")
    with processes(tmp_path, what) as park:
        assert park.cloud().wait(240) == 0, park.logs()
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    answer = load_model(tmp_path / "live").answer(load_data(read).take_test(np.arange(3)))
    assert set(answer.document(0)) == {"score", "alarm"}


def test_devices_are_asked_for_counts_and_answers_out_of_range_are_refused(tmp_path: Path) -> None:
    what = written(tmp_path, "fedavg", "mlp-sensor", 1)
    with live(tmp_path, what) as park:
        park.run()
        asked = [decode(said, arrays=4).about for topic, said in park.broker.said if "/in/" in topic]
        counted = [one["settings"] for one in asked if one.get("what") == "scores"]
        engine = next(iter(park.edges.values())).engine
    assert len(counted) == 2 * 4 * calibrate.ROUNDS  # evaluated once, and the model written once; by 4 devices
    assert all(calibrate.settings(one["low"], one["width"]) == "" for one in counted)
    held = len(calibrate.of_device(engine.park, 0))
    node = Probe((0,), "scores", settings={"low": -40.0, "width": 80.0})
    whole = [0, held, *[0] * 64]
    assert subtasks.read_answer(node, 0, whole, {}, engine) == whole
    nan = float("nan")
    inf = float("inf")
    lists = [[value, *[0] * 65] for value in (-1, 0.5, nan, inf, 10**400, True, "1", None, [1], {"0": 1})]
    for wrong in (*lists, [held], [0, held + 1, *[0] * 64], [held] * 66, [0] * 67, [[0] * 66], None, "66", {}, 66, nan):
        with refused("answer", ranges.RefusedError):
            subtasks.read_answer(node, 0, wrong, {}, engine)


@pytest.mark.parametrize(
    ("low", "width"),
    [(None, None), (-40.0, 79.0), (0.1, 1.25), (39.0, 1.25), (-40.0, 80 / 64**4), (-40, 80.0), (float("nan"), 80.0),
     (-40.0, "80")],
)  # fmt: skip
def test_bins_of_no_bisection_are_refused(low: object, width: object) -> None:
    assert question(Probe((0,), "scores", settings={"low": low, "width": width})).excess()  # type: ignore[dict-item]


def test_moments_of_another_number_of_samples_or_of_negative_squares_are_refused(tmp_path: Path) -> None:
    what = written(tmp_path, "pca", "monitor", 1)
    with live(tmp_path, what) as park:
        engine = next(iter(park.edges.values())).engine
    node = Probe((0,), "moments")
    size = int(np.prod(engine.park.dataset.shape))
    true = question(node).answer(engine, 0, {}, 0).numpy()
    assert np.array_equal(subtasks.read_answer(node, 0, None, {"answer": true}, engine).numpy(), true)
    covariance = 10 * float(np.sqrt(true[1 + size] * true[1 + 2 * size])) + 1  # of the first two numbers
    values = (
        (0, true[0] + 1),
        (0, np.nan),
        (1 + size, -1.0),
        (2 + size, covariance),
        (3, np.inf),
        (3, -np.inf),
        (3, 1e30),
    )
    forged = [true[:-1], np.append(true, 0), true[None], true[::-1], true.astype(np.int64), true.astype(np.complex64)]
    for place, value in values:
        forged.append(true.copy())
        forged[-1][place] = value
    for wrong in forged:
        with pytest.raises(ranges.RefusedError):
            subtasks.read_answer(node, 0, None, {"answer": wrong}, engine)
    for arrays in ({}, {"answer": true, "more": true}, {"w": true}):
        with refused("names", ranges.RefusedError):
            subtasks.read_answer(node, 0, None, arrays, engine)


def test_other_tasks_have_no_scores(tmp_path: Path) -> None:
    what = written(tmp_path, "fedavg", "mlp-sensor")
    what.write_text(what.read_text().replace('task = "reconstruction"', 'task = "classification"'))
    with live(tmp_path, what) as park:
        engine = next(iter(park.edges.values())).engine
    with refused("data.task"):
        question(Probe((0,), "scores", settings={"low": -40.0, "width": 80.0})).answer(engine, 0, {}, 0)
