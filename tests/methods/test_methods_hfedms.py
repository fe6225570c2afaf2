"""HFedMS: its schedule, its identities, and what a round of each kind is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedfloor.base.errors import SettingError
from fedfloor.methods.contract import State, View
from fedfloor.methods.hfedms import HFedMS
from fedfloor.parts.selection.grouping import Log
from fedfloor.plan import visit_order, walk
from fedfloor.plan.nodes import Broadcast, Node, Parallel, Probe, Sequence
from fedfloor.plan.outcome import Outcome
from floor import bits, park
from refusals import refused
from rounds import Job, method

ALL: dict[str, Any] = {"growth": {"kind": "log", "alpha": 0.0, "beta": 10}, "share": 1.0}  # a group for each of ≤ 10


def view(number: int, devices: int = 368, rounds: int = 500, invited: tuple[int, ...] | None = None) -> View:
    sizes = np.full(devices, 50)
    factory = np.zeros(devices, np.int32)
    census = np.random.default_rng(number).multinomial(50, np.full(62, 1 / 62), devices)
    return View(number, rounds, sizes, factory, {}, census=census, invited=invited)


def planned(of: HFedMS, number: int, state: State | None = None, **more: Any) -> Node:
    return of.plan(state or State({}), view(number, **more), np.random.default_rng(number))


def chains(node: Node) -> list[list[int]]:
    return [[visit.site.index for visit in visit_order.in_order(one)] for one in walk.branches(node)]


# -- the schedule ------------------------------------------------------------------------------------------------------


# M, and devices of a group, in period q with K = 368: facts of the paper, b.2
TABLE = {1: (10, 36), 2: (20, 18), 3: (30, 12), 5: (40, 9), 8: (50, 7), 13: (60, 6), 21: (70, 5), 34: (80, 4),
         55: (90, 4), 91: (100, 3)}  # fmt: skip


@pytest.mark.parametrize(("period", "groups", "size"), [(q, *row) for q, row in TABLE.items()])
def test_the_groups_of_a_period_are_as_the_paper_has_them(period: int, groups: int, size: int) -> None:
    found = chains(planned(HFedMS(grouping="random"), 5 * (period - 1) + 1))
    assert len(found) == int(0.3 * groups + 1e-9)
    assert {len(group) for group in found} == {size}
    assert len({k for group in found for k in group}) == len(found) * size


def test_devices_are_left_out_where_they_do_not_divide() -> None:
    found = chains(planned(HFedMS(grouping="icg", share=1.0), 5 * 90 + 1))
    assert len(found) * len(found[0]) == 300  # 68 of 368 sit out, as in b.3


def test_a_period_is_one_round_of_everything_and_then_of_the_classifier() -> None:
    of = HFedMS(period=3, memory=7, calibration_epochs=3)
    state = State({})
    kinds = []
    for number in range(1, 8):
        plan = planned(of, number, state)
        state = of.absorb(state, Outcome({}, plan))
        (work,) = {visit.work.objective: visit.work for visit in visit_order.in_order(plan)}.values()
        kinds.append((work.trains, work.objective, work.settings.get("last"), work.epochs))
        assert (walk.children(plan)[-1:] == (Broadcast(tuple(sorted(walk.visits(plan))), "all"),)) == (number % 3 == 1)
        assert any(isinstance(one, Probe) for one in walk.children(plan)) == (number % 3 == 1)
    full = ("all", "plain", None, 1)
    first = ("classifier", "replay", False, 3)
    last = ("classifier", "replay", True, 3)
    assert kinds == [full, first, last, full, first, last, full]


def test_groups_are_random_where_nobody_says_what_it_holds() -> None:
    silent = replace(view(1), census=np.zeros((368, 62), np.int64))
    plan, again = (HFedMS().plan(State({}), silent, np.random.default_rng(seed)) for seed in (0, 1))
    assert [len(one) for one in chains(plan)] == [36] * 3
    assert chains(plan) != chains(again)


def test_a_park_too_small_for_its_share_is_refused_and_few_that_may_take_part_are_not() -> None:
    rng = np.random.default_rng(0)
    of = HFedMS(share=0.3)
    three = View(1, 10, np.full(3, 50), np.zeros(3, np.int32), {}, census=np.ones((3, 4)))
    with refused("share-of-groups"):
        of.plan(State({}), three, rng)
    asleep = replace(view(1), invited=[4, 9, 17])
    assert [len(one) for one in chains(of.plan(State({}), asleep, rng))] == [1]


def test_groups_stay_for_a_period_and_are_drawn_anew_for_the_next() -> None:
    of = HFedMS(period=2)
    one = planned(of, 1)
    state = of.absorb(State({}), Outcome({}, one))
    two = planned(of, 2, state)
    assert chains(two) == chains(one)
    assert chains(planned(of, 3, of.absorb(state, Outcome({}, two)))) != chains(one)
    assert state.notes["info"] == {"chosen_groups": 3, "group_size": 36}


def test_the_order_within_groups_may_be_drawn_in_every_round() -> None:
    of = HFedMS(shuffle="round")
    one = planned(of, 1)
    two = planned(of, 2, of.absorb(State({}), Outcome({}, one)))
    assert chains(two) != chains(one)
    assert list(map(sorted, chains(two))) == list(map(sorted, chains(one)))


def test_who_may_not_take_part_is_left_out_of_its_group() -> None:
    of = HFedMS()
    state = of.absorb(State({}), Outcome({}, planned(of, 1)))
    gone = {k for group in state.notes["groups"][:1] for k in group} | {state.notes["groups"][1][0]}
    here = tuple(k for k in range(368) if k not in gone)
    assert chains(planned(of, 2, state, invited=here)) == [state.notes["groups"][1][1:], state.notes["groups"][2]]
    assert planned(of, 2, state, invited=()) == Sequence(())
    assert of.absorb(state, Outcome({}, Sequence(()))).notes["groups"] == state.notes["groups"]
    late = planned(of, 6, state, invited=tuple(range(40)))  # of 40, the second period makes 20 groups of 2
    assert [len(group) for group in chains(late)] == [2] * 6


def test_variant_s_hands_nothing_out_and_its_groups_are_new_in_every_round() -> None:
    of = HFedMS(variant="S", census_free=True)
    one = planned(of, 1)
    two = planned(of, 2)
    assert isinstance(one, Parallel)
    assert isinstance(two, Parallel)
    assert len(two.children) == 6
    assert walk.scopes(two) == {"all"}
    assert not of.needs.remembers


# -- which method it is where ------------------------------------------------------------------------------------------

HERE = park((8, 8, 8, 8, 8))


def model(name: str, folder: Path, here: Any = HERE, rounds: int = 4, **own: Any) -> Job:
    job = Job(method(name, rounds=rounds, **own), here, rounds=rounds, folder=folder)
    job.start["w"] = job.run().packet["w"]
    return job


def test_variant_s_with_as_many_groups_as_devices_is_fedavg(tmp_path: Path) -> None:
    work = {"epochs": 2, "batch_size": 4, "lr": 0.05}
    one = model("hfedms", tmp_path, variant="S", work=work, **ALL)
    other = model("fedavg", tmp_path, work=work)
    # the branches stand in another order, and sums of five numbers are rounded otherwise
    assert torch.allclose(one.start["w"], other.start["w"], rtol=0, atol=1e-6)
    assert bits(one.start["w"]) != bits(Job(method("fedavg"), HERE).start["w"])


def test_d_with_periods_of_one_round_is_s_in_model(tmp_path: Path) -> None:
    few: dict[str, Any] = {"growth": {"kind": "linear", "alpha": 1.0, "beta": 2}, "share": 0.5}
    one = model("hfedms", tmp_path, variant="D", period=1, **few)
    other = model("hfedms", tmp_path, variant="S", period=4, **few)
    assert bits(one.start["w"]) == bits(other.start["w"])
    assert isinstance(one.outcomes[0].resolved.children[-1], Broadcast)  # type: ignore[union-attr]
    assert not list(tmp_path.iterdir())


def test_with_q_of_0_there_is_no_memory(tmp_path: Path) -> None:
    job = model("hfedms", tmp_path, period=2, memory=0, **ALL)
    assert not job.engine.memory.held
    (work,) = {visit.work.trains: visit.work for visit in visit_order.in_order(job.outcomes[1].resolved)}.values()
    assert (work.trains, work.objective) == ("classifier", "plain")


def test_what_devices_keep_changes_the_classifier_alone(tmp_path: Path) -> None:
    # two rounds: the second trains the classifier, with nothing kept so far; four: with what was kept in the second
    layout = Job(method("hfedms", period=2, **ALL), HERE, folder=tmp_path).engine.network.part("classifier")
    ends: dict[tuple[int, int], torch.Tensor] = {}
    for rounds in (2, 3, 4):
        for memory in (0, 5):
            folder = tmp_path / f"{rounds}-{memory}"
            ends[rounds, memory] = model("hfedms", folder, rounds=rounds, period=2, memory=memory, **ALL).start["w"]
    assert torch.allclose(ends[2, 0], ends[2, 5], rtol=0, atol=1e-6)
    assert torch.allclose(ends[3, 0], ends[3, 5], rtol=0, atol=1e-5)
    assert bits(ends[4, 5][: layout.start]) == bits(ends[3, 5][: layout.start])
    assert float((ends[4, 0] - ends[4, 5])[layout].abs().max()) > 1e-4


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"period": 0}, "methods.hfedms.period"),
        ({"share": 0.0}, "methods.hfedms.share"),
        ({"memory": -1}, "methods.hfedms.memory"),
        ({"calibration_epochs": 0}, "methods.hfedms.calibration_epochs"),
        ({"grouping": "icgg"}, "unknown methods.hfedms.grouping"),
        ({"rule": "nearest"}, "unknown objective replay: rule"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], match: str) -> None:
    with refused(match):
        HFedMS(**settings)


def test_a_share_of_the_groups_that_is_less_than_one_is_refused() -> None:
    with refused("share-of-groups"):
        planned(HFedMS(share=0.05), 1)


def test_more_groups_than_devices_are_as_many_as_devices() -> None:
    assert [len(group) for group in chains(planned(HFedMS(growth=Log(2.0, 50), share=1.0), 1, devices=7))] == [1] * 7


def test_a_park_nobody_may_take_part_in_is_refused() -> None:
    with refused("method"):
        planned(HFedMS(), 1, invited=())


@pytest.mark.parametrize(
    ("setting", "value"), [("variant", "s"), ("keep", "sample"), ("shuffle", "rounds"), ("weights", "size")]
)
def test_words_it_does_not_know_are_refused_in_python_too(setting: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"unknown methods.hfedms.{setting} '{value}'"):
        HFedMS(**{setting: value})  # type: ignore[arg-type]
