"""Objectives that keep a device near the arrived model: by its weights, its outputs or its representations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedfloor.base.errors import RunError, SettingError, require
from fedfloor.parts.objectives.objective import Objective, Plain, Visit
from fedfloor.plan.nodes import forward_cost

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedfloor.models.network import Network


def frozen(visit: Visit, x: Tensor, model: Tensor | None = None) -> Tensor:
    """Return the logits [batch, classes] of a flat model [P]; by default of the arrived model.

    There is no gradient, the network is in evaluation mode, and its state does not change.
    """
    import torch

    network = visit.resident()
    numbers = visit.arrived() if model is None else model
    with evaluating(network.module), torch.no_grad():
        logits: Tensor = torch.func.functional_call(network.module, network.named(numbers), (x,))
    return logits


def features(visit: Visit, x: Tensor, layer: str, model: Tensor | None = None) -> Tensor:
    """Return a layer's input [batch, …] by a flat model, as in :func:`frozen`; later layers are not computed."""
    with tapped(visit.resident().module.get_submodule(layer), stop=True) as seen, suppress(Reached):
        frozen(visit, x, model)
    if not seen:
        raise RunError(
            f"the network does not call its layer '{layer}' in evaluation mode. Name another layer.", key="layer"
        )
    return seen[0]


class Reached(Exception):  # noqa: N818 - a signal, no error
    """The signal that ends a forward pass at the required layer."""


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode inside this context, and restore its mode afterwards."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


@contextmanager
def tapped(layer: nn.Module, *, stop: bool = False) -> Iterator[list[Tensor]]:
    """Record a layer's inputs, call by call; with ``stop`` the first call ends the forward pass.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    >>> with tapped(net[1]) as features:
    ...     logits = net(torch.zeros(5, 3))
    >>> features[0].shape
    torch.Size([5, 4])
    """
    seen: list[Tensor] = []

    def note(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])
        if stop:
            raise Reached

    handle = layer.register_forward_pre_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


