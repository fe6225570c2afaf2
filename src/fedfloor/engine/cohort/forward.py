"""Stacked forward passes: samples [K, B, …] through K models side by side, logits [K, B, F].

A plain chain of known layers is computed layer by layer; ``torch.func.vmap`` maps any other network over the device
axis.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import conv2d, pad

from fedfloor.models.layers import Asinh, Soft, Statistics
from fedfloor.models.network import Network

Numbers = Mapping[str, Tensor]  # name → [K, *shape]
Forward = Callable[[Numbers, Tensor], Tensor]
Convolve = Callable[[nn.Conv2d, Tensor, Tensor, "Tensor | None"], Tensor]
NEAR = 1e-3  # relative difference of outputs: rounding errors are a hundred times smaller
# Layers without parameters that process every sample by itself: all K·B samples pass at once.
SAMPLEWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.Sigmoid, nn.Hardtanh,
    nn.Identity, nn.Flatten, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.ZeroPad2d, Asinh, Soft, Statistics,
)  # fmt: skip
TRIES = 5


def grouped(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the stacked convolution, computed as one grouped convolution with a group per device."""
    models, batch = x.shape[:2]
    wide = x.transpose(0, 1).flatten(1, 2)
    bias = None if bias is None else bias.flatten()
    done = conv2d(wide, weight.flatten(0, 1), bias, layer.stride, _padding(layer), 1, models)
    out: Tensor = done.unflatten(1, (models, -1))
    return out.transpose(0, 1).reshape(models, batch, -1, *done.shape[2:])


def unfolded(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the stacked convolution, computed as a batched matrix product of the patches, channels last."""
    models = len(x)
    (high, wide) = layer.kernel_size
    (down, right) = layer.stride
    (over, beside) = _padding(layer)
    last = x.permute(0, 1, 3, 4, 2)
    if over or beside:
        last = pad(last, (0, 0, beside, beside, over, over))
    patches = last.unfold(2, high, down).unfold(3, wide, right)  # [K, B, H, W, C, high, wide]
    sides = patches.shape[1:4]
    rows = patches.permute(0, 1, 2, 3, 5, 6, 4).reshape(models, sides.numel(), -1)
    matrix = weight.permute(0, 1, 3, 4, 2).reshape(models, weight.shape[1], -1).mT
    out = torch.bmm(rows, matrix) if bias is None else torch.baddbmm(bias[:, None], rows, matrix)
    return out.view(models, *sides, -1).permute(0, 1, 4, 2, 3)


def each(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the stacked convolution, computed device by device."""
    biases = [None] * len(x) if bias is None else bias.unbind()
    pairs = zip(x.unbind(), weight.unbind(), biases, strict=True)
    return torch.stack([conv2d(samples, w, b, layer.stride, _padding(layer)) for samples, w, b in pairs])


CONVOLUTIONS: dict[str, Convolve] = {"each": each, "unfolded": unfolded, "grouped": grouped}


def _padding(layer: nn.Conv2d) -> tuple[int, int]:
    down, right = (int(side) for side in layer.padding)
    return down, right


def stacked(network: Network, convolve: Convolve, path: str = "") -> tuple[Forward, str]:
    """Return a network's stacked forward pass, and its kind: ``"layers"`` or ``"vmap"``."""
    module = network.module.get_submodule(path) if path else network.module
    steps = _chain(module, path, convolve)
    if steps is not None:
        return partial(_through, steps), "layers"
    before = f"{path}." if path else ""

    def one(numbers: dict[str, Tensor], x: Tensor) -> Tensor:
        logits: Tensor = functional_call(module, numbers, (x,))
        return logits

    def forward(numbers: Numbers, x: Tensor) -> Tensor:
        inside = {name.removeprefix(before): value for name, value in numbers.items() if name.startswith(before)}
        if len(x) == 1:  # in vmap on a CPU, group norm refuses the memory layout of a single model's convolutions
            return one({name: value[0] for name, value in inside.items()}, x[0])[None]
        return vmap(one)(inside, x)

    return forward, "vmap"


def _through(steps: list[Forward], numbers: Numbers, x: Tensor) -> Tensor:
    for step in steps:
        x = step(numbers, x)
    return x


def _chain(module: nn.Module, path: str, convolve: Convolve) -> list[Forward] | None:
    """Return the forward passes of a chain of known layers; None if it has an unknown layer."""
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        return None
    if type(module) is nn.Sequential:
        parts: list[Forward] = []
        for name, child in module.named_children():
            below = _chain(child, f"{path}.{name}".lstrip("."), convolve)
            if below is None:
                return None
            parts += below
        return parts
    if type(module) is nn.Linear:
        return [partial(_linear, path)]
    if type(module) is nn.Conv2d and _simple(module):
        return [partial(_convolution, path, module, convolve)]
    if type(module) in SAMPLEWISE:
        return [partial(_samplewise, module)]
    return None


def _simple(layer: nn.Conv2d) -> bool:
    plain = layer.groups == 1 and set(layer.dilation) == {1} and layer.padding_mode == "zeros"
    return plain and not isinstance(layer.padding, str)


def _linear(path: str, numbers: Numbers, x: Tensor) -> Tensor:
    weight = numbers[f"{path}.weight".lstrip(".")]
    bias = numbers.get(f"{path}.bias".lstrip("."))
    rows = x.flatten(1, -2)
    out = torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
    whole: Tensor = out.unflatten(1, x.shape[1:-1])
    return whole


def _convolution(path: str, layer: nn.Conv2d, convolve: Convolve, numbers: Numbers, x: Tensor) -> Tensor:
    weight = numbers[f"{path}.weight".lstrip(".")]
    bias = numbers.get(f"{path}.bias".lstrip("."))
    return convolve(layer, x, weight, bias)


def _samplewise(layer: nn.Module, numbers: Numbers, x: Tensor) -> Tensor:  # noqa: ARG001
    outputs: Tensor = layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])
    return outputs


