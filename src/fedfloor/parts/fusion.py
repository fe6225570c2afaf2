"""FedFusion's objective: features under training are fused with those of a frozen copy of the model that arrived."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedfloor.errors import SettingError, unknown
from fedfloor.parts.frozen import evaluating, features, tapped
from fedfloor.parts.objective import Objective, Plain, Visit
from fedfloor.plan.nodes import forward_cost

if TYPE_CHECKING:
    from torch import Tensor, nn

OPERATORS = ("conv", "multi", "single")


@dataclass(frozen=True)
class Fusion(Objective):
    """F(w) with features z = fuse(x, y), x those under training and y those of the model as it arrived.

    The operators are ``multi``: z = γ⊙y + (1 − γ)⊙x with one γ per channel; ``single``: the same with one γ for all;
    both start at γ = 0, plain training; ``conv``: z = W·[x; y], a 1×1 convolution of 2C channels to C. The operator's
    parameters are part of the model and are trained and averaged with it.

    y comes without gradient, in evaluation mode, and is worked out once per visit (which keeps it: as many numbers as
    the features have, per sample, while a visit has several passes). Outside training both streams are the model
    itself, y = x, so that ``multi`` and ``single`` predict like the plain network; the authors' code
    (thu-media/FedFusion) tests with the new model's x and the model's before it as y. Yao et al., ICIP 2019; arXiv
    1908.05891.

    Args:
        operator: ``conv``, ``multi`` or ``single``.
        layer: path of the layer whose input is fused. Left out it is the first ``nn.Flatten`` that trained layers feed,
            so that the channels of the last convolution are fused; where there is none it is the classifier.
    """

    operator: Literal["conv", "multi", "single"] = "multi"
    layer: str | None = None

    def __post_init__(self) -> None:
        if self.operator not in OPERATORS:
            raise unknown("operator of objective fusion", str(self.operator), OPERATORS)

    @property
    def needs_start(self) -> bool:
        """Whether there is a second stream: always."""
        return True

    def passes(self, of: float) -> float:
        """Add the second stream, the arriving model's features."""
        return of + forward_cost(of)

    def adapt(
        self,
        module: nn.Module,
        classifier: str | None,
        classes: int,  # noqa: ARG002
        shape: tuple[int, ...],
    ) -> tuple[nn.Module, str | None]:
        """Put the fusion before its layer.

        Raises:
            SettingError: there is no such layer, or no trained layer before it.
        """
        from fedfloor.models.classifier import replace
        from fedfloor.models.fusion import Fused, Gate, Mixture

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
        """Return y, [samples, C, …]; of pictures [samples, height, width, C], as a network's memory has it."""
        from fedfloor.models.fusion import fused

        y = features(visit, x, fused(visit.resident().module)[0])
        return {"other": y.permute(0, 2, 3, 1) if y.dim() == 4 else y}

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return (cross-entropy [], logits [batch, classes]) of the fused features."""
        from fedfloor.models.fusion import fused

        part, other = fused(module)[1], visit.per_sample["other"]
        part.other = other.permute(0, 3, 1, 2) if other.dim() == 4 else other
        try:
            return Plain().loss(module, x, y, visit)
        finally:
            part.other = None


def _place(
    module: nn.Module, classifier: str | None, shape: tuple[int, ...], wanted: str | None
) -> tuple[str, tuple[int, ...]]:
    """Return the path of the layer whose input is fused, and the shape of that input."""
    from torch import nn as layers

    from fedfloor.models.classifier import layer, no_layer

    if wanted is not None:
        if not wanted or layer(module, wanted) is None:
            raise no_layer(f"objective fusion: layer = '{wanted}'", type(module).__name__, module, wanted)
        paths = [wanted]
    else:
        paths = [path for path, part in module.named_modules() if isinstance(part, layers.Flatten) and path]
        paths += [] if classifier is None else [classifier]
    inputs = _inputs(module, paths, shape)
    for path, seen in inputs.items():  # in the order of the paths: flattening comes before the classifier
        if len(seen) == 1 and seen[0].requires_grad and 2 <= seen[0].dim() <= 5:
            return path, tuple(seen[0].shape)
    raise SettingError(_no_place(inputs, wanted))


def _inputs(module: nn.Module, paths: list[str], shape: tuple[int, ...]) -> dict[str, list[Tensor]]:
    """Return what goes into some layers when two black samples go into the network, call by call."""
    import torch

    with ExitStack() as stack:
        stack.enter_context(evaluating(module))
        seen = {path: stack.enter_context(tapped(module.get_submodule(path))) for path in paths}
        with torch.enable_grad():  # what comes from trained layers has a gradient
            module(torch.zeros(2, *shape))
    return seen


def _no_place(inputs: Mapping[str, list[Tensor]], wanted: str | None) -> str:
    """Say why no layer's input can be fused."""
    if wanted is None:
        return (
            "objective fusion: this network has no features to fuse: no trained layer before an nn.Flatten or before "
            "its classifier. Choose a deeper network, or name the layer whose input is to be fused (layer = …)."
        )
    seen = inputs[wanted]
    if len(seen) != 1:
        why = f"is called {len(seen)} times in a forward pass, and it must be once"
    elif not seen[0].requires_grad:
        why = "gets its input from no trained layer, so that there is nothing to fuse"
    else:
        why = f"has inputs of shape {tuple(seen[0].shape[1:])} per sample, and they must have 1 to 4 dimensions"
    return f"objective fusion: layer = '{wanted}' {why}. Name another one, or leave it out."
