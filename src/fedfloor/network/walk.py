"""A resolved plan walked in simulated time, without training: the price keeps its own time, as links make copies wait.

What a walk has to know before it begins stands below it: how many visits are where, whom they interfere with, who has
to pull the frozen part of the model first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

from fedfloor.errors import SettingError, unknown
from fedfloor.network.account import Account
from fedfloor.network.air import Air, Sent, VisitPlace
from fedfloor.network.copies import Copies, PacketState, Target, Then
from fedfloor.network.events import Clock, Process, Steps
from fedfloor.network.payload import Payload
from fedfloor.network.sites import Sites
from fedfloor.plan import schedule, walk
from fedfloor.plan.nodes import CLOUD, Broadcast, Node, Parallel, Probe, Repeat, Select, Site, Train, device, only
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Dry, Packet, RoundContext, TrainRequest

Walking = Generator["float | None", None, PacketState]
Carries = Callable[[Probe], bool]


class PriceWalk:
    """One walk; :func:`fedfloor.network.price.price` describes what it does."""

    def __init__(
        self, plan: Node, sites: Sites, payload: Payload, air: Air | None,
        when: tuple[int, int, Sequence[int] | None], holders: frozenset[int], *, trace: bool,
    ) -> None:  # fmt: skip
        self.plan, self.payload, self.packet = plan, payload, payload.packet
        self.full = self._size("all")
        self.clock, self.routes = Clock(), sites.routes
        self.spent = Account(sites, air, self.clock, trace=trace)
        self.copies = Copies(self.clock, self.routes, self.spent)
        self.inside, self.named, parts = surveyed(plan, payload.carries)
        self.pulls, self.holders = frozenset[int](), frozenset[int]() if self._visits(plan) else holders
        if parts:
            self.pulls, self.holders = pulled(plan, holders, payload.carries)
        self.visit_s = [0.0] * self._visits(plan)
        self.root = Process(-1, None)
        self.sent = {} if air is None else self._sent(air, when)

    def run(self) -> float:
        """Walk the whole plan; return the seconds it takes."""
        self.root.steps = self._whole()
        return self.clock.run(self.root)

    def _whole(self) -> Steps:
        state = yield from self._node(self.plan, PacketState(0.0, CLOUD, self.full), self.root, 0)
        state = yield from self._move(state, CLOUD, state.size, self.root)
        return state.time

    # -- nodes ------------------------------------------------------------------------------------------------------

    def _node(self, node: Node, state: PacketState, process: Process, first: int) -> Walking:
        """Walk a node; ``first`` is the number of its first visit in plan order."""
        if isinstance(node, Train):
            return self._train(node, state, process, first)
        if isinstance(node, Parallel):
            return self._parallel(node, state, process, first)
        if isinstance(node, Broadcast):
            return self._broadcast(node, state, process)
        if isinstance(node, Probe):
            return self._probe(node, state, process)
        return self._in_turn(node, state, process, first)

    def _in_turn(self, node: Node, state: PacketState, process: Process, first: int) -> Walking:
        turns = (node.child,) * node.times if isinstance(node, Repeat) else walk.children(node)
        for child in turns:
            state = yield from self._node(child, state, process, first)
            first += self._visits(child)
        return state

    def _train(self, node: Train, state: PacketState, process: Process, number: int) -> Walking:
        size, since = self._carried(state, self._size(node.work.travels), process), state.time
        if state.visit < 0 and state.since >= 0:
            since = state.since
        state = yield from self._move(state, node.site, size, process)
        time = state.time
        if number in self.pulls:
            time = yield from self._pull(state, node.site, self.full - size, process)
        time += self.spent.train(node, process)
        self.visit_s[number] = time - since
        return PacketState(time, node.site, size, number, since, whole=state.whole)

    def _parallel(self, node: Parallel, state: PacketState, process: Process, first: int) -> Walking:
        numbers, targets, scopes = [], [], set()
        for i, child in enumerate(node.children):
            numbers.append(first)
            if isinstance(child, Train):  # the node there is most of
                first, site = first + 1, child.site
                scopes.add(child.work.travels)
            else:
                first, site = first + self.inside[id(child)], first_stop(child, node.at) or node.at
                scopes.add(first_scope(child))
            targets.append((i, site))
        size = max(map(self._size, scopes), default=state.size)
        carried = self._carried(state, size, process)
        state = yield from self._move(state, node.at, carried, process)

        def then(i: int, there: PacketState, own: Process) -> Steps:
            child = node.children[i]
            if isinstance(child, Train) and only(child, "site", "work", "radio"):
                return self._there_and_back(child, there, own, numbers[i], node.at)
            return self._branch(child, there, own, numbers[i], node.at)

        end = yield from self.copies.fan(state, targets, size, process, then)
        return PacketState(end, node.at, carried, whole=state.whole if carried < self.full else node.at)

    def _branch(self, node: Node, state: PacketState, own: Process, first: int, at: Site) -> Steps:
        done = yield from self._node(node, state, own, first)
        back = yield from self._move(done, at, done.size, own)
        return back.time

    def _there_and_back(self, node: Train, state: PacketState, own: Process, number: int, at: Site) -> Steps:
        """Do what ``_branch`` does, for a single visit: the node there is most of, so in one generator."""
        site, size, time, clock = node.site, self._size(node.work.travels), state.time, self.clock
        since = state.since if state.since >= 0 else time
        if not (site is state.site or (site.kind == "device" and site.index in state.held)):
            for hop in self.routes.route(state.site, site).hops:
                if hop.resource >= 0 and time > clock.now:
                    yield time
                time = self.spent.take(hop, time, size, own)
        if number in self.pulls:
            time = yield from self._pull(state._replace(time=time), site, self.full - size, own)
        time += self.spent.train(node, own)
        sent = self.sent.get(number)
        for hop in self.routes.route(site, at).hops:
            if hop.resource >= 0 and time > clock.now:
                yield time
            time = self.spent.take(hop, time, size, own, sent)
        self.visit_s[number] = time - since
        return time

    def _broadcast(self, node: Broadcast, state: PacketState, process: Process) -> Walking:
        def then(i: int, there: PacketState, own: Process) -> Steps:
            arrived = yield from self._move(there, targets[i][1], size, own)
            return arrived.time

        size, targets = self._size(node.scope), list(enumerate(map(device, node.devices)))
        return (yield from self._hand_out(state, targets, size, process, then, whole=node.scope == "all"))

    def _probe(self, node: Probe, state: PacketState, process: Process) -> Walking:
        question, answer, passes, model = self.payload.of(node)
        targets = list(enumerate(map(device, node.devices)))

        def then(i: int, there: PacketState, own: Process) -> Steps:
            return self._asked(targets[i][1], there, own, (question, answer, passes), node.at)

        return (yield from self._hand_out(state, targets, question, process, then, whole=model))

    def _asked(self, site: Site, state: PacketState, own: Process, asked: tuple[int, int, float], at: Site) -> Steps:
        """Ask a device and carry its answer to ``at``: there can be many, so in one generator."""
        (question, answer, passes), time, clock = asked, state.time, self.clock
        there = () if site == state.site or site.index in state.held else self.routes.route(state.site, site).hops
        for hop in there:
            if hop.resource >= 0 and time > clock.now:
                yield time
            time = self.spent.take(hop, time, question, own)
        time += self.spent.compute(site.index, passes, own)
        for hop in () if site == at else self.routes.route(site, at).hops:
            if hop.resource >= 0 and time > clock.now:
                yield time
            time = self.spent.take(hop, time, answer, own)
        return time

    def _hand_out(
        self, state: PacketState, targets: Sequence[Target], size: int, process: Process, then: Then, *, whole: bool
    ) -> Walking:
        """Send something out while the packet stays; where it is the whole model, devices that hold it need no copy."""
        end = yield from self.copies.fan(
            state if whole else state._replace(held=frozenset()), targets, size, process, then
        )
        return state._replace(time=end, held=state.held.union(s.index for _, s in targets) if whole else state.held)

    # -- moves --------------------------------------------------------------------------------------------------------

    def _move(self, state: PacketState, to: Site, size: int, process: Process) -> Walking:
        """Send the packet to a site; it stays what it is, but is no visit's result any more once it has gone on."""
        time, sent = state.time, self.sent.get(state.visit)
        if state.site == to:
            return state
        if not (to.kind == "device" and to.index in state.held):
            for hop in self.routes.route(state.site, to).hops:
                if hop.resource >= 0 and time > self.clock.now:
                    process.order = hop.device if hop.device >= 0 else process.order
                    yield time
                time = self.spent.take(hop, time, size, process, sent)
        if state.visit >= 0:
            self.visit_s[state.visit] = time - state.since
        return PacketState(time, to, state.size, held=state.held, whole=state.whole if size < self.full else to)

    def _pull(self, state: PacketState, to: Site, size: int, process: Process) -> Steps:
        """Bring a device what it lacks, if anything, from where the model is whole, once the packet is there."""
        time, process.order = state.time, to.index
        for hop in self.routes.route(state.whole, to).hops if size else ():
            if hop.resource >= 0 and time > self.clock.now:
                yield time
            time = self.spent.take(hop, time, size, process)
        return time

    # -- what is known of the plan -----------------------------------------------------------------------------------

    def _size(self, scope: str) -> int:
        if scope not in self.packet:
            raise unknown("scope to price", scope, self.packet)
        return self.packet[scope]

    def _carried(self, state: PacketState, size: int, process: Process) -> int:
        """Return what goes on to visits of this size: what was trained since the cloud goes along, of any scope."""
        return size if state.site == CLOUD or process is not self.root else max(size, state.size)

    def _visits(self, node: Node) -> int:
        return 1 if isinstance(node, Train) else self.inside[id(node)]

    def _sent(self, air: Air, when: tuple[int, int, Sequence[int] | None]) -> dict[int, Sent]:
        """Say of each visit how its result is sent, keyed by its number in plan order."""
        return {
            number: air.send(visit, others, place, self._size(visit.work.travels))
            for number, (visit, others, place) in enumerate(placed(self.plan, *when))
            if visit.site != CLOUD
        }


