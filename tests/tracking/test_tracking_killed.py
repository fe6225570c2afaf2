"""A run that is killed and gone on with: what sinks show in the end is the ledger, no more and no less."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import warm
from commands import Command, lines
from sinks import ledger_points, one_mlflow_run, tensorboard_points

pytest.importorskip("tensorboard")
pytest.importorskip("mlflow")

WORDS = ("run", "tiny.toml", "--set", "rounds=320", "--ranks", "1", "--track", "tensorboard", "--track", "mlflow")


def rounds(folder: Path) -> int:
    path = folder / "ledger.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill(command: Command, out: Path, *more: str) -> None:
    """Kill a run, the first time or gone on with, some rounds behind a new checkpoint."""
    seen = {path.name for path in (out / "checkpoint").glob("round-*")}
    words = [*WORDS, "--out", str(out), *more]
    process = warm.begin(words, command.folder, command.folder / "log", checkpoint_s=0.1)
    limit = time.monotonic() + 60
    new: list[int] = []
    while process.poll() is None and time.monotonic() < limit:
        new = [int(p.name[6:]) for p in (out / "checkpoint").glob("round-*") if p.name not in seen]
        if new and rounds(out) > max(new) + 2:
            break
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL, "it ended before it could be killed"
    assert new, "no checkpoint was seen"


@pytest.mark.slow
def test_killed_twice_and_resumed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    store = (command.folder / "store").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    out = command.folder / "killed"
    kill(command, out)
    first = one_mlflow_run(store, "tiny")
    assert first.points, "nothing was sent before it was killed"
    assert set(first.points) <= set(ledger_points(out)), "MLflow was ahead of the ledger"
    kill(command, out, "--resume")
    said = command(*WORDS, "--out", "killed", "--resume")
    assert said.code == 0, said.err
    again = one_mlflow_run(store, "tiny")
    assert (again.id, again.status) == (first.id, "FINISHED")
    assert again.points == ledger_points(out)
    assert tensorboard_points(out) == ledger_points(out, single=True)
    assert command(*WORDS[:6], "--out", "calm").code == 0
    assert lines(out) == lines(command.folder / "calm")


LATE = """
import json, os, sys
import fedfloor
from fedfloor.experiment import DataSettings, ModelSettings, ParkSettings
from fedfloor.runs import launch
from fedfloor.tracking.tracker import follow

experiment = fedfloor.Experiment(
    rounds=2, data=DataSettings(samples_per_device=32), park=ParkSettings(devices=2), model=ModelSettings("logistic")
)
with follow("run", ["tensorboard", "mlflow"]) as record:
    before = {"tensorboard", "mlflow"} & set(sys.modules)
    fedfloor.run(experiment, "run", ranks=2, report=record)
print(json.dumps([sorted(before), "mlflow" in sys.modules, launch.single_threaded(), sorted(os.environ)]))
"""


@pytest.mark.slow
def test_sinks_do_not_keep_ranks_from_starting_fast(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LATE], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    before, after, single, names = json.loads(done.stdout)
    assert (before, after) == ([], True)
    assert single, "the next run of a comparison could not copy this process"
    assert not [name for name in names if name.startswith("MLFLOW_")]
    assert tensorboard_points(tmp_path / "run") == ledger_points(tmp_path / "run", single=True)


@pytest.mark.slow
def test_only_the_first_rank_of_a_torchrun_job_speaks(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    store = (command.folder / "store").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    words = [*("run", "tiny.toml", "--out", "many"), "--track", "mlflow", "--track", "tensorboard"]
    done = warm.fedfloor(words, command.folder, command.folder / "log", job=warm.Job())
    assert done.returncode == 0, done.stderr
    assert one_mlflow_run(store, "tiny").points == ledger_points(command.folder / "many")
    assert tensorboard_points(command.folder / "many") == ledger_points(command.folder / "many", single=True)


@pytest.mark.slow
def test_the_docs_python_runs_as_a_script(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tracking.md").read_text()
    (tmp_path / "follow.py").write_text(page.split("```python\n")[1].split("```")[0])
    done = subprocess.run([sys.executable, "follow.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert set(tensorboard_points(tmp_path / "runs" / "followed")) == {1, 2}
