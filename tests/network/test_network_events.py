"""The event heap, and laws of prices on any plan and any network.

Not laws, though they look it: with links that take turns more work, a longer latency or a slower link can make a round
*shorter*, since who comes first changes (Graham's anomalies; one stands below). On dedicated links these are laws.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings

from fedfloor.network.price import Price
from fedfloor.network.profile import Devices, LinkClass, NetworkProfile
from fedfloor.network.sites import Sites
from fedfloor.network.transfers import PacketProcess, SimulatedClock, Steps
from fedfloor.plan import visit_order, walk
from fedfloor.plan.nodes import CLOUD, Broadcast, Node, Parallel, Probe, Repeat, Sequence, Site, Train, Work, device
from priced import EPOCH, PASS, PAYLOAD, chain, near, network, networks, plans, priced, scoped, standing, star, visit

FREE = LinkClass()
MANY = settings(max_examples=150, deadline=None)
ANY = plans | scoped


# -- the heap ----------------------------------------------------------------------------------------------------------


def test_processes_go_on_in_order_of_time_and_then_of_device() -> None:
    clock = SimulatedClock()
    said = []

    def steps(name: str, *times: float) -> Steps:
        for time in times:
            yield time
            said.append((clock.now, name))
        return times[-1]

    root = PacketProcess(-1, None)

    def whole() -> Steps:
        for order, (name, times) in enumerate({"b": (2.0, 3.0), "a": (2.0, 2.5), "c": (1.0, 3.0)}.items()):
            one = PacketProcess(order, None)
            one.steps = steps(name, *times)
            clock.at(0.0, one)
        yield 9.0
        return 9.0

    root.steps = whole()
    assert clock.run(root) == 9.0
    assert said == [(1.0, "c"), (2.0, "b"), (2.0, "a"), (2.5, "a"), (3.0, "b"), (3.0, "c")]


def test_a_resource_serves_one_at_a_time() -> None:
    clock = SimulatedClock()
    assert [clock.serve(0, 2.0), clock.serve(0, 3.0), clock.serve(1, 1.0)] == [0.0, 2.0, 0.0]
    clock.now = 7.0
    assert clock.serve(0, 1.0) == 7.0  # idle since 5


# -- laws --------------------------------------------------------------------------------------------------------------


def latest(cost: Price) -> float:
    return max((move.end_s for move in cost.moves), default=0.0)


@MANY
@given(plans, networks())
def test_every_byte_is_of_a_transfer(plan: Node, on: NetworkProfile) -> None:
    found = priced(plan, on, trace=True)
    sums = defaultdict(int)
    for move in found.moves:
        sums[move.link] += move.bytes
    assert sums == found.bytes
    assert replace(found, moves=()) == priced(plan, on)  # looking changes nothing


@MANY
@given(plans, networks())
def test_shared_links_serve_one_at_a_time_in_the_order_they_are_asked_and_never_rest(
    plan: Node, on: NetworkProfile
) -> None:
    lines = defaultdict(list)
    for move in priced(plan, on, trace=True).moves:  # as they were booked
        assert move.requested_s <= move.start_s <= move.end_s
        lines[move.resource].append(move)
    for move in lines.pop(-1, []):
        assert move.start_s == move.requested_s
    for line in lines.values():
        assert [m.requested_s for m in line] == sorted(m.requested_s for m in line)
        for one, after in pairwise([None, *line]):
            assert after is not None
            assert after.start_s == max(after.requested_s, one.end_s if one else 0.0)


@MANY
@given(ANY, networks())
def test_the_critical_way_is_as_long_as_the_plan(plan: Node, on: NetworkProfile) -> None:
    found = priced(plan, on)
    way = found.critical
    assert way.compute_s + way.transfer_s + way.wait_s == pytest.approx(found.seconds, rel=1e-12, abs=1e-12)
    assert min(way.compute_s, way.transfer_s, way.wait_s) >= 0


def nodes(plan: Node) -> Iterator[Node]:
    yield plan
    for child in walk.children(plan):
        yield from nodes(child)


def worked(plan: Node, sites: Sites) -> float:
    """Seconds of everybody's training and answering, one after the other."""
    if isinstance(plan, Train):
        return sites.cloud_s(plan.work) if plan.site == CLOUD else 16.0 * sites.passes(plan.site.index, plan.work)
    if isinstance(plan, Probe):
        return 16.0 * PAYLOAD.of(plan).passes * len(plan.devices)
    total = sum(worked(child, sites) for child in walk.children(plan))
    return total * (plan.times if isinstance(plan, Repeat) else 1)


