"""A plan walked in simulated time, without training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

from fedfloor.errors import unknown
from fedfloor.network.air import Air, Place, Sent
from fedfloor.network.events import Branch, Clock, Meeting, Steps
from fedfloor.network.routes import Hop
from fedfloor.network.sites import Sites
from fedfloor.plan import walk
from fedfloor.plan.nodes import CLOUD, Broadcast, Node, Parallel, Probe, Repeat, Site, Train, device

Walking = Generator["float | None", None, "_Stand"]
Target = tuple[int, Site]  # number of a child, and the first site it goes to
Then = Callable[[int, "_Stand", Branch], Steps]  # what a child does once it stands there; returns when it ends


class _Stand(NamedTuple):
    """Where a packet is and since when.

    Attributes:
        time: seconds.
        site: where.
        visit: number of the visit whose result it is, or −1.
        since: when the model set out for that visit.
        held: the devices that hold it as it is.
    """

    time: float
    site: Site
    visit: int = -1
    since: float = 0.0
    held: frozenset[int] = frozenset()


class Walk:
    """One walk; :func:`fedfloor.network.price.price` describes what it does."""

    def __init__(
        self, plan: Node, visits: Sequence[Train], sites: Sites, packet: Mapping[str, int],
        asked: Mapping[str, tuple[int, int, float]], air: Air | None, when: tuple[int, int], *, trace: bool,
    ) -> None:  # fmt: skip
        self.plan, self.sites, self.packet, self.asked, self.air = plan, sites, packet, asked, air
        self.clock, self.routes, self.trace = Clock(), sites.routes, trace
        self.of = sites.lists
        self.bytes: Counter[str] = Counter()
        self.joules: dict[int, float] = {}
        self.busy: dict[int, float] = {}
        self.visit_s = [0.0] * len(visits)
        self.moves: list[tuple[str, int, int, float, float, int, int]] = []
        self.root = Branch(-1, None)
        self.sent = {} if air is None else self._sent(air, when)
        self._inside: dict[int, int] = {}

    def run(self) -> float:
        """Walk the whole plan; return the seconds it takes."""
        self.root.steps = self._whole()
        return self.clock.run(self.root)

    def _whole(self) -> Steps:
        stand = yield from self._node(self.plan, _Stand(0.0, CLOUD), self.root, 0)
        stand = yield from self._move(stand, CLOUD, self._size("all"), self.root)
        return stand.time

    # -- nodes ------------------------------------------------------------------------------------------------------

    def _node(self, node: Node, stand: _Stand, branch: Branch, first: int) -> Walking:
        """Walk a node; ``first`` is the number of its first visit in plan order."""
        if isinstance(node, Train):
            return (yield from self._train(node, stand, branch, first))
        if isinstance(node, Parallel):
            return (yield from self._parallel(node, stand, branch, first))
        if isinstance(node, Broadcast):
            return (yield from self._broadcast(node, stand, branch))
        if isinstance(node, Probe):
            return (yield from self._probe(node, stand, branch))
        turns = (node.child,) * node.times if isinstance(node, Repeat) else walk.children(node)
        for child in turns:
            stand = yield from self._node(child, stand, branch, first)
            first += self._visits(child)
        return stand

    def _train(self, node: Train, stand: _Stand, branch: Branch, number: int) -> Walking:
        since, k = stand.time, node.site.index
        stand = yield from self._move(stand, node.site, self._size(node.work.scope), branch)
        if node.site == CLOUD:
            seconds, k = self.sites.cloud_s(node.work), -1
        else:
            seconds = self._compute(k, self.sites.passes(k, node.work))
        branch.compute_s += seconds
        branch.path.append(k)
        self.visit_s[number] = stand.time + seconds - since
        return _Stand(stand.time + seconds, node.site, number, since)

    def _parallel(self, node: Parallel, stand: _Stand, branch: Branch, first: int) -> Walking:
        size = self._size(_scope(node))
        stand = yield from self._move(stand, node.at, size, branch)
        numbers, targets = [], []
        for i, child in enumerate(node.children):
            numbers.append(first)
            first += self._visits(child)
            targets.append((i, _first(child) or node.at))

        def then(i: int, there: _Stand, own: Branch) -> Steps:
            done = yield from self._node(node.children[i], there, own, numbers[i])
            back = yield from self._move(done, node.at, size, own)
            return back.time

        end = yield from self._fan(stand, targets, size, branch, then)
        return _Stand(end, node.at)

    def _broadcast(self, node: Broadcast, stand: _Stand, branch: Branch) -> Walking:
        def then(i: int, there: _Stand, own: Branch) -> Steps:
            stood = yield from self._move(there, targets[i][1], size, own)
            return stood.time

        size, targets = self._size(node.scope), list(enumerate(map(device, node.devices)))
        end = yield from self._fan(stand, targets, size, branch, then)
        kept = stand.held | set(node.devices) if node.scope == "all" else stand.held
        return _Stand(end, stand.site, held=kept)

    def _probe(self, node: Probe, stand: _Stand, branch: Branch) -> Walking:
        if node.what not in self.asked:
            raise unknown("question to price", node.what, self.asked)
        question, answer, passes = self.asked[node.what]
        targets = list(enumerate(map(device, node.devices)))

        def then(i: int, there: _Stand, own: Branch) -> Steps:
            asked = yield from self._move(there, targets[i][1], question, own)
            seconds = self._compute(node.devices[i], passes)
            own.compute_s += seconds
            own.path.append(node.devices[i])
            told = yield from self._move(_Stand(asked.time + seconds, asked.site), node.at, answer, own)
            return told.time

        end = yield from self._fan(stand, targets, question, branch, then)
        whole = question >= self._size("all")  # the model went along with the question
        return _Stand(end, stand.site, held=stand.held | set(node.devices) if whole else stand.held)

    # -- copies go out ------------------------------------------------------------------------------------------------

    def _fan(self, stand: _Stand, targets: Sequence[Target], size: int, branch: Branch, then: Then) -> Steps:
        """Send copies to the children's first sites, let each go on from there, wait for the latest."""
        if not targets:
            return stand.time
        meeting = Meeting(branch)
        self._spread(stand, targets, size, meeting, then)
        yield None  # until they have ended
        return meeting.end

    def _spread(
        self,
        stand: _Stand,
        targets: Sequence[Target],
        size: int,
        meeting: Meeting,
        then: Then,
        after: Branch | None = None,
    ) -> None:
        """Start a process for each child, or for each transmission that serves several of them."""
        shared: dict[tuple[str, Site | None], tuple[Hop, list[Target]]] = {}
        for i, site in targets:
            route = self.routes.route(stand.site, site)
            holds = site.kind == "device" and site.index in stand.held
            if holds or not any(hop.cast for hop in route):
                own = self._new(stand.time, site, meeting, after)
                own.steps = then(i, _Stand(stand.time, site) if holds else stand, own)
                continue
            hop = route[0]  # one copy goes over it for all that a later transmission serves
            shared.setdefault((hop.counter, None if hop.cast else hop.to), (hop, []))[1].append((i, site))
        for hop, group in shared.values():
            own = self._new(stand.time, min((site for _, site in group), key=_order), meeting, after)
            own.steps = self._carry(stand, hop, group, size, own, meeting, then)

    def _carry(
        self, stand: _Stand, hop: Hop, group: Sequence[Target], size: int, own: Branch, meeting: Meeting, then: Then
    ) -> Steps:
        """One transmission to several receivers; from each place it reaches they go on."""
        time = yield from self._transfer(hop, stand.time, size, own, None)
        by_place: dict[Site, list[Target]] = {}
        for target in group:
            by_place.setdefault(self.routes.route(stand.site, target[1])[0].to, []).append(target)
        for site, there in by_place.items():
            if site.kind == "device" and site.index != hop.receiver:
                self._hear(site.index, size * hop.s_per_byte)
            self._spread(_Stand(time, site), there, size, meeting, then, own)
        return time

    def _new(self, time: float, site: Site, meeting: Meeting, after: Branch | None) -> Branch:
        """Return a new process, which begins at ``time``; it goes on from ``after``."""
        own = Branch(_order(site), meeting)
        if after is not None:
            own.add(after)
        meeting.left += 1
        self.clock.at(time, own)
        return own

    # -- moves --------------------------------------------------------------------------------------------------------

    def _move(self, stand: _Stand, to: Site, size: int, branch: Branch) -> Walking:
        if stand.site == to or (to.kind == "device" and to.index in stand.held):
            return _Stand(stand.time, to, stand.visit, stand.since, stand.held)
        time = stand.time
        for hop in self.routes.route(stand.site, to):
            time = yield from self._transfer(hop, time, size, branch, self.sent.get(stand.visit))
        if stand.visit >= 0:
            self.visit_s[stand.visit] = time - stand.since
        return _Stand(time, to)

    def _transfer(self, hop: Hop, time: float, size: int, branch: Branch, sent: Sent | None) -> Steps:
        """Take one hop from ``time`` on; return when the packet is there."""
        seconds, watt = size * hop.s_per_byte, None
        if hop.radio and self.air is not None:
            seconds, size, watt = self._radio(hop, size, sent)
        start, end = time, time + seconds
        if hop.resource >= 0:
            if time > self.clock.now:
                yield time
            start, end = self.clock.serve(hop.resource, seconds)
        branch.wait_s += start - time
        branch.transfer_s += seconds + hop.latency_s
        self.bytes[hop.counter] += size
        if hop.sender >= 0:
            self._spend(hop.sender, seconds, self.of.transmit_w[hop.sender] if watt is None else watt)
        if hop.receiver >= 0:
            self._hear(hop.receiver, seconds)
        if self.trace:
            cell, who = self.routes.cell(hop.to), max(hop.sender, hop.receiver)
            cell = self.routes.cell(device(hop.sender)) if hop.sender >= 0 else cell
            self.moves.append((hop.counter, cell, hop.resource, start, end, size, who))
        return end + hop.latency_s

    def _radio(self, hop: Hop, size: int, sent: Sent | None) -> tuple[float, int, float]:
        """Return (seconds, bytes, watt) of what a device sends: a visit's result, or alone on its channel."""
        air = self.air
        if sent is None:
            one = air.clear(hop.sender, size)  # type: ignore[union-attr]
            return one.airtime_s, size, one.watt
        return sent.airtime_s * sent.attempts, size * sent.attempts, sent.watt

    def _hear(self, device_number: int, seconds: float) -> None:
        self._spend(device_number, seconds, self.of.receive_w[device_number])

    def _spend(self, device_number: int, seconds: float, watt: float) -> None:
        self.joules[device_number] = self.joules.get(device_number, 0.0) + seconds * watt
        self.busy[device_number] = self.busy.get(device_number, 0.0) + seconds

    def _compute(self, k: int, passes: float) -> float:
        seconds = passes * self.of.pass_s[k]
        self.joules[k] = self.joules.get(k, 0.0) + passes * self.of.pass_j[k]
        self.busy[k] = self.busy.get(k, 0.0) + seconds
        return seconds

    # -- what is known of the plan -----------------------------------------------------------------------------------

    def _size(self, scope: str) -> int:
        if scope not in self.packet:
            raise unknown("scope to price", scope, self.packet)
        return self.packet[scope]

    def _visits(self, node: Node) -> int:
        """Return how many visits a node makes; a node that stands in a plan twice is counted once."""
        found = self._inside.get(id(node))
        if found is None:
            if isinstance(node, Train):
                return 1
            found = sum(map(self._visits, walk.children(node))) * (node.times if isinstance(node, Repeat) else 1)
            self._inside[id(node)] = found
        return found

    def _sent(self, air: Air, when: tuple[int, int]) -> dict[int, Sent]:
        """Say of each visit how its result is sent, keyed by its number in plan order."""
        found: dict[int, Sent] = {}
        for number, (visit, others, place) in enumerate(placed(self.plan, *when)):
            if visit.site != CLOUD:
                found[number] = air.send(visit, others, place, self._size(visit.work.scope))
        return found


