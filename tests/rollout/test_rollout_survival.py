"""A released survival model on a device: its answers are those of the run, also beyond what is known."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedfloor import run
from fedfloor.base.checking import checked
from fedfloor.experiment import Experiment
from fedfloor.inference.onnx import export
from fedfloor.inference.trained import load_model
from fedfloor.rollout import delivery, registry
from fedfloor.rollout import model as models
from fedfloor.rollout.rows import InputRows
from fedfloor.rollout.serving import _answers
from fedfloor.rollout.statement import Statement
from parks import needs_mosquitto
from rollouts import TOP, provisioned, registered, running

METHODS: dict[str, dict[str, Any]] = {
    "Kaplan–Meier": {"method": {"name": "kaplanmeier"}, "task": {"distribution": "steps"}},
    "AFT": {"method": {"name": "aft"}},
    "network": {"method": {"name": "fedavg"}, "model": {"name": "linear"}, "work": {"batch_size": 16}},
}


def trained(folder: Path, task: dict[str, Any] | None = None, **about: Any) -> Path:
    """Train on a table of lives, a third of which still run, and return the folder of the run."""
    rng = np.random.default_rng(2)
    heat = rng.normal(60, 8, 120).round(1)
    life = 900 * np.exp(-0.02 * (heat - 60)) * rng.weibull(1.7, 120)
    ends = rng.uniform(300, 1500, 120)
    rows = zip(rng.integers(0, 3, 120), heat, np.minimum(life, ends).round(1) + 1, life <= ends, strict=True)
    lines = [f"s{site},{hot},{days},{'failed' if over else 'running'}" for site, hot, days, over in rows]
    (folder / "lives.csv").write_text("\n".join(["site,heat,days,state", *lines]) + "\n")
    data = {
        "path": str(folder / "lives.csv"), "ended": "failed", "split": {"kind": "random"},
        "columns": {"device": "site", "life": "days", "label": "state"}, "task": {"kind": "survival", **(task or {})},
    }  # fmt: skip
    run(checked(Experiment, {"rounds": 5, "data": data, **about}, ""), out=folder / "run", ranks=1, progress=False)
    return folder / "run"


@pytest.mark.parametrize("method", METHODS)
def test_a_device_answers_as_the_run_does(method: str, tmp_path: Path) -> None:
    made = load_model(trained(tmp_path, **METHODS[method]))
    data = export(made, tmp_path / "model.onnx").file.read_bytes()
    statement = Statement("trial", "d0", 1, 1, made.name, hashlib.sha256(data).hexdigest(), len(data))
    released = models.load(data, statement)
    columns = released.about["columns"]
    ages = [0.0, 400.0, 5000.0]
    text = "\n".join(["days,heat", *(f"{age},{heat}" for age in ages for heat in (50.0, 72.0))])
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "pumps.csv").write_text(text + "\n")
    batch = InputRows(tmp_path / "in", tmp_path / "rows.json").next(released)
    assert batch is not None
    got = _answers(released, batch)
    table = {"days": np.repeat(ages, 2), "heat": np.tile([50.0, 72.0], 3)}
    wanted = made.answer(np.stack([table[name] for name in columns], 1).astype(np.float32))
    for i, answer in enumerate(got):
        for key, value in wanted.document(i).items():
            assert answer[key] == pytest.approx(value, rel=1e-4, abs=1e-6) if value is not None else not answer[key]
        assert set(answer) == {"version", "file", "rows", "chance", "median", "low", "high"}
    assert json.loads(json.dumps(got, allow_nan=False)) == got
    if method == "Kaplan–Meier":
        assert got[-1]["median"] is None  # beyond all known ages
        assert got[-1]["chance"] is None


@pytest.mark.slow
@needs_mosquitto
def test_a_bare_agent_answers_for_pumps_with_a_released_model(tmp_path: Path) -> None:
    made = load_model(trained(tmp_path, method={"name": "aft"}, model={"name": "logistic"}))  # as the park's file says
    data = export(made, tmp_path / "model.onnx").file.read_bytes()
    out = provisioned(tmp_path, devices=2)
    registered(registry.read(out), data, made.name)
    with running(out) as park:
        park.start("d0")
        edge = park.client("north")
        edge.subscribe(f"{TOP}/predictions/+")
        (row,) = delivery.deliver(registry.release(park.registry, 1, ("d0",), ()), ["d0"], 60.0)
        assert row["state"] == "serving", row
        (tmp_path / "rows-d0" / "pumps.csv").write_text("days,heat\n0,50\n400,72\n")
        answers = [json.loads(edge.hears()[1]) for _ in range(2)]
        edge.close()
    columns = {"days": [0.0, 400.0], "heat": [50.0, 72.0]}
    assert made.sensors is not None
    wanted = made.answer(np.array([columns[name] for name in made.sensors.columns], np.float32).T)
    for i, answer in enumerate(answers):
        document = wanted.document(i)
        assert {key: answer[key] for key in document} == pytest.approx(document, rel=1e-4)
