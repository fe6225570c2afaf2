"""What public functions are called with: wrong types are errors with a key, numbers of NumPy are those of Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedfloor
from fedfloor import FedAvg, FedProx, Limits, MethodSettings, NormLimit, TopK, WorkSettings
from fedfloor.api.wording import worded
from fedfloor.cli.shared import summary
from fedfloor.experiment import Experiment
from fedfloor.park.partition import no_owners
from fedfloor.parts import objects
from refusals import refused

TABLE = {"machine": ["a", "b"] * 10, "load": [0.1, 0.2] * 10, "state": ["x", "y"] * 10}
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "limits of a run": (lambda: fedfloor.run("labels", limits={"stop_after": 3}), "limits"),  # type: ignore[arg-type]
    "ranks": (lambda: fedfloor.run("labels", ranks="2"), "ranks"),  # type: ignore[arg-type]
    "a fraction of ranks": (lambda: fedfloor.run("labels", ranks=1.5), "ranks"),  # type: ignore[arg-type]
    "changes": (lambda: fedfloor.run("labels", changes=["rounds=3"]), "changes"),  # type: ignore[arg-type]
    "out": (lambda: fedfloor.run("labels", out=3), "out"),  # type: ignore[arg-type]
    "resume": (lambda: fedfloor.run("labels", resume="yes"), "resume"),  # type: ignore[arg-type]
    "report": (lambda: fedfloor.run("labels", report="page"), "report"),  # type: ignore[arg-type]
    "source": (lambda: fedfloor.load(TABLE), "source"),  # type: ignore[arg-type]
    "folder": (lambda: fedfloor.load_run(3), "folder"),  # type: ignore[arg-type]
    "folder of a comparison": (lambda: fedfloor.load_comparison(None), "folder"),  # type: ignore[arg-type]
    "runs of a report": (lambda: fedfloor.write_report(3), "runs"),  # type: ignore[arg-type]
    "data": (lambda: fedfloor.train(None), "data"),
    "rounds of a table": (lambda: fedfloor.train(TABLE, rounds="3"), "rounds"),  # type: ignore[arg-type]
    "device": (lambda: fedfloor.train(TABLE, device=3), "device"),  # type: ignore[arg-type]
    "seeds as a text": (lambda: fedfloor.compare("labels", seeds="0,1"), "seeds"),  # type: ignore[arg-type]
    "a seed": (lambda: fedfloor.compare("labels", seeds=3), "seeds"),  # type: ignore[arg-type]
    "seeds as texts": (lambda: fedfloor.compare("labels", seeds=["0"]), "seeds"),  # type: ignore[list-item]
    "grid": (lambda: fedfloor.sweep("labels", grid=["work.lr=0.1"]), "grid"),  # type: ignore[arg-type]
    "trials": (lambda: fedfloor.sweep("labels", grid={"work.lr": [0.1]}, trials="2"), "trials"),  # type: ignore[arg-type]
    "first": (lambda: fedfloor.price("labels", first="2"), "first"),  # type: ignore[arg-type]
    "network": (lambda: fedfloor.reprice("runs", 5, "out"), "network"),  # type: ignore[arg-type]
    "a share as a text": (lambda: fedfloor.load("labels", fraction="0.5"), "methods.fedavg.fraction"),
    "no network": (lambda: fedfloor.price("labels", devices=2, first=1), "network.profile"),
    "a question": (lambda: fedfloor.ask(3), "source"),  # type: ignore[arg-type]
    "limits themselves": (lambda: Limits(stop_after="3"), "limits.stop_after"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_type_is_named(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, key = WRONG[what]
    with refused(key):
        call()
    assert not list(tmp_path.iterdir())


def test_every_function_of_the_package_has_the_door() -> None:
    ours = [getattr(fedfloor, name) for name in fedfloor.__all__ if fedfloor.MODULE_OF.get(name, "").startswith("api.")]
    functions = [each for each in ours if inspect.isfunction(each)]
    assert len(functions) >= 10
    assert [each.__name__ for each in functions if not hasattr(each, "__wrapped__")] == []


def test_numbers_of_numpy_are_taken_everywhere() -> None:
    one, half = np.int64(1), np.float32(0.5)
    methods = [FedAvg(fraction=half), FedProx(mu=np.float64(0.5), work=WorkSettings(epochs=one))]
    assert [objects.method(each)[1] for each in methods] == [{"fraction": 0.5}, {"work": {"epochs": 1}, "mu": 0.5}]
    parts = MethodSettings("fedavg", travel=[TopK(share=half), "int8"], mix=np.str_("median"))  # type: ignore[arg-type]
    assert (parts.travel, parts.mix) == (({"kind": "top-k", "share": 0.5}, "int8"), "median")
    made = Experiment(
        "a", seed=one, methods={"fedsr": {"laps": one, "work": {"epochs": one}}}, method=FedAvg(fraction=half)
    )  # fmt: skip
    assert (type(made.seed), type(made.methods["fedsr"]["laps"])) == (int, int)
    assert type(made.methods["fedsr"]["work"]["epochs"]) is int
    changed = fedfloor.load(made, rounds=np.int32(3), changes={"evaluate.coverage": np.bool_(True)})
    assert (changed.rounds, changed.evaluate.coverage) == (3, True)
    sites = fedfloor.load(made, devices=np.array(2), changes={"park.assignment": np.array([0, 1])})
    assert (sites.park.devices, sites.park.assignment) == (2, (0, 1))
    limit = fedfloor.DeploySettings(norm_limit=NormLimit(np.float32(2.0)))  # type: ignore[arg-type]
    assert limit.limit == NormLimit(2.0)
    assert Limits(stop_after=one, accuracy=half) == Limits(stop_after=1, accuracy=0.5)  # type: ignore[arg-type]


def test_paths_are_texts(tmp_path: Path) -> None:
    made = fedfloor.load("labels", changes={"model.init_from": tmp_path, "data.root": tmp_path})
    assert (made.model.init_from, made.data.root) == (str(tmp_path), str(tmp_path))


def test_errors_have_the_keys_that_changes_take() -> None:
    words = worded(str(no_owners()))
    assert "Deal the samples with data.partition = {'kind': 'iid'}, dirichlet" in words
    assert "and park.devices; or" in words
    assert worded("[decide] is for classes, [model] whose") == "[decide] is for classes, [model] whose"


def test_a_seed_that_did_not_end_is_named_on_the_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small: dict[str, Any] = {"devices": 2, "rounds": 2, "changes": {"data.samples_per_device": 20}, "ranks": 1}
    fedfloor.run("labels", "all/zero", seed=0, **small)
    fedfloor.run("labels", "all/one", seed=1, limits=Limits(stop_after=1), **small)
    Path("all/two").mkdir()
    Path("all/two/experiment.toml").write_text("seed = 2")
    summary([Path("all")], Path("report.html"), None, as_json=False)
    printed = capsys.readouterr().out
    assert "Schedule not finished: FedAvg (seed 1) did 1 of 2 rounds" in printed
    assert "Without a finished round: two." in printed


def test_a_file_of_data_in_the_place_of_an_experiment_or_a_name_has_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("own.npz", x=np.zeros((4, 2), np.float32), y=np.zeros(4, np.int64))
    with refused("data-file"):
        fedfloor.load("own.npz")
    with refused("data-name"):
        fedfloor.run(Experiment("own", data=fedfloor.DataSettings("own.npz")))
