"""Reconstruction: anomalies without labels, as samples that a model of normal operation cannot reproduce."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from fedfloor.detection import Detection
from fedfloor.errors import require
from fedfloor.figures import Counts, Predictions, ranking
from fedfloor.tasks.answer import Alarms, Answer
from fedfloor.tasks.task import Reduction, Task

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

CLASSES = ("normal", "anomaly")
NORMAL = ("normal", "0", "0.0", "ok", "no", "none", "false")  # names that the class of normal operation goes by


@dataclass(frozen=True)
class Reconstruction(Task):
    """The sample itself: a network's residual r = x̂ − x is small on normal operation, which it learnt to reproduce.

    The score of a sample is the mean of r² over its numbers, or those of a window's last row; an alarm is a score above
    a threshold. Labels train nothing: where there are any, they judge, and training samples with an abnormal row are
    left out. The threshold is a quantile of the scores of normal samples that devices hold out of training
    (``[evaluate] validation``): devices count scores in the bins of a histogram, and the next counts divide the bin
    that the quantile lies in, so that no score leaves a device. The bins are normal and anomaly.

    Args:
        normal: name of the normal class, where it is none of ``normal``, ``0``, ``ok``, ``no``, ``false``.
        abnormal: whether training samples with an abnormal row are left ``out`` or ``used``.
        score: the part that is scored: a ``window``, or its ``last`` row.
        quantile: share of normal samples whose score is at most the threshold.
        false_alarms_per_hour: sets the quantile in place of a share: 1 − rate·period/3600, with ``period_s``.
        period_s: seconds from a sample to the next.
        threshold: the score above which there is an alarm; computed from held-out samples when the model is
            evaluated.
        rows: the number of rows of a window; taken from the data.
    """

    headline: ClassVar[str] = "AUROC"
    labelled: ClassVar[bool] = False
    offers: ClassVar[str] = "learns normal operation, and scores differences from it"
    calibrates: ClassVar[bool] = True

    kind: Literal["reconstruction"] = "reconstruction"
    normal: str | None = None
    abnormal: Literal["out", "used"] = "out"
    score: Literal["window", "last"] = "window"
    quantile: float = 0.99
    false_alarms_per_hour: float | None = None
    period_s: float | None = None
    threshold: float | None = None
    rows: int = 1

    def __post_init__(self) -> None:
        require(0.5 <= self.quantile < 1, "data.task.quantile", self.quantile, "a share from 0.5 to below 1")
        rate, period = self.false_alarms_per_hour, self.period_s
        fits = rate is None or (period is not None and 0 < rate * period < 1800)
        wanted = "a number above 0 with data.task.period_s beside it, of at most half of the samples"
        require(fits, "data.task.false_alarms_per_hour", rate, wanted)
        require(period is None or 0 < period < math.inf, "data.task.period_s", period, "a number of seconds above 0")

    @property
    def share(self) -> float:
        """The share of normal samples without an alarm."""
        if self.false_alarms_per_hour is None or self.period_s is None:
            return self.quantile
        return 1 - self.false_alarms_per_hour * self.period_s / 3600

    def outputs(self, bins: int, targets: int, shape: tuple[int, ...]) -> int:
        return math.prod(shape)

    def around(self, module: nn.Module, classifier: str | None) -> tuple[nn.Module, str | None]:
        """Return the network with its residuals x̂ − x as outputs, unless it has them already (``residuals``)."""
        if getattr(module, "residuals", False):
            return module, classifier
        from fedfloor.tasks.residual import Residual

        return Residual(module), None if classifier is None else f"body.{classifier}"

    def spelled(self, labels: Sequence[str]) -> list[str]:
        """Return normal or anomaly for each text of a table; an empty text stays."""
        usual = NORMAL if self.normal is None else (self.normal.strip().lower(), CLASSES[0])
        return [label and CLASSES[label.strip().lower() not in usual] for label in labels]

    def losses(self, out: Tensor, y: Tensor, reduction: Reduction = "none") -> Tensor:
        """Return the mean squared residuals of samples, [n]."""
        losses = out.square().mean(1)
        return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()

    def errors(self, out: Tensor) -> Tensor:
        """Return the scores of residuals [n, D], [n]: means of squares of the window, or of its last row."""
        if self.score == "last" and self.rows > 1:
            out = out.unflatten(1, (-1, self.rows))[:, :, -1]
        return out.square().mean(1)

    def predicted(self, out: Tensor) -> Tensor:
        """Return 1 for an alarm, otherwise 0: none without a threshold; a score of NaN is an alarm."""
        limit = math.inf if self.threshold is None else self.threshold
        return (~(self.errors(out) <= limit)).long()

    def hits(self, out: Tensor, y: Tensor) -> Tensor:
        return self.predicted(out) == y

    def scores(self, out: Tensor, y: Tensor, bins: Sequence[int]) -> Tensor:
        """Return the scores in multiples of the threshold, comparable between models, and alarms, [n, 2]."""
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
        """Return the confusion table, the loss, the ranking by the score, and scores and alarms of one recording."""
        score, odd = scores[:, 0].astype(np.float64), y > 0
        detection = Detection(odd, score, scores[:, 1] > 0, np.zeros(len(y), np.int64), self.rows)
        return Predictions(table, loss, {1: ranking(score, odd)}, detection=detection)

    def judge(self, answer: Answer, target: NDArray[Any]) -> Predictions:
        """Return the figures' sums of scores whose labels [n, 1] are known, 1 of an anomaly, of one recording."""
        score, odd = np.asarray(answer.parts()["score"], np.float64), target[:, 0] > 0
        alarm = ~(score <= 1) & (self.threshold is not None)
        found = Detection(odd, score, alarm, np.zeros(len(odd), np.int64), self.rows)
        return Predictions(np.zeros((2, 2), np.int64), math.nan, {1: ranking(score, odd)}, detection=found)

    def calibrated(self, threshold: float) -> Reconstruction:
        """Return the task with a threshold; a threshold of 0 (all residuals 0) becomes the smallest number."""
        return replace(self, threshold=max(threshold, float(np.finfo(np.float32).tiny)))
