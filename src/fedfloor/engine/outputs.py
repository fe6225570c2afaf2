"""A global model's logits on the test samples, or those held out: for decisions that are chosen by them."""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfloor.engine.deal import deal
from fedfloor.engine.engine import Engine
from fedfloor.park.park import Park

BLOCK = 500  # as in evaluation


def tested_on(engine: Engine, park: Park) -> Engine:
    """Return the engine with another park's test samples; network, ranks and normalisation are the same."""
    other = copy.copy(engine)
    other.park = park
    return other


def logits(engine: Engine, model: Tensor) -> NDArray[np.float32]:
    """Return float32 [n, F] on all of the park's test samples, on every rank; call it on every rank.

    Args:
        engine: this rank's engine; its resident network is overwritten.
        model: flat model [P], as it is saved: without numbers that devices keep to themselves.
    """
    park, classes = engine.park, len(engine.park.dataset.classes)
    blocks = [np.arange(first, min(first + BLOCK, park.test_samples)) for first in range(0, park.test_samples, BLOCK)]
    mine = deal([len(rows) for rows in blocks], engine.team.size)[engine.team.rank]
    engine.network.flat.copy_(model)
    engine.network.module.eval()
    found = np.zeros((park.test_samples, classes), np.float32)
    with torch.inference_mode():
        for block in mine:
            samples = engine.wrap(*park.test(blocks[block]))
            found[blocks[block]] = engine.network.module(samples.values(slice(None))).float().cpu().numpy()
    said = engine.team.gather([found.tobytes()])
    total: NDArray[np.float32] = np.sum([np.frombuffer(one[0], np.float32) for one in said], axis=0, dtype=np.float32)
    return total.reshape(found.shape)
