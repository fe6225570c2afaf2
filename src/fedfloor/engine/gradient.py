"""The gradient over all of a device's samples, as methods ask for it that correct local steps by it."""

from __future__ import annotations

import torch
from torch import Tensor

from fedfloor.engine.backward import gradients
from fedfloor.engine.samples import Samples
from fedfloor.models.network import Network
from fedfloor.parts.proximal import evaluating
from fedfloor.tasks.task import Task

BLOCK = 500  # fixed, so that the same samples meet in the same products


def full(network: Network, samples: Samples, task: Task) -> Tensor:
    """Return ∇F(w) = (1/n) Σ_i ∇ℓ(w; x_i, y_i) of the task's loss, float32 [trained].

    In evaluation mode: no dropout, batch norm by its own statistics, nothing is changed.

    Args:
        network: holds w.
        samples: n of them, all of a device's.
        task: ℓ.
    """
    total = network.flat.new_zeros(network.trained)
    parts = network.shaped_like(network.parameters)(total)
    with evaluating(network.module):
        for first in range(0, len(samples), BLOCK):
            rows = slice(first, first + BLOCK)
            logits = network.module(samples.values(rows))
            loss = task.losses(logits, samples.y[rows], "sum")
            torch._foreach_add_(parts, gradients(loss, network.parameters))
    return total.div_(len(samples))
