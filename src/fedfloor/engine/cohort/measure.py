"""How a stacked convolution is done: by a rule on processors, by trying on accelerators."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedfloor.engine.cohort.forward import CONVOLUTIONS, Convolve, each

log = logging.getLogger(__name__)

TRIES = 5


@dataclass(eq=False)
class Chooser:
    """Says how layers convolve.

    Attributes:
        found: what was chosen for a layer of a form, and how long a pass of each kind took there, in milliseconds.
    """

    found: dict[tuple[object, ...], tuple[str, dict[str, float]]] = field(default_factory=dict)

    def convolve(self, layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve as was chosen for this form."""
        kind = each if x.device.type != "cuda" else CONVOLUTIONS[self.name(layer, x, weight, bias)]
        return kind(layer, x, weight, bias)

    def name(self, layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> str:
        """Return the fastest kind of convolution for samples of this form; tried once."""
        key = (tuple(x.shape), tuple(weight.shape), layer.stride, layer.padding, x.dtype, torch.is_autocast_enabled())
        if key not in self.found:
            if torch.cuda.is_current_stream_capturing():
                return "unfolded"
            times = {name: _timed(one, layer, x, weight, bias) for name, one in CONVOLUTIONS.items()}
            best = min(times, key=lambda name: times[name])
            self.found[key] = best, times
            log.info("convolution %s of %s: %s %s ms", list(weight.shape), list(x.shape), best, times)
        return self.found[key][0]


def _timed(one: Convolve, layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> float:
    """Return the milliseconds of a forward and a backward pass."""
    leaf, kernel = x.detach().requires_grad_(), weight.detach().requires_grad_()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    try:
        with torch.enable_grad():
            for turn in range(TRIES + 2):
                if turn == 2:
                    began.record()
                out = one(layer, leaf, kernel, bias)
                torch.autograd.grad(out, (leaf, kernel), torch.ones_like(out))
        ended.record()
        ended.synchronize()
    except torch.cuda.OutOfMemoryError:
        return float("inf")
    return round(float(began.elapsed_time(ended)) / TRIES, 4)
