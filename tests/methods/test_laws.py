"""Methods that are others with X = …: the sentences of the methods' docstrings, on the engine."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedfloor.base.chance import generator
from fedfloor.engine.team import Team
from fedfloor.methods.contract import Method
from fedfloor.methods.fedavg import FedAvg
from fedfloor.methods.fedsr import FedSR, Ring
from fedfloor.methods.hierfavg import HierFAVG
from fedfloor.methods.references import Centralized
from fedfloor.park.park import Park
from fedfloor.park.stream import batch_order
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Parallel, Train, Work, device
from floor import bits, digest, engine, everywhere, network, park, plan_of, start, walk

WORK = WorkSettings(epochs=2, batch_size=4, lr=0.1, momentum=0.5)
EQUAL = (8, 8, 8, 8, 8, 8)
UNEQUAL = (4, 17, 8, 5, 9, 6)
FACTORIES = (1, 0, 2, 0, 1, 0)


def floor_(sizes: Sequence[int], factory_of: Sequence[int] = FACTORIES) -> Park:
    return park(sizes, factory_of=factory_of)


def after(method: Method, here: Park, rounds: int = 3) -> Tensor:
    """The global model after some rounds."""
    of = engine(here)
    packet = start(of)
    for number in range(1, rounds + 1):
        packet = dict(walk(of, plan_of(method, here, number=number, rounds=rounds), packet, number).packet)
    return packet["w"]


def close(a: Tensor, b: Tensor, roundings: int) -> bool:
    """Whether two vectors differ by no more than some roundings, each at most 2^-24 of the largest number."""
    return float((a.double() - b.double()).abs().max()) <= roundings * 2.0**-24 * float(a.abs().max())


@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_fedsr_with_rings_of_one_and_one_lap_is_fedavg(sizes: Sequence[int], fraction: float) -> None:
    here = floor_(sizes)
    rings = after(FedSR(laps=1, ring_size=1, fraction=fraction, work=WORK), here)
    assert bits(rings) == bits(after(FedAvg(fraction=fraction, work=WORK), here))


def test_fedsr_with_factories_of_one_device_and_one_lap_is_fedavg() -> None:
    here = floor_(UNEQUAL, factory_of=range(6))
    assert bits(after(FedSR(laps=1, work=WORK), here)) == bits(after(FedAvg(work=WORK), here))


def test_fedsr_with_more_laps_is_not_fedavg() -> None:
    here = floor_(UNEQUAL)
    fedavg = after(FedAvg(work=WORK), here)
    assert not close(fedavg, after(FedSR(laps=2, ring_size=1, work=WORK), here), roundings=1000)
    assert not close(fedavg, after(FedSR(laps=1, work=WORK), here), roundings=1000)


@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_hierfavg_with_one_edge_round_is_fedavg_up_to_rounding(sizes: Sequence[int]) -> None:
    # Σ_m n_m (Σ_k n_k w_k / n_m) / n. Six devices in one tree: 1 + 3 + 1 roundings (weight, three levels, division);
    # in factories of 3, 2 and 1: at most 1 + 2 + 1 for a factory and as many for the cloud: together at most 13.
    here = floor_(sizes)
    both = [after(method, here, rounds=1) for method in (HierFAVG(edge_rounds=1, work=WORK), FedAvg(work=WORK))]
    assert close(*both, roundings=13)
    assert not close(both[0], after(HierFAVG(edge_rounds=2, work=WORK), here, rounds=1), roundings=1000)


def test_fedsr_with_one_ring_of_all_and_one_lap_is_ring_optimization() -> None:
    # both draw the devices, then their order, from the round's generator: the same ring, hence the same bits
    here = floor_(UNEQUAL)
    for fraction in (1.0, 0.5):
        one = FedSR(laps=1, ring_size=len(UNEQUAL), fraction=fraction, work=WORK)
        ring = Ring(laps=1, fraction=fraction, work=WORK)
        for number in range(1, 4):
            plan = plan_of(one, here, number=number)
            assert isinstance(plan, Parallel)
            assert plan.children == (plan_of(ring, here, number=number),)
        assert bits(after(one, here)) == bits(after(ring, here))


def test_a_ring_is_another_one_in_each_round() -> None:
    here = floor_(UNEQUAL)
    assert len({str(plan_of(Ring(work=WORK), here, number=number)) for number in range(1, 6)}) == 5


@pytest.mark.parametrize("laps", [1, 3])
def test_a_ring_of_one_device_is_centralised_sgd_on_its_data(laps: int) -> None:
    # A plain loop over the mini-batches, the velocity starting at 0 in every visit.
    here = park((17,))
    module = copy.deepcopy(network(here).module)
    samples = engine(here).samples(0)
    for number in (1, 2):
        for lap in range(laps):
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
            rng = generator(0, "batches", number, 0, 0, lap)
            for order, count in batch_order(17, 4, 2, None, rng):
                for rows in torch.from_numpy(order).split(4)[:count]:
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(module(samples.values(rows)), samples.y[rows]).backward()
                    optimizer.step()
    plain = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    assert bits(after(Ring(laps=laps, work=WORK), here, rounds=2)) == bits(plain)


def test_fedavg_of_one_full_step_each_is_one_centralised_step() -> None:
    # Σ_k (n_k/n)(w − η∇F_k) = w − η∇F for F = Σ_k (n_k/n) F_k. The mean has 5 roundings of w, the step one; gradients
    # are sums over the batch, here of at most 51 samples of size < 1: ηg is some 10 times smaller than w.
    here = floor_(EQUAL)
    one = WorkSettings(steps=1, batch_size=8, lr=0.1)
    union = replace(one, batch_size=48)
    fedavg = after(FedAvg(work=one), here, rounds=1)
    central = after(Centralized(work=union), here, rounds=1)
    assert close(fedavg, central, roundings=10)
    assert not close(fedavg, start(engine(here))["w"], roundings=1000)
    # momentum makes no difference to a first step
    assert close(fedavg, after(FedAvg(work=replace(one, momentum=0.9)), here, rounds=1), roundings=10)
    # and neither do unequal sizes, where each device takes all it has: its share of the samples is its weight
    here = floor_(UNEQUAL)
    plan = Parallel(tuple(Train(device(k), Work(steps=1, batch_size=n, rate=0.1)) for k, n in enumerate(UNEQUAL)))
    central = after(Centralized(work=replace(one, batch_size=sum(UNEQUAL))), here, rounds=1)
    assert close(walk(engine(here), plan).packet["w"], central, roundings=10)
    same = walk(engine(here), replace(plan, mix="equal")).packet["w"]
    assert not close(same, central, roundings=1000)


def test_centralised_training_sees_the_union_in_one_epoch() -> None:
    here = floor_(UNEQUAL)
    outcome = walk(engine(here), plan_of(Centralized(work=WorkSettings(epochs=1, batch_size=4)), here))
    (receipt,) = outcome.receipts
    assert (receipt.device, receipt.samples, receipt.steps) == (-1, sum(UNEQUAL), -(-sum(UNEQUAL) // 4))
    x, y = here.pooled()
    assert sorted(zip(map(bytes, x), y.tolist(), strict=True)) == sorted(
        pair for k in range(6) for pair in zip(map(bytes, here.samples(k)[0]), here.samples(k)[1].tolist(), strict=True)
    )


@pytest.mark.parametrize(
    "method",
    [
        FedAvg(work=WORK),
        FedSR(laps=2, work=WORK),
        FedSR(ring_size=4, fraction=0.8, work=WORK),
        HierFAVG(edge_rounds=2, work=WORK),
        Ring(work=WORK),
        Centralized(work=WORK),
    ],
    ids=lambda method: type(method).__name__,
)
def test_every_method_is_the_same_on_every_team(method: Method) -> None:
    here = floor_(UNEQUAL)
    plan = plan_of(method, here)
    alone = digest(walk(engine(here, loss_chance=0.1), plan))

    def body(team: Team) -> bool:
        return digest(walk(engine(here, team=team, loss_chance=0.1), plan)) == alone

    assert everywhere(2, body) == [True] * 2
    assert everywhere(3, body) == [True] * 3
