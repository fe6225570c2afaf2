"""Decisions on one important class: a threshold and a temperature, chosen on validation data and saved with the model.

The threshold t applies to the probability p of the positive class: a sample is positive if p ≥ t, else it belongs to
the likeliest of the other classes.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.checking import settle
from fedfloor.base.errors import SettingError, nearest, require

Floats = NDArray[np.floating[Any]]
FEW = 10  # least number of positives, and of negatives, in the validation data; with fewer a threshold is mostly chance
# the temperatures between which the best is searched
COLDEST = 0.05
HOTTEST = 20.0


@dataclass(frozen=True)
class Cost:
    """The ``cost`` rule: the costs of a missed positive sample and of a false alarm."""

    missed: float
    false_alarm: float = 1.0

    def __post_init__(self) -> None:
        for name in ("missed", "false_alarm"):
            value = getattr(self, name)
            require(0 < value < math.inf, f"decide.by.cost.{name}", value, "a number above 0")


@dataclass(frozen=True)
class By:
    """The rule that chooses a threshold; exactly one of the first four settings is given.

    Args:
        cost: the threshold with the least missed·FN + false_alarm·FP.
        recall: the highest threshold whose recall TP/(TP + FN) is at least this.
        precision: the largest recall among thresholds whose precision TP/(TP + FP) is at least this.
        false_alarms_per_hour: the largest recall among thresholds with at most this number of false alarms per hour;
            needs ``samples_per_hour``.
        samples_per_hour: the number of samples that a device's model receives in an hour of operation.
    """

    cost: Cost | None = None
    recall: float | None = None
    precision: float | None = None
    false_alarms_per_hour: float | None = None
    samples_per_hour: float | None = None

    def __post_init__(self) -> None:
        rules = ("cost", "recall", "precision", "false_alarms_per_hour")
        given = [name for name in rules if getattr(self, name) is not None]
        if len(given) != 1:
            raise SettingError(
                f"decide.by has {' and '.join(given) or 'nothing'}: give one of {', '.join(rules)}, such as "
                'by = { cost = { missed = 20, false_alarm = 1 } }, or by = "f1".',
                key="decide.by",
            )
        for name in ("recall", "precision"):
            value = getattr(self, name)
            require(value is None or 0 < value <= 1, f"decide.by.{name}", value, "a share, above 0 and at most 1")
        alarms = self.false_alarms_per_hour
        rate = self.samples_per_hour
        sound = alarms is None or 0 <= alarms < math.inf
        require(sound, "decide.by.false_alarms_per_hour", alarms, "a number of at least 0")
        require(rate is None or 0 < rate < math.inf, "decide.by.samples_per_hour", rate, "a number above 0")
        if (alarms is None) != (rate is None):
            raise SettingError(
                "decide.by: false_alarms_per_hour and samples_per_hour belong together. How many samples does a device "
                "give the model in an hour? One a second is samples_per_hour = 3600."
            )

    @property
    def words(self) -> str:
        """The rule in words.

        >>> By(recall=0.9).words
        'recall of at least 0.9'
        """
        if self.cost is not None:
            return f"cost: {self.cost.missed:g} for one that is missed, {self.cost.false_alarm:g} for a false alarm"
        if self.false_alarms_per_hour is not None:
            rate = f"{self.samples_per_hour:g} samples an hour"
            return f"at most {self.false_alarms_per_hour:g} false alarms an hour of {rate}"
        if self.recall is not None:
            return f"recall of at least {self.recall:g}"
        return f"precision of at least {self.precision:g}"


@dataclass(frozen=True)
class DecideSettings:
    """The ``[decide]`` table: the rule that turns probabilities into a decision. It needs held-out validation data.

    Args:
        positive: the important class, such as ``"fault"``; default: the likeliest class is the decision.
        by: the rule for the threshold; ``"f1"``, the default: the largest F1 = 2·TP/(2·TP + FP + FN).
        calibrate: ``"temperature"``: logits are divided by the T with the least cross-entropy on validation data.
    """

    positive: str | None = None
    _: KW_ONLY
    by: By | Literal["f1"] | None = None
    calibrate: Literal["temperature"] | None = None

    def __post_init__(self) -> None:
        settle(self, "decide")
        if self.by is not None and self.positive is None:
            raise SettingError(
                "decide.by chooses a threshold for a class: name it with decide.positive.", key="decide.by"
            )

    @property
    def asked(self) -> bool:
        """Whether a threshold or a temperature has to be chosen."""
        return self.positive is not None or self.calibrate is not None


@dataclass(frozen=True)
class Decision:
    """The rule that derives a decision from a model's logits.

    Args:
        temperature: T > 0: probabilities are softmax(logits/T).
        positive: the number of the positive class; None: the likeliest class is the decision.
        threshold: t, the least probability of a positive decision; above 1: never positive.
    """

    temperature: float = 1.0
    positive: int | None = None
    threshold: float = 1.0

    def __post_init__(self) -> None:
        sound = 0 < self.temperature < math.inf and 0 <= self.threshold <= 2
        if not sound or (self.positive is not None and self.positive < 0):
            raise ValueError(f"a decision by {self}")

    def of(self, probabilities: Floats) -> NDArray[np.int64]:
        """Return the class decided for each sample, int64 [n], given its probabilities [n, F].

        >>> Decision(positive=1, threshold=0.2).of(np.array([[0.7, 0.3, 0.0], [0.85, 0.1, 0.05]])).tolist()
        [1, 0]
        """
        if self.positive is None:
            likeliest: NDArray[np.int64] = probabilities.argmax(1)
            return likeliest
        others = np.array(probabilities)
        others[:, self.positive] = -1
        return np.where(probabilities[:, self.positive] >= self.threshold, self.positive, others.argmax(1))


def check(settings: DecideSettings, classes: tuple[str, ...], y: NDArray[np.int64] | None) -> str:
    """Check before the first round that a decision can be chosen; return a warning, or "".

    ``y``: int64 [n], the classes of the validation samples; None without held-out samples.
    """
    if not settings.asked:
        return ""
    if y is None:
        raise SettingError(
            "[decide] chooses on validation data, never on test data: hold some of the training samples out with "
            '[evaluate] on = "both" (metrics are still those of the test data).'
        )
    if settings.positive is None:
        return ""
    if settings.positive not in classes:
        raise SettingError(
            f"decide.positive = '{settings.positive}': no class has this name.{nearest(settings.positive, classes)} "
            f"Classes: {', '.join(classes[:20])}{', …' if len(classes) > 20 else ''}."
        )
    many = int((y == classes.index(settings.positive)).sum())
    if not 0 < many < len(y):
        raise SettingError(
            f"decide.positive = '{settings.positive}': {many} of {len(y)} validation samples are positive. A threshold "
            "needs positive and other samples: raise [evaluate] validation, or split the data another way."
        )
    if min(many, len(y) - many) < FEW:
        return (
            f"decide: only {many} of {len(y)} validation samples are '{settings.positive}': the threshold will be "
            "mostly chance. Hold more out with [evaluate] validation."
        )
    return ""


def choose(
    settings: DecideSettings, logits: Floats, y: NDArray[np.int64], classes: tuple[str, ...]
) -> tuple[Decision, dict[str, Any]]:
    """Return the decision chosen by logits [n, F] and classes y [n] of validation samples, with its metrics on them."""
    heat = temperature(logits, y) if settings.calibrate else 1.0
    about: dict[str, Any] = {"samples": len(y)}
    if settings.calibrate:
        about |= {"loss_before": loss(logits, y, 1.0), "loss_after": loss(logits, y, heat)}
    if settings.positive is None:
        return Decision(heat), about
    positive = classes.index(settings.positive)
    by = settings.by
    scores = softmax(logits, heat)[:, positive]
    wanted = y == positive
    limit, kept = threshold(scores, wanted, by)
    decision = Decision(heat, positive, limit)
    about |= {
        "by": by.words if isinstance(by, By) else "the largest F1",
        "positives": int(wanted.sum()),
        **measured(scores >= limit, wanted),
    }
    return decision, about | ({} if kept else {"missed_rule": True})


def threshold(scores: Floats, wanted: NDArray[np.bool_], by: By | Literal["f1"] | None) -> tuple[float, bool]:
    """Return the threshold that a rule chooses, and whether it satisfies the rule.

    Candidates are the midpoints of neighbouring scores, so that rounding elsewhere changes no decision, as well as 0
    (always positive) and 2 (never). Of equally good candidates the highest is chosen.

    ``scores``: [n], the probability of the positive class. ``wanted``: bool [n], whether the sample is positive.
    ``by``: the rule; None: the largest F1.

    >>> threshold(np.array([0.9, 0.6, 0.4, 0.1]), np.array([True, False, True, False]), By(recall=1.0))
    (0.25, True)
    """
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order].astype(np.float64)
    hits = wanted[order]
    ends = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)  # the last sample of each distinct score
    right = np.append(0, np.cumsum(hits)[ends]).astype(np.float64)
    false = np.append(0, np.cumsum(~hits)[ends]).astype(np.float64)
    between = (ranked[ends[:-1]] + ranked[ends[:-1] + 1]) / 2
    limits = np.concatenate([[2.0], between, [0.0]])
    positives = float(wanted.sum())
    recall = right / positives
    with np.errstate(invalid="ignore"):
        precision = np.where(right + false > 0, right / np.maximum(1, right + false), 1.0)
    if not isinstance(by, By):
        return float(limits[np.argmax(2 * right / (right + false + positives))]), True
    if by.cost is not None:
        return float(limits[np.argmin(by.cost.missed * (positives - right) + by.cost.false_alarm * false)]), True
    if by.recall is not None:
        return float(limits[np.argmax(recall >= by.recall)]), True
    if by.false_alarms_per_hour is not None and by.samples_per_hour is not None:
        most = by.false_alarms_per_hour * len(scores) / by.samples_per_hour
        return float(limits[np.argmax(np.where(false <= most, recall, -1))]), True
    allowed = (precision >= (by.precision or 0)) & (right > 0)
    if not allowed.any():
        return float(limits[1 + np.argmax(precision[1:])]), False
    return float(limits[np.argmax(np.where(allowed, recall, -1))]), True


def measured(alarms: NDArray[np.bool_], wanted: NDArray[np.bool_]) -> dict[str, Any]:
    """Return recall, precision, F1 and counts as JSON; bool [n] each: decided positive, truly positive."""
    right, false, missed = (int(hits.sum()) for hits in (alarms & wanted, alarms & ~wanted, ~alarms & wanted))
    return {
        "recall": right / (right + missed) if right + missed else None,
        "precision": right / (right + false) if right + false else None,
        "f1": 2 * right / (2 * right + false + missed) if right + false + missed else None,
        "found": right, "missed": missed, "false_alarms": false,
    }  # fmt: skip


def softmax(logits: Floats, heat: float) -> Floats:
    """Return softmax(logits/T) [n, F] in double precision, T = ``heat``."""
    from scipy import special

    probabilities: Floats = special.softmax(np.asarray(logits, np.float64) / heat, axis=1)
    return probabilities


def loss(logits: Floats, y: NDArray[np.int64], heat: float) -> float:
    """Return the mean cross-entropy of softmax(logits/T), T = ``heat``."""
    from scipy.special import log_softmax

    return float(-log_softmax(np.asarray(logits, np.float64) / heat, axis=1)[np.arange(len(y)), y].mean())


def temperature(logits: Floats, y: NDArray[np.int64]) -> float:
    """Return the temperature T from 0.05 to 20 with the least mean cross-entropy of softmax(logits/T).

    The likeliest class stays the same. Guo et al., "On calibration of modern neural networks", ICML 2017,
    arXiv 1706.04599.
    """
    from scipy.optimize import minimize_scalar

    bounds = (math.log(COLDEST), math.log(HOTTEST))
    best = minimize_scalar(lambda z: loss(logits, y, math.exp(z)), bounds=bounds, method="bounded")
    return float(math.exp(best.x))
