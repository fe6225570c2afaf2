"""Thresholds of scores of held-out samples, found by counting: of alarms, and the margins of promised intervals.

A task's scores s (:meth:`~fedfloor.tasks.task.Task.strangeness`) of the n samples that devices hold out have the
threshold t, the least with at least share·n scores up to it. Of a *promised* share c it is split conformal prediction:
with held-out samples of U units, such as whole recordings, the share is c·(1 + 1/U), so that a new sample of a new unit
is within the threshold with a probability of at least c, if units are exchangeable and have the same number of samples.
If every sample is a unit this is the ⌈(n + 1)c⌉-th score: Vovk, Gammerman and Shafer, Algorithmic learning in a random
world, 2005; Lei et al., Journal of the American Statistical Association 113 (2018) 1094; for units Dunn, Wasserman and
Ramdas, Journal of the American Statistical Association 118 (2023) 2491. U units promise at most U/(U + 1).

The samples of one recording are not exchangeable. A unit is therefore a whole held-out recording or device, if these
are held out; otherwise the overlapping windows that begin within one window's length of rows; otherwise a single
sample. Neighbouring units of windows have common rows, and recordings drift: with them the promise is approximate.
A device's own thresholds are drawn towards those t of all devices: log2 t_k is the mean of its own and that of all,
weighted by its number of units and by :data:`PRIOR`.

Neither corrects a drift between held-out and new samples: coverage is measured on the test samples, too.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError
from fedfloor.data.dataset import Indices
from fedfloor.engine.engine import Engine
from fedfloor.park.park import Park
from fedfloor.plan.nodes import Probe, Scalar
from fedfloor.tasks.task import Task

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]
Counts = NDArray[np.float64] | NDArray[np.int64]
Ask = Callable[[Floats, float], tuple[Counts, int]]  # lower ends [S], width → counts [S, 66], units; 0: no correction
BLOCK = 500  # as in evaluation
REACH = 40.0  # scores are clipped to 2^−40 … 2^40
BINS = 64
ROUNDS = 4
PRIOR = 20  # units of a device, as many as which the thresholds of all weigh for one of its own
_OF_ALL = WeakKeyDictionary[Park, tuple[bytes, Floats]]()  # digest of the newest model, its thresholds


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


def packed(low: Floats) -> Scalar:
    """Return the lower ends [S] of a question's bins as its setting: a number, or several in a text."""
    return float(low[0]) if len(low) == 1 else " ".join(map(repr, low.tolist()))


def unpacked(low: object) -> Floats:
    """Return the lower ends [S] of a setting; raise ValueError for another one.

    >>> unpacked(packed(np.array([-40.0, 1.25]))).tolist()
    [-40.0, 1.25]
    """
    if not isinstance(low, float | str) or not (many := str(low).split()):
        raise ValueError(low)
    return np.array([float(one) for one in many])


def settings(low: object, width: object) -> str:
    """Return the reason why a bisection has no such bins, or "": the bins of round r are 80/64^(r + 1) wide."""
    try:
        ends = unpacked(low)
    except ValueError:
        ends = np.array([np.nan])
    for r in range(ROUNDS):
        span = 2 * REACH / BINS**r
        if width == span and bool(((ends >= -REACH) & (ends <= REACH - span)).all()):
            wrong = ends[(ends + REACH) % span != 0]
            return "" if not len(wrong) else f"bins from {wrong[0]:g} on: they must begin at an earlier bin."
    return "bins of a width or range that the bisection of a threshold does not have."


def bisected(ask: Ask, share: float, many: int = 1, rounds: int = ROUNDS) -> tuple[Floats, float]:
    """Return upper bounds [S] of the quantile ``share`` of each kind of score, and their relative error, by bisection.

    Each round counts the scores in 64 bins, and the next round divides the bin with the quantile. The result is the
    upper end of the last bin: never below the quantile, and above it by at most the error 2^(80/64^R) − 1, which is
    3.3·10⁻⁶ for four rounds. A round costs a device 66 counts up and two numbers down. Without scores, bounds are 0.

    Args:
        ask: the counts, with the number U of units for a promised share, which is then multiplied by 1 + 1/U.
        many: S.
    """
    low = np.full(many, -REACH)
    width = 2 * REACH
    for _ in range(rounds):
        total, units = ask(low, width)
        every = total.sum(axis=1)
        if not every.any():
            return np.zeros(many), 0.0
        raised = min(1.0, share * (1 + 1 / units)) if units else share
        wanted = raised * every - 1e-9
        reached = np.cumsum(total, axis=1) >= np.maximum(wanted, 1e-12)[:, None]
        reached[:, -1] = True
        at = reached.argmax(axis=1) - 1  # the first bin up to which the share is reached
        low = low + width * at.clip(0, BINS - 1) / BINS
        width = width / BINS
    return np.exp2(low + width), float(2**width - 1)


