"""The cohort engine equals the loop: every method, several networks, ragged devices, chains, choices, super nodes."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from cohorts import HEAVY, NETWORKS, PLANS, TWO, WORKS, both, engine, floor_, same
from fedfloor.base.chance import generator
from fedfloor.base.errors import DivergedError
from fedfloor.engine.cohort import program
from fedfloor.engine.cohort.cohort import Cohort
from fedfloor.engine.cohort.forward import CONVOLUTIONS
from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone, Team
from fedfloor.methods.catalog import METHODS
from fedfloor.models.network import Network
from fedfloor.park.stream import Fifo, Recycle, batch_order
from fedfloor.plan import nodes
from fedfloor.plan.nodes import Node, Parallel, Work
from fedfloor.plan.schedule import Key
from floor import batch_norm, dropout, everywhere, extended, park, start, visits, walk
from refusals import refused
from rounds import Job, method

# -- every method ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [0.0, 0.3], ids=["all arrive", "some are lost"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_the_same(name: str, loss: float, tmp_path: Path) -> None:
    # In float64: FedMMD's narrowest kernel, of variance 1e-6, makes the rounding of float32 far larger.
    of = method(name, work={"epochs": 2})
    kind = torch.float64
    jobs = [Job(of, floor_(), folder=tmp_path / str(side), loss=loss, kind=kind) for side in (0, 1)]
    jobs[1].engine.cohort = Cohort()
    first, second = (job.run() for job in jobs)
    for one, other in zip(jobs[0].outcomes, jobs[1].outcomes, strict=True):
        assert one.resolved == other.resolved
        assert len(one.receipts) == len(other.receipts)
    for key, value in first.packet.items():  # three rounds of at most six steps
        assert float((value - second.packet[key]).abs().max()) <= 1e-8 * float(value.abs().max())


# -- every network -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_the_same_after_twenty_steps_in_float32(name: str) -> None:
    here = park((40, 33, 37), shape=(1, 20, 20))
    plan = Parallel(visits((0, 1, 2), Work(steps=20, batch_size=2, rate=0.01, momentum=0.5)))
    same(*both(plan, here, name, torch.float32))


@pytest.mark.parametrize("name", NETWORKS[:-1])
def test_every_network_is_the_same_after_an_epoch_in_float64(name: str) -> None:
    here = park((40, 33, 37), shape=(3, 20, 20))
    same(*both(Parallel(visits((0, 1, 2), replace(HEAVY, batch_size=8))), here, name))


@pytest.mark.parametrize("name", ["cnn-sensor", "cnn-sensor-gn", "cnn-window", "tcn", "transformer", "mlp-window"])
def test_networks_for_windows_are_the_same(name: str, caplog: pytest.LogCaptureFixture) -> None:
    here = park((12, 7), shape=(2, 8, 8))
    flat = replace(here.dataset, shape=(2, 64), take=lambda i, k: here.dataset.take(i, k).reshape(len(i), 2, 64))
    with caplog.at_level(logging.INFO):
        same(*both(Parallel(visits((0, 1), HEAVY)), replace(here, dataset=flat), name))
    assert ("torch.func.vmap stacks it" in caplog.text) == (name != "mlp-window")
    assert "cannot be stacked" not in caplog.text


# -- every kind of work, every shape of plan ---------------------------------------------------------------------------


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
@pytest.mark.parametrize("shortcuts", [True, False], ids=["auto", "off"])
def test_every_kind_of_work_on_ragged_devices_is_the_same(work: Work, shortcuts: bool) -> None:
    same(*both(Parallel(visits(range(6), work)), shortcuts=shortcuts))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("loss", [0.0, 0.4], ids=["all arrive", "some are lost"])
def test_every_shape_of_plan_is_the_same(plan: Node, loss: float) -> None:
    same(*both(plan, loss_chance=loss))


@pytest.mark.parametrize("name", ["chains of several lengths", "rings", "super nodes", "unlike branches"])
@pytest.mark.parametrize("cache_bytes", [1 << 28, 0], ids=["resident", "carried"])
def test_buffers_that_stay_and_masked_steps_are_the_same(name: str, cache_bytes: int) -> None:
    plan = nodes.Sequence((PLANS[name], PLANS["chains of several lengths"], PLANS[name]))  # programs are met again
    same(*both(plan, replace(floor_(), cache_bytes=cache_bytes), fixed=True, loss_chance=0.2))


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_every_kind_of_work_is_the_same_in_buffers_that_stay(work: Work) -> None:
    once = Parallel(visits((*range(6), 0, 1, 2), work))  # ten places, of which nine are used, then half, then a quarter
    same(*both(nodes.Sequence((once, once)), fixed=True))


@pytest.mark.parametrize("name", ["scaffold", "fedl", "hfedms", "fedgs"])
def test_methods_are_the_same_in_buffers_that_stay(name: str, tmp_path: Path) -> None:
    jobs = [Job(method(name), floor_(), folder=tmp_path / str(side)) for side in (0, 1)]
    jobs[1].engine.cohort = Cohort(fixed=True)
    first, second = (job.run() for job in jobs)
    for key, value in first.packet.items():
        assert float((value - second.packet[key]).abs().max()) <= 1e-5 * float(value.abs().max())


@pytest.mark.parametrize("stream", [Fifo(3), Recycle(3)], ids=["fifo", "recycle"])
@pytest.mark.parametrize("name", ["chains of several lengths", "choices", "super nodes"])
def test_streams_are_the_same(stream: Fifo | Recycle, name: str) -> None:
    same(*both(PLANS[name], replace(floor_(), stream=stream)))


def test_samples_that_do_not_fit_on_the_accelerator_are_carried_there() -> None:
    same(*both(PLANS["choices"], replace(floor_(), stream=Fifo(3), cache_bytes=0)))


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chains of several lengths", "super nodes", "meetings within"])
def test_a_cohort_that_is_split_is_the_same(name: str, caplog: pytest.LogCaptureFixture) -> None:
    loop, whole, cut = (engine(floor_(), "mlp-2nn", torch.float64, one) for one in (None, Cohort(), Cohort()))
    assert cut.cohort is not None
    cut.cohort.room_bytes = 2 * 6 * 8 * len(cut.network.flat) + 100_000  # two models and their activations
    one, two, three = (walk(of, PLANS[name]) for of in (loop, whole, cut))
    same(one, two)
    same(one, three)


def test_what_does_not_fit_side_by_side_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    of = engine(floor_(), "mlp-2nn", torch.float64, Cohort(room_bytes=1))
    plan = Parallel(visits(range(4), TWO))
    with caplog.at_level(logging.INFO):
        outcome = walk(of, nodes.Sequence((plan, plan)))
    same(walk(engine(floor_(), "mlp-2nn", torch.float64, None), nodes.Sequence((plan, plan))), outcome)


def test_ranks_share_the_branches_of_a_cohort() -> None:
    plan = nodes.Sequence((PLANS["choices"], PLANS["unlike branches"]))

    def body(team: Team) -> list[float]:
        outcome = walk(engine(floor_(), "mlp-2nn", torch.float64, Cohort(), team=team), plan)
        return outcome.packet["w"].tolist()

    alone = walk(engine(floor_(), "mlp-2nn", torch.float64, None), plan).packet["w"]
    for told in everywhere(2, body):
        assert torch.allclose(torch.tensor(told, dtype=torch.float64), alone, rtol=0, atol=1e-10)  # type: ignore[arg-type]


# -- mini-batches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epochs", "steps"), [(2, None), (None, 5)])
def test_mini_batches_are_those_of_the_keyed_generator(epochs: int | None, steps: int | None) -> None:
    work = Work(epochs=epochs, steps=steps, batch_size=4)
    key = Key(3, 1, 2, 5, 0)
    held = np.arange(100, 110)
    rng = generator(3, "batches", 1, 2, 5, 0)
    wanted = [
        held[whole[first : first + 4]].tolist()
        for whole, count in batch_order(10, 4, epochs, steps, rng)
        for first in range(0, min(10, 4 * count), 4)
    ]
    found = program.batches(held, work, key)
    assert [one.tolist() for one in found] == wanted
    laid = program.stacked([found, found[:2]], np.dtype(np.float64))
    assert laid.many.tolist() == [2, 2] + [1] * (len(found) - 2)
    assert (laid.share[2:, 1] == 0).all()  # a visit that is over is masked
    for s, one in enumerate(found):
        assert laid.rows[s, 0, : len(one)].tolist() == one.tolist()
        assert set(laid.rows[s, 0].tolist()) == set(one.tolist())  # filled up with samples of its own
        assert laid.share[s, 0].sum() == pytest.approx(1)


# -- what cannot be stacked, and what goes wrong -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "said"),
    [(dropout((1, 3, 3), 3), "batch norm or dropout"), (batch_norm((1, 3, 3), 3), "batch norm or dropout")],
    ids=["dropout", "batch norm"],
)
def test_a_network_that_mixes_samples_goes_through_the_loop_to_the_bit(
    module: nn.Module, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    here = floor_()
    networks = [Network(copy.deepcopy(module)) for _ in range(2)]
    begin = networks[0].flat.clone()
    told = []
    for net, cohort in zip(networks, (None, Cohort()), strict=True):
        of = Engine(here, net, Alone(), DeviceMemory(None), 0, cohort=cohort)
        with caplog.at_level(logging.INFO):
            told.append(walk(of, Parallel(visits(range(4), TWO)), {"w": begin.clone()}))
    assert torch.equal(told[0].packet["w"], told[1].packet["w"])
    assert told[0].receipts == told[1].receipts
    assert caplog.text.count("visits are computed one by one") == 1
    assert said in caplog.text


@pytest.mark.parametrize("name", ["moon", "fedfusion", "cgau"])
def test_objectives_that_cannot_be_stacked_are_named(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(method(name), floor_(), folder=tmp_path)
    job.engine.cohort = Cohort()
    with caplog.at_level(logging.INFO):
        job.run()
    assert (
        f"visits are computed one by one: objective '{job.method.objective.__class__.__name__.lower()}'" in caplog.text
    )


def test_an_objective_of_your_own_goes_through_the_loop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    work = Work("floor:Counting", epochs=1, batch_size=4, rate=0.1)
    here = floor_()
    told = []
    for side, cohort in enumerate((None, Cohort())):
        memory = DeviceMemory(tmp_path / str(side))
        of = replace(engine(here, "mlp-2nn", torch.float64, cohort), memory=memory)
        with caplog.at_level(logging.INFO):
            told.append(walk(of, nodes.Sequence((Parallel(visits((0, 1), work)), Parallel(visits((1, 2), work))))))
    same(*told)
    assert [one.memory for one in told[0].receipts] == [one.memory for one in told[1].receipts]
    assert "objective 'floor:Counting'" in caplog.text


@pytest.mark.parametrize("name", ["plain", "momentum and decay", "classifier"])
def test_work_with_a_field_that_is_not_known_goes_through_the_loop_to_the_bit(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    loop, cohort = (engine(floor_(), "mlp-2nn", torch.float32, one) for one in (None, Cohort()))
    plan = Parallel(visits(range(4), extended(WORKS[name])))
    with caplog.at_level(logging.INFO):
        one, other = walk(loop, plan), walk(cohort, plan)
    assert one.packet["w"].equal(other.packet["w"])
    assert "one by one: their work has fields that a cohort does not implement" in caplog.text


def test_a_loss_that_diverges_names_the_device() -> None:
    here = floor_()
    work = Work(epochs=30, batch_size=4, rate=1e30)
    errors = []
    for cohort in (None, Cohort()):
        with refused("diverged", DivergedError) as caught:
            walk(engine(here, "mlp-2nn", torch.float32, cohort), Parallel(visits((2, 1), work)))
        errors.append(str(caught.value).split(" became ")[0])
    assert errors[0] == errors[1] == "the loss of device 2"


def test_what_goes_in_stays_as_it_is() -> None:
    of = engine(floor_(), "mlp-2nn", torch.float64, Cohort())
    packet = start(of)
    before = packet["w"].clone()
    walk(of, PLANS["chains of several lengths"], packet)
    assert torch.equal(packet["w"], before)


# -- precision ---------------------------------------------------------------------------------------------------------


def test_bf16_is_near_and_follows_the_weights() -> None:
    plan = Parallel(visits((0, 1, 2), Work(steps=20, batch_size=8, rate=0.1)))
    full = walk(engine(floor_(), "mlp-2nn", torch.float32, Cohort()), plan)
    half = walk(engine(floor_(), "mlp-2nn", torch.float32, Cohort("bf16")), plan)
    apart = (full.packet["w"] - half.packet["w"]).abs().max()
    assert 0 < apart < 2**-6 * full.packet["w"].abs().max()  # products are rounded to 8 bits
    for one, other in zip(full.receipts, half.receipts, strict=True):
        assert other.loss_last == pytest.approx(one.loss_last, rel=0.02)  # stale weights would leave it near the first


def test_a_convolution_is_the_same_whichever_way_it_is_done() -> None:
    torch.manual_seed(0)
    for layer in (nn.Conv2d(3, 5, 3), nn.Conv2d(3, 5, (3, 2), stride=(2, 1), padding=(1, 0), bias=False)):
        x = torch.randn(4, 6, 3, 9, 8, dtype=torch.float64)
        weight = torch.randn(4, *layer.weight.shape, dtype=torch.float64)
        bias = None if layer.bias is None else torch.randn(4, 5, dtype=torch.float64)
        one, *others = (done(layer, x, weight, bias) for done in CONVOLUTIONS.values())
        for other in others:
            assert other.shape == one.shape
            assert torch.allclose(one, other, rtol=0, atol=1e-12)
