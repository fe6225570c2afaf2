"""A classifier of gated activation units with the device's own parameters, which replaces a network's last layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from fedfloor.base.errors import SettingError
from fedfloor.models.classifier import layer, replace
from fedfloor.models.network import Network


class OwnColumns(nn.Module):
    """The device's own columns V c of all layers, one vector [m]; a module, so that they are last in the head."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.columns = nn.Parameter(torch.zeros(numbers))


class GatedHead(nn.Module):
    """Gated layers h = tanh(W1 x + b1 + V1 c) ⊙ σ(W2 x + b2 + V2 c), then logits = W h + b + V c.

    c is one-hot, so V c is a single column, the device's. ``own.columns`` holds all columns in the order V1 c, V2 c of
    each layer, V c of the last, which begin at 0. W1 and W2 are the halves of one matrix. Rieger et al. 2020, arXiv
    2007.04806; the paper's biases of the client terms (d1, d2, d) add to b1, b2, b and are omitted. Initial weights are
    uniform in ±√(6/(inputs + outputs)) (Glorot and Bengio, AISTATS 2010) and biases are 0, as in the authors' code, in
    which the initial columns are drawn like weights.

    >>> head = GatedHead(features=64, units=256, layers=2, classes=62)
    >>> [name for name, _ in head.named_parameters()][-2:], head.own.columns.shape  # 2·2·256 + 62
    (['out.bias', 'own.columns'], torch.Size([1086]))
    """

    def __init__(self, features: int, units: int, layers: int, classes: int) -> None:
        super().__init__()
        widths = [features] + [units] * (layers - 1)
        self.gates = nn.ModuleList(nn.Linear(width, 2 * units) for width in widths)
        self.out = nn.Linear(units, classes)
        self.own = OwnColumns(2 * units * layers + classes)  # last, so that trained parameters are adjacent
        parts: Any = [*self.gates, self.out]
        with torch.no_grad():
            for part in parts:
                for weight in part.weight.chunk(1 if part is self.out else 2):
                    nn.init.xavier_uniform_(weight)
                nn.init.zeros_(part.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [batch, classes] of features [batch, features]."""
        parts: Any = [*self.gates, self.out]
        *columns, last = self.own.columns.split([part.out_features for part in parts])
        for gate, column in zip(parts, columns, strict=False):
            value, opening = linear(x, gate.weight, gate.bias + column).chunk(2, 1)
            x = value.tanh() * opening.sigmoid()
        return linear(x, self.out.weight, self.out.bias + last)


def fitted(module: nn.Module, classifier: str | None, units: int, layers: int) -> nn.Module:
    """Replace a network's classifier by a gated head, in place; return the network.

    >>> net = fitted(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), "2", units=8, layers=1)
    >>> net(torch.zeros(1, 4)).shape
    torch.Size([1, 3])
    """
    part = None if classifier is None else layer(module, classifier)
    if classifier is None or part is None:
        raise SettingError(
            "objective 'gated' replaces the network's classifier, and that layer is unknown: name it with "
            "[model] classifier, or in the network's attribute 'classifier'."
        )
    if not isinstance(part, nn.Linear):
        raise SettingError(
            f"objective 'gated' replaces the network's classifier '{classifier}', which is {type(part).__name__}: it "
            "must be nn.Linear. Let the network end in such a layer."
        )
    inside = {id(p) for p in part.parameters()}
    after = [name for name, p in module.named_parameters() if p.requires_grad]
    trained = [id(p) for p in module.parameters() if p.requires_grad]
    while trained and trained[-1] in inside:
        trained.pop()
    if inside & set(trained) or len(trained) == len(after):
        raise SettingError(
            f"objective 'gated' trains the network's classifier '{classifier}' alone, but '{after[-1]}' is defined "
            "after it: define the classifier as the network's last layer."
        )
    replace(module, classifier, GatedHead(part.in_features, units, layers, part.out_features).to(part.weight.dtype))
    return module


def head_of(network: Network) -> GatedHead:
    """Return a network's gated head."""
    part = layer(network.module, network.classifier) if network.classifier else None
    if not isinstance(part, GatedHead):
        raise SettingError(
            "objective 'gated' trains a gated head, and this network has none: the method must have it as its "
            "'objective', so that the network is built for it, as in method 'cgau'."
        )
    return part


def through(module: nn.Module, head: GatedHead, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the head's inputs [batch, width] and the logits [batch, classes] for samples."""
    seen: list[tuple[Tensor, Tensor]] = []
    handle = head.register_forward_hook(lambda _head, inputs, output: seen.append((inputs[0], output)))
    try:
        logits = module(x)
    finally:
        handle.remove()
    # NaN is not equal to itself
    if len(seen) != 1 or seen[0][0].dim() != 2 or not torch.equal(seen[0][1].nan_to_num(), logits.nan_to_num()):
        raise SettingError(
            "objective 'gated': the network's output must be that of its classifier, called once with features [batch, "
            "width]. Remove the layers after the classifier, such as a softmax, which the loss contains."
        )
    return seen[0][0], logits
