"""The walk over a plan, with its clock, visit numbers, lost visits, selections, and isolated branches.

:meth:`Walk.node` is a generator. It yields one request after the other, receives the result of each, and returns a
:class:`NodeResult`. A driver (:mod:`fedfloor.plan.drivers`) carries out the requests: one by one, on several ranks, for
many devices at once, on real machines, or not at all. The walk alone determines the path of the packet; drivers do
everything else. ``Sequence`` and ``Repeat`` need no request: the walk itself takes their children in turn.

====================  ========================================================================================
request               result
====================  ========================================================================================
``TrainRequest``      (packet, receipt) of one visit; None where its result was lost
``ProbeRequest``      device → question → answer
``BroadcastRequest``  nothing
``SelectRequest``     the selected devices
``ParallelRequest``   the ``NodeResult`` of all branches together: :func:`joined`, with the aggregated packet
====================  ========================================================================================
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError, shown
from fedfloor.plan import nodes, visit_order, walk
from fedfloor.plan.nodes import (
    KEEP,
    LEAST_LOSS,
    MODEL,
    Broadcast,
    Node,
    Parallel,
    Probe,
    Repeat,
    Select,
    Since,
    Train,
    Work,
)
from fedfloor.plan.outcome import Receipt

if TYPE_CHECKING:
    import numpy as np

AGGREGATION = tuple(f.name for f in fields(Parallel) if f.name in {of.name for of in fields(Select)})

R = TypeVar("R")
T = TypeVar("T")
Packet = Mapping[str, Any]
Answers = dict[int, dict[str, Any]]
Concurrent = tuple[Train, ...]  # the simultaneous visits of other branches, whose uploads interfere


@dataclass(frozen=True)
class Key:
    """The key of a visit, which determines all its random draws. Device −1 is the cloud."""

    seed: int
    round: int
    tick: int
    device: int
    visit: int

    def place(self) -> tuple[int, int, int, int]:
        """Return (round, tick, device, visit)."""
        return self.round, self.tick, self.device, self.visit

    def rng(self, purpose: str) -> np.random.Generator:
        """Return the visit's random generator for a purpose."""
        return generator(self.seed, purpose, *self.place())

    @property
    def where(self) -> str:
        """The visit's site in words, such as "device 3"."""
        return "the cloud" if self.device < 0 else f"device {self.device}"


def is_lost(key: Key, chance: float) -> bool:
    """Return whether a visit is lost with probability ``chance``, by (seed, "lost", round, tick, device, visit)."""
    return chance > 0 and bool(key.rng("lost").random() < chance)


@dataclass(frozen=True)
class NodeResult:
    """The result of walking one node."""

    packet: Packet  # the packet after the node; perhaps the network's own buffer, which the next visit changes
    resolved: Node  # the node with every ``Select`` replaced by the visits to the chosen devices
    receipts: list[Receipt] = field(default_factory=list)  # the receipts of its visits, in plan order
    trained: frozenset[int] = frozenset()  # the devices whose visits were not lost
    answers: Answers = field(default_factory=dict)  # device → question → answer
    chosen: tuple[tuple[int, ...], ...] = ()  # the devices selected by each ``Select`` below, in the order of the walk


class TrainRequest(NamedTuple):
    """A request to train a packet at a site."""

    node: Train  # the visit
    packet: Packet  # the arrived packet
    key: Key  # the key of the visit's random draws
    size: int  # size in bytes of the packet after training
    concurrent: Concurrent  # the simultaneous visits of other branches, whose uploads interfere with this visit's


class ProbeRequest(NamedTuple):
    """A request to put a question to devices."""

    node: Probe
    packet: Packet
    tick: int


class BroadcastRequest(NamedTuple):
    """A request to send the model to devices that only keep it."""

    node: Broadcast
    packet: Packet


