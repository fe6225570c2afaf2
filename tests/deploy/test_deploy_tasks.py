"""Devices that learn numbers, next to each other or with samples of their own: the bits of the simulation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedfloor import config
from fedfloor.base.ranges import RefusedError
from fedfloor.data.made.machines import Machines, columns, recordings
from fedfloor.deploy import facts, own
from fedfloor.deploy.settings import DataSource
from fedfloor.inference.trained import load_model
from fedfloor.runs.parks import load_data
from fedfloor.tasks.regression import Regression
from live_park import experiment, figures, live, simulated
from live_processes import needs_broker, processes
from refusals import refused

DEVICES = 4
MODEL = "cnn-sensor"
TASKS = {
    "life": "data.task = { kind = 'regression', cap = 40, unit = 'rows', loss = 'quantile' }",
    "next": "data.task = { kind = 'forecasting', horizon = 3, sensors = ['oil', 'speed'] }",
}
MADE = """
data.name = "machines"
data.window = {{ length = 6, step = 2 }}
data.machines = {{ life = 30, factories = 2 }}
{}
"""


@pytest.mark.parametrize("method", ["fedavg", "fedsr"])
@pytest.mark.parametrize("task", TASKS)
def test_a_deployed_park_is_its_simulation_to_the_bit(tmp_path: Path, task: str, method: str) -> None:
    more = MADE.format(TASKS[task])
    what = experiment(tmp_path, method, devices=DEVICES, model=MODEL, more=more)
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        got = park.run()
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert next(iter(got[-1].figures or {})) == ("RMSE" if task == "life" else "MASE")


def plant(folder: Path, label: str = "life") -> Path:
    """Write recordings to failure in a folder for each machine: three to train on, one to test by."""
    made = columns(recordings(DEVICES, 2, 0, Machines(runs=4, life=30)), 2)
    names = [
        name for name in made if name not in {"machine", "hall", "run", "fault", "life", "regime", "wear"} - {label}
    ]
    for number in sorted({*made["run"].tolist()}):
        rows = made["run"] == number
        part = "test" if number % 4 == 3 else "train"
        device = number // 4
        place = folder / "plant" / part / f"d{device}"
        place.mkdir(parents=True, exist_ok=True)
        body = zip(*(made[name][rows].tolist() for name in names), strict=True)
        text = "\n".join([",".join(names), *(",".join(map(str, row)) for row in body)])
        (place / f"r{number}.csv").write_text(text + "\n")
    return folder / "plant"


def folder_of(root: Path) -> Callable[[int], DataSource]:
    return lambda k: DataSource("folder", root / "train" / f"d{k}")


@pytest.mark.parametrize("task", TASKS)
def test_devices_with_recordings_of_their_own_share_the_scale_of_all(tmp_path: Path, task: str) -> None:
    root = plant(tmp_path)
    keys = "data.columns = { time = 'row', label = 'life' }\ndata.window = { length = 6, step = 2 }\n"
    more = f"data.path = '{root}'\n{keys}{TASKS[task]}"
    what = experiment(tmp_path, "fedavg", devices=DEVICES, model=MODEL, more=more)
    read, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what, data=folder_of(root)) as park:
        got = park.run()
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    assert [line.figures for line in got] == [line.figures for line in wanted]
    assert load_model(tmp_path / "live").task == load_data(read).task


def test_facts_with_a_task_are_read_as_they_were_said_and_others_are_refused(tmp_path: Path) -> None:
    more = MADE.format(TASKS["life"])
    what = experiment(tmp_path, "fedavg", devices=DEVICES, model=MODEL, more=more)
    read = config.read(what, [])
    said = facts.of(read, load_data(read))
    body = json.loads(json.dumps(said.to_dict()))
    assert facts.read(body) == said
    assert facts.read(body).digest == said.digest
    left = replace(said, inputs=replace(said.inputs, ignored=("wages",)))  # a name that no one else needs to know
    assert left.to_dict() == said.to_dict()
    assert isinstance(said.task, Regression)
    for key, wrong in (
        ("scale", [0.0]),
        ("edges", []),
        ("kind", "guessing"),
        ("levels", "many"),
        ("center", [1.0, 2.0]),
    ):
        with refused("header", RefusedError):
            facts.read(body | {"task": body["task"] | {key: wrong}})
    with refused("header", RefusedError):
        facts.read(body | {"task": 3})


@pytest.mark.slow
@pytest.mark.live
@needs_broker
def test_real_processes_learn_the_remaining_life(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", devices=DEVICES, model=MODEL, more=MADE.format(TASKS["life"]))
    simulated(what, tmp_path / "simulated")
    with processes(tmp_path, what) as park:
        assert park.cloud().wait(240) == 0, park.logs()
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    data = load_data(simulated(what, tmp_path / "again")[0])
    answer = load_model(tmp_path / "live").answer(data.take_test(range(3)))  # type: ignore[arg-type]
    assert (answer.parts()["low"] <= answer.parts()["high"]).all()


FINE = tuple(float(day) for day in range(1, 400))
CASES = {
    "a survival's grid": ({"kind": "survival", "points": 50}, {"grid": FINE[:50]}, {"grid": FINE}),
    "a stated grid": ({"kind": "survival", "grid": [30, 60]}, {}, {"grid": FINE[:20]}),
    "its distribution": ({"kind": "survival", "points": 50}, {"grid": FINE[:9]}, {"distribution": "steps"}),
    "the ranges of numbers": ({"kind": "regression", "bins": 5}, {"edges": FINE[:4]}, {"edges": FINE}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_device_counts_no_finer_than_its_own_experiment_says(case: str) -> None:
    """The sums of a survival and the counts of ranges would otherwise show when each machine failed."""
    task, right, wrong = CASES[case]
    data = {"name": "machines", "window": {"length": 6, "step": 3}, "task": task}
    asked = config.from_table({"name": "fine", "data": data})
    same: Any = replace(asked.data.asked, center=1.0, scale=2.0) if task["kind"] == "survival" else asked.data.asked
    own.check_task(SimpleNamespace(task=replace(same, **right)), asked)  # type: ignore[arg-type]
    for other in (replace(same, **wrong), None):
        with refused("facts", RefusedError):
            own.check_task(SimpleNamespace(task=other), asked)  # type: ignore[arg-type]
