"""Experiments and runs in Python: sources, folders, results, and the caller's process."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedfloor
from fedfloor import DataSettings, Dirichlet, Experiment, FedAvg, ModelSettings, ParkSettings, SettingError
from fedfloor.api.progress import bars
from fedfloor.api.run import chosen_folder
from fedfloor.runs.ledger import Line
from refusals import refused

TINY = Experiment(
    "tiny", rounds=2, data=DataSettings(samples_per_device=40), park=ParkSettings(devices=4, factories=2),
    model=ModelSettings("logistic"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_load_reads_files_bundled_names_data_sets_and_experiments() -> None:
    Path("mine.toml").write_text("rounds = 3\n[work]\nlr = 0.5\n")
    assert fedfloor.load("mine.toml") == fedfloor.load(Path("mine.toml"))
    assert (fedfloor.load("mine.toml").name, fedfloor.load("mine.toml", rounds=5, lr=0.25).work.lr) == ("mine", 0.25)
    assert fedfloor.load("fedsr-mnist").method.name == "fedsr"
    made = fedfloor.load("mnist", partition=Dirichlet(0.1), devices=7, factories=2, model="lenet", method="fedsr")
    assert (made.data.name, made.data.partition, made.park.devices) == ("mnist", Dirichlet(0.1), 7)
    assert (made.model.name, made.method.name, made.work.short_batches) == ("lenet", "fedsr", True)
    assert fedfloor.load(TINY) == TINY
    changed = fedfloor.load(TINY, rounds=7, changes={"evaluate.every": 3, "methods.fedavg.fraction": 0.5})
    assert changed == replace(
        TINY, rounds=7, evaluate=fedfloor.EvaluateSettings(every=3), methods={"fedavg": {"fraction": 0.5}}
    )
    assert fedfloor.load(TINY, fraction=0.5).methods == {"fedavg": {"fraction": 0.5}}


@pytest.mark.parametrize(
    "call",
    [
        lambda: fedfloor.load("no-such-name"),
        lambda: fedfloor.load("no-such-file.toml"),
        lambda: fedfloor.load(TINY, changes={"work.rate": 1}),
        lambda: fedfloor.load(TINY, rate=1),
        lambda: fedfloor.load(TINY, rounds="3"),
        lambda: fedfloor.load(TINY, changes={"data.name": "mnist"}),
        lambda: fedfloor.run(TINY, fraction=2.0),
        lambda: fedfloor.load(TINY, method="pca", fraction=0.5),
        lambda: fedfloor.load({"machine": ["a", "b"], "load": np.zeros(2)}),
        lambda: fedfloor.load(None),
        lambda: fedfloor.compare(TINY, ["fedavg"], seeds=3),
        lambda: fedfloor.load_run("no-such-folder"),
        lambda: fedfloor.load_comparison("no-such-folder"),
    ],
)  # fmt: skip
def test_mistakes_are_refused_by_name(call) -> None:
    with pytest.raises(SettingError):
        call()


def test_numbers_of_a_numpy_grid_are_numbers() -> None:
    """``for lr in np.logspace(…, dtype=np.float32)``, ``for seed in np.arange(3)``."""
    grid = {"lr": np.float32(0.25), "seed": np.int64(2), "rounds": np.int32(3)}
    made = fedfloor.load(TINY, changes={"work.epochs": np.int8(1)}, **grid)
    assert made == fedfloor.load(TINY, lr=0.25, seed=2, rounds=3, epochs=1)


def test_a_run_shows_its_results_and_is_loaded_again() -> None:
    done = fedfloor.run(TINY, ranks=1, references=True)
    assert done.folder == Path("runs/tiny")
    assert list(done.curve) == [1, 2]
    assert list(done.curve.values()) == [line.accuracy for line in done.lines]
    assert done.figures["accuracy"] == done.curve[2]
    assert [row["training"] for row in done.rows][:3] == [
        "each device alone", "federated (FedAvg)", "all data in one place"
    ]  # fmt: skip
    values = [row["accuracy"] for row in done.devices]
    assert len(values) == 4
    assert values == sorted(values)
    tested = json.loads((done.folder / "references" / "local-only-seed0" / "evaluation.json").read_text())
    alone = {place["device"]: place["accuracy"] for place in tested["devices"]}
    assert {row["device"]: row["alone"] for row in done.devices} == {f"device {k}": alone[k] for k in range(4)}
    for text in (repr(done), done._repr_html_()):
        assert all(row["training"] in text for row in done.rows)
        assert done.devices[0]["device"] in text
        assert len(text) < 8000
    ET.fromstring(done._repr_html_())
    again = fedfloor.load_run("runs/tiny")
    assert (again.lines, again.stopped, again.rows, again.story) == (done.lines, "finished", done.rows, done.story)
    assert done.report().is_file()


def test_a_cell_can_be_run_again_and_goes_on_with_resume(caplog: pytest.LogCaptureFixture) -> None:
    first = fedfloor.run(TINY, ranks=1, limits=fedfloor.Limits(stop_after=1))
    assert fedfloor.load_run(first.folder).stopped == "stopped"
    caplog.clear()
    second = fedfloor.run(TINY, ranks=1)
    assert (first.folder, second.folder) == (Path("runs/tiny"), Path("runs/tiny-2"))
    assert "runs/tiny-2" in caplog.text
    third = fedfloor.run(TINY, ranks=1, resume=True)
    assert third.folder == second.folder
    assert third.lines == second.lines
    with refused("exists") as error:
        fedfloor.run(TINY, "runs/tiny", ranks=1)
    assert "--" not in str(error.value)
    whole = fedfloor.run(TINY, "runs/tiny", ranks=1, resume=True)
    assert [line.accuracy for line in whole.lines] == [line.accuracy for line in second.lines]


def test_folders_are_numbered_from_two() -> None:
    assert chosen_folder(None, "a", resume=False) == Path("runs/a")
    for number in ("", "-2", "-3"):
        Path(f"runs/a{number}").mkdir(parents=True)
        Path(f"runs/a{number}/x").touch()
    assert chosen_folder(None, "a", resume=False) == Path("runs/a-4")
    assert chosen_folder(None, "a", resume=True) == Path("runs/a-3")
    assert chosen_folder("b", "a", resume=True) == Path("b")


def test_processes_of_torchrun_agree_on_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("runs/a").mkdir(parents=True)
    Path("runs/a/x").touch()
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    assert chosen_folder(None, "a", resume=False) == Path("runs/a")


def test_the_callers_threads_and_generators_are_left_as_found() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        fedfloor.run(TINY, ranks=1)
        assert torch.get_num_threads() == 2
        assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    finally:
        torch.set_num_threads(threads)


def test_an_array_is_predicted_as_an_array() -> None:
    done = fedfloor.run(TINY, ranks=1)
    x = np.zeros((3, 28, 28), np.uint8)
    classes = done.model.trained.classes
    assert done.model.predict(x).tolist() == [classes[i] for i in done.model.trained.predict(x).argmax(1)]


SCRIPT = """
import threading
from dataclasses import dataclass
import fedfloor

