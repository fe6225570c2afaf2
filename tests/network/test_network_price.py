"""Prices of small plans, counted by hand (tests/support/priced.py: 1 s and 2 s near, 4 s and 8 s far, 16 s a pass)."""

from __future__ import annotations

import pytest

from fedfloor.network.price import Price, PriceWalk
from fedfloor.network.profile import LinkClass
from fedfloor.plan.nodes import (
    CLOUD,
    Broadcast,
    Parallel,
    Probe,
    Repeat,
    Sequence,
    Train,
    Work,
    edge,
)
from floor import extended
from priced import BYTES, EPOCH, chain, far, near, network, priced, star, visit

NEAR = {"device_edge_down": BYTES, "device_edge_up": BYTES}
FAR = {"edge_cloud_down": BYTES, "edge_cloud_up": BYTES}
FREE = LinkClass()


def went(cost: Price) -> tuple[float, float, float]:
    return cost.critical.compute_s, cost.critical.transfer_s, cost.critical.wait_s


# -- visits and chains -------------------------------------------------------------------------------------------------


def test_one_visit() -> None:
    # 4 + 1 down, 16 of training, 2 + 8 up
    found = priced(visit(0))
    assert found.seconds == 31
    assert found.bytes == NEAR | FAR
    assert found.visits == (31,)
    assert found.critical.visits == (0,)
    assert went(found) == (16, 15, 0)


def test_epochs_and_steps() -> None:
    # 3 passes; 2 steps of 16 of 64 samples are half a pass
    assert priced(visit(0, Work(epochs=3))).seconds == 15 + 48
    assert priced(visit(0, Work(steps=2, batch_size=16))).seconds == 15 + 8


def test_a_chain_within_a_factory_is_relayed_by_its_edge() -> None:
    # 4 + 1, 16, up to the edge 2 and down 1, 16, 2 + 8
    found = priced(chain(0, 1))
    assert found.seconds == 5 + 16 + 3 + 16 + 10
    assert found.bytes == {"device_edge_down": 2 * BYTES, "device_edge_up": 2 * BYTES} | FAR
    # the first result was at device 1 after 5 + 16 + 3; the model set out for device 1 at 21 and was back at 50
    assert found.visits == (24, 29)
    assert found.critical.visits == (0, 1)


def test_a_chain_across_factories_goes_over_the_cloud() -> None:
    # device 3 stands in factory 1: 2 + 8 up and 4 + 1 down in between
    found = priced(chain(0, 3))
    assert found.seconds == 5 + 16 + 15 + 16 + 10
    assert found.bytes == {link: 2 * size for link, size in (NEAR | FAR).items()}


def test_devices_that_talk_directly() -> None:
    # 1,000 bytes at 16 kbit/s are 0.5 s; across factories there is no such link
    on = network(device_device=LinkClass(up_bps=16000.0))
    assert priced(chain(0, 1), on).seconds == 5 + 16 + 0.5 + 16 + 10
    assert priced(chain(0, 1), on).bytes == {"device_device_up": BYTES} | NEAR | FAR
    assert priced(chain(0, 3), on).seconds == 5 + 16 + 15 + 16 + 10


def test_staying_costs_nothing() -> None:
    assert priced(chain(0, 0)).seconds == 5 + 32 + 10
    assert priced(chain(0, 0)).visits == (21, 26)  # stays there; 16 more and 10 up


def test_a_route_that_is_direct() -> None:
    # 8,000 bits at 16 kbit/s down and 800 bit/s up: 0.5 s and 10 s
    on = network(route="direct", device_cloud=LinkClass(up_bps=800.0, down_bps=16000.0))
    found = priced(visit(0), on)
    assert found.seconds == 0.5 + 16 + 10
    assert found.bytes == {"device_cloud_down": BYTES, "device_cloud_up": BYTES}
    # within a factory the base station still relays, 2 + 1; across factories the cloud does, 10 + 0.5
    assert priced(chain(0, 1), on).seconds == 0.5 + 16 + 3 + 16 + 10
    assert priced(chain(0, 3), on).seconds == 0.5 + 16 + 10.5 + 16 + 10
    # a meeting at the edge: 4 down to it, 1, 16, 2 and 8 up
    assert priced(star(0, at=edge(0)), on).seconds == 31
    # a device of another factory: from edge 0 to device 3 over the cloud, 8 + 0.5, and back 10 + 4
    assert priced(star(3, at=edge(0)), on).seconds == 4 + 8.5 + 16 + 14 + 8


