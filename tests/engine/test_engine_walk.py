from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedfloor.engine.team import Team
from fedfloor.engine.visit import train
from fedfloor.parts.objectives.objective import Plain, Visit
from fedfloor.plan import schedule
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
from fedfloor.plan.schedule import Key, is_lost
from floor import WORK, bits, digest, engine, everywhere, park, start, visits, walk
from refusals import refused

HERE = park()  # five devices with 6, 10, 4, 9 and 5 samples
SIZES = (6, 10, 4, 9, 5)
T = visits(range(5))


def one(w: Tensor, k: int, visit: int = 0, tick: int = 0, number: int = 1) -> Tensor:
    """Train a model on a device by hand, with the key its visit has in the walk."""
    of = engine(HERE)
    of.network.flat.copy_(w)
    train(of.network, of.samples(k), WORK, Plain(), Visit(None, {}), Key(0, number, tick, k, visit))
    return of.network.flat


def model(plan: Node, **more: object) -> bytes:
    return bits(walk(engine(HERE, **more), plan).packet["w"])


def initial() -> Tensor:
    return start(engine(HERE))["w"]


# -- chains and means --------------------------------------------------------------------------------------------------


def test_a_sequence_is_one_visit_after_the_other() -> None:
    outcome = walk(engine(HERE), Sequence(T[:2]))
    assert bits(outcome.packet["w"]) == bits(one(one(initial(), 0), 1))
    assert [(r.device, r.samples, r.steps, r.visit, r.tick, r.lost) for r in outcome.receipts] == [
        (0, 6, 2, 0, 0, False),
        (1, 10, 3, 0, 0, False),
    ]
    assert {r.bytes for r in outcome.receipts} == {4 * initial().numel()}


@pytest.mark.parametrize(("mix", "weights"), [("by_samples", (6, 10, 4)), ("equal", (1, 1, 1))])
def test_a_parallel_is_the_mean_of_its_branches(mix: str, weights: tuple[int, ...]) -> None:
    # Three branches make a tree of two levels: (2 + 3)·2^-24 of the largest weight, see test_engine_tree.py.
    models = [one(initial(), k).double() for k in range(3)]
    mean = sum(w * m for w, m in zip(weights, models, strict=True)) / sum(weights)
    got = walk(engine(HERE), Parallel(T[:3], mix=mix)).packet["w"].double()
    largest = float(max(m.abs().max() for m in models))
    assert float((got - mean).abs().max()) <= 5 * 2.0**-24 * largest


def test_a_branch_weighs_the_distinct_devices_that_trained_in_it() -> None:
    # Two laps over devices 0 and 1 weigh 6 + 10, not twice as much; device 2 weighs 4.
    ring = Repeat(2, Sequence(T[:2]), tick=False)
    branch = walk(engine(HERE), ring).packet["w"].double()
    expected = (16 * branch + 4 * one(initial(), 2).double()) / 20
    got = walk(engine(HERE), Parallel((ring, T[2]))).packet["w"].double()
    assert float((got - expected).abs().max()) <= 4 * 2.0**-24 * float(branch.abs().max())


def test_branches_start_from_the_same_model_wherever_it_lies() -> None:
    # after a chain the packet is the network's own buffer, which the first branch overwrites
    both = walk(engine(HERE), Sequence((T[3], Parallel(T[:2]))))
    after = {"w": one(initial(), 3)}
    assert bits(both.packet["w"]) == bits(walk(engine(HERE), Parallel(T[:2]), after).packet["w"])


def test_what_else_is_in_the_packet_travels_along_and_is_averaged() -> None:
    packet = {**start(engine(HERE)), "c": torch.tensor([3.0, 5.0])}
    outcome = walk(engine(HERE), Parallel((Sequence(T[:2]), T[2])), packet)
    assert outcome.packet["c"].tolist() == [3.0, 5.0]
    assert {r.bytes for r in outcome.receipts} == {4 * (packet["w"].numel() + 2)}


def test_an_outcome_is_not_changed_by_the_next_walk() -> None:
    of = engine(HERE)
    first = walk(of, T[0])
    kept = bits(first.packet["w"])
    walk(of, T[1], first.packet, number=2)
    assert bits(first.packet["w"]) == kept


# -- time and the count of visits --------------------------------------------------------------------------------------


def ticks(plan: Node, tick: int = 0) -> tuple[list[tuple[int, int]], int]:
    outcome = walk(engine(HERE), plan, tick=tick)
    return [(r.device, r.tick) for r in outcome.receipts], outcome.ticks


