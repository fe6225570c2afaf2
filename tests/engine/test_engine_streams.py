"""Visits to devices whose data stream: what they train on, what it weighs, and how the stream moves on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

import streaming
from fedfloor.engine.team import Team
from fedfloor.methods.fedavg import FedAvg
from fedfloor.methods.references import Centralized
from fedfloor.park.park import Park
from fedfloor.park.stream import Cycle, Fifo, Recycle
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import CLOUD, Node, Parallel, Probe, Repeat, Select, Sequence, Train, Work, device
from floor import bits, digest, engine, everywhere, plan_of, start, visits, walk
from streaming import STEP, Choosy, streamed

SEES = Work(objective="streaming:Seeing", steps=1, batch_size=4, rate=0.1)
TWICE = Work(epochs=2, batch_size=2, rate=0.1)


def labels(here: Park, device_: int, *positions: int) -> list[list[int]]:
    """The classes of a device's windows, each sorted."""
    y = here.dataset.y[here.indices[device_]]
    found = [here.stream.held(y, here.seed, device_, position) for position in positions]
    return [sorted(y[one[0]].tolist()) for one in found if one is not None]


def seen(here: Park, plan: Node, **more: object) -> list[list[int]]:
    streaming.SEEN.clear()
    walk(engine(here, **more), plan)  # type: ignore[arg-type]
    return [sorted(one) for one in streaming.SEEN]


# -- what is trained on ------------------------------------------------------------------------------------------------


def test_the_clock_moves_one_shot_windows_and_visits_move_recycled_ones() -> None:
    fifo = streamed(Fifo(4))
    recycle = streamed(Recycle(4))
    one = Train(device(1), SEES)
    ticking = Repeat(3, one)
    standing = Repeat(3, one, tick=False)
    assert seen(fifo, ticking) == labels(fifo, 1, 0, 1, 2)
    assert seen(fifo, standing) == labels(fifo, 1, 0, 0, 0)
    assert seen(recycle, ticking) == seen(recycle, standing) == labels(recycle, 1, 0, 1, 2)
    # what was not drawn is overwritten, or waits
    other = Repeat(2, Train(device(0), SEES))
    assert seen(fifo, Sequence((other, one)))[-1:] == labels(fifo, 1, 2)
    assert seen(recycle, Sequence((other, one)))[-1:] == labels(recycle, 1, 0)


@pytest.mark.parametrize("stream", [Fifo(4), Recycle(4), Recycle(4, Cycle())], ids=["fifo", "recycle", "drift"])
def test_the_census_is_what_the_next_visit_trains_on(stream: Fifo | Recycle) -> None:
    here = streamed(stream)
    of = engine(here)
    packet = None
    for number, k in enumerate((1, 1, 3, 0, 1, 3), start=1):
        plan = Sequence((Probe((k,), "census"), Train(device(k), SEES)))
        streaming.SEEN.clear()
        outcome = walk(of, plan, packet, number, tick=2 * number)
        packet = dict(outcome.packet)
        assert outcome.answers[k]["census"] == np.bincount(streaming.SEEN[0], minlength=3).tolist()


def test_epochs_are_passes_over_the_window_and_questions_are_about_it() -> None:
    here = streamed(Fifo(4))
    outcome = walk(engine(here), Sequence((Probe((1,), "loss"), Train(device(1), TWICE))), tick=3)
    (receipt,) = outcome.receipts
    assert (receipt.samples, receipt.steps) == (4, 4)  # two passes of two mini-batches
    of = engine(here)
    x, y = here.held(1, 3, 0)
    assert np.sort(y).tolist() == labels(here, 1, 3)[0]
    logits = of.network.module(of.wrap(x, y).values(slice(None)))
    loss = float(torch.nn.functional.cross_entropy(logits.detach(), torch.from_numpy(y)))
    assert outcome.answers[1]["loss"] == pytest.approx(loss, rel=1e-6)  # roundings of a sum of four


def test_rendered_pictures_are_those_of_the_window() -> None:
    here = streamed(Fifo(4))
    rendered = replace(here, dataset=replace(here.dataset, rendered=True))
    for tick in range(3):
        for one, other in zip(here.held(3, tick, 0), rendered.held(3, tick, 0), strict=True):
            np.testing.assert_array_equal(one, other)


# -- how much it weighs ------------------------------------------------------------------------------------------------