class Represented(Objective):
    """F(w) + g(z) with the representation z [batch, …] of a mini-batch: the input of the network's classifier.

    As subclasses give the gradient ∂g/∂z, engines can do without automatic differentiation for simple networks.
    """

    def term(self, z: Tensor, visit: Visit) -> tuple[Tensor, Tensor] | None:
        """Return (g [], ∂g/∂z like z), both finite, or None without a term; z has no gradient and must not change."""
        ...

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return (cross-entropy + g [], logits [batch, classes]).

        Raises:
            SettingError: the network's classifier is unknown.
        """
        network = visit.resident()
        if network.classifier is None:
            raise SettingError(
                "the objective reads the input of the network's classifier, and that layer is unknown. "
                "Name it with model.classifier."
            )
        with tapped(network.module.get_submodule(network.classifier)) as seen:
            loss, logits = Plain().loss(module, x, y, visit)
        z = seen[0].detach()
        term = self.term(z, visit)
        return (loss, logits) if term is None else (loss + term[0] + ((seen[0] - z) * term[1]).sum(), logits)


@dataclass(frozen=True)
class Prox(Objective):
    """F(w) + (μ/2)‖w − w_start‖² over the trained parameters, with the gradient ∇F(w) + μ(w − w_start).

    w_start is the model that arrived for this visit: the global model if devices train in parallel, the neighbour's
    model in a ring. Frozen parameters and batch-norm statistics have no such term. With μ = 0 it is plain cross-entropy
    to the bit. Li et al., MLSys 2020, arXiv 1812.06127.

    Args:
        mu: μ ≥ 0. The paper compares 0.001, 0.01, 0.1 and 1; no value suits all data, so there is no default.
    """

    mu: float

    def __post_init__(self) -> None:
        require(0 <= self.mu < math.inf, "objective prox: mu", self.mu, "a number of at least 0")

    @property
    def needs_start(self) -> bool:
        return self.mu > 0

    loss = Plain.loss

    def begin(self, visit: Visit) -> Mapping[str, Tensor]:
        # memory for w − w_start: new memory at every step would take as long as the difference itself
        return {"away": visit.arrived().new_empty(len(visit.arrived()))} if self.mu else {}

    def penalty(self, weights: Tensor, visit: Visit) -> tuple[Tensor, Tensor] | None:
        if self.mu == 0:
            return None
        import torch

        room = (visit.ready or self.begin(visit))["away"]
        start = visit.arrived()[visit.first : visit.first + len(weights)]
        away = torch.sub(weights, start, out=room[: len(weights)])
        return away.dot(away).mul_(self.mu / 2), away.mul_(self.mu)


WIDTHS = (
    1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 100.0, 1e3, 1e4, 1e5, 1e6,
)  # fmt: skip


@dataclass(frozen=True)
class TwoStream(Objective):
    """F(w) + λ·g with a distance g of the outputs of w and w_start on the same mini-batch, λ = ``weight``."""

    weight: float = 0.1

    def __post_init__(self) -> None:
        name = f"objective {type(self).__name__.lower()}: weight"
        require(0 <= self.weight < math.inf, name, self.weight, "a number of at least 0")

    @property
    def needs_start(self) -> bool:
        return self.weight > 0

    def passes(self, trained: float) -> float:
        return trained + forward_cost(trained) if self.weight else trained


@dataclass(frozen=True)
class Mmd(TwoStream):
    """F(w) + λ·MMD²(logits of w_start, logits of w) on the same mini-batch.

    w_start, the arrived model, is the frozen stream: without gradient, in evaluation mode (no dropout, batch norm with
    its running statistics), so that the random draws of the trained stream are those of a plain visit. The logits, the
    kernel and λ = 0.1 follow the authors' code (thu-media/TwoStreamFederatedLearning); its lower limit of 10⁻⁴ for the
    term is omitted, as it only suppresses the smallest gradients. With λ = 0 it is plain cross-entropy to the bit. Yao
    et al., VCIP 2018.

    Args:
        weight: λ ≥ 0.
    """

    def per_sample(self, x: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        return {"logits": frozen(visit, x)} if self.weight else {}

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        loss, logits = Plain().loss(module, x, y, visit)
        if self.weight:
            loss = loss + self.weight * mmd_squared(visit.per_sample["logits"], logits)
        return loss, logits


def mmd_squared(fixed: Tensor, b: Tensor) -> Tensor:
    """Return MMD²(a, b) = mean k(aᵢ, aⱼ) + mean k(bᵢ, bⱼ) − 2 mean k(aᵢ, bⱼ), k(u, v) = Σ_s exp(−‖u − v‖²/(2s)).

    The biased estimate, which is negative only by rounding; s runs over :data:`WIDTHS`. Gretton et al., JMLR 2012.

    ``fixed``: samples a [n, C], which get no gradient. ``b``: samples [n, C].

    >>> import torch
    >>> round(float(mmd_squared(torch.zeros(3, 2), torch.zeros(3, 2))), 4)
    0.0
    """
    from fedfloor.parts.objectives.kernels import Discrepancy

    total: Tensor = Discrepancy.apply(fixed.detach(), b, WIDTHS)  # type: ignore[no-untyped-call]
    return total.clamp(min=0) / len(b) ** 2


@dataclass(frozen=True)
class Distilled(TwoStream):
    """F(w) + λ·KL(softmax(f(x; w_start)) ‖ softmax(f(x; w))), summed over the classes, mean over the mini-batch.

    w_start is the arrived model, without gradient and in evaluation mode. With λ = 0 it is plain cross-entropy to the
    bit. HFedMS's reference code (slz-ai/hfedms) adds this term in full synchronisations, which the paper does not
    mention; its λ = 0.1 refers to the mean over the 62 classes, which is ``weight = 0.1/62`` here. Hinton, Vinyals and
    Dean, arXiv 1503.02531, at temperature 1.

    Args:
        weight: λ ≥ 0.
    """

    needs_classes = True  # the divergence compares class probabilities

    def per_sample(self, x: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        return {"log_probabilities": frozen(visit, x).log_softmax(1)} if self.weight else {}

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        from torch.nn.functional import kl_div

        loss, logits = Plain().loss(module, x, y, visit)
        if self.weight:
            start = visit.per_sample["log_probabilities"]
            apart = kl_div(logits.log_softmax(1), start, reduction="batchmean", log_target=True)
            loss = loss + self.weight * apart
        return loss, logits


SHORT = 1e-8  # lower limit of norms in PyTorch's cosine similarity


@dataclass(frozen=True)
class Contrastive(Represented):
    """F(w) + μ·ℓ, ℓ = mean of −log(e^{s(z, z_glob)/τ} / (e^{s(z, z_glob)/τ} + e^{s(z, z_prev)/τ})), with the cosine s.

    z is the representation of a sample, the output of a projection head that replaces the classifier
    (:class:`fedfloor.models.layers.Projected`); z_glob is that of the arrived model, z_prev that of the device's final
    model in its previous visit, which the device keeps. Both have no gradient, and are computed once per visit, in
    evaluation mode. At a device's first visit there is no z_prev and the term is omitted. The authors' code
    (QinbinLi/MOON) does the same in round 1, but uses a random network for devices that are first drawn later. With
    μ = 0 it is plain cross-entropy to the bit, on the same network. Li, He and Song, CVPR 2021, arXiv 2103.16257.

    Args:
        mu: μ ≥ 0.
        temperature: τ > 0.
        dim: the length of z.
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
        return self.mu > 0

    @property
    def remembers(self) -> bool:
        return self.mu > 0

    @property
    def least_steps(self) -> int:
        return 2 if self.mu else 1  # one step hardly changes a model

    def passes(self, trained: float) -> float:
        return trained + 2 * forward_cost(trained) if self.mu else trained

    def adapt(
        self, module: nn.Module, classifier: str | None, classes: int, shape: tuple[int, ...]
    ) -> tuple[nn.Module, str | None]:
        from torch import nn as layers

        from fedfloor.models.classifier import layer, replace
        from fedfloor.models.layers import Projected

        old = None if classifier is None else layer(module, classifier)
        if classifier is None or not isinstance(old, layers.Linear):
            kind = "unknown" if old is None else f"'{classifier}', a {type(old).__name__}"
            raise SettingError(
                f"objective contrastive: the network's classifier is {kind}: a projection head replaces a classifier "
                "that is an nn.Linear. Name it with model.classifier, or choose another network.",
                key="objective",
            )
        replace(module, classifier, Projected(old.in_features, self.dim, classes).to(old.weight.dtype))
        return module, f"{classifier}.classifier"

    def begin(self, visit: Visit) -> Mapping[str, Tensor]:
        if self.mu:
            _head(visit.resident())
            got = visit.memory.get("previous")
            size = visit.arrived().numel()
            if got is not None and got.numel() != size:
                raise SettingError(
                    f"objective contrastive: a device memory from another model: the kept model has {got.numel()} "
                    f"numbers, this one {size}. Start the run in a new folder, or continue with the model that it "
                    "began with.",
                    key="device-memory",
                )
        return {}

    def per_sample(self, x: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return z_prev/‖z_prev‖ − z_glob/‖z_glob‖, [samples, dim]; {} at a device's first visit."""
        if not self.mu or "previous" not in visit.memory:
            return {}
        head = _head(visit.resident())
        previous = features(visit, x, head, visit.memory["previous"])
        arrived = features(visit, x, head)
        from torch.nn.functional import normalize

        return {"apart": normalize(previous, dim=1, eps=SHORT) - normalize(arrived, dim=1, eps=SHORT)}

    def term(self, z: Tensor, visit: Visit) -> tuple[Tensor, Tensor] | None:
        if "apart" not in visit.per_sample:
            return None
        loss, gradient = contrast(z, visit.per_sample["apart"], self.temperature)
        return self.mu * loss, self.mu * gradient

    def remember(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        return {"previous": model.clone()} if self.mu else {}


def contrast(z: Tensor, apart: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return ℓ = mean of −log(e^{a/τ}/(e^{a/τ} + e^{b/τ})) = mean of log(1 + e^{(b − a)/τ}), [], and ∂ℓ/∂z [n, dim].

    a and b are the cosines of z with z_glob and z_prev. With u = z/max(‖z‖, 10⁻⁸) and v = z_prev/‖z_prev‖ −
    z_glob/‖z_glob‖, b − a = u·v, so that only one vector per sample needs to be kept for both streams, and

        ∂ℓ/∂z = σ(u·v/τ)/(n·τ·max(‖z‖, 10⁻⁸)) · (v − (u·v)·u), with the logistic function σ; without (u·v)·u if ‖z‖ <
        10⁻⁸.

    ``z``: representations [n, dim]. ``apart``: v, [n, dim].

    >>> import torch
    >>> term, _ = contrast(torch.ones(3, 2), torch.zeros(3, 2), 0.5)
    >>> round(float(term), 4)  # equally near to both: log 2
    0.6931
    """
    from torch.nn.functional import softplus

    length = z.norm(dim=1, keepdim=True)
    u = z / length.clamp_min(SHORT)
    nearer = (u * apart).sum(1, keepdim=True)
    across = apart - u * (nearer * (length >= SHORT))
    slope = (nearer / temperature).sigmoid() / (length.clamp_min(SHORT) * (temperature * len(z)))
    return softplus(nearer / temperature).mean(), across * slope


def _head(network: Network) -> str:
    from fedfloor.models.classifier import layer
    from fedfloor.models.layers import Projected

    path = network.classifier
    if path is None or not isinstance(layer(network.module, path.rpartition(".")[0]), Projected):
        raise SettingError(
            "objective contrastive: the network has no projection head: it was built for another objective. Use the "
            "method moon, or build it with adapt = Contrastive().adapt.",
            key="objective",
        )
    return path


@dataclass(frozen=True)
class Interpolated(Objective):
    """F(m) of the mixture m = αv + (1 − α)w of the arrived model w and the device's own model v, which it keeps.

    The visit trains m with w fixed: a step −ρ∇F(m) changes v by −(ρ/α)∇F(m). Initially v = w. The visit trains a model
    beside the arrived one (``Work.sends = "arrived"``). With α = 1 it is plain training of v, to the bit.
    Deng, Kamani and Mahdavi, arXiv 2003.13461.

    Args:
        alpha: α in (0, 1].
    """

    alpha: float

    def __post_init__(self) -> None:
        require(0 < self.alpha <= 1, "objective interpolated: alpha", self.alpha, "above 0 and at most 1")

    remembers = needs_start = assumes_sgd = True

    loss = Plain.loss

    def arrive(self, model: Tensor, memory: Mapping[str, Tensor], network: Network) -> None:
        if "v" in memory:
            model.mul_(1 - self.alpha).add_(memory["v"], alpha=self.alpha)

    def remember(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return the device's model v = (m − (1 − α)w)/α to keep."""
        return {"v": (model - (1 - self.alpha) * visit.arrived()) / self.alpha}
