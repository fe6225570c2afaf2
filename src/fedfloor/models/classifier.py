"""The classifier layer of a network, and checks that the network fits the samples and the task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedfloor.base.errors import SettingError, nearest
from fedfloor.base.outside import located
from fedfloor.models.zoo import Shape

NAMED = 12  # greatest number of layers in an error message
HALF = (torch.float16, torch.bfloat16)
TRAINED = (torch.float32, torch.float64)


def find(model: str, module: nn.Module, shape: Shape, classes: int, wanted: str | None = None) -> str | None:
    """Return the path of the classifier, the last layer with trained parameters; None if it cannot be determined.

    It is ``wanted``, or else the text in the module's attribute ``classifier``, or else the last ``nn.Linear``, in the
    order of definition, that has trained parameters and ``classes`` outputs.

    Args:
        model: the network's name, for errors.
        shape: the shape of a sample.
        classes: the number of outputs per sample: classes, or numbers that the task predicts.
        wanted: the setting ``model.classifier``.

    Raises:
        SettingError: the named layer is missing, has no trained parameters, or has another number of outputs.

    >>> find("net", nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), (4,), 3)
    '2'
    """
    own = getattr(module, "classifier", None)
    if wanted is not None:
        _check_classifier(f"model.classifier = '{wanted}'", model, module, wanted, shape, classes)
        return wanted
    if isinstance(own, str):
        _check_classifier(f"the network's own classifier = '{own}'", model, module, own, shape, classes)
        return own
    heads = [
        path
        for path, part in module.named_modules()
        if isinstance(part, nn.Linear) and part.out_features == classes and _trains(part)
    ]
    return heads[-1] if heads else None


def layer(module: nn.Module, path: str) -> nn.Module | None:
    """Return the submodule with this path, or None if it does not exist."""
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def replace(module: nn.Module, path: str, part: nn.Module) -> None:
    """Replace the submodule with this path by another layer."""
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, part)


def layers(module: nn.Module) -> list[str]:
    """Return the paths of the layers that directly hold trained parameters, in the module's order."""
    return [
        path for path, part in module.named_modules() if any(p.requires_grad for p in part.parameters(recurse=False))
    ]


def no_layer(setting: str, model: str, module: nn.Module, path: str) -> SettingError:
    """Return the error for a missing layer, with the layers that the network has."""
    known = layers(module)
    layer = path.rpartition(".")[0]  # "head.weight" is a tensor of "head"
    near = f" Did you mean '{layer}'?" if layer in known else nearest(path, known)
    return SettingError(
        f"{setting}: model '{model}' has no such layer.{near} Layers with trained parameters: {_shown(known)}.",
        key="layer",
    )


def unknown_classifier(setting: str, model: str, module: nn.Module) -> SettingError:
    """Return the error for a network without a known classifier."""
    return SettingError(
        f"{setting}: the classifier of model '{model}' cannot be determined. Name it with model.classifier. "
        f"Layers with trained parameters: {_shown(layers(module))}."
    )


def _shown(known: list[str]) -> str:
    return ", ".join(["…"] * (len(known) > NAMED) + known[-NAMED:])


def _trains(part: nn.Module) -> bool:
    return any(p.requires_grad for p in part.parameters())


