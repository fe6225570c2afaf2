"""Drift detection on a device, in inputs and confidence of its model: cumulative sums over blocks of samples."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import regular
from fedfloor.base.errors import MALFORMED
from fedfloor.base.strict import json_text

Floats = NDArray[np.float64]
Levels = tuple[tuple[float, ...], tuple[float, ...]]  # (mean, deviation) of each sensor
LEARN = 20  # blocks after a release that define the normal mean and deviation
BLOCK = 20  # samples of a block
SHIFT = 1.0  # k, in deviations
LEVEL = 4.0  # h, in deviations
TRAINING = 3.0  # deviations of the training samples beyond which a level counts as new
MISSING = 0.5  # share of missing values in a block from which a sensor counts as missing


@dataclass(frozen=True)
class Cusum:
    """The cumulative sums of several quantities, C ← max(0, C + |z − m|/s − e − k), in alarm above h.

    m and s are a quantity's mean and standard deviation over its first :data:`LEARN` known blocks; e = √(2/π) is the
    mean of |z| of a normal quantity. C is at most 2h, so that an alarm ends soon after its cause. Independent normal
    blocks begin an alarm in about one of 2,800, as m and s are estimates from few blocks (benchmarks/drift.py);
    correlated blocks of a real machine in more. Page, Biometrika 41 (1954).

    Args:
        blocks: number of blocks so far.
        learnt: number of blocks in m and s, by quantity.
        mean, scatter: m and the sum of squared deviations over these blocks, by Welford's recursion.
        sums: C of each quantity.
    """

    blocks: int = 0
    learnt: tuple[int, ...] = ()
    mean: tuple[float, ...] = ()
    scatter: tuple[float, ...] = ()
    sums: tuple[float, ...] = ()

    def after(self, figures: Floats, shift: float = math.sqrt(2 / math.pi) + SHIFT) -> Cusum:
        """Return the state after a block; a quantity that is NaN keeps its state.

        Args:
            shift: e + k, in deviations.
        """
        n = len(figures)
        learnt = np.array(self.learnt or (0,) * n, np.int64)
        mean, scatter, sums = (np.array(part or (0.0,) * n) for part in (self.mean, self.scatter, self.sums))
        known = np.isfinite(figures)
        away = np.where(known, figures - mean, 0.0)
        learns = known & (learnt < LEARN)
        judged = known & (learnt == LEARN)
        deviation = np.sqrt(scatter / (LEARN - 1))
        z = np.abs(away) / np.maximum(deviation, 1e-9 * np.maximum(1.0, np.abs(mean)))
        grown = np.clip(sums + z - shift, 0.0, 2 * LEVEL)
        learnt = learnt + learns
        mean = mean + np.where(learns, away / np.maximum(learnt, 1), 0.0)
        scatter = scatter + np.where(learns, away * (figures - mean), 0.0)
        parts = (learnt, mean, scatter, np.where(judged, grown, sums))
        return Cusum(self.blocks + 1, *(tuple(part.tolist()) for part in parts))

    @property
    def alarms(self) -> list[int]:
        """The indices of the quantities in alarm."""
        return [i for i, value in enumerate(self.sums) if value > LEVEL]


@dataclass(frozen=True)
class Watch:
    """The drift detector of one device and model version.

    Args:
        version: version of the model.
        inputs: sums of each sensor's mean in a block (of pictures: brightness and its spread, by channel).
        model: sum of the model's mean uncertainty in a block: 1 − the highest class probability, or the logarithm of
            the reconstruction's score.
        missing: sensors that are missing in the last block, but not in the first.
        absent: sensors that are missing in the first block.
        training: sums of the quantities in ``inputs`` with the mean and deviation of the training samples, beyond
            :data:`TRAINING`; empty if these are unknown.
        rest: values of the samples after the last full block.
    """

    version: int
    inputs: Cusum = Cusum()
    model: Cusum = Cusum()
    missing: tuple[int, ...] = ()
    absent: tuple[int, ...] | None = None
    training: Cusum = Cusum()
    rest: tuple[tuple[float, ...], ...] = field(default=(), repr=False)

    def after(self, x: NDArray[Any], doubt: Sequence[float]) -> Watch:
        """Return the detector after samples x [n, …] and the model's uncertainty of each, NaN if undefined."""
        rows = np.column_stack([features(x), np.asarray(doubt, np.float64).reshape(len(x), 1)])
        values = np.concatenate([np.array(self.rest).reshape(-1, rows.shape[1]), rows])
        watch = self
        for first in range(0, len(values) - BLOCK + 1, BLOCK):
            watch = watch._block(values[first : first + BLOCK])
        left = values[len(values) - len(values) % BLOCK :]
        return replace(watch, rest=tuple(map(tuple, left.tolist())))

    def _block(self, values: Floats) -> Watch:
        gone = np.isnan(values[:, :-1]).mean(0) >= MISSING
        absent = tuple(np.flatnonzero(gone).tolist()) if self.absent is None else self.absent
        known = np.where(np.isnan(values), 0.0, 1.0).sum(0)
        means = np.where(known > 0, np.nansum(values, axis=0) / np.maximum(known, 1), np.nan)
        return replace(
            self, inputs=self.inputs.after(means[:-1]), model=self.model.after(means[-1:]), absent=absent,
            missing=tuple(i for i in np.flatnonzero(gone).tolist() if i not in absent),
            training=self.training.after(means[:-1], TRAINING) if self.training.learnt else self.training,
        )  # fmt: skip

    def words(self, columns: Sequence[str]) -> list[str]:
        """Return the quantities in alarm as texts: ``temperature``, ``flow is missing``, ``the model's doubt``."""
        names = columns or [f"channel {i}" for i in range(len(self.inputs.sums))]
        drifted = [names[i] for i in sorted({*self.inputs.alarms, *self.training.alarms}) if i < len(names)]
        gone = [f"{names[i]} is missing" for i in self.missing if i < len(names)]
        return [*drifted, *gone, *(["the model's doubt"] if self.model.alarms else [])]


