"""Transfers in simulated time: processes on an event heap, the record of their costs, and copies of a packet."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from fedfloor.network.sites import Hop, RadioUplink, Routes, Sites, Transmission
from fedfloor.plan.nodes import CLOUD, Site, Train

Steps = Generator[
    "float | None", None, float
]  # yields the time to resume, or None to wait for its children; returns its end
NEVER = -1.0  # the end of a process that only starts others
LAST = 1 << 40  # the order of a deadline: after what happens at the same time


class PacketProcess:
    """A process of the simulation: a copy of the packet in transit.

    Attributes:
        order: number of the device that requests a link, for ties in time.
        compute_s, transfer_s, wait_s: its seconds of training, transfers and waiting.
        path: the visited devices.
    """

    __slots__ = ("compute_s", "join", "order", "path", "steps", "transfer_s", "wait_s")

    def __init__(self, order: int, join: Join | None) -> None:
        self.order = order
        self.join = join
        self.steps: Steps
        self.compute_s = self.transfer_s = self.wait_s = 0.0
        self.path: list[int] = []

    def add(self, other: PacketProcess) -> None:
        """Add the seconds and path of a preceding process."""
        self.compute_s += other.compute_s
        self.transfer_s += other.transfer_s
        self.wait_s += other.wait_s
        self.path += other.path


class Join:
    """A point at which a process waits for its children; it continues with the latest, whose seconds it adds."""

    __slots__ = ("closed", "end", "last", "left", "waiting")

    def __init__(self, waiting: PacketProcess) -> None:
        self.waiting = waiting
        self.left = 0
        self.end = NEVER
        self.last: PacketProcess | None = None
        self.closed = False


class ClosingJoin(Join):
    """A join that continues with the first results or at a deadline; the other children are abandoned.

    Args:
        clock: the simulation.
        first: the number of results with which it continues; None: all.
        due: the time at which it continues at the latest, s.
        lost: child → whether its result is lost, and does not count among the first.

    Attributes:
        ended: the children that were in time.
    """

    __slots__ = ("begun", "clock", "ended", "first", "lost", "results")

    def __init__(
        self, waiting: PacketProcess, clock: SimulatedClock, first: int | None, due: float, lost: Callable[[int], bool]
    ) -> None:  # fmt: skip
        super().__init__(waiting)
        self.clock = clock
        self.first = first
        self.lost = lost
        self.ended = set[int]()
        self.results = 0
        self.begun = clock.now
        if due < math.inf:
            timer = PacketProcess(LAST, Join(waiting))
            timer.steps = self._timer()
            clock.at(max(due, clock.now), timer)

    def counted(self, i: int, own: PacketProcess, steps: Steps) -> Steps:
        """Return the steps of a child, which count its result when it arrives."""
        end = yield from steps
        if end > self.clock.now:
            yield end
        self.ended.add(i)
        self.results += not self.lost(i)
        if self.results == self.first:
            self._close(end, own, end)
        return end

    def _timer(self) -> Steps:
        if not self.closed and self.left:
            self._close(self.clock.now, self.last, self.begun if self.last is None else self.end)
        return NEVER
        yield  # a generator

    def _close(self, time: float, last: PacketProcess | None, since: float) -> None:
        """Continue with the process that was the last one in time, at ``since``, and wait for nothing else."""
        if last is not None:
            self.waiting.add(last)
        self.waiting.wait_s += time - since
        self.closed = True
        self.end = time
        self.clock.abandons = True
        self.clock.at(time, self.waiting)


class SimulatedClock:
    """The event heap of the simulation, and the times at which shared resources are free."""

    def __init__(self) -> None:
        self.now = 0.0
        self.free: dict[int, float] = {}
        self.abandons = False  # whether a join continued without some of its children
        self._heap: list[tuple[float, int, int, PacketProcess]] = []
        self._count = 0

    def at(self, time: float, process: PacketProcess) -> None:
        """Schedule a process to resume at a time."""
        self._count += 1
        heappush(self._heap, (time, process.order, self._count, process))

    def serve(self, resource: int, seconds: float) -> float:
        """Occupy a resource for ``seconds`` as soon as it is free; return the start."""
        free = self.free.get(resource, 0.0)
        start = free if free > self.now else self.now
        self.free[resource] = start + seconds
        return start

    def advance(self) -> None:
        """Resume the process that is due next, which waits for no others."""
        self.now, _, _, process = heappop(self._heap)
        wake = next(process.steps, None)
        if wake is not None:
            self.at(wake, process)

    def run(self, root: PacketProcess) -> float:
        """Run all processes; return the time at which the root ended."""
        self.at(0.0, root)
        heap = self._heap
        end = 0.0
        while heap:
            self.now, _, _, process = heappop(heap)
            if self.abandons and _abandoned(process):
                continue
            try:
                wake = next(process.steps)
            except StopIteration as stop:
                join = process.join
                if join is None:
                    end = stop.value
                    continue
                if join.closed:
                    continue
                join.left -= 1
                if stop.value > join.end:
                    join.end = stop.value
                    join.last = process
                if join.left == 0:
                    if join.last is not None:
                        join.waiting.add(join.last)
                    self.at(join.end, join.waiting)
                continue
            if wake is not None:
                self._count += 1
                heappush(heap, (wake, process.order, self._count, process))
        return end


def _abandoned(process: PacketProcess) -> bool:
    """Return whether a process is late for its join, or for a join above."""
    join = process.join
    while join is not None:
        if join.closed:
            return True
        join = join.waiting.join
    return False


class Move(NamedTuple):
    """A transfer over a link.

    Attributes:
        link: class and direction.
        cell: the factory of the transfer, or of the base station at one of its ends.
        resource: number of the occupied resource, or −1.
        requested_s, start_s, end_s: times of its request, its start and its end on the link.
        bytes: the bytes of all transmissions.
        device: the number of its sender or receiver, or −1.
    """

    link: str
    cell: int
    resource: int
    requested_s: float
    start_s: float
    end_s: float
    bytes: int
    device: int


class Account:
    """The record of a simulation's costs.

    Attributes:
        bytes: link class and direction → bytes.
        joules, busy: energy in J and active seconds of each device.
        moves: every transfer, if they are recorded.
    """

    def __init__(self, sites: Sites, air: RadioUplink | None, clock: SimulatedClock, *, trace: bool) -> None:
        self.sites = sites
        self.air = air
        self.clock = clock
        self.trace = trace
        self.values = sites.lists
        self.transmit_w = self.values.transmit_w
        self.receive_w = self.values.receive_w
        self.bytes: Counter[str] = Counter()
        self.joules = [0.0] * len(self.values.samples)
        self.busy = [0.0] * len(self.values.samples)
        self.moves: list[Move] = []

    def transfer(
        self, hop: Hop, time: float, size: int, process: PacketProcess, sent: Transmission | None = None
    ) -> float:
        """Simulate a hop at ``time``, the current time if its link is shared; return the packet's arrival."""
        seconds = size * hop.s_per_byte
        start = time
        sender = hop.sender
        receiver = hop.receiver
        watt = self.transmit_w[sender] if sender >= 0 else 0.0
        if hop.radio:  # a visit's result, or a packet without interference
            sent = sent or self.air.clear(hop.sender, size)  # type: ignore[union-attr]
            seconds = sent.airtime_s * sent.attempts
            size = size * sent.attempts
            watt = sent.watt
        if hop.resource >= 0:
            start = self.clock.serve(hop.resource, seconds)
            process.wait_s += start - time
        process.transfer_s += seconds + hop.latency_s
        self.bytes[hop.counter] += size
        if sender >= 0:
            self.joules[sender] += seconds * watt
            self.busy[sender] += seconds
        if receiver >= 0:
            self.joules[receiver] += seconds * self.receive_w[receiver]
            self.busy[receiver] += seconds
        if self.trace:
            self.moves.append(Move(hop.counter, hop.cell, hop.resource, time, start, start + seconds, size, hop.device))
        return start + seconds + hop.latency_s

    def carry(self, hops: Iterable[Hop], time: float, size: int, process: PacketProcess) -> Steps:
        """Simulate the transfer of a packet that is ready at ``time``, hop by hop; return its arrival."""
        for hop in hops:
            if hop.resource >= 0 and time > self.clock.now:
                yield time
            time = self.transfer(hop, time, size, process)
        return time

    def receive(self, k: int, seconds: float) -> None:
        """Add the energy of device ``k`` for receiving over ``seconds``."""
        self.joules[k] += seconds * self.receive_w[k]
        self.busy[k] += seconds

    def train(self, node: Train, process: PacketProcess) -> float:
        """Simulate training at a site; return its seconds."""
        if node.site.kind == "device":
            beside = self.sites.network.devices.seconds_per_visit
            return beside + self.compute(node.site.index, self.sites.passes(node.site.index, node.work), process)
        seconds = self.sites.cloud_s(node.work)
        process.compute_s += seconds
        process.path.append(-1)
        return seconds

    def compute(self, k: int, passes: float, process: PacketProcess) -> float:
        """Add the energy of a device's passes over its data; return their seconds."""
        seconds = passes * self.values.pass_s[k]
        self.joules[k] += passes * self.values.pass_j[k]
        self.busy[k] += seconds
        process.compute_s += seconds
        process.path.append(k)
        return seconds