def quantile(
    devices: list[NDArray[np.floating]], share: float, rounds: int = ROUNDS, units: int = 0
) -> tuple[float, float]:
    """Return the quantile ``share`` of devices' known scores [n_k] and its relative error, by :func:`bisected`.

    >>> value, error = quantile([np.arange(1.0, 51.0), np.arange(51.0, 101.0)], 0.9)
    >>> 90.0 <= value <= 90.0 * (1 + error)
    True
    """
    found, error = bisected(_known(np.concatenate([np.zeros(0), *devices])[:, None], units), share, 1, rounds)
    return float(found[0]), error


def _known(scores: NDArray[np.floating[Any]], units: int) -> Ask:
    """Return the function that counts known scores [n, S]."""
    return lambda low, width: (table(scores, low, width), units)


def table(scores: NDArray[np.floating[Any]], low: Floats, width: float) -> NDArray[np.int64]:
    """Return the counts [S, 66] of scores [n, S], each column with its own lower end."""
    return np.array([counts(column, end, width) for column, end in zip(scores.T, low.tolist(), strict=True)], np.int64)


def calibrated(engine: Engine, device: int = -1) -> Task:
    """Return the engine's task with its thresholds set for the model in the resident network.

    Scores of simulated devices are counted here; real devices count their own. A network with a ``threshold`` has that
    one unless the task promises another, and a task without thresholds is returned unchanged. The thresholds of a model
    before its recalibration are known: ``engine.thresholds``.

    Args:
        device: the device whose samples set the thresholds; all devices if it is -1 or has no held-out samples.
    """
    if engine.thresholds is not None:
        return engine.thresholds(device)
    task = engine.task
    if not task.calibrates:
        return task
    own: float | None = getattr(engine.network.module, "threshold", None)
    if own is not None and task.promised is None:
        return task.calibrated((own,))
    found, weight = _thresholds(engine, device) if device >= 0 else (np.zeros(1), 0)
    if task.apart and weight:
        found = np.exp2((weight * np.log2(found) + PRIOR * np.log2(_of_all(engine))) / (weight + PRIOR))
    if not weight:
        found = _of_all(engine)
    return task.calibrated(found.tolist()) if found.all() else task


def _of_all(engine: Engine) -> Floats:
    """Return the thresholds [S] of all devices' samples; those of devices need them, so that they are remembered."""
    if not engine.task.apart:
        return _thresholds(engine, -1)[0]
    model = hashlib.sha256(engine.network.flat.cpu().view(torch.uint8).numpy().tobytes()).digest()
    if _OF_ALL.get(engine.park, (b"",))[0] != model:
        _OF_ALL[engine.park] = (model, _thresholds(engine, -1)[0])
    return _OF_ALL[engine.park][1]


def _thresholds(engine: Engine, device: int) -> tuple[Floats, int]:
    """Return thresholds [S] of a device's samples, or of all (−1), and the number of their units, or samples."""
    data = held_out(engine.park).dataset
    away = engine.executor is not None and (data.held_by is not None or data.made is not None)
    ask = (_by_questions if away else _counted)(engine, device)
    seen = [0]

    def noted(low: Floats, width: float) -> tuple[Counts, int]:
        total, many = ask(low, width)
        seen.append(many or int(total[0].sum()))
        return total, many

    return bisected(noted, engine.task.share, max(1, engine.task.targets))[0], seen[-1]


def _counted(engine: Engine, device: int) -> Ask:
    """Return the function that counts the scores of a simulated device's samples, or of all of them."""
    park = held_out(engine.park)
    rows = np.flatnonzero(_counts(park) & (True if device < 0 else park.test_devices == device))
    by = park.dataset.held_by
    parts = [rows] if by is None else np.split(rows, np.flatnonzero(np.diff(by[rows])) + 1)
    return _known(np.concatenate([scores(engine, part) for part in parts]), units(engine.task, park, rows))