def test_latency_is_added_to_every_hop_and_occupies_nothing() -> None:
    late = network(device_edge=near(latency_s=0.25), edge_cloud=far(latency_s=0.5))
    assert priced(visit(0), late).seconds == 31 + 1.5
    # with turns: downs 0–1, 1–2, there at 1.25, 2.25; ups from 17.25: 17.25–19.25–21.25, there at 21.5
    shared = network(device_edge=near(latency_s=0.25, sharing="serial"), edge_cloud=FREE)
    assert priced(star(0, 1), shared).seconds == 21.5


def test_a_link_without_a_rate_takes_no_time() -> None:
    found = priced(visit(0), network(edge_cloud=FREE))
    assert found.seconds == 1 + 16 + 2
    assert found.bytes == NEAR | FAR


def test_the_cloud_trains() -> None:
    # nothing moves; its clock is not known: no time
    assert priced(Train(CLOUD, EPOCH)).seconds == 0
    assert priced(Train(CLOUD, EPOCH)).bytes == {}
    # 6 devices of 16 bits and 1 cycle each, twice, at 4 Hz
    found = priced(Train(CLOUD, Work(epochs=2)), network(cloud_clock_hz=4.0))
    assert found.seconds == 2 * 6 * 16 / 4
    assert found.visits == (48.0,)
    assert found.critical.visits == (-1,)
    # 6 · 64 samples: 24 steps of 16 are a pass
    assert priced(Train(CLOUD, Work(steps=24, batch_size=16)), network(cloud_clock_hz=4.0)).seconds == 24
    # after a chain it trains on what came up
    assert (
        priced(Sequence((visit(0), Train(CLOUD, EPOCH), visit(0))), network(cloud_clock_hz=4.0)).seconds == 31 + 24 + 31
    )


# -- copies ------------------------------------------------------------------------------------------------------------


def test_copies_end_with_the_latest() -> None:
    found = priced(Parallel((visit(0), visit(3, Work(epochs=2)))))
    assert found.seconds == 15 + 32
    assert found.visits == (31, 47)
    assert found.critical.visits == (3,)
    assert found.bytes == {link: 2 * size for link, size in (NEAR | FAR).items()}


def test_a_meeting_at_an_edge() -> None:
    # 4 down to the edge, 1 + 16 + 2 with the devices, 8 up
    found = priced(star(0, 1, 2, at=edge(0)))
    assert found.seconds == 4 + 19 + 8
    assert found.visits == (19, 19, 19)
    assert found.bytes == {link: 3 * size for link, size in NEAR.items()} | FAR


def test_edge_rounds() -> None:
    # HierFAVG: two factories, two averages at each edge: 4 + 2·19 + 8
    rounds = tuple(Repeat(2, star(*ks, at=edge(m)), tick=False) for m, ks in enumerate([(0, 1), (3, 4)]))
    found = priced(Parallel(rounds))
    assert found.seconds == 50
    assert found.bytes == {link: 8 * size for link, size in NEAR.items()} | {
        link: 2 * size for link, size in FAR.items()
    }
    assert found.critical.visits in ((0, 0), (3, 3))


def test_meetings_within_meetings() -> None:
    # the copy of device 5 waits for nobody: 31; edge 0: 4 + 19 + 8 = 31; the chain after it: + 31; all at the cloud
    plan = Sequence((Parallel((star(0, 1, at=edge(0)), visit(5))), visit(2)))
    found = priced(plan)
    assert found.seconds == 62
    assert found.visits == (19, 19, 31, 31)
    assert found.critical.visits[-1] == 2
    # a meeting at the edge in a chain at the edge: the packet stays there in between
    plan = Parallel((Sequence((star(0, 1, at=edge(0)), visit(2), star(0, at=edge(0)))),), at=edge(0))
    assert priced(plan).seconds == 4 + 19 + 19 + 19 + 8


