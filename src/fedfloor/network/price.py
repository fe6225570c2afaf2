"""The price of a resolved plan: seconds, bytes per link and direction, joules, and the critical path.

The plan is carried out in simulated time without training, as copies of the model wait for shared links:
:class:`PriceWalk` has a function for each kind of node, and :class:`fedfloor.network.transfers.Account` adds up what
each transfer and each training costs. A ring is a ``Repeat`` of a ``Sequence`` of visits, which ``_in_turn`` walks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fedfloor.base.errors import SettingError, unknown
from fedfloor.network.payload import Exchange, Payload
from fedfloor.network.sites import Hop, RadioUplink, Sites, Transmission
from fedfloor.network.transfers import (
    Account,
    ClosingJoin,
    Continue,
    Copies,
    Move,
    PacketProcess,
    PacketState,
    SimulatedClock,
    Steps,
)
from fedfloor.network.visits import examine, find_pulls, first_stop, placed_visits
from fedfloor.plan import walk
from fedfloor.plan.closing import Close
from fedfloor.plan.nodes import (
    CLOUD,
    Broadcast,
    Node,
    Parallel,
    Probe,
    Site,
    Train,
    Work,
    device,
    edge,
    only,
)


class Phases(NamedTuple):
    """The times of a visit since the beginning of the plan, s.

    Attributes:
        departed_s, arrived_s: of the model's departure, and of the result's arrival.
        received_s, trained_s: of the beginning and the end of training; until and from then on something is transferred
            or waits for a link.
    """

    departed_s: float
    received_s: float
    trained_s: float
    arrived_s: float


@dataclass(frozen=True)
class Critical:
    """The critical path, which ended last.

    Attributes:
        visits: the devices on the path in order; −1 is the cloud.
        compute_s, transfer_s, wait_s: its seconds of training, transfers, and waiting for links.
    """

    visits: tuple[int, ...] = ()
    compute_s: float = 0.0
    transfer_s: float = 0.0
    wait_s: float = 0.0


@dataclass(frozen=True)
class Price:
    """The cost of a plan.

    Attributes:
        seconds: the time from the packet's departure from the cloud until its return.
        joules: energy of the devices in the plan in this time, J.
        bytes: link class and direction → bytes, including repeated transmissions.
        joules_by_device: device → energy, J.
        visits: duration of each visit in plan order, from the departure of the model to the arrival of its result, s.
        critical: the critical path.
        moves: every transfer, if traced.
        holders: the devices with the final state of the model's frozen part, that is, all except its classifier.
        late: the numbers, in plan order, of visits whose results came too late; they have no entry in ``visits``.
        phases: number of a visit in plan order → its times, of branches with a single visit, if meetings may end early.
    """

    seconds: float
    joules: float
    bytes: Mapping[str, int]
    joules_by_device: Mapping[int, float]
    visits: tuple[float, ...]
    critical: Critical
    moves: tuple[Move, ...] = ()
    holders: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    phases: Mapping[int, Phases] = field(default_factory=dict)


@dataclass(frozen=True)
class Closing:
    """The end of meetings before their last branch.

    Args:
        close: when, and at which sites.
        lost: (number of a visit in plan order, number of earlier late visits of its device) → whether its result is
            lost, and does not count among the first.
    """

    close: Close
    lost: Callable[[int, int], bool] = lambda number, late: False  # noqa: ARG005

    def closes(self, node: Parallel) -> bool:
        """Return whether a meeting ends before its last branch."""
        return node.at.kind == self.close.at and len(node.children) > 0


def price(
    plan: Node, sites: Sites, payload: Payload, *, air: RadioUplink | None = None, round_number: int = 1, tick: int = 0,
    numbered: Sequence[int] | None = None, holders: frozenset[int] = frozenset(), trace: bool = False,
    closing: Closing | None = None,
) -> Price:  # fmt: skip
    r"""Return the price of a resolved plan.

    The packet starts and ends at the cloud, and every change of site is a transfer over each link of the route. At a
    ``Parallel`` it is first sent to the site of the aggregation, where all copies depart together; the node ends with
    the latest copy. Serial links serve first come first served, ties by device. A device that has just received
    the model is not sent it again. A lost result costs as much as a received one.

    For a visit that trains a part of the model only that part is sent. A device without the current state of the rest
    (:func:`~fedfloor.network.visits.find_pulls`) pulls it from the cloud over its route, after receiving the part and
    before training.

    The energy of a device is that of training, (α/2)·cycles·f² or measured, of sending and receiving, and of idling
    for the rest of the plan's duration.

    Args:
        round_number, tick: part of the key of the radio's random draws.
        numbered: number of each visit among its device's visits, in plan order, if known from receipts.
        holders: the devices with the current frozen part of the model: ``holders`` of the previous plan's price.
        trace: whether to record every transfer.
        closing: the meetings that end before their last branch. What late branches have begun by then costs as much as
            if it ended; they begin nothing more.

    Raises:
        SettingError: the plan has a ``Select``, the payload lacks a question or scope, or the uplink is a radio and
            ``air`` is None.
    """
    if air is None and sites.network.uplink.sharing == "sinr":
        raise SettingError(
            "the devices' uplink is a radio (sinr): price the plan with air=radio_uplink(sites, seed).", key="air"
        )
    job = PriceWalk(plan, sites, payload, air, (round_number, tick, numbered), holders, trace=trace, closing=closing)
    end = job.run()
    spent = job.spent
    root = job.root
    idle = sites.lists.idle_w
    busy = spent.busy
    joules = {k: spent.joules[k] + idle[k] * max(0.0, end - busy[k]) for k in sorted(job.devices)}
    return Price(
        seconds=end, joules=sum(joules.values()), bytes=dict(sorted(spent.bytes.items())), joules_by_device=joules,
        visits=tuple(s for i, s in enumerate(job.visit_s) if i not in job.late) if job.late else tuple(job.visit_s),
        critical=Critical(tuple(root.path), root.compute_s, root.transfer_s, root.wait_s),
        moves=tuple(spent.moves), holders=job.holders, late=frozenset(job.late), phases=job.phases,
    )  # fmt: skip


Walking = Generator["float | None", None, PacketState]


class PriceWalk:
    """The execution of a plan in simulated time; see :func:`price`."""

    def __init__(
        self, plan: Node, sites: Sites, payload: Payload, air: RadioUplink | None,
        when: tuple[int, int, Sequence[int] | None], holders: frozenset[int], *, trace: bool,
        closing: Closing | None = None,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.payload = payload
        self.packet = payload.packet
        self.model_bytes = self._size("all")
        self.clock = SimulatedClock()
        self.routes = sites.routes
        self.spent = Account(sites, air, self.clock, trace=trace)
        self.copies = Copies(self.clock, self.routes, self.spent)
        self.visits_inside, self.devices, parts = examine(plan, payload)
        self.pulls = frozenset[int]()
        self.holders = frozenset[int]() if self._visits(plan) else holders
        if parts:
            self.pulls, self.holders = find_pulls(plan, holders, payload)
        self.visit_s = [0.0] * self._visits(plan)
        self.closing = closing
        self.late = set[int]()
        self.phases: dict[int, Phases] = {}
        self.late_of = Counter[int]()
        self.root = PacketProcess(-1, None)
        self.transmissions = {} if air is None else self._transmissions(air, when)

    def run(self) -> float:
        """Carry out the whole plan; return its duration in seconds."""
        self.root.steps = self._branch(self.plan, PacketState(0.0, CLOUD, self.model_bytes), self.root, 0, CLOUD)
        return self.clock.run(self.root)

    def _node(self, node: Node, state: PacketState, process: PacketProcess, first: int) -> Walking:
        """Carry out a node; ``first`` is the number of its first visit in plan order."""
        if isinstance(node, Train):
            return self._train(node, state, process, first)
        if isinstance(node, Parallel):
            return self._parallel(node, state, process, first)
        if isinstance(node, Broadcast):
            return self._broadcast(node, state, process)
        if isinstance(node, Probe):
            return self._probe(node, state, process)
        return self._in_turn(node, state, process, first)

    def _in_turn(self, node: Node, state: PacketState, process: PacketProcess, first: int) -> Walking:
        """Carry out a ``Sequence`` or ``Repeat``, such as a chain or a ring: the packet goes from child to child."""
        for child in walk.children(node) * getattr(node, "times", 1):
            state = yield from self._node(child, state, process, first)
            first += self._visits(child)
        return state

    def _train(self, node: Train, state: PacketState, process: PacketProcess, number: int) -> Walking:
        size = self._carried(state, self._size(node.work.travels), process)
        # the first visit behind a meeting began when the meeting sent the copy; that of a later device of a chain
        # begins when the model leaves the device before it
        since = state.time
        if state.visit < 0 and state.since >= 0:
            since = state.since
        beside = size - self._size(node.work.travels)  # changes of other scopes are not coded
        state = yield from self._move(state, node.site, size, process, beside + self._down(node.work))
        time = state.time
        if number in self.pulls:
            time = yield from self._pull(state, node.site, self.model_bytes - size, process)
        time += self.spent.train(node, process)
        self.visit_s[number] = time - since
        up = beside + self._up(node.work) if node.work.travel else -1
        return PacketState(time, node.site, size, number, since, whole=state.whole, up=up)

    def _parallel(self, node: Parallel, state: PacketState, process: PacketProcess, first: int) -> Walking:
        numbers = []
        targets = []
        # a copy has the size of the largest part that a branch needs: what is sent by multicast is the same for all
        works = dict[int, Work]()
        kept = dict[int, Work]()
        for i, child in enumerate(node.children):
            numbers.append(first)
            if isinstance(child, Train):  # the most frequent node
                first = first + 1
                site = child.site
                works[id(child.work)] = child.work
            else:
                first = first + self.visits_inside[id(child)]
                site = first_stop(child, node.at) or node.at
                work = next((visit.work for visit, _ in walk.visited(child)), Work())
                (works if site.kind == "device" else kept)[id(work)] = work  # no codec towards an edge
            targets.append((i, site))
        whole = [self._size(work.travels) for work in kept.values()]
        size = max([*whole, *(self._size(work.travels) for work in works.values())], default=state.size)
        carried = self._carried(state, size, process)
        coded = [self.payload.coded["all", node.travel_down]] if node.travel_down else whole
        down = max([*coded, *(self._down(work) for work in works.values())], default=size)
        edge_up = self.payload.coded["all", node.travel] if node.travel else -1
        state = yield from self._move(state, node.at, carried, process)
        # a secure sum exchanges keys before the visits and lifts masks after them; other nodes have one empty stage
        *before, after = self._stages(node)
        for stage in before:
            state = yield from self._stage(state, stage, process)

        closing = self._closing(node, numbers, state, process)

        def then(i: int, copy: PacketState, own: PacketProcess) -> Steps:
            child = node.children[i]
            # nearly all branches are single visits, and of a park of a million devices there are a million
            if isinstance(child, Train) and only(child, "site", "work", "radio"):
                steps = self._round_trip(child, copy, own, numbers[i], node.at)
            else:
                steps = self._branch(child, copy, own, numbers[i], node.at, edge_up)
            return steps if closing is None else closing.counted(i, own, steps)

        state = state._replace(down=down) if node.travel_down else state
        end = yield from self.copies.fan(state, targets, down, process, then, closing)
        if closing is not None and closing.closed:
            self._note_late(node, numbers, closing.ended)
        state = yield from self._stage(state._replace(time=end), after, process)
        return PacketState(state.time, node.at, carried, whole=state.whole if carried < self.model_bytes else node.at)

    def _closing(
        self, node: Parallel, numbers: Sequence[int], state: PacketState, process: PacketProcess
    ) -> ClosingJoin | None:  # fmt: skip
        """Return the join of a meeting that ends before its last branch; None for others."""
        if self.closing is None or not self.closing.closes(node):
            return None
        lost_at = self.closing.lost
        close = self.closing.close

        def lost(i: int) -> bool:
            child = node.children[i]
            if isinstance(child, Train):
                return lost_at(numbers[i], self.late_of[child.site.index])
            inside = range(numbers[i], numbers[i] + self._visits(child))
            return all(number in self.late or lost_at(number, 0) for number in inside)

        first = close.first if close.first is not None and close.first < len(node.children) else None
        since = state.time if node.at.kind == "edge" else 0.0
        due = math.inf if close.deadline_s is None else since + close.deadline_s
        return ClosingJoin(process, self.clock, first, due, lost)

    def _note_late(self, node: Parallel, numbers: Sequence[int], ended: Collection[int]) -> None:
        """Note the visits of branches that did not end in time."""
        for i, child in enumerate(node.children):
            if i not in ended:
                self.late.update(range(numbers[i], numbers[i] + self._visits(child)))
                if isinstance(child, Train):
                    self.late_of[child.site.index] += 1

    def _stages(self, node: Parallel) -> list[dict[int, Exchange]]:
        """Return each device's exchange in every stage of the branches' secure sum."""
        children = [child for child in node.children if isinstance(child, Train) and child.site.kind == "device"]
        works = {child.work.travel for child in children if child.work.travel in self.payload.staged}
        if not works:
            return [{}]
        codecs = works.pop()
        devices = [child.site.index for child in children]
        cloud = codecs in self.payload.across
        cell = self.routes.cell
        servers = {k: CLOUD if cloud else edge(cell(device(k))) for k in devices}
        costs = {at: self.payload.staged[codecs](count) for at, count in Counter(servers.values()).items()}
        stages = range(len(next(iter(costs.values()))))
        return [{k: Exchange(at, *costs[at][stage]) for k, at in servers.items()} for stage in stages]

    def _stage(self, state: PacketState, exchanges: Mapping[int, Exchange], process: PacketProcess) -> Walking:
        """Simulate each device's exchange with its server until the last one ends."""
        targets = list(enumerate(map(device, exchanges)))

        def then(i: int, copy: PacketState, own: PacketProcess) -> Steps:
            site = targets[i][1]
            time = copy.time
            base, down, up = exchanges[site.index]
            for start, end, size in ((base, site, down), (site, base, up)):
                hops = self.routes.route(start, end).hops if size else ()
                time = yield from self.spent.carry(hops, time, size, own)
            return time

        # fan sends nothing to who holds the packet, and each device then begins its own exchange
        alone = state._replace(held=frozenset(exchanges))  # no multicast, as messages differ by device
        end = yield from self.copies.fan(alone, targets, 0, process, then)
        return state._replace(time=end)

    def _branch(self, node: Node, state: PacketState, own: PacketProcess, first: int, at: Site, up: int = -1) -> Steps:
        done = yield from self._node(node, state, own, first)
        done = done if up < 0 else done._replace(up=up)
        returned = yield from self._move(done, at, done.size, own)
        return returned.time

    def _round_trip(self, node: Train, state: PacketState, own: PacketProcess, number: int, at: Site) -> Steps:
        """Carry out a branch with a single visit, like ``_branch``, but in one generator, as it is most frequent."""
        site = node.site
        time = state.time
        clock = self.clock
        down, up = self._down(node.work), self._up(node.work)
        since = state.since if state.since >= 0 else time
        if not (site is state.site or (site.kind == "device" and site.index in state.held)):
            for hop in self.routes.route(state.site, site).hops:
                if hop.resource >= 0 and time > clock.now:
                    yield time
                time = self.spent.transfer(hop, time, down, own)
        if number in self.pulls:
            rest = self.model_bytes - self._size(node.work.travels)
            time = yield from self._pull(state._replace(time=time), site, rest, own)
        received = time
        time += self.spent.train(node, own)
        trained = time
        sent = self.transmissions.get(number)
        for hop in self.routes.route(site, at).hops:
            if hop.resource >= 0 and time > clock.now:
                yield time
            time = self.spent.transfer(hop, time, up, own, sent)
        self.visit_s[number] = time - since
        if self.closing is not None:
            self.phases[number] = Phases(since, received, trained, time)
        return time

    def _broadcast(self, node: Broadcast, state: PacketState, process: PacketProcess) -> Walking:
        def then(i: int, copy: PacketState, own: PacketProcess) -> Steps:
            arrived = yield from self._move(copy, targets[i][1], size, own)
            return arrived.time

        size = self._size(node.scope)
        targets = list(enumerate(map(device, node.devices)))
        return (yield from self._hand_out(state, targets, size, process, then, whole=node.scope == "all"))

    def _probe(self, node: Probe, state: PacketState, process: PacketProcess) -> Walking:
        question, answer, passes, model = self.payload.of(node)
        targets = list(enumerate(map(device, node.devices)))

        def then(i: int, copy: PacketState, own: PacketProcess) -> Steps:
            """Simulate a question to a device and its answer in one generator, as there may be many."""
            site = targets[i][1]
            time = copy.time
            clock = self.clock
            hops = () if site == copy.site or site.index in copy.held else self.routes.route(copy.site, site).hops
            for hop in hops:
                if hop.resource >= 0 and time > clock.now:
                    yield time
                time = self.spent.transfer(hop, time, question, own)
            time += self.spent.compute(site.index, passes, own)
            for hop in () if site == node.at else self.routes.route(site, node.at).hops:
                if hop.resource >= 0 and time > clock.now:
                    yield time
                time = self.spent.transfer(hop, time, answer, own)
            return time

        return (yield from self._hand_out(state, targets, question, process, then, whole=model))

    def _hand_out(
        self, state: PacketState, targets: list[tuple[int, Site]], size: int, process: PacketProcess, then: Continue, *,
        whole: bool,
    ) -> Walking:  # fmt: skip
        """Simulate copies of a packet that stays; devices with the whole model need no copy."""
        origin = state if whole else state._replace(held=frozenset())
        end = yield from self.copies.fan(origin, targets, size, process, then)
        return state._replace(time=end, held=state.held.union(s.index for _, s in targets) if whole else state.held)

    def _move(
        self, state: PacketState, to: Site, size: int, process: PacketProcess, down: int | None = None
    ) -> Walking:
        """Simulate the transfer of the packet to a site, after which it is no longer a visit's result.

        Args:
            size: size of the packet in bytes.
            down: bytes on links away from the cloud, if codecs change them.
        """
        time = state.time
        sent = self.transmissions.get(state.visit)
        if down is None:
            down = size if state.down < 0 else state.down
        if state.site == to:
            return state if state.down < 0 else state._replace(down=-1)
        if not (to.kind == "device" and to.index in state.held):
            for hop in self.routes.route(state.site, to).hops:
                if hop.resource >= 0 and time > self.clock.now:
                    process.order = hop.device if hop.device >= 0 else process.order
                    yield time
                up = size if state.up < 0 else _upwards(hop, state.up)
                time = self.spent.transfer(hop, time, up if hop.counter.endswith("_up") else down, process, sent)
        if state.visit >= 0:
            self.visit_s[state.visit] = time - state.since
        return PacketState(time, to, state.size, held=state.held, whole=state.whole if size < self.model_bytes else to)

    def _pull(self, state: PacketState, to: Site, size: int, process: PacketProcess) -> Steps:
        """Simulate the pull of a missing part by a device from the whole model's site, after the packet has arrived."""
        process.order = to.index
        hops = self.routes.route(state.whole, to).hops if size else ()
        return (yield from self.spent.carry(hops, state.time, size, process))

    def _size(self, scope: str) -> int:
        if scope not in self.packet:
            raise unknown("scope to price", scope, self.packet)
        return self.packet[scope]

    def _up(self, work: Work) -> int:
        """Return the bytes of a visit's result."""
        return self.payload.coded[work.travels, work.travel] if work.travel else self._size(work.travels)

    def _down(self, work: Work) -> int:
        """Return the bytes of the model sent for a visit."""
        return self.payload.coded[work.travels, work.travel_down] if work.travel_down else self._size(work.travels)

    def _carried(self, state: PacketState, size: int, process: PacketProcess) -> int:
        """Return the size of a packet sent on to further visits, which includes all changes since the cloud.

        Visits of one ``Parallel`` train the same part of the model, so that a branch carries that part alone; a
        ``Sequence`` of the whole round may have trained another part before.
        """
        return size if state.site == CLOUD or process is not self.root else max(size, state.size)

    def _visits(self, node: Node) -> int:
        return 1 if isinstance(node, Train) else self.visits_inside[id(node)]

    def _transmissions(self, air: RadioUplink, when: tuple[int, int, Sequence[int] | None]) -> dict[int, Transmission]:
        """Return number of a visit in plan order → transmission of its result."""
        return {
            number: air.send(
                visit, others, place, whole := self._size(visit.work.travels), self._up(visit.work) / whole
            )
            for number, (visit, others, place) in enumerate(placed_visits(self.plan, *when))
            if visit.site != CLOUD
        }


def _upwards(hop: Hop, size: int) -> int:
    """Return the bytes of a coded change on a link.

    Raises:
        SettingError: the receiver is a device, which lacks the model for the addition.
    """
    if hop.counter == "device_device_up":
        raise SettingError(
            "method.travel: devices hand the model on directly, by network.device_device, but codecs code its change, "
            "which the next device cannot add to a model. Leave network.device_device out: the base station then "
            "relays the model; or leave method.travel out."
        )
    return size