def _by_questions(engine: Engine, device: int) -> Ask:
    """Return the function that asks a device for the counts of its scores, or all of them."""
    devices = range(engine.park.devices) if device < 0 else (device,)

    def ask(low: Floats, width: float) -> tuple[NDArray[np.int64], int]:
        node = Probe(tuple(devices), "scores", settings={"low": packed(low), "width": width})
        answers = engine.executor.answers(engine, node, {"w": engine.network.flat}, 0, devices)  # type: ignore[union-attr]
        total: NDArray[np.int64] = np.array(list(answers.values()), np.int64).sum(0)
        size = len(low) * (BINS + 2)
        known = int(total[size:].sum())
        if width == 2 * REACH and device < 0 and _lacks(engine.task, known):
            log.warning("%s", promise(engine.task, known))
        return total[:size].reshape(len(low), -1), known

    return ask


def scores(engine: Engine, rows: Indices) -> Floats:
    """Return the scores [n, S] that the resident network gives the held-out samples ``rows``."""
    task = engine.task
    park = held_out(engine.park)
    found = [np.zeros((0, max(1, task.targets)))]
    engine.network.module.eval()
    with torch.inference_mode():
        for first in range(0, len(rows), BLOCK):
            samples = engine.wrap(*park.test(rows[first : first + BLOCK]))
            out = engine.network.module(samples.values(slice(None)))
            found.append(task.strangeness(out, samples.y).double().cpu().numpy())
    return np.concatenate(found)


def _counts(park: Park) -> NDArray[np.bool_]:
    """Return whether each test sample's score counts: those of detectors only for normal samples."""
    data = park.dataset
    return data.y_test == 0 if data.task.detects else np.ones(len(data.y_test), np.bool_)


def units(task: Task, park: Park, rows: Indices) -> int:
    """Return the number of units of held-out samples; 0 if the task promises nothing."""
    of = park.dataset.unit_test
    return 0 if task.promised is None else len(rows) if of is None else len(np.unique(of[rows]))


def counted(park: Park) -> int | None:
    """Return the number of all units; None if the task promises nothing, or other machines hold the samples."""
    held = held_out(park)
    if park.dataset.task.promised is None or (held.dataset.held_by is None and held.dataset.made is not None):
        return None
    return units(park.dataset.task, held, np.flatnonzero(_counts(held)))


def check(park: Park) -> None:
    """Raise SettingError, before the first round, if held-out samples are too few for what the task promises."""
    task = park.dataset.task
    many = counted(park)
    if many is not None and _lacks(task, many):
        raise SettingError(promise(task, many), key="promise")


def _lacks(task: Task, many: int) -> bool:
    """Return whether ``many`` units are too few: U units promise at most U/(U + 1)."""
    return task.promised is not None and many * (1 - task.promised) < task.promised - 1e-9


def promise(task: Task, many: int) -> str:
    """Return the sentence that ``many`` units are too few."""
    asked = f"data.task.coverage = {task.promised:g}"
    most = f"{many / (many + 1):.4g}"
    if task.detects:
        asked = f"data.task.false_alarms_per_1000 = {1000 * (1 - (task.promised or 0)):g}"
        most = f"{1000 / (many + 1):.4g} per 1,000"
    needed = int(np.ceil((task.promised or 0) / (1 - (task.promised or 0)) - 1e-9))
    return (
        f"{asked} needs {needed:,} independent held-out units, and there are {many:,}, which can promise {most}. "
        "A unit is a whole recording or device if these are held out, or a block of windows with common rows, or a "
        "sample. Promise less, or hold out a larger share: [evaluate] validation."
    )


def of_device(park: Park, device: int) -> Indices:
    """Return the rows of a device's samples among the held-out ones whose scores count."""
    held = held_out(park)
    by = held.dataset.held_by
    return np.flatnonzero(_counts(held) & (by == device if by is not None else False))


def most(park: Park, device: int) -> int:
    """Return the greatest number of samples that a device can hold out; ten times its training samples if unknown."""
    by = held_out(park).dataset.held_by
    return 10 * int(park.sizes[device]) if by is None else int((by == device).sum())


def held_out(park: Park) -> Park:
    """Return the park whose test samples are the devices' held-out training samples."""
    return park if park.validating is None else park.validating
