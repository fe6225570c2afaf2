"""FedGS: its plan, what it is equal to, and what it does where the paper is silent."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedfloor import config
from fedfloor.engine.team import Alone, Team
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.methods.fedgs import FedGS
from fedfloor.methods.references import Centralized
from fedfloor.park.park import Park
from fedfloor.park.partition import Mobility
from fedfloor.park.stream import Fifo, Recycle
from fedfloor.parts.work import WorkSettings
from fedfloor.plan import walk as plans
from fedfloor.plan.nodes import Node, Parallel, Probe, Repeat, Select, Sequence, Train, Work, edge
from fedfloor.runs import results
from floor import engine, everywhere, park, plan_of, start, walk
from refusals import refused
from rounds import Job, digest

TWELVE = (5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7, 8)
FIFO = Fifo(4)


def floor_(stream: Fifo | Recycle = FIFO, factories: int = 3, **more: Any) -> Park:
    here = park(TWELVE, factory_of=[k % factories for k in range(12)])
    return replace(here, stream=stream, **more)


def fedgs(**settings: Any) -> ConfiguredMethod:
    """FedGS, small: three iterations, two devices of which one is drawn, mini-batches of four."""
    work = {"steps": 1, "batch_size": 4, "lr": 0.1}
    table = {"iterations": 3, "devices": 2, "random": 1, "work": work, **settings}
    return config.from_table({"method": {"name": "fedgs"}, "methods": {"fedgs": table}}).configured


def job(here: Park, rounds: int = 1, *, team: Team | None = None, loss: float = 0.0, **settings: Any) -> Job:
    return Job(fedgs(**settings), here, rounds, team or Alone(), loss=loss)


def planned(here: Park, **settings: Any) -> Node:
    of = job(here, **settings)
    return of.plan(of.begin(), 1)


def test_a_round_is_written_as_in_the_paper() -> None:
    here = floor_()
    plan = planned(here)
    share = tuple(here.distribution.tolist())
    work = Work(steps=1, batch_size=4, rate=0.1)
    nodes = [Select("exact", tuple(range(m, 12, 3)), 2, work, edge(m), random=1, share=share) for m in range(3)]
    assert plan == Parallel(tuple(Repeat(3, node) for node in nodes), mix="equal")
    assert plans.span(plan) == 3
    total = here.counts().sum(0)
    np.testing.assert_allclose(share, total / total.sum(), rtol=1e-15)


def test_the_published_settings_are_the_defaults() -> None:
    known = FedGS()
    assert (known.iterations, known.devices, known.random) == (50, 10, 2)
    assert (known.work.steps, known.work.batch_size, known.work.lr) == (1, 32, 0.01)


def test_each_iteration_chooses_anew_from_the_census_of_its_tick() -> None:
    here = floor_()
    of = job(here, random=0)
    of.run()
    (outcome,) = of.outcomes
    chosen = [plans.visits(turn) for turn in plans.children(outcome.resolved.children[0])]  # type: ignore[union-attr]
    assert len(chosen) == 3
    assert len({tuple(sorted(one)) for one in chosen}) > 1
    share = here.distribution
    members = range(0, 12, 3)
    for tick, one in enumerate(chosen):
        counts = here.census(list(members), tick, [0] * 4)
        pairs = {(a, b): counts[[a // 3, b // 3]].sum(0) for a in members for b in members if a < b}
        far = {pair: float(np.linalg.norm(sum_ - 8 * share)) for pair, sum_ in pairs.items()}
        assert far[tuple(sorted(one))] == pytest.approx(min(far.values()), rel=1e-12)  # type: ignore[index]


def test_with_one_iteration_and_every_device_it_is_one_centralised_step() -> None:
    # as in test_laws: Σ_k (1/12)(w − η∇F_k) = w − η∇F; a mean of three factories, sums over 48 samples
    here = floor_()
    work = WorkSettings(steps=1, batch_size=4, lr=0.1)
    whole = engine(here)
    parts = engine(here)
    packet = start(parts)
    for number in (1, 2):
        ours = walk(
            parts, plan_of(FedGS(iterations=1, devices=4, solver="random", work=work), here), packet, number, number - 1
        )
        central = plan_of(Centralized(work=replace(work, batch_size=48)), here)
        theirs = walk(whole, central, packet, number, number - 1)
        assert theirs.receipts[0].samples == 48
        apart = (ours.packet["w"].double() - theirs.packet["w"].double()).abs().max()
        assert 0 < float(apart) < 1e-6
        packet = dict(ours.packet)


@pytest.mark.parametrize("settings", [{}, {"choose": "round"}, {"solver": "random"}, {"solver": "gbpcs"}], ids=str)
def test_ranks_agree_to_the_bit(settings: dict[str, Any]) -> None:
    here = floor_(Recycle(4))

    def body(team: Team) -> object:
        of = job(here, 2, team=team, loss=0.2, **settings)
        return json.loads(json.dumps(digest(of.run(), of.outcomes)))

    assert everywhere(2, body) == [body(Alone())] * 2


# -- what is asked, and what that tells --------------------------------------------------------------------------------


def asked(node: Node) -> Counter[str]:
    return plans.fold(node, lambda at, below: sum(below, Counter([at.what] if isinstance(at, Probe) else [])))


def test_a_census_is_asked_of_every_candidate_in_every_iteration_unless_it_is_free() -> None:
    here = floor_()
    for settings, questions in (
        ({}, 9),
        ({"census_free": True}, 0),
        ({"solver": "random"}, 0),
        ({"choose": "round"}, 1),
    ):
        of = job(here, **settings)
        of.run()
        assert asked(of.outcomes[0].resolved) == Counter({"census": questions} if questions else {})
    of = job(here)
    of.run()
    turn = of.outcomes[0].resolved.children[1].children[0]  # type: ignore[union-attr]
    assert turn.child.children[0] == Probe((1, 4, 7, 10), "census", edge(1))


def test_the_classes_of_all_are_asked_once_and_only_where_they_are_needed() -> None:
    here = floor_()
    assert job(here).method.setup(job(here).view(0)) == Probe(tuple(range(12)), "classes")
    for settings in ({"solver": "random"}, {"random": 2}, {"devices": 4}):  # four a factory: all of them are visited
        assert job(here, **settings).method.setup(job(here).view(0)) is None


def test_reports_with_noise_are_counted() -> None:
    # each device: three iterations, and once its classes
    here = floor_(census_epsilon=0.5)
    noisy = config.from_table({"park": {"census_epsilon": 0.5}, "data": {"stream": {"kind": "fifo", "window": 4}}})
    of = job(here)
    assert results.reports(noisy, of.method.setup(of.view(0))) == Counter(dict.fromkeys(range(12), 1))  # type: ignore[arg-type]
    assert results.reports(noisy, planned(here)) == Counter(dict.fromkeys(range(12), 3))
    of.run()
    assert of.outcomes[0].receipts


# -- classes in balance, ours ------------------------------------------------------------------------------------------


def test_classes_that_were_trained_on_less_are_wanted_more() -> None:
    """By hand: 3 factories, 3 iterations of 2 devices are 18 steps; each device stands for its shares of classes."""
    of = job(floor_(), balance=True)
    state = of.begin()
    first = of.plan(state, 1)
    assert first == planned(floor_())  # nothing was trained on before
    after = of.round(state, 1)
    (outcome,) = of.outcomes
    counts = floor_().counts().astype(float)
    steps = np.bincount([receipt.device for receipt in outcome.receipts], minlength=12)
    trained = steps @ (counts / counts.sum(1, keepdims=True))
    assert steps.sum() == 18
    np.testing.assert_allclose(after.tensors["trained"].numpy(), trained)
    wanted = np.maximum(36 * floor_().distribution - trained, 0)
    selects = [node for node, _ in plans.every(of.plan(after, 2)) if isinstance(node, Select)]
    for m, node in enumerate(selects):
        here = wanted * (counts[m::3].sum(0) > 0)
        np.testing.assert_allclose(node.share, here / here.sum())


# -- the paper is silent -----------------------------------------------------------------------------------------------


def test_a_factory_with_fewer_devices_trains_all_of_them() -> None:
    here = replace(floor_(), factory_of=np.array([0] * 3 + [1] * 9, np.int32))
    small, large = planned(here, devices=4, random=2).children  # type: ignore[union-attr]
    assert (small.child.policy, small.child.how_many, small.child.candidates) == ("everyone", 3, (0, 1, 2))
    assert (large.child.policy, large.child.how_many, large.child.random) == ("exact", 4, 2)


def test_a_factory_without_devices_takes_no_part() -> None:
    here = replace(floor_(), factory_of=np.array([0] * 6 + [2] * 6, np.int32))
    assert [one.child.at for one in planned(here).children] == [edge(0), edge(2)]  # type: ignore[union-attr]


def test_guests_are_chosen_where_they_stand() -> None:
    here = floor_(mobility=Mobility(every=1, share=0.5))
    of = job(here, 2)
    of.run()
    assert not np.array_equal(here.factory_at(1), here.factory_of)
    for tick, outcome in enumerate(of.outcomes):
        for m, branch in enumerate(outcome.resolved.children):  # type: ignore[union-attr]
            assert set(plans.visits(branch)) <= set(np.flatnonzero(here.factory_at(tick) == m))


def test_a_device_is_visited_once_per_iteration_and_its_stream_moves_with_its_visits() -> None:
    here = floor_(Recycle(4))
    of = job(here, 2, random=0)
    of.run()
    visits = Counter(receipt.device for outcome in of.outcomes for receipt in outcome.receipts)
    assert +of.engine.memory.visits == visits
    assert sum(visits.values()) == 2 * 3 * 3 * 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"iterations": 0}, "methods.fedgs.iterations"),
        ({"devices": 0}, "methods.fedgs.devices"),
        ({"random": 3}, "methods.fedgs.random"),
        ({"random": -1}, "methods.fedgs.random"),
        ({"solver": "exakt"}, "unknown methods.fedgs.solver"),
        ({"choose": "day"}, "methods.fedgs.choose"),
        ({"weights": "many"}, "methods.fedgs.weights"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], said: str) -> None:
    with refused(said):
        fedgs(**settings)


def test_chosen_for_a_round_they_stay() -> None:
    here = floor_()
    plan = planned(here, choose="round")
    assert isinstance(plan, Sequence)
    assert plan.children[0] == Probe(tuple(range(12)), "census")
    for branch in plan.children[1].children:  # type: ignore[union-attr]
        assert isinstance(branch, Repeat)
        assert branch.times == 3
        assert all(isinstance(one, Train) for one in branch.child.children)  # type: ignore[union-attr]