def _check_classifier(setting: str, model: str, module: nn.Module, path: str, shape: Shape, classes: int) -> None:
    part = layer(module, path) if path else None  # "" would be the whole network
    if part is None:
        raise no_layer(setting, model, module, path)
    if not _trains(part):
        raise SettingError(
            f"{setting}: this layer of model '{model}' is {type(part).__name__} and has no trained parameters. "
            f"Layers with trained parameters: {', '.join(layers(module)[-NAMED:])}."
        )
    # the shape of the layer's output for a sample, without a convolution's trailing sides of 1
    seen: list[tuple[int, ...]] = []

    def note(_part: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            sides = list(output.shape[1:])
            while len(sides) > 1 and sides[-1] == 1:
                sides.pop()
            seen.append(tuple(sides))

    handle = part.register_forward_hook(note)
    try:
        with torch.no_grad():
            module.eval()(torch.zeros(2, *shape))
    finally:
        handle.remove()
    size = seen[-1] if seen else None
    if size != (classes,):
        problem = "is never called by forward()" if size is None else f"gives {size} outputs per sample"
        raise SettingError(
            f"{setting}: this layer of model '{model}' {problem}; the classifier must give ({classes},): one number "
            "per class, target or predicted value."
        )


def check(name: str, module: nn.Module, shape: Shape, classes: int) -> torch.dtype:
    """Check that a network can be trained on samples of a shape, and return the type of its outputs.

    Args:
        classes: the number of outputs per sample: classes, or numbers that the task predicts.

    Raises:
        SettingError: the network does not accept the samples, has another number of outputs, trains nothing, or has
            parameters of another type than float32 and float64.
    """
    if hasattr(module, "set_by"):
        with torch.no_grad():
            return _output(name, module.eval(), shape, classes).dtype
    odd = next((f"{key} is {p.dtype}" for key, p in module.named_parameters() if p.dtype not in TRAINED), None)
    if odd is not None:
        raise SettingError(
            f"model '{name}' has parameters of a type that cannot be trained here: {odd}. Leave them in float32, "
            "without .half() or .to(torch.bfloat16). Half precision belongs into forward(), by torch.autocast, or on a "
            "GPU into the experiment, as engine.precision = 'bf16'."
        )
    if not any(p.requires_grad for p in module.parameters()):
        kind = "only frozen parameters" if any(True for _ in module.parameters()) else "no parameters"
        raise SettingError(f"model '{name}' has {kind}: there is nothing to train.")
    if any(getattr(part, "momentum", 0) is None for part in module.modules() if hasattr(part, "num_batches_tracked")):
        raise SettingError(
            f"model '{name}' has a batch norm with momentum = None, whose statistics depend on a counter that is not "
            "part of the model. Set momentum to a number, such as 0.1."
        )
    with torch.no_grad():
        _output(name, module.eval(), shape, classes)
    # the output must have a gradient with respect to every trained parameter
    output = _output(name, module.train(), shape, classes)
    trained = {key: p for key, p in module.named_parameters() if p.requires_grad}
    try:
        gradients = torch.autograd.grad(output.sum(), list(trained.values()), allow_unused=True)
    except Exception as error:  # such as an output that was detached
        raise SettingError(f"model '{name}' cannot be trained: {located(error)}.") from error
    unused = [key for key, gradient in zip(trained, gradients, strict=True) if gradient is None]
    if unused:
        raise SettingError(
            f"model '{name}' has parameters that its output does not depend on: {', '.join(unused)}. Use them in "
            "forward(), remove them, or freeze them with requires_grad_(False)."
        )
    return output.dtype


def _output(name: str, module: nn.Module, shape: Shape, classes: int) -> Tensor:
    """Return the network's output for two samples of zeros, [2, classes]."""
    try:
        output = module(torch.zeros(2, *shape))
    except Exception as error:  # forward() may be the user's own code
        when = " while it is trained" if module.training else ""
        raise SettingError(f"model '{name}' does not take samples of shape {shape}{when}: {located(error)}.") from error
    if not isinstance(output, Tensor):
        raise SettingError(f"model '{name}' gives a {type(output).__name__}: it must give a tensor [batch, {classes}].")
    size = tuple(output.shape)
    if size != (2, classes):
        raise SettingError(
            f"model '{name}' gives {size[1:]} outputs per sample; data.task needs ({classes},): one per class, target "
            "or predicted value. Let the model use its argument 'classes', which is this number."
        )
    return output


@contextmanager
def as_found(module: nn.Module) -> Iterator[None]:
    """Restore a module's mode and buffers at the end of this context, as forward passes may update statistics."""
    was_training = module.training
    before = {key: buffer.clone() for key, buffer in module.named_buffers()}
    yield
    module.train(was_training)
    with torch.no_grad():
        for key, buffer in module.named_buffers():
            if key in before:
                buffer.copy_(before[key])
