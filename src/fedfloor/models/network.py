"""A network whose numbers live in one flat buffer, so that a model is one vector and a visit changes it in place."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from fedfloor.chance import torch_seed
from fedfloor.errors import SettingError, unknown
from fedfloor.models.zoo import NETWORKS, Builder, Shape
from fedfloor.outside import load as load_outside


class Network:
    """A module over one flat vector: trained parameters, then frozen ones, then floating-point buffers.

    A frozen parameter (``requires_grad`` is false) and a buffer (batch-norm statistics) travel with the model and are
    averaged like everything else, but no optimiser step touches them.

    Convolutional networks keep their weights channels-last, in the flat vector too; that is a fixed property of the
    network, because it changes the order of sums and so the last bits of results.

    Attributes:
        module: the network; its tensors are views of ``flat``.
        flat: float32 [P], P = trained + frozen parameters + buffers.
        trained: how many numbers at the front of ``flat`` are trained.
        parameters: the trained parameters, views of ``flat[:trained]`` in the module's order.
        channels_last: whether images and convolution weights are laid out channels-last.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.channels_last = any(isinstance(part, nn.Conv2d) for part in module.modules())
        slots = _slots(module)
        sizes = [tensor.numel() for _, _, tensor in slots]
        self.flat = torch.empty(sum(sizes), dtype=slots[0][2].dtype)
        self.parameters: list[nn.Parameter] = []
        self._named: list[tuple[str, Tensor]] = []
        for (name, owner, tensor), part in zip(slots, self.flat.split(sizes), strict=True):
            view = self.shaped(part, tensor.shape)
            view.copy_(tensor.detach())
            attribute = name.rpartition(".")[2]
            if isinstance(tensor, nn.Parameter):
                tensor.data = view
                if tensor.requires_grad:
                    self.parameters.append(tensor)
            else:
                owner._buffers[attribute] = view
            self._named.append((name, view))
        self.trained = sum(parameter.numel() for parameter in self.parameters)

    def shaped(self, part: Tensor, shape: torch.Size) -> Tensor:
        """Return a piece of a flat vector as a tensor of ``shape``, channels-last where the network is."""
        if self.channels_last and len(shape) == 4:
            out, into, height, width = shape
            return part.view(out, height, width, into).permute(0, 3, 1, 2)
        return part.view(shape)

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return views of another flat vector (momentum, say) shaped like the trained parameters."""
        parts = vector[: self.trained].split([p.numel() for p in self.parameters])
        return [self.shaped(part, p.shape) for part, p in zip(parts, self.parameters, strict=True)]

    def state(self, vector: Tensor) -> dict[str, Tensor]:
        """Return a flat vector as named tensors in the usual layout, for files and other programs."""
        sizes = [view.numel() for _, view in self._named]
        parts = vector.split(sizes)
        return {
            name: self.shaped(part, view.shape).contiguous()
            for (name, view), part in zip(self._named, parts, strict=True)
        }


def _slots(module: nn.Module) -> list[tuple[str, nn.Module, Tensor]]:
    """List (name, owning module, tensor): trained parameters, then frozen ones, then floating-point buffers."""
    found: list[tuple[str, nn.Module, Tensor]] = [(name, module, one) for name, one in module.named_parameters()]
    found.sort(key=lambda slot: not slot[2].requires_grad)  # stable: otherwise the module's order
    for prefix, owner in module.named_modules():
        for attribute, buffer in owner.named_buffers(recurse=False):
            if buffer.is_floating_point():
                found.append((f"{prefix}.{attribute}".lstrip("."), owner, buffer))
    return found


def build(name: str, shape: Shape, classes: int, seed: int) -> Network:
    """Build a network by name, with initial weights that depend on the seed alone.

    Args:
        name: one of :data:`fedfloor.models.zoo.NETWORKS`, or ``module:function`` of your own, called with
            (shape, classes) and returning a ``torch.nn.Module``.
        shape: shape of one sample, such as (1, 28, 28).
        classes: number of classes; the network's output must be [batch, classes].
        seed: the experiment's seed.

    Raises:
        SettingError: unknown name, or a network that does not fit the samples or the classes.

    >>> build("mlp-2nn", (1, 28, 28), 10, seed=0).flat.numel()
    199210
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "weights"))
        module = plain(name, shape, classes)
        _check_fit(name, module, shape, classes)
    return Network(module)


def plain(name: str, shape: Shape, classes: int) -> nn.Module:
    """Return a network as its builder makes it, with weights from PyTorch's global generator.

    Raises:
        SettingError: unknown name, or the builder fails or returns no module.
    """
    builder = _builder(name)
    try:
        module = builder(shape, classes)
    except SettingError:
        raise
    except Exception as error:
        raise SettingError(f"model '{name}' could not be built: {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise SettingError(f"model '{name}' returned {type(module).__name__}: it must return a torch.nn.Module.")
    if any(isinstance(p, UninitializedParameter) for p in module.parameters()):
        raise SettingError(
            f"model '{name}' has lazy layers: give them their sizes, from the 'shape' it is called with."
        )
    return module


def _builder(name: str) -> Builder:
    if ":" in name:
        return load_outside(name, "model")  # type: ignore[no-any-return]
    if name not in NETWORKS:
        raise unknown("model", name, NETWORKS)
    return NETWORKS[name]


def _check_fit(name: str, module: nn.Module, shape: Shape, classes: int) -> None:
    if not any(p.requires_grad for p in module.parameters()):
        kind = "only frozen parameters" if any(True for _ in module.parameters()) else "no parameters"
        raise SettingError(f"model '{name}' has {kind}: there is nothing to train.")
    if any(getattr(part, "momentum", 0) is None for part in module.modules() if hasattr(part, "num_batches_tracked")):
        raise SettingError(
            f"model '{name}' has a batch norm with momentum = None, whose statistics depend on a counter that is not "
            "part of the model. Give it a number, such as 0.1."
        )
    was_training = module.training
    before = {key: buffer.clone() for key, buffer in module.named_buffers()}
    with torch.no_grad():
        _output(name, module.eval(), shape, classes)
    _check_gradients(name, module.train(), _output(name, module.train(), shape, classes))
    module.train(was_training)
    with torch.no_grad():
        for key, buffer in module.named_buffers():  # what the forward pass in training mode has counted
            if key in before:
                buffer.copy_(before[key])


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
        loss = nn.functional.cross_entropy(output, torch.zeros(2, dtype=torch.int64))
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    except Exception as error:  # such as an output that was detached
        raise SettingError(f"model '{name}' cannot be trained: {type(error).__name__}: {error}") from error
    unused = [key for key, gradient in zip(trained, gradients, strict=True) if gradient is None]
    if unused:
        raise SettingError(
            f"model '{name}' has parameters that its output does not depend on: {', '.join(unused)}. Use them in "
            "forward(), take them out, or freeze them with requires_grad_(False)."
        )


def count(name: str, shape: Shape, classes: int) -> int:
    """Return a network's number of parameters, frozen ones included; PyTorch's global generator stays as it is.

    Raises:
        SettingError: unknown name, or the builder fails or returns no module.

    >>> count("logistic", (1, 28, 28), 10)
    7850
    """
    with torch.random.fork_rng(devices=[]):
        return sum(p.numel() for p in plain(name, shape, classes).parameters())
