"""MOON's objective: representations are drawn to the arriving model's and away from the device's own last one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedfloor.errors import SettingError, require
from fedfloor.parts.frozen import features
from fedfloor.parts.objective import Visit
from fedfloor.parts.represented import Represented
from fedfloor.plan.nodes import forward_cost

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedfloor.models.network import Network

SHORT = 1e-8  # the floor under the norm of PyTorch's cosine similarity


@dataclass(frozen=True)
class Contrastive(Represented):
    """F(w) + μ·ℓ, ℓ = mean of −log(e^{s(z, z_glob)/τ} / (e^{s(z, z_glob)/τ} + e^{s(z, z_prev)/τ})), s the cosine.

    z is the representation of a sample, the output of a projection head that replaces the classifier
    (:class:`fedfloor.models.projection.Projected`); z_glob is that of the model as it arrived, z_prev that of the model
    this device ended its last visit with, which it keeps to itself. Both come without gradient, in evaluation mode, and
    are worked out once per visit. At a device's first visit there is no z_prev and the term is left out: in round 1 the
    authors' code (QinbinLi/MOON) does the same, a device that it first draws later has a random network for its last
    one. With μ = 0 it is plain cross-entropy to the bit, on the same network. Li, He and Song, CVPR 2021,
    arXiv 2103.16257.

    Args:
        mu: μ ≥ 0.
        temperature: τ > 0.
        dim: length of z.
    """

    mu: float = 1.0
    temperature: float = 0.5
    dim: int = 256

    def __post_init__(self) -> None:
        require(0 <= self.mu < math.inf, "objective contrastive: mu", self.mu, "a number of at least 0")
        require(0 < self.temperature < math.inf, "objective contrastive: temperature", self.temperature, "above 0")
        require(self.dim >= 1, "objective contrastive: dim", self.dim, "a whole number of at least 1")

    @property
    def needs_start(self) -> bool:
        """Whether there is a second stream."""
        return self.mu > 0

    @property
    def remembers(self) -> bool:
        """Whether the device keeps its model."""
        return self.mu > 0

    @property
    def least_steps(self) -> int:
        """A model after one step is hardly another one: there is nothing to contrast with."""
        return 2 if self.mu else 1

    def passes(self, of: float) -> float:
        """Add the two other streams, also at a first visit."""
        return of + 2 * forward_cost(of) if self.mu else of

    def adapt(
        self,
        module: nn.Module,
        classifier: str | None,
        classes: int,
        shape: tuple[int, ...],  # noqa: ARG002
    ) -> tuple[nn.Module, str | None]:
        """Put the projection head before the classifier, a new one.

        Raises:
            SettingError: the classifier is unknown or no ``nn.Linear``.
        """
        from torch import nn as layers

        from fedfloor.models.classifier import layer, replace
        from fedfloor.models.projection import Projected

        old = None if classifier is None else layer(module, classifier)
        if classifier is None or not isinstance(old, layers.Linear):
            found = "unknown" if old is None else f"'{classifier}', a {type(old).__name__}"
            raise SettingError(
                f"objective contrastive: the network's classifier is {found}: a projection head replaces a classifier "
                "that is an nn.Linear. Name it with model.classifier, or choose another network."
            )
        replace(module, classifier, Projected(old.in_features, self.dim, classes).to(old.weight.dtype))
        return module, f"{classifier}.classifier"

    def begin(self, visit: Visit) -> Mapping[str, Tensor]:
        """Check that network and memory fit.

        Raises:
            SettingError: the network has no projection head, or the memory is another network's.
        """
        if self.mu:
            _head(visit.resident())
            got, size = visit.memory.get("previous"), visit.arrived().numel()
            if got is not None and got.numel() != size:
                raise SettingError(
                    f"objective contrastive: a device memory from another model: the model kept has {got.numel()} "
                    f"numbers, this one {size}. Start the run in a new folder, or go on with the model it began with."
                )
        return {}

    def per_sample(self, x: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return z_prev/‖z_prev‖ − z_glob/‖z_glob‖, [samples, dim]; nothing at a first visit."""
        if not self.mu or "previous" not in visit.memory:
            return {}
        head = _head(visit.resident())
        previous, arrived = features(visit, x, head, visit.memory["previous"]), features(visit, x, head)
        return {"apart": _directions(previous) - _directions(arrived)}

    def term(self, z: Tensor, visit: Visit) -> tuple[Tensor, Tensor] | None:
        """Return μ·ℓ and its gradient."""
        if "apart" not in visit.per_sample:
            return None
        said, gradient = contrast(z, visit.per_sample["apart"], self.temperature)
        return self.mu * said, self.mu * gradient

    def remember(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Return the model this visit ended with, [P]."""
        return {"previous": model.clone()} if self.mu else {}


def contrast(z: Tensor, apart: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return ℓ = mean of −log(e^{a/τ}/(e^{a/τ} + e^{b/τ})) = mean of log(1 + e^{(b − a)/τ}), [], and ∂ℓ/∂z [n, dim].

    a and b are the cosines of z with z_glob and z_prev; with u = z/max(‖z‖, 10⁻⁸) and v = z_prev/‖z_prev‖ −
    z_glob/‖z_glob‖ it is b − a = u·v, so that one vector per sample is all that needs to be kept of both streams, and

        ∂ℓ/∂z = σ(u·v/τ)/(n·τ·max(‖z‖, 10⁻⁸)) · (v − (u·v)·u), σ the logistic function; for ‖z‖ < 10⁻⁸ without (u·v)·u.

    Args:
        z: representations [n, dim].
        apart: v, [n, dim].
        temperature: τ.

    >>> import torch
    >>> term, _ = contrast(torch.ones(3, 2), torch.zeros(3, 2), 0.5)
    >>> round(float(term), 4)  # as near to one as to the other: log 2
    0.6931
    """
    from torch.nn.functional import softplus

    length = z.norm(dim=1, keepdim=True)
    u = z / length.clamp_min(SHORT)
    nearer = (u * apart).sum(1, keepdim=True)
    across = apart - u * (nearer * (length >= SHORT))
    slope = (nearer / temperature).sigmoid() / (length.clamp_min(SHORT) * (temperature * len(z)))
    return softplus(nearer / temperature).mean(), across * slope


def _directions(z: Tensor) -> Tensor:
    from torch.nn.functional import normalize

    return normalize(z, dim=1, eps=SHORT)


def _head(network: Network) -> str:
    """Return the path of the layer behind the projection head, whose input is z."""
    from fedfloor.models.classifier import layer
    from fedfloor.models.projection import Projected

    path = network.classifier
    if path is None or not isinstance(layer(network.module, path.rpartition(".")[0]), Projected):
        raise SettingError(
            "objective contrastive: the network has no projection head: it was built for another objective. Use the "
            "method moon, or build it with adapt = Contrastive().adapt."
        )
    return path
