"""Astraea: its groups, its plan, what it is equal to, and who sits out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedfloor.methods.astraea import Astraea
from fedfloor.methods.contract import View
from fedfloor.park.park import Park
from fedfloor.plan import walk as plans
from fedfloor.plan.nodes import Parallel, Probe, Repeat, Sequence
from fedfloor.solvers.grouping.solve import SOLVERS, GroupingProblem, solve
from floor import bits, park
from refusals import refused
from rounds import Job, after, method

SIZES = (6, 10, 4, 9, 5, 8, 7)


def floor_(sizes: tuple[int, ...] = SIZES, classes: int = 3) -> Park:
    return park(sizes, classes=classes, factory_of=[k % 2 for k in range(len(sizes))])


def job(here: Park, rounds: int = 2, **settings: Any) -> Job:
    return Job(method("astraea", **settings), here, rounds)


def groups(of: Job) -> list[list[int]]:
    found: list[list[int]] = of.begin().notes["groups"]
    return found


def test_a_round_is_written_as_in_the_paper() -> None:
    of = job(floor_(), devices=3, mediator_epochs=4)
    state = of.begin()
    plan = of.plan(state, 1)
    assert isinstance(plan, Parallel)
    assert (plan.at.kind, plan.mix) == ("cloud", "by_samples")
    for branch in plan.children:
        assert isinstance(branch, Repeat)
        assert isinstance(branch.child, Sequence)
        assert (branch.times, branch.tick) == (4, False)  # the stream stands still while mediators go round
    assert [list(plans.visits(one)) for one in plan.children] == sorted(state.notes["groups"], key=min)
    assert plans.span(plan) == 0
    of.round(state, 1)
    visits = Counter(one.device for one in of.outcomes[0].receipts)
    assert set(visits.values()) == {4}
    assert len(visits) == 6  # ⌊7/3⌋ groups of 3; one sits out


@pytest.mark.parametrize("grouping", SOLVERS)
def test_groups_are_those_of_the_solver_for_the_counts_of_all_samples(grouping: str) -> None:
    here = floor_()
    of = job(here, devices=2, grouping=grouping)
    asked = of.method.setup(of.view(0))
    assert asked == (None if grouping == "random" else Probe(tuple(range(7)), "classes"))
    got = {frozenset(one) for one in groups(of)}
    if grouping == "astraea":  # which draws nothing
        found = solve("astraea", GroupingProblem(here.counts().astype(float), 3, 2)).choice
        assert got == {frozenset(one) for one in found.tolist()}
    assert [len(one) for one in got] == [2, 2, 2]
    assert len(frozenset.union(*got)) == 6


def test_greedy_mediators_by_hand() -> None:
    # Counts (4, 0), (4, 0), (0, 4), (0, 4): the first mediator takes device 0, no worse than any other, then a device
    # of the other class, the first of them: 2. Left are 1 and 3.
    view = View(0, 1, np.full(4, 4), np.zeros(4, np.int32), {})
    answers = {k: {"classes": [4, 0] if k < 2 else [0, 4]} for k in range(4)}
    state = Astraea(devices=2).init(view, answers, np.random.default_rng(0))
    assert {frozenset(one) for one in state.notes["groups"]} == {frozenset({0, 2}), frozenset({1, 3})}


def test_the_order_within_a_group_is_drawn_once() -> None:
    of = job(floor_(), devices=7)
    state = of.begin()
    assert [list(plans.visits(of.plan(state, number))) for number in (1, 2)] == groups(of) * 2
    orders = {tuple(groups(replace(of, seed=seed))[0]) for seed in range(6)}
    assert len(orders) > 1
    assert {frozenset(one) for one in orders} == {frozenset(range(7))}


# -- what it is equal to -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(8,) * 6, (4, 17, 8, 5, 9, 6)], ids=["equal", "unequal"])
def test_with_groups_of_one_it_is_fedavg(sizes: tuple[int, ...]) -> None:
    here = floor_(sizes)
    alone = after(method("astraea", devices=1), here).packet["w"]
    assert bits(alone) == bits(after(method("fedavg"), here).packet["w"])
    assert bits(after(method("astraea", devices=2), here).packet["w"]) != bits(alone)


def test_with_groups_of_one_of_equal_size_the_weights_do_not_matter() -> None:
    here = floor_((8,) * 6)
    both = [after(method("astraea", devices=1, weights=one), here).packet["w"] for one in ("by_samples", "equal")]
    # eight of 48 samples or one of six models: the same mean, to the rounding of six terms
    assert float((both[0] - both[1]).abs().max()) <= 6 * 2.0**-24 * float(both[0].abs().max())
    other = [after(method("astraea", devices=2, weights=one), floor_()).packet["w"] for one in ("by_samples", "equal")]
    assert float((other[0] - other[1]).abs().max()) > 1e-4


def test_with_one_group_of_all_it_is_fedsr_with_one_ring_whose_order_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    here = floor_()
    ours = job(here, devices=7, mediator_epochs=3)
    (order,) = groups(ours)
    monkeypatch.setattr("fedfloor.methods.fedsr.FedSR._rings", lambda *_: [order])
    ring = Job(method("fedsr", laps=3, ring_size=7), here, 2)
    assert ours.plan(ours.begin(), 1) == ring.plan(ring.begin(), 1)
    assert bits(ours.run().packet["w"]) == bits(ring.run().packet["w"])


def test_of_one_device_it_is_fedsr_to_the_bit() -> None:
    one = park((9,))
    ours = after(method("astraea", mediator_epochs=3), one)
    ring = after(method("fedsr", laps=3), one)
    assert bits(ours.packet["w"]) == bits(ring.packet["w"])


# -- who takes part ----------------------------------------------------------------------------------------------------


def test_a_share_of_the_groups_is_drawn_anew_in_each_round() -> None:
    of = job(floor_((5,) * 12), devices=2, share=0.5)
    state = of.begin()
    known = {frozenset(one) for one in state.notes["groups"]}
    drawn = [{frozenset(plans.visits(one)) for one in of.plan(state, r).children} for r in range(1, 9)]  # type: ignore[union-attr]
    assert {len(one) for one in drawn} == {3}  # ⌊0.5·6⌋
    assert all(one <= known for one in drawn)
    assert len({frozenset(one) for one in drawn}) > 1
    narrow = job(floor_((5,) * 12), devices=2, share=0.1)
    state = narrow.begin()
    with refused("share-of-groups"):
        narrow.plan(state, 1)


def test_nobody_is_asked_where_counts_make_no_difference() -> None:
    here = floor_()
    for settings in ({"devices": 1}, {"devices": 7}, {"devices": 9}, {"grouping": "random"}):
        of = job(here, **settings)
        assert of.method.setup(of.view(0)) is None
    assert len(groups(job(here, devices=9))) == 1  # fewer devices than a group's: all of them are one


def test_who_may_not_take_part_is_left_out_of_the_group() -> None:
    of = job(floor_(), devices=2)
    state = of.begin()
    few = replace(of.view(1), invited=(state.notes["groups"][1][0],))
    assert tuple(plans.visits(Astraea(devices=2).plan(state, few, np.random.default_rng(0)))) == few.invited
    (out,) = set(range(7)) - {k for one in state.notes["groups"] for k in one}
    with refused("method"):
        Astraea(devices=2).plan(state, replace(few, invited=(out,)), np.random.default_rng(0))


def test_answers_that_are_lost_or_drowned_in_noise_leave_groups_all_the_same(tmp_path: Path) -> None:
    view = View(0, 1, np.full(6, 4), np.zeros(6, np.int32), {})
    some = {k: {"classes": [3, -1]} for k in (0, 3)}
    for answers in ({}, some, {k: {"classes": [-2, 0]} for k in range(6)}):
        state = Astraea(devices=3).init(view, answers, np.random.default_rng(0))
        assert sorted(k for one in state.notes["groups"] for k in one) == list(range(6))
    here = Job(method("astraea", devices=2), floor_(), folder=tmp_path, loss=0.5)
    here.run()
    assert any(one.lost for one in here.outcomes[0].receipts)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"devices": 0}, "methods.astraea.devices"),
        ({"mediator_epochs": 0}, "methods.astraea.mediator_epochs"),
        ({"share": 0.0}, "methods.astraea.share"),
        ({"share": 1.5}, "methods.astraea.share"),
        ({"grouping": "icgg"}, "unknown methods.astraea.grouping"),
        ({"weights": "many"}, "methods.astraea.weights"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], said: str) -> None:
    with refused(said):
        method("astraea", **settings)