def features(x: NDArray[Any]) -> Floats:
    """Return the monitored quantities of samples, float64 [n, F].

    For sensors this is the newest row of a window, [n, C, L] → [n, C]; for pictures mean and deviation of each channel.

    >>> features(np.array([[[1.0, 2.0], [3.0, np.nan]]])).tolist()
    [[2.0, nan]]
    """
    if x.ndim == 4:
        flat = x.reshape(*x.shape[:2], -1).astype(np.float64)
        return np.concatenate([flat.mean(2), flat.std(2)], axis=1)
    return (x if x.ndim == 2 else x[..., -1]).astype(np.float64)


def doubt(answer: Mapping[str, Any]) -> float:
    """Return a model's uncertainty of an answer; NaN if the answer has neither probability nor score.

    >>> doubt({"class": "ok", "probability": 0.75}), round(doubt({"score": 1.0}), 6), doubt({"predicted": {}})
    (0.25, 0.0, nan)
    """
    if "probability" in answer:
        return 1.0 - float(answer["probability"])
    score = answer.get("score")
    return math.log(max(float(score), 1e-12)) if score is not None else math.nan


def reference(levels: Levels | None, sensors: int) -> Cusum:
    """Return cumulative sums with a mean and deviation known before the first block.

    Raises:
        ValueError: their number is not ``sensors``, a value is not finite, or a deviation is not positive.
    """
    if levels is None:
        return Cusum()
    mean, deviation = map(np.array, levels)
    if not len(mean) == len(deviation) == sensors or not np.isfinite([mean, deviation]).all() or min(deviation) <= 0:
        raise ValueError("the levels of training do not match the sensors")
    scatter = deviation**2 * (LEARN - 1)
    return Cusum(0, (LEARN,) * sensors, tuple(mean.tolist()), tuple(scatter.tolist()), (0.0,) * sensors)


def load(path: Path, version: int, training: Cusum | None = None) -> Watch:
    """Return the stored detector of a version, or a new one.

    Args:
        training: the reference of a new detector; see :func:`reference`.
    """
    fresh = Watch(version, training=training or Cusum())
    try:
        kept = json.loads(regular.read_text(path))
        if kept["version"] != version:
            return fresh
        inputs, model, known = (
            Cusum(
                int(part["blocks"]), tuple(map(int, part["learnt"])),
                *(tuple(map(float, part[name])) for name in ("mean", "scatter", "sums")),
            )
            for part in (kept["inputs"], kept["model"], kept["training"])
        )  # fmt: skip
        absent = None if kept["absent"] is None else tuple(map(int, kept["absent"]))
        return Watch(version, inputs, model, tuple(map(int, kept["missing"])), absent, known)
    except (OSError, *MALFORMED):
        return fresh


def keep(watch: Watch, path: Path) -> None:
    """Write a detector atomically, without the samples after the last full block."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(json_text(asdict(replace(watch, rest=()))), encoding="utf-8")
    os.replace(part, path)
