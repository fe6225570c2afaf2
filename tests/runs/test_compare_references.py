"""References named among the methods of a comparison, and folders that hold something else."""

from __future__ import annotations

import html
import json
import random
import re
import shlex
import shutil

import pytest

from commands import Command

TREES = ("--set", "method.name=boosting", "--set", "methods.boosting.trees=2", "--set", "rounds=16", "--ranks", "1")


@pytest.fixture
def plant(command: Command) -> Command:
    draw = random.Random(1)
    rows = [
        f"{machine},{x:.3f},{draw.gauss(0, 1):.3f},{'worn' if x > bias else 'good'}"
        for machine, bias in (("a", 0.0), ("b", 0.4), ("c", -0.4))
        for x in (draw.gauss(0, 1) for _ in range(60))
    ]
    (command.folder / "t.csv").write_text("device,x,z,label\n" + "\n".join(rows) + "\n")
    assert command("new", "t.csv").code == 0
    return command


def loss_of(command: Command, folder: str) -> float:
    line = (command.folder / folder / "ledger.jsonl").read_text().splitlines()[-1]
    return float(json.loads(line)["loss"])


def test_each_device_alone_grows_trees_beside_trees(plant: Command) -> None:
    assert plant("run", "t.toml", *TREES, "--references", "--out", "r").code == 0
    compared = plant("compare", "t.toml", *TREES, "--methods", "boosting,local-only,scikit-learn", "--out", "c")
    assert compared.code == 0, compared.err
    for name in ("local-only", "scikit-learn"):
        assert loss_of(plant, f"c/{name}-seed0") == loss_of(plant, f"r/references/{name}-seed0")
    assert not (plant.folder / "c" / "pooled-seed0").exists()
    plant.refused(plant("compare", "t.toml", *TREES, "--out", "r"), "holds a run")
    plant.refused(plant("run", "t.toml", *TREES, "--out", "c"), "holds several runs")


@pytest.mark.parametrize(
    ("methods", "told"),
    [
        ("boosting,nonsense", "unknown method 'nonsense'"),
        ("pooled", "--methods boosting,pooled"),
        ("boosting,persistence", "'persistence' is no reference for this task"),
    ],
)
def test_names_that_cannot_be_compared_are_refused_before_training(plant: Command, methods: str, told: str) -> None:
    plant.refused(plant("compare", "t.toml", *TREES, "--methods", methods, "--out", "c"), told)
    assert not (plant.folder / "c").exists()


def test_a_reports_commands_repeat_the_methods_with_their_settings(plant: Command) -> None:
    """A run's own file has the settings of its method alone; the comparison's file has those of all."""
    with (plant.folder / "t.toml").open("a") as file:
        file.write("\n[methods.near]\nmethod = 'fedprox'\nmu = 0.5\n\n[methods.fedprox]\nmu = 0.2\n")
    few = ("--set", "model.name=logistic", "--set", "rounds=2", "--ranks", "1")
    assert plant("compare", "t.toml", *few, "--methods", "fedavg,near,fedprox", "--out", "c").code == 0
    page = html.unescape((plant.folder / "c" / "report.html").read_text())
    told = {tuple(shlex.split(text)[1:]) for text in re.findall(r"fedfloor compare [^<]+", page)}
    assert len(told) == 2
    for line in told:
        done = plant(*line, "--ranks", "1")
        assert done.code == 0, done.err
        for method in ("fedavg", "near", "fedprox"):
            assert loss_of(plant, f"runs/again/{method}-seed0") == loss_of(plant, f"c/{method}-seed0")
        shutil.rmtree(plant.folder / "runs" / "again")
