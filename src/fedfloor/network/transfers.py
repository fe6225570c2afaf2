"""Transfers in simulated time: processes on an event heap, the account of their costs, and copies of a packet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from fedfloor.network.sites import Hop, RadioUplink, Routes, Sites, Transmission
from fedfloor.plan.nodes import CLOUD, Site, Train

Steps = Generator["float | None", None, float]  # yields when to go on, or None: once its children end; returns its end
NEVER = -1.0  # the end of a process that only started others


class PacketProcess:
    """One process: a copy of the packet on its way.

    Attributes:
        order: breaks ties in time: the number of the device that requests a link.
        compute_s, transfer_s, wait_s: its seconds, by use.
        path: the devices it visited.
    """

    __slots__ = ("compute_s", "join", "order", "path", "steps", "transfer_s", "wait_s")

    def __init__(self, order: int, join: Join | None) -> None:
        self.order, self.join = order, join
        self.steps: Steps
        self.compute_s = self.transfer_s = self.wait_s = 0.0
        self.path: list[int] = []

    def add(self, other: PacketProcess) -> None:
        """Add another process's seconds and path, which led to this one."""
        self.compute_s += other.compute_s
        self.transfer_s += other.transfer_s
        self.wait_s += other.wait_s
        self.path += other.path


class Join:
    """The point where a process waits for its children; it continues with the latest, and adds its seconds."""

    __slots__ = ("end", "last", "left", "waiting")

    def __init__(self, waiting: PacketProcess) -> None:
        self.waiting, self.left = waiting, 0
        self.end = NEVER
        self.last: PacketProcess | None = None


class SimulatedClock:
    """The event heap, and the times at which shared resources are free again."""

    def __init__(self) -> None:
        self.now = 0.0
        self.free: dict[int, float] = {}
        self._heap: list[tuple[float, int, int, PacketProcess]] = []
        self._count = 0

    def at(self, time: float, process: PacketProcess) -> None:
        """Resume a process at a time."""
        self._count += 1
        heappush(self._heap, (time, process.order, self._count, process))

    def serve(self, resource: int, seconds: float) -> float:
        """Occupy a resource from now on, or as soon as it is free; return the start."""
        free = self.free.get(resource, 0.0)
        start = free if free > self.now else self.now
        self.free[resource] = start + seconds
        return start

    def run(self, root: PacketProcess) -> float:
        """Run all processes; return the time at which the root ended."""
        self.at(0.0, root)
        heap, end = self._heap, 0.0
        while heap:
            self.now, _, _, process = heappop(heap)
            try:
                wake = next(process.steps)
            except StopIteration as stop:
                join = process.join
                if join is None:
                    end = stop.value
                    continue
                join.left -= 1
                if stop.value > join.end:
                    join.end, join.last = stop.value, process
                if join.left == 0:
                    if join.last is not None:
                        join.waiting.add(join.last)
                    self.at(join.end, join.waiting)
                continue
            if wake is not None:
                self._count += 1
                heappush(heap, (wake, process.order, self._count, process))
        return end


