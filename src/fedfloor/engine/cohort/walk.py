"""A walk driven in lockstep: every branch goes on until it has a visit to ask for.

A driven walk is a generator. It yields the visits that it waits for, and is sent what became of them; a ``Parallel``
yields those of all its branches together. So chains of any length, turns, choices and meetings within meetings come to
lists of visits that happen at the same time, and what is alike in such a list is stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from fedfloor.engine import scopes
from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.cohort.asks import Answer, Ask, Driven, PendingReceipt, Uniting, Visiting
from fedfloor.engine.probe import no_vector
from fedfloor.models.parcel import Packet
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key, NodeResult, ParallelRequest, TrainRequest, Walking

if TYPE_CHECKING:
    from fedfloor.engine.ranks import Trainer

Do = Callable[[list[Ask]], list[Answer]]


def answered(driven: Driven, do: Do) -> NodeResult:
    """Go to the end of a walk, and do what is asked for on the way."""
    answers = None
    while True:
        try:
            request = next(driven) if answers is None else driven.send(answers)
        except StopIteration as stop:
            return cast(NodeResult, stop.value)
        answers = do(request)


def lockstep(walks: Sequence[Driven]) -> Generator[list[Ask], list[Answer], list[NodeResult]]:
    """Go through several branches at the same time; return what came out of each."""
    done: dict[int, NodeResult] = {}
    answers: dict[int, list[Answer] | None] = dict.fromkeys(range(len(walks)))
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
    """Drive a walk.

    Args:
        trainer: of the branch: its engine has the devices' memory as the branch knows it.
        walking: the walk.
        room: how many models there is room for at a time.
    """
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
) -> Generator[list[Ask], list[Answer], tuple[Aggregation, list[NodeResult]]]:
    """Walk the branches ``mine`` of a ``Parallel``, as many at a time as there is room for, in plan order."""
    node, packet, done = request.node, request.packet, list[NodeResult]()
    aggregation = Aggregation(node, packet, scopes.met(trainer.engine.network, node))
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


def _visit(trainer: Trainer, request: TrainRequest) -> Generator[list[Ask], list[Answer], tuple[Packet, Receipt]]:
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
