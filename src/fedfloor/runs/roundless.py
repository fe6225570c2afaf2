"""References that have no rounds, such as boosting and repeated values: a run's folder with one ledger line."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfloor.config import combined
from fedfloor.data.dataset import Dataset, Values
from fedfloor.engine.engine import Engine, Samples
from fedfloor.engine.evaluate import Score, score_one
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone
from fedfloor.experiment import Experiment
from fedfloor.figures import Figure
from fedfloor.methods.references import GradientBoosting
from fedfloor.park.park import Park
from fedfloor.park.stream import Static
from fedfloor.runs import folder, ledger, results
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Orders
from fedfloor.runs.parks import build_park
from fedfloor.runs.prepare import engine as engine_of
from fedfloor.runs.prepare import prepare

if TYPE_CHECKING:
    from fedfloor.tasks.task import Boosted


def write(
    experiment: Experiment, orders: Orders, report: Callable[[Line], None], park: Park,
    evaluate: Callable[[Engine], Score],
) -> str:  # fmt: skip
    """Evaluate a reference and write its run's folder, unless it is complete already; return ``"finished"``."""
    out = orders.out
    with folder.owned(out):
        prepare(experiment, orders, park)
        number = min(experiment.rounds, orders.limits.stop_after or experiment.rounds)
        if (out / "evaluation.json").exists() and any(
            line.round == number for line in ledger.read(out / "ledger.jsonl")
        ):
            return "finished"
        ledger.cut(out / "ledger.jsonl", None)
        began = time.perf_counter()
        engine, _ = engine_of(experiment, combined(experiment), park, Alone(), DeviceMemory(None))
        result = evaluate(engine)
        line = ledger.line(number, result, (), "", time.perf_counter() - began, {})
        results.write_evaluation(out, experiment, number, result)
        ledger.append(out / "ledger.jsonl", line)
        report(line)
    return "finished"


def scored(engine: Engine, out: Tensor, headline: Figure) -> Score:
    """Evaluate outputs for all test samples, [n, outputs] like a network's."""
    task, samples = engine.task, engine.wrap(*engine.park.test())
    out, classes = out.to(samples.y.device), engine.park.dataset.classes
    scores = task.scores(out, samples.y, headline.scored(classes)).float().cpu().numpy()
    loss = float(task.losses(out, samples.y, "mean"))
    return score_one(engine, loss, task.predicted(out).cpu().numpy(), scores, headline)


log = logging.getLogger(__name__)

PIECE = 1 << 14  # samples that are turned into a table's rows at a time


def refusal(experiment: Experiment, park: Park) -> str:
    """Return the reason why a park's data make no table; "" where they do."""
    if len(park.dataset.shape) > 2:
        return "the data are pictures, and it learns from tables of numbers"
    if not isinstance(experiment.data.stream, Static):
        return "devices hold a stream, and there is no one table of it (data.stream)"
    targets = park.dataset.target_test
    return park.dataset.task.unboosted(0 if targets is None else targets.shape[1])


def start_boosting(
    experiment: Experiment, orders: Orders, ranks: int, report: Callable[[Line], None], park: Park,
    interrupted: Callable[[], bool],
) -> str | None:  # fmt: skip
    """Fit, evaluate and write a run's folder with one ledger line, that of the last round; see ``launch.start``.

    None where the data make no table: a warning has the reason.
    """
    del ranks, interrupted  # one fit, of which nothing can be kept
    why = refusal(experiment, park)
    if why:
        log.warning("There is no scikit-learn reference: %s.", why)
        return None

    def evaluate(engine: Engine) -> Score:
        model = fitted(engine, cast(GradientBoosting, combined(experiment).method))
        rows = table(engine.wrap(*engine.park.test()))
        return scored(engine, torch.from_numpy(model(rows)), experiment.evaluate.figure)

    return write(experiment, orders, report, park, evaluate)


def table(samples: Samples) -> NDArray[np.float32]:
    """Return samples as rows [n, columns]: values of sensors, or five statistics of each sensor's window."""
    rows = [samples.values(slice(first, first + PIECE)) for first in range(0, len(samples), PIECE)]
    return np.concatenate([columns(chunk.cpu().numpy()) for chunk in rows])


