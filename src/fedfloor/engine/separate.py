"""How good devices' own models are on the test data: each on its device's samples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfloor.data.dataset import Indices
from fedfloor.engine.calibrate import calibrated
from fedfloor.engine.deal import deal
from fedfloor.engine.engine import Engine
from fedfloor.engine.evaluate import BLOCK, Score, joined, one_by_one, predictions, score
from fedfloor.engine.local_update import personal
from fedfloor.figures import ACCURACY, Figure

NOBODY = -1


def evaluate(engine: Engine, start: Tensor, headline: Figure = ACCURACY) -> Score:
    """Evaluate the model of every device's own; call it on every rank.

    A test sample counts with the model of the device it belongs to. One that belongs to nobody with a model (a common
    test set, owners who only test) counts with the mean over all devices' models: every figure is (1/K) Σ_k of what it
    is with model k for such samples. In the confusion matrix the other samples then count K times.

    Args:
        engine: this rank's engine; its resident network is overwritten.
        start: flat model [P] that devices begin with, which counts where no device has one yet.
        headline: the figure that the run is judged by.
    """
    park, scored = engine.park, headline.scored(engine.park.dataset.classes)
    models = sorted(engine.memory.held) or [NOBODY]
    owner = np.where(np.isin(park.test_devices, models), park.test_devices, NOBODY)
    blocks = list(_blocks(owner, models))
    mine = deal([len(rows) for _, rows in blocks], engine.team.size)[engine.team.rank]
    task, losses, predicted, beside, at = engine.task, np.zeros(len(mine)), [], [], None
    with torch.inference_mode():
        for place, block in enumerate(mine):
            device, rows = blocks[block]
            if device != at:
                engine.network.flat.copy_(personal(engine, device, start))
                engine.network.module.eval()
                at, task = device, calibrated(engine, device)
            samples = engine.wrap(*park.test(rows))
            out = engine.network.module(samples.values(slice(None)))
            losses[place] = float(task.losses(out, samples.y, "sum"))
            predicted.append(task.predicted(out).cpu().numpy())
            beside.append(task.scores(out, samples.y, scored).float().cpu().numpy())
    told = engine.team.gather([losses.data.cast("B"), *joined(predicted, beside)])
    sums = np.concatenate([np.frombuffer(one[0], np.float64) for one in told])
    answers = np.concatenate([np.frombuffer(one[1], np.int64) for one in told])
    ranks = np.concatenate([np.frombuffer(one[2], np.float32) for one in told])
    scores = ranks.reshape(len(answers), ranks.size // max(1, len(answers)))
    times = np.where(owner == NOBODY, 1.0 / len(models), 1.0)
    loss = float(sums @ np.array([times[rows[0]] for _, rows in blocks])) / park.test_samples
    rows, by = _places(blocks)
    y = park.dataset.y_test[rows]
    right = np.bincount(rows, weights=answers == y, minlength=park.test_samples) * times
    own = owner[rows] != NOBODY
    views = []
    for model in models if not own.all() else models[:1]:
        seen = own | (by == model)
        views.append(predictions(engine, loss, y[seen], answers[seen], scores[seen], scored, rows[seen]))
    owners = None if park.dataset.owner_test is None else park.dataset.owner_test[rows]
    single = one_by_one(engine, y, answers, scores, scored, owners, rows)
    return score(engine, loss, right, views, headline, np.sum([one.table for one in views], axis=0), single)


def mean_part(engine: Engine, model: Tensor) -> Tensor:
    """Return a model with the mean of all devices' own parts in the place of its own; itself where none has one."""
    found = [personal(engine, device, model).double() for device in sorted(engine.memory.held)]
    return torch.stack(found).mean(0).to(model.dtype) if found else model


def _places(blocks: list[tuple[int, Indices]]) -> tuple[Indices, Indices]:
    """Return of all answers in turn which sample, and whose model they are of."""
    rows = np.concatenate([rows for _, rows in blocks])
    return rows, np.repeat([device for device, _ in blocks], [len(rows) for _, rows in blocks])


def _blocks(owner: NDArray[np.int64], models: list[int]) -> Iterator[tuple[int, Indices]]:
    """Cut the test samples into blocks (device whose model it is, which samples), with nobody's for every model."""
    nobodys = np.flatnonzero(owner == NOBODY)
    for device in models:
        for rows in (np.flatnonzero(owner == device) if device != NOBODY else nobodys[:0], nobodys):
            for first in range(0, len(rows), BLOCK):
                yield device, rows[first : first + BLOCK]