def placed(plan: Node, round_number: int, tick: int) -> list[tuple[Train, tuple[Train, ...], Place]]:
    """Return every visit in plan order with those that interfere with it, and (round, tick, device, visit).

    The engine numbers visits the same way, so that both draw the same chance.
    """
    seen: Counter[int] = Counter()
    found: list[tuple[Train, tuple[Train, ...], Place]] = []

    def go(node: Node, now: int, others: list[tuple[Train, ...]]) -> None:
        if isinstance(node, Train):
            k = node.site.index if node.site.kind == "device" else -1
            found.append((node, others.pop(0) if others else (), (round_number, now, k, seen[k])))
            seen[k] += 1
        elif isinstance(node, Parallel):
            alone = [[] for _ in node.children] if any(map(walk.meets, node.children)) else walk.beside(node)
            for child, line in zip(node.children, alone, strict=True):
                go(child, now, list(line))
        else:
            turns = (node.child,) * node.times if isinstance(node, Repeat) else walk.children(node)
            for child in turns:
                go(child, now, others)
                now += max(1, walk.span(child)) if isinstance(node, Repeat) and node.tick else walk.span(child)

    go(plan, tick, [])
    return found


def _first(node: Node) -> Site | None:
    """Return the first site a packet goes to, or None where it goes nowhere."""
    if isinstance(node, Train):
        return node.site
    if isinstance(node, Parallel):
        return node.at
    return next((site for child in walk.children(node) if (site := _first(child)) is not None), None)


def _scope(node: Node) -> str:
    """Return the scope of the first visit in a node."""
    if isinstance(node, Train):
        return node.work.scope
    return next((_scope(child) for child in walk.children(node)), "all")


def _order(site: Site) -> int:
    return site.index if site.kind == "device" else -1
