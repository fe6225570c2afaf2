"""What a device minimises in a visit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from fedfloor.errors import unknown
from fedfloor.outside import load as load_outside
from fedfloor.plan.nodes import Scalar


@dataclass(frozen=True)
class Visit:
    """What an objective may read during one visit.

    Args:
        start: the flat model as it arrived, float32 [P]; None unless the objective asks with ``needs_start``.
        memory: what this device kept from earlier visits, by name; empty at first.
    """

    start: Tensor | None
    memory: Mapping[str, Tensor]


class Objective(Protocol):
    """A device's objective: the loss of a mini-batch, and what the device remembers afterwards."""

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


@dataclass(frozen=True)
class Plain:
    """The mean cross-entropy of the mini-batch, F(w) = −(1/b) Σ log softmax(f(x; w))_y."""

    needs_start: bool = False
    remembers: bool = False

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return (cross-entropy [], logits [batch, classes])."""
        logits = module(x)
        return torch.nn.functional.cross_entropy(logits, y), logits

    def remember(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Return nothing: a plain visit leaves no trace on the device."""
        return {}


OBJECTIVES: dict[str, Callable[..., Objective]] = {"plain": Plain}


def objective(name: str, settings: Mapping[str, Scalar]) -> Objective:
    """Return an objective by name, or ``module:Name`` of your own, with its settings.

    Raises:
        SettingError: no objective of this name.
    """
    if ":" in name:
        return load_outside(name, "objective")(**settings)  # type: ignore[no-any-return]
    if name not in OBJECTIVES:
        raise unknown("objective", name, OBJECTIVES)
    return OBJECTIVES[name](**settings)
