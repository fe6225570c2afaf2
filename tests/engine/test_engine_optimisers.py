"""Local optimisers: PyTorch's own steps, clipping, moments that devices keep, ranks, resumed runs, refusals."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine_visit import KEY, batches, big, visit
from torch import Tensor, nn

from commands import Command, lines
from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.engine import union
from fedfloor.engine.engine import Engine
from fedfloor.engine.steps import clip
from fedfloor.engine.team import Team
from fedfloor.methods import chosen
from fedfloor.methods.catalog import METHODS
from fedfloor.parts.objectives.proximal import Contrastive
from fedfloor.parts.work import WorkSettings
from fedfloor.plan import text
from fedfloor.plan.nodes import CLOUD, Parallel, Repeat, Sequence, Train, Work, device, edge
from fedfloor.runs import loop
from floor import adapted, bits, digest, engine, park, together, visits, walk
from refusals import refused
from rounds import Job, method

ADAMS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
KINDS = [
    {"optimizer": "adam"},
    {"optimizer": "adam", "weight_decay": 0.05},
    {"optimizer": "adamw", "weight_decay": 0.05, "beta1": 0.8, "beta2": 0.9, "eps": 1e-4},
]


def optimizer(module: nn.Module, work: Work, **more: Any) -> torch.optim.Optimizer:
    if work.optimizer == "sgd":
        return torch.optim.SGD(module.parameters(), lr=work.rate, momentum=work.momentum)
    numbers = {"betas": (work.beta1, work.beta2), "eps": work.eps, "weight_decay": work.weight_decay}
    return ADAMS[work.optimizer](module.parameters(), lr=work.rate, **numbers, **more)


def by_torch(of: Engine, work: Work, turns: int = 1, **more: Any) -> Tensor:
    """Train a copy of the network in a plain loop, one optimiser over all turns; return its parameters."""
    module = copy.deepcopy(of.network.module)
    steps = optimizer(module, work, **more)
    for turn in range(turns):
        for x, y in batches(of.samples(0), work, replace(KEY, round=KEY.round + turn)):
            steps.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            if work.clip_norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), work.clip_norm)
            steps.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("length", [{"epochs": 2}, {"steps": 1}], ids=str)
def test_adam_is_torchs_own_to_the_bit(kind: dict[str, Any], length: dict[str, int]) -> None:
    of = big()
    work = Work(batch_size=32, rate=0.01, **kind, **length)
    expected = by_torch(of, work, fused=True)
    start = of.network.flat.clone()
    visit(of, work)
    assert bits(of.network.flat) == bits(expected)
    assert not of.network.flat.equal(start)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_adam_is_the_formula_up_to_rounding(kind: dict[str, Any]) -> None:
    # A step moves a weight by some η, and the kernels round a few times in it: 6 steps of 0.01 by 2^-24 make 1e-8, but
    # where a gradient is about as small as ε·√(1 − β₂) its share counts; hence two decimals more
    of = big()
    work = Work(epochs=2, batch_size=32, rate=0.01, **kind)
    expected = by_torch(of, work, foreach=False, fused=False)
    visit(of, work)
    torch.testing.assert_close(of.network.flat, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [{}, {"momentum": 0.5}, *KINDS], ids=str)
def test_clipping_is_torchs_own(kind: dict[str, Any]) -> None:
    of = big()
    work = Work(epochs=2, batch_size=32, rate=0.1, clip_norm=0.05, **kind)
    expected = by_torch(of, work, **({} if "optimizer" not in kind else {"fused": True}))
    loose = copy.deepcopy(of)
    visit(loose, replace(work, clip_norm=1e6))
    visit(of, work)
    assert bits(of.network.flat) == bits(expected)
    assert not of.network.flat.equal(loose.network.flat)


def test_a_short_gradient_is_not_stretched() -> None:
    gradient = torch.tensor([0.3, -0.4])
    clip(gradient, [gradient[:1], gradient[1:]], 1.0)
    assert gradient.tolist() == pytest.approx([0.3, -0.4])


def test_clipping_counts_the_term_of_the_weights(tmp_path: Path) -> None:
    """FedProx's pull is part of the gradient that is clipped: each step is then at most η·norm long."""
    of = big()
    work = Work(objective="prox", settings={"mu": 1e4}, steps=3, rate=0.1, clip_norm=0.01)
    start = of.network.flat.clone()
    walk(of, Train(device(0), work))
    assert 0 < float((of.network.flat - start).norm()) <= 3 * 0.1 * 0.01 * (1 + 1e-4)


