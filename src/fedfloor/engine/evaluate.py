"""Evaluation of a global model on the test data, dealt to the ranks with fixed block boundaries."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfloor.data.dataset import Indices, Labels, Owners
from fedfloor.engine.calibrate import calibrated
from fedfloor.engine.engine import Engine
from fedfloor.engine.metrics import SampleAnswers, confusion, describe, describe_errors, headlines, spread
from fedfloor.engine.team import deal
from fedfloor.figures import ACCURACY, Counts, Figure, Predictions, macro_f1, of_task, recalls
from fedfloor.park.described import device_accuracy
from fedfloor.park.park import Park
from fedfloor.parts.objective import Objective

BLOCK = 500  # fixed: the same samples meet in the same matrix products whatever the number of ranks


def tested_on(engine: Engine, park: Park) -> Engine:
    """Return the engine with another park's test samples; network, ranks and normalisation are the same."""
    other = copy.copy(engine)
    other.park = park
    return other


def logits_on_test(engine: Engine, model: Tensor) -> NDArray[np.float32]:
    """Return the logits float32 [n, F] of a saved flat model on all test samples; call it on every rank."""
    park, classes = engine.park, len(engine.park.dataset.classes)
    blocks = [np.arange(first, min(first + BLOCK, park.test_samples)) for first in range(0, park.test_samples, BLOCK)]
    mine = deal([len(rows) for rows in blocks], engine.team.size)[engine.team.rank]
    engine.network.flat.copy_(model)
    engine.network.module.eval()
    logits = np.zeros((park.test_samples, classes), np.float32)
    with torch.inference_mode():
        for block in mine:
            samples = engine.wrap(*park.test(blocks[block]))
            logits[blocks[block]] = engine.network.module(samples.values(slice(None))).float().cpu().numpy()
    gathered = engine.team.gather([logits.tobytes()])
    total: NDArray[np.float32] = np.sum(
        [np.frombuffer(part[0], np.float32) for part in gathered], axis=0, dtype=np.float32
    )
    return total.reshape(logits.shape)


@dataclass(frozen=True)
class Score:
    """An evaluation.

    Attributes:
        by_device: 10th, 50th and 90th percentile of the devices' accuracies. Where test samples have owners, they are
            measured: each on the device's own test samples, and devices that only train are left out. Otherwise they
            are expected: Σ_c p_k(c)·accuracy(c), on test samples that come in the device's own class mix p_k, taken
            over the classes that have test samples; devices that hold none of these are left out. Empty where no
            device is left.
        headlines: name of the headline → its 10th, 50th and 90th percentile over the devices that it is defined for,
            and how many these are; empty where the headline is the accuracy, or defined for no device.
        tell: works out ``details``, which only the last evaluation of a run is asked for.
        figures: name → value of the headline, where that is not the accuracy.
    """

    accuracy: float  # share of the test samples classified rightly
    loss: float  # their mean cross-entropy
    macro_f1: float  # mean over the classes of F1; see :func:`~fedfloor.figures.macro_f1`
    by_class: list[float | None]  # accuracy per class; NaN-free: None where the test data hold no sample of it
    by_device: dict[str, float]
    tell: Callable[[], dict[str, Any]] = field(compare=False, repr=False)
    figures: Mapping[str, float | None] = field(default_factory=dict)
    headlines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @cached_property
    def details(self) -> dict[str, Any]:
        """What ``evaluation.json`` says of it: the confusion matrix, and every device's and factory's figures."""
        return self.tell()


def evaluate(engine: Engine, model: Tensor, objective: Objective | None = None, headline: Figure = ACCURACY) -> Score:
    """Evaluate a flat model [P] on the park's test data; call it on every rank, whose resident network is overwritten.

    Where the objective is ``personal``, a device's test samples are evaluated by the model with its own numbers.
    """
    scored = headline.scored(engine.park.dataset.classes)
    total = engine.park.test_samples
    personal = objective is not None and objective.personal  # the model then has the numbers of the samples' device
    owner = engine.park.test_devices if personal else np.full(total, -1)
    blocks = [block for device in np.unique(owner).tolist() for block in _cut(device, np.flatnonzero(owner == device))]

    def load(device: int) -> None:
        engine.network.flat.copy_(model)
        if objective is not None and device >= 0:
            objective.arrive(engine.network.flat, engine.memory.load(device), engine.network)

    losses, predicted, ranks = block_outputs(engine, blocks, scored, load)
    place = np.concatenate([rows for _, rows in blocks])
    answered, scores = np.empty(total, np.int64), np.empty((total, ranks.shape[1]), np.float32)
    answered[place], scores[place] = predicted, ranks
    return score_one(engine, float(sum(losses.tolist())) / total, answered, scores, headline)


def score_one(engine: Engine, loss: float, predicted: Labels, scores: NDArray[Any], headline: Figure) -> Score:
    """Return the score of one model from its mean loss and its predicted bins [n] and scores [n, S] of test samples."""
    data, scored = engine.park.dataset, headline.scored(engine.park.dataset.classes)
    tested = predictions(engine, loss, data.y_test, predicted, scores, scored)
    single = one_by_one(engine, data.y_test, predicted, scores, scored, data.owner_test)
    return score(engine, loss, predicted == data.y_test, [tested], headline, tested.table, single)


