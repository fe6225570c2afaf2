from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfloor.base.errors import SettingError
from fedfloor.plan import schedule, visit_order, walk
from fedfloor.plan.nodes import (
    CLOUD,
    Broadcast,
    Node,
    Parallel,
    Probe,
    Radio,
    Repeat,
    Select,
    Sequence,
    Since,
    Train,
    Work,
    device,
    edge,
    only,
)
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.text import KINDS, digest, from_json, site, to_json
from floor import extended
from plans import CASES, EPOCH, SIZES, Case, chain, plans, sites, star
from refusals import refused

VISIT = Train(device(3), EPOCH)


def held(device_: int) -> int:
    return sum(SIZES) if device_ < 0 else SIZES[device_]


# -- JSON and digest -------------------------------------------------------------------------------------------------


@given(plans)
def test_json_and_back_is_the_same_plan(plan: Node) -> None:
    assert from_json(json.loads(json.dumps(to_json(plan)))) == plan


@given(plans, plans)
def test_digests_are_equal_where_plans_are(one: Node, other: Node) -> None:
    assert (digest(one) == digest(other)) == (one == other)
    assert digest(from_json(json.loads(json.dumps(to_json(one))))) == digest(one)


@given(sites)
def test_a_site_is_written_and_read(place) -> None:
    assert site(str(place)) == place


CHANGES = [
    (VISIT, {"site": device(4), "work": Work(epochs=2), "radio": Radio(0, 10.0)}),
    (Sequence((VISIT,)), {"children": (VISIT, VISIT)}),
    (
        Parallel((VISIT,)),
        {
            "children": (),
            "at": edge(0),
            "mix": "equal",
            "settings": {"q": 1},
            "model": "w/1",
            "travel": "sign",
            "travel_down": "float16",
        },
    ),
    (Repeat(2, VISIT), {"times": 3, "child": Sequence((VISIT,)), "tick": False}),
    (
        Select("uniform", (1, 2), 1, EPOCH),
        {
            "policy": "everyone",
            "candidates": (2, 1),
            "how_many": 2,
            "work": Work(steps=1),
            "at": edge(1),
            "mix": "equal",
            "settings": {"q": 1},
            "random": 1,
            "share": (0.25, 0.75),
            "census_free": True,
            "model": "w/1",
        },
    ),
    (Broadcast((1,)), {"devices": (1, 2), "scope": "classifier"}),
    (Since(1, VISIT), {"version": 2, "child": Sequence((VISIT,)), "weight": 0.5, "counts": "model", "tick": 1}),
    (Probe((1,), "loss"), {"devices": (), "what": "census", "at": edge(0), "settings": {"hashes": 5}}),
]


def test_changes_cover_every_kind_of_node_and_field() -> None:
    assert {type(plan) for plan, _ in CHANGES} == set(KINDS.values())
    assert all({f.name for f in fields(plan)} == set(changed) for plan, changed in CHANGES)


@pytest.mark.parametrize(("plan", "changed"), CHANGES, ids=[type(plan).__name__ for plan, _ in CHANGES])
def test_every_field_is_part_of_the_digest(plan: Node, changed: dict[str, object]) -> None:
    seen = {digest(plan)} | {digest(replace(plan, **{name: value})) for name, value in changed.items()}
    assert len(seen) == 1 + len(changed)


def test_every_field_of_work_is_part_of_the_digest() -> None:
    other = Work("x", None, 4, 8, 0.5, 0.5, 0.5, "classifier", {"mu": 1.0}, "adam", 0.8, 0.9, 1e-6, "device", 1.0,
                 "body", 1.0, 0.5, "sign", "float16", "head 2.0")  # fmt: skip
    alone = [replace(EPOCH, **{f.name: getattr(other, f.name)}) for f in fields(Work)]
    assert len({digest(Train(CLOUD, work)) for work in [EPOCH, *alone]}) == 1 + len(fields(Work))


WRITTEN = (
    '{"node":"train","radio":{"channel":2,"power_dbm":17.5},"site":"device:3","work":{"batch_size":32,"epochs":1,'
    '"momentum":0.0,"objective":"plain","rate":0.01,"scope":"all","settings":{"mu":0.5},"steps":null,"weight_decay":0.0}}'
)


