"""Visits of a part of the model: the part is trained, sent and mixed, the rest stays to the bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedfloor.base.chance import generator, torch_seed
from fedfloor.engine import visit
from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone, Team
from fedfloor.models.network import Network
from fedfloor.models.parcel import Parcel
from fedfloor.park.stream import batch_order
from fedfloor.parts.mixing import mix
from fedfloor.plan.nodes import (
    CLOUD,
    Broadcast,
    Node,
    Parallel,
    Repeat,
    Select,
    Sequence,
    Train,
    Work,
    device,
    edge,
)
from fedfloor.plan.schedule import Key
from floor import WORK, bits, digest, engine, everywhere, park, start, visits, walk
from refusals import refused
from scoped import PART, SEEN, layered

HERE = park()  # five devices with 6, 10, 4, 9 and 5 samples
T = visits(range(5))
C = visits(range(5), PART)
KINDS = ("plain", "dropout", "batch norm", "buffer")

PLANS: dict[str, Node] = {
    "visit": C[0],
    "the cloud": Train(CLOUD, PART),
    "chain": Sequence((C[0], C[3], Broadcast((1, 2), "classifier"))),
    "rings": Parallel((Repeat(2, Sequence(C[:2]), tick=False), Sequence(C[2:4]), C[4]), mix="equal"),
    "factories": Parallel((Repeat(2, Parallel(C[:3], at=edge(0))), Parallel(C[3:], at=edge(0), mix="median"))),
    "chosen": Parallel((Repeat(2, Select("uniform", (0, 1, 2), 2, PART, edge(0))), C[4])),
    "rule": Sequence((C[1], Parallel(C, mix="trimmed_mean", settings={"share": 0.2}))),
}


def of(kind: str = "plain", team: Team | None = None, **more: object) -> Engine:
    """Return an engine whose network knows its classifier."""
    return Engine(HERE, Network(layered(kind), "last"), team or Alone(), DeviceMemory(None), 0, **more)  # type: ignore[arg-type]


def split(here: Engine, model: Tensor) -> tuple[Tensor, Tensor]:
    """Return (the classifier, the rest) of a flat model."""
    part = here.network.part("classifier")
    return model[part], torch.cat([model[: part.start], model[part.stop :]])


# -- the rest stays ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", PLANS)
def test_the_rest_stays_to_the_bit(what: str, kind: str) -> None:
    here = of(kind)
    before = start(here)["w"]
    after = walk(here, PLANS[what]).packet["w"]
    (was, rest) = split(here, before)
    (became, left) = split(here, after)
    assert bits(left) == bits(rest)
    assert not bool((became == was).any())  # the part was trained, all of it


@pytest.mark.parametrize("ranks", [2, 3])
def test_any_number_of_ranks_comes_to_the_same_bits(ranks: int) -> None:
    # parts one after the other, too, and a chain of both that only one rank walks
    plan = Sequence((Parallel(T), *PLANS.values(), Sequence((T[1], C[2])), Parallel((C[1],)), Parallel(T[::-1])))

    def body(team: Team) -> object:
        return str(digest(walk(of(team=team, loss_chance=0.2), plan)))

    alone = str(digest(walk(of(loss_chance=0.2), plan)))
    assert everywhere(ranks, body) == [alone] * ranks


def test_whatever_the_resident_network_holds_the_packet_counts() -> None:
    here = of()
    after = walk(here, Parallel(C)).packet
    expected = walk(here, Parallel(T), after, number=2).packet["w"]
    here.network.flat.zero_()
    assert bits(walk(here, Parallel(T), after, number=2).packet["w"]) == bits(expected)
    both = walk(of(), Sequence((Parallel(C), Parallel(T)))).packet["w"]
    assert bool((split(here, both)[1] != split(here, after["w"])[1]).any())


# -- the part is trained as if the rest were frozen --------------------------------------------------------------------


def by_torch(here: Engine, work: Work, k: int) -> Tensor:
    """Train the last layer with torch.optim.SGD, the others without gradients; return its numbers."""
    module = here.network.module
    samples = here.samples(k)
    key = Key(0, 1, 0, k, 0)
    last = [one for name, one in module.named_parameters() if name.startswith("last.")]
    module.requires_grad_(False)
    begin = [one.requires_grad_(True).detach().clone() for one in last]
    torch.manual_seed(torch_seed(0, "dropout", *key.place()))
    sgd = torch.optim.SGD(last, lr=work.rate, momentum=work.momentum, weight_decay=work.weight_decay)
    rng = generator(0, "batches", *key.place())
    size = work.batch_size
    module.train()
    for order, count in batch_order(len(samples), size, work.epochs, work.steps, rng):
        for i in range(count):
            rows = torch.from_numpy(order[i * size : (i + 1) * size])
            loss = nn.functional.cross_entropy(module(samples.values(rows).contiguous()), samples.y[rows])
            away = sum((one - was).square().sum() for one, was in zip(last, begin, strict=True))
            sgd.zero_grad()
            (loss + float(work.settings.get("mu", 0.0)) / 2 * away).backward()  # type: ignore[arg-type]
            sgd.step()
    return split(here, here.network.flat)[0]


WORKS = {
    "momentum": PART, "plain": replace(PART, momentum=0.0), "epochs": replace(PART, epochs=3),
    "steps": replace(PART, epochs=None, steps=5), "decay": replace(PART, epochs=3, weight_decay=0.1),
    "decay alone": replace(PART, momentum=0.0, weight_decay=0.1),
    "prox": replace(PART, epochs=2, objective="prox", settings={"mu": 0.5}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", WORKS)
def test_a_visit_is_one_to_a_network_whose_rest_is_frozen(what: str, kind: str) -> None:
    # decay and pull are added where torch does not: some four roundings of 2^-25 a step, of numbers below 1/2 or so;
    # without them 3 steps of rate 0.1 end 0.01 apart
    here = of(kind, shortcuts=False)
    work = WORKS[what]
    got = split(here, walk(here, Train(device(1), work)).packet["w"])[0]
    expected = by_torch(of(kind), work, 1)
    if "decay" in what or what == "prox":
        assert torch.allclose(got, expected, rtol=0, atol=1e-6)
        bare = by_torch(of(kind), replace(work, weight_decay=0.0, settings={}), 1)
        assert float((bare - expected).abs().max()) > 1e-4
    else:
        assert bits(got) == bits(expected)


def test_a_penalty_sees_the_part_alone_and_where_it_begins() -> None:
    here = of()
    SEEN.clear()
    walk(here, Train(device(2), replace(PART, objective="scoped:Ridge")))
    walk(here, Train(device(2), replace(WORK, objective="scoped:Ridge")))
    assert SEEN == [(60, 21), (0, 81)]  # (9 + 1)·6 numbers before the classifier's (6 + 1)·3; 4 samples are one batch


# -- where models meet -----------------------------------------------------------------------------------------------

RNG = generator(0, "mix", 1)

RULES = {
    "by_samples": ({}, True), "equal": ({}, True), "median": ({}, True), "trimmed_mean": ({"share": 0.2}, True),
    "krum": ({"outliers": 1}, True), "inverse_distance": ({}, False), "q_fair": ({"q": 1.0}, False),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_mixing_the_part_is_mixing_the_whole_restricted_to_it(rule: str) -> None:
    settings, exact = RULES[rule]
    part = slice(60, 81)
    torch_rng = torch.Generator().manual_seed(0)
    begin = torch.randn(90, generator=torch_rng)
    begin[:60] = 0  # the rest: where all branches hold 0 it adds nothing to a distance, to the bit
    begin[81:] = 0
    models = []
    for _ in range(5):
        model = begin.clone()
        model[part] += torch.randn(21, generator=torch_rng)
        models.append(model)
    node = Parallel(T, mix=rule, settings=settings)
    known = [mix.Branch(n, 0.5, 0.1 * n) for n in (6, 10, 4, 9, 5)]
    mixed = []
    for only in (None, Parcel((part,), 90)):
        aggregation = Aggregation(node, {"w": begin}, only)
        for index, (model, branch) in enumerate(zip(models, known, strict=True)):
            aggregation.add(index, {"w": model}, branch.samples)
        mixed.append(aggregation.mixed(known, 3, 81, RNG)["w"])
    whole, got = mixed
    assert bits(got[:60]) == bits(begin[:60])
    assert bits(got[81:]) == bits(begin[81:])
    if exact:
        assert bits(got[part]) == bits(whole[part])
    else:  # norms of 21 and of 90 numbers, of which the others are 0, are summed in another order
        assert torch.allclose(got[part], whole[part], rtol=1e-5, atol=1e-6)


def test_ranks_exchange_the_part_alone() -> None:
    part = Parcel((slice(60, 81),), 10_000)
    for rule, models in (("by_samples", 1), ("median", 3)):  # three branches of four: two sums, or every model
        aggregation = Aggregation(Parallel(T[:4], mix=rule), {"w": torch.zeros(10_000)}, part)
        for index in range(3):
            aggregation.add(index, {"w": torch.ones(10_000)}, 5)
        sent = sorted(len(bytes(one)) for one in aggregation.unfinished())
        assert sent[-1] == 84
        assert sent.count(84) == models + (rule == "by_samples")


def test_where_all_are_lost_the_start_comes_back() -> None:
    begin = {"w": torch.randn(90)}
    for rule in ("by_samples", "median"):
        aggregation = Aggregation(Parallel(T[:2], mix=rule), begin, Parcel((slice(60, 81),), 90))
        for index in range(2):
            aggregation.add(index, {"w": torch.ones(90)}, 0)
        assert bits(aggregation.mixed([None, None], 3, 81, RNG)["w"]) == bits(begin["w"])


def test_receipts_say_what_was_sent() -> None:
    found = walk(of(), Sequence((Parallel(C), T[0], C[1])))
    assert [r.bytes for r in found.receipts] == [84] * 5 + [4 * 81, 84]
    lost = walk(of(loss_chance=0.99), Parallel(C)).receipts
    assert any(r.lost for r in lost)
    assert {r.bytes for r in lost} == {84}


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_the_parts_of_a_network() -> None:
    net = Network(layered("batch norm"), "last")
    assert net.part("all") == slice(0, net.trained)
    assert net.part("classifier") == slice(net.trained - 21, net.trained)
    with refused("part-of-model"):
        net.part("clasifier")
    with refused("work.trains"):
        Network(layered("batch norm")).part("classifier")
    shared = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    shared[2].weight = shared[0].weight
    with refused("work.trains"):
        Network(shared, "2").part("classifier")


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Parallel((C[0], T[1])), "plan"),
        (Parallel((Sequence((C[0], T[1])), C[2])), "plan"),
        (Sequence((T[0], Parallel((Repeat(2, C[1]), Select("uniform", (0, 2), 1, WORK)), at=edge(0)))), "plan"),
        (Broadcast((0,), "extractor"), "part-of-model"),
        (Select("uniform", (0, 1), 1, replace(WORK, trains="heads")), "part-of-model"),
        (Train(device(0), replace(PART, objective="scoped:First")), "work.trains"),
        (Train(device(0), replace(PART, objective="scoped:Personal")), "work.trains"),
    ],
)
def test_what_cannot_be_is_refused_by_name(plan: Node, said: str) -> None:
    with refused(said):
        walk(of(), plan)


def test_nothing_else_may_travel() -> None:
    here = of()
    packet = {**start(here), "c": torch.zeros(2)}
    for plan in (C[0], Parallel(C[:2]), Sequence((Parallel(T[:2]), Parallel(C[:2])))):
        with refused("work.trains"):
            walk(here, plan, packet)
    walk(here, Sequence((Parallel(T[:2]), Broadcast((0,), "classifier"))), packet)  # changes nothing


def test_a_network_without_a_known_classifier_is_refused_before_anything_is_trained() -> None:
    here = engine(HERE, layered("plain"))
    before = bits(here.network.flat)
    with refused("work.trains"):
        walk(here, Sequence((T[0], C[1])))
    assert bits(here.network.flat) == before
    with refused("work.trains"):
        visit.check_parts(here.network, Broadcast((), "classifier"), start(here))
