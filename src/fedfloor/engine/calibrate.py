"""The threshold of alarms: a quantile of the scores of normal samples that devices hold out, found by counting."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedfloor.engine.engine import Engine
from fedfloor.park.park import Park
from fedfloor.tasks.reconstruction import Reconstruction
from fedfloor.tasks.task import Task

BLOCK = 500  # as in evaluation
REACH = 40.0  # scores lie between 2^−40 and 2^40; smaller and larger ones count with these
BINS = 64
ROUNDS = 4
COUNT_BYTES = 4


def counts(scores: NDArray[np.floating], low: float, width: float) -> NDArray[np.int64]:
    """Return what a device answers: how many of its scores s have log2 s below low, in each of 64 bins, and above.

    Args:
        scores: of its held-out samples [n].
        low: where the first bin begins.
        width: of all bins together.

    Returns:
        int64 [66].

    >>> counts(np.array([1.0, 2.0, 2.1]), 0.0, 64.0)[:3].tolist()
    [0, 1, 2]
    """
    with np.errstate(divide="ignore"):
        logs = np.log2(scores.astype(np.float64)).clip(-REACH, REACH)
    at = np.floor((logs - low) / width * BINS).clip(-1, BINS).astype(np.int64) + 1
    return np.bincount(at, minlength=BINS + 2)


def quantile(devices: list[NDArray[np.floating]], share: float, rounds: int = ROUNDS) -> tuple[float, float]:
    """Return a number that at least a share of all scores are at or below, and its relative error, by bisection.

    The scores stay on their devices: each round asks for counts in 64 bins, and the next one divides the bin that the
    quantile lies in. The number is that bin's upper end, so that it is never below the quantile, and above it by at
    most the error, 2^(80/64^R) − 1: 3.3·10⁻⁶ for four rounds. Each costs a device 66 counts up and two numbers down.

    Args:
        devices: of each the scores [n_k], above 0.
        share: in (0, 1).
        rounds: R.

    >>> value, error = quantile([np.arange(1.0, 51.0), np.arange(51.0, 101.0)], 0.9)
    >>> 90.0 <= value <= 90.0 * (1 + error)
    True
    """
    low, width = -REACH, 2 * REACH
    wanted = int(np.ceil(share * sum(map(len, devices)) - 1e-9))
    for _ in range(rounds):
        total = np.sum([counts(scores, low, width) for scores in devices], axis=0)
        at = int(np.searchsorted(np.cumsum(total), max(1, wanted))) - 1  # the first bin where so many are reached
        low, width = low + width * min(max(at, 0), BINS - 1) / BINS, width / BINS
    return float(2 ** (low + width)), float(2**width - 1)


def calibrated(engine: Engine, device: int = -1) -> Task:
    """Return the task with the threshold of the model that is in the resident network; as it is where it needs none.

    Args:
        engine: its network is only asked.
        device: whose held-out samples; −1, or where it has none: those of all devices.
    """
    task = engine.task
    if not isinstance(task, Reconstruction):
        return task
    park = held_out(engine.park)
    normal = park.dataset.y_test == 0
    own = normal & (park.test_devices == device) if device >= 0 else normal
    rows = np.flatnonzero(own if own.any() else normal)
    if not len(rows):
        return task
    found = []
    engine.network.module.eval()
    with torch.inference_mode():
        for first in range(0, len(rows), BLOCK):
            samples = engine.wrap(*park.test(rows[first : first + BLOCK]))
            out = engine.network.module(samples.values(slice(None)))
            found.append(task.errors(out).double().cpu().numpy())
    return task.calibrated(quantile(found, task.share)[0])  # counts add up alike, however samples are divided


def held_out(park: Park) -> Park:
    """Return the park whose test samples are those that devices hold out of training."""
    return park if park.validating is None else park.validating