def surveyed(plan: Node, carry: Carries) -> tuple[dict[int, int], set[int], bool]:
    """Return what a plan has: how many visits in each node, whom it names, and whether :func:`pulled` matters to it.

    A node that stands in a plan twice is looked at once.

    Args:
        plan: what is walked.
        carry: whether the model goes along with a question.

    Returns:
        id of a node → how many visits it makes, for all but visits; the devices that are named; whether visits train a
        part of the model, or devices are left with all of it.

    Raises:
        SettingError: there is a ``Select``.
    """
    inside: dict[int, int] = {}
    named: set[int] = set()
    parts = False

    def go(node: Node) -> int:
        nonlocal parts
        if isinstance(node, Train):
            if node.work.sends == "nothing":
                raise SettingError("visits that send nothing have no price. Leave [network] out.")
            if node.work.borrows:
                parts = True
            if node.site.kind == "device":
                named.add(node.site.index)
            return 1
        found = inside.get(id(node))
        if found is None:
            if isinstance(node, Select):
                raise schedule.unresolved()
            if isinstance(node, (Broadcast, Probe)):
                named.update(node.devices)
                parts = parts or _leaves(node, carry)
            found = sum(map(go, walk.children(node))) * (node.times if isinstance(node, Repeat) else 1)
            inside[id(node)] = found
        return found

    go(plan)
    return inside, named, parts