def columns(x: NDArray[Any]) -> NDArray[np.float32]:
    """Return [n, C] as it is, and windows [n, C, L] as mean, deviation, minimum, maximum and last value, [n, 5·C].

    >>> columns(np.array([[[1.0, 3.0]]]))
    array([[2., 1., 1., 3., 3.]], dtype=float32)
    """
    if x.ndim == 2:
        return x.astype(np.float32)
    parts = (x.mean(2), x.std(2), x.min(2), x.max(2), x[:, :, -1])
    return np.concatenate(parts, axis=1).astype(np.float32)


def fitted(engine: Engine, method: GradientBoosting) -> Boosted:
    """Return gradient boosting fitted to all devices' training samples, with a network's outputs."""
    samples, dataset = engine.samples(-1), engine.park.dataset
    settings = {
        "max_iter": method.iterations, "learning_rate": method.rate, "max_leaf_nodes": method.leaves,
        "random_state": engine.seed,
    }  # fmt: skip
    return engine.task.boosted(table(samples), samples.y.cpu().numpy(), len(dataset.classes), settings)


def start_naive(
    experiment: Experiment, orders: Orders, ranks: int, report: Callable[[Line], None], park: Park,
    interrupted: Callable[[], bool],
) -> str | None:  # fmt: skip
    """Predict, evaluate and write a run's folder with one ledger line, that of the last round; see ``launch.start``.

    None where windows are shorter than a season: a warning has the reason.
    """
    del ranks, interrupted
    name = experiment.method.name
    before, length = park.dataset.task.repeats[name], park.dataset.shape[-1]
    if before > length:
        log.warning(
            "There is no %s reference: a season of %s rows (data.task.season) is longer than the window of %s rows "
            "(data.window.length).", name, before, length,
        )  # fmt: skip
        return None
    raw = park  # devices' own scales have no way back to the sensors' units
    if park.normalised is not None:
        raw = build_park(replace(experiment, data=replace(experiment.data, normalise="auto")))
    score = partial(_score, raw=raw, before=before, headline=experiment.evaluate.figure)
    return write(experiment, orders, report, park, score)


def _score(engine: Engine, raw: Park, before: int, headline: Figure) -> Score:
    data = raw.dataset
    forecasts = repeated(raw.test()[0], before, data)
    levels = getattr(engine.task, "levels", ()) if getattr(engine.task, "loss", "") == "quantile" else ()
    values = forecasts[:, :, None]
    if levels:  # an interval is what the same rule is off by in training, to both sides of the value
        x, y = raw.pooled()
        off = np.quantile(y - repeated(x, before, data), levels, axis=0).T
        middle = len(levels) // 2
        off[:, middle] = 0.0
        off[:, :middle], off[:, middle:] = off[:, :middle].clip(max=0), off[:, middle:].clip(min=0)
        values = values + off
    center, scale = (np.array(setting)[:, None] for setting in (engine.task.center, engine.task.scale))  # type: ignore[attr-defined]
    out = ((values - center) / scale).reshape(len(forecasts), -1).astype(np.float32)
    return scored(engine, torch.from_numpy(out), headline)


def repeated(x: Values, before: int, data: Dataset) -> NDArray[np.float64]:
    """Return the forecast x̂_{t+h} = x_{t+h−m·⌈h/m⌉} of every sensor that the task names, [n, S·H].

    A value that is missing is the last one before it in the window, or the sensor's mean.

    Args:
        x: windows [n, C, L] as they are stored, L ≥ m.
        before: m, rows.
        data: whose sensors and task they are of.
    """
    task, names = data.task, data.inputs.columns
    at = [names.index(name) for name in task.sensors]  # type: ignore[attr-defined]
    window = x[:, at].astype(np.float64) * data.scale
    means = np.array(task.center).reshape(len(at), -1)[:, 0]  # type: ignore[attr-defined]
    newest = np.maximum.accumulate(np.where(np.isfinite(window), np.arange(window.shape[2]), -1), axis=2)
    window = np.where(newest < 0, means[:, None], np.take_along_axis(window, newest.clip(0), 2))
    rows = np.arange(task.ahead) % before - before
    return window[:, :, rows].reshape(len(x), -1)
