"""CUDA graphs: a step is recorded once and replayed, so that the processor starts one thing a step, not a hundred."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WARM_UPS = 3  # before recording, so that libraries have chosen and allocated what they need


class Recorded:
    """A step, recorded.

    It is called on a stream of its own while it is warmed up and recorded; all that it reads and writes must stay where
    it is. With no model live, warming up changes nothing.

    Args:
        step: takes the step whose number is given, a tensor [1] on the device, and counts it on.
        at: that number.
    """

    def __init__(self, step: Callable[[Tensor], None], at: Tensor) -> None:
        self._at = at
        side = torch.cuda.Stream(at.device)
        side.wait_stream(torch.cuda.current_stream(at.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                at.zero_()
                step(at)
        torch.cuda.current_stream(at.device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        at.zero_()
        with torch.cuda.graph(self._graph):
            step(at)

    def replay(self, steps: int) -> None:
        """Take so many steps, from the first one on."""
        self._at.zero_()
        for _ in range(steps):
            self._graph.replay()