# -- moments that the device keeps -------------------------------------------------------------------------------------


def turns(of: Engine, work: Work, number: int = 3) -> Tensor:
    """Visit device 0 in several rounds, the model handed on; return what it ends with."""
    packet = {"w": of.network.flat.clone()}
    for turn in range(number):
        packet = dict(walk(of, Train(device(0), work), packet, number=KEY.round + turn).packet)
    return packet["w"]


@pytest.mark.parametrize("kind", [{"momentum": 0.9}, *KINDS], ids=str)
def test_kept_moments_make_one_long_training(kind: dict[str, Any], tmp_path: Path) -> None:
    """Three visits to one device that keeps its moments are one optimiser's three epochs."""
    here = park((70, 5), shape=(1, 28, 28), classes=10)
    work = Work(epochs=1, batch_size=32, rate=0.01, **kind)
    kept = engine(here, folder=tmp_path / "a")
    fresh = engine(here, folder=tmp_path / "b")
    expected = _plain_loop(kept, work)
    got = turns(kept, replace(work, moments="device"))
    assert bits(got) == bits(expected)
    assert bits(turns(fresh, work)) != bits(expected)
    assert not fresh.memory.held


def _plain_loop(of: Engine, work: Work) -> Tensor:
    module = copy.deepcopy(of.network.module)
    steps = optimizer(module, work, **({} if work.optimizer == "sgd" else {"fused": True}))
    for turn in range(3):
        key = replace(KEY, seed=of.seed, round=KEY.round + turn, tick=0, device=0, visit=0)
        for x, y in batches(of.samples(0), work, key):
            steps.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            steps.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


KEPT = Work(epochs=1, batch_size=4, rate=0.01, optimizer="adam", moments="device", clip_norm=1.0)


def test_they_never_travel_and_are_counted_in_what_a_device_keeps(tmp_path: Path) -> None:
    of = engine(park((10, 5)), folder=tmp_path)
    outcome = walk(of, Parallel(visits((0, 1), KEPT)))
    assert set(outcome.packet) == {"w"}
    own, _ = of.memory.sizes()
    numbers = 2 * of.network.trained * 4  # two means of every number
    assert len(own) == 2
    assert all(numbers <= size < numbers + 1000 for size in own)


def test_beside_what_an_objective_keeps(tmp_path: Path) -> None:
    """MOON's last model and Adam's means lie in one memory."""
    of = adapted(park((10, 5)), Contrastive(mu=1.0), folder=tmp_path)
    work = replace(KEPT, objective="contrastive", settings={"mu": 1.0, "temperature": 0.5})
    walk(of, Sequence((Train(device(0), work), Train(device(0), replace(work, objective="plain", settings={})))))
    names = set(of.memory.load(0))
    assert {name for name in names if name.startswith("optimizer.")} == {
        f"optimizer.adam.0.{one}" for one in ("mean", "square", "steps")
    }
    assert len(names) > 3
    assert float(of.memory.load(0)["optimizer.adam.0.steps"]) == 2 * 3  # ten samples by four, twice


def test_any_number_of_ranks_gives_the_same_bits(tmp_path: Path) -> None:
    here = park((10, 7, 9, 5, 8))
    plan = Sequence((Parallel(visits(range(5), KEPT)), Repeat(2, Parallel(visits((4, 2, 0), KEPT)))))

    def body(team: Team) -> tuple[object, ...]:
        of = engine(here, team=team, folder=tmp_path / str(team.size))
        return digest(walk(of, plan)), sorted(of.memory.held.items())

    alone = together(1, body)
    assert [together(ranks, body) for ranks in (2, 3)] == [alone, alone]


