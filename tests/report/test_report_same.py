"""Accuracies are compared where they were measured on the same data, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refusals
from commands import TINY, Command
from fedfloor.data.files import own
from fedfloor.data.reading import DeviceSplit, RandomSplit, Reading, Split
from fedfloor.park.build import build
from fedfloor.park.described import describe
from fedfloor.park.partition import Iid
from fedfloor.report.ledger import collect
from fedfloor.report.page import render
from fedfloor.report.table import paired
from fedfloor.report.words import markdown as table
from run_folders import make_run


def described(folder: Path, **facts: Any) -> Path:
    """Change what a run's ``park.json`` says."""
    path = folder / "park.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    return folder


def set_in(folder: Path, table: str, text: str) -> Path:
    """Add a table to a run's ``experiment.toml``; of one that is there already, lines."""
    path = folder / "experiment.toml"
    body = path.read_text()
    head = f"[{table}]\n"
    path.write_text(body.replace(head, head + text + "\n") if head in body else f"{body}{head}{text}\n")
    return folder


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    return make_run(tmp_path / "a", [0.5, 0.7]), make_run(tmp_path / "b", [0.4, 0.6], method="fedavg")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"test_sha256": "f" * 64}, "runs-differ"),
        ({"test_sha256": "f" * 64, "dataset": "mnist"}, "runs-differ"),
        ({"test_sha256": "f" * 64, "test_samples": 900}, "runs-differ"),
    ],
)
def test_other_test_samples_are_not_compared(two: tuple[Path, Path], facts: dict[str, Any], words: str) -> None:
    a, b = two
    described(a, test_sha256="0" * 64)
    described(b, **facts)
    for use in (paired, table, render):
        with refusals.refused(words) as refused:
            use(collect([a, b]))
        assert str(a) in str(refused.value)
        assert str(b) in str(refused.value)


@pytest.mark.parametrize(
    ("facts", "data", "provenance", "words"),
    [
        ({"dataset": "mnist"}, "", "", "runs-differ"),
        ({"test_samples": 900}, "", "", "runs-differ"),
        ({}, 'split = { kind = "random" }', "", "runs-differ"),
        ({}, "", 'data_sha256 = "bbbb"', "runs-differ"),
    ],
)
def test_without_a_digest_the_records_decide(
    two: tuple[Path, Path], facts: dict[str, Any], data: str, provenance: str, words: str
) -> None:
    a, b = two
    set_in(a, "provenance", 'data_sha256 = "aaaa"')
    set_in(b, "data", data)
    described(b, **facts)
    set_in(b, "provenance", provenance)
    with refusals.refused(words):
        paired(collect([a, b]))


def test_validation_data_are_not_test_data(two: tuple[Path, Path]) -> None:
    set_in(two[1], "evaluate", 'on = "validation"')
    with refusals.refused("runs-differ"):
        paired(collect(two))


def test_the_same_samples_under_another_name_are_compared(two: tuple[Path, Path]) -> None:
    a, b = (described(folder, test_sha256="0" * 64) for folder in two)
    described(b, dataset="copy.npz")
    set_in(b, "data", "window = { length = 5 }")
    assert len(paired(collect([a, b]))) == 1


def test_seeds_may_have_test_samples_of_their_own(tmp_path: Path) -> None:
    for seed in (0, 1):
        for method in ("fedsr", "fedavg"):
            folder = make_run(tmp_path / f"{method}{seed}", [0.5], method=method, seed=seed)
            described(folder, test_sha256=str(seed) * 64)
            set_in(folder, "provenance", f'data_sha256 = "{seed}"')
    assert paired(collect([tmp_path]))[0]["seeds"] == [0, 1]
    described(tmp_path / "fedavg1", test_sha256="f" * 64)
    with refusals.refused("runs-differ"):
        paired(collect([tmp_path]))


def test_other_data_with_another_seed_are_not_compared(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.5])
    described(make_run(tmp_path / "b", [0.5], method="fedavg", seed=1), dataset="mnist")
    with refusals.refused("runs-differ"):
        paired(collect([tmp_path]))


def test_the_command_refuses_before_it_writes(command: Command) -> None:
    assert command.set("rounds=1").code == 0
    (command.folder / "more.toml").write_text(TINY.replace("samples_per_device = 40", "samples_per_device = 80"))
    assert command("run", "more.toml", "--ranks", "1", "--out", "more", "--set", "rounds=1").code == 0
    command.refused(command("report", "out", "more", "--out", "page.html"), "test samples 16 and 32")
    assert command("report", "out").code == 0


def test_a_run_records_the_digest_of_its_test_samples(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "floor.npz", x=rng.random((60, 2)), y=np.arange(60) % 2, device=np.repeat([*"abc"], 20))

    def digest(split: Split, **more: Any) -> str:
        return describe(build(own.load(tmp_path / "floor.npz", Reading(split=split), 0), **more))["test_sha256"]

    assert digest(RandomSplit()) == digest(RandomSplit(), partition=Iid(), devices=4, seed=3)
    assert digest(RandomSplit()) != digest(RandomSplit(test=0.3))
    assert digest(RandomSplit()) != digest(DeviceSplit())