class SelectRequest(NamedTuple):
    """A request to select the devices of a ``Select``; ``visits`` counts each device's visits so far in the round."""

    node: Select
    tick: int
    visits: Mapping[int, int]


class ParallelRequest(NamedTuple):
    """A request to send copies of a packet into the branches of a ``Parallel``, and to aggregate the results."""

    node: Parallel
    packet: Packet
    tick: int
    walk: Walk

    def branches(self, mine: Collection[int] | None = None) -> list[BranchWalk]:
        """Return the branches ``mine`` (default: all), with visits numbered as in a walk of all branches in plan order.

        Branches are simultaneous, and do not count the visits selected in other branches.
        """
        own = self.walk
        # branches are simultaneous, and yet their visits are numbered as in one walk over all of them: a visit's random
        # draws then do not depend on which rank or edge walks its branch
        ahead = Counter[int]()
        result = []
        choices = iter(own.choices)
        apart = own.round.interference and not any(map(walk.meets, self.node.children))
        neighbours = visit_order.concurrent(self.node) if apart else None
        for index, child in enumerate(self.node.children):
            made = tuple(islice(choices, visit_order.count_selects(child))) if own.choices else ()
            if mine is None or index in mine:
                known = frozenset({*walk.devices(child), -1})  # not for all devices, which would be quadratic
                seen = {k: own.visits[k] + ahead[k] for k in known}
                below = Walk(own.round, seen, own.answers, known=Foreknown(made))
                below._concurrent = list(neighbours[index]) if neighbours else []
                result.append(BranchWalk(index, child, known, below))
            for visit, times in walk.visited(child):
                ahead[walk.number(visit)] += times * visit.work.counts
        return result

    def visit_keys(self) -> list[Key]:
        """Return the keys of branches that are all visits to distinct devices; [] for other branches."""
        context = self.walk.round
        seen = self.walk.visits
        devices = [visit.site.index for visit in cast("tuple[Train, ...]", self.node.children)]
        return [Key(context.seed, context.number, self.tick, k, seen[k]) for k in devices]


@dataclass(frozen=True)
class BranchWalk:
    """A branch of a ``Parallel`` with its index, node and walk; ``known``: its devices, and −1 for the cloud."""

    index: int
    node: Node
    known: frozenset[int]
    walk: Walk


Request = TrainRequest | ProbeRequest | BroadcastRequest | SelectRequest | ParallelRequest
Walking = Generator[Request, Any, NodeResult]


@dataclass(frozen=True)
class RoundContext:
    """The facts of a round that a walk needs.

    Args:
        seed, number: the experiment's seed and the round's number, the key of random draws.
        samples_of: device → its number of samples; −1 is the cloud.
        sent: (work, packet) → the bytes that a visit sends.
        lost: (visit, its concurrent visits, key) → whether the result of the visit is lost.
        versions: number of a round → the global model after it, for visits that departed then.
    """

    seed: int
    number: int
    samples_of: Callable[[int], int] = lambda device: 0  # noqa: ARG005
    sent: Callable[[Work, Packet], int] = lambda work, packet: 0  # noqa: ARG005
    lost: Callable[[Train, Concurrent, Key], bool] = lambda node, concurrent, key: False  # noqa: ARG005
    interference: bool = False  # whether ``lost`` reads the concurrent visits
    versions: Mapping[int, Any] = field(default_factory=dict)


def losing(
    seed: int,
    number: int,
    chance: float,
    on_air: Callable[[Train, Concurrent, tuple[int, int, int, int]], bool] | None = None,
) -> RoundContext:
    """Return the context of a round in which visits are lost with a probability, or by the radio's interference.

    Args:
        on_air: (visit, its concurrent visits, place) → whether its upload is lost; None without interference.
    """

    def lost(node: Train, concurrent: Concurrent, key: Key) -> bool:
        return is_lost(key, chance) or (on_air is not None and on_air(node, concurrent, key.place()))

    return RoundContext(seed, number, lost=lost, interference=on_air is not None)


