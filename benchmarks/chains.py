"""Steps of chains of layers written out, beside the same steps by automatic differentiation, in turn in one process.

python benchmarks/chains.py
"""

from __future__ import annotations

import statistics
import time
from unittest import mock

import numpy as np
import torch

from fedfloor import models
from fedfloor.engine import chain
from fedfloor.engine.allocator import keep_memory
from fedfloor.engine.samples import Samples
from fedfloor.engine.visit import train
from fedfloor.parts.contrastive import Contrastive
from fedfloor.parts.objective import Objective, Plain, Visit
from fedfloor.plan.nodes import Work
from fedfloor.plan.schedule import Key

# network, shape, classes, mini-batch, samples
CASES = (
    ("mlp-2nn", (1, 28, 28), 10, 32, 3000), ("mlp-2nn", (1, 28, 28), 62, 5, 150),
    ("cnn-small", (1, 28, 28), 62, 5, 150), ("lenet", (3, 32, 32), 10, 50, 600),
    ("cnn-fldg-mnist", (1, 28, 28), 10, 50, 540),
)  # fmt: skip
MOONS = CASES[:1] + CASES[2:4]
REPEATS = 12


def ratio(
    goal: Objective, model: str, shape: tuple[int, ...], classes: int, batch: int, samples: int
) -> tuple[float, float]:
    """Return the microseconds of a step written out, and how many times that the other takes: medians."""
    net, rng = models.build(model, shape, classes, seed=0, adapt=goal.adapt), np.random.default_rng(0)
    before = Visit(net.flat.clone(), {"previous": net.flat.mul(1.1)}, net)
    x, y = rng.integers(0, 256, (samples, *shape), dtype=np.uint8), rng.integers(0, classes, samples)
    data = Samples(x, y, torch.zeros(1), torch.ones(1), scale=1 / 255, channels_last=net.channels_last)
    work = Work(epochs=1, batch_size=batch, rate=0.001)

    def visit() -> float:
        start = time.perf_counter()
        said = train(net, data, work, goal, before, Key(0, 1, 0, 0, 0))
        return (time.perf_counter() - start) / said.steps * 1e6

    visit()
    pairs = []
    for _ in range(REPEATS):
        written = visit()
        with mock.patch.object(chain, "of", return_value=None):
            pairs.append((written, visit()))
    return statistics.median(a for a, _ in pairs), statistics.median(b / a for a, b in pairs)


def main() -> None:
    """Print a line per case."""
    torch.set_num_threads(1)
    keep_memory()
    for name, goal, cases in (("", Plain(), CASES), ("MOON, ", Contrastive(), MOONS)):
        for case in cases:
            step, times = ratio(goal, *case)
            print(
                f"{name}{case[0]}, mini-batches of {case[3]}: {step:,.0f} µs a step; differentiated {times:.2f} times"
            )


if __name__ == "__main__":
    main()
