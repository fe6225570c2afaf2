"""How many models there is room for side by side."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from fedfloor.engine.cohort.asks import Ask, Uniting, work_of
from fedfloor.engine.engine import Engine
from fedfloor.models.parcel import width

ON_PROCESSORS = 1 << 30  # bytes, where nobody said how many
FREE_SHARE = 0.6  # of an accelerator's free memory
COPIES = 6  # of the trained numbers: the models that came and go, the step's, gradients, velocity, what arrived
UNFOLDED = 2.0  # activations are kept for the backward pass, and their gradients beside them


def models(room_bytes: int | None, engine: Engine) -> int:
    """Return how many branches there is room for at a time."""
    flat = engine.network.flat
    return max(1, _room(room_bytes, flat.device) // (COPIES * engine.network.size))


def batch(engine: Engine, ask: Ask) -> int:
    """Return how many samples a step of an ask takes at most."""
    work = work_of(ask)
    if isinstance(ask, Uniting):
        return len(ask.node.children) * work.batch_size
    sizes = engine.park.holdings
    return min(work.batch_size, int(sizes.max() if ask.key.device >= 0 else sizes.sum()))


def stackable(room_bytes: int | None, engine: Engine, batch: int) -> int:
    """Return how many models there is room for side by side, each with a mini-batch of activations; at least 1."""
    flat = engine.network.flat
    numbers = COPIES * flat.numel() + UNFOLDED * batch * activations(engine)
    return max(1, int(_room(room_bytes, flat.device) / (numbers * width(flat))))


def rounded(many: int) -> int:
    """Return a number of models that is at least ``many``, so that few programs do for all.

    >>> [rounded(many) for many in (1, 8, 9, 16, 17, 100)]
    [1, 8, 9, 16, 18, 104]
    """
    step = 1 << max(0, (many - 1).bit_length() - 4)
    return -(-many // step) * step


def _room(room_bytes: int | None, device: torch.device) -> int:
    if room_bytes is not None:
        return room_bytes
    if device.type != "cuda":
        return ON_PROCESSORS
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(FREE_SHARE * (torch.cuda.mem_get_info(device)[0] + held))


def activations(engine: Engine) -> int:
    """Return how many numbers the layers make of a sample, and a convolution of its patches."""
    total = 0

    def note(layer: nn.Module, _inputs: tuple[Tensor, ...], out: object) -> None:
        nonlocal total
        if isinstance(out, Tensor):
            total += out.numel()
            if isinstance(layer, nn.Conv2d):
                total += out.shape[-1] * out.shape[-2] * layer.in_channels * prod(layer.kernel_size)

    module, shape = engine.network.module, engine.park.dataset.shape
    handles = [part.register_forward_hook(note) for part in module.modules() if not list(part.children())]
    was_training = module.training
    try:
        module.eval()
        with torch.no_grad():
            module(engine.network.flat.new_zeros(1, *shape))
    finally:
        module.train(was_training)
        for handle in handles:
            handle.remove()
    return total + prod(shape)