def test_a_ring_within_a_meeting() -> None:
    # FedSR: two laps over 0, 1: 5 + 16 + 3·(3 + 16) + 10
    found = priced(Parallel((Repeat(2, chain(0, 1), tick=False), Repeat(2, chain(3, 4), tick=False))))
    assert found.seconds == 5 + 16 + 57 + 10
    assert found.bytes == {link: 8 * size for link, size in NEAR.items()} | {
        link: 2 * size for link, size in FAR.items()
    }


@pytest.mark.parametrize("tick", [False, True])
def test_a_repeat_is_its_turns_written_out(tick: bool) -> None:
    child = Parallel((chain(0, 3), star(1, 2, at=edge(0)), visit(4)))
    on = network(device_edge=near(sharing="serial"), edge_cloud=far(sharing="serial", over="park"))
    assert priced(Repeat(3, child, tick), on) == priced(Sequence((child, child, child)), on)


def test_a_visit_with_a_field_that_is_not_known_takes_no_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = star(0, 1, 3)
    whole = priced(star(0, 1, 3))
    monkeypatch.delattr(PriceWalk, "_round_trip")
    with pytest.raises(AttributeError):
        priced(plan)
    assert priced(Parallel(tuple(extended(one) for one in plan.children))) == whole


def test_no_branches_no_devices() -> None:
    empty = (Parallel(()), Sequence(()), Broadcast(()), Probe((), "census"), Parallel((Sequence(()),)))
    assert [priced(one).seconds for one in empty] == [0.0] * 5
    assert priced(Parallel((), at=edge(0))).seconds == 12  # the packet goes there all the same


# -- scopes ------------------------------------------------------------------------------------------------------------


def test_what_travels_has_the_size_of_its_scope() -> None:
    # 10 bytes are a hundredth of the packet: 0.05 s down, a third of 16, 0.1 s up; in a chain without a meeting, too
    part = Work(epochs=1, trains="classifier")
    for plan in (Parallel((visit(0, part),)), visit(0, part), Parallel((Sequence((visit(0, part),)),))):
        found = priced(plan, holders=frozenset({0}))
        assert found.seconds == pytest.approx(16 / 3 + 0.15, abs=1e-12)
        assert set(found.bytes.values()) == {10}
    assert priced(star(0, at=edge(0))).bytes == NEAR | FAR
    near = Parallel((visit(0, part),), at=edge(0))
    assert set(priced(near, holders=frozenset({0})).bytes.values()) == {10}


def test_branches_of_two_scopes() -> None:
    # each branch brings its own size up; multicast down is as large as the largest needs
    plan = Parallel((visit(0, Work(epochs=1, trains="classifier")), visit(1)))
    known = frozenset({0})
    assert priced(plan, holders=known).bytes == dict.fromkeys(NEAR | FAR, BYTES + 10)
    cast = network(device_edge=near(downlink="multicast"), edge_cloud=far(downlink="multicast"))
    assert priced(plan, cast, holders=known).bytes == {
        "device_edge_down": BYTES, "device_edge_up": BYTES + 10, "edge_cloud_down": BYTES, "edge_cloud_up": BYTES + 10,
    }  # fmt: skip


# -- handing out and asking --------------------------------------------------------------------------------------------


def test_handing_out() -> None:
    found = priced(Broadcast((0, 3, 4)))
    assert found.seconds == 5
    assert found.bytes == {"device_edge_down": 3 * BYTES, "edge_cloud_down": 3 * BYTES}
    assert priced(Broadcast((0, 3, 4), "classifier")).bytes == {"device_edge_down": 30, "edge_cloud_down": 30}
    # from where the packet stands: from device 0 it goes up and down again, to itself not at all; then up from there
    found = priced(Sequence((visit(0), Broadcast((0, 1)))))
    assert found.seconds == 5 + 16 + 3 + 10
    assert found.visits == (5 + 16 + 3 + 10,)


