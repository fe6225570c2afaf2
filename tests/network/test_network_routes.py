"""Which links a packet takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfloor.network.profile import LinkClass, NetworkProfile
from fedfloor.network.sites import Routes
from fedfloor.plan.nodes import CLOUD, Site, device, edge
from priced import far, near, networks

OF = np.array([0, 0, 1])
ANY = st.just(CLOUD) | st.integers(0, 1).map(edge) | st.integers(0, 2).map(device)


def way(start: Site, end: Site, **more: object) -> list[tuple[str, str]]:
    routes = Routes(NetworkProfile(**more), OF)  # type: ignore[arg-type]
    return [(hop.counter, str(hop.to)) for hop in routes.route(start, end).hops]


UP, DOWN = "device_edge_up", "device_edge_down"
WAN_UP = "edge_cloud_up"
WAN_DOWN = "edge_cloud_down"


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (CLOUD, CLOUD, []),
        (CLOUD, edge(1), [(WAN_DOWN, "edge:1")]),
        (CLOUD, device(2), [(WAN_DOWN, "edge:1"), (DOWN, "device:2")]),
        (device(2), CLOUD, [(UP, "edge:1"), (WAN_UP, "cloud")]),
        (edge(0), CLOUD, [(WAN_UP, "cloud")]),
        (edge(0), edge(1), [(WAN_UP, "cloud"), (WAN_DOWN, "edge:1")]),
        (edge(0), device(1), [(DOWN, "device:1")]),
        (edge(0), device(2), [(WAN_UP, "cloud"), (WAN_DOWN, "edge:1"), (DOWN, "device:2")]),
        (device(0), edge(0), [(UP, "edge:0")]),
        (device(0), edge(1), [(UP, "edge:0"), (WAN_UP, "cloud"), (WAN_DOWN, "edge:1")]),
        (device(0), device(1), [(UP, "edge:0"), (DOWN, "device:1")]),
        (device(0), device(2), [(UP, "edge:0"), (WAN_UP, "cloud"), (WAN_DOWN, "edge:1"), (DOWN, "device:2")]),
        (device(1), device(1), []),
    ],
)
def test_the_tree(start: Site, end: Site, expected: list[tuple[str, str]]) -> None:
    assert way(start, end) == expected


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (CLOUD, device(2), [("device_cloud_down", "device:2")]),
        (device(2), CLOUD, [("device_cloud_up", "cloud")]),
        (device(0), device(1), [(UP, "edge:0"), (DOWN, "device:1")]),
        (device(0), device(2), [("device_cloud_up", "cloud"), ("device_cloud_down", "device:2")]),
        (device(0), edge(0), [(UP, "edge:0")]),
        (device(0), edge(1), [("device_cloud_up", "cloud"), (WAN_DOWN, "edge:1")]),
        (edge(1), device(0), [(WAN_UP, "cloud"), ("device_cloud_down", "device:0")]),
        (edge(0), CLOUD, [(WAN_UP, "cloud")]),
    ],
)
def test_the_direct_route(start: Site, end: Site, expected: list[tuple[str, str]]) -> None:
    assert way(start, end, route="direct", device_cloud=LinkClass()) == expected


def test_devices_of_a_factory_that_talk() -> None:
    assert way(device(0), device(1), device_device=LinkClass()) == [("device_device_up", "device:1")]
    assert way(device(0), device(2), device_device=LinkClass()) == way(device(0), device(2))


@given(networks(), ANY, ANY)
def test_a_way_leads_from_its_start_to_its_end_and_back(on: NetworkProfile, start: Site, end: Site) -> None:
    routes = Routes(on, OF)
    there = routes.route(start, end).hops
    back = routes.route(end, start).hops
    assert (there[-1].to if there else start) == end
    assert len(there) == len(back)
    links = [hop.counter.rsplit("_", 1)[0] for hop in there]
    assert links == [hop.counter.rsplit("_", 1)[0] for hop in reversed(back)]
    assert routes.route(start, end).cast == any(hop.cast for hop in there)
    for hop in there:
        assert hop.device == (hop.sender if hop.sender >= 0 else hop.receiver)
        assert hop.cell >= 0


def test_the_cells_of_hops() -> None:
    routes = Routes(NetworkProfile(), OF)
    assert [hop.cell for hop in routes.route(device(0), device(2)).hops] == [0, 0, 1, 1]
    assert (routes.cell(CLOUD), routes.cell(edge(1)), routes.cell(device(2))) == (-1, 1, 1)


def occupied(link: LinkClass, *ways: tuple[Site, Site]) -> list[int]:
    routes = Routes(NetworkProfile(device_edge=link), OF)
    return [hop.resource for one in ways for hop in routes.route(*one).hops if hop.counter.startswith("device_edge")]


def test_what_a_transfer_occupies() -> None:
    ways = ((edge(0), device(0)), (device(1), edge(0)), (edge(1), device(2)))  # down, up; in another cell
    assert occupied(near(), *ways) == [-1, -1, -1]
    assert occupied(near(sharing="serial"), *ways) == [0, 0, 1]
    assert occupied(near(sharing="serial", duplex="full"), *ways) == [0, 1, 2]
    assert occupied(near(sharing="serial", over="park"), *ways) == [0, 0, 0]
    assert occupied(near(sharing="serial", over="park", duplex="full"), *ways) == [0, 1, 0]
    # a direction without a rate occupies nothing
    assert occupied(LinkClass(up_bps=1.0, sharing="serial"), *ways) == [-1, 0, -1]


def test_classes_of_links_do_not_take_turns_with_each_other() -> None:
    routes = Routes(NetworkProfile(device_edge=near(sharing="serial"), edge_cloud=far(sharing="serial")), OF)
    assert [hop.resource for hop in routes.route(CLOUD, device(0)).hops] == [0, 1]


def test_seconds_of_a_byte() -> None:
    (down,) = Routes(NetworkProfile(device_edge=near()), OF).route(edge(0), device(0)).hops
    assert (down.s_per_byte, down.latency_s, down.cast) == (1e-3, 0.0, False)
    (free,) = Routes(NetworkProfile(), OF).route(edge(0), device(0)).hops
    assert free.s_per_byte == 0
    (cast,) = Routes(NetworkProfile(device_edge=near(downlink="multicast")), OF).route(edge(0), device(0)).hops
    (up,) = Routes(NetworkProfile(device_edge=near(downlink="multicast")), OF).route(device(0), edge(0)).hops
    assert (cast.cast, up.cast) == (True, False)
