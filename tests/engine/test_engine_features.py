"""Visits that train the classifier alone: features extracted once, and what devices keep of them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from fedfloor.base.errors import DivergedError, RunError
from fedfloor.engine import engine, local_update, visit
from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory, extractor_bytes
from fedfloor.engine.team import Alone, Team
from fedfloor.models.network import Network
from fedfloor.parts.objectives.objective import Plain
from fedfloor.plan.nodes import CLOUD, Node, Parallel, Sequence, Train, Work, device
from fedfloor.plan.schedule import Key
from floor import bits, digest, everywhere, extended, park, start, visits, walk
from refusals import refused
from scoped import PART, layered

HERE = park()  # five devices with 6, 10, 4, 9 and 5 samples
REPLAY = replace(PART, objective="replay", settings={"keep": 4})
LAST = replace(REPLAY, settings={"keep": 4, "last": True})
ALL = Parallel(visits(range(5)))


def of(
    kind: str = "plain", folder: Path | None = None, team: Team | None = None, module: nn.Module | None = None,
    **more: object,
) -> Engine:  # fmt: skip
    network = Network(module or layered(kind), "last")
    return Engine(HERE, network, team or Alone(), DeviceMemory(folder), 0, **more)  # type: ignore[arg-type]


def doubled(kind: str) -> nn.Module:
    return layered(kind).double()


# -- once --------------------------------------------------------------------------------------------------------------

WORKS = {
    "epochs": replace(PART, epochs=4), "steps": replace(PART, epochs=None, steps=9),
    "by hand": replace(PART, momentum=0.0, epochs=3), "decay": replace(PART, weight_decay=0.1),
    "prox": replace(PART, epochs=2, objective="prox", settings={"mu": 0.5}),
}  # fmt: skip


@pytest.mark.parametrize("what", WORKS)
def test_features_extracted_once_come_to_what_the_whole_network_comes_to(what: str) -> None:
    # in float64 a rounding is 1e-16 of numbers below 10, and some thirty steps of rate 0.1 add up
    plan = Parallel(tuple(Train(device(k), WORKS[what]) for k in range(5)))
    short, whole = (of(module=doubled("plain"), shortcuts=shortcuts) for shortcuts in (True, False))
    assert local_update.extracts_once(short, WORKS[what])
    assert visit.is_linear_visit(engine.classifier_layer(short.network), WORKS[what], Plain()) == (what == "by hand")
    assert not local_update.extracts_once(whole, WORKS[what])
    one, other = (walk(here, plan) for here in (short, whole))
    assert torch.allclose(one.packet["w"], other.packet["w"], rtol=0, atol=1e-12)
    assert bits(one.packet["w"]) != bits(start(short)["w"])
    for a, b in zip(one.receipts, other.receipts, strict=True):
        assert (a.device, a.steps, a.samples, a.accuracy) == (b.device, b.steps, b.samples, b.accuracy)
        assert (a.loss_first, a.loss_last) == pytest.approx((b.loss_first, b.loss_last), abs=1e-12)


@pytest.mark.parametrize("what", ["epochs", "by hand"])
def test_a_field_that_is_not_known_is_never_dropped(what: str) -> None:
    work = extended(WORKS[what])
    short = of()
    whole = of(shortcuts=False)
    assert not local_update.extracts_once(short, work)
    assert not visit.is_linear_visit(engine.classifier_layer(short.network), work, Plain())
    one = walk(short, Train(device(1), work))
    other = walk(whole, Train(device(1), WORKS[what]))
    assert bits(one.packet["w"]) == bits(other.packet["w"])
    assert local_update.extracts_once(short, extended(WORKS[what], 0.0))  # it is not set


def test_steps_written_out_are_those_of_replay_too(tmp_path: Path) -> None:
    work = replace(REPLAY, momentum=0.0, epochs=2)
    plan = Sequence((*visits((1, 1, 2), work), ALL, *visits((1, 2), work)))
    one, other = (
        walk(of(module=doubled("plain"), folder=tmp_path / str(on), shortcuts=on), plan) for on in (True, False)
    )
    assert torch.allclose(one.packet["w"], other.packet["w"], rtol=0, atol=1e-12)
    assert [r.accuracy for r in one.receipts] == [r.accuracy for r in other.receipts]


def test_steps_written_out_say_where_a_loss_is_no_number(tmp_path: Path) -> None:
    here = of(folder=tmp_path)
    here.network.flat[here.network.part("classifier")] = float("inf")
    with refused("diverged", DivergedError):
        walk(here, Train(device(3), replace(PART, momentum=0.0)))


@pytest.mark.parametrize("kind", ["dropout", "batch norm", "buffer"])
def test_not_where_a_pass_is_unlike_another(kind: str) -> None:
    assert not local_update.extracts_once(of(kind), PART)


def test_not_where_something_comes_after_the_classifier(tmp_path: Path) -> None:
    module = layered("plain")
    module.add_module("after", nn.Tanh())
    here = of(module=module, folder=tmp_path)
    assert not local_update.extracts_once(here, PART)
    with refused("objective"):
        walk(here, Train(device(0), REPLAY))


def test_features_are_what_goes_into_the_classifier() -> None:
    here = of("batch norm")
    samples = here.samples(1)
    net = here.network.module.eval()
    expected = nn.Sequential(*list(net.children())[:-1])(samples.values(slice(None)))
    assert bits(local_update.extracted(here.network, samples)) == bits(expected.detach())


# -- what devices keep refers to an extractor --------------------------------------------------------------------------


def test_the_reference_is_the_digest_of_what_lies_outside_the_classifier(tmp_path: Path) -> None:
    here = of(folder=tmp_path)
    walk(here, Train(device(1), REPLAY))
    outside = start(here)["w"][: here.network.part("classifier").start]
    name = hashlib.sha256(extractor_bytes(outside)).hexdigest()
    assert here.memory.extractor(1) == name
    assert here.memory.held[1].endswith(f"+{name}")
    assert bits(here.memory.numbers(name)) == bits(outside)


def test_devices_share_one_file_and_it_goes_when_nobody_refers_to_it(tmp_path: Path) -> None:
    here = of(folder=tmp_path)
    first = walk(here, Parallel(visits(range(5), REPLAY))).packet
    assert len(list(tmp_path.glob("extractor-*"))) == 1
    second = walk(here, ALL, first, number=2).packet
    walk(here, Parallel(visits(range(4), LAST)), second, number=3)
    here.memory.sweep(set())
    assert len(list(tmp_path.glob("extractor-*"))) == 2  # device 4 still refers to the first
    walk(here, Train(device(4), LAST), second, number=4)
    here.memory.sweep(set())
    assert len(list(tmp_path.glob("extractor-*"))) == 1
    assert len(list(tmp_path.glob("*.safetensors"))) == 6


def test_what_was_kept_by_an_earlier_extractor_is_moved_once(tmp_path: Path) -> None:
    here = of(folder=tmp_path)
    first = walk(here, Train(device(1), LAST)).packet
    before = here.memory.load(1)
    second = walk(here, ALL, first, number=2).packet
    old = here.memory.extractor(1)
    key = Key(0, 3, 0, 1, 0)
    here.network.flat.copy_(second["w"])
    eye = local_update.VisitExtractor(here, here.samples(1), key)
    assert eye.before == old != eye.name
    moved = eye.window() - eye.window(old)
    assert bits(here.network.flat) == bits(second["w"])  # looking back changes nothing
    samples = here.samples(1)
    expected = before["z"] + torch.stack([moved[samples.y == c].mean(0) for c in before["y"].tolist()])
    third = walk(here, Train(device(1), REPLAY), second, number=3).packet
    now = here.memory.load(1)
    assert torch.allclose(now["z"], expected, atol=1e-6)
    assert here.memory.extractor(1) == eye.name
    walk(here, Train(device(1), REPLAY), third, number=4)
    assert bits(here.memory.load(1)["z"]) == bits(now["z"])


PERIOD: Node = Sequence((
    ALL, Parallel(visits(range(5), REPLAY)), Parallel((Sequence(visits((0, 3), LAST)), *visits((1, 2, 4), LAST))), ALL,
    Parallel(visits(range(5), REPLAY)),
))  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 3])
def test_any_number_of_ranks_keeps_the_same(ranks: int, tmp_path: Path) -> None:
    def body(team: Team) -> object:
        here = of(folder=tmp_path / str(team.size), team=team, loss_chance=0.3)
        return [str(digest(walk(here, PERIOD))), str(sorted(here.memory.held.items()))]

    one = of(folder=tmp_path / "1", loss_chance=0.3)
    alone = [str(digest(walk(one, PERIOD))), str(sorted(one.memory.held.items()))]
    assert everywhere(ranks, body) == [alone] * ranks


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"0")])
def test_an_extractor_that_is_gone_or_changed_is_named(damage: object, tmp_path: Path) -> None:
    here = of(folder=tmp_path)
    packet = walk(here, ALL, walk(here, Train(device(1), LAST)).packet, number=2).packet
    damage(next(tmp_path.glob("extractor-*")))  # type: ignore[operator]
    with refused("device-memory", RunError):
        walk(here, Train(device(1), REPLAY), packet, number=3)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_the_whole_model_is_not_trained_on_features(tmp_path: Path) -> None:
    with refused("objective"):
        walk(of(folder=tmp_path), Train(device(0), replace(REPLAY, trains="all")))


def test_a_classifier_nobody_named_is_refused(tmp_path: Path) -> None:
    here = of(folder=tmp_path)
    here.network.classifier = None
    with refused("work.trains"):
        walk(here, Train(device(0), REPLAY))


def test_the_cloud_trains_on_features_too() -> None:
    work = Work(epochs=2, batch_size=4, rate=0.1, trains="classifier")
    one, other = (walk(of(module=doubled("plain"), shortcuts=on), Train(CLOUD, work)) for on in (True, False))
    assert torch.allclose(one.packet["w"], other.packet["w"], rtol=0, atol=1e-12)