def test_the_memory_of_another_model_is_refused(tmp_path: Path) -> None:
    first = engine(park((10, 5)), folder=tmp_path)
    walk(first, Train(device(0), KEPT))
    other = replace(engine(park((10, 5)), "logistic"), memory=first.memory)
    with refused("device-memory"):
        walk(other, Train(device(0), KEPT))


# -- shortcuts step aside ----------------------------------------------------------------------------------------------

OTHERS: list[dict[str, Any]] = [{"optimizer": "adam"}, {"optimizer": "adamw"}, {"clip_norm": 1e-3}]


@pytest.mark.parametrize("kind", OTHERS, ids=str)
def test_a_super_node_is_no_longer_one_step(kind: dict[str, Any]) -> None:
    here = park((8, 8, 8))
    work = Work(steps=1, batch_size=4, rate=0.1)
    fast = engine(here)
    slow = replace(engine(here), shortcuts=False)
    node = Parallel(visits((0, 1, 2), replace(work, **kind)), at=edge(0))
    assert union.fits(fast, Parallel(visits((0, 1, 2), work), at=edge(0)), {"w": fast.network.flat})
    assert not union.fits(fast, node, {"w": fast.network.flat})
    assert bits(walk(fast, node).packet["w"]) == bits(walk(slow, node).packet["w"])


@pytest.mark.parametrize("kind", OTHERS, ids=str)
def test_training_the_classifier_alone_agrees_with_and_without_features(kind: dict[str, Any]) -> None:
    # features extracted in other batches round in other places: 1e-6 of weights of some 0.1, Adam's division included
    here = park((12, 8))
    work = Work(epochs=2, batch_size=4, rate=0.01, trains="classifier", **kind)
    fast = engine(here)
    slow = replace(engine(here), shortcuts=False)
    node = Parallel(visits((0, 1), work))
    torch.testing.assert_close(walk(fast, node).packet["w"], walk(slow, node).packet["w"], rtol=0, atol=1e-5)


# -- settings ----------------------------------------------------------------------------------------------------------


def test_settings_become_work() -> None:
    given = {"optimizer": "adamw", "betas": [0.8, 0.99], "eps": 1e-6, "moments": "device", "clip_norm": 0.5, "lr": 0.1}
    work = method("fedavg", work=given).method.work.at(1, 3)  # type: ignore[attr-defined]
    assert (work.optimizer, work.beta1, work.beta2, work.eps) == ("adamw", 0.8, 0.99, 1e-6)
    assert (work.moments, work.clip_norm, work.rate) == ("device", 0.5, 0.1)
    assert work.keeps_moments
    assert not Work(epochs=1, moments="device").keeps_moments  # SGD without momentum has none


def test_warm_up_rises_in_equal_steps() -> None:
    work = WorkSettings(lr=0.4, warmup=4)
    assert [work.at(n, 10).rate for n in range(1, 7)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert WorkSettings(lr=0.4, warmup=1).at(1, 10) == WorkSettings(lr=0.4).at(1, 10)


def test_an_optimiser_takes_its_own_settings_only() -> None:
    adam = WorkSettings(optimizer="adam", betas=(0.8, 0.9))
    heavy = WorkSettings(momentum=0.9, optimizer="sgd")
    assert (adam.over(heavy).momentum, heavy.over(adam).betas) == (None, None)
    assert heavy.over(WorkSettings(clip_norm=1.0)).clip_norm == 1.0
    assert WorkSettings(clip_norm=float("inf")).over(WorkSettings(clip_norm=1.0)).at(1, 1).clip_norm is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"optimizer": "rmsprop"}, "work.optimizer"),
        ({"optimizer": "adam", "momentum": 0.9}, "work.momentum = 0.9 belongs to optimizer 'sgd'"),
        ({"optimizer": "sgd", "betas": [0.9, 0.99]}, "work.betas belongs to optimizers 'adam' and 'adamw'"),
        ({"eps": 1e-8}, "work.eps belongs to optimizers 'adam' and 'adamw', and work.optimizer is 'sgd'"),
        ({"optimizer": "adam", "betas": [0.9, 1.0]}, "work.betas"),
        ({"optimizer": "adam", "betas": [0.9]}, "work.betas"),
        ({"optimizer": "adam", "eps": 0.0}, "work.eps"),
        ({"clip_norm": 0.0}, "work.clip_norm"),
        ({"warmup": 0}, "work.warmup"),
        ({"moments": "cloud"}, "work.moments"),
    ],
)
def test_refused_settings(table: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message.replace(".", r"\.")):
        chosen.method_of(config.from_table({"work": table, "method": {"name": "fedavg"}}))


