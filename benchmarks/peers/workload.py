"""One workload for every framework: federated averaging of ten devices on random pictures; and the clock they share.

How long a step takes does not depend on the pixels. Every side trains the same network by plain SGD on the same numbers
of samples, batches and passes, with one thread in each process that trains, and prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

DEVICES = 10
CLASSES = 10
BATCH_SIZE = 32
RATE = 0.01
SAMPLES = 600
PIXELS = 784


@dataclass(frozen=True)
class Job:
    """What a side is asked for.

    Attributes:
        epochs: passes of each device over its samples in a round.
        rounds: how many; the first one warms up and is not reported.
        ranks: processes that train.
        examples: whether a side does what its framework's examples do, where that is more work.
    """

    epochs: int
    rounds: int
    ranks: int
    examples: bool = False


def job() -> Job:
    """Read the command line of a side."""
    asked = argparse.ArgumentParser()
    for name in ("epochs", "rounds", "ranks"):
        asked.add_argument(f"--{name}", type=int, required=True)
    asked.add_argument("--examples", action="store_true")
    return Job(**vars(asked.parse_args()))


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 [6000, 28, 28] and int64 [6000]; device k has the rows from 600 k on."""
    rng = np.random.default_rng(0)
    total = DEVICES * SAMPLES
    return rng.integers(0, 256, (total, 28, 28), dtype=np.uint8), rng.integers(0, CLASSES, total)


def network() -> nn.Sequential:
    """Return the 2NN of McMahan et al.: 784, 200, 200, 10."""
    layers = [nn.Flatten(), nn.Linear(PIXELS, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, CLASSES)]
    return nn.Sequential(*layers)


def devices() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return each device's samples as float tensors in memory, as users of PyTorch have them, and labels."""
    x, y = data()
    pictures = torch.from_numpy(x).float().div_(255)
    labels = torch.from_numpy(y)
    return list(zip(pictures.split(SAMPLES), labels.split(SAMPLES), strict=True))


class Clock:
    """Notes when rounds end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def tick(self, *_: object) -> None:
        """Note that a round has ended."""
        self.ends.append(time.perf_counter())

    def tell(self) -> None:
        """Print the seconds of each round after the first."""
        print(json.dumps([b - a for a, b in zip(self.ends, self.ends[1:], strict=False)]))
