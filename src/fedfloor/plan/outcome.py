"""What is known once a visit, or a whole plan, is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedfloor.plan.nodes import Node

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Receipt:
    """One visit for training.

    Args:
        device: the device visited; −1 is the cloud.
        visit: how many visits for training the device had before this one in the same round.
        tick: the park's clock at the visit.
        steps: mini-batches.
        samples: samples the device holds.
        loss_first: mean loss of the mini-batches of the visit's first pass (first mini-batch, where work is counted in
            steps), before those steps.
        loss_last: the same of its last pass.
        accuracy: share of the samples of the last pass that were classified rightly before their step.
        bytes: size of the packet it sent on.
        lost: whether its result was lost; then the numbers above are 0 and nothing was trained.
        memory: digest of what the device keeps, if it keeps something.
        seconds: on the network, from when the model set out until the result was where it went on; 0 without one.
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

    def row(self) -> list[object]:
        """Return the fields in order, as JSON scalars."""
        return list(vars(self).values())


@dataclass(frozen=True)
class Outcome:
    """What came out of a plan.

    Args:
        packet: the packet that ended the round at the cloud: named flat tensors, ``w`` the model.
        resolved: the plan with every ``Select`` replaced by whom it chose.
        receipts: one per visit, in plan order.
        answers: device → question → answer, what each ``Probe`` asked.
        ticks: how far the park's clock moved.
    """

    packet: Mapping[str, Tensor]
    resolved: Node
    receipts: tuple[Receipt, ...] = ()
    answers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    ticks: int = 1