def test_a_branch_weighs_as_much_as_the_windows_of_its_devices() -> None:
    # Local sets of 6, 10, 4 and 9, windows of 4 each: one device twice and one other weigh 4 : 4, chains of two and one
    # 8 : 4. Multiples of 4 are exact, and so is the mean of two models that weigh the same.
    here = streamed(Recycle(4))
    zero, one, three = (Train(device(k), TWICE) for k in (0, 1, 3))

    def after(children: tuple[Node, ...], mix: str = "by_samples") -> bytes:
        return bits(walk(engine(here), Parallel(children, mix=mix)).packet["w"])

    assert after((zero, one)) == after((zero, one), "equal")
    assert after((Sequence((zero, zero)), one)) == after((Sequence((zero, zero)), one), "equal")
    assert after((Sequence((zero, three)), one)) != after((Sequence((zero, three)), one), "equal")
    assert here.sizes.tolist() == [6, 10, 4, 9, 5]
    assert here.holdings.tolist() == [4] * 5


@pytest.mark.parametrize("stream", [Fifo(5), Recycle(5)], ids=["fifo", "recycle"])
def test_one_step_on_every_window_is_one_centralised_step(stream: Fifo | Recycle) -> None:
    # as in test_laws: roundings of a mean of five, and of two sums over 25 samples
    here = streamed(stream)
    one = WorkSettings(steps=1, batch_size=5, lr=0.1)
    parts = engine(here)
    whole = engine(here)
    for number in range(1, 4):
        packet = start(parts)
        fedavg = walk(parts, plan_of(FedAvg(work=one), here), packet, number, tick=number - 1)
        central = walk(whole, plan_of(Centralized(work=replace(one, batch_size=25)), here), packet, number, number - 1)
        assert central.receipts[0].samples == 25
        difference = (fedavg.packet["w"].double() - central.packet["w"].double()).abs().max()
        moved = (fedavg.packet["w"].double() - packet["w"].double()).abs().max()
        assert float(difference) <= 10 * 2.0**-24 * float(packet["w"].abs().max()) < float(moved) / 100
        parts.network.flat.copy_(fedavg.packet["w"])


# -- how the stream moves on -------------------------------------------------------------------------------------------


def test_a_lost_visit_does_not_move_a_recycled_stream_on() -> None:
    here = streamed(Recycle(4))
    of = engine(here, loss_chance=0.4)
    plan = Repeat(4, Parallel(visits(range(5), STEP)))
    receipts = [one for number in (1, 2) for one in walk(of, plan, None, number, tick=4 * number).receipts]
    assert 5 < sum(one.lost for one in receipts) < 30
    assert +of.memory.visits == Counter(one.device for one in receipts if not one.lost)
    # of the chain's three visits to device 1 the second is lost: the third finds its window
    chain = Repeat(3, Train(device(1), SEES))
    for number in range(1, 200):
        lost = [one.lost for one in walk(engine(here, loss_chance=0.4), chain, number=number).receipts]
        if lost == [False, True, False]:
            streaming.SEEN.clear()
            walk(engine(here, loss_chance=0.4), chain, number=number)
            assert [sorted(one) for one in streaming.SEEN] == labels(here, 1, 0, 1)
            return
    raise AssertionError("never lost so")


def test_branches_happen_at_the_same_time() -> None:
    # both branches find the window that the device had before they parted; then it has been visited three times
    here = streamed(Recycle(4))
    twice = Sequence((Train(device(1), SEES), Train(device(1), SEES)))
    plan = Sequence((Train(device(1), SEES), Parallel((twice, Train(device(1), SEES))), Train(device(1), SEES)))
    assert seen(here, plan) == labels(here, 1, 0, 1, 2, 1, 4)


@pytest.mark.parametrize("stream", [Fifo(8), Recycle(8)], ids=["fifo", "recycle"])
def test_streams_are_the_same_on_every_team(stream: Fifo | Recycle) -> None:
    here = streamed(stream, census_epsilon=2.0)
    plan = Sequence((plan_of(Choosy(), here), Train(device(2), STEP), Train(CLOUD, STEP), plan_of(FedAvg(), here)))

    def rounds(team: Team | None) -> str:
        of = engine(here, team=team, loss_chance=0.2)
        told = []
        packet = start(of)
        for number in (1, 2, 3):
            outcome = walk(of, plan, packet, number, tick=6 * number)
            packet = dict(outcome.packet)
            told.append(digest(outcome))
        return str([told, sorted((+of.memory.visits).items())])

    alone = rounds(None)
    for size in (2, 3):
        assert everywhere(size, lambda team: rounds(team) == alone) == [True] * size


def test_who_is_chosen_follows_the_stream() -> None:
    here = streamed(Recycle(4), sizes=(30,) * 6)
    plan = Repeat(8, Select("varied", tuple(range(6)), 2, STEP))
    of = engine(here)
    receipts = walk(of, plan).receipts
    before: Counter[int] = Counter()
    for first in range(0, 16, 2):
        chosen = [one.device for one in receipts[first : first + 2]]
        census = here.census(range(6), 0, [before[k] for k in range(6)])
        spread = np.ptp(census, axis=1)
        assert sorted(spread[chosen]) == sorted(spread)[:2]
        before.update(chosen)
    assert len({one.device for one in receipts}) > 2