Target = tuple[int, Site]  # number of a child, and its first site
Continue = Callable[[int, "PacketState", PacketProcess], Steps]  # the steps of a child from its first site on


class PacketState(NamedTuple):
    """The site of a packet, and its arrival there.

    Attributes:
        time: time of arrival, s.
        site: the current site.
        size: bytes when it is sent on.
        visit: number of the visit whose result it is, or −1.
        since: departure of the model for that visit, or of this copy before its first visit; −1: not yet.
        held: the devices with its current state.
        whole: site of the whole model, if the packet is a part.
        up: coded bytes of a visit's or branch's result on links towards the cloud; −1: ``size``, or no result.
        down: bytes on links away from the cloud up to the next site; −1: ``size``.
    """

    time: float
    site: Site
    size: int
    visit: int = -1
    since: float = -1.0
    held: frozenset[int] = frozenset()
    whole: Site = CLOUD
    up: int = -1
    down: int = -1


class Copies:
    """The copies of a packet, sent one by one or by multicast."""

    def __init__(self, clock: SimulatedClock, routes: Routes, spent: Account) -> None:
        self.clock = clock
        self.routes = routes
        self.spent = spent

    def fan(
        self, state: PacketState, targets: Sequence[Target], size: int, process: PacketProcess, then: Continue,
        join: Join | None = None,
    ) -> Steps:  # fmt: skip
        """Simulate copies to the children's first sites, continue each from there, and wait for the latest."""
        if not targets:
            return state.time
        join = join or Join(process)
        copy = state._replace(visit=-1, since=-1.0, up=-1)  # not a visit's result: the packet stays
        self._spread(copy, targets, size, join, then)
        yield None  # waits for their end
        return join.end

    def _spread(
        self, state: PacketState, targets: Iterable[Target], size: int, join: Join, then: Continue,
        after: PacketProcess | None = None,
    ) -> None:  # fmt: skip
        """Start a process for each child, or for each multicast transmission."""
        shared: dict[tuple[str | int, ...], tuple[Hop, list[Target]]] = {}
        route = self.routes.route
        held = state.held
        for i, site in targets:
            way = route(state.site, site)
            if not way.cast or (site.kind == "device" and site.index in held):
                own = self._new(state.time, site, join, after)
                own.steps = then(i, state, own)
                continue
            hop = way.hops[0]  # a single copy for all receivers of this or a later transmission
            key = (hop.counter, hop.resource) if hop.cast else (hop.counter, hop.to.kind, hop.to.index)
            shared.setdefault(key, (hop, []))[1].append((i, site))
        for hop, group in shared.values():
            own = self._new(state.time, min((site for _, site in group), key=_order), join, after)
            own.steps = self._carry(state, hop, group, size, own, join, then)

    def _carry(
        self, state: PacketState, hop: Hop, group: Sequence[Target], size: int, own: PacketProcess, join: Join,
        then: Continue,
    ) -> Steps:  # fmt: skip
        """Simulate a transmission to several receivers; the children continue from each site it reaches."""
        time = state.time
        if hop.resource >= 0 and time > self.clock.now:
            yield time
        time = self.spent.transfer(hop, time, size, own)
        since = state.since if state.since >= 0 else state.time
        receivers = {hop.receiver}
        beyond: dict[int, tuple[Site, list[Target]]] = {}
        for i, site in group:
            to = self.routes.route(state.site, site).hops[0].to
            if to.kind != "device":
                beyond.setdefault(to.index, (to, []))[1].append((i, site))
                continue
            if site.index not in receivers:
                receivers.add(site.index)
                self.spent.receive(site.index, size * hop.s_per_byte)
            child = self._new(time, site, join, own)
            child.steps = then(i, PacketState(time, site, state.size, -1, since, state.held, state.whole), child)
        for place, targets in beyond.values():
            self._spread(state._replace(time=time, site=place, since=since), targets, size, join, then, own)
        return NEVER

    def _new(self, time: float, site: Site, join: Join, after: PacketProcess | None) -> PacketProcess:
        """Return a new process that begins at ``time`` and continues ``after``."""
        own = PacketProcess(site.index if site.kind == "device" else -1, join)
        if after is not None:
            own.add(after)
        join.left += 1
        self.clock.at(time, own)
        return own


def _order(site: Site) -> int:
    return site.index if site.kind == "device" else -1