def test_digest_is_the_sha256_of_the_sorted_compact_json() -> None:
    plan = Train(device(3), Work(epochs=1, settings={"mu": 0.5}), Radio(2, 17.5))
    assert digest(plan) == hashlib.sha256(WRITTEN.encode()).hexdigest()


@pytest.mark.slow
def test_digest_is_the_same_in_another_process() -> None:
    program = (
        "import json, sys; from fedfloor.plan.text import *; print(*map(digest, map(from_json, json.load(sys.stdin))))"
    )
    told = json.dumps([to_json(case.plan) for case in CASES.values()])
    environment = {**os.environ, "PYTHONHASHSEED": "1234"}
    got = subprocess.run([sys.executable, "-c", program], input=told, capture_output=True, text=True, env=environment)
    assert got.stdout.split() == [digest(case.plan) for case in CASES.values()], got.stderr


GOOD = to_json(VISIT)
BAD = {
    "an unknown node": ({"node": "trian"}, "unknown node 'trian'"),
    "no node": ({}, "unknown node None"),
    "no object": ([GOOD], "unknown node"),
    "a list for a name": ({"node": ["train"]}, "unknown node ['train']"),
    "an unknown field": ({**GOOD, "colour": 1}, "'colour'"),
    "a missing field": ({"node": "train", "site": "cloud"}, "needed ['site', 'work']"),
    "an unknown field of work": ({**GOOD, "work": {"epoch": 1}}, "Work has ['epoch']"),
    "work that is a number": ({**GOOD, "work": 3}, "Work is 3"),
    "a radio without power": ({**GOOD, "radio": {"channel": 1}}, "Radio has ['channel']"),
    "children that are no list": ({"node": "sequence", "children": 3}, "children = 3"),
    "devices that are no list": ({"node": "broadcast", "devices": "12"}, "devices = '12'"),
    "a kind for a node": ({"node": "repeat", "times": 1, "child": "train"}, "unknown node 'train'"),
    "a text for a number": (GOOD | {"work": {"rate": "x"}}, "Work has rate = 'x': must be float"),
    "a number too large": (GOOD | {"work": {"epochs": 10**30}}, "Work has epochs = 1000"),
    "no finite number": (GOOD | {"work": {"momentum": float("nan")}}, "Work has momentum = nan"),
    "a table in settings": (GOOD | {"work": {"settings": {"mu": {}}}}, "Work has settings = {'mu': {}}"),
    "a bad child": ({"node": "repeat", "times": 1, "child": {"node": "x"}}, "unknown node 'x'"),
    "a bad site": ({**GOOD, "site": "factory:3"}, "'factory:3' must be cloud, edge:M or device:K"),
}


@pytest.mark.parametrize(("body", "said"), BAD.values(), ids=BAD)
def test_from_json_refuses(body, said: str) -> None:
    with pytest.raises(SettingError) as error:
        from_json(body)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "text", ["", "cloud:", "cloud:0", "edge", "edge:", "edge:-1", "device:1.0", "device:²", "Edge:1", 3]
)
def test_site_refuses(text) -> None:
    with refused("plan"):
        site(text)


def test_what_is_no_node_cannot_be_written() -> None:
    with refused("plan"):
        to_json(None)  # type: ignore[arg-type]


# -- the eight plans of the design, by hand --------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_papers_plans_by_hand(case: Case) -> None:
    assert walk.span(case.plan) == case.span
    assert walk.visits(case.plan) == Counter(case.visits)
    assert walk.batches(case.plan, held) == case.batches
    assert walk.meets(case.plan) == case.meets
    assert walk.devices(case.plan) == case.devices
    assert walk.widest(case.plan) == case.widest
    assert walk.fold(case.plan, lambda node, below: 1 + sum(below)) == case.nodes
    assert walk.fold(case.plan, lambda node, below: 1 + max(below, default=0)) == case.depth


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_papers_plans_survive_json(case: Case) -> None:
    assert from_json(json.loads(json.dumps(to_json(case.plan)))) == case.plan