@MANY
@given(ANY, networks())
def test_a_plan_takes_at_least_its_busiest_link_and_at_most_everything_in_turn(plan: Node, on: NetworkProfile) -> None:
    found = priced(plan, on, trace=True)
    busy = defaultdict(float)
    moving = 0.0
    for move in found.moves:
        busy[move.resource] += move.end_s - move.start_s
        moving += move.end_s - move.start_s + getattr(on, move.link.rsplit("_", 1)[0]).latency_s
    busy.pop(-1, None)
    assert found.seconds >= max(busy.values(), default=0.0) * (1 - 1e-12)
    assert found.seconds >= latest(found)
    # until the end, something is on its way or at work at any time
    assert found.seconds <= (moving + worked(plan, standing(on))) * (1 + 1e-12)
    assert all(0 <= one <= found.seconds for one in found.visits)
    assert len(found.visits) == len(visit_order.in_order(plan))


def faster(link: LinkClass | None, factor: float) -> LinkClass | None:
    if link is None:
        return None
    rates = [None if rate is None else factor * rate for rate in (link.up_bps, link.down_bps)]
    return replace(link, up_bps=rates[0], down_bps=rates[1], latency_s=link.latency_s / factor)


@MANY
@given(ANY, networks())
def test_twice_as_fast_takes_half_as_long(plan: Node, on: NetworkProfile) -> None:
    # exactly: halving is exact in floating point, and nobody's turn changes
    quick = {
        name: faster(getattr(on, name), 2.0) for name in ("device_edge", "edge_cloud", "device_cloud", "device_device")
    }
    clock = None if on.cloud_clock_hz is None else 2 * on.cloud_clock_hz
    other = replace(on, **quick, devices=replace(on.devices, clock_hz=2.0), cloud_clock_hz=clock)
    one = priced(plan, on)
    half = priced(plan, other)
    assert half.seconds == one.seconds / 2
    assert half.bytes == one.bytes
    assert half.visits == tuple(seconds / 2 for seconds in one.visits)
    assert half.critical.visits == one.critical.visits


@MANY
@given(ANY, networks())
def test_a_repeat_is_a_sequence_of_copies(plan: Node, on: NetworkProfile) -> None:
    turns = priced(Sequence((plan, plan, plan)), on)
    assert priced(Repeat(3, plan), on) == priced(Repeat(3, plan, tick=False), on) == turns


@MANY
@given(ANY, networks(sharing=("serial",)))
def test_taking_turns_is_never_quicker_than_having_a_link_of_ones_own(plan: Node, on: NetworkProfile) -> None:
    own = {name: replace(link, sharing="dedicated") for name, link in on.links().items()}
    shared = priced(plan, on)
    alone = priced(plan, replace(on, **own))
    assert shared.seconds >= alone.seconds * (1 - 1e-12)
    assert alone.critical.wait_s == 0


