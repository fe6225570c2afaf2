"""A walk driven in lockstep: every branch goes on until it has a visit to request.

A driven walk is a generator. It yields the visits that it waits for and is sent their answers; a ``Parallel`` yields
those of all its branches together. So chains of any length, turns, choices and nested meetings come to lists of visits
that happen at the same time, and visits of the same work in such a list are stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.engine import Engine
from fedfloor.engine.executor import no_vector
from fedfloor.engine.visit import VisitStats, mixed_part
from fedfloor.models.parcel import Packet
from fedfloor.plan.nodes import Parallel, Train, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key, NodeResult, ParallelRequest, TrainRequest, Walking

if TYPE_CHECKING:
    from fedfloor.engine.ranks import Trainer


@dataclass(frozen=True, eq=False)
class Visiting:
    """A visit that is to take place.

    Args:
        engine: the branch's, whose memory is the devices' as the branch knows it.
        work: what is done.
        packet: what arrived; it is not changed.
        key: of the visit.
    """

    engine: Engine
    work: Work
    packet: Packet
    key: Key


@dataclass(frozen=True, eq=False)
class Uniting:
    """A super node: one step on the union of its devices' mini-batches.

    Args:
        engine: the branch's.
        node: says the work and the mixing rule.
        packet: what arrived; it is not changed.
        keys: of the visits that are not lost, at least one.
    """

    engine: Engine
    node: Parallel
    packet: Packet
    keys: tuple[Key, ...]


Ask = Visiting | Uniting


@dataclass(frozen=True, eq=False)
class CohortAnswer:
    """What became of an ask.

    Args:
        packet: what goes on.
        told: what the visits say, one after the other; asked late, so that nobody waits for the device meanwhile.
        memory: digest of what the device keeps.
        samples: that the device holds, or trained on.
    """

    packet: Packet
    told: Callable[[], list[VisitStats]]
    memory: str | None = None
    samples: int = 0


Driven = Generator[list[Ask], list[CohortAnswer], NodeResult]


@dataclass(eq=False)
class PendingReceipt:
    """A receipt whose figures may still lie on the device."""

    device: int
    visit: int
    tick: int
    samples: int
    bytes: int
    memory: str | None
    told: Callable[[], VisitStats]
    lost: bool = field(default=False, init=False)

    @property
    def accuracy(self) -> float:
        """The share of the last pass's samples that were classified rightly."""
        return self.told().accuracy

    def receipt(self) -> Receipt:
        """Return the receipt."""
        got = self.told()
        said = (got.steps, self.samples, got.loss_first, got.loss_last, got.accuracy)
        return Receipt(self.device, self.visit, self.tick, *said, self.bytes, lost=False, memory=self.memory)


def settled(receipts: list[Any]) -> list[Receipt]:
    """Return receipts whose figures have all arrived."""
    return [one.receipt() if isinstance(one, PendingReceipt) else one for one in receipts]


def work_of(ask: Visiting | Uniting) -> Work:
    """Return what visits do, or each of a super node's."""
    if isinstance(ask, Visiting):
        return ask.work
    return cast(Train, ask.node.children[0]).work


Do = Callable[[list[Ask]], list[CohortAnswer]]


def answered(driven: Driven, do: Do) -> NodeResult:
    """Go to the end of a walk, and do what is asked for on the way."""
    answers = None
    while True:
        try:
            request = next(driven) if answers is None else driven.send(answers)
        except StopIteration as stop:
            return cast(NodeResult, stop.value)
        answers = do(request)


def lockstep(walks: Sequence[Driven]) -> Generator[list[Ask], list[CohortAnswer], list[NodeResult]]:
    """Go through several branches at the same time; return what came out of each."""
    done: dict[int, NodeResult] = {}
    answers: dict[int, list[CohortAnswer] | None] = dict.fromkeys(range(len(walks)))
    while answers:
        request: dict[int, list[Ask]] = {}
        for index, answer in answers.items():
            try:
                request[index] = next(walks[index]) if answer is None else walks[index].send(answer)
            except StopIteration as stop:
                done[index] = stop.value
        got = iter((yield [one for asks in request.values() for one in asks])) if request else iter(())
        answers = {index: list(islice(got, len(asks))) for index, asks in request.items()}
    return [done[index] for index in range(len(walks))]


def driven(trainer: Trainer, walking: Walking, room: int) -> Driven:
    """Drive a walk."""
    result: Any = None
    while True:
        try:
            request = walking.send(result)
        except StopIteration as stop:
            return cast(NodeResult, stop.value)
        if isinstance(request, TrainRequest):
            result = yield from _visit(trainer, request)
        elif isinstance(request, ParallelRequest):
            result = yield from _meet(trainer, request, room)
        else:
            result = trainer.do(request)


def branches(
    trainer: Trainer, request: ParallelRequest, mine: Collection[int], room: int
) -> Generator[list[Ask], list[CohortAnswer], tuple[Aggregation, list[NodeResult]]]:
    """Walk the branches ``mine`` of a ``Parallel``, as many at a time as there is room for, in plan order."""
    node, packet, done = request.node, request.packet, list[NodeResult]()
    aggregation = Aggregation(node, packet, mixed_part(trainer.engine.network, node))
    parts, width = request.branches(mine), max(1, min(room, len(mine)))
    for first in range(0, len(parts), width):
        some = parts[first : first + width]
        walks = [
            driven(trainer.apart(one.known), one.walk.node(one.node, packet, request.tick), max(1, room // width))
            for one in some
        ]
        for branch, one in zip(some, (yield from lockstep(walks)), strict=True):
            no_vector(one.answers)
            done.append(trainer.add(aggregation, branch, one))
    return aggregation, done


def _meet(trainer: Trainer, request: ParallelRequest, room: int) -> Driven:
    cohort = trainer.engine.cohort
    if cohort is not None and cohort.unites(trainer.engine, request.node, request.packet):
        return (yield from _together(trainer, request))
    aggregation, done = yield from branches(trainer, request, range(len(request.node.children)), room)
    return trainer.met(request, aggregation, done)


def _visit(trainer: Trainer, request: TrainRequest) -> Generator[list[Ask], list[CohortAnswer], tuple[Packet, Receipt]]:
    key = request.key
    (got,) = yield [Visiting(trainer.engine, request.node.work, request.packet, key)]
    pending = PendingReceipt(
        key.device, key.visit, key.tick, got.samples, request.size, got.memory, lambda: got.told()[0]
    )
    return got.packet, cast(Receipt, pending)


def _together(trainer: Trainer, request: ParallelRequest) -> Driven:
    """Walk a super node: visits of one step, done as one step on the union of their mini-batches."""
    keys, size = trainer.super_node(request)
    if not keys:
        return trainer.united(request, {}, request.packet)
    (got,) = yield [Uniting(trainer.engine, request.node, request.packet, tuple(keys))]

    def pending(index: int, key: Key) -> Receipt:
        samples = trainer.round.samples_of(key.device)
        return cast(
            Receipt, PendingReceipt(key.device, key.visit, key.tick, samples, size, None, lambda: got.told()[index])
        )

    return trainer.united(request, {key.device: pending(i, key) for i, key in enumerate(keys)}, got.packet)
