"""A second stream: the network with other numbers, asked without gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedfloor.parts.objective import Visit


def frozen(visit: Visit, x: Tensor, model: Tensor | None = None) -> Tensor:
    """Return the logits [batch, classes] of a flat model: no gradient, evaluation mode, nothing changed.

    Args:
        visit: the visit, with its network.
        x: samples [batch, …].
        model: flat model [P]; the one that arrived where it is left out.

    Raises:
        RunError: the visit has no network, or did not ask for the model as it arrived.
    """
    import torch

    network = visit.resident()
    numbers = visit.arrived() if model is None else model
    with evaluating(network.module), torch.no_grad():
        said: Tensor = torch.func.functional_call(network.module, network.named(numbers), (x,))
    return said


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode, and back into the mode it was in."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


@contextmanager
def tapped(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what goes into a layer, call by call.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    >>> with tapped(net[1]) as features:
    ...     logits = net(torch.zeros(5, 3))
    >>> features[0].shape
    torch.Size([5, 4])
    """
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _layer, inputs: seen.append(inputs[0]))
    try:
        yield seen
    finally:
        handle.remove()
