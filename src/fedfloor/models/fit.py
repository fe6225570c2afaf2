"""Whether a network fits the samples and the classes it is to be trained on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedfloor.errors import SettingError
from fedfloor.models.zoo import Shape


def check(name: str, module: nn.Module, shape: Shape, classes: int) -> None:
    """Check that a network can be trained on such samples, or takes them where a method sets it (``set_by``).

    Raises:
        SettingError: nothing to train, another output, or parameters without a gradient.
    """
    if hasattr(module, "set_by"):
        with torch.no_grad():
            _output(name, module.eval(), shape, classes)
        return
    if not any(p.requires_grad for p in module.parameters()):
        kind = "only frozen parameters" if any(True for _ in module.parameters()) else "no parameters"
        raise SettingError(f"model '{name}' has {kind}: there is nothing to train.")
    if any(getattr(part, "momentum", 0) is None for part in module.modules() if hasattr(part, "num_batches_tracked")):
        raise SettingError(
            f"model '{name}' has a batch norm with momentum = None, whose statistics depend on a counter that is not "
            "part of the model. Give it a number, such as 0.1."
        )
    with torch.no_grad():
        _output(name, module.eval(), shape, classes)
    _check_gradients(name, module.train(), _output(name, module.train(), shape, classes))


def _output(name: str, module: nn.Module, shape: Shape, classes: int) -> Tensor:
    """Return what the network makes of two black samples, [2, classes]."""
    try:
        output = module(torch.zeros(2, *shape))
    except Exception as error:  # it may be the user's own code
        when = " while it is trained" if module.training else ""
        raise SettingError(f"model '{name}' does not take samples of shape {shape}{when}: {error}") from error
    if not isinstance(output, Tensor):
        raise SettingError(f"model '{name}' gives a {type(output).__name__}: it must give a tensor [batch, classes].")
    got = tuple(output.shape)
    if got != (2, classes):
        raise SettingError(
            f"model '{name}' gives {got[1:]} outputs per sample: the data have {classes} classes, "
            f"so it must give ({classes},). Let the model use the 'classes' it is called with."
        )
    return output


def _check_gradients(name: str, module: nn.Module, output: Tensor) -> None:
    """Check that the output has a gradient with respect to every parameter that is to be trained."""
    trained = {key: p for key, p in module.named_parameters() if p.requires_grad}
    try:
        gradients = torch.autograd.grad(output.sum(), list(trained.values()), allow_unused=True)
    except Exception as error:  # such as an output that was detached
        raise SettingError(f"model '{name}' cannot be trained: {type(error).__name__}: {error}") from error
    unused = [key for key, gradient in zip(trained, gradients, strict=True) if gradient is None]
    if unused:
        raise SettingError(
            f"model '{name}' has parameters that its output does not depend on: {', '.join(unused)}. Use them in "
            "forward(), take them out, or freeze them with requires_grad_(False)."
        )


@contextmanager
def as_found(module: nn.Module) -> Iterator[None]:
    """Leave a module's mode and buffers as they were: a forward pass may count and take means."""
    was_training = module.training
    before = {key: buffer.clone() for key, buffer in module.named_buffers()}
    yield
    module.train(was_training)
    with torch.no_grad():
        for key, buffer in module.named_buffers():
            if key in before:
                buffer.copy_(before[key])
