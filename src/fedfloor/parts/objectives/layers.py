"""Objectives that add their own layers to the network: feature fusion, and gated units conditioned on the device."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedfloor.base.errors import SettingError, require, unknown
from fedfloor.parts.objectives.objective import Objective, Plain, Visit
from fedfloor.parts.objectives.proximal import evaluating, features, tapped
from fedfloor.plan.nodes import forward_cost

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedfloor.models.network import Network

OPERATORS = ("conv", "multi", "single")


@dataclass(frozen=True)
class Fusion(Objective):
    """F(w) with fused features z = fuse(x, y) of the model under training, x, and the arrived model, y.

    The operators are ``multi``: z = γ⊙y + (1 − γ)⊙x with one γ per channel; ``single``: the same with one γ for all;
    both start at γ = 0, plain training; ``conv``: z = W·[x; y], a 1×1 convolution of 2C channels to C. The operator's
    parameters are part of the model and are trained and averaged with it.

    y has no gradient, is computed in evaluation mode, once per visit, and kept in memory if the visit has several
    passes. Outside training both streams are the model itself, y = x, so that ``multi`` and ``single`` predict like the
    plain network; the authors' code (thu-media/FedFusion) tests with x of the new and y of the previous model. Yao et
    al., ICIP 2019; arXiv 1908.05891.

    Args:
        operator: ``conv``, ``multi`` or ``single``.
        layer: path of the layer whose input is fused. The default is the first ``nn.Flatten`` after trained layers, so
            that the channels of the last convolution are fused; without one, the classifier.
    """

    operator: Literal["conv", "multi", "single"] = "multi"
    layer: str | None = None

    def __post_init__(self) -> None:
        if self.operator not in OPERATORS:
            raise unknown("operator of objective fusion", str(self.operator), OPERATORS)

    needs_start = True

    def passes(self, trained: float) -> float:
        return trained + forward_cost(trained)

    def adapt(
        self, module: nn.Module, classifier: str | None, classes: int, shape: tuple[int, ...]
    ) -> tuple[nn.Module, str | None]:
        from fedfloor.models.classifier import replace
        from fedfloor.models.layers import Fused, Gate, Mixture

        path, (_, channels, *sides) = _place(module, classifier, shape, self.layer)
        if self.operator == "conv":
            fusion: nn.Module = Mixture(channels, 2 + len(sides))
        else:
            fusion = Gate(channels if self.operator == "multi" else 1)
        fusion.to(next(module.parameters()).dtype)
        replace(module, path, Fused(module.get_submodule(path), fusion))
        if classifier is not None and f"{classifier}.".startswith(f"{path}."):
            classifier = f"{path}.layer{classifier.removeprefix(path)}"
        return module, classifier

    def per_sample(self, x: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        """Return y, [samples, C, …]; for pictures [samples, height, width, C], as in the network's memory format."""
        from fedfloor.models.layers import fused

        y = features(visit, x, fused(visit.resident().module)[0])
        return {"other": y.permute(0, 2, 3, 1) if y.dim() == 4 else y}

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        from fedfloor.models.layers import fused

        part = fused(module)[1]
        other = visit.per_sample["other"]
        part.other = other.permute(0, 3, 1, 2) if other.dim() == 4 else other
        try:
            return Plain().loss(module, x, y, visit)
        finally:
            part.other = None


def _place(
    module: nn.Module, classifier: str | None, shape: tuple[int, ...], wanted: str | None
) -> tuple[str, tuple[int, ...]]:
    import torch
    from torch import nn as layers

    from fedfloor.models.classifier import layer, no_layer

    if wanted is not None:
        if not wanted or layer(module, wanted) is None:
            raise no_layer(f"objective fusion: layer = '{wanted}'", type(module).__name__, module, wanted)
        paths = [wanted]
    else:
        paths = [path for path, part in module.named_modules() if isinstance(part, layers.Flatten) and path]
        paths += [] if classifier is None else [classifier]
    with ExitStack() as stack:  # the network is called with two samples of zeros
        stack.enter_context(evaluating(module))
        inputs = {path: stack.enter_context(tapped(module.get_submodule(path))) for path in paths}
        with torch.enable_grad():  # outputs of trained layers have a gradient
            module(torch.zeros(2, *shape))
    for path, seen in inputs.items():  # in the order of the paths: nn.Flatten precedes the classifier
        if len(seen) == 1 and seen[0].requires_grad and 2 <= seen[0].dim() <= 5:
            return path, tuple(seen[0].shape)
    if wanted is None:
        raise SettingError(
            "objective fusion: this network has no features to fuse: no trained layer before an nn.Flatten or before "
            "its classifier. Choose a deeper network, or name the layer whose input is to be fused (layer = …).",
            key="objective",
        )
    seen = inputs[wanted]
    if len(seen) != 1:
        why = f"is called {len(seen)} times in a forward pass, and it must be once"
    elif not seen[0].requires_grad:
        why = "has no trained layer before it, so that there is nothing to fuse"
    else:
        why = f"has inputs of shape {tuple(seen[0].shape[1:])} per sample, and they must have 1 to 4 dimensions"
    raise SettingError(
        f"objective fusion: layer = '{wanted}' {why}. Name another one, or leave it out.", key="objective"
    )