def test_fold_meets_leaves_in_plan_order() -> None:
    plan = Parallel((chain((2, 0)), Repeat(3, star((5, 1)))))
    nested = walk.fold(plan, lambda node, below: node.site.index if isinstance(node, Train) else below)
    assert nested == [[2, 0], [[5, 1]]]


# Each line: 3 turns of (4 ticks), of (4 ticks in a repeat that does not tick itself), …
@pytest.mark.parametrize(
    ("plan", "ticks"),
    [
        (VISIT, 0),
        (Repeat(3, VISIT), 3),
        (Repeat(3, VISIT, tick=False), 0),
        (Repeat(3, Repeat(4, VISIT)), 12),
        (Repeat(3, Repeat(4, VISIT), tick=False), 12),
        (Repeat(3, Repeat(4, VISIT, tick=False)), 3),
        (Repeat(3, Parallel((Repeat(2, VISIT), Repeat(5, VISIT)))), 15),
        (Sequence((Repeat(2, VISIT), VISIT, Repeat(5, VISIT))), 7),
        (Parallel(()), 0),
        (Broadcast((1,)), 0),
        (Probe((1,), "loss"), 0),
    ],
)
def test_span(plan: Node, ticks: int) -> None:
    assert walk.span(plan) == ticks


def test_the_last_meeting_is_that_of_single_visits_at_the_cloud() -> None:
    meets = Parallel((VISIT, Train(device(4), EPOCH)))
    probe = Probe((3,), "census")
    assert walk.last_meeting(meets) is meets
    assert walk.last_meeting(Sequence((probe, meets))) is meets
    assert walk.last_meeting(Sequence((meets, probe))) is None
    assert walk.last_meeting(VISIT) is None
    assert walk.last_meeting(Parallel(())) is None
    assert walk.last_meeting(Parallel((VISIT,), at=edge(0))) is None
    assert walk.last_meeting(Parallel((meets,))) is None
    assert walk.last_meeting(Parallel((Train(CLOUD, EPOCH),))) is None


def test_figures_that_a_device_withholds_are_zeros() -> None:
    told = Receipt(3, 0, 1, 5, 40, 2.5, 1.25, 0.75, 100, False)
    assert told.figures == (2.5, 1.25, 0.75)
    assert replace(told, loss_first=None, loss_last=None, accuracy=None).figures == (0.0, 0.0, 0.0)


def test_a_select_counts_its_candidates_mean() -> None:
    # candidates of 1, 2 and 12 mini-batches, mean 5; two of them: 10
    assert walk.batches(Select("uniform", (0, 1, 11), 2, EPOCH), held) == 10


