"""The reference without a network: a run's folder from one fit of scikit-learn on the pooled table."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from fedfloor.config import combined
from fedfloor.engine.engine import Engine
from fedfloor.engine.evaluate import Score
from fedfloor.engine.samples import Samples
from fedfloor.experiment import Experiment
from fedfloor.figures import ACCURACY, Figure
from fedfloor.methods.boosting import GradientBoosting
from fedfloor.park.park import Park
from fedfloor.park.stream import Static
from fedfloor.runs import roundless
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Orders

if TYPE_CHECKING:
    from fedfloor.tasks.task import Boosted

log = logging.getLogger(__name__)

PIECE = 1 << 14  # samples that are turned into a table's rows at a time


def refusal(experiment: Experiment, park: Park) -> str:
    """Return why a park's data make no table; nothing where they do."""
    if len(park.dataset.shape) > 2:
        return "the data are pictures, and it learns from tables of numbers"
    if not isinstance(experiment.data.stream, Static):
        return "devices hold a stream, and there is no one table of it (data.stream)"
    targets = park.dataset.target_test
    return park.dataset.task.unboosted(0 if targets is None else targets.shape[1])


def start(
    experiment: Experiment, orders: Orders, ranks: int, report: Callable[[Line], None], park: Park,
    interrupted: Callable[[], bool],
) -> str | None:  # fmt: skip
    """Fit, evaluate and write a run's folder with one ledger line, that of the last round; see ``launch.start``.

    Returns:
        ``"finished"``; None where the data make no table: a warning has the reason.

    Raises:
        SettingError: the folder holds another run.
        RunError: the disk is full.
    """
    del ranks, interrupted  # one fit, of which nothing can be kept
    why = refusal(experiment, park)
    if why:
        log.warning("There is no scikit-learn reference: %s.", why)
        return None

    def found(engine: Engine) -> Score:
        method = cast(GradientBoosting, combined(experiment).method)
        return evaluated(engine, fitted(engine, method), experiment.evaluate.figure)

    return roundless.write(experiment, orders, report, park, found)


def table(samples: Samples) -> NDArray[np.float32]:
    """Return samples as rows [n, columns]: values of sensors, or five statistics of each sensor's window."""
    rows = [samples.values(slice(first, first + PIECE)) for first in range(0, len(samples), PIECE)]
    return np.concatenate([columns(one.cpu().numpy()) for one in rows])


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
    """Return what answers as a network would, fitted to all devices' training samples."""
    samples, dataset = engine.samples(-1), engine.park.dataset
    settings = {
        "max_iter": method.iterations, "learning_rate": method.rate, "max_leaf_nodes": method.leaves,
        "random_state": engine.seed,
    }  # fmt: skip
    return engine.task.boosted(table(samples), samples.y.cpu().numpy(), len(dataset.classes), settings)


def evaluated(engine: Engine, model: Boosted, headline: Figure = ACCURACY) -> Score:
    """Evaluate it on the test samples, by the figure that the run is judged by."""
    return roundless.scored(engine, torch.from_numpy(model(table(engine.wrap(*engine.park.test())))), headline)
