"""The alarm threshold: a quantile of the anomaly scores of held-out normal samples, found by counting."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError
from fedfloor.data.dataset import Indices
from fedfloor.engine.engine import Engine
from fedfloor.park.park import Park
from fedfloor.plan.nodes import Probe
from fedfloor.tasks.reconstruction import Reconstruction
from fedfloor.tasks.task import Task

BLOCK = 500  # as in evaluation
REACH = 40.0  # scores are clipped to 2^−40 … 2^40
BINS = 64
ROUNDS = 4


def counts(scores: NDArray[np.floating], low: float, width: float) -> NDArray[np.int64]:
    """Return a device's counts, int64 [66], of scores s with log2 s below ``low``, in each of 64 bins, and above them.

    >>> counts(np.array([1.0, 2.0, 2.1]), 0.0, 64.0)[:3].tolist()
    [0, 1, 2]
    """
    if np.isnan(scores).any():
        raise SettingError(
            f"{int(np.isnan(scores).sum())} of {len(scores)} scores of held-out samples are not numbers (NaN): they "
            "have no threshold, as the model diverged, or values are missing. Lower work.lr, or set data.missing.",
            key="not-finite",
        )
    with np.errstate(divide="ignore"):
        logs = np.log2(scores.astype(np.float64)).clip(-REACH, REACH)
    at = np.floor((logs - low) / width * BINS).clip(-1, BINS).astype(np.int64) + 1
    return np.bincount(at, minlength=BINS + 2)


def settings(low: object, width: object) -> str:
    """Return the reason why a bisection has no such bins, or "": the bins of round r are 80/64^(r + 1) wide."""
    for r in range(ROUNDS):
        span = 2 * REACH / BINS**r
        if isinstance(low, float) and width == span and -REACH <= low <= REACH - span:
            return "" if not (low + REACH) % span else f"bins from {low:g} on: they must begin at an earlier bin."
    return "bins of a width or range that the bisection of a threshold does not have."


def bisected(
    ask: Callable[[float, float], NDArray[np.int64]], share: float, rounds: int = ROUNDS
) -> tuple[float, float]:
    """Return an upper bound of the quantile ``share`` of all scores, and its relative error, by bisection.

    Each round counts the scores in 64 bins, and the next round divides the bin with the quantile. The result is the
    upper end of the last bin: never below the quantile, and above it by at most the error 2^(80/64^R) − 1, which is
    3.3·10⁻⁶ for four rounds. A round costs a device 66 counts up and two numbers down.
    """
    low = -REACH
    width = 2 * REACH
    for _ in range(rounds):
        total = ask(low, width)
        if not total.any():
            return 0.0, 0.0
        wanted = max(1, int(np.ceil(share * int(total.sum()) - 1e-9)))
        at = int(np.searchsorted(np.cumsum(total), wanted)) - 1  # the first bin up to which the share is reached
        low = low + width * min(max(at, 0), BINS - 1) / BINS
        width = width / BINS
    return float(2 ** (low + width)), float(2**width - 1)


def quantile(devices: list[NDArray[np.floating]], share: float, rounds: int = ROUNDS) -> tuple[float, float]:
    """Return the quantile ``share`` of devices' known scores [n_k] and its relative error, by :func:`bisected`.

    >>> value, error = quantile([np.arange(1.0, 51.0), np.arange(51.0, 101.0)], 0.9)
    >>> 90.0 <= value <= 90.0 * (1 + error)
    True
    """
    return bisected(
        lambda low, width: np.sum([counts(scores, low, width) for scores in devices], axis=0), share, rounds
    )


def calibrated(engine: Engine, device: int = -1) -> Task:
    """Return the engine's task with its anomaly threshold set for the model in the resident network.

    The threshold is the quantile ``share`` of the scores of held-out normal samples. Scores of simulated devices are
    counted here; real devices count their own. A network with a ``threshold`` has that one, and a task without a
    threshold is returned unchanged.

    Args:
        device: the device whose samples set the threshold; all devices if it is -1 or has no held-out samples.
    """
    task = engine.task
    park = held_out(engine.park)
    if not isinstance(task, Reconstruction):
        return task
    own: float | None = getattr(engine.network.module, "threshold", None)
    if own is not None:
        return task.calibrated(own)
    data = park.dataset
    away = engine.executor is not None and (data.held_by is not None or data.made is not None)
    threshold_of = _by_questions if away else _counted
    threshold = threshold_of(engine, task.share, device) if device >= 0 else 0.0
    threshold = threshold or threshold_of(engine, task.share, -1)
    return task.calibrated(threshold) if threshold else task


def _counted(engine: Engine, share: float, device: int) -> float:
    park = held_out(engine.park)
    rows = np.flatnonzero((park.dataset.y_test == 0) & (True if device < 0 else park.test_devices == device))
    by = park.dataset.held_by
    parts = [rows] if by is None else np.split(rows, np.flatnonzero(np.diff(by[rows])) + 1)
    return quantile([scores(engine, part) for part in parts], share)[0]


def _by_questions(engine: Engine, share: float, device: int) -> float:
    devices = range(engine.park.devices) if device < 0 else (device,)

    def ask(low: float, width: float) -> NDArray[np.int64]:
        node = Probe(tuple(devices), "scores", settings={"low": low, "width": width})
        answers = engine.executor.answers(engine, node, {"w": engine.network.flat}, 0, devices)  # type: ignore[union-attr]
        total: NDArray[np.int64] = np.array(list(answers.values()), np.int64).sum(0)
        return total

    return bisected(ask, share)[0]


def scores(engine: Engine, rows: Indices) -> NDArray[np.float64]:
    """Return the anomaly scores [n] that the resident network gives the test samples ``rows``."""
    task = engine.task
    park = held_out(engine.park)
    errors = [np.zeros(0)]
    engine.network.module.eval()
    with torch.inference_mode():
        for first in range(0, len(rows), BLOCK):
            samples = engine.wrap(*park.test(rows[first : first + BLOCK]))
            out = engine.network.module(samples.values(slice(None)))
            errors.append(task.errors(out).double().cpu().numpy())  # type: ignore[attr-defined]
    return np.concatenate(errors)


def of_device(park: Park, device: int) -> Indices:
    """Return the rows of a device's normal samples among the held-out ones."""
    held = held_out(park).dataset
    own = held.held_by == device if held.held_by is not None else np.zeros(len(held.y_test), bool)
    return np.flatnonzero((held.y_test == 0) & own)


def most(park: Park, device: int) -> int:
    """Return the greatest number of samples that a device can hold out; ten times its training samples if unknown."""
    by = held_out(park).dataset.held_by
    return 10 * int(park.sizes[device]) if by is None else int((by == device).sum())


def held_out(park: Park) -> Park:
    """Return the park whose test samples are the devices' held-out training samples."""
    return park if park.validating is None else park.validating
