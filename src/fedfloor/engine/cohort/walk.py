"""Walks driven in lockstep: every branch advances until it requests a visit.

A driven walk is a generator. It yields the visits that it waits for and receives their answers; a ``Parallel`` yields
the visits of all its branches together. Chains of any length, turns, choices and nested aggregations thus become lists
of simultaneous visits, and the visits of a list with the same work are stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.engine import Engine
from fedfloor.engine.executor import no_vector
from fedfloor.engine.summing import aggregation_of
from fedfloor.engine.visit import VisitStats
from fedfloor.models.parcel import Packet
from fedfloor.plan.nodes import Parallel, Train, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key, NodeResult, ParallelRequest, TrainRequest, Walking

if TYPE_CHECKING:
    from fedfloor.engine.ranks import Trainer


@dataclass(frozen=True, eq=False)
class VisitJob:
    """A visit that the cohort has to carry out."""

    engine: Engine
    work: Work
    packet: Packet
    key: Key


@dataclass(frozen=True, eq=False)
class UnionJob:
    """A super node: one step on the union of its devices' mini-batches."""

    engine: Engine
    node: Parallel
    packet: Packet
    keys: tuple[Key, ...]


Job = VisitJob | UnionJob


@dataclass(frozen=True, eq=False)
class CohortAnswer:
    """The result of a job.

    Args:
        stats: returns the visits' statistics in order; a late call avoids waiting for the accelerator.
    """

    packet: Packet  # the packet after training
    stats: Callable[[], list[VisitStats]]
    memory: str | None = None  # digest of the device's memory
    samples: int = 0  # number of samples that the device holds, or trained on
    lost: bool = False  # the device withdrew from a secure sum


Driven = Generator[list[Job], list[CohortAnswer], NodeResult]


@dataclass(eq=False)
class PendingReceipt:
    """A receipt whose statistics may still be in the accelerator's memory."""

    device: int
    visit: int
    tick: int
    samples: int
    bytes: int
    memory: str | None
    stats: Callable[[], VisitStats]
    lost: bool = field(default=False, init=False)

    @property
    def figures(self) -> tuple[float, float, float]:
        """The losses and the accuracy, as those of a receipt."""
        return self.receipt().figures

    def receipt(self) -> Receipt:
        stats = self.stats()
        figures = (stats.steps, self.samples, stats.loss_first, stats.loss_last, stats.accuracy)
        return Receipt(self.device, self.visit, self.tick, *figures, self.bytes, lost=False, memory=self.memory)


def settled(receipts: list[Any]) -> list[Receipt]:
    """Return receipts with all statistics fetched from the accelerator."""
    return [receipt.receipt() if isinstance(receipt, PendingReceipt) else receipt for receipt in receipts]


def work_of(job: VisitJob | UnionJob) -> Work:
    """Return the work of a visit, or of each visit of a super node."""
    if isinstance(job, VisitJob):
        return job.work
    return cast(Train, job.node.children[0]).work


def lockstep(walks: Sequence[Driven]) -> Generator[list[Job], list[CohortAnswer], list[NodeResult]]:
    """Advance several walks at the same time, yielding their jobs together; return the result of each."""
    done: dict[int, NodeResult] = {}
    answers: dict[int, list[CohortAnswer] | None] = dict.fromkeys(range(len(walks)))
    while answers:
        request: dict[int, list[Job]] = {}
        for index, answer in answers.items():
            try:
                request[index] = walks[index].send(answer)  # type: ignore[arg-type]  # None begins a walk
            except StopIteration as stop:
                done[index] = stop.value
        answers_of = iter((yield [job for jobs in request.values() for job in jobs])) if request else iter(())
        answers = {index: list(islice(answers_of, len(jobs))) for index, jobs in request.items()}
    return [done[index] for index in range(len(walks))]


def driven(trainer: Trainer, walking: Walking, room: int) -> Driven:
    """Drive a walk, yielding the jobs that it waits for; return its result."""
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
) -> Generator[list[Job], list[CohortAnswer], tuple[Aggregation, list[NodeResult]]]:
    """Walk the branches ``mine`` of a ``Parallel`` in plan order, as many at a time as fit into memory."""
    done = list[NodeResult]()
    aggregation = aggregation_of(trainer.engine, request.node, request.packet, trainer.place(request.tick))
    packet = aggregation.given
    parts = request.branches(mine)
    width = max(1, min(room, len(mine)))
    for first in range(0, len(parts), width):
        some = parts[first : first + width]
        below = max(1, room // width)
        walks = [
            driven(trainer.apart(branch.known), branch.walk.node(branch.node, packet, request.tick), below)
            for branch in some
        ]
        for branch, result in zip(some, (yield from lockstep(walks)), strict=True):
            no_vector(result.answers)
            done.append(trainer.add(aggregation, branch, result))
    return aggregation, done


def _meet(trainer: Trainer, request: ParallelRequest, room: int) -> Driven:
    cohort = trainer.engine.cohort
    if cohort is not None and cohort.unites(trainer.engine, request.node, request.packet):
        return (yield from _together(trainer, request))
    aggregation, done = yield from branches(trainer, request, range(len(request.node.children)), room)
    return trainer.met(request, aggregation, done)


def _visit(
    trainer: Trainer, request: TrainRequest
) -> Generator[list[Job], list[CohortAnswer], tuple[Packet, Receipt] | None]:
    key = request.key
    (answer,) = yield [VisitJob(trainer.engine, request.node.work, request.packet, key)]
    if answer.lost:
        return None
    samples = answer.samples
    memory = answer.memory
    place = (key.device, key.visit, key.tick)
    pending = PendingReceipt(*place, samples, request.size, memory, lambda: answer.stats()[0])
    return answer.packet, cast(Receipt, pending)


def _together(trainer: Trainer, request: ParallelRequest) -> Driven:
    keys, size = trainer.super_node(request)
    if not keys:
        return trainer.united(request, {}, request.packet)
    (answer,) = yield [UnionJob(trainer.engine, request.node, request.packet, tuple(keys))]

    def pending(index: int, key: Key) -> Receipt:
        samples = trainer.round.samples_of(key.device)
        place = (key.device, key.visit, key.tick)
        return cast(Receipt, PendingReceipt(*place, samples, size, None, lambda: answer.stats()[index]))

    return trainer.united(request, {key.device: pending(i, key) for i, key in enumerate(keys)}, answer.packet)
