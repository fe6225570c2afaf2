"""A method's own objective in which samples count by their class or their difficulty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedfloor.errors import SettingError
from fedfloor.parts.contrastive import Contrastive
from fedfloor.parts.distilled import Distilled
from fedfloor.parts.fusion import Fusion
from fedfloor.parts.mmd import Mmd
from fedfloor.parts.objective import Objective, Plain, Visit
from fedfloor.parts.prox import Prox
from fedfloor.parts.variates import Variates
from fedfloor.parts.weighted import PerSample

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedfloor.models.network import Network

FITS = (Prox, Variates, Contrastive, Distilled, Mmd, Fusion)  # the cross-entropy, and a term beside it
WHY = {
    "corrected": "its correction is made of gradients of the cross-entropy itself",
    "gated": "it is a loss of its own layers",
}


@dataclass(frozen=True)
class Reweighted(Objective):
    """An objective F(w) + g(w) with the mean of weighted or focal losses in the place of the cross-entropy F.

    It is what ``method.objective = "weighted"`` or ``"focal"`` makes of a method's own objective: FedProx's pull,
    MOON's contrast, SCAFFOLD's variates stay as they are. Where every sample counts 1 a method keeps its own objective.

    Args:
        part: the objective that has g.
        data: what the losses of samples are.
    """

    part: Objective
    data: PerSample

    @property
    def needs_classes(self) -> bool:
        """True: samples count by their classes."""
        return True

    @property
    def needs_start(self) -> bool:
        """As the own objective does."""
        return self.part.needs_start

    @property
    def assumes_sgd(self) -> bool:
        """As the own objective does."""
        return self.part.assumes_sgd

    @property
    def remembers(self) -> bool:
        """As the own objective does."""
        return self.part.remembers

    @property
    def travels(self) -> tuple[str, ...]:
        """As the own objective's."""
        return self.part.travels

    @property
    def counts_equally(self) -> bool:
        """As the own objective does."""
        return self.part.counts_equally

    @property
    def least_steps(self) -> int:
        """As the own objective's."""
        return self.part.least_steps

    def passes(self, of: float) -> float:
        """Return those of the own objective."""
        return self.part.passes(of)

    def adapt(
        self, module: nn.Module, classifier: str | None, classes: int, shape: tuple[int, ...]
    ) -> tuple[nn.Module, str | None]:
        """Return the network as both objectives want it."""
        self.data.adapt(module, classifier, classes, shape)
        return self.part.adapt(module, classifier, classes, shape)

    def trains(self, network: Network) -> slice:
        """Return what the own objective trains."""
        return self.part.trains(network)

    def begin(self, visit: Visit) -> Mapping[str, Tensor]:
        """Begin as the own objective does."""
        return self.part.begin(visit)

    def per_sample(self, x: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return what the own objective does."""
        return self.part.per_sample(x, visit)

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return the own objective's loss, with the samples' losses in the place of the cross-entropy."""
        return self.part.loss(module, x, y, replace(visit, data=self.data))

    def penalty(self, weights: Tensor, visit: Visit) -> tuple[Tensor, Tensor] | None:
        """Return that of the own objective."""
        return self.part.penalty(weights, visit)

    def remember(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return what the own objective keeps."""
        return self.part.remember(model, visit)

    def send(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return what the own objective sends."""
        return self.part.send(model, visit)


def reweighted(own: Objective, data: PerSample, name: str, method: str) -> Objective:
    """Return a method's own objective with other losses of samples.

    Args:
        own: the method's.
        data: the losses of samples.
        name: of the own objective, for messages.
        method: the method's name.

    Raises:
        SettingError: the own objective has no cross-entropy that they could take the place of.
    """
    if isinstance(own, Plain | PerSample):
        return data
    if type(own) not in FITS:
        why = WHY.get(name, "it is not known to be the cross-entropy and a term beside it")
        raise SettingError(
            f"method.objective with losses of samples, and method '{method}': its own objective is '{name}', and {why}."
            " Leave method.objective out, or choose another method."
        )
    return own if data.is_plain else Reweighted(own, data)