class Foreknown(NamedTuple):
    """What a walk need not request, as it is known beforehand.

    Attributes:
        choices: the devices selected by each ``Select``, in the order of the walk; () if they are open.
        answers: the answers to the first questions of the walk, device → question → answer.
    """

    choices: tuple[Sequence[int], ...] = ()
    answers: tuple[Answers, ...] = ()


NOTHING = Foreknown()


class Walk:
    """A walk over a plan, or over a branch of a plan.

    Args:
        context: the facts of the round.
        visits: device → the number of its visits so far in the round.
        answers: device → question → answer, so far in the round.
        by_team: whether the whole team walks and deals out branches. A node with visits, but without branches or
            questions below it, is walked as the only branch of a ``Parallel``, so that a single rank does all of it.
        known: what need not be requested.
    """

    def __init__(
        self, context: RoundContext, visits: Mapping[int, int] | None = None, answers: Answers | None = None, *,
        by_team: bool = False, known: Foreknown = NOTHING,
    ) -> None:  # fmt: skip
        self.round = context
        self.by_team = by_team
        self.visits: Counter[int] = Counter(visits or {})
        self.answers: Answers = answers or {}
        self._concurrent: list[Concurrent] = []
        self.choices = deque(known.choices)
        self._heard = deque(known.answers)

    def node(self, node: Node, packet: Packet, tick: int) -> Walking:
        """Walk a node with a packet, starting at a tick."""
        if self.by_team and walk.works(node) and not (walk.meets(node) or walk.probes(node)):
            return self._alone(node, packet, tick)
        step = next((_STEPS[kind] for kind in type(node).__mro__ if kind in _STEPS), None)
        if step is None:
            raise SettingError(f"a plan consists of nodes (fedfloor.plan.nodes); got {shown(node)}.", key="plan")
        return step(self, node, packet, tick)

    def _alone(self, node: Node, packet: Packet, tick: int) -> Walking:
        """Walk a node as the only branch of a ``Parallel``, so that one rank does it."""
        result = yield from self._parallel(Parallel((node,), mix="equal"), packet, tick)
        return replace(result, resolved=cast(Parallel, result.resolved).children[0])

    def _train(self, node: Train, packet: Packet, tick: int) -> Walking:
        context = self.round
        device = walk.number(node)
        key = Key(context.seed, context.number, tick, device, self.visits[device])
        # the next visit of the device in this walk has the next number, whether this one is lost or not
        self.visits[device] += node.work.counts
        size = context.sent(node.work, packet)
        concurrent = self._concurrent.pop(0) if self._concurrent else ()  # the cloud's visits have an entry, too
        trained = None
        if device < 0 or not context.lost(node, concurrent, key):
            trained = yield TrainRequest(node, packet, key, size, concurrent)
        if trained is None:
            return NodeResult(packet, node, [lost(key, context.samples_of(device), size)])
        packet, receipt = trained
        return NodeResult(packet, node, [receipt], frozenset() if receipt.lost else frozenset({device}))

    def _select(self, node: Select, packet: Packet, tick: int) -> Walking:
        if self.choices:
            chosen = self.choices.popleft()
        elif node.policy == LEAST_LOSS:
            chosen = nearest(node, self.answers)
        else:
            chosen = yield SelectRequest(node, tick, self.visits)
        if not chosen:
            return NodeResult(packet, with_census(node, visits(node, chosen)), chosen=((),))
        result = yield from self.node(visits(node, chosen), packet, tick)
        return replace(result, resolved=with_census(node, result.resolved), chosen=(tuple(chosen),))

    def _parallel(self, node: Parallel, packet: Packet, tick: int) -> Walking:
        if node.mix == KEEP:
            return (yield from self._turns(node, packet, tick))
        alone = node if node.model == MODEL else replace(node, model=MODEL)
        result: NodeResult = yield ParallelRequest(alone, single(packet, node.model), tick, self)
        # the branches have had these choices from a copy of the queue
        for _ in range(visit_order.count_selects(node) if self.choices else 0):
            self.choices.popleft()
        # of several models one went through the branches, as w; the others wait beside it
        if several(packet):
            same = result.resolved is alone
            resolved = node if same else replace(cast(Parallel, result.resolved), model=node.model)
            result = replace(result, packet={**packet, node.model: result.packet[MODEL].clone()}, resolved=resolved)
        if result.answers:
            self.answers = merged([self.answers, result.answers])
        self.visits.update(counted(result.receipts))
        return result

    def _since(self, node: Since, packet: Packet, tick: int) -> Walking:
        start = packet
        if MODEL in packet:
            if node.version not in self.round.versions:
                raise SettingError(
                    f"the plan starts from the model of round {node.version}, which is not kept: a run "
                    "that does not wait must be resumed with the same network, devices and work.",
                    key="model-not-kept",
                )
            start = {**packet, MODEL: self.round.versions[node.version]}
        # its draws are those of then
        present = self.round
        self.round = replace(self.round, number=node.version + 1)
        result = yield from self.node(node.child, start, node.tick)
        self.round = present
        resolved = node if result.resolved is node.child else replace(node, child=result.resolved)
        if MODEL not in packet or not result.trained:
            return replace(result, packet=packet, resolved=resolved)
        base = start if node.counts == "change" else packet
        moved = packet[MODEL] + node.weight * (result.packet[MODEL] - base[MODEL])
        return replace(result, packet={**result.packet, MODEL: moved}, resolved=resolved)

    def _broadcast(self, node: Broadcast, packet: Packet, tick: int) -> Walking:
        yield BroadcastRequest(node, packet)
        return NodeResult(packet, node)

    def _probe(self, node: Probe, packet: Packet, tick: int) -> Walking:
        answers = self._heard.popleft() if self._heard else (yield ProbeRequest(node, packet, tick))
        self.answers = merged([self.answers, answers])
        return NodeResult(packet, node, answers=answers)

    def _turns(self, node: Repeat | nodes.Sequence | Parallel, packet: Packet, tick: int) -> Walking:
        """Walk children one after the other: each starts at the place and time at which the previous child ended."""
        done = list[NodeResult]()
        for child, ticks in visit_order.turns(node):
            result = yield from self.node(child, packet, tick)
            packet = result.packet
            # only the last packet is needed: those of a long chain would fill the memory
            done.append(replace(result, packet={}) if packet else result)
            tick += ticks
        return _together(packet, visit_order.rebuilt(node, [result.resolved for result in done]), done)


