"""How good a global model is on the test data, shared out over the ranks with fixed block boundaries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedfloor.engine.deal import deal
from fedfloor.engine.ranks import Engine

BLOCK = 500  # fixed: the same samples meet in the same matrix products whatever the number of ranks


@dataclass(frozen=True)
class Score:
    """An evaluation.

    Attributes:
        accuracy: share of the test samples classified rightly.
        loss: their mean cross-entropy.
        by_class: accuracy per class; NaN-free: None where the test data hold no sample of it.
        by_device: 10th, 50th and 90th percentile of the devices' accuracies. A device's accuracy is that on its own
            test samples where the data have owners; otherwise Σ_c p_k(c)·accuracy(c), the expected accuracy on test
            samples that come in the device's own class mix p_k, taken over the classes that have test samples. Devices
            that hold none of these (or whose owner has no test sample) are left out; empty where nobody is left.
    """

    accuracy: float
    loss: float
    by_class: list[float | None]
    by_device: dict[str, float]


def evaluate(engine: Engine, model: Tensor) -> Score:
    """Evaluate a flat model on the park's test data; call it on every rank.

    Args:
        engine: this rank's engine; its resident network is overwritten.
        model: flat model [P].
    """
    total = engine.park.test_samples
    blocks = [(first, min(first + BLOCK, total)) for first in range(0, total, BLOCK)]
    mine = deal([high - low for low, high in blocks], engine.team.size)[engine.team.rank]
    engine.network.flat.copy_(model)
    engine.network.module.eval()
    losses, right = np.zeros(len(mine)), []
    with torch.inference_mode():
        for row, block in enumerate(mine):
            x, y = engine.park.test(np.arange(*blocks[block]))
            samples = engine.wrap(x, y)
            logits = engine.network.module(samples.values(slice(None)))
            losses[row] = torch.nn.functional.cross_entropy(logits, samples.y, reduction="sum").double()
            right.append((logits.argmax(1) == samples.y).numpy())
    said = engine.team.gather([losses.data.cast("B"), np.concatenate(right or [np.zeros(0, bool)]).data.cast("B")])
    every = np.concatenate([np.frombuffer(one[0], np.float64) for one in said])
    hits = np.concatenate([np.frombuffer(one[1], np.bool_) for one in said])
    return _score(engine, float(sum(every.tolist())) / total, hits)


def _score(engine: Engine, loss: float, hits: np.ndarray) -> Score:
    park = engine.park
    classes = len(park.dataset.classes)
    of_class = np.bincount(park.dataset.y_test, minlength=classes)
    right = np.bincount(park.dataset.y_test, weights=hits, minlength=classes)
    by_class = np.divide(right, of_class, out=np.full(classes, np.nan), where=of_class > 0)
    devices = park.device_accuracy(hits, by_class)
    devices = devices[~np.isnan(devices)]
    points = {f"p{q}": float(np.percentile(devices, q)) for q in (10, 50, 90)} if len(devices) else {}
    named = [None if np.isnan(value) else float(value) for value in by_class]
    return Score(float(hits.mean()), loss, named, points)
