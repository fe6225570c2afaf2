"""What a device minimises in a visit: the contract, and plain cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor, nn

from fedfloor.errors import RunError

if TYPE_CHECKING:
    from fedfloor.models.network import Network


@dataclass(frozen=True)
class Visit:
    """What an objective may read during one visit.

    Args:
        start: the flat model as it arrived, float32 [P]; None unless the objective asks with ``needs_start``.
        memory: what this device kept from earlier visits, by name; empty at first.
        network: the network under training, for objectives that need to know how a flat vector is laid out.
    """

    start: Tensor | None
    memory: Mapping[str, Tensor]
    network: Network | None = None

    def arrived(self) -> Tensor:
        """Return the flat model as it arrived, [P].

        Raises:
            RunError: the objective did not ask for it.
        """
        if self.start is None:
            raise RunError("the objective reads the model as it arrived: its 'needs_start' must be true.")
        return self.start


class Objective(Protocol):
    """A device's objective: the loss of a mini-batch, and what the device remembers afterwards.

    An objective that has a term of the weights alone (FedProx's pull) may leave it out of ``loss`` and be
    :class:`Penalised` as well: such a term needs no automatic differentiation.
    """

    @property
    def needs_start(self) -> bool:
        """Whether :attr:`Visit.start` is wanted."""
        ...

    @property
    def remembers(self) -> bool:
        """Whether the device keeps something between visits."""
        ...

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return (loss [], logits [batch, classes]) of a mini-batch."""
        ...

    def remember(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return what the device keeps until its next visit, given the flat model it ended with."""
        ...


class Penalised(Protocol):
    """What an objective with a term of the weights alone offers beside :class:`Objective`."""

    def penalty(self, weights: Tensor, visit: Visit) -> tuple[Tensor, Tensor] | None:
        """Return the term and its gradient ([], [trained]) at the trained weights [trained], or None for no term.

        It is asked once per mini-batch, after ``loss``; the losses reported include it.
        """
        ...


@dataclass(frozen=True)
class Plain:
    """The mean cross-entropy of the mini-batch, F(w) = −(1/b) Σ log softmax(f(x; w))_y."""

    needs_start: ClassVar[bool] = False
    remembers: ClassVar[bool] = False

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return (cross-entropy [], logits [batch, classes])."""
        logits = module(x)
        return torch.nn.functional.cross_entropy(logits, y), logits

    def remember(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Return nothing: a plain visit leaves no trace on the device."""
        return {}
