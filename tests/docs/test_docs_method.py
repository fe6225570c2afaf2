"""The how-to on methods and parts of one's own does what it says, here and in an installed package."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_docs import HERE, write_files

import fedfloor
import live_park
import refusals
from commands import TINY, Command, lines
from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.runs import privacy, revealed
from fedfloor.tasks.classification import CLASSIFICATION
from floor import bits, park
from rounds import Job, after, method

PAGE = HERE / "docs" / "your-method.md"
SIZES = (6, 10, 4, 9, 5, 8)
NORMED = """
from torch import nn

def network(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, classes))
"""
SMALL = {
    "data": {"samples_per_device": 24},
    "park": {"devices": 4, "factories": 2},
    "model": {"name": "linear"},
    "work": {"batch_size": 8},
}


@pytest.fixture
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    write_files(PAGE, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = [path.stem for path in tmp_path.glob("*.py")]
    importlib.invalidate_caches()
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}  # of other tests
    yield
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(others)


# -- a method derived from FedAvg -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_files")
def test_the_derived_method_visits_those_with_the_largest_last_loss() -> None:
    job = Job(method("mine:Mine", fraction=0.5), park(SIZES), rounds=4)
    state = job.begin()
    known = {}
    visited = []
    for number in range(1, 5):
        wanted = sorted(range(6), key=lambda k: -known.get(k, float("inf")))[:3]
        state = job.round(state, number)
        receipts = job.outcomes[-1].receipts
        visited.append({one.device for one in receipts})
        if number > 2:  # before, some are unknown and drawn
            assert visited[-1] == set(wanted)
        known |= {one.device: one.loss_first for one in receipts}
    assert visited[0] | visited[1] == set(range(6))


@pytest.mark.usefixtures("_files")
def test_the_derived_method_is_a_method_like_any_other(command: Command) -> None:
    shown = command("list", "methods", "mine:Mine")
    assert "devices with the largest last loss, those never visited first" in shown.out
    first, *_ = command("list", "methods", "mine:Mine", "--json").document["rows"]
    assert first == {"setting": "fraction", "default": 0.3}
    done = command("compare", "tiny.toml", "--methods", "fedavg,mine:Mine", "--json", "--out", "both")
    assert [row["method"] for row in done.document["rows"]] == ["fedavg", "mine:Mine"]
    out = command.folder / "both" / "mine.Mine-seed0"
    whole = lines(out)
    assert len(whole) == 3
    words = ("run", "tiny.toml", "--set", "method.name=mine:Mine", "--out", "cut")
    command(*words, "--ranks", "1", "--stop-after", "2")
    command(*words, "--ranks", "2", "--resume")
    assert lines(command.folder / "cut") == whole
    assert (command.folder / "cut" / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


# -- parts on the way of an update ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_files")
def test_a_codec_keeps_tensors_of_its_own_on_devices(tmp_path: Path) -> None:
    def job(codec: dict[str, object], folder: str) -> Job:
        parts = method("fedavg", {"travel": {"share": 0.2, **codec}})
        return Job(parts, park(SIZES), rounds=3, folder=tmp_path / folder)

    usual = job({"kind": "top-k"}, "usual").run()
    without = job({"kind": "ways:CorrectedTopK", "momentum": 0.0}, "without").run()
    assert bits(without.packet["w"]) == bits(usual.packet["w"])  # a sum of what was not sent is the usual error
    corrected = job({"kind": "ways:CorrectedTopK"}, "with")
    corrected.run()
    kept = corrected.engine.memory.load(0)
    assert set(kept) == {"residual all | velocity", "residual all | sum"}
    assert float((kept["residual all | velocity"] == 0).double().mean()) >= 0.2


@pytest.mark.usefixtures("_files")
def test_a_codec_with_noise_is_accounted_and_hides_metrics(tmp_path: Path) -> None:
    def noisy(**more: Any) -> fedfloor.Experiment:
        codec = {"kind": "ways:NoisyUpdate", "noise": 2.0, "clip": 0.5}
        return config.from_table(SMALL | {"rounds": 3, "method": {"travel": codec}} | more)

    done = fedfloor.run(noisy(), tmp_path / "run", ranks=1)
    stated = json.loads((tmp_path / "run" / "privacy.json").read_text())["models"]
    assert (stated["epsilon"], stated["rounds"]) == (privacy.sums_composed(((2.0, 3),), 1e-5), 3)
    assert (stated["clip"], stated["noise_multiplier"]) == (0.5, 2.0)
    assert [line.train_loss for line in done.lines] == [None] * 3
    limits = fedfloor.Limits(epsilon=privacy.sums_composed(((2.0, 2),), 1e-5))
    assert len(fedfloor.run(noisy(), tmp_path / "budget", ranks=1, limits=limits).lines) == 2
    fedfloor.run(noisy(), tmp_path / "two", ranks=2)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "two")]
    assert models[0] == models[1]
    bounds = [
        revealed.statement(what, what.configured, CLASSIFICATION, {}, {0: 3}, 0)
        for what in (noisy(), config.from_table(SMALL))
    ]
    assert [set(known) for known in bounds] == [{"holding"}, {"holding", "update", "receipt"}]
    (tmp_path / "normed.py").write_text(NORMED)
    for more, message in (
        ({"round": {"close": {"first": 2}}, "network": {"profile": "lte-cat-m2"}}, "round.close"),
        ({"method": {"name": "fedbuff", "travel": "ways:NoisyUpdate"}}, "does not wait"),
        ({"method": {"name": "scaffold", "travel": "ways:NoisyUpdate"}}, "beside the model, without the noise"),
        ({"model": {"name": "normed:network"}}, "batch norm's statistics"),
        ({"method": {"travel": ["ways:NoisyUpdate", "top-k"]}}, "would remove the noise"),
        ({"method": {"travel": ["int8", "ways:NoisyUpdate"]}}, "must be the first codec"),
    ):
        with pytest.raises(SettingError, match=message):
            fedfloor.run(noisy(**more), tmp_path / "refused", ranks=1)


def attacked(limit: object, **attack: Any) -> fedfloor.Experiment:
    return config.from_table({
        "rounds": 4, "data": {"samples_per_device": 24}, "park": {"devices": 6, "factories": 2},
        "model": {"name": "linear"}, "work": {"batch_size": 8, "lr": 0.05}, "network": {"profile": "lte-cat-m2"},
        "deploy": {"simulate": True, "norm_limit": limit},
        "faults": {"attackers": {"kind": "ways:OneLayer", "devices": [2], **attack}},
    })  # fmt: skip


def refused(what: fedfloor.Experiment, folder: Path, ranks: int = 1) -> list[int]:
    done = fedfloor.run(what, folder, ranks=ranks)
    return [int(device) for line in done.lines for device in line.info.get("refused", {})]


@pytest.mark.usefixtures("_files")
def test_a_limit_by_layers_refuses_what_hides_in_a_small_layer(tmp_path: Path) -> None:
    assert refused(attacked(4.0), tmp_path / "whole") == []
    per_layer = {"kind": "ways:PerLayer", "factor": 4.0}
    one = refused(attacked(per_layer), tmp_path / "one")
    assert set(one) == {2}
    assert refused(attacked(per_layer), tmp_path / "two", ranks=2) == one


@pytest.mark.live
@pytest.mark.usefixtures("_files")
def test_a_codec_and_a_limit_of_ones_own_run_alike_on_real_machines(tmp_path: Path) -> None:
    more = (
        'method.travel = [{ kind = "ways:CorrectedTopK", share = 0.1 }, "int8"]\n'
        'deploy = { simulate = true, norm_limit = { kind = "ways:PerLayer", factor = 20.0 } }\n'
    )
    what = live_park.experiment(tmp_path, "fedavg", rounds=3, devices=4, more=more)
    with live_park.live(tmp_path, what) as machines:
        lines = machines.run()
    simulation = fedfloor.run(what, tmp_path / "simulated", ranks=1)
    assert [line.lost for line in lines] == [0, 0, 0]
    assert [line.train_loss for line in lines] == [line.train_loss for line in simulation.lines]
    found, wanted = (tmp_path / name / "model.safetensors" for name in ("live", "simulated"))
    assert found.read_bytes() == wanted.read_bytes()


@pytest.mark.usefixtures("_files")
def test_settings_of_parts_on_the_way_are_checked() -> None:
    with refusals.refused("unknown setting of attack 'ways:OneLayer'"):
        attacked(4.0, strenght=2.0)
    with refusals.refused("deploy.norm_limit"):
        attacked({"kind": "ways:PerLayer", "factor": 0.5})
    with refusals.refused("own-code"):
        attacked({"kind": "ways:PerLayers"})
    with refusals.refused("own-part"):
        attacked({"kind": "ways:OneLayer"})


@pytest.mark.usefixtures("_files")
def test_parts_on_the_way_are_given_as_objects(tmp_path: Path) -> None:
    ways = importlib.import_module("ways")
    given = fedfloor.Experiment(
        rounds=2,
        data=fedfloor.DataSettings("labels", samples_per_device=24),
        park=fedfloor.ParkSettings(devices=4, factories=2),
        model=fedfloor.ModelSettings("linear"),
        work=fedfloor.WorkSettings(batch_size=8, lr=0.05),
        method=fedfloor.MethodSettings(travel=[ways.CorrectedTopK(share=0.2), "int8"]),
        deploy=fedfloor.DeploySettings(simulate=True, norm_limit=ways.PerLayer(factor=20.0)),
        faults=fedfloor.FaultSettings(attackers={"kind": ways.OneLayer(strength=2.0), "devices": [1]}),
    )
    assert given.deploy.norm_limit == {"kind": "ways:PerLayer", "factor": 20.0}
    assert given.faults.attackers == {"kind": "ways:OneLayer", "strength": 2.0, "devices": [1]}
    run = fedfloor.run(given, tmp_path / "run", ranks=1)
    again = fedfloor.run(str(tmp_path / "run" / "experiment.toml"), tmp_path / "again", ranks=1)
    found, wanted = (tmp_path / name / "model.safetensors" for name in ("run", "again"))
    assert found.read_bytes() == wanted.read_bytes()
    assert len(run.lines) == len(again.lines) == 2


@pytest.mark.parametrize("kind", [None, 3, "sing-flip"])
def test_attackers_without_an_attack_are_refused(kind: object) -> None:
    with pytest.raises(SettingError, match=r"faults\.attackers"):
        fedfloor.FaultSettings(attackers={"kind": kind, "count": 1})


# -- installed --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_works_with_an_installed_package(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    here = tmp_path / "here"
    here.mkdir()
    here_built = [] if importlib.util.find_spec("hatchling") is None else ["--no-build-isolation"]
    install = ["pip", "install", "--quiet", "--no-deps", *here_built, "--target", str(packages), str(HERE)]
    subprocess.run([sys.executable, "-m", *install], check=True, capture_output=True, timeout=300)
    write_files(PAGE, here)

    def typed(words: list[str]) -> str:
        environment = {**os.environ, "PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, cwd=here, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = typed([sys.executable, "-c", "import fedfloor; print(fedfloor.__file__)"])
    assert Path(where.strip()).is_relative_to(packages)
    (here / "tiny.toml").write_text(TINY)
    fedfloor = [sys.executable, "-m", "fedfloor"]
    assert "never visited first" in " ".join(typed([*fedfloor, "list", "methods", "mine:Mine"]).split())
    typed([*fedfloor, "run", "tiny.toml", "--set", "method.name=mine:Mine", "--ranks", "1"])
    said = typed([*fedfloor, "compare", "tiny.toml", "--methods", "fedavg,mine:Mine", "--ranks", "2"])
    assert "mine:Mine" in said
    assert (here / "runs" / "tiny-compare" / "mine.Mine-seed0" / "model.safetensors").exists()


# -- parts of one's own ------------------------------------------------------------------------------------------------


def model(parts: dict[str, Any], name: str = "fedavg", **settings: Any) -> torch.Tensor:
    return after(method(name, parts, **settings), park(SIZES)).packet["w"]


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize(
    ("own", "same"),
    [
        ({"objective": {"kind": "goals:Smooth", "epsilon": 0.0}}, {}),
        ({"mix": {"kind": "rules:Capped", "most": 10}}, {"mix": "by_samples"}),  # nobody holds more
        ({"mix": {"kind": "rules:Capped", "most": 4}}, {"mix": "equal"}),  # nobody holds less
        ({"server": {"kind": "server:Bounded", "bound": 1e9}}, {"server": "sgd"}),
        ({"selection": {"kind": "who:AtLeast", "samples": 4}}, {}),
    ],
    ids=str,
)
def test_the_pages_parts_at_their_limits_are_those_of_the_house(own: dict[str, Any], same: dict[str, Any]) -> None:
    assert bits(model(own)) == bits(model(same))


@pytest.mark.usefixtures("_files")
def test_a_clipped_mean_without_a_bound_is_the_equal_mean() -> None:
    clipped = model({"mix": {"kind": "rules:Clipped", "bound": 1e9}})
    assert torch.allclose(clipped, model({"mix": "equal"}), rtol=0, atol=1e-6)  # w + mean(w_k − w) in float32


@pytest.mark.usefixtures("_files")
def test_bounds_bind() -> None:
    # 3 rounds, each at most 0.01 long: at most 0.03 away from the start, but for rounding
    job = Job(method("fedavg", {"server": {"kind": "server:Bounded", "bound": 0.01}}), park(SIZES))
    away = float((job.run().packet["w"] - job.start["w"]).norm())
    assert 0.01 < away < 0.03 * (1 + 1e-4)
    # 6 devices move the mean of their models by at most 0.01 a round
    job = Job(method("fedavg", {"mix": {"kind": "rules:Clipped", "bound": 0.01}}), park(SIZES))
    assert 0.005 < float((job.run().packet["w"] - job.start["w"]).norm()) < 0.03 * (1 + 1e-4)


@pytest.mark.usefixtures("_files")
def test_a_sparse_objective_makes_the_weights_smaller() -> None:
    plain, sparse = (model({"objective": one}) for one in ("plain", {"kind": "goals:Sparse", "weight": 1e-2}))
    assert float(sparse.abs().sum()) < float(plain.abs().sum())


@pytest.mark.usefixtures("_files")
def test_only_those_who_hold_enough_are_visited() -> None:
    job = Job(method("fedsr", {"selection": {"kind": "who:AtLeast", "samples": 8}}), park(SIZES))
    job.run()
    assert {one.device for of in job.outcomes for one in of.receipts} == {1, 3, 5}
    with refusals.refused("own-selection"):
        Job(method("fedsr", {"selection": {"kind": "who:AtLeast", "samples": 11}}), park(SIZES)).run()


@pytest.mark.usefixtures("_files")
def test_the_slow_server_is_fedavg_with_rate_one() -> None:
    assert bits(model({}, "server:Slow", rate=1.0)) == bits(model({}))
    # the middle of w and the mean, after one round from the same start
    start = Job(method("fedavg"), park(SIZES)).start["w"]
    whole, half = (after(method(name), park(SIZES), rounds=1) for name in ("fedavg", "server:Slow"))
    assert torch.allclose(half.packet["w"], (start + whole.packet["w"]) / 2, rtol=0, atol=1e-6)
