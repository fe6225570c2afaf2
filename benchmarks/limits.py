"""What the hardware could do at best: the arithmetic of a large matrix product, the bytes of a large copy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from fedfloor.models.network import Network

SIDE = {"cuda": 8192, "cpu": 1024}  # of the matrices
COPIED = {"cuda": 1 << 30, "cpu": 1 << 26}  # bytes
PASSES = 6  # over the numbers that are trained, at least: two reads in the passes, the gradient, read and write of w


@dataclass(frozen=True)
class Limits:
    """What a device reaches.

    Attributes:
        flops: of a large matrix product, per second.
        bytes: read and written by a large copy, per second.
    """

    flops: float
    bytes: float

    def least(self, work: Work, samples: float, steps: float) -> tuple[float, str]:
        """Return the least seconds that work takes here, and what sets them: ``arithmetic`` or ``memory``."""
        arithmetic = work.flops * samples / self.flops
        memory = work.step_bytes * steps / self.bytes
        return max((arithmetic, "arithmetic"), (memory, "memory"))


@dataclass(frozen=True)
class Work:
    """What training takes at least.

    Attributes:
        flops: of a sample's forward and backward pass: three times the forward pass's.
        step_bytes: of one model's step.
    """

    flops: float
    step_bytes: float


def now(device: torch.device) -> float:
    """Return the time, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def reached(device: torch.device) -> Limits:
    """Measure what a device reaches, with the precision that is set; medians of five."""
    side = SIDE[device.type]
    numbers = COPIED[device.type] // 4
    a, b = (torch.rand(side, side, device=device) for _ in range(2))
    x, y = (torch.zeros(numbers, device=device) for _ in range(2))
    flops = 2 * side**3 / _median(device, lambda: a @ b)
    return Limits(flops, 8 * numbers / _median(device, lambda: y.copy_(x)))


def _median(device: torch.device, do: Callable[[], object]) -> float:
    times = []
    for turn in range(7):
        began = now(device)
        do()
        if turn > 1:
            times.append(now(device) - began)
    return statistics.median(times)


def of(network: Network, shape: tuple[int, ...], trained: slice | None = None) -> Work:
    """Return what a step of a network takes at least: its convolutions and linear layers.

    Args:
        network: the model.
        shape: of a sample.
        trained: the part that is trained, on what goes into it; None: all of it.
    """
    total = 0.0

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        nonlocal total
        if isinstance(layer, nn.Linear):
            total += 2 * out.numel() * inputs[0].shape[-1]
        elif isinstance(layer, nn.Conv2d):
            total += 2 * out.numel() * layer.in_channels // layer.groups * prod(layer.kernel_size)

    module = network.module
    whole = trained is None
    layers = module.modules() if whole else module.get_submodule(network.classifier or "").modules()
    handles = [layer.register_forward_hook(note) for layer in layers]
    with torch.no_grad():
        module(network.flat.new_zeros(1, *shape))
    for handle in handles:
        handle.remove()
    numbers = network.trained if trained is None else trained.stop - trained.start
    return Work(3 * total, PASSES * numbers * network.flat.element_size())