def test_the_cloud_trains_on_everybodys_data_and_is_no_device() -> None:
    central = Train(CLOUD, Work(epochs=2, batch_size=50))
    assert walk.batches(central, held) == 2 * -(-sum(SIZES) // 50)
    assert walk.visits(central) == Counter()
    assert walk.devices(central) == set()


@given(st.integers(1, 500), st.integers(1, 5), st.integers(1, 64))
def test_batches_of_a_visit_hold_every_sample_once_per_epoch(samples: int, epochs: int, size: int) -> None:
    per_pass = Work(epochs=1, batch_size=size).batches(samples)
    assert (per_pass - 1) * size < samples <= per_pass * size
    assert Work(epochs=epochs, batch_size=size).batches(samples) == epochs * per_pass
    assert Work(steps=epochs, batch_size=size).batches(samples) == epochs


def test_nobody_trains_at_an_edge() -> None:
    walk.check(Parallel((VISIT, Train(CLOUD, EPOCH)), at=edge(0)), 12)  # models may meet there
    with refused("plan"):
        walk.check(Parallel((VISIT, Repeat(2, Sequence((VISIT, Train(edge(2), EPOCH)))))), 12)


def test_a_plan_has_no_more_turns_than_can_be_listed_however_many_digits_their_number_has() -> None:
    with refused("plan"):
        walk.check(Repeat(10**5000, VISIT), 12)


def test_visits_to_the_cloud_are_counted() -> None:
    # 2 · (1 + 3 · 1) + 1; visits to devices and choices count nothing
    cloud = Train(CLOUD, EPOCH)
    twice = Repeat(2, Parallel((cloud, VISIT, Repeat(3, cloud, tick=False))))
    assert walk.visits(Sequence((twice, cloud, Select("uniform", (1,), 1, EPOCH))), cloud=True)[-1] == 9


def test_what_a_plan_became_is_put_back() -> None:
    select = Select("uniform", (1, 2), 1, EPOCH)
    one = star((1,))
    other = star((2,))
    chain_ = Sequence((VISIT, select))
    turns = Repeat(2, select)
    assert visit_order.rebuilt(chain_, [VISIT, select]) is chain_
    assert visit_order.rebuilt(turns, [select, select]) is turns
    assert visit_order.rebuilt(chain_, [VISIT, one]) == Sequence((VISIT, one))
    assert visit_order.rebuilt(turns, [one, star((1,))]) == Repeat(2, one)
    assert visit_order.rebuilt(turns, [one, other]) == Sequence((Repeat(1, one), Repeat(1, other)))
    assert visit_order.rebuilt(replace(turns, tick=False), [one, other]) == Sequence((one, other))


def test_a_field_is_known_by_name_or_at_its_default() -> None:
    work = Work(steps=1, settings={"mu": 1.0})
    assert work.only("steps", "settings")
    assert not work.only("steps")
    assert only(Parallel((), settings={}), "children")
    assert not only(Parallel(()))  # what has no default is always set
    for part in (work, Parallel(()), VISIT, Select("uniform", (1, 2), 1, EPOCH), Repeat(2, VISIT)):
        names = tuple(one.name for one in fields(part))
        assert only(part, *names)
        assert only(extended(part, 0.0), *names)
        assert not only(extended(part), *names)


def test_a_plan_that_is_resolved_keeps_unknown_fields() -> None:
    select = Select("uniform", (1, 2), 1, EPOCH, edge(1), "equal", {"q": 1})
    chosen = schedule.visits(select, (2,))
    assert chosen == Parallel((Train(device(2), EPOCH),), edge(1), "equal", {"q": 1})
    for around in (extended(Parallel((select,))), extended(Sequence((select,)))):
        assert schedule.resolved(around, iter([(2,)])) == replace(around, children=(chosen,))
    turns = schedule.resolved(extended(Repeat(2, select)), iter([(1,), (2,)]))
    assert [turn.added for turn in turns.children] == [1.0, 1.0]  # type: ignore[union-attr]


# -- laws ------------------------------------------------------------------------------------------------------------


@given(plans, st.integers(1, 4))
def test_repeating_multiplies(plan: Node, times: int) -> None:
    again = Repeat(times, plan, tick=False)
    assert walk.span(again) == times * walk.span(plan)
    assert walk.batches(again, held) == times * walk.batches(plan, held)
    assert walk.visits(again) == Counter({k: times * n for k, n in walk.visits(plan).items()})
    assert walk.devices(again) == walk.devices(plan)


@given(plans, plans)
def test_chains_add_and_branches_take_the_longest(one: Node, other: Node) -> None:
    both = (one, other)
    assert walk.span(Sequence(both)) == walk.span(one) + walk.span(other)
    assert walk.span(Parallel(both)) == max(walk.span(one), walk.span(other))
    for joined in (Sequence(both), Parallel(both)):
        assert walk.visits(joined) == walk.visits(one) + walk.visits(other)
        assert walk.batches(joined, held) == walk.batches(one, held) + walk.batches(other, held)
        assert walk.devices(joined) == walk.devices(one) | walk.devices(other)


@given(plans)
def test_who_is_visited_is_named(plan: Node) -> None:
    assert set(walk.visits(plan)) <= walk.devices(plan)


@given(plans)
def test_a_park_must_have_the_devices_that_are_named(plan: Node) -> None:
    named = walk.devices(plan)
    walk.check(plan, max(named, default=0) + 1)
    if named:
        with refused("plan"):
            walk.check(plan, max(named))