def one_by_one(
    engine: Engine, y: Labels, predicted: Labels, scores: NDArray[Any], scored: Sequence[int], owners: Owners | None,
    places: Indices | None = None,
) -> SampleAnswers:  # fmt: skip
    """Return answers to samples one by one: arguments as of :func:`predictions`, and the samples' owners [n]."""

    def part(rows: Indices) -> Predictions:
        chosen = rows if places is None else places[rows]
        return predictions(engine, math.nan, y[rows], predicted[rows], scores[rows], scored, chosen)

    return SampleAnswers(owners, part)


def predictions(
    engine: Engine, loss: float, y: Labels, predicted: Labels, scores: NDArray[Any], scored: Sequence[int],
    places: Indices | None = None,
) -> Predictions:  # fmt: skip
    """Return the predictions of a model from true and predicted bins [n] and the task's scores [n, S].

    ``places`` are the samples' rows among the test samples; default: all in their order.
    """
    data = engine.park.dataset
    table = confusion(y, predicted, len(data.classes))
    if data.recording_test is None or not engine.task.calibrates:
        return engine.task.judged(table, loss, y, scores, scored)
    places = np.arange(len(y)) if places is None else places
    order = np.argsort(places, kind="stable")  # those of a recording are in the order of time
    tested = engine.task.judged(table, loss, y[order], scores[order], scored)
    if tested.detection is None:
        return tested
    return replace(tested, detection=replace(tested.detection, recording=data.recording_test[places[order]]))


def block_outputs(
    engine: Engine, blocks: Sequence[tuple[int, Indices]], scored: Sequence[int], load: Callable[[int], None]
) -> tuple[NDArray[np.float64], Labels, NDArray[np.float32]]:
    """Run blocks (device, test samples) of n samples through the network, each rank its share.

    ``load`` puts the model by which a device's blocks are evaluated into the resident network. Returns the summed loss
    of each block and, block after block, the predicted bins int64 [n] and the scores float32 [n, S] of ``scored`` bins.
    """
    mine = deal([len(rows) for _, rows in blocks], engine.team.size)[engine.team.rank]
    task, losses, loaded = engine.task, np.zeros(len(mine)), None
    predicted, scores = [np.zeros(0, np.int64)], list[NDArray[np.float32]]()
    with torch.inference_mode():
        for place, block in enumerate(mine):
            device, rows = blocks[block]
            if device != loaded:
                load(device)
                engine.network.module.eval()
                loaded, task = device, calibrated(engine, device)
            samples = engine.wrap(*engine.park.test(rows))
            out = engine.network.module(samples.values(slice(None)))
            losses[place] = float(task.losses(out, samples.y, "sum"))
            predicted.append(task.predicted(out).cpu().numpy())
            scores.append(task.scores(out, samples.y, scored).float().cpu().numpy())
    own = [losses.tobytes(), np.concatenate(predicted).tobytes(), np.concatenate(scores).tobytes() if scores else b""]
    shared, kinds = engine.team.gather(own), (np.float64, np.int64, np.float32)
    sums, bins, numbers = (np.concatenate([np.frombuffer(p[i], kind) for p in shared]) for i, kind in enumerate(kinds))
    return sums, bins, numbers.reshape(len(bins), numbers.size // max(1, len(bins)))


def device_blocks(owner: NDArray[np.int64], device: int) -> list[tuple[int, Indices]]:
    """Return the blocks of test samples that a device's model is evaluated on: its own, then those of no device."""
    return [block for whose in dict.fromkeys((device, -1)) for block in _cut(device, np.flatnonzero(owner == whose))]


def _cut(device: int, rows: Indices) -> list[tuple[int, Indices]]:
    return [(device, rows[first : first + BLOCK]) for first in range(0, len(rows), BLOCK)]


def score(
    engine: Engine, loss: float, right: NDArray[Any], views: Sequence[Predictions], headline: Figure, table: Counts,
    single: SampleAnswers, every: NDArray[np.float64] | None = None,
) -> Score:  # fmt: skip
    """Return the score of predictions.

    Args:
        right: [test samples], whether each was classified rightly, or by which share of several models.
        views: predictions of one model or several: macro-F1 and headline are means over these.
        table: int64 [F, F], the confusion matrix of all of them.
        every: [n], the accuracy of each device of the roster; default: from the above.
    """
    park, by_class = engine.park, recalls(table)
    every = device_accuracy(park, right, by_class) if every is None else every
    known = every[~np.isnan(every)]
    points = {f"p{q}": float(np.percentile(known, q)) for q in (10, 50, 90)} if len(known) else {}
    named = [None if np.isnan(value) else float(value) for value in by_class]
    by_headline = {} if headline == ACCURACY else {headline.name: headlines(park, headline, table, single)}
    figures: dict[str, float | None] = {}
    for figure in dict.fromkeys((headline, *of_task(engine.task.kind))):
        values = [figure.value(view, park.dataset.classes) for view in views]
        known_values = [value for value in values if value is not None]
        if figure == headline or known_values:
            figures[figure.name] = _mean(known_values) if len(known_values) == len(values) else None
    figures = {} if headline == ACCURACY else figures
    errors, owners = views[0].errors if len(views) == 1 else None, single.owners

    def tell() -> dict[str, Any]:
        described = None if errors is None else describe_errors(errors, park.dataset.classes, owners)
        return describe(park, table, every, by_headline, described)

    spreads = {name: shares for name, (devices, _) in by_headline.items() if (shares := spread(devices))}
    f1 = _mean([macro_f1(view.table) for view in views])
    return Score(float(right.mean()), loss, f1, named, points, tell, figures, spreads)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
