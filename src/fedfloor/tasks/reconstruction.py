"""Reconstruction: unlabelled anomalies, detected as samples that a model of normal operation cannot reproduce."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from fedfloor.base.errors import require
from fedfloor.tasks.answer import Alarms, Answer
from fedfloor.tasks.detection import Detection
from fedfloor.tasks.figures import Counts, Predictions
from fedfloor.tasks.rankings import ranking
from fedfloor.tasks.task import Calibrate, Reduction, Task

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

CLASSES = ("normal", "anomaly")
# usual names of the class of normal operation
NORMAL = ("normal", "0", "0.0", "ok", "no", "none", "false", "good", "healthy")
UNLABELLED = ("", "na", "n/a", "nan", "null", "-", "?")  # labels that state neither


@dataclass(frozen=True)
class Reconstruction(Task):
    """The reconstruction of samples: a network's residual r = x̂ − x is small for normal operation, its training data.

    The score of a sample is the mean of r² over its numbers, or over those of a window's last row; a score above a
    threshold is an alarm. Labels are only used for evaluation and to leave out training samples with an abnormal row.
    The threshold is a quantile of the scores of held-out normal samples (``[evaluate] validation``): devices count
    scores in the bins of a histogram, then in a subdivision of the bin with the quantile, so that no score leaves a
    device. The bins of samples are normal and anomaly.

    Args:
        normal: the name of the normal class, if it is not a usual one such as ``normal``, ``0``, ``ok``, ``no``,
            ``false``, ``good``.
        abnormal: whether training samples with an abnormal row are left ``out`` or ``used``.
        score: the scored part of a window: the whole ``window``, or its ``last`` row.
        quantile: the share of normal samples with scores up to the threshold.
        false_alarms_per_hour: the rate of false alarms instead of a quantile, which is then 1 − rate·period_s/3600.
        period_s: the time between samples, in s.
        false_alarms_per_1000: the promised number of false alarms among 1,000 new normal samples instead of a quantile:
            see :mod:`fedfloor.engine.calibrate`.
        calibrate: whether the threshold is that of the whole ``park``, or of each ``device``, drawn towards the park's.
        threshold: the score above which there is an alarm; computed from held-out samples at evaluations.
        rows: the number of rows of a window; derived from the data.
    """

    headline: ClassVar[str] = "AUROC"
    labelled: ClassVar[bool] = False
    offers: ClassVar[str] = "trains on normal operation, and scores differences from it"
    detects: ClassVar[bool] = True
    promises: ClassVar[tuple[str, ...]] = (
        "quantile", "false_alarms_per_hour", "period_s", "false_alarms_per_1000", "calibrate",
    )  # fmt: skip
    trained: ClassVar[tuple[str, ...]] = ("score", "rows")
    of_thresholds: ClassVar[str] = "false alarms"

    kind: Literal["reconstruction"] = field(default="reconstruction", kw_only=True)
    normal: str | None = None
    abnormal: Literal["out", "used"] = "out"
    score: Literal["window", "last"] = "window"
    quantile: float = 0.99
    false_alarms_per_hour: float | None = None
    period_s: float | None = None
    false_alarms_per_1000: float | None = None
    calibrate: Calibrate = "park"
    threshold: float | None = None
    rows: int = 1

    def __post_init__(self) -> None:
        require(0.5 <= self.quantile < 1, "data.task.quantile", self.quantile, "a share from 0.5 to below 1")
        rate = self.false_alarms_per_hour
        period = self.period_s
        fits = rate is None or (period is not None and 0 < rate * period < 1800)
        wanted = "a number above 0, of at most half of the samples, together with data.task.period_s"
        require(fits, "data.task.false_alarms_per_hour", rate, wanted)
        require(period is None or 0 < period < math.inf, "data.task.period_s", period, "a number of seconds above 0")
        alarms = self.false_alarms_per_1000
        fits = alarms is None or (rate is None and 0 < alarms <= 500)
        wanted = "a number above 0, of at most 500, without data.task.false_alarms_per_hour"
        require(fits, "data.task.false_alarms_per_1000", alarms, wanted)

    @property
    def calibrates(self) -> bool:
        return True

    @property
    def apart(self) -> bool:
        return self.calibrate == "device"

    @property
    def share(self) -> float:
        """The share of normal samples without an alarm."""
        if self.promised is not None:
            return self.promised
        if self.false_alarms_per_hour is None or self.period_s is None:
            return self.quantile
        return 1 - self.false_alarms_per_hour * self.period_s / 3600

    @property
    def promised(self) -> float | None:
        return None if self.false_alarms_per_1000 is None else 1 - self.false_alarms_per_1000 / 1000

    @property
    def plain(self) -> tuple[str, ...]:
        return ("mean-abs-z",)

    def outputs(self, bins: int, targets: int, shape: tuple[int, ...]) -> int:
        return math.prod(shape)

    def around(self, module: nn.Module, classifier: str | None) -> tuple[nn.Module, str | None]:
        """Return the network with residuals x̂ − x as outputs, unless these are its outputs already (``residuals``)."""
        if getattr(module, "residuals", False):
            return module, classifier
        from fedfloor.tasks.residual import Residual

        return Residual(module), None if classifier is None else f"body.{classifier}"

    def spelled(self, labels: Sequence[str]) -> list[str]:
        """Return "normal" or "anomaly" for each label of a table, and "" for those that :func:`states_nothing`.

        >>> Reconstruction().spelled(["ok", "worn", "N/A", ""])
        ['normal', 'anomaly', '', '']
        """
        usual = NORMAL if self.normal is None else (self.normal.strip().lower(), CLASSES[0])
        return ["" if self.states_nothing(label) else CLASSES[label.strip().lower() not in usual] for label in labels]

    def states_nothing(self, label: str) -> bool:
        """Return whether a label states neither normal operation nor an anomaly, such as an empty cell or ``NA``."""
        word = label.strip().lower()
        return word in UNLABELLED and (self.normal is None or word != self.normal.strip().lower())

    def losses(self, out: Tensor, y: Tensor, reduction: Reduction = "none") -> Tensor:
        """Return the mean squared residuals of samples [n], or their mean or sum."""
        losses = out.square().mean(1)
        return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()

    def errors(self, out: Tensor) -> Tensor:
        """Return the scores [n] of residuals [n, D]: mean squares over the window, or over its last row."""
        if self.score == "last" and self.rows > 1:
            out = out.unflatten(1, (-1, self.rows))[:, :, -1]
        return out.square().mean(1)

    def strangeness(self, out: Tensor, y: Tensor) -> Tensor:
        """Return the scores [n, 1] of :meth:`errors`."""
        return self.errors(out)[:, None]

    def predicted(self, out: Tensor) -> Tensor:
        """Return 1 for an alarm, otherwise 0, [n]; NaN is an alarm, and without a threshold there is none."""
        limit = math.inf if self.threshold is None else self.threshold
        return (~(self.errors(out) <= limit)).long()

    def hits(self, out: Tensor, y: Tensor) -> Tensor:
        return self.predicted(out) == y

    def scores(self, out: Tensor, y: Tensor, bins: Sequence[int]) -> Tensor:
        """Return scores as multiples of the threshold, comparable between models, and alarms, [n, 2]."""
        import torch

        return torch.stack([self.errors(out) / (self.threshold or 1.0), self.predicted(out)], 1).float()

    def answer(self, out: Tensor, x: Tensor) -> Alarms:
        return Alarms(self.errors(out) / (self.threshold or 1.0), self.threshold is not None)

    def check_fitted(self, bins: int, columns: Sequence[str]) -> None:
        if self.threshold is not None and not 0 < self.threshold < math.inf:
            raise ValueError("a threshold that is not a number above 0")

    def judged(
        self, table: Counts, loss: float, y: NDArray[Any], scores: NDArray[Any], scored: Sequence[int]
    ) -> Predictions:  # fmt: skip
        """Return the confusion table, the loss, the ranking by score, and scores and alarms as one recording."""
        score = scores[:, 0].astype(np.float64)
        odd = y > 0
        detection = Detection(odd, score, scores[:, 1] > 0, np.zeros(len(y), np.int64), self.rows)
        return Predictions(table, loss, {1: ranking(score, odd)}, detection=detection)

    def judge(self, answer: Answer, target: NDArray[Any]) -> Predictions:
        """Return predictions for metrics from scores of a recording and known labels [n, 1], 1 for an anomaly."""
        score = np.asarray(answer.parts()["score"], np.float64)
        odd = target[:, 0] > 0
        alarm = ~(score <= 1) & (self.threshold is not None)
        found = Detection(odd, score, alarm, np.zeros(len(odd), np.int64), self.rows)
        return Predictions(np.zeros((2, 2), np.int64), math.nan, {1: ranking(score, odd)}, detection=found)

    def calibrated(self, thresholds: Sequence[float]) -> Reconstruction:
        """Return the task with a threshold; 0 (if all residuals are 0) is replaced by the smallest positive number."""
        return replace(self, threshold=max(thresholds[0], float(np.finfo(np.float32).tiny)))

    def uncalibrated(self, asked: Task) -> Reconstruction:
        promised = {name: getattr(asked, name) for name in self.promises}
        return replace(self, threshold=None, **promised)

    def of_devices(self) -> Reconstruction:
        return replace(self, calibrate="device")

    def inside(self, value: float | None) -> float | None:
        return None if value is None else 1 - value
