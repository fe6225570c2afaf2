"""CUDA graphs: a step is recorded once and replayed, so that the processor starts one thing a step, not a hundred."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

WARM_UPS = 3  # before recording, so that libraries have chosen and allocated what they need


class Recorded:
    """Steps, recorded for a few numbers of models: all, half of them, a quarter, …

    All that a step reads and writes must stay where it is. The recordings share their working memory, as they are
    replayed one after the other and keep nothing in it. On a CPU the steps themselves take their place, for tests.

    Args:
        step: lets so many models take the step whose number is given, a tensor [1] on the device, and counts it on.
        models: all of them.
        device: where.
    """

    def __init__(self, step: Callable[[Tensor, int], None], models: int, device: torch.device) -> None:
        self._step, self._models = step, models
        self._at = torch.zeros(1, dtype=torch.int64, device=device)
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._graphs: dict[int, Callable[[], object]] = {}

    def prepare(self, many: Iterable[int]) -> None:
        """Record what :meth:`replay` will need. No model may be live: a step is taken several times."""
        for width in sorted({halved(self._models, live) for live in many} - set(self._graphs), reverse=True):
            self._graphs[width] = self._record(width)

    def replay(self, many: Sequence[int]) -> None:
        """Take steps from the first one on, each with at least so many models."""
        self._at.zero_()
        for live in many:
            self._graphs[halved(self._models, live)]()

    def _record(self, width: int) -> Callable[[], object]:
        device = self._at.device
        if device.type != "cuda":
            self._at.zero_()
            self._step(self._at, width)
            return partial(self._step, self._at, width)
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self._at.zero_()
                self._step(self._at, width)
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self._at.zero_()
        with torch.cuda.graph(graph, pool=self._pool):
            self._step(self._at, width)
        return graph.replay


def halved(models: int, live: int) -> int:
    """Return the smallest of models, models/2, models/4, … (rounded up) that is at least ``live``.

    >>> [halved(100, live) for live in (100, 51, 50, 26, 25, 1)]
    [100, 100, 50, 50, 25, 1]
    """
    while live <= (half := -(-models // 2)) < models:
        models = half
    return models
