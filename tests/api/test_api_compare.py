"""Comparisons in Python, with methods, parts and networks as objects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import fedfloor
from fedfloor import Dirichlet, FedAvg, FedProx, MethodSettings, Mix, Sgd
from fedfloor.api.methods import with_methods
from refusals import refused

SMALL = {"model": "logistic", "devices": 4, "rounds": 2, "changes": {"data.samples_per_device": 40}, "ranks": 1}


@dataclass(frozen=True)
class Half(FedAvg):
    """FedAvg whose server goes the part ``mu`` of the way."""

    mu: float = 0.5

    @property
    def server(self) -> Sgd:
        return Sgd(self.mu)


@dataclass(frozen=True)
class Most(Mix):
    """A mean in which no device counts for more than ``most`` samples."""

    most: int = 1000

    def weight(self, samples: int) -> float:
        return float(min(samples, self.most))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_methods_parts_and_names_in_one_call() -> None:
    methods = ["fedavg", Half(mu=1.0), MethodSettings("fedavg", mix=Most(10**6)), FedProx(mu=0.0)]
    got = fedfloor.compare("labels", methods, seeds=range(2), partition=Dirichlet(0.5), **SMALL)  # type: ignore[arg-type]
    assert got.folder == Path("runs/labels-compare")
    rows = {row["method"]: row["accuracy"] for row in got.rows}
    assert list(rows) == ["fedavg", "Half", "fedavg + Most(most=1000000)", "fedprox"]
    assert len(set(rows.values())) == 1  # the server goes the whole way, no device is capped, no proximal term
    assert [row["seeds"] for row in got.rows] == [[0, 1]] * 4
    for text in (repr(got), got._repr_html_()):
        assert "fedavg + Most(most=1000000)" in text
    again = fedfloor.load_comparison(got.folder)
    assert {row["method"]: row["accuracy"] for row in again.rows} == rows
    assert (again.stopped, set(again.folders)) == ("finished", {folder.resolve() for folder in got.folders})


def test_a_comparison_is_drawn_with_a_line_per_method() -> None:
    got = fedfloor.compare("labels", ["fedavg", "fedsr"], seeds=[0, 1], **SMALL)  # type: ignore[arg-type]
    axes = got.plot()
    assert [line.get_label() for line in axes.get_lines()] == ["FedAvg", "FedSR"]
    assert [line.get_xdata().tolist() for line in axes.get_lines()] == [[1.0, 2.0]] * 2
    assert axes.get_lines()[0].get_ydata()[-1] == pytest.approx(got.rows[0]["accuracy"])
    pandas = pytest.importorskip("pandas")
    table = got.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert table.groupby(["method", "seed"]).size().tolist() == [2, 2, 2, 2]


def test_the_same_class_with_several_settings_is_told_apart() -> None:
    base = fedfloor.load("labels")
    got, names = with_methods(base, [Half(mu=0.5), Half(mu=0.1), FedProx(mu=0.5), FedProx(mu=0.1)], 0.5)
    assert names == ["Half", "Half(mu=0.1)", "fedprox(mu=0.5)", "fedprox(mu=0.1)"]  # mu = 0.5 is Half's default
    assert got.methods["Half(mu=0.1)"] == {"method": f"{__name__}:Half", "mu": 0.1, "fraction": 0.5}
    named, names = with_methods(base, {"slow": Half(mu=0.1), "fast": FedAvg(fraction=1.0)}, None)
    assert names == ["slow", "fast"]
    assert named.methods["slow"] == {"method": f"{__name__}:Half", "mu": 0.1}
    _, names = with_methods(fedfloor.load("labels", method="fedsr"), None, None)
    assert names == ["fedsr"]


def test_a_methods_own_fraction_takes_precedence() -> None:
    got, names = with_methods(fedfloor.load("labels"), ["fedavg", FedProx(fraction=0.1)], 0.5)
    assert [got.methods[name]["fraction"] for name in names] == [0.5, 0.1]
    with refused("fraction"):
        with_methods(fedfloor.load("labels"), ["pca"], 0.5)


def test_a_comparison_can_be_run_again() -> None:
    first = fedfloor.compare("labels", ["fedavg"], **SMALL)  # type: ignore[arg-type]
    second = fedfloor.compare("labels", ["fedavg"], **SMALL)  # type: ignore[arg-type]
    assert (first.folder.name, second.folder.name) == ("labels-compare", "labels-compare-2")
    assert first.rows[0]["accuracy"] == second.rows[0]["accuracy"]
    third = fedfloor.compare("labels", ["fedavg", "fedsr"], resume=True, **SMALL)  # type: ignore[arg-type]
    assert third.folder == second.folder
    assert [row["method"] for row in third.rows] == ["fedavg", "fedsr"]


def test_the_same_method_twice_is_refused() -> None:
    with refused("repeated-method"):
        fedfloor.compare("labels", [Half(mu=0.1), Half(mu=0.1)], **SMALL)  # type: ignore[arg-type]


def test_a_single_method_needs_no_list() -> None:
    tiny = fedfloor.load("labels", devices=4)
    assert with_methods(tiny, "fedsr", None)[1] == ["fedsr"]
    assert with_methods(tiny, FedProx(mu=0.1), None) == with_methods(tiny, [FedProx(mu=0.1)], None)
