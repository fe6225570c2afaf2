"""A second stream: the network with other numbers, asked without gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from fedfloor.errors import RunError

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


def features(visit: Visit, x: Tensor, layer: str, model: Tensor | None = None) -> Tensor:
    """Return what goes into a layer of a flat model [batch, …]; as :func:`frozen`, and nothing behind it is worked out.

    Args:
        visit: the visit, with its network.
        x: samples [batch, …].
        layer: path of the layer.
        model: flat model [P]; the one that arrived where it is left out.

    Raises:
        RunError: as :func:`frozen`, or the network does not call the layer.
    """
    with tapped(visit.resident().module.get_submodule(layer), stop=True) as seen, suppress(Reached):
        frozen(visit, x, model)
    if not seen:
        raise RunError(f"the network does not call its layer '{layer}' in evaluation mode: there are no features.")
    return seen[0]


class Reached(Exception):  # noqa: N818 - no error
    """A forward pass went as far as it was needed."""


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
def tapped(layer: nn.Module, *, stop: bool = False) -> Iterator[list[Tensor]]:
    """Collect what goes into a layer, call by call; with ``stop`` the first call ends the forward pass.

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