@MANY
@given(plans, networks(sharing=("dedicated",)))
def test_on_dedicated_links_delay_never_speeds_up(plan: Node, on: NetworkProfile) -> None:
    late = {name: replace(link, latency_s=link.latency_s + 0.5) for name, link in on.links().items()}
    slow = {name: faster(replace(link, latency_s=0.0), 0.7) for name, link in on.links().items()}
    none = {name: replace(link, latency_s=0.0) for name, link in on.links().items()}
    assert priced(plan, replace(on, **late)).seconds >= priced(plan, on).seconds
    assert priced(plan, replace(on, **slow)).seconds >= priced(plan, replace(on, **none)).seconds
    single = {name: replace(link, downlink="unicast") for name, link in on.links().items()}
    one = priced(plan, replace(on, **single))  # on such links, one transmission for all is as quick as one for each
    if not any(isinstance(node, Train) and node.work.trains != "all" for node in nodes(plan)):
        assert one.seconds == pytest.approx(priced(plan, on).seconds, rel=1e-12, abs=1e-12)
    for link, size in priced(plan, on).bytes.items():
        assert size <= one.bytes[link]


def test_with_turns_delay_can_speed_up() -> None:
    # one cell, half duplex, no time down. Device 0 trains 2 s and sends 2 s, and nobody waits for it; device 1 trains
    # 2 s, sends 2 s and trains on for long after. At the same moment device 0 comes first and device 1 waits 2 s; a
    # little later with its own work, device 0 comes after it: the round ends 2 s earlier.
    on = network({"data_bits": 2.0}, device_edge=near(sharing="serial", down_bps=None), edge_cloud=FREE)
    long = Sequence((visit(1), Train(device(2), Work(epochs=20))))
    assert priced(Parallel((visit(0), long)), on).seconds == 2 + 2 + 2 + 40 + 2
    more = Train(device(0), Work(steps=5, batch_size=16))  # 1.25 passes of 2 s
    assert priced(Parallel((more, long)), on).seconds == 2 + 2 + 40 + 2


# -- against another way to count: the longest way on dedicated links --------------------------------------------------


def longest(plan: Node, on: NetworkProfile) -> float:
    """Price a plan without broadcasts and probes on dedicated links, by recursion."""
    sites = standing(on)

    def move(a: Site, b: Site, size: int) -> float:
        return sum(size * hop.s_per_byte + hop.latency_s for hop in sites.routes.route(a, b).hops)

    def go(node: Node, at: Site, size: int) -> tuple[float, Site]:
        if isinstance(node, Train):
            return move(at, node.site, size) + worked(node, sites), node.site
        if isinstance(node, Parallel):
            ends = [go(child, node.at, size) for child in node.children]
            return move(at, node.at, size) + max(t + move(end, node.at, size) for t, end in ends), node.at
        total = 0.0
        for child in (node.child,) * node.times if isinstance(node, Repeat) else walk.children(node):
            seconds, at = go(child, at, size)
            total += seconds
        return total, at

    seconds, end = go(plan, CLOUD, 1000)
    return seconds + move(end, CLOUD, 1000)


@MANY
@given(
    plans.filter(lambda plan: not any(isinstance(one, (Broadcast, Probe)) for one in nodes(plan))),
    networks(("dedicated",)),
)
def test_on_dedicated_links_it_is_the_longest_way(plan: Node, on: NetworkProfile) -> None:
    assert priced(plan, on).seconds == pytest.approx(longest(plan, on), rel=1e-12, abs=1e-12)


# -- whom all wait for -------------------------------------------------------------------------------------------------


def test_the_critical_way_names_whom_it_visited() -> None:
    on = NetworkProfile(device_edge=LinkClass(8000.0, 8000.0, downlink="multicast"), devices=Devices(**PASS))
    assert priced(Parallel((chain(0, 1), visit(2))), on).critical.visits == (0, 1)
    # devices that train in no time and send in no time are still those that were visited last
    idle = NetworkProfile(device_edge=LinkClass(None, 8000.0, downlink="multicast"))
    assert len(priced(star(0, 1), idle).critical.visits) == 1
    assert priced(Sequence((star(3), Train(device(4), EPOCH))), idle).critical.visits == (3, 4)
