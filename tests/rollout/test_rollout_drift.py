"""A device's watch of drift: its sums, its alarms, what is kept of it, and what a serving device publishes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from test_rollout_device import CA, HEADER, put, slots, statement

from fedfloor.base.ranges import RefusedError
from fedfloor.deploy.mqtt import MqttConnection
from fedfloor.deploy.settings import DeviceSettings, Endpoint
from fedfloor.inference.onnx import export
from fedfloor.inference.trained import load_model
from fedfloor.rollout import drift
from fedfloor.rollout import model as models
from fedfloor.rollout.delivery import Station
from fedfloor.rollout.drift import BLOCK, LEARN, LEVEL, SHIFT, Cusum, Watch
from fedfloor.rollout.serving import Serving
from live_park import member
from model_files import SENSORS, write_model
from refusals import refused
from rollouts import model

COLUMNS = ("heat", "load", "speed")


def learnt(rng: np.random.Generator, sensors: int = 3) -> Watch:
    rows = LEARN * BLOCK
    return Watch(1).after(rng.normal(5, 2, (rows, sensors)), rng.uniform(0, 0.2, rows))


def test_the_sum_is_that_of_the_formula() -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(3, 1, (LEARN, 2))
    later = rng.normal(4, 1, (5, 2))
    state = Cusum()
    sums = np.zeros(2)
    for block in (*first, *later):
        state = state.after(block)
    for block in later:
        z = np.abs(block - first.mean(0)) / first.std(0, ddof=1)
        sums = np.clip(sums + z - math.sqrt(2 / math.pi) - SHIFT, 0, 2 * LEVEL)
    np.testing.assert_allclose(state.mean, first.mean(0))
    np.testing.assert_allclose(state.sums, sums)


def test_false_alarms_are_as_rare_as_the_page_states() -> None:
    """Independent normal blocks: of 10,000 sensors in 500 blocks one in 2,800 begins an alarm, 1,786 of 5 million.

    Few sensors, whose s came out small, have most of them: twelve seeds had 1,776 on average with a deviation of 125.
    The limits are three of it.
    """
    rng = np.random.default_rng(1)
    begun = 0
    before = set[int]()
    state = Cusum()
    for block in rng.normal(0, 1, (LEARN + 500, 10_000)):
        state = state.after(block)
        begun += len(set(state.alarms) - before)
        before = set(state.alarms)
    assert 1400 < begun < 2160


@pytest.mark.parametrize("gap", [0, 7, LEARN - 1])
def test_a_sensor_that_is_silent_while_the_watch_learns_is_watched_all_the_same(gap: int) -> None:
    """m and s are those of the blocks in which the figure is known; the other sensor's are as without the gap."""
    rng = np.random.default_rng(8)
    blocks = rng.normal(50, 1, (LEARN + 1, 2))
    blocks[gap, 0] = np.nan
    state = Cusum()
    for block in blocks:
        state = state.after(block)
    assert state.learnt == (LEARN, LEARN)
    known = np.delete(blocks[:, 0], gap)
    np.testing.assert_allclose(state.mean, [known.mean(), blocks[:LEARN, 1].mean()])
    np.testing.assert_allclose(state.scatter, [known.var() * LEARN, blocks[:LEARN, 1].var() * LEARN])
    assert state.after(np.array([60.0, 50.0])).alarms == [0]


@pytest.mark.parametrize("sensor", [0, 2])
def test_a_shift_is_found_in_a_few_blocks_its_sensor_is_named_and_its_end_ends_the_alarm(sensor: int) -> None:
    rng = np.random.default_rng(2)
    watch = learnt(rng)
    assert watch.words(COLUMNS) == []
    rows = rng.normal(5, 2, (6 * BLOCK, 3))
    rows[:, sensor] += 2.0  # a deviation of a row, √20 of them of a block's mean
    watch = watch.after(rows, np.full(len(rows), 0.1))
    assert watch.words(COLUMNS) == [COLUMNS[sensor]]
    watch = watch.after(rng.normal(5, 2, (20 * BLOCK, 3)), rng.uniform(0, 0.2, 20 * BLOCK))
    assert watch.words(COLUMNS) == []


def test_doubt_of_the_model_and_sensors_that_fall_silent() -> None:
    rng = np.random.default_rng(3)
    watch = learnt(rng).after(rng.normal(5, 2, (4 * BLOCK, 3)), rng.uniform(0.3, 0.5, 4 * BLOCK))
    assert watch.words(COLUMNS) == ["the model's doubt"]
    rows = rng.normal(5, 2, (BLOCK, 3))
    rows[:, 1] = np.nan
    assert "load is missing" in learnt(rng).after(rows, np.full(BLOCK, np.nan)).words(COLUMNS)