def pulled(plan: Node, holders: frozenset[int], carry: Carries) -> tuple[frozenset[int], frozenset[int]]:
    """Return the visits whose device has to pull the frozen part first, and who holds that part after the plan.

    The frozen part is what a visit of a part of the model leaves as it is. A device holds it as it is now from when it
    is handed or asked with the whole model, or has pulled it, until a visit trains the whole model, or such models
    meet: then nobody does. That goes by the order of the plan, not by simulated time; visits are numbered by it.

    Args:
        plan: what is walked.
        holders: the devices that hold the frozen part before it.
        carry: whether the model goes along with a question.
    """
    pulls, held, visits = list[int](), set(holders), 0

    def go(node: Node) -> bool:
        """Go through a node; return whether it trains the whole model."""
        nonlocal visits
        if isinstance(node, Train):
            if not node.work.borrows:
                held.clear()
            elif node.site.kind == "device" and node.site.index not in held:
                held.add(node.site.index)
                pulls.append(visits)
            visits += 1
            return not node.work.borrows
        if isinstance(node, (Broadcast, Probe)) and _leaves(node, carry):
            held.update(node.devices)
        turns = (node.child,) * node.times if isinstance(node, Repeat) else walk.children(node)
        changed = sum(go(child) for child in turns) > 0  # not any(), which would stop at the first
        if changed and isinstance(node, Parallel):  # what a branch handed out is not what they make together
            held.clear()
        return changed

    go(plan)
    return frozenset(pulls), frozenset(held)


def _leaves(node: Broadcast | Probe, carry: Carries) -> bool:
    """Say whether devices are left with the whole model."""
    return node.scope == "all" if isinstance(node, Broadcast) else carry(node)


def placed(
    plan: Node, round_number: int, tick: int, numbered: Sequence[int] | None = None
) -> list[tuple[Train, tuple[Train, ...], VisitPlace]]:
    """Return every visit in plan order with those that interfere with it, and (round, tick, device, visit).

    The engine numbers visits the same way, so that both draw the same chance; but where branches of a ``Parallel``
    chose the same device, none of them counted the others' visits, which the resolved plan does not tell.

    Args:
        plan: without ``Select`` nodes.
        round_number, tick: where it begins.
        numbered: the visits' numbers, from the receipts; counted here where they are left out.
    """
    walked = _Visits()
    walked.over(plan, RoundContext(0, round_number, interference=True), tick)
    numbers = [one.key.visit for one in walked.found] if numbered is None else numbered
    return [
        (one.node, one.concurrent, replace(one.key, visit=number).place())
        for one, number in zip(walked.found, numbers, strict=True)
    ]


class _Visits(Dry):
    def __init__(self) -> None:
        self.found: list[TrainRequest] = []

    def train(self, request: TrainRequest) -> tuple[Packet, Receipt] | None:
        self.found.append(request)
        return super().train(request)


def first_stop(node: Node, at: Site) -> Site | None:
    """Return where a packet that stands at ``at`` goes first, or None where the node does not matter to it.

    Asking and handing out take place from where the packet stands: it stays there.
    """
    if isinstance(node, Train):
        return node.site
    if isinstance(node, Parallel):
        return node.at
    if isinstance(node, (Broadcast, Probe)):
        return at
    return next((site for child in walk.children(node) if (site := first_stop(child, at)) is not None), None)


def first_scope(node: Node) -> str:
    """Return the scope of the first visit in a node, ``"all"`` where there is none."""
    return _scope(node) or "all"


def _scope(node: Node) -> str | None:
    if isinstance(node, Train):
        return node.work.travels
    return next((scope for child in walk.children(node) if (scope := _scope(child)) is not None), None)
