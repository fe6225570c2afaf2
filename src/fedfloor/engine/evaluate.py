"""Evaluation of a global model on the test data: metrics of the park, its devices and factories."""

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
from fedfloor.engine.calibrate import calibrated, counted
from fedfloor.engine.engine import Engine
from fedfloor.engine.resample import OF_LOSS, WITHOUT, Value, resampled, units
from fedfloor.engine.team import deal
from fedfloor.park.described import device_accuracy
from fedfloor.park.local import Roster
from fedfloor.park.park import Park
from fedfloor.parts.objectives.objective import Objective
from fedfloor.tasks.figures import (
    ACCURACY,
    LOSS,
    ROUNDING,
    Counts,
    Errors,
    Figure,
    Predictions,
    macro_f1,
    named,
    of_task,
    recalls,
)
from fedfloor.tasks.metric import of_some, samples_of

Values = tuple[list[float | None], list[float | None]]  # entry of each of the roster's devices, and of its factories
BEYOND = 1e30  # from here on, predicted numbers are not described one by one
POINTS = 2000  # greatest number of samples that are kept one by one, spread evenly over the true numbers
TARGETS = 500  # greatest number of targets whose errors are kept one by one
DIGITS = 6


@dataclass(frozen=True, eq=False)
class SampleAnswers:
    """A model's answers for test samples.

    Args:
        y, predicted: true and predicted bins, int64 [n].
        scores: the task's scores, [n, S].
        headline: the metric for which the scores were computed.
        owners: the natural owner of each sample [n], or None.
        places: the samples' rows among the test samples; default: all of them in order.
        losses: the loss of each sample [n]; None: unknown.
    """

    engine: Engine
    y: Labels
    predicted: Labels
    scores: NDArray[Any]
    headline: Figure
    owners: Owners | None
    places: Indices | None = None
    losses: NDArray[Any] | None = None

    def predictions(self, rows: Any = slice(None), loss: float = math.nan) -> Predictions:
        """Return the predictions for the samples ``rows``, the input of metrics; ``loss`` is their mean loss."""
        data = self.engine.park.dataset
        task = self.engine.task
        y = self.y[rows]
        scores = self.scores[rows]
        scored = self.headline.scored(data.classes)
        table = confusion(y, self.predicted[rows], len(data.classes))
        if data.recording_test is None or not task.detects:
            return self._with_samples(task.judged(table, loss, y, scores, scored), rows)
        places = (np.arange(len(self.y)) if self.places is None else self.places)[rows]
        order = np.argsort(places, kind="stable")  # samples of a recording are in the order of time
        tested = task.judged(table, loss, y[order], scores[order], scored)
        if tested.detection is None:
            return tested
        detection = replace(tested.detection, recording=data.recording_test[places[order]])
        return self._with_samples(replace(tested, detection=detection), np.arange(len(self.y))[rows][order])

    def _with_samples(self, tested: Predictions, rows: Any) -> Predictions:
        """Return predictions with the single samples, in the order of ``rows``, if the headline reads them."""
        if not self.headline.kind.each:
            return tested
        owners = None if self.owners is None else self.owners[rows]
        classes = self.engine.park.dataset.classes
        return replace(
            tested, samples=samples_of(tested, self.y[rows], self.predicted[rows], self.scores[rows], classes, owners)
        )


