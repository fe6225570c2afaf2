"""Drivers of a walk over a plan: who carries out its requests, one by one; and one that trains nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from fedfloor.plan.nodes import Node
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import (
    Answers,
    BranchWalk,
    BroadcastRequest,
    NodeResult,
    Packet,
    ParallelRequest,
    ProbeRequest,
    Request,
    RoundContext,
    SelectRequest,
    TrainRequest,
    Walk,
    Walking,
    joined,
)

R = TypeVar("R")
T = TypeVar("T")


def driven(walk: Generator[R, Any, T], do: Callable[[R], Any]) -> T:
    """Drive a generator of requests to its end, with ``do`` for each request; return its result."""
    result: Any = None
    while True:
        try:
            request = walk.send(result)
        except StopIteration as stop:
            return cast(T, stop.value)
        result = do(request)


class Driver(ABC):
    """The contract of a driver, which carries out the requests of a walk."""

    def drive(self, walking: Walking) -> NodeResult:
        """Drive a walk to its end; return its result."""
        return driven(walking, self.do)

    def do(self, request: Request) -> Any:
        return getattr(self, _METHODS[type(request)])(request)

    @abstractmethod
    def train(self, request: TrainRequest) -> tuple[Packet, Receipt] | None:
        """Return (packet, receipt) after training at a site; None if the result is lost."""

    @abstractmethod
    def probe(self, request: ProbeRequest) -> Answers:
        """Put a question to devices; return device → question → answer."""

    @abstractmethod
    def broadcast(self, request: BroadcastRequest) -> None:
        """Send the model to devices that only keep it."""

    @abstractmethod
    def select(self, request: SelectRequest) -> Sequence[int]:
        """Return the selected devices."""

    @abstractmethod
    def parallel(self, request: ParallelRequest) -> NodeResult:
        """Walk the branches, and return their result with the aggregated packet."""


_METHODS: Mapping[type[Any], str] = {
    TrainRequest: "train", ProbeRequest: "probe", BroadcastRequest: "broadcast", SelectRequest: "select",
    ParallelRequest: "parallel",
}  # fmt: skip


class Dry(Driver):
    """A driver without training: a ``Select`` selects its first candidates, and questions have no answers."""

    def over(self, plan: Node, context: RoundContext, tick: int = 0, packet: Packet | None = None) -> NodeResult:
        """Walk a plan, starting at a tick; return its result."""
        return self.drive(Walk(context).node(plan, packet or {}, tick))

    def train(self, request: TrainRequest) -> tuple[Packet, Receipt] | None:
        key = request.key
        return request.packet, Receipt(key.device, key.visit, key.tick, 0, 0, 0.0, 0.0, 0.0, request.size, lost=False)

    def probe(self, request: ProbeRequest) -> Answers:
        return {}

    def broadcast(self, request: BroadcastRequest) -> None:
        """Do nothing."""

    def select(self, request: SelectRequest) -> Sequence[int]:
        return request.node.candidates[: request.node.how_many]

    def parallel(self, request: ParallelRequest) -> NodeResult:
        return joined(request, request.packet, [self.branch(branch, request) for branch in request.branches()])

    def branch(self, branch: BranchWalk, request: ParallelRequest) -> NodeResult:
        return self.drive(branch.walk.node(branch.node, request.packet, request.tick))


def absent(node: Node, tick: int, seen: Mapping[int, int], held: Callable[[int], int]) -> NodeResult:
    """Return the result of a branch whose edge failed: every visit is lost.

    >>> from fedfloor.plan.nodes import Train, Work, device
    >>> absent(Train(device(3), Work(epochs=1)), 0, {}, lambda k: 7).receipts[0].lost
    True
    """
    none = RoundContext(0, 0, held, lost=lambda node, concurrent, key: True)  # noqa: ARG005
    return replace(_Absent().drive(Walk(none, seen).node(node, {}, tick)), packet={})


class _Absent(Dry):
    """A driver without training for a walk in which visits to the cloud can be lost, too."""

    def train(self, request: TrainRequest) -> None:
        return None