@pytest.mark.parametrize("kind", [{"optimizer": "adam"}, {"clip_norm": 1.0}, {"momentum": 0.5, "moments": "device"}])
@pytest.mark.parametrize(("name", "parts", "part"), [
    ("scaffold", {}, "method"),
    ("qffl", {}, "method"),
    ("fedavg", {"mix": "q_fair"}, "method"),
    ("scaffold", {"objective": "weighted"}, "method"),
])  # fmt: skip
def test_what_reads_gradients_off_the_way_is_refused(
    name: str, parts: dict[str, Any], part: str, kind: dict[str, Any], tmp_path: Path
) -> None:
    with refused(part) as caught:
        Job(method(name, parts, work=kind), park(), folder=tmp_path).run()
    assert f"method '{name}'" in str(caught.value)
    Job(method(name, parts, work={"momentum": 0.5}), park(), rounds=1, folder=tmp_path).run()


SGD_ONLY = ("scaffold", "qffl", "apfl", "boosting")


@pytest.mark.parametrize("name", [one for one in METHODS if one not in SGD_ONLY])
def test_every_other_method_trains_by_adam(name: str, tmp_path: Path) -> None:
    work = {"optimizer": "adam", "moments": "device", "clip_norm": 1.0}
    here = park((6, 10, 4, 9, 5, 8), factory_of=(0, 1, 0, 1, 2, 2))
    job = Job(method(name, work=work), here, rounds=2, folder=tmp_path)
    state = job.run()
    assert bool(torch.isfinite(state.packet["w"]).all())
    assert any("optimizer.adam" in entry for k in job.engine.memory.held for entry in job.engine.memory.load(k))


def test_a_plan_states_what_differs_from_the_default() -> None:
    plain = Train(CLOUD, Work(epochs=1))
    adam = Train(CLOUD, KEPT)
    assert not {"optimizer", "moments", "clip_norm", "beta1"} & set(text.to_json(plain)["work"])
    assert text.from_json(json.loads(json.dumps(text.to_json(adam)))) == adam
    with refused("plan"):
        text.from_json({**text.to_json(adam), "work": {**text.to_json(adam)["work"], "optimizer": "rmsprop"}})


# -- runs --------------------------------------------------------------------------------------------------------------

ADAM = ("run", "tiny.toml", "--set", "work.optimizer=adam", "--set", "work.moments=device", "--set", "rounds=4",
        "--set", "work.warmup=2", "--set", "work.clip_norm=1.0")  # fmt: skip


@pytest.mark.parametrize("name", ["fedavg", "moon", "local-only", "centralized"])
def test_two_ranks_and_a_resumed_run_are_the_same(command: Command, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_S", 0.0)
    words = (*ADAM, "--set", f"method.name={name}")
    folder = command.folder
    assert command(*words, "--ranks", "1", "--out", "one").code == 0
    assert command(*words, "--ranks", "2", "--out", "two").code == 0
    assert command(*words, "--ranks", "1", "--out", "cut", "--stop-after", "2").code == 0
    assert command(*words, "--ranks", "1", "--out", "cut", "--resume").code == 0
    for other in ("two", "cut"):
        assert lines(folder / "one") == lines(folder / other)
        models = [folder / one / "model.safetensors" for one in ("one", other) if name != "local-only"]
        assert len({path.read_bytes() for path in models}) <= 1
    assert json.loads((folder / "one/memory.json").read_text())["bytes_mean"] > 0
    fresh = [*words, "--set", "work.moments=visit"]
    assert command(*fresh, "--ranks", "1", "--out", "fresh").code == 0
    assert lines(folder / "one") != lines(folder / "fresh")