def headlines(park: Park, figure: Figure, table: Counts, answers: SampleAnswers) -> Values:
    """Return a metric of each device and factory of the park's roster; None where it is undefined.

    If test samples have owners, the metric is measured on the device's own test samples, or on those of all devices of
    the factory. Otherwise it is expected: the rows of the confusion matrix are weighted by the class shares of the
    device or factory. Metrics that rank samples, and the loss, cannot be derived so. The metric of a class is
    undefined where no sample belongs to the class and none was predicted as it.
    """
    roster = park.roster
    places = range(len(park.roster.factories))
    if figure.kind.column == "loss":
        return [None] * len(roster.numbers), [None] * len(places)
    if roster.figures == "measured" and answers.owners is not None:
        order = np.argsort(answers.owners, kind="stable")
        ordered = answers.owners[order]

        def measured(owners: Sequence[int]) -> float | None:
            ends = [np.searchsorted(ordered, [owner, owner + 1]) for owner in owners if owner >= 0]
            rows = np.concatenate([order[:0], *(order[first:last] for first, last in ends)])
            return _defined(figure, answers.predictions(rows), park) if len(rows) else None

        homes = [np.unique(roster.owners[roster.factory_of == m]).tolist() for m in places]
        return [measured([owner]) for owner in roster.owners.tolist()], [measured(home) for home in homes]
    if not figure.kind.of_table:
        return [None] * len(roster.numbers), [None] * len(places)
    tested = table.sum(axis=1)
    rates = table / np.maximum(tested, 1)[:, None]
    held = park.listed_counts * (tested > 0)

    def expected(counts: NDArray[np.int64]) -> float | None:
        return _defined(figure, Predictions(counts[:, None] * rates, np.nan), park) if counts.any() else None

    homes = [held[roster.factory_of == m].sum(axis=0) for m in places]
    return [expected(row) for row in held], [expected(row) for row in homes]


def _defined(figure: Figure, tested: Predictions, park: Park) -> float | None:
    classes = park.dataset.classes
    if figure.of and not figure.kind.ranking:
        index = classes.index(figure.of)
        if not tested.table[index].sum() + tested.table[:, index].sum():
            return None
    return of_some(figure, tested, classes)


def spread(values: Sequence[float | None]) -> dict[str, float]:
    """Return the 10th, 50th and 90th percentile of the devices' defined values, and their number; {} without any.

    >>> spread([1.0, None, 1.0])
    {'p10': 1.0, 'p50': 1.0, 'p90': 1.0, 'devices': 2}
    """
    known = [value for value in values if value is not None]
    if not known:
        return {}
    with np.errstate(invalid="ignore"):  # of infinite values
        return {f"p{q}": float(np.percentile(known, q)) for q in (10, 50, 90)} | {"devices": len(known)}


Floats = NDArray[np.float64]


def describe_errors(errors: Errors, bins: Sequence[str], owners: Owners | None) -> dict[str, Any]:
    """Return the errors of predicted numbers as JSON.

    Returns:
        ``unit``, ``cap``, ``levels`` and ``samples``; ``targets``: RMSE, mean absolute error and mean error of each
        target, and the share of true numbers up to each level; ``ranges``: the same for the samples in each range of
        the first target; ``points``: the first target of single samples, at most 2,000.
    """
    many = errors.true.shape[1]
    middle = errors.predicted.shape[2] // 2
    names = _names(errors.names, many)
    place = np.searchsorted(np.array(errors.edges, np.float32), errors.wanted[:, 0].astype(np.float32), "right")
    order = np.argsort(errors.wanted[:, 0], kind="stable")
    kept = order[np.linspace(0, len(order) - 1, min(len(order), POINTS)).round().astype(np.int64)]
    points: dict[str, Any] = {
        "true": _short(errors.wanted[kept, 0]), "predicted": _short(errors.predicted[kept, 0, middle])
    }  # fmt: skip
    if errors.levels:
        points |= {"low": _short(errors.predicted[kept, 0, 0]), "high": _short(errors.predicted[kept, 0, -1])}
    if owners is not None:
        points["device"] = owners[kept].tolist()
    return {
        "unit": errors.unit, "cap": errors.cap, "levels": list(errors.levels), "samples": len(order),
        "targets": [{"name": name} | _of(errors, np.arange(len(order)), at) for at, name in enumerate(names[:TARGETS])],
        "ranges": [
            {"name": name} | _of(errors, np.flatnonzero(place == at), 0)
            for at, name in enumerate(bins) if (place == at).any()
        ],
        "points": points,
    }  # fmt: skip


