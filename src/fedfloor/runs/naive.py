"""The references of a forecast that learn nothing: a run's folder from values that repeat."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from fedfloor.data.dataset import Dataset, Values
from fedfloor.engine.engine import Engine
from fedfloor.engine.evaluate import Score
from fedfloor.experiment import Experiment
from fedfloor.figures import Figure
from fedfloor.park.park import Park
from fedfloor.runs import roundless
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Orders
from fedfloor.runs.parks import build_park

log = logging.getLogger(__name__)


def start(
    experiment: Experiment, orders: Orders, ranks: int, report: Callable[[Line], None], park: Park,
    interrupted: Callable[[], bool],
) -> str | None:  # fmt: skip
    """Predict, evaluate and write a run's folder with one ledger line, that of the last round; see ``launch.start``.

    Returns:
        ``"finished"``; None where windows are shorter than a season: a warning has the reason.

    Raises:
        SettingError: the folder holds another run.
        RunError: the disk is full.
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
    return roundless.write(experiment, orders, report, park, score)


def _score(engine: Engine, raw: Park, before: int, headline: Figure) -> Score:
    data = raw.dataset
    found = repeated(raw.test()[0], before, data)
    levels = getattr(engine.task, "levels", ()) if getattr(engine.task, "loss", "") == "quantile" else ()
    values = found[:, :, None]
    if levels:  # an interval is what the same rule is off by in training, to both sides of the value
        x, y = raw.pooled()
        off = np.quantile(y - repeated(x, before, data), levels, axis=0).T
        middle = len(levels) // 2
        off[:, middle] = 0.0
        off[:, :middle], off[:, middle:] = off[:, :middle].clip(max=0), off[:, middle:].clip(min=0)
        values = values + off
    center, scale = (np.array(one)[:, None] for one in (engine.task.center, engine.task.scale))  # type: ignore[attr-defined]
    out = ((values - center) / scale).reshape(len(found), -1).astype(np.float32)
    return roundless.scored(engine, torch.from_numpy(out), headline)


def repeated(x: Values, before: int, data: Dataset) -> NDArray[np.float64]:
    """Return the forecast x̂_{t+h} = x_{t+h−m·⌈h/m⌉} of every sensor that the task names, [n, S·H].

    A value that is missing is the last one before it in the window, or the sensor's mean.

    Args:
        x: windows [n, C, L] as they are stored, L ≥ m.
        before: m, rows.
        data: whose sensors and task they are of.
    """
    task, names = data.task, data.inputs.columns
    at = [names.index(one) for one in task.sensors]  # type: ignore[attr-defined]
    window = x[:, at].astype(np.float64) * data.scale
    means = np.array(task.center).reshape(len(at), -1)[:, 0]  # type: ignore[attr-defined]
    there = np.maximum.accumulate(np.where(np.isfinite(window), np.arange(window.shape[2]), -1), axis=2)
    window = np.where(there < 0, means[:, None], np.take_along_axis(window, there.clip(0), 2))
    rows = np.arange(task.ahead) % before - before
    return window[:, :, rows].reshape(len(x), -1)
