"""MOON and FedMMD: what a device keeps, what is asked once, and what is FedAvg to the bit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedfloor.base.errors import SettingError
from fedfloor.engine.visit import train
from fedfloor.methods.fedavg import FedAvg
from fedfloor.methods.presets import FedMMD, Moon
from fedfloor.parts.objectives.objective import Objective, Plain, Visit
from fedfloor.parts.objectives.proximal import Contrastive, features
from fedfloor.parts.objectives.registry import objective
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Parallel, Sequence, Train, Work, device
from fedfloor.plan.schedule import Key
from floor import adapted, bits, digest, park, plan_of, start, walk
from refusals import refused

KEY = Key(seed=5, round=7, tick=2, device=3, visit=1)

# -- memory ------------------------------------------------------------------------------------------------------------

MOON = Work(objective="contrastive", settings={"mu": 1.0, "dim": 8}, epochs=1, batch_size=4, rate=0.1)


def test_a_device_keeps_the_model_its_visit_ended_with(tmp_path: Path) -> None:
    here = park()
    goal = Contrastive(dim=8)
    of = adapted(here, goal, folder=tmp_path)
    arrived = start(of)
    first = walk(of, Train(device(0), MOON), arrived)
    assert bits(of.memory.load(0)["previous"]) == bits(first.packet["w"])
    # without a memory a visit is plain, and another device has none
    plain = replace(MOON, objective="plain", settings={})
    assert bits(walk(of, Train(device(0), plain), arrived).packet["w"]) == bits(first.packet["w"])
    other = walk(of, Train(device(1), MOON), arrived).packet["w"]
    assert bits(walk(of, Train(device(1), plain), arrived).packet["w"]) == bits(other)
    # with one it is not: the visit from the same start ends elsewhere
    again = walk(of, Train(device(0), MOON), arrived)
    assert bits(again.packet["w"]) != bits(first.packet["w"])
    assert bits(of.memory.load(0)["previous"]) == bits(again.packet["w"])


def test_the_term_draws_to_the_global_model_and_away_from_the_last_one(tmp_path: Path) -> None:
    # b − a, how much nearer z is to z_prev than to z_glob, after the same visit with and without the term
    nearer = []
    for mu in (0.0, 5.0):
        of = adapted(park((64, 5)), Contrastive(mu=mu, dim=8), folder=tmp_path / str(mu))
        arrived = of.network.flat.clone()
        rng = torch.Generator().manual_seed(0)
        previous = arrived + 0.05 * torch.randn(arrived.shape, generator=rng)
        goal = Contrastive(5.0, dim=8)
        visit = Visit(arrived, {"previous": previous}, of.network)
        x = of.samples(0).values(slice(None))
        work = Work(epochs=10, batch_size=64, rate=0.1)
        train(of.network, of.samples(0), work, Contrastive(mu, dim=8), visit, KEY)
        z = features(visit, x, "5.classifier", of.network.flat)
        nearer.append(float((z / z.norm(dim=1, keepdim=True) * goal.per_sample(x, visit)["apart"]).sum(1).mean()))
    assert nearer[1] < nearer[0] - 0.1


def test_a_memory_of_another_model_is_refused(tmp_path: Path) -> None:
    of = adapted(park(), Contrastive(dim=8), folder=tmp_path)
    of.memory.commit(0, {"previous": torch.zeros(7)})
    with refused("device-memory") as caught:
        walk(of, Train(device(0), MOON))
    size = of.network.flat.numel()
    assert f"a device memory from another model: the kept model has 7 numbers, this one {size}." in str(caught.value)


asked: list[int] = []


class Once(Contrastive):
    """Counts the samples it is asked about aside."""

    def per_sample(self, x: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        asked.append(len(x))
        return super().per_sample(x, visit)


class EachTime(Contrastive):
    """Asks the frozen streams again in every mini-batch."""

    def per_sample(self, x: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        return {}

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        return super().loss(module, x, y, replace(visit, per_sample=super().per_sample(x, visit)))


def test_passes_ask_once_and_end_where_asking_each_time_would(tmp_path: Path) -> None:
    asked.clear()
    ends = []
    for kind in (Once, EachTime):
        of = adapted(park((30, 5)), Contrastive(dim=8), folder=tmp_path)
        visit = Visit(of.network.flat.clone(), {"previous": of.network.flat * 1.1}, of.network)
        train(of.network, of.samples(0), Work(epochs=3, batch_size=7, rate=0.1), kind(dim=8), visit, KEY)
        ends.append(of.network.flat.clone())
    assert sum(asked) == 30
    # a sample's features may be rounded otherwise in another batch: 15 steps of some 2^-24 each
    assert float((ends[0] - ends[1]).abs().max()) < 1e-6


# -- with μ = 0 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp-2nn", "floor:dropout", "floor:batch_norm"])
def test_with_mu_0_it_is_plain_on_the_same_network_to_the_bit(model: str, tmp_path: Path) -> None:
    def twice(work: Work) -> tuple[object, ...]:
        of = adapted(park(), Contrastive(dim=8), model, tmp_path / work.objective / str(work.settings))
        visits = Parallel(tuple(Train(device(k), work) for k in (0, 1, 3)))
        outcome = walk(of, Sequence((visits, visits)), start(of))
        return digest(outcome)[0], [(r.loss_first, r.loss_last) for r in outcome.receipts]

    work = replace(MOON, epochs=2, momentum=0.5, settings={"mu": 0.0, "dim": 8})
    plain = twice(replace(work, objective="plain", settings={}))
    none = objective("contrastive", {"mu": 0})
    assert not none.needs_start
    assert not none.remembers
    assert twice(work) == plain
    assert twice(replace(work, settings={"mu": 0.5, "dim": 8})) != plain


def test_the_methods_without_their_terms_are_fedavg(tmp_path: Path) -> None:
    here = park()
    work = WorkSettings(epochs=2, batch_size=4, lr=0.1)

    def after(method: Moon | FedAvg | FedMMD, goal: Objective, name: str) -> bytes:
        of = adapted(here, goal, folder=tmp_path / name)
        packet = start(of)
        for number in (1, 2, 3):
            packet = dict(walk(of, plan_of(method, here, number=number), packet, number).packet)
        return bits(packet["w"])

    head = Contrastive(dim=8)
    fedavg = after(FedAvg(fraction=0.6, work=work), head, "a")
    assert after(Moon(mu=0.0, dim=8, fraction=0.6, work=work), head, "b") == fedavg
    assert after(Moon(mu=1.0, dim=8, fraction=0.6, work=work), head, "c") != fedavg
    fedavg = after(FedAvg(fraction=0.6, work=work), Plain(), "d")
    assert after(FedMMD(weight=0.0, fraction=0.6, work=work), Plain(), "e") == fedavg
    assert after(FedMMD(weight=0.1, fraction=0.6, work=work), Plain(), "f") != fedavg


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Moon(mu=-1.0), "mu = -1.0: must be a number of at least 0"),
        (lambda: FedMMD(weight=-1.0), "weight = -1.0: must be a number of at least 0"),
        (lambda: Moon(fraction=0.0), "methods.moon.fraction = 0.0: must be above 0"),
    ],
)
def test_methods_check_their_settings(make: Callable[[], object], said: str) -> None:
    with pytest.raises(SettingError, match=re.escape(said)):
        make()