def _of(errors: Errors, rows: NDArray[np.int64], target: int) -> dict[str, Any]:
    wanted = errors.wanted[rows, target]
    predicted = errors.predicted[rows, target]
    away = errors.away[rows, target]
    slack = ROUNDING * np.abs(errors.wanted[:, target]).max(initial=0.0)
    described: dict[str, Any] = {
        "samples": len(rows), "rmse": float(np.sqrt(np.square(away).mean())), "mae": float(np.abs(away).mean()),
        "bias": float(away.mean()),
    }  # fmt: skip
    if errors.levels:
        described["below"] = (wanted[:, None] <= predicted + slack).mean(axis=0).tolist()
        described["inside"] = float(((predicted[:, 0] - slack <= wanted) & (wanted <= predicted[:, -1] + slack)).mean())
    return described


def _names(names: Sequence[str], many: int) -> list[str]:
    """Return the names of ``many`` targets; those of rows ahead in a forecast get the number of rows.

    >>> _names(["a", "b"], 4)
    ['a, 1 ahead', 'a, 2 ahead', 'b, 1 ahead', 'b, 2 ahead']
    """
    if not names:
        return [f"value {at + 1}" for at in range(many)]
    ahead = many // len(names)
    if ahead == 1:
        return list(names)
    return [f"{name}, {row + 1} ahead" for name in names for row in range(ahead)]


def _short(values: Floats) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values.tolist()]