def test_who_was_handed_the_model_is_not_sent_it_again() -> None:
    # 5 to hand out, then 16 and 10 up; device 1 was not handed it: 5 down
    assert priced(Sequence((Broadcast((0,)), visit(0)))).seconds == 5 + 16 + 10
    found = priced(Sequence((Broadcast((0,)), star(0, 1))))
    assert found.seconds == 5 + 31
    assert found.visits == (26, 31)
    # so it is if they meet at an edge, and if the edge is one branch of many: 5, then 4 to the edge
    assert priced(Sequence((Broadcast((0,)), star(0, at=edge(0))))).seconds == 5 + 4 + 16 + 2 + 8
    assert priced(Sequence((Broadcast((0,)), Parallel((star(0, at=edge(0)),))))).seconds == 5 + 4 + 16 + 2 + 8
    # but not if only a part was handed out, nor once the model has been trained
    assert priced(Sequence((Broadcast((0,), "classifier"), visit(0)))).seconds == pytest.approx(0.05 + 31)
    assert priced(Sequence((Broadcast((0,)), visit(1), visit(0)))).seconds == 5 + 5 + 16 + 3 + 16 + 10
    assert priced(Sequence((Broadcast((0,)), star(1), visit(0)))).seconds == 5 + 31 + 31


def test_a_branch_that_begins_by_asking_or_handing_out_begins_where_the_copies_set_out() -> None:
    for cast in ("unicast", "multicast"):
        on = network(device_edge=near(downlink=cast), edge_cloud=far(downlink=cast))
        assert priced(Parallel((Sequence((Broadcast((1,)), visit(0))),)), on).seconds == 5 + 31
        assert (
            priced(Parallel((Sequence((Probe((1,), "census"), visit(0))),)), on).bytes["device_edge_up"] == BYTES + 40
        )


def test_a_census_goes_up_only() -> None:
    # 40 bytes are 320 bits: 0.08 s at 4 kbit/s, 0.32 s at 1 kbit/s
    found = priced(Probe((0, 3), "census"))
    assert found.seconds == pytest.approx(0.4, abs=1e-12)
    assert found.bytes == {"device_edge_down": 0, "device_edge_up": 80, "edge_cloud_down": 0, "edge_cloud_up": 80}


def test_a_loss_takes_the_model_and_a_pass_forward() -> None:
    # 5 down, half a pass (as the payload says), 4 bytes up: 0.008 + 0.032 s
    found = priced(Probe((0,), "loss"))
    assert found.seconds == pytest.approx(5 + 8 + 0.04, abs=1e-12)
    # who was asked with the model holds it: q-FFL's round then needs no model down
    found = priced(Sequence((Probe((0, 1), "loss"), star(0, 1))))
    assert found.seconds == pytest.approx(13.04 + 26)
    assert found.bytes["device_edge_down"] == 2 * BYTES
    # a gradient is as large as the model: FEDL's round is 31 and 26
    assert priced(Sequence((Probe((0,), "gradient"), star(0)))).seconds == 57


def test_who_holds_the_model_is_still_asked_what_is_not_the_model() -> None:
    late = network(edge_cloud=far(latency_s=100.0))
    # 105 to hand it out; the question needs 100 down, and the answer 100.4 up
    assert priced(Sequence((Broadcast((0,)), Probe((0,), "census"))), late).seconds == pytest.approx(105 + 200.4)
    # a question that is the model does not
    assert priced(Sequence((Broadcast((0,)), Probe((0,), "loss"))), late).seconds == pytest.approx(105 + 8 + 100.04)


def test_answers_meet_where_the_probe_says() -> None:
    # asked from the cloud, 5, 8; 0.008 up to edge 0; the packet stays at the cloud
    assert priced(Probe((0,), "loss", at=edge(0))).seconds == pytest.approx(13.008)