def test_a_sensor_that_was_never_there_and_one_that_never_moved() -> None:
    rng = np.random.default_rng(4)
    rows = rng.normal(5, 2, (LEARN * BLOCK + 200, 3))
    rows[:, 0] = np.nan
    rows[:, 1] = 7.0
    watch = Watch(1).after(rows, np.full(len(rows), np.nan))
    assert watch.words(COLUMNS) == []
    rows[:, 1] = 7.5
    assert watch.after(rows[:BLOCK], np.full(BLOCK, np.nan)).words(COLUMNS) == ["load"]


def test_however_samples_are_cut_the_watch_is_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rows = rng.normal(0, 1, (500, 2))
    doubt = rng.uniform(0, 1, 500)
    whole = Watch(3).after(rows, doubt)
    parts = Watch(3)
    for first in range(0, 500, 7):
        parts = parts.after(rows[first : first + 7], doubt[first : first + 7])
    assert parts == whole
    drift.keep(whole.after(rows[:20], doubt[:20]), tmp_path / "drift.json")
    again = drift.load(tmp_path / "drift.json", 3)
    assert again == whole.after(rows[:20], doubt[:20])
    assert drift.load(tmp_path / "drift.json", 4) == Watch(4)  # of another version
    (tmp_path / "drift.json").write_text("[" * 10)
    assert drift.load(tmp_path / "drift.json", 3) == Watch(3)


LEVELS = ((5.0, 5.0, 5.0), (2.0, 2.0, 2.0))


def test_a_release_in_the_middle_of_drift_is_seen_by_the_levels_of_training() -> None:
    """The level moved by four of training's deviations before the first sample: z − 3 adds up to h in five blocks."""
    rng = np.random.default_rng(8)
    rows = rng.normal(5, 2, (LEARN * BLOCK, 3))
    rows[:, 1] += 8
    quiet = np.full(len(rows), np.nan)
    assert Watch(1).after(rows, quiet).words(COLUMNS) == []
    watch = Watch(1, training=drift.reference(LEVELS, 3))
    assert watch.after(rows[: 3 * BLOCK], quiet[: 3 * BLOCK]).words(COLUMNS) == []
    watch = watch.after(rows, quiet)
    assert watch.words(COLUMNS) == ["load"]
    usual = rng.normal(5, 2, (8 * BLOCK, 3))
    after = watch.after(usual, np.full(len(usual), np.nan))  # the drift ended, which is a change of what was learnt
    assert after.training.alarms == []
    assert after.words(COLUMNS) == ["load"]


def test_what_differs_less_from_training_than_three_deviations_is_no_drift_of_it() -> None:
    rng = np.random.default_rng(9)
    rows = rng.normal(5 + 2 * 2.5, 2, (400 * BLOCK, 3))
    assert Watch(1, training=drift.reference(LEVELS, 3)).after(rows, np.full(len(rows), np.nan)).training.alarms == []


def test_the_levels_of_training_outlive_a_restart(tmp_path: Path) -> None:
    watch = Watch(3, training=drift.reference(LEVELS, 3)).after(np.full((2 * BLOCK, 3), 14.0), np.zeros(2 * BLOCK))
    drift.keep(watch, tmp_path / "drift.json")
    assert drift.load(tmp_path / "drift.json", 3) == watch
    again = drift.load(tmp_path / "drift.json", 4, drift.reference(LEVELS, 3))
    assert again == Watch(4, training=drift.reference(LEVELS, 3))


@pytest.mark.parametrize("levels", [((1.0,), (1.0, 1.0)), ((1.0, 1.0), (1.0, 0.0)), ((1.0, math.nan), (1.0, 1.0))])
def test_levels_that_are_none_of_the_sensors_are_refused(levels: drift.Levels) -> None:
    with pytest.raises(ValueError, match="levels of training"):
        drift.reference(levels, 2)
    data = model(normalise={"kind": "inside", "levels": levels})
    with refused("model", RefusedError):
        models.load(data, statement(data))


