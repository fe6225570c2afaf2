"""The results of a visit and of a whole plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fedfloor.plan.nodes import Node, Scalar

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True)
class Receipt:
    """The record of a training visit.

    Losses and accuracy are None if the device withholds them, as they have no noise and its updates have.

    Args:
        device: the visited device; −1 is the cloud.
        visit: the number of the device's earlier training visits in the same round.
        tick: the park's clock at the visit.
        steps: the number of mini-batches.
        samples: the number of samples that the device holds.
        loss_first: the mean loss of the mini-batches in the first pass (of the first mini-batch, if the work is given
            in steps), each before its step.
        loss_last: the same for the last pass.
        accuracy: the share of the last pass's samples that were classified correctly before their step.
        bytes: the size of the sent packet.
        lost: whether the result was lost; the numbers above are then 0 and nothing was trained.
        memory: the digest of the device's memory, if it has one.
        seconds: the time on the network from the model's departure to the result's next stop; 0 without a network.
        update: the basis of the limit on updates: rate · steps, and the length of each part.
        refused: the reason why the update was refused; the visit then counts as lost.
    """

    device: int
    visit: int
    tick: int
    steps: int
    samples: int
    loss_first: float | None
    loss_last: float | None
    accuracy: float | None
    bytes: int
    lost: bool
    memory: str | None = None
    seconds: float = 0.0
    update: tuple[float, ...] = ()
    refused: str = ""

    @property
    def figures(self) -> tuple[float, float, float]:
        """The losses and the accuracy; zeros if they are withheld."""
        return self.loss_first or 0.0, self.loss_last or 0.0, self.accuracy or 0.0

    def row(self) -> list[Any]:
        """Return the fields in order as JSON; the last two only if one of them is set."""
        values = list(vars(self).values())
        return [*values[:-2], list(self.update), self.refused] if self.update or self.refused else values[:-2]

    @classmethod
    def of(cls, row: Sequence[Any]) -> Receipt:
        """Return the receipt from the result of :meth:`row`."""
        return cls(*row[:12], *(tuple(value) if isinstance(value, list) else value for value in row[12:]))

    def without(self, why: str) -> Receipt:
        """Return the receipt of this visit as lost, its result refused for the reason ``why``."""
        return replace(
            self, steps=0, loss_first=0.0, loss_last=0.0, accuracy=0.0, lost=True, memory=None, refused=why
        )  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The result of a whole plan.

    Args:
        packet: the packet at the cloud at the round's end: named flat tensors, ``w`` the model.
        resolved: the plan with every ``Select`` replaced by its visits.
        receipts: one receipt per visit, in plan order.
        answers: device → question → answer, for all ``Probe`` nodes.
        ticks: the number of ticks by which the park's clock advanced.
        rng: the generator of servers' random draws, keyed by the seed and the round.
        mix: the mixing rule's settings for its next round, if it changes them.
    """

    packet: Mapping[str, Tensor]
    resolved: Node
    receipts: tuple[Receipt, ...] = ()
    answers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    ticks: int = 1
    rng: np.random.Generator | None = None
    mix: Mapping[str, Scalar] = field(default_factory=dict)
