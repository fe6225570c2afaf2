"""Prices where links take turns, energy, and what cannot be priced; counted by hand (see tests/support/priced.py)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedfloor.network.payload import Payload
from fedfloor.network.price import Price, price
from fedfloor.network.profile import Devices, LinkClass, NetworkProfile, RadioModel
from fedfloor.plan.nodes import (
    CLOUD,
    Broadcast,
    Parallel,
    Probe,
    Select,
    Sequence,
    Train,
    Work,
    edge,
)
from priced import BYTES, EPOCH, PASS, PAYLOAD, chain, far, near, network, priced, standing, star, visit
from refusals import refused

FREE = LinkClass()


def went(cost: Price) -> tuple[float, float, float]:
    return cost.critical.compute_s, cost.critical.transfer_s, cost.critical.wait_s


# -- who waits for whom ------------------------------------------------------------------------------------------------


def test_a_cell_takes_turns() -> None:
    # downs 0–1, 1–2; trained at 17, 18; ups 17–19, 19–21: the second waits 1 + 1
    found = priced(star(0, 1), network(device_edge=near(sharing="serial"), edge_cloud=FREE))
    assert found.seconds == 21
    assert found.visits == (19, 21)
    assert found.critical.visits == (1,)
    assert went(found) == (16, 3, 2)
    # another cell has turns of its own
    assert priced(star(0, 1, 3), network(device_edge=near(sharing="serial"), edge_cloud=FREE)).seconds == 21


def test_a_park_takes_turns() -> None:
    # downs 0–1–2–3, ups from 17: 17–19–21–23
    assert (
        priced(star(0, 1, 3), network(device_edge=near(sharing="serial", over="park"), edge_cloud=FREE)).seconds == 23
    )


def test_full_and_half_duplex() -> None:
    # half a second of training: device 0 is done at 1.5, while device 1 is sent to, 1–2. In turns: ups 2–4, 4–6;
    # with a band for each direction: 1.5–3.5–5.5
    quick = {**PASS, "data_bits": 0.5}
    for duplex, seconds in (("half", 6.0), ("full", 5.5)):
        on = network(quick, device_edge=near(sharing="serial", duplex=duplex), edge_cloud=FREE)
        assert priced(star(0, 1), on).seconds == seconds


def test_one_transmission_for_a_cell() -> None:
    # down 0–1 for both, ups 17–19–21
    on = network(device_edge=near(sharing="serial", downlink="multicast"), edge_cloud=FREE)
    found = priced(star(0, 1), on)
    assert found.seconds == 21
    assert found.visits == (19, 21)
    assert found.bytes["device_edge_down"] == BYTES
    assert found.bytes["edge_cloud_down"] == BYTES  # one copy goes to the edge, for all that it serves
    assert went(found) == (16, 3, 2)


@pytest.mark.parametrize(
    ("near_cast", "far_cast", "near_bytes", "far_bytes"),
    [
        ("unicast", "unicast", 5, 5),
        ("unicast", "multicast", 5, 1),  # one for the park over the far link, then a copy for each device
        ("multicast", "unicast", 2, 2),  # a copy for each of the two cells
        ("multicast", "multicast", 2, 1),
    ],
)
def test_copies_on_each_link(near_cast: str, far_cast: str, near_bytes: int, far_bytes: int) -> None:
    on = network(device_edge=near(downlink=near_cast), edge_cloud=far(downlink=far_cast))
    found = priced(star(0, 1, 2, 3, 4), on)
    assert found.bytes["device_edge_down"] == near_bytes * BYTES
    assert found.bytes["edge_cloud_down"] == far_bytes * BYTES
    assert found.bytes["device_edge_up"] == found.bytes["edge_cloud_up"] == 5 * BYTES
    assert found.seconds == 31
    assert found.visits == (31,) * 5  # also of who is sent to together with others
    handed = priced(Broadcast((0, 1, 2, 3, 4)), on).bytes
    assert handed == {"device_edge_down": near_bytes * BYTES, "edge_cloud_down": far_bytes * BYTES}


def test_from_the_cloud_one_transmission_serves_what_shares_the_link() -> None:
    # edges 0 and 1: over the park one of 4 s; where each cell has a line of its own, one each
    for over, count in (("park", 1), ("cell", 2)):
        on = network(device_edge=FREE, edge_cloud=far(sharing="serial", over=over, downlink="multicast"))
        assert priced(Broadcast((0, 1, 3)), on).bytes["edge_cloud_down"] == count * BYTES
        on = network(route="direct", device_cloud=far(sharing="serial", over=over, downlink="multicast"))
        assert priced(Broadcast((0, 1, 3)), on).bytes == {"device_cloud_down": count * BYTES}


def test_who_holds_the_model_is_left_out_of_a_multicast() -> None:
    on = network(device_edge=near(downlink="multicast"), edge_cloud=FREE)
    found = priced(Sequence((Broadcast((0,)), star(0, 1))), on)
    assert found.visits == (18, 19)
    assert found.bytes["device_edge_down"] == 2 * BYTES


def test_ties_go_by_device() -> None:
    on = network(device_edge=near(sharing="serial"), edge_cloud=FREE)
    found = priced(star(2, 0, 1), on, trace=True)
    near_only = [move for move in found.moves if move.resource >= 0]
    assert [(m.device, m.start_s) for m in near_only] == [(0, 0), (1, 1), (2, 2), (0, 17), (1, 19), (2, 21)]
    # on the way from edges to the cloud, too: copies go down in no time and come back at the same moment
    line = network(device_edge=near(down_bps=None), edge_cloud=far(down_bps=None, sharing="serial", over="park"))
    assert priced(star(5, 3, 0), line).visits == (16 + 2 + 24, 16 + 2 + 16, 16 + 2 + 8)
    # two chains of which the second stations ask at the same time, each for another device than it began with
    plan = Parallel((chain(0, 4), chain(3, 1)))
    both = network(device_edge=near(sharing="serial", downlink="multicast"), device_device=LinkClass())
    hops = [m for m in priced(plan, both, (0,) * 6, trace=True).moves if m.link == "device_edge_up"]
    assert [m.device for m in hops] == [1, 4]


def test_the_moves_say_where_they_are() -> None:
    found = priced(star(3, at=edge(1)), trace=True)
    assert [(m.link, m.cell, m.start_s, m.end_s) for m in found.moves] == [
        ("edge_cloud_down", 1, 0, 4), ("device_edge_down", 1, 4, 5),
        ("device_edge_up", 1, 21, 23), ("edge_cloud_up", 1, 23, 31),
    ]  # fmt: skip
    assert priced(star(3)).moves == ()


# -- energy ------------------------------------------------------------------------------------------------------------

POWERS = {"capacitance": 2.0, "transmit_w": 3.0, "receive_w": 5.0, "idle_w": 7.0}


def test_energy_of_a_visit() -> None:
    # receiving 1 s · 5 W, training α/2·cycles·f² = 16 J in 16 s, sending 2 s · 3 W, idle the other 12 of 31 s · 7 W
    found = priced(visit(0), network(POWERS))
    assert found.joules == 5 + 16 + 6 + 84
    assert found.joules_by_device == {0: 111}


def test_energy_of_those_who_wait() -> None:
    # 21 s (see a cell takes turns): both are idle for 21 − 19 s
    found = priced(star(0, 1), network(POWERS, device_edge=near(sharing="serial"), edge_cloud=FREE))
    assert found.joules_by_device == {0: 5 + 16 + 6 + 14, 1: 5 + 16 + 6 + 14}
    # each hears a transmission to both
    cast = near(sharing="serial", downlink="multicast")
    found = priced(star(0, 1), network(POWERS, device_edge=cast, edge_cloud=FREE))
    assert found.joules_by_device == {0: 41, 1: 41}


def test_energy_of_a_chain_and_of_who_is_handed_or_asked() -> None:
    # 50 s: each receives 1, trains 16, sends 2, idles 31
    found = priced(chain(0, 1), network(POWERS))
    assert found.joules_by_device == {0: 27 + 31 * 7, 1: 27 + 31 * 7}
    assert priced(Broadcast((4,)), network(POWERS)).joules_by_device == {4: 5 + 4 * 7}
    # asked for its loss: 13.04 s: receives 1, computes 8 s and 8 J, sends 0.008
    found = priced(Probe((0,), "loss"), network(POWERS))
    assert found.joules == pytest.approx(5 + 8 + 0.024 + (13.04 - 9.008) * 7)
    # directly, 0.5 s: one sends it, the other receives it
    found = priced(
        Sequence((visit(0), visit(1))), network({**POWERS, "idle_w": 0.0}, device_device=LinkClass(up_bps=16000.0))
    )
    assert found.joules_by_device == {0: 5 + 16 + 1.5, 1: 2.5 + 16 + 6}


def test_energy_by_measured_seconds() -> None:
    # 64 samples at 0.125 s are 8 s, at 11 W
    measured = Devices(seconds_per_sample=0.125, compute_w=11.0)
    found = priced(visit(0), replace(network(), devices=measured))
    assert found.seconds == 15 + 8
    assert found.joules == 88


def test_the_cloud_draws_nothing() -> None:
    found = priced(Train(CLOUD, EPOCH), network(POWERS, cloud_clock_hz=1.0))
    assert (found.seconds, found.joules, found.joules_by_device) == (96, 0, {})


def test_a_device_of_two_branches_is_never_idle_for_less_than_nothing() -> None:
    # device 0 trains twice 16 s at the same time: 38 busy seconds of 31
    found = priced(star(0, 0), network(POWERS))
    assert found.joules == 2 * 27


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_what_cannot_be_priced() -> None:
    with refused("unresolved-plan"):
        priced(Parallel((visit(0), Select("uniform", (0, 1), 1, EPOCH))))
    with refused("unknown question to price"):
        priced(Probe((0,), "los"))
    with refused("unknown scope to price"):
        priced(visit(0, Work(epochs=1, trains="extractor")))
    with refused("unknown scope to price"):
        priced(Broadcast((0,), "extractor"))
    radio = network({"distance_m": 10.0}, device_edge=LinkClass(sharing="sinr"), radio=RadioModel())
    with refused("air"):
        priced(visit(0), radio)
    with refused("network.device_edge.sharing"):
        network(
            {"distance_m": 10.0},
            route="direct",
            device_edge=LinkClass(sharing="sinr"),
            device_cloud=LinkClass(),
            radio=RadioModel(),
        )
    with refused("network.route"):
        NetworkProfile(route="direct")


def test_sizes_that_are_not_there_matter_only_where_they_travel() -> None:
    small = Payload({"all": BYTES})
    assert price(visit(0), standing(network()), small).seconds == 31
    with refused("unknown question to price"):
        price(Probe((0,), "census"), standing(network()), small)
    assert np.isclose(price(star(0, 1), standing(network()), PAYLOAD).seconds, 31)
