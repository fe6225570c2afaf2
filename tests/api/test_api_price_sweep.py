"""Prices and sweeps in Python, which are those of the commands."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fedfloor
from commands import Command
from fedfloor import Cosine, FedAvg, FedProx, RunError
from refusals import refused

SMALL: dict[str, Any] = {"model": "logistic", "devices": 4, "rounds": 2, "changes": {"data.samples_per_device": 40}}


@dataclass(frozen=True)
class Halved(FedAvg):
    """FedAvg whose server goes the part ``step`` of the way."""

    step: float = 0.5

    @property
    def server(self) -> fedfloor.Sgd:
        return fedfloor.Sgd(self.step)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_price_is_that_of_the_command(command: Command) -> None:
    document = command("price", "tiny.toml", "--network", "lte-cat-m2", "--methods", "fedavg,ring", "--json").document
    prices = fedfloor.price(command.folder / "tiny.toml", ["fedavg", "ring"], network="lte-cat-m2")
    assert (prices.rows, prices.links, prices.network) == (document["rows"], document["links"], "lte-cat-m2")
    assert prices.to_pandas()[["network", "method"]].values.tolist() == [
        ["lte-cat-m2", "fedavg"],
        ["lte-cat-m2", "ring"],
    ]
    for text in (repr(prices), prices._repr_html_()):
        assert "lte-cat-m2" in text
        assert "MB per round" in text


def test_methods_of_ones_own_have_a_price_and_those_without_are_named() -> None:
    prices = fedfloor.price("labels", [Halved(), "local-only"], network="5g-edge", first=1, **SMALL)
    assert ([row["method"] for row in prices.rows], prices.free) == (["Halved"], ("local-only",))
    assert prices.rows[0]["rounds"] == 1
    assert "no price: local-only" in repr(prices)


def test_what_price_refuses() -> None:
    with refused("--rounds"):
        fedfloor.price("labels", network="5g-edge", first=3, **SMALL)
    with refused("repeated-method"):
        fedfloor.price("labels", ["fedavg", "fedavg"], network="5g-edge", **SMALL)


def test_finished_runs_are_priced_on_another_network() -> None:
    run = fedfloor.run("labels", network="lte-cat-m2", ranks=1, **SMALL)
    other = fedfloor.reprice(run, "nb-iot", "elsewhere")
    before, after = (fedfloor.load_run(folder).lines[-1].priced for folder in (run.folder, other.folders[0]))
    assert before is not None
    assert after is not None
    assert after["seconds"] > before["seconds"]
    assert other.rows[0]["accuracy"] == run.accuracy
    with refused("exists"):
        fedfloor.reprice(run, "nb-iot", "elsewhere")


def test_a_sweep_of_methods_of_ones_own() -> None:
    methods = [Halved(), FedProx(mu=0.1)]
    grid = {"work.lr": [0.1, Cosine(0.1, 0.01)], "methods.Halved.step": (0.5, 1.0), "methods.fedprox.mu": [0.0, 0.5]}
    done = fedfloor.sweep("labels", methods, grid, ranks=1, **SMALL)
    assert (done.stopped, done.folder) == ("finished", Path("runs/labels-sweep"))
    assert [row["method"] for row in done.rows] == ["Halved"] * 4 + ["fedprox"] * 4
    assert done.rows[3]["settings"] == {"work.lr": {"kind": "cosine", "start": 0.1, "end": 0.01}, "step": 1.0}
    assert json.loads((done.folder / "sweep.json").read_text())["rows"] == json.loads(json.dumps(done.rows))
    assert done.best == fedfloor.load(done.folder / "best.toml")
    assert done.best.method.name == done.winner
    table = done.to_pandas()
    assert (len(table), table["work.lr"][2]) == (8, '{ start = 0.1, end = 0.01, kind = "cosine" }')
    assert sum(table["best"]) == 2
    for text in (repr(done), done._repr_html_()):
        assert "validation_accuracy" in text
    again = fedfloor.sweep("labels", methods, grid, ranks=1, resume=True, **SMALL)
    assert again.rows == done.rows


def test_a_method_whose_trials_all_diverge_is_lost() -> None:
    done = fedfloor.sweep("labels", grid={"work.lr": [3e38]}, ranks=1, **SMALL)
    assert (done.lost, done.winner, done.rows[0]["validation_accuracy"]) == (("fedavg",), None, None)
    with refused("diverged", RunError):
        _ = done.best


def test_an_interrupted_sweep_has_no_best_settings() -> None:
    with refused("sweep-interrupted"):
        _ = fedfloor.Swept(Path("a"), "interrupted").best


@pytest.mark.parametrize(
    ("grid", "key"),
    [
        ({}, "--grid"),
        ({"work.lr": 0.1}, "--grid"),
        ({"work.lr": "0.1,0.2"}, "--grid"),
        ({"work.lr": []}, "--grid"),
        ({"work.lr": [0.1, 0.1]}, "--grid"),
        ({"data.name": ["mnist"]}, "--grid"),
        ({"methods.fedsr.laps": [1, 2]}, "--grid"),
        ({"work.lr": [-1.0]}, "work.lr"),
    ],
)
def test_grids_that_are_refused(grid: dict[str, Any], key: str) -> None:
    with refused(key):
        fedfloor.sweep("labels", grid=grid, **SMALL)
    assert not Path("runs").exists()
