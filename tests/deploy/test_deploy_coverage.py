"""Promised intervals on real machines: devices count, and the margins are the simulation's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_deploy_tasks import DEVICES, MADE, folder_of, plant

from fedfloor.base import ranges
from fedfloor.deploy import subtasks
from fedfloor.deploy.message import decode
from fedfloor.engine import calibrate
from fedfloor.engine.questions import question
from fedfloor.inference.trained import load_model
from fedfloor.plan.nodes import Probe
from live_park import experiment, figures, live, simulated
from refusals import refused

TASKS = {
    "life": "data.task = { kind = 'regression', cap = 40, unit = 'rows', loss = 'quantile', coverage = 0.6 }",
    "next": "data.task = { kind = 'forecasting', horizon = 3, sensors = ['oil', 'speed'], coverage = 0.6 }",
    "apart": "data.task = { kind = 'regression', cap = 40, coverage = 0.6, calibrate = 'device' }",
}


@pytest.mark.parametrize("task", TASKS)
def test_margins_are_the_simulations_to_the_bit(tmp_path: Path, task: str) -> None:
    more = MADE.format(TASKS[task]) + "evaluate.validation = 0.4"
    what = experiment(tmp_path, "fedavg", devices=DEVICES, model="mlp-sensor", more=more)
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        got = park.run()
        asked = [decode(said, arrays=4).about for topic, said in park.broker.said if "/in/" in topic]
        engine = next(iter(park.edges.values())).engine
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    many = 6 if task == "next" else 1
    assert len(load_model(tmp_path / "live").task.margins) == many  # type: ignore[attr-defined]
    counted = [one["settings"] for one in asked if one.get("what") == "scores"]
    if task == "apart":
        tasks = [json.loads((tmp_path / name / "devices.json").read_text()) for name in ("live", "simulated")]
        margins = [[record["task"]["margins"] for record in one.values()] for one in tasks]
        assert margins[0] == margins[1]
        assert len({*map(tuple, margins[0])}) > 1
    else:
        assert len(counted) == 3 * DEVICES * calibrate.ROUNDS  # two evaluations and the model's file
    assert all(calibrate.settings(one["low"], one["width"]) == "" for one in counted)
    node = Probe((0,), "scores", settings=counted[0])
    held = len(calibrate.of_device(engine.park, 0))
    whole = [*([held] + [0] * 65) * many, 1]
    assert subtasks.read_answer(node, 0, whole, {}, engine) == whole
    for wrong in (whole[:-1], [*whole[:-1], held + 1], [*whole[:-1], -1], [held + 1, *whole[1:]], [*whole, 0]):
        with refused("answer", ranges.RefusedError):
            subtasks.read_answer(node, 0, wrong, {}, engine)
    other = Probe((0,), "scores", settings={"low": " ".join(["-40.0"] * (many + 1)), "width": 80.0})
    with refused("bins"):
        question(other).answer(engine, 0, {"w": engine.network.flat.clone()}, 0)


def test_devices_with_recordings_of_their_own_hold_some_out_for_the_margins(tmp_path: Path) -> None:
    root = plant(tmp_path)
    keys = "data.columns = { time = 'row', label = 'life' }\ndata.window = { length = 6, step = 2 }\n"
    more = f"data.path = '{root}'\n{keys}{TASKS['life']}\nevaluate.validation = 0.4"
    what = experiment(tmp_path, "fedavg", devices=DEVICES, model="mlp-sensor", more=more)
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what, data=folder_of(root)) as park:
        got = park.run()
    assert [line.figures for line in got] == [line.figures for line in wanted]
    assert load_model(tmp_path / "live").task.margins  # type: ignore[attr-defined]
