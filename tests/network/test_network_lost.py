"""Engine and price agree on who is lost on the radio, and what is lost there is lost to the training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_network_air import of, over_radio

from fedfloor.engine.team import Team
from fedfloor.network.payload import Payload
from fedfloor.network.price import price
from fedfloor.network.profile import NetworkProfile, RadioModel
from fedfloor.network.sites import RadioUplink, draw_sites, radio_uplink
from fedfloor.network.visits import placed_visits
from fedfloor.plan.nodes import (
    CLOUD,
    Broadcast,
    Node,
    Parallel,
    Probe,
    Repeat,
    Select,
    Sequence,
    Train,
    device,
    edge,
)
from floor import WORK, engine, everywhere, park, visits, walk

# -- engine and price --------------------------------------------------------------------------------------------------

SIX = (6, 10, 4, 9, 5, 7)
CELLS = (0, 0, 0, 1, 1, 1)
# 27.1 dB at 10 m, 22.3 dB more noise: a ratio of 3; alone lost with (1 − e^(−1/3))² = 0.08, beside another with 0.54
LOSSY = RadioModel(path_loss="B", carrier_hz=2.4e9, channels=2, attempts=2, noise_dbm_per_mhz=-91.7)


def lossy(seed: int = 0, over: str = "park") -> RadioUplink:
    return of(over_radio(LOSSY, CELLS, over=over), seed)


def chained(*ks: int) -> Sequence:
    return Sequence(visits(ks))


THREES = ((0, 1, 2), (3, 4, 5))
ASKING = Sequence((Probe((0,), "census"), *visits((0, 1))))
HANDING = Sequence((*visits((2,)), Broadcast((3,)), *visits((3,))))
PLANS: dict[str, Node] = {
    "star": Parallel(visits(range(6))),
    "twice": Sequence((Parallel(visits(range(6))), Parallel(visits(range(5, -1, -1))))),
    "rings": Parallel(tuple(Repeat(3, chained(*ring), tick=False) for ring in ((0, 1, 2), (3, 4), (5,)))),
    "rings that tick": Parallel(tuple(Repeat(3, chained(*ring)) for ring in ((0, 1, 2), (3, 4), (5,)))),
    "edges": Parallel(tuple(Repeat(3, Parallel(visits(ks), at=edge(m))) for m, ks in enumerate(THREES))),
    "uneven": Parallel((Parallel(visits((0, 1)), at=edge(0)), chained(2, 3), Train(device(4), WORK))),
    "chain": Repeat(3, chained(0, 3, 1)),
    "cloud between": Parallel(
        (Sequence((Train(CLOUD, WORK), *visits((0, 1)))), chained(2, 3, 4), chained(5, 5, 5))
    ),
    "asks and hands out": Sequence((Parallel((ASKING, HANDING)), *visits((4, 4)))),
    "meetings in turns": Repeat(2, Sequence((*visits((0,)), Parallel((chained(1, 2), chained(3, 4))), *visits((5,))))),
}  # fmt: skip


def said(plan: Node, heard: RadioUplink, number: int, tick: int, numbered: list[int] | None = None) -> list[list[int]]:
    """(device, tick, visit, lost) of every visit, as the price has it."""
    return [
        [place[2], place[1], place[3], int(place[2] >= 0 and heard.send(one, others, place, 1000).lost)]
        for one, others, place in placed_visits(plan, number, tick, numbered)
    ]


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("over", ["park", "cell"])
def test_engine_and_price_agree_on_who_is_lost(name: str, over: str) -> None:
    plan = PLANS[name]
    heard = lossy(over=over)
    job = engine(park(SIX, factory_of=CELLS), "logistic", sites=heard.sites)
    lost = []
    for number in range(1, 5):
        got = walk(job, plan, number=number, tick=3 * number).receipts
        assert [[r.device, r.tick, r.visit, int(r.lost)] for r in got] == said(plan, heard, number, 3 * number)
        lost += [r.lost for r in got]
    assert 0 < sum(lost) < len(lost)


CHOOSING = Parallel(
    tuple(
        Repeat(3, Sequence((Select("uniform", ks, 2, WORK, at=edge(m)), *visits(ks[:1]))))
        for m, ks in enumerate(THREES)
    )
)


def test_they_agree_on_whom_the_walk_chooses() -> None:
    heard = lossy()
    job = engine(park(SIX, factory_of=CELLS), "logistic", sites=heard.sites)
    lost = []
    for number in range(1, 5):
        done = walk(job, CHOOSING, number=number, tick=number)
        got = [[r.device, r.tick, r.visit, int(r.lost)] for r in done.receipts]
        assert got == said(done.resolved, heard, number, number)
        lost += [one[-1] for one in got]
    assert 0 < sum(lost) < len(lost)


def test_they_agree_where_branches_choose_the_same_device() -> None:
    # none counts the other's visits, so that both visits of one device are its first: the receipts say so
    plan = Parallel(tuple(Select("uniform", ks, 2, WORK, at=edge(0)) for ks in ((0, 1, 2), (1, 2, 3))))
    there = over_radio(LOSSY, CELLS, over="park")
    heard = of(there)
    twice = 0
    job = engine(park(SIX, factory_of=CELLS), "logistic", sites=heard.sites)
    for number in range(1, 9):
        done = walk(job, plan, number=number)
        numbers = [r.visit for r in done.receipts]
        got = [[r.device, r.tick, r.visit, int(r.lost)] for r in done.receipts]
        assert got == said(done.resolved, heard, number, 0, numbers)
        twice += len({r.device for r in done.receipts}) < 4
        sizes = Payload({"all": 1000})
        paid = price(done.resolved, there, sizes, air=heard, round_number=number, numbered=numbers)
        tries = [heard.send(*one, 0).attempts for one in placed_visits(done.resolved, number, 0, numbers)]
        assert paid.bytes["device_edge_up"] == 1000 * sum(tries)
    assert twice


def test_they_agree_on_two_ranks() -> None:
    heard = lossy()

    def body(team: Team) -> list[object]:
        job = engine(park(SIX, factory_of=CELLS), "logistic", team, sites=heard.sites)
        done = {name: walk(job, plan, number=2, tick=1).receipts for name, plan in PLANS.items()}
        return [[name, [[r.device, r.tick, r.visit, int(r.lost)] for r in got]] for name, got in done.items()]

    expected = [[name, said(plan, heard, 2, 1)] for name, plan in PLANS.items()]
    assert everywhere(2, body) == [expected, expected]


def test_the_price_of_a_round_is_that_of_the_packets_that_were_lost_in_it() -> None:
    there = over_radio(LOSSY, CELLS, over="park")
    heard = of(there)
    plan = PLANS["star"]
    sent = [heard.send(one, others, place, 1000) for one, others, place in placed_visits(plan, 3, 0)]
    found = price(plan, there, Payload({"all": 1000}), air=heard, round_number=3)
    assert found.bytes["device_edge_up"] == 1000 * sum(one.attempts for one in sent)
    assert found.visits == pytest.approx([17 + one.attempts * one.airtime_s for one in sent], rel=1e-12)


def test_what_is_lost_on_the_air_is_lost_to_the_mean() -> None:
    here = park(SIX, factory_of=CELLS)
    heard = lossy()
    found = False
    for number in range(1, 8):
        got = walk(engine(here, sites=heard.sites), Parallel(visits(range(6))), number=number)
        there = [r.device for r in got.receipts if not r.lost]
        if not there:
            assert torch.equal(got.packet["w"], engine(here).network.flat)
            continue
        # weights n_k/Σn over those that arrived, each trained alone
        models = [walk(engine(here), Parallel(visits((k,))), number=number).packet["w"].double() for k in there]
        sizes = torch.tensor([float(SIX[k]) for k in there], dtype=torch.float64)
        mean = sum(n * w for n, w in zip(sizes / sizes.sum(), models, strict=True))
        assert torch.allclose(got.packet["w"].double(), mean, atol=1e-6)  # float32 sums
        found = found or 0 < len(there) < 6
    assert found


def test_a_chain_hands_on_what_it_received() -> None:
    here = park(SIX, factory_of=CELLS)
    heard = lossy()
    plan = Parallel((chained(0, 1, 2), chained(3, 4, 5)))  # they interfere, in pairs
    for number in range(1, 60):
        got = walk(engine(here, sites=heard.sites), plan, number=number)
        lost = [r.lost for r in got.receipts[:3]]
        if lost == [False, True, False] and all(r.lost for r in got.receipts[3:]):
            alone = walk(engine(here), Parallel((chained(0, 2),)), number=number)
            # up to rounding: a mean of one is n·w/n
            assert torch.allclose(got.packet["w"], alone.packet["w"], atol=1e-7, rtol=1e-6)
            all_three = walk(engine(here), Parallel((chained(0, 1, 2),)), number=number)
            assert not torch.allclose(got.packet["w"], all_three.packet["w"], atol=1e-4)
            return
    pytest.fail("no round in which device 1 alone of the first chain is lost")


def test_both_ways_of_losing() -> None:
    here = park(SIX, factory_of=CELLS)
    heard = lossy()
    plan = Parallel(visits(range(6)))
    one = []  # type: ignore[var-annotated]
    two = []  # type: ignore[var-annotated]
    both = []  # type: ignore[var-annotated]
    for number in range(1, 6):
        one += [r.lost for r in walk(engine(here, "logistic", sites=heard.sites), plan, number=number).receipts]
        two += [r.lost for r in walk(engine(here, "logistic", loss_chance=0.4), plan, number=number).receipts]
        job = engine(here, "logistic", sites=heard.sites, loss_chance=0.4)
        both += [r.lost for r in walk(job, plan, number=number).receipts]
    assert both == [a or b for a, b in zip(one, two, strict=True)]
    assert len({tuple(one), tuple(two), tuple(both)}) == 3


def test_a_park_without_a_radio_has_no_air() -> None:
    assert radio_uplink(None, 0) is None
    plain = draw_sites(NetworkProfile(), 0, np.zeros(2, int), np.ones(2, int), 8)
    assert radio_uplink(plain, 0) is None