def confusion(y: Labels, predicted: Labels, classes: int) -> Counts:
    """Return the confusion matrix, int64 [F, F]: numbers of samples of class i (row) predicted as class j (column).

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2)
    array([[1, 1],
           [0, 1]])
    """
    return np.bincount(y * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def factory_accuracy(roster: Roster, by_device: NDArray[np.float64]) -> list[float | None]:
    """Return each factory's accuracy Σ_k n_k·a_k / Σ_k n_k over its devices k with an accuracy; None without any."""
    known = ~np.isnan(by_device) & (roster.factory_of >= 0)
    weight = roster.weights[known]
    factory_of = roster.factory_of[known]
    total = np.bincount(factory_of, weights=weight, minlength=len(roster.factories))
    right = np.bincount(factory_of, weights=weight * by_device[known], minlength=len(roster.factories))
    return [float(r / n) if n else None for r, n in zip(right, total, strict=True)]


def _own_tests(park: Park, table: Counts) -> list[dict[str, int]]:
    """Return the number of each device's own test samples, and of those of the rarest tested class.

    Without owners of test samples, the numbers are left out.
    """
    roster = park.roster
    data = park.dataset
    if roster.figures != "measured" or data.owner_test is None:
        return [{} for _ in roster.numbers]
    tested = table.sum(axis=1)
    rarest = int(np.where(tested > 0, tested, np.iinfo(np.int64).max).argmin())
    many = int(max(data.owner_test.max(initial=-1), roster.owners.max(initial=-1))) + 1
    samples = np.bincount(data.owner_test, minlength=many)
    rare = np.bincount(data.owner_test[data.y_test == rarest], minlength=many)
    return [
        {"samples": int(samples[owner]), "rarest": int(rare[owner])} if owner >= 0 else {}
        for owner in roster.owners.tolist()
    ]


def describe(
    park: Park, table: Counts, by_device: NDArray[np.float64], headlines: Mapping[str, Values] | None = None,
    errors: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return an evaluation as JSON: the content of a run's ``evaluation.json`` beside accuracy and loss.

    ``device_accuracy`` states whether the metrics of devices and factories are measured on their own test samples or
    expected from their class shares. Each entry's ``figures`` holds the headline, unless that is the accuracy; None
    where it is undefined, for instance where only one class was tested. For a park with more than 5,000 devices, only
    those of the roster are listed, with the number of all.
    """
    roster = park.roster
    extra = {} if errors is None else {"errors": errors}
    shares = [None if np.isnan(value) else float(value) for value in by_device]
    rows = zip(roster.numbers.tolist(), roster.names, roster.factory_of.tolist(), shares, strict=True)

    def more(at: int, place: int) -> dict[str, Any]:
        return {"figures": {name: extra[at][place] for name, extra in (headlines or {}).items()}} if headlines else {}

    def role(device: int, share: float | None) -> dict[str, str]:  # where a device does not both train and test
        if roster.figures == "expected" or (share is not None and device < park.devices):
            return {}
        return {"role": "trains only" if device < park.devices else "tests only"}

    own = _own_tests(park, table)
    factories = zip(roster.factories, factory_accuracy(roster, by_device), strict=True)
    return (
        {
            "macro_f1": macro_f1(table),
            "classes": list(park.dataset.classes),
            "confusion": table.tolist(),
            "device_accuracy": roster.figures,
            "devices": [
                {"device": k, "name": name, "factory": m if m >= 0 else None, "accuracy": share}
                | more(0, row)
                | own[row]
                | role(k, share)
                for row, (k, name, m, share) in enumerate(rows)
            ],
            "factories": [
                {"factory": m, "name": name, "accuracy": share} | more(1, m)
                for m, (name, share) in enumerate(factories)
            ],
        }
        | ({} if len(park.listed) == park.devices else {"of_devices": park.devices})
        | extra
    )


BLOCK = 500  # fixed, so that matrix products have the same rows whatever the number of ranks


def tested_on(engine: Engine, park: Park) -> Engine:
    """Return the engine with another park's test samples, and the same network, ranks and normalisation."""
    other = copy.copy(engine)
    other.park = park
    return other


def logits_on_test(engine: Engine, model: Tensor) -> NDArray[np.float32]:
    """Return the logits of a saved flat model on all test samples, float32 [n, F]; call it on every rank."""
    park = engine.park
    classes = len(engine.park.dataset.classes)
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
    """The result of an evaluation.

    Attributes:
        by_device: 10th, 50th and 90th percentile of the devices' accuracies; empty without any. If test samples have
            owners, a device's accuracy is measured on its own test samples, and devices that only train are left out.
            Otherwise it is expected: Σ_c p_k(c)·accuracy(c) with the device's class shares p_k over the classes with
            test samples; devices with samples of none of these classes are left out.
        headlines: name of the headline → its 10th, 50th and 90th percentile over the devices for which it is defined,
            and their number; empty if the headline is the accuracy, or defined for no device.
        describe: the function that computes ``details``, which only the last evaluation of a run needs.
        figures: name → value of the headline, unless that is the accuracy.
        devices: the headline of each device of the roster; None where it is undefined.
    """

    accuracy: float  # share of correctly classified test samples
    loss: float  # mean cross-entropy of the test samples
    macro_f1: float  # mean of F1 over the classes; see :func:`~fedfloor.tasks.figures.macro_f1`
    by_class: list[float | None]  # accuracy per class; None for a class without test samples, never NaN
    by_device: dict[str, float]
    describe: Callable[[], dict[str, Any]] = field(compare=False, repr=False)
    figures: Mapping[str, float | None] = field(default_factory=dict)
    headlines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    devices: Sequence[float | None] = field(default=(), compare=False, repr=False)

    @cached_property
    def details(self) -> dict[str, Any]:
        """The details for ``evaluation.json``: the confusion matrix, and the metrics of every device and factory."""
        return self.describe()


def evaluate(engine: Engine, model: Tensor, objective: Objective | None = None, headline: Figure = ACCURACY) -> Score:
    """Evaluate a flat model [P] on the park's test data; call it on every rank, whose resident network is overwritten.

    With a ``personal`` objective, the model carries a device's own parameters for that device's test samples.
    """
    scored = headline.scored(engine.park.dataset.classes)
    total = engine.park.test_samples
    personal = objective is not None and objective.personal  # the model then has the device's own parameters
    owner = engine.park.test_devices if personal or engine.task.apart else np.full(total, -1)
    blocks = [block for device in np.unique(owner).tolist() for block in _cut(device, np.flatnonzero(owner == device))]

    def load(device: int) -> None:
        engine.network.flat.copy_(model)
        if objective is not None and personal and device >= 0:
            objective.arrive(engine.network.flat, engine.memory.load(device), engine.network)

    losses, predicted, ranks = block_outputs(engine, blocks, scored, load, each=True)
    place = np.concatenate([rows for _, rows in blocks])
    answered = np.empty(total, np.int64)
    scores = np.empty((total, ranks.shape[1]), np.float32)
    answered[place] = predicted
    scores[place] = ranks
    loss = float(sum(losses.tolist())) / total
    return score_one(engine, loss, answered, scores[:, :-1], headline, scores[:, -1])


def score_one(
    engine: Engine, loss: float, predicted: Labels, scores: NDArray[Any], headline: Figure,
    losses: NDArray[Any] | None = None,
) -> Score:  # fmt: skip
    """Return the score of one model on the n test samples.

    Args:
        loss: the mean loss.
        predicted: the predicted bins [n].
        scores: the scores [n, S] of the headline.
        losses: the loss of each sample [n]; None: unknown, and without an interval.
    """
    data = engine.park.dataset
    answers = SampleAnswers(engine, data.y_test, predicted, scores, headline, data.owner_test, losses=losses)
    tested = answers.predictions(loss=loss)
    return score(engine, loss, predicted == data.y_test, [tested], headline, tested.table, answers)


def block_outputs(
    engine: Engine, blocks: Sequence[tuple[int, Indices]], scored: Sequence[int], load: Callable[[int], None], *,
    each: bool = False,
) -> tuple[NDArray[np.float64], Labels, NDArray[np.float32]]:  # fmt: skip
    """Compute the network's outputs for blocks (device, rows of test samples), each rank for its share.

    ``load`` puts the model for a device's blocks into the resident network. Returns the summed loss of each block and,
    for the n samples block after block, the predicted bins int64 [n] and the scores float32 [n, S] of ``scored`` bins.
    With ``each`` the scores have the samples' losses as an additional, last column.
    """
    mine = deal([len(rows) for _, rows in blocks], engine.team.size)[engine.team.rank]
    task = engine.task
    losses = np.zeros(len(mine))
    loaded = None
    predicted = [np.zeros(0, np.int64)]
    scores = list[NDArray[np.float32]]()
    with torch.inference_mode():
        for place, block in enumerate(mine):
            device, rows = blocks[block]
            if device != loaded:
                load(device)
                engine.network.module.eval()
                loaded = device
                task = calibrated(engine, device)
            samples = engine.wrap(*engine.park.test(rows))
            out = engine.network.module(samples.values(slice(None)))
            losses[place] = float(task.losses(out, samples.y, "sum"))
            predicted.append(task.predicted(out).cpu().numpy())
            ranks = task.scores(out, samples.y, scored).float()
            if each:
                ranks = torch.cat([ranks, task.losses(out, samples.y).float()[:, None]], 1)
            scores.append(ranks.cpu().numpy())
    own = [losses.tobytes(), np.concatenate(predicted).tobytes(), np.concatenate(scores).tobytes() if scores else b""]
    shared = engine.team.gather(own)
    kinds = (np.float64, np.int64, np.float32)
    sums, bins, numbers = (np.concatenate([np.frombuffer(p[i], kind) for p in shared]) for i, kind in enumerate(kinds))
    return sums, bins, numbers.reshape(len(bins), numbers.size // max(1, len(bins)))


def device_blocks(owner: NDArray[np.int64], device: int) -> list[tuple[int, Indices]]:
    """Return the blocks of test samples for a device's model: the device's own, then those without a device."""
    return [block for whose in dict.fromkeys((device, -1)) for block in _cut(device, np.flatnonzero(owner == whose))]


def _cut(device: int, rows: Indices) -> list[tuple[int, Indices]]:
    return [(device, rows[first : first + BLOCK]) for first in range(0, len(rows), BLOCK)]


def score(
    engine: Engine, loss: float, right: NDArray[Any], views: Sequence[Predictions], headline: Figure, table: Counts,
    single: SampleAnswers, every: NDArray[np.float64] | None = None,
) -> Score:  # fmt: skip
    """Return the score of the predictions of one model or several.

    Args:
        right: [test samples], whether each was classified correctly; with several models the share that was right.
        views: each model's predictions; macro-F1 and headline are means over the models.
        table: int64 [F, F], the confusion matrix of all models' predictions.
        every: the accuracy of each device of the roster; default: computed from the other arguments.
    """
    park = engine.park
    by_class = recalls(table)
    every = device_accuracy(park, right, by_class) if every is None else every
    known = every[~np.isnan(every)]
    points = {f"p{q}": float(np.percentile(known, q)) for q in (10, 50, 90)} if len(known) else {}
    named = [None if np.isnan(value) else float(value) for value in by_class]
    by_headline = {} if headline == ACCURACY else {headline.name: headlines(park, headline, table, single)}
    figures: dict[str, float | None] = {}
    for figure in dict.fromkeys((headline, *of_task(engine.task.kind, lives=engine.task.lives))):
        values = [figure.value(view, park.dataset.classes) for view in views]
        known_values = [value for value in values if value is not None]
        if figure == headline or known_values:
            figures[figure.name] = _mean(known_values) if len(known_values) == len(values) else None
    figures = {} if headline == ACCURACY else figures
    errors = views[0].errors if len(views) == 1 else None
    owners = single.owners

    def details() -> dict[str, Any]:
        known = errors is not None and bool((np.abs(errors.predicted) < BEYOND).all())
        described = describe_errors(errors, park.dataset.classes, owners) if known and errors is not None else None
        drawn = _resampled(park, right, single, headline, one=len(views) == 1)
        kept = _promise(engine, views, single, table)
        lives = views[0].lives if len(views) == 1 else None
        more = {"resampled": drawn} | ({} if lives is None else {"lives": lives.described()})
        return describe(park, table, every, by_headline, described) | kept | more

    spreads = {name: shares for name, (devices, _) in by_headline.items() if (shares := spread(devices))}
    f1 = _mean([macro_f1(view.table) for view in views])
    devices = [None if np.isnan(value) else float(value) for value in every]
    if by_headline:
        devices = list(by_headline[headline.name][0])
    return Score(float(right.mean()), loss, f1, named, points, details, figures, spreads, devices)


def _promise(
    engine: Engine, views: Sequence[Predictions], single: SampleAnswers, table: Counts
) -> dict[str, Any]:  # fmt: skip
    """Return the entry ``promise``: the promised share of samples, and the measured one in total and of each device.

    It is the share of numbers within their intervals, or of normal samples without an alarm; null if the samples of
    the evaluation themselves set the thresholds, whose share is the promised one by construction. {} without a promise.
    """
    task = engine.task
    if task.promised is None:
        return {}
    figure = named(task.of_thresholds)

    apart = engine.executor is not None or engine.park.validating is not None

    def share(value: float | None) -> float | None:
        return task.inside(value) if apart else None

    known = [value for view in views if (value := figure.value(view, engine.park.dataset.classes)) is not None]
    devices = headlines(engine.park, figure, table, single)[0]
    kept = {"promised": task.promised, "measured": share(_mean(known)) if known else None}
    return {"promise": {**kept, "units": counted(engine.park), "devices": [share(value) for value in devices]}}


def _resampled(
    park: Park, right: NDArray[Any], single: SampleAnswers, headline: Figure, *, one: bool
) -> dict[str, Any]:  # fmt: skip
    """Return accuracy and headline on resampled test samples; a headline of several models is left out."""
    values = dict[str, tuple[Value, int]]()
    if park.dataset.task.kind == "classification" or headline == ACCURACY:
        values[ACCURACY.name] = (lambda rows: float(right[rows].mean()), 1)
    place = np.arange(len(right)) if single.places is None else np.argsort(single.places, kind="stable")
    losses = single.losses
    if one and losses is not None:
        for name in sorted({LOSS.name, headline.name} & OF_LOSS):
            values[name] = (lambda rows: float(losses[place[rows]].mean(dtype=np.float64)), 1)
    if one and headline != ACCURACY and headline.kind.name not in WITHOUT:

        def value(rows: Indices) -> float | None:
            return of_some(headline, single.predictions(place[rows]), park.dataset.classes)

        values[headline.name] = (value, 1 + single.scores.shape[1])
    return resampled(units(park.dataset), values)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