_STEPS: dict[type[Any], Callable[..., Walking]] = {
    Train: Walk._train, Select: Walk._select, Parallel: Walk._parallel, Broadcast: Walk._broadcast,
    Probe: Walk._probe, Repeat: Walk._turns, nodes.Sequence: Walk._turns, Since: Walk._since,
}  # fmt: skip


def _together(packet: Packet, resolved: Node, parts: Sequence[NodeResult]) -> NodeResult:
    return NodeResult(
        packet, resolved, [receipt for part in parts for receipt in part.receipts],
        frozenset().union(*(part.trained for part in parts)), merged([part.answers for part in parts]),
        tuple(chosen for part in parts for chosen in part.chosen),
    )  # fmt: skip


def joined(request: ParallelRequest, packet: Packet, branches: Sequence[NodeResult]) -> NodeResult:
    """Return the result of a ``Parallel`` from the aggregated packet and the results of its branches."""
    children = tuple(result.resolved for result in branches)
    same = all(a is b for a, b in zip(children, request.node.children, strict=True))
    result = _together(packet, request.node if same else replace(request.node, children=children), branches)
    return replace(result, trained=frozenset(receipt.device for receipt in result.receipts if not receipt.lost))


def counted(receipts: Iterable[Receipt]) -> Iterator[int]:
    """Yield the device of every visit that has its own number: see :attr:`Work.counts`."""
    return (device for (device, *_), _ in groupby((r.device, r.tick, r.visit) for r in receipts))


