"""Objectives of two terms: cross-entropy, and one of the representations alone."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from fedfloor.parts.frozen import tapped
from fedfloor.parts.objective import Objective, Plain, Visit

if TYPE_CHECKING:
    from torch import Tensor, nn


class Represented(Objective):
    """F(w) + g(z), z the representation of a mini-batch, [batch, d]: what goes into the network's classifier.

    As the gradient ∂g/∂z is given, engines need no automatic differentiation where the network needs none.
    """

    @abstractmethod
    def term(self, z: Tensor, visit: Visit) -> tuple[Tensor, Tensor] | None:
        """Return (g [], ∂g/∂z [batch, d]), or None for no such term in this visit; z comes without gradient."""

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return (cross-entropy + g [], logits [batch, classes])."""
        path = visit.resident().classifier
        if path is None:  # nothing was built for this objective, so there is no term either
            return Plain().loss(module, x, y, visit)
        with tapped(module.get_submodule(path)) as seen:
            loss, logits = Plain().loss(module, x, y, visit)
        said = self.term(seen[0].detach(), visit)
        if said is None:
            return loss, logits
        along = (seen[0] - seen[0].detach()) * said[1]  # 0, and its gradient that of g
        return loss + said[0] + along.sum(), logits
