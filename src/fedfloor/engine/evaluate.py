"""How good a global model is on the test data, shared out over the ranks with fixed block boundaries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfloor.engine import metrics
from fedfloor.engine.deal import deal
from fedfloor.engine.ranks import Engine

BLOCK = 500  # fixed: the same samples meet in the same matrix products whatever the number of ranks


@dataclass(frozen=True)
class Score:
    """An evaluation.

    Attributes:
        accuracy: share of the test samples classified rightly.
        loss: their mean cross-entropy.
        macro_f1: mean over the classes of F1; see :func:`~fedfloor.engine.metrics.macro_f1`.
        by_class: accuracy per class; NaN-free: None where the test data hold no sample of it.
        by_device: 10th, 50th and 90th percentile of the devices' accuracies. A device's accuracy is that on its own
            test samples where the data have owners; otherwise Σ_c p_k(c)·accuracy(c), the expected accuracy on test
            samples that come in the device's own class mix p_k, taken over the classes that have test samples. Devices
            that hold none of these (or whose owner has no test sample) are left out; empty where nobody is left.
        details: what ``evaluation.json`` says of it: the confusion matrix, and every device's and factory's accuracy.
    """

    accuracy: float
    loss: float
    macro_f1: float
    by_class: list[float | None]
    by_device: dict[str, float]
    details: dict[str, Any]


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
    losses, predicted = np.zeros(len(mine)), []
    with torch.inference_mode():
        for row, block in enumerate(mine):
            x, y = engine.park.test(np.arange(*blocks[block]))
            samples = engine.wrap(x, y)
            logits = engine.network.module(samples.values(slice(None)))
            losses[row] = torch.nn.functional.cross_entropy(logits, samples.y, reduction="sum").double()
            predicted.append(logits.argmax(1).numpy())
    classes = np.concatenate(predicted or [np.zeros(0, np.int64)])
    said = engine.team.gather([losses.data.cast("B"), classes.data.cast("B")])
    every = np.concatenate([np.frombuffer(one[0], np.float64) for one in said])
    found = np.concatenate([np.frombuffer(one[1], np.int64) for one in said])
    return _score(engine, float(sum(every.tolist())) / total, found)


def _score(engine: Engine, loss: float, predicted: np.ndarray) -> Score:
    park = engine.park
    y = park.dataset.y_test
    table = metrics.confusion(y, predicted, len(park.dataset.classes))
    hits, by_class = predicted == y, metrics.class_accuracy(table)
    every = park.device_accuracy(hits, by_class)
    known = every[~np.isnan(every)]
    points = {f"p{q}": float(np.percentile(known, q)) for q in (10, 50, 90)} if len(known) else {}
    named = [None if np.isnan(value) else float(value) for value in by_class]
    details = metrics.describe(park, table, every)
    return Score(float(hits.mean()), loss, details["macro_f1"], named, points, details)