def merged(parts: Sequence[Mapping[int, Mapping[str, Any]]]) -> Answers:
    """Return merged answers, device → question → answer; later answers replace earlier ones."""
    answers: Answers = {}
    for part in parts:
        for device, own in part.items():
            answers[device] = {**answers.get(device, {}), **own}
    return answers


def lost(key: Key, samples: int, size: int) -> Receipt:
    """Return the receipt of a lost visit."""
    return Receipt(key.device, key.visit, key.tick, 0, samples, 0.0, 0.0, 0.0, size, lost=True)


# -- models and choices -----------------------------------------------------------------------------------------------


def several(packet: Packet) -> bool:
    """Return whether a packet has several models.

    >>> several({"w": 0, "c": 0}), several({"w": 0, "w/1": 0})
    (False, True)
    """
    return any(name.startswith(f"{MODEL}/") for name in packet)


def single(packet: Packet, model: str = MODEL) -> Packet:
    """Return a packet with only one of its models, as ``w``; a packet without models (no training) is unchanged.

    >>> single({"w": 0, "w/1": 1, "c": 2}, "w/1")
    {'w': 1, 'c': 2}
    """
    if MODEL not in packet or (model == MODEL and not several(packet)):
        return packet
    if model not in packet:
        raise SettingError(
            f"the plan has a Parallel of model {shown(model)}: the packet has {', '.join(packet)}.", key="plan"
        )
    return {name: packet[model] if name == MODEL else x for name, x in packet.items() if name[:2] != f"{MODEL}/"}


def visits(node: Select, chosen: Sequence[int]) -> Parallel:
    """Return the visits to the devices that a ``Select`` has selected.

    >>> visits(Select("uniform", (3, 5, 7), 2, Work(steps=1), nodes.edge(0)), (3, 7)).children[1].site
    Site(kind='device', index=7)
    """
    return Parallel(tuple(node.visit[k] for k in chosen), *(getattr(node, name) for name in AGGREGATION))


def nearest(node: Select, answers: Mapping[int, Mapping[str, Any]]) -> tuple[int, ...]:
    """Return the candidates whose answer to ``losses`` is least for the node's model (the first of equal losses).

    A device without an answer has the first model.

    >>> node = Select(LEAST_LOSS, (0, 1, 2), 3, Work(steps=1), model="w/1")
    >>> nearest(node, {0: {"losses": [2.0, 1.0]}, 1: {"losses": [1.0, 1.0]}})
    (0,)
    """
    losses_of = {k: answers.get(k, {}).get("losses", [0.0]) for k in node.candidates}
    return tuple(k for k, losses in losses_of.items() if nodes.model_name(losses.index(min(losses))) == node.model)


def with_census(node: Select, visited: Node) -> Node:
    """Return the visits of a ``Select``, preceded by the question for the census if its bytes are counted."""
    return visited if node.census is None else nodes.Sequence((node.census, visited))


def resolved(node: Node, choices: Iterator[Sequence[int]]) -> Node:
    """Return a plan with every ``Select`` replaced by its visits; the same object if it has none."""
    if isinstance(node, Select):
        return with_census(node, visits(node, next(choices)))
    if isinstance(node, Parallel):
        branches = tuple(resolved(child, choices) for child in node.children)
        same = all(a is b for a, b in zip(branches, node.children, strict=True))
        return node if same else replace(node, children=branches)
    if isinstance(node, Since):
        child = resolved(node.child, choices)
        return node if child is node.child else replace(node, child=child)
    below = [resolved(child, choices) for child, _ in visit_order.turns(node)]
    return visit_order.rebuilt(node, below) if below else node