@dataclass(frozen=True)
class Mine(fedfloor.FedAvg):
    "FedAvg under another name."
    mu: float = 0.5

def go(**more):
    return fedfloor.run("labels", method=Mine(mu=0.25), model="logistic", devices=2, rounds=1,
                        changes={"data.samples_per_device": 40}, **more)

print(go().folder)
wait = threading.Event()
threading.Thread(target=wait.wait, daemon=True).start()
try:
    go(ranks=2)
except fedfloor.SettingError as error:
    print(error)
"""


def test_a_class_of_a_script_trains_in_this_process_and_is_refused_elsewhere_with_the_reason() -> None:
    Path("script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    folder, error = done.stdout.splitlines()
    assert folder == "runs/labels"
    assert "__main__:Mine" in error
    assert "threads" in error
    assert "mu = 0.25" in Path("runs/labels/experiment.toml").read_text()
    with refused("method"):  # resumed without the script
        fedfloor.run("runs/labels/experiment.toml", "runs/labels", resume=True, ranks=1)


@dataclass(frozen=True)
class Same(FedAvg):
    """FedAvg under another name."""


def test_a_methods_object_gives_the_same_bits_as_its_name() -> None:
    one = fedfloor.run(TINY, method=Same(fraction=0.5), ranks=1)
    two = fedfloor.run(TINY, method="fedavg", fraction=0.5, ranks=1)
    assert one.model_file.read_bytes() == two.model_file.read_bytes()


def line(number: int) -> Line:
    return Line(number, 0.5, None, 0.5, None, None, None, 1.5, 4, 0, "x")


def test_progress_is_silent_in_a_script_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for wanted, lines in ((None, 0), (False, 0), (True, 1)):
        with bars(1, wanted=wanted)("tiny", 2) as follow:
            follow(line(1))
        assert len(capsys.readouterr().err.splitlines()) == lines