def test_repeat_moves_the_clock_and_nothing_else_does() -> None:
    assert ticks(Sequence(T[:2]), tick=4) == ([(0, 4), (1, 4)], 1)
    assert ticks(Repeat(3, T[0]), tick=4) == ([(0, 4), (0, 5), (0, 6)], 3)
    assert ticks(Repeat(3, T[0], tick=False), tick=4) == ([(0, 4)] * 3, 1)
    # The chain spans 3 ticks: device 0 at 0, 1, 2, then device 1 at 3. Twice: the second turn starts at 3.
    chain = Sequence((Repeat(3, T[0]), T[1]))
    assert ticks(Repeat(2, chain)) == ([(0, 0), (0, 1), (0, 2), (1, 3), (0, 3), (0, 4), (0, 5), (1, 6)], 6)
    # Branches start together and the longest says when the node ends.
    both = Sequence((Parallel((Repeat(3, T[0]), Repeat(2, T[1]))), T[2]))
    assert ticks(both, tick=1) == ([(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 4)], 3)


def test_the_laps_of_a_ring_do_not_repeat_one_shuffle() -> None:
    w = initial()
    assert model(Repeat(2, T[1], tick=False)) == bits(one(one(w, 1), 1, visit=1))
    assert model(Repeat(2, T[1], tick=False)) != bits(one(one(w, 1), 1))


def test_rounds_and_ticks_have_their_own_shuffles() -> None:
    w = initial()
    assert bits(walk(engine(HERE), T[1], {"w": w}, number=2, tick=3).packet["w"]) == bits(one(w, 1, 0, 3, 2))
    assert len({bits(one(w, 1, 0, 3, 2)), bits(one(w, 1, 0, 3, 1)), bits(one(w, 1, 0, 0, 2))}) == 3


@pytest.mark.parametrize("ranks_", [1, 2])
def test_visits_are_numbered_in_plan_order_also_across_branches(ranks_: int) -> None:
    inner = Repeat(2, Parallel(T[:2], at=edge(0)), tick=False)
    cloud = Train(CLOUD, WORK)
    plan = Sequence((Parallel((inner, T[0], cloud)), T[1], cloud, Parallel((T[1], Sequence((T[0], T[0])), cloud))))

    def body(team: Team) -> list[list[int]]:
        return [[r.device, r.visit] for r in walk(engine(HERE, team=team), plan).receipts]

    expected = [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [-1, 0], [1, 2], [-1, 1], [1, 3], [0, 3], [0, 4], [-1, 2]]
    assert everywhere(ranks_, body) == [expected] * ranks_


# -- choosing, handing on, asking --------------------------------------------------------------------------------------


def test_select_everyone_is_the_parallel_it_stands_for() -> None:
    select = Select("everyone", (3, 0, 2), 3, WORK, edge(1), "equal")
    plain = Parallel((T[3], T[0], T[2]), edge(1), "equal")
    assert digest(walk(engine(HERE), select)) == digest(walk(engine(HERE), plain))
    assert walk(engine(HERE), Sequence((T[1], select))).resolved == Sequence((T[1], plain))


def chosen(node: Node) -> list[int]:
    assert isinstance(node, Parallel)
    return [child.site.index for child in node.children if isinstance(child, Train)]


def test_uniform_chooses_how_many_anew_in_each_tick() -> None:
    plan = Parallel((Repeat(12, Select("uniform", (0, 1, 2, 3, 4), 2, WORK, at=edge(0))),))
    outcome = walk(engine(HERE), plan)
    resolved = outcome.resolved
    assert isinstance(resolved, Parallel)
    assert isinstance(resolved.children[0], Sequence)  # turns that differ are written out, each with its tick
    turns = [turn.child for turn in resolved.children[0].children if isinstance(turn, Repeat)]
    drawn = [chosen(turn) for turn in turns]
    assert len(drawn) == 12
    assert all(len(set(one_)) == 2 and one_ == sorted(one_) for one_ in drawn)
    assert len({tuple(one_) for one_ in drawn}) > 1  # 12 equal draws of 10 possible: chance 10^-11
    assert [k for one_ in drawn for k in one_] == [r.device for r in outcome.receipts]
    again = walk(engine(HERE), resolved)
    assert bits(again.packet["w"]) == bits(outcome.packet["w"])
    assert (again.receipts, again.ticks) == (outcome.receipts, outcome.ticks)


def test_two_choices_at_one_place_and_tick_are_two_draws() -> None:
    every = tuple(range(5))
    same = [
        walk(engine(HERE), Repeat(6, Select("uniform", every, 2, WORK), tick=False)).resolved,
        walk(engine(HERE), Sequence((Select("uniform", every, 2, WORK),) * 6)).resolved,
    ]
    assert all(isinstance(resolved, Sequence) for resolved in same)
    assert all(len({tuple(chosen(turn)) for turn in resolved.children}) > 1 for resolved in same)  # type: ignore[union-attr]


def test_broadcast_changes_nothing() -> None:
    plain = Sequence(T[:2])
    more = Sequence((T[0], Broadcast((1, 2)), T[1]))
    of = walk(engine(HERE), more)
    assert bits(of.packet["w"]) == model(plain)
    assert of.resolved == more
    assert bits(walk(engine(HERE), Broadcast((0,))).packet["w"]) == bits(initial())


