"""Steps and visits by each hand-written path, beside the same by automatic differentiation, in turn in one process.

python benchmarks/chains.py

``chain``, also with MOON's term, writes out the way back through a chain of layers; ``fused`` lets large layers take
their own steps; ``union`` makes one step of a super node; ``head`` trains a linear classifier on features. A path that
brings less than 1.1 times on every network of the package is not worth its lines. Takes several minutes.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the source tree
from benchmarks import made
from fedfloor import models
from fedfloor.engine import chain, local_update, ranks
from fedfloor.engine.engine import Engine, Samples
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.place import keep_memory
from fedfloor.engine.team import Alone
from fedfloor.engine.visit import train
from fedfloor.models.zoo import LISTED_ON
from fedfloor.parts.objectives.objective import Objective, Plain, Visit
from fedfloor.parts.objectives.proximal import Contrastive
from fedfloor.plan.nodes import CLOUD, Node, Parallel, Repeat, Train, Work, device, edge
from fedfloor.plan.schedule import Key

BATCHES = (5, 32)
STEPS = 12  # of a visit
DEVICES = 6
REPEATS = 9
Timed = Callable[[], None]


def ratio(ours: Timed, other: Timed) -> float:
    """Return how many times as long the other takes: the median over pairs."""
    ours()
    other()
    return statistics.median(seconds(other) / seconds(ours) for _ in range(REPEATS))


def seconds(work: Timed) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def visit(goal: Objective, model: str, batch: int) -> Callable[[bool], Timed]:
    """Return what makes a visit with large layers that take their own steps, or without."""
    shape, classes = LISTED_ON[model]
    net = models.build(model, shape, classes, seed=0, adapt=goal.adapt)
    rng = np.random.default_rng(0)
    before = Visit(net.flat.clone(), {"previous": net.flat.mul(1.1)}, net)
    many = STEPS * batch
    x = rng.integers(0, 256, (many, *shape), dtype=np.uint8)
    y = rng.integers(0, classes, many)
    data = Samples(x, y, torch.zeros(1), torch.ones(1), scale=1 / 255, channels_last=net.channels_last)
    work = Work(epochs=1, batch_size=batch, rate=0.001)
    return lambda large: lambda: void(train(net, data, work, goal, before, Key(0, 1, 0, 0, 0), shortcuts=large))


def void(_: object) -> None:
    """Drop a result."""


def without(path: Callable[[], None], module: object, name: str, value: object) -> Timed:
    """Return the call with a function of a module replaced."""

    def run() -> None:
        with mock.patch.object(module, name, return_value=value):
            path()

    return run


def round_of(model: str, plan: Node, shortcuts: bool) -> Timed:
    """Return a round of a plan on small devices."""
    shape, classes = LISTED_ON[model]
    here = made.park(shape, classes, DEVICES, 32)
    net = models.build(model, shape, classes, seed=0)
    engine = Engine(here, net, Alone(), DeviceMemory(None), seed=0, shortcuts=shortcuts)
    packet = {"w": net.flat.clone()}
    return lambda: void(ranks.run(engine, plan, packet, round_number=1, tick=0))


def main() -> None:
    """Print a line per path and network."""
    torch.set_num_threads(1)
    keep_memory()
    for model in LISTED_ON:
        for batch in BATCHES:
            said = {}
            for name, goal in (("chain", Plain()), ("chain, MOON", Contrastive())):
                ours = visit(goal, model, batch)(False)
                said[name] = ratio(ours, without(ours, chain, "chain_of", None))
            of = visit(Plain(), model, batch)
            said["fused"] = ratio(of(True), of(False))
            step = Work(steps=1, batch_size=batch, rate=0.001)
            wide = Parallel(tuple(Train(device(k), step) for k in range(DEVICES)), at=edge(0))
            union = Parallel((Repeat(STEPS, wide),), at=CLOUD)
            said["union"] = ratio(round_of(model, union, True), round_of(model, union, False))
            part = Work(epochs=5, batch_size=batch, rate=0.001, trains="classifier")
            still = round_of(model, Parallel(tuple(Train(device(k), part) for k in range(DEVICES))), True)
            said["head"] = ratio(still, without(still, local_update, "is_linear_visit", False))
            print(
                f"{model}, mini-batches of {batch}: " + ", ".join(f"{k} {v:.2f}" for k, v in said.items()), flush=True
            )


if __name__ == "__main__":
    main()
