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
    """One visit for training.

    Args:
        device: the device visited; −1 is the cloud.
        visit: the number of visits for training that the device had before this one in the same round.
        tick: the park's clock at the visit.
        steps: mini-batches.
        samples: samples the device holds.
        loss_first: mean loss of the mini-batches of the visit's first pass (first mini-batch, where work is counted in
            steps), before those steps.
        loss_last: the same of its last pass.
        accuracy: share of the samples of the last pass that were classified correctly before their step.
        bytes: size of the packet it sent on.
        lost: whether its result was lost; then the numbers above are 0 and nothing was trained.
        memory: digest of the device's memory, if it has one.
        seconds: the time on the network from the model's departure to the result's next stop; 0 without a network.
        update: the basis of a limit on updates: rate · steps, and the length of each part.
        refused: the reason why the update was refused, which then counts as lost.
    """

    device: int
    visit: int
    tick: int
    steps: int
    samples: int
    loss_first: float
    loss_last: float
    accuracy: float
    bytes: int
    lost: bool
    memory: str | None = None
    seconds: float = 0.0
    update: tuple[float, ...] = ()
    refused: str = ""

    def row(self) -> list[Any]:
        """Return the fields in order as JSON; the last two only where one of them is set."""
        values = list(vars(self).values())
        return [*values[:-2], list(self.update), self.refused] if self.update or self.refused else values[:-2]

    @classmethod
    def of(cls, row: Sequence[Any]) -> Receipt:
        """Return the receipt of a row."""
        return cls(*row[:12], *(tuple(value) if isinstance(value, list) else value for value in row[12:]))

    def without(self, why: str) -> Receipt:
        """Return the receipt of this visit with its result refused: a lost visit."""
        return replace(
            self, steps=0, loss_first=0.0, loss_last=0.0, accuracy=0.0, lost=True, memory=None, refused=why
        )  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The result of a plan.

    Args:
        packet: the packet that ended the round at the cloud: named flat tensors, ``w`` the model.
        resolved: the plan with every ``Select`` replaced by its visits.
        receipts: one per visit, in plan order.
        answers: device → question → answer, of each ``Probe``.
        ticks: the ticks by which the park's clock advanced.
        rng: the generator of servers that draw, keyed by the seed and the round.
        mix: settings of the mixing rule in its next round, where it changes them.
    """

    packet: Mapping[str, Tensor]
    resolved: Node
    receipts: tuple[Receipt, ...] = ()
    answers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    ticks: int = 1
    rng: np.random.Generator | None = None
    mix: Mapping[str, Scalar] = field(default_factory=dict)
