"""CGAU's objective: gated activation units, of which every device has columns of its own, on a frozen extractor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedfloor.errors import SettingError, require
from fedfloor.parts.frozen import evaluating
from fedfloor.parts.objective import Objective, Visit
from fedfloor.plan.nodes import forward_cost

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedfloor.models.network import Network

PIECE = 32  # samples the extractor is asked for at a time: what it computes on the way stays in cache


@dataclass(frozen=True)
class Gated(Objective):
    """Cross-entropy of h = tanh(W1 x + b1 + V1 c) ⊙ σ(W2 x + b2 + V2 c) per layer, logits = W h + b + V c.

    x are the features that go into the network's classifier, which a :class:`~fedfloor.models.gated.GatedHead`
    replaces; c says which device it is, so that V c is one column, the device's own. A device keeps its columns to
    itself from visit to visit, and is evaluated with them. What stands at their place in ``w`` after a meeting is the
    mean of the participants' columns; devices that were never visited begin with it and are evaluated with it. That
    is FedAvg of the table V by owner: each column is averaged over those that trained it, which is one device. (In
    the authors' code, rasmusmhl/cgau-client-adaptation, all of V is averaged, and the others' unchanged copies hold a
    device's column back.) Nothing is dropped out. Rieger et al. 2020, arXiv 2007.04806.

    Args:
        layers: gated layers before the last one.
        units: outputs of each.
        frozen: the head and the device's columns are trained, and the extractor, in evaluation mode, is asked once
            per sample and visit; otherwise everything but the columns is, as a warm-up of the extractor.
    """

    layers: int = 2
    units: int = 256
    frozen: bool = True

    def __post_init__(self) -> None:
        require(self.layers >= 1, "objective gated: layers", self.layers, "a whole number of at least 1")
        require(self.units >= 1, "objective gated: units", self.units, "a whole number of at least 1")

    @property
    def remembers(self) -> bool:
        """Whether devices keep columns."""
        return self.frozen

    @property
    def personal(self) -> bool:
        """Whether devices are evaluated with columns of their own."""
        return self.frozen

    def passes(self, of: float) -> float:
        """Ask a frozen extractor once; what the head comes to is left out."""
        return forward_cost(of) if self.frozen else of

    def adapt(
        self,
        module: nn.Module,
        classifier: str | None,
        classes: int,  # noqa: ARG002
        shape: tuple[int, ...],  # noqa: ARG002
    ) -> tuple[nn.Module, str | None]:
        """Put the gated head in the place of the classifier.

        Raises:
            SettingError: the classifier is unknown, no ``nn.Linear``, or not the last layer.
        """
        from fedfloor.models.gated import fitted

        return fitted(module, classifier, self.units, self.layers), classifier

    def trains(self, network: Network) -> slice:
        """Return the part of the flat model [extractor][head][columns] that is trained."""
        if not self.frozen:
            return slice(0, _columns(network).start)
        (head,) = network.span(network.classifier or "")
        return head

    def arrive(self, model: Tensor, memory: Mapping[str, Tensor], network: Network) -> None:
        """Put the device's columns in the place of the mean ones.

        Raises:
            SettingError: they are of another model.
        """
        if "own" not in memory:
            return
        place, own = _columns(network), memory["own"]
        if own.shape != (place.stop - place.start,):
            raise SettingError(
                f"a device memory from another model: it holds {tuple(own.shape)} numbers of the device's own, this "
                f"model has ({place.stop - place.start},). Begin the run again with another --out."
            )
        model[place] = own

    def per_sample(self, x: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return the extractor's features, [samples, width]."""
        if not self.frozen:
            return {}
        import torch

        from fedfloor.models.gated import head_of, through

        network = visit.resident()
        module, head = network.module, head_of(network)
        with evaluating(module):
            return {"features": torch.cat([through(module, head, piece)[0] for piece in x.split(PIECE)])}

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return (cross-entropy [], logits [batch, classes])."""
        from fedfloor.models.gated import head_of, through

        head = head_of(visit.resident())
        logits = head(visit.per_sample["features"]) if self.frozen else through(module, head, x)[1]
        return visit.task.losses(logits, y, "mean"), logits

    def remember(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return the device's columns, [m]."""
        return {"own": model[_columns(visit.resident())].clone()}


def _columns(network: Network) -> slice:
    """Return where the device's columns lie: at the end of what is trained."""
    from fedfloor.models.gated import head_of

    return slice(network.trained - head_of(network).own.columns.numel(), network.trained)
