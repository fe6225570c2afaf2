"""Objectives of two terms: cross-entropy, and one of the representations alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedfloor.errors import SettingError
from fedfloor.parts.frozen import tapped
from fedfloor.parts.objective import Objective, Plain, Visit

if TYPE_CHECKING:
    from torch import Tensor, nn


class Represented(Objective):
    """F(w) + g(z), z the representation of a mini-batch, [batch, …]: what goes into the network's classifier.

    As the gradient ∂g/∂z is given, engines need no automatic differentiation where the network needs none.
    """

    def term(self, z: Tensor, visit: Visit) -> tuple[Tensor, Tensor] | None:
        """Return (g [], ∂g/∂z, shaped like z), both finite, or None for no such term; z has no gradient and stays."""
        ...

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return (cross-entropy + g [], logits [batch, classes]).

        Raises:
            SettingError: which layer is the classifier is not known.
        """
        network = visit.resident()
        if network.classifier is None:
            raise SettingError(
                "the objective reads what goes into the network's classifier, and which layer that is, is not known. "
                "Name it with model.classifier."
            )
        with tapped(network.module.get_submodule(network.classifier)) as seen:
            loss, logits = Plain().loss(module, x, y, visit)
        z = seen[0].detach()
        said = self.term(z, visit)
        return (loss, logits) if said is None else (loss + said[0] + ((seen[0] - z) * said[1]).sum(), logits)