PIECE = 32  # samples per call of the extractor, whose activations then stay in the cache


@dataclass(frozen=True)
class Gated(Objective):
    """Cross-entropy of h = tanh(W1 x + b1 + V1 c) ⊙ σ(W2 x + b2 + V2 c) per layer, logits = W h + b + V c.

    x is the input of the network's classifier, which a :class:`~fedfloor.models.gated.GatedHead` replaces; c is one-hot
    in the devices, so that V c is a single column, the device's own. A device keeps its columns private between visits,
    and is evaluated with them. In ``w`` the mean of the participants' columns replaces them after an aggregation;
    devices that were never visited begin with this mean and are evaluated with it. This is FedAvg of the table V by
    owner: each column is averaged over the devices that trained it, which is one. (In the authors' code,
    rasmusmhl/cgau-client-adaptation, all of V is averaged, and the other devices' unchanged copies slow a device's
    column down.) There is no dropout. Rieger et al. 2020, arXiv 2007.04806.

    Args:
        layers: the number of gated layers before the last layer.
        units: the outputs of each gated layer.
        frozen: if true, the head and the device's columns are trained, and the extractor is called once per sample and
            visit, in evaluation mode; if false, everything but the columns is trained, to warm up the extractor.
    """

    layers: int = 2
    units: int = 256
    frozen: bool = True

    def __post_init__(self) -> None:
        require(self.layers >= 1, "objective gated: layers", self.layers, "a whole number of at least 1")
        require(self.units >= 1, "objective gated: units", self.units, "a whole number of at least 1")

    @property
    def remembers(self) -> bool:
        return self.frozen

    @property
    def personal(self) -> bool:
        return self.frozen

    def passes(self, trained: float) -> float:
        """Return the passes of a visit; with a frozen extractor one forward pass, the head is not counted."""
        return forward_cost(trained) if self.frozen else trained

    def adapt(
        self, module: nn.Module, classifier: str | None, classes: int, shape: tuple[int, ...]
    ) -> tuple[nn.Module, str | None]:
        from fedfloor.models.gated import fitted

        return fitted(module, classifier, self.units, self.layers), classifier

    def trains(self, network: Network) -> slice:
        """Return the trained part of the flat model [extractor][head][columns]."""
        if not self.frozen:
            return slice(0, _columns(network).start)
        (head,) = network.span(network.classifier or "")
        return head

    def arrive(self, model: Tensor, memory: Mapping[str, Tensor], network: Network) -> None:
        if "own" not in memory:
            return
        place = _columns(network)
        own = memory["own"]
        if own.shape != (place.stop - place.start,):
            raise SettingError(
                f"a device memory from another model: it holds {tuple(own.shape)} numbers of the device's own, this "
                f"model has ({place.stop - place.start},). Begin the run again with another --out.",
                key="device-memory",
            )
        model[place] = own

    def per_sample(self, x: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        if not self.frozen:
            return {}
        import torch

        from fedfloor.models.gated import head_of, through

        network = visit.resident()
        module = network.module
        head = head_of(network)
        with evaluating(module):
            return {"features": torch.cat([through(module, head, piece)[0] for piece in x.split(PIECE)])}

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        from fedfloor.models.gated import head_of, through

        head = head_of(visit.resident())
        logits = head(visit.per_sample["features"]) if self.frozen else through(module, head, x)[1]
        return visit.task.losses(logits, y, "mean"), logits

    def remember(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        return {"own": model[_columns(visit.resident())].clone()}


def _columns(network: Network) -> slice:
    from fedfloor.models.gated import head_of

    return slice(network.trained - head_of(network).own.columns.numel(), network.trained)