def views(network: Network, flat: Tensor, begin: int = 0) -> dict[str, Tensor]:
    """Return the tensors of K flat models by name, each [K, *shape], as views.

    Args:
        flat: the models [K, P], or the slice of them that begins at the number ``begin``.
    """
    named = {}
    shapes = {name: tensor.shape for name, tensor in network.named(network.flat).items()}
    for name, place in network.layout.items():
        first = place[0] - begin
        stop = place[1] - begin
        if first < 0 or stop > flat.shape[1]:
            continue
        shape = shapes[name]
        part = flat[:, first:stop]
        if network.channels_last and len(shape) == 4:
            out, into, high, wide = shape
            named[name] = part.unflatten(1, (out, high, wide, into)).permute(0, 1, 4, 2, 3)
        else:
            named[name] = part.unflatten(1, shape) if shape else part[:, 0]
    return named


def agrees(network: Network, forward: Forward, shape: tuple[int, ...]) -> str:
    """Return the reason why a stacked forward pass cannot replace the network, or "" if their outputs agree."""
    flat = network.flat
    x = torch.linspace(-1, 1, 3 * int(torch.Size(shape).numel())).to(flat).view(3, *shape)
    was_training = network.module.training
    network.module.train()
    try:
        with torch.no_grad():
            alone = network.module(x)
            beside = forward(views(network, torch.stack([flat, flat])), torch.stack([x, x.flip(0)]))
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:160]
    finally:
        network.module.train(was_training)
    near = torch.allclose(beside, torch.stack([alone, alone.flip(0)]), rtol=NEAR, atol=NEAR * float(alone.abs().max()))
    return "" if near else "the outputs of stacked models differ from those of single models"


log = logging.getLogger(__name__)


@dataclass(eq=False)
class Chooser:
    """The fastest way to compute each stacked convolution, chosen by timing each way once per layer and shape."""

    found: dict[tuple[object, ...], tuple[str, dict[str, float]]] = field(default_factory=dict)

    def convolve(self, layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        kind = each if x.device.type != "cuda" else CONVOLUTIONS[self.name(layer, x, weight, bias)]
        return kind(layer, x, weight, bias)

    def name(self, layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> str:
        key = (tuple(x.shape), tuple(weight.shape), layer.stride, layer.padding, x.dtype, torch.is_autocast_enabled())
        if key not in self.found:
            if torch.cuda.is_current_stream_capturing():
                return "unfolded"
            times = {name: _timed(kind, layer, x, weight, bias) for name, kind in CONVOLUTIONS.items()}
            best = min(times, key=lambda name: times[name])
            self.found[key] = best, times
            log.info("convolution %s of %s: %s %s ms", list(weight.shape), list(x.shape), best, times)
        return self.found[key][0]


def _timed(convolve: Convolve, layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> float:
    leaf = x.detach().requires_grad_()
    kernel = weight.detach().requires_grad_()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    try:
        with torch.enable_grad():
            for turn in range(TRIES + 2):
                if turn == 2:
                    began.record()
                out = convolve(layer, leaf, kernel, bias)
                torch.autograd.grad(out, (leaf, kernel), torch.ones_like(out))
        ended.record()
        ended.synchronize()
    except torch.cuda.OutOfMemoryError:
        return float("inf")
    return round(float(began.elapsed_time(ended)) / TRIES, 4)
