"""Large fully connected layers whose gradient is never written down: it goes into the weights as it is worked out.

A step of plain SGD, W ← W − η·δᵀx, is one matrix product that adds to W. Otherwise the gradient, as large as the layer,
is written by one product and read by the next addition: of the papers' networks of 6.6 million parameters 26 MB each
time. Exact in arithmetic, not in rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedfloor.models.network import Network
from fedfloor.parts.objective import Objective, Plain
from fedfloor.plan.nodes import Work

LARGE = 1 << 20  # numbers of a layer: what does not fit the cache beside everything else


def layers(network: Network, work: Work, objective: Objective) -> list[nn.Linear]:
    """Return the layers that can take their own steps; none where that would not be the same step.

    Plain cross-entropy asks a chain of layers once for each mini-batch, so that no layer is needed after its step.
    Momentum, weight decay and other objectives read gradients or weights afterwards.
    """
    if type(objective) is not Plain or not work.only("objective", "epochs", "steps", "batch_size", "rate"):
        return []
    chain = network.module
    if type(chain) is not nn.Sequential or any(not p.requires_grad for p in chain.parameters()):
        return []  # of a class of one's own, forward() may ask a layer twice
    known = [one for one in chain if any(True for _ in one.parameters())]
    inside = [id(p) for one in known for p in one.parameters()]
    if len(set(inside)) < len(inside):  # a layer that stands twice, or layers that share their weights
        return []
    # not the first one: the backward pass goes as far as there are gradients to write down
    return [one for one in known[1:] if type(one) is nn.Linear and _own(one) and one.weight.numel() >= LARGE]


def _own(layer: nn.Linear) -> bool:
    """Return whether a layer's weight is its parameter: weight normalisation works it out from others."""
    return "weight" in dict(layer.named_parameters())


@contextmanager
def stepping(large: list[nn.Linear], rate: float) -> Iterator[None]:
    """Let layers take their steps during the backward pass."""
    for one in large:
        one.forward = partial(_forward, one, rate)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for one in large:
            del one.forward


def _forward(layer: nn.Linear, rate: float, x: Tensor) -> Tensor:
    return _Stepped.apply(x, layer.weight, layer.bias, rate)  # type: ignore[no-any-return,no-untyped-call]


class _Stepped(torch.autograd.Function):
    """y = x·Wᵀ + b, whose backward pass takes the layer's step after it has worked out what goes further back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, rate: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer, ctx.rate = (weight, bias), rate
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        (x,), (weight, bias) = ctx.saved_tensors, ctx.layer
        before = grad.matmul(weight) if ctx.needs_input_grad[0] else None
        rows = grad.flatten(0, -2)  # a sample may have several
        weight.data.addmm_(rows.t(), x.flatten(0, -2), alpha=-ctx.rate)
        if bias is not None:
            bias.data.add_(rows.sum(0), alpha=-ctx.rate)
        return before, None, None, None