def loss_by_hand(w: Tensor, k: int) -> float:
    of = engine(HERE)
    of.network.flat.copy_(w)
    x, y = HERE.samples(k)
    logits = of.network.module(torch.from_numpy(x / 255).float()).detach().double()
    return float(-torch.log_softmax(logits, 1)[torch.arange(len(y)), torch.from_numpy(y)].mean())


@pytest.mark.parametrize("ranks_", [1, 2, 3])
def test_probes_ask_and_leave_everything_as_it_was(ranks_: int) -> None:
    every = tuple(range(5))
    probes = (Probe(every, "census"), Probe(every[::-1], "loss"))
    plan = Sequence((T[2], *probes, T[3], Parallel((Sequence((T[0], Probe((1, 4), "loss"), T[1])), T[4]))))
    bare = Sequence((T[2], T[3], Parallel((Sequence((T[0], T[1])), T[4]))))

    def body(team: Team) -> list[object]:
        outcome = walk(engine(HERE, team=team), plan)
        answers = {str(k): dict(said) for k, said in outcome.answers.items()}
        return [bits(outcome.packet["w"]) == model(bare), answers]

    w2 = one(initial(), 2)
    later = one(one(w2, 3), 0)  # what device 0 hands on inside the branch
    for kept, answers in everywhere(ranks_, body):  # type: ignore[misc]
        assert kept
        assert {int(k) for k in answers} == set(every)
        for k in every:
            assert answers[str(k)]["census"] == np.bincount(HERE.samples(k)[1], minlength=3).tolist()
            w = later if k in (1, 4) else w2  # the later answer stands
            assert answers[str(k)]["loss"] == pytest.approx(loss_by_hand(w, k), abs=1e-6)


# -- lost visits -------------------------------------------------------------------------------------------------------


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Callable[[set[int]], None]:
    """Lose every visit to some devices."""
    return lambda devices: monkeypatch.setattr(schedule, "is_lost", lambda key, chance: key.device in devices)


def test_a_chain_passes_on_what_it_received(lose: Callable[[set[int]], None]) -> None:
    lose({1})
    outcome = walk(engine(HERE), Sequence(T[:3]))
    assert bits(outcome.packet["w"]) == bits(one(one(initial(), 0), 2))
    receipt = outcome.receipts[1]
    assert (receipt.device, receipt.samples, receipt.lost, receipt.steps) == (1, 10, True, 0)
    assert (receipt.loss_first, receipt.loss_last, receipt.accuracy, receipt.memory) == (0, 0, 0, None)


def test_a_lost_branch_leaves_the_mean(lose: Callable[[set[int]], None]) -> None:
    without = model(Parallel((T[0], T[2])))
    lose({1})
    assert model(Parallel((T[0], T[2], T[1]))) == without  # the tree over 0, 2 is the same with a hole behind it
    # of a branch that lost device 1, only device 0's samples count
    got = walk(engine(HERE), Parallel((Sequence(T[:2]), T[2]))).packet["w"]
    assert bits(got) == without


def test_all_lost_gives_the_start_back(lose: Callable[[set[int]], None]) -> None:
    lose(set(range(5)))
    for plan in (Parallel(T), Sequence(T), Repeat(2, Parallel((Parallel(T[:2], edge(0)), Sequence(T[2:]))))):
        assert model(plan) == bits(initial())


def test_a_lost_visit_is_counted_as_a_visit(lose: Callable[[set[int]], None]) -> None:
    lose({0})
    assert [r.visit for r in walk(engine(HERE), Repeat(3, T[0], tick=False)).receipts] == [0, 1, 2]


def test_losses_are_keyed_and_come_as_often_as_said() -> None:
    keys = [Key(0, number, 0, k, visit) for number in range(20) for k in range(20) for visit in range(5)]
    lost = [is_lost(key, 0.3) for key in keys]
    assert abs(np.mean(lost) - 0.3) < 5 * (0.3 * 0.7 / 2000) ** 0.5  # five standard deviations
    assert [is_lost(key, 0.3) for key in keys] == lost
    assert [is_lost(replace(key, seed=1), 0.3) for key in keys] != lost
    assert not any(is_lost(key, 0.0) for key in keys)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Parallel(T[:2], mix="by_sample"), "unknown mixing rule"),
        (Probe((0,), "cenus"), "unknown question"),
        (Select("unifrom", (0, 1), 1, WORK), "unknown selection policy"),
        (Select("uniform", (0, 1), 3, WORK), "select"),
        (Train(device(0), replace(WORK, trains="neck")), "part-of-model"),
        (Train(device(0), replace(WORK, objective="plian")), "unknown objective"),
        (Parallel(()), "no-branches"),
        (Train(edge(0), WORK), "plan"),
    ],
)
def test_what_does_not_exist_is_refused_by_name(plan: Node, said: str) -> None:
    with refused(said):
        walk(engine(HERE), plan)