def test_a_model_states_the_levels_by_which_it_normalises_or_its_device_does(tmp_path: Path) -> None:
    normalise = {"scale": 1.0, "mean": [3.0, -1.0, 0.5], "std": [2.0, 0.5, 1.0]}
    run = write_model(tmp_path, "logistic", (3,), inputs=SENSORS | {"columns": list(COLUMNS)}, normalise=normalise)
    data = export(load_model(run), tmp_path / "model.onnx").file.read_bytes()
    made = models.load(data, statement(data))
    assert made.levels == ((3.0, -1.0, 0.5), (2.0, 0.5, 1.0))
    plain = model()
    assert models.load(plain, statement(plain)).levels is None


def test_pictures_are_watched_by_brightness_and_its_spread() -> None:
    rng = np.random.default_rng(6)
    pictures = rng.integers(0, 200, (LEARN * BLOCK, 1, 4, 4), np.uint8)
    watch = Watch(1).after(pictures, np.zeros(len(pictures)))
    assert watch.words(()) == []
    assert watch.after(pictures[: 3 * BLOCK] + np.uint8(50), np.zeros(3 * BLOCK)).words(()) == ["channel 0"]


def predicting(folder: Path) -> DeviceSettings:
    """Settings of a device whose rows to predict lie in ``rows``."""
    (folder / "rows").mkdir()
    (folder / "experiment.toml").write_text('model.name = "logistic"\n')
    tls = member(folder, CA, "d0")
    return DeviceSettings(
        "trial", "d0", 0, 0, Endpoint("127.0.0.1", 8883), folder / "experiment.toml", folder, folder, tls,
        predict=folder / "rows", edge="north",
    )  # fmt: skip


def test_a_device_publishes_where_drift_begins_and_a_restart_forgets_nothing(tmp_path: Path) -> None:
    """With a connection that notes what is published; tests/rollout/test_rollout_park.py has real ones."""
    put(slots(tmp_path / "models"), model())
    settings = predicting(tmp_path)
    rows = tmp_path / "rows"

    def serve() -> list[tuple[str, dict[str, Any]]]:
        told: list[tuple[str, dict[str, Any]]] = []

        def say(topic: str, data: bytes, **_: Any) -> None:
            told.append((topic.split("/")[2], json.loads(data)))

        made = Serving(settings, cast(MqttConnection, SimpleNamespace(publish=say, unacknowledged=0)))
        while made._predict():
            pass
        return [(kind, body) for kind, body in told if kind != "predictions" and "drift" in body]

    rng = np.random.default_rng(7)
    known = rng.normal(0, 1, (LEARN * BLOCK, 3))
    (rows / "a.csv").write_text(HEADER + "".join(f"{i},{a},{b},{c}\n" for i, (a, b, c) in enumerate(known)))
    assert serve() == []
    with (rows / "a.csv").open("a") as file:
        file.writelines(f"{i},{a},{b + 3},{c}\n" for i, (a, b, c) in enumerate(rng.normal(0, 1, (6 * BLOCK, 3))))
    told = serve()
    assert [kind for kind, _ in told][:2] == ["alarms", "serving"]
    assert "heat" in told[0][1]["drift"]
    station = Station(cast(Any, SimpleNamespace(devices=[SimpleNamespace(name="d0")])), *2 * [cast(Any, None)])
    station.heard("fedfloor/trial/serving/d0", json.dumps(told[-1][1]).encode())
    assert "heat" in station.reports["d0"].drift


def test_a_device_reports_how_many_rows_its_sensors_wrote_and_nothing_else_changes(tmp_path: Path) -> None:
    told = list[dict[str, Any]]()
    counts = [10]
    link = SimpleNamespace(publish=lambda _topic, data, **_: told.append(json.loads(data)), unacknowledged=0)
    made = Serving(predicting(tmp_path), cast(MqttConnection, link), lambda: counts[-1])
    made._report("refused", "signature: of a stranger", 0)
    made._count()  # its minute is not over
    made._count_at = 0.0
    made._count()  # nothing is new
    counts.append(25)
    made._count_at = 0.0
    made._count()
    assert [one["rows"] for one in told] == [10, 25]
    assert told[1] == {**told[0], "rows": 25}


@pytest.mark.parametrize("odd", [7, [1], {"a": 1}, ["x", None], [["x"]]])
def test_a_report_whose_drift_is_no_list_of_texts_is_passed_over(odd: object) -> None:
    station = Station(cast(Any, SimpleNamespace(devices=[SimpleNamespace(name="d0")])), *2 * [cast(Any, None)])
    body = {"state": "serving", "number": 1, "version": 1, "why": "", "drift": odd}
    station.heard("fedfloor/trial/serving/d0", json.dumps(body).encode())
    assert station.reports.get("d0") is None or all(isinstance(text, str) for text in station.reports["d0"].drift)
