"""Requests of a walk to a cohort, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, cast

from fedfloor.engine.engine import Engine
from fedfloor.engine.visit import Trained
from fedfloor.models.parcel import Packet
from fedfloor.plan.nodes import Parallel, Train, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key, NodeResult


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
class Answer:
    """What became of an ask.

    Args:
        packet: what goes on.
        told: what the visits say, one after the other; asked late, so that nobody waits for the device meanwhile.
        memory: digest of what the device keeps.
        samples: that the device holds, or trained on.
    """

    packet: Packet
    told: Callable[[], list[Trained]]
    memory: str | None = None
    samples: int = 0


Driven = Generator[list[Ask], list[Answer], NodeResult]


@dataclass(eq=False)
class PendingReceipt:
    """A receipt whose figures may still lie on the device."""

    device: int
    visit: int
    tick: int
    samples: int
    bytes: int
    memory: str | None
    told: Callable[[], Trained]
    lost: bool = field(default=False, init=False)

    @property
    def accuracy(self) -> float:
        """The share of the last pass's samples that were classified rightly."""
        return self.told().accuracy

    def receipt(self) -> Receipt:
        """Return the receipt.

        Raises:
            DivergedError: a loss is no finite number.
        """
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