class Move(NamedTuple):
    """One transfer: its link and direction, ends, times, and bytes on that link.

    Attributes:
        link: class and direction.
        cell: the factory in which it takes place, or whose base station it leads to or from.
        resource: number of the resource that it occupies, or −1.
        requested_s, start_s, end_s: when it was requested, began, and left the link.
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
    """The costs of one walk.

    Attributes:
        bytes: link class and direction → bytes.
        joules, busy: the energy of each device, and the seconds in which it is active.
        moves: every transfer, if they are kept.
    """

    def __init__(self, sites: Sites, air: RadioUplink | None, clock: SimulatedClock, *, trace: bool) -> None:
        self.sites, self.air, self.clock, self.trace = sites, air, clock, trace
        self.values = sites.lists
        self.transmit_w, self.receive_w = self.values.transmit_w, self.values.receive_w
        self.bytes: Counter[str] = Counter()
        self.joules = [0.0] * len(self.values.samples)
        self.busy = [0.0] * len(self.values.samples)
        self.moves: list[Move] = []

    def transfer(
        self, hop: Hop, time: float, size: int, process: PacketProcess, sent: Transmission | None = None
    ) -> float:
        """Take one hop at ``time``, which is the present where its link is shared; return the packet's arrival."""
        seconds, start, sender, receiver = size * hop.s_per_byte, time, hop.sender, hop.receiver
        watt = self.transmit_w[sender] if sender >= 0 else 0.0
        if hop.radio:  # a visit's result, or a packet alone on its channel
            sent = sent or self.air.clear(hop.sender, size)  # type: ignore[union-attr]
            seconds, size, watt = sent.airtime_s * sent.attempts, size * sent.attempts, sent.watt
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

    def receive(self, k: int, seconds: float) -> None:
        """Add the energy of a device that receives for a time."""
        self.joules[k] += seconds * self.receive_w[k]
        self.busy[k] += seconds

    def train(self, node: Train, process: PacketProcess) -> float:
        """Train at a site; return the seconds."""
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


Target = tuple[int, Site]  # number of a child, and the first site it goes to
Continue = Callable[[int, "PacketState", PacketProcess], Steps]  # the steps of a child from its first site on


class PacketState(NamedTuple):
    """The place of a packet, and its arrival there.

    Attributes:
        time: seconds.
        site: its place.
        size: its bytes, as it is sent on from here.
        visit: number of the visit whose result it is, or −1.
        since: when the model set out for that visit, or, before one, when this copy set out; −1: not yet.
        held: the devices that hold it as it is.
        whole: the place of the whole model, should it be a part that travels.
        up: bytes of a visit's or a branch's result on links towards the cloud, as codecs make them; −1: its size, or no
            result.
        down: bytes on links away from the cloud up to the next site; −1: its size.
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
    """The copies of a packet: sent one by one, or in transmissions that serve several receivers at once."""

    def __init__(self, clock: SimulatedClock, routes: Routes, spent: Account) -> None:
        self.clock, self.routes, self.spent = clock, routes, spent

    def fan(
        self, state: PacketState, targets: Sequence[Target], size: int, process: PacketProcess, then: Continue
    ) -> Steps:
        """Send copies to the children's first sites, let each continue from there, and wait for the latest."""
        if not targets:
            return state.time
        join = Join(process)
        copy = state._replace(visit=-1, since=-1.0, up=-1)  # no visit's result: the packet stays
        self._spread(copy, targets, size, join, then)
        yield None  # until they have ended
        return join.end

    def _spread(
        self, state: PacketState, targets: Iterable[Target], size: int, join: Join, then: Continue,
        after: PacketProcess | None = None,
    ) -> None:  # fmt: skip
        """Start a process for each child, or for each transmission that serves several of them."""
        shared: dict[tuple[str | int, ...], tuple[Hop, list[Target]]] = {}
        route, held = self.routes.route, state.held
        for i, site in targets:
            way = route(state.site, site)
            if not way.cast or (site.kind == "device" and site.index in held):
                own = self._new(state.time, site, join, after)
                own.steps = then(i, state, own)
                continue
            hop = way.hops[0]  # one copy goes over it for all that it, or a later transmission, serves
            key = (hop.counter, hop.resource) if hop.cast else (hop.counter, hop.to.kind, hop.to.index)
            shared.setdefault(key, (hop, []))[1].append((i, site))
        for hop, group in shared.values():
            own = self._new(state.time, min((site for _, site in group), key=_order), join, after)
            own.steps = self._carry(state, hop, group, size, own, join, then)

    def _carry(
        self, state: PacketState, hop: Hop, group: Sequence[Target], size: int, own: PacketProcess, join: Join,
        then: Continue,
    ) -> Steps:  # fmt: skip
        """Send one transmission to several receivers; the children continue from each place it reaches."""
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
