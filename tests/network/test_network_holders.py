"""Who holds the model's frozen part, what those who do not pull, and what a visit of a part computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfloor.network.payload import Payload
from fedfloor.network.price import Price, price
from fedfloor.network.profile import LinkClass, NetworkProfile
from fedfloor.plan.nodes import CLOUD, Broadcast, Node, Parallel, Probe, Repeat, Sequence, Train, Work, edge
from priced import BYTES, FACTORY_OF, chain, far, near, network, networks, priced, scoped, standing, star, visit

MANY = settings(max_examples=150, deadline=None)
PART = Work(epochs=1, trains="classifier")  # 10 bytes: 0.05 s down, 0.1 s up; what is missing, 990 bytes, takes 4.95 s
LACK = BYTES - 10
WORK_S = 16 / 3  # the way forward alone
EVERY = frozenset(range(len(FACTORY_OF)))


def calibration(*devices: int) -> Parallel:
    return Parallel(tuple(visit(k, PART) for k in devices))


def rounds(*plans: Node, on: NetworkProfile | None = None) -> list[Price]:
    """Prices of rounds, one after the other."""
    found = list[Price]()
    holders = frozenset[int]()
    for plan in plans:
        found.append(priced(plan, on, holders=holders))
        holders = found[-1].holders
    return found


def down(cost: Price) -> int:
    return cost.bytes["device_edge_down"]


# -- who pulls ---------------------------------------------------------------------------------------------------------


def test_the_first_visit_pulls_and_the_next_does_not() -> None:
    first, second = rounds(calibration(0, 3), calibration(0, 3))
    assert first.seconds == first.visits[0] == pytest.approx(0.05 + 4.95 + WORK_S + 0.1, rel=1e-12)
    assert second.seconds == pytest.approx(0.05 + WORK_S + 0.1, rel=1e-12)
    links = ("device_edge_down", "edge_cloud_down"), ("device_edge_up", "edge_cloud_up")
    assert first.bytes == dict.fromkeys(links[0], 2 * BYTES) | dict.fromkeys(links[1], 20)
    assert second.bytes == dict.fromkeys(sum(links, ()), 20)
    assert first.holders == second.holders == {0, 3}
    assert first.critical.transfer_s == pytest.approx(0.05 + 4.95 + 0.1, rel=1e-12)


def test_whom_a_round_leaves_with_the_model() -> None:
    found = rounds(
        Sequence((star(0, 1, 3), Broadcast((0, 1)))),  # handed to two of the three
        calibration(0, 1),
        calibration(0, 1, 3),  # one comes late
        calibration(0, 1, 3),
        star(0, 1),  # changes the model, and nobody is handed it
        calibration(0),
        Sequence((star(0, 1), Broadcast((0,), "classifier"))),  # only the classifier is handed out
        calibration(0),
    )
    pulls = [0, 0, 1, 0, 0, 1, 0, 1]
    own = [3 * BYTES + 2 * BYTES, 20, 30, 30, 2 * BYTES, 10, 2 * BYTES + 10, 10]
    assert [down(one) for one in found] == [a + n * LACK for a, n in zip(own, pulls, strict=True)]
    whom: list[set[int]] = [{0, 1}, {0, 1}, {0, 1, 3}, {0, 1, 3}, set(), {0}, set(), {0}]
    assert [one.holders for one in found] == whom


def test_a_question_that_the_model_goes_along_with_leaves_it_there() -> None:
    asked, told = rounds(Probe((0, 1), "loss"), calibration(0, 1, 2))
    assert asked.holders == {0, 1}
    assert down(told) == 30 + LACK
    assert rounds(Probe((0, 1), "census"))[0].holders == set()


def test_in_one_plan_as_in_rounds() -> None:
    # the device that was just handed the model is not sent the classifier either
    plan = Sequence((star(0, 1), Broadcast((0, 1)), calibration(0, 1, 3), calibration(0, 1, 3)))
    found = priced(plan)
    assert down(found) == 2 * BYTES + 2 * BYTES + (10 + LACK) + 30
    assert found.holders == {0, 1, 3}


def test_what_a_branch_hands_out_is_not_what_the_branches_make() -> None:
    one, other = visit(3), Sequence((visit(0), Broadcast((0, 1))))
    for branches in ((one, other), (other, one)):
        assert priced(Parallel(branches), holders=EVERY).holders == set()
    assert priced(Parallel((Sequence((visit(0, PART), Broadcast((1,)))), visit(3, PART)))).holders == {0, 1, 3}


def test_the_cloud_needs_to_pull_nothing_and_changes_the_model() -> None:
    there = priced(Train(CLOUD, PART), holders=EVERY)
    assert (there.bytes, there.holders) == ({}, EVERY)
    assert priced(Train(CLOUD, Work(epochs=1)), holders=EVERY).holders == set()


def test_plans_without_visits_leave_it_as_it_is() -> None:
    for plan in (Sequence(()), Probe((0,), "census"), Broadcast((0,), "classifier")):
        assert priced(plan, holders=frozenset({4})).holders == {4}
    assert priced(Broadcast((0,)), holders=frozenset({4})).holders == {0, 4}


# -- when, and from where ----------------------------------------------------------------------------------------------


def test_in_a_chain_a_device_pulls_when_the_packet_has_come() -> None:
    # cloud → 0 → edge → 1 → cloud; both are in factory 0: 0.1 s up to the edge, 0.01 s down to device 1
    for plan in (chain(0, 1), Parallel((chain(0, 1),))):
        part = Sequence((visit(0, PART), visit(1, PART)))
        found = priced(part if isinstance(plan, Sequence) else Parallel((part,)))
        first = 0.05 + 4.95 + WORK_S
        second = 0.02 + 0.01 + 4.95 + WORK_S
        assert found.seconds == pytest.approx(first + second + 0.1, rel=1e-12)
        assert found.bytes["edge_cloud_down"] == 10 + 2 * LACK
        assert down(found) == 2 * BYTES


def test_devices_that_pull_take_turns() -> None:
    # one link of 1 s down and 2 s up for 1000 bytes. Both are sent the classifier, then both ask for the rest
    on = network({"cycles_per_bit": 0.0}, device_edge=near(sharing="serial"), edge_cloud=LinkClass())
    found = priced(calibration(0, 1), on, trace=True)
    assert [move.bytes for move in found.moves if move.link == "device_edge_down"] == [10, 10, LACK, LACK]
    assert found.seconds == pytest.approx(2 * 0.01 + 2 * 0.99 + 2 * 0.02, rel=1e-12)


def test_of_two_that_pull_at_once_the_device_of_the_lower_number_comes_first() -> None:
    # both have just been handed the classifier, 0.03 s, in chains that devices 0 and 1 began; the line takes turns
    chains = [Sequence((visit(a, PART), visit(b, PART))) for a, b in ((0, 3), (1, 2))]
    on = network(edge_cloud=far(sharing="serial", up_bps=None, downlink="multicast"))
    found = priced(Parallel(tuple(chains)), on, (0,) * 4, holders=frozenset({0, 1}))
    assert found.visits[3] == pytest.approx(0.03 + 4.95 + WORK_S + 0.02, rel=1e-12)
    assert found.visits[1] == pytest.approx(found.visits[3] + 4 * 0.99, rel=1e-12)


def test_each_pulls_by_itself_where_one_transmission_serves_all() -> None:
    on = network(device_edge=near(downlink="multicast"), edge_cloud=far(downlink="multicast"))
    assert down(priced(calibration(0, 1), on)) == 10 + 2 * LACK
    assert down(priced(calibration(0, 1), on, holders=EVERY)) == 10


def test_the_first_visit_in_plan_order_pulls() -> None:
    # device 1 is visited twice: in the first branch after device 0, in the second at once; the first branch's pulls
    slow = Sequence((visit(0, PART), visit(1, PART)))
    quick = visit(1, PART)
    one, other = (priced(Parallel(branches)) for branches in ((slow, quick), (quick, slow)))
    assert one.visits[2] == pytest.approx(0.05 + WORK_S + 0.1, rel=1e-12)
    assert other.visits[0] == pytest.approx(0.05 + 4.95 + WORK_S + 0.1, rel=1e-12)
    assert one.bytes == other.bytes


def test_a_visit_that_the_whole_model_comes_to_pulls_nothing() -> None:
    # what device 0 trained goes on to device 1 whole, as it is not in the cloud yet
    found = priced(Sequence((visit(0), visit(1, PART))))
    assert (down(found), found.holders) == (2 * BYTES, {1})
    # what it made goes to the edge where models meet next, and the rest comes from there
    found = priced(Sequence((visit(0), Parallel((visit(1, PART),), at=edge(0)))))
    assert (found.bytes["edge_cloud_down"], down(found)) == (BYTES, BYTES + 10 + LACK)
    # from an edge where models met, the rest comes from there: also when the packet has gone on with the classifier
    met = Parallel((visit(0),), at=edge(0))
    found = priced(Sequence((met, Parallel((Sequence((visit(0, PART), visit(1, PART))),), at=edge(0)))))
    assert found.bytes["edge_cloud_down"] == BYTES
    assert down(found) == BYTES + 2 * (10 + LACK)
    # where one transmission serves both of them, too; and where the classifier alone had gone to the edge before that
    part = Parallel((visit(0, PART), visit(1, PART)), at=edge(0))
    found = priced(Sequence((met, part)), network(device_edge=near(downlink="multicast")))
    assert (found.bytes["edge_cloud_down"], down(found)) == (BYTES, BYTES + 10 + 2 * LACK)
    before = Parallel((visit(0, PART),), at=edge(0))
    assert priced(Sequence((before, met, part)), holders=EVERY).bytes["edge_cloud_down"] == 10


def test_a_classifier_that_is_the_whole_model_leaves_nothing_to_pull() -> None:
    found = price(calibration(0, 1), standing(network()), Payload({"all": BYTES, "classifier": BYTES}), trace=True)
    assert len(found.moves) == 2 * 4
    assert down(found) == 2 * BYTES


# -- laws --------------------------------------------------------------------------------------------------------------

_some = st.frozensets(st.sampled_from(sorted(EVERY)))
_steps = st.one_of(
    st.tuples(st.just("all"), _some), st.tuples(st.just("classifier"), _some), st.tuples(st.just("hand"), _some),
    st.tuples(st.just("ask"), _some),
)  # fmt: skip


@MANY
@given(st.lists(_steps, max_size=8))
def test_bytes_down_are_those_of_a_set_kept_by_hand(steps: list[tuple[str, frozenset[int]]]) -> None:
    held: set[int] = set()
    holders = frozenset[int]()
    for what, devices in steps:
        order = tuple(sorted(devices))
        if what == "all":
            plan: Node = star(*order)
            size = BYTES * len(devices)
            held = set() if devices else held
        elif what == "classifier":
            plan = calibration(*order)
            size = 10 * len(devices) + LACK * len(devices - held)
            held |= devices
        else:
            plan = Broadcast(order) if what == "hand" else Probe(order, "gradient")
            size = BYTES * len(devices)
            held |= devices
        found = priced(plan, holders=holders)
        holders = found.holders
        assert holders == held
        assert found.bytes.get("device_edge_down", 0) == size


@MANY
@given(scoped, scoped, _some, networks(), networks())
def test_who_holds_it_hangs_on_the_plan_alone(
    one: Node, other: Node, held: frozenset[int], on: NetworkProfile, elsewhere: NetworkProfile
) -> None:
    # not on the network, on how plans are put together, or on how often a plan is repeated
    after = priced(one, on, holders=held).holders
    assert after == priced(one, elsewhere, holders=held).holders
    last = priced(other, on, holders=after).holders
    assert last == priced(Sequence((one, other)), on, holders=held).holders
    assert priced(Repeat(2, one), on, holders=held).holders == priced(one, on, holders=after).holders == after
    assert after == priced(one, on).holders or after == priced(one, on).holders | held


@MANY
@given(scoped, networks(sharing=("dedicated",)))
def test_to_hold_it_never_costs_more(plan: Node, on: NetworkProfile) -> None:
    stale = priced(plan, on)
    fresh = priced(plan, on, holders=EVERY)
    for link, size in fresh.bytes.items():
        assert size <= stale.bytes[link]
    assert fresh.seconds <= stale.seconds * (1 + 1e-12)


# -- computing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "passes"),
    [
        (PART, 1 / 3),
        (replace(PART, epochs=5), 1 / 3),  # the features are the same in every pass
        (Work(steps=2, batch_size=16, trains="classifier"), 1 / 6),  # 32 of 64 samples
        (Work(steps=9, batch_size=16, trains="classifier"), 1 / 3),
        (Work(epochs=5), 5.0),
        (Work(steps=9, batch_size=16), 2.25),
    ],
)
def test_features_are_extracted_once_per_visit(work: Work, passes: float) -> None:
    there = standing(network(cloud_clock_hz=2.0))
    assert there.passes(0, work) == pytest.approx(passes, rel=1e-15)
    # the cloud holds the data of all, six times 16 cycles, and 384 samples
    whole = work.passes(384) if work.trains == "all" else min(1.0, work.passes(384)) / 3
    assert there.cloud_s(work) == pytest.approx(whole * 6 * 16 / 2, rel=1e-15)
    free = NetworkProfile(device_edge=LinkClass(), edge_cloud=LinkClass(), devices=network().devices)
    assert priced(visit(0, work), free).critical.compute_s == pytest.approx(16 * passes, rel=1e-15)
    assert priced(visit(0, work), free).visits == (pytest.approx(16 * passes, rel=1e-15),)
