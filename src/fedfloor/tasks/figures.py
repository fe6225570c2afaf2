"""Metrics: measures of a model's quality, each with name, unit and direction. A new one is an entry of ``KINDS``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError, nearest, require, shown
from fedfloor.tasks import detection, lives
from fedfloor.tasks.detection import Detection
from fedfloor.tasks.lives import Lives
from fedfloor.tasks.rankings import Counts as Counts
from fedfloor.tasks.rankings import Ranking
from fedfloor.tasks.tested import TestedSamples

NO_LIFE = 1e30  # limit of NASA's score: a sample with an error of 690, or targets that are no remaining lives
STEPS = tuple(step / 100 for step in (*range(5, 95, 5), *range(95, 100)))  # targets for a share, from the easiest
OWN = "units of the target"
ROUNDING = 1e-6  # relative to the largest number, in single precision
NATS = tuple(value * 10.0**power for power in range(3, -7, -1) for value in (5, 2, 1))  # targets for a loss
HALVES = tuple(value / 2 * 10.0**power for power in range(6, -7, -1) for value in range(19, 1, -1))  # for other numbers
AN = re.compile(r"[aAiIoO]|[FR]\d|RMSE|MAE")  # beginnings of names with the article "an"


@dataclass(frozen=True, eq=False)
class Errors:
    """True and predicted numbers of samples.

    Args:
        true: float64 [n, T], the true numbers.
        predicted: float64 [n, T, L]: the prediction in the middle, its interval at both ends; L = 1 without an
            interval.
        cap: the limit to which true values are reduced; None without a limit.
        naive: for each target, the mean absolute error of repeated values in training; empty if there is no order.
        names: the names of the targets, or of the forecast sensors, each with the same number of targets.
        unit: the unit of the targets.
        levels: the L levels of quantiles; empty without an interval.
        edges: the edges between ranges of the first target.
    """

    true: NDArray[np.float64]
    predicted: NDArray[np.float64]
    cap: float | None = None
    naive: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    unit: str = ""
    levels: tuple[float, ...] = ()
    edges: tuple[float, ...] = ()

    @cached_property
    def wanted(self) -> NDArray[np.float64]:
        """The true numbers [n, T], reduced to the cap."""
        return self.true if self.cap is None else np.minimum(self.true, self.cap)

    @cached_property
    def away(self) -> NDArray[np.float64]:
        """The errors d = predicted − true, [n, T]."""
        return self.predicted[:, :, self.predicted.shape[2] // 2] - self.wanted


@dataclass(frozen=True, eq=False)
class Predictions:
    """A model's predictions for the test samples, from which metrics are computed.

    Args:
        table: int64 [F, F], the number of samples with class i (row) predicted as class j (column).
        loss: the mean loss, in nats for a classification.
        rankings: class → ranking by the log-odds of the class, for the classes used by the metric.
        errors: the errors of a regression.
        detection: the detection of anomalies: scores and alarms in the order of time.
        lives: observed lives beside predicted survival curves.
        samples: the single samples, for a metric that reads them.
    """

    table: Counts
    loss: float
    rankings: Mapping[int, Ranking] = field(default_factory=dict)
    errors: Errors | None = None
    detection: Detection | None = None
    lives: Lives | None = None
    samples: TestedSamples | None = None


Value = Callable[[Predictions, int], float | None]


@dataclass(frozen=True)
class Kind:
    """A kind of metric, an entry of :data:`KINDS`.

    Args:
        name: the name, as written.
        value: (predictions of the test samples, index of the class) → the metric; None if it is undefined.
        of_class: whether it applies to all classes, to a named class, or to either.
        unit: ``"share"``, in [0, 1], ``"units of the target"``, or any other, such as ``"nats"``.
        better: the direction of improvement.
        column: its column in the ledger, if every run has it.
        ranking: whether it depends on the order of scores.
        each: whether it is one's own, computed from the single samples.
        tasks: the kinds of task to which it applies; all if empty.
        shown: additional kinds of task whose runs always record it.
    """

    name: str
    value: Value
    of_class: Literal["all", "one", "either"] = "all"
    unit: str = "share"
    better: Literal["higher", "lower"] = "higher"
    column: str = ""
    ranking: bool = False
    each: bool = False
    tasks: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()

    @property
    def of_table(self) -> bool:
        """Whether it follows from the numbers of samples by true and predicted class."""
        return not (self.ranking or self.each or self.tasks)


def _accuracy(tested: Predictions, _: int) -> float:
    return float(np.trace(tested.table) / tested.table.sum())


def recalls(table: Counts) -> NDArray[np.float64]:
    """Return float64 [F], the share of each class's samples predicted correctly; NaN for a class without samples."""
    of_class = table.sum(axis=1)
    share = np.full(len(table), np.nan)
    np.divide(np.diag(table), of_class, out=share, where=of_class > 0)
    return share


def _recall(tested: Predictions, label: int) -> float | None:
    share = float(recalls(tested.table)[label])
    return None if math.isnan(share) else share


def _precision(tested: Predictions, label: int) -> float:
    taken = tested.table[:, label].sum()
    return float(tested.table[label, label] / taken) if taken else 0.0


def _f1(tested: Predictions, label: int) -> float | None:
    share = float(f1s(tested.table)[label])
    return None if math.isnan(share) else share


def f1s(table: Counts) -> NDArray[np.float64]:
    """Return float64 [F], F1 = 2·TP / (2·TP + FP + FN); NaN for a class that neither occurs nor is predicted."""
    both = table.sum(axis=0) + table.sum(axis=1)
    share = np.full(len(table), np.nan)
    np.divide(2 * np.diag(table), both, out=share, where=both > 0)
    return share


def macro_f1(table: Counts) -> float:
    """Return the mean of F1 = 2·TP / (2·TP + FP + FN) over the classes that occur or are predicted.

    Args:
        table: int64 [F, F], rows are true classes, columns predicted ones.

    >>> round(macro_f1(np.array([[1, 1], [0, 1]])), 4)
    0.6667
    """
    scores = f1s(table)
    return float(scores[~np.isnan(scores)].mean())


def _ranked(read: Callable[[Ranking], float | None]) -> Value:
    def value(tested: Predictions, _: int) -> float | None:
        known = [figure for rank in tested.rankings.values() if (figure := read(rank)) is not None]
        return sum(known) / len(known) if known else None

    return value


def _of_errors(read: Callable[[Errors], float | None]) -> Value:
    return lambda tested, _: read(tested.errors) if tested.errors is not None and len(tested.errors.true) else None


def _of_detection(read: Callable[[Detection], float | None]) -> Value:
    return lambda tested, _: None if tested.detection is None else read(tested.detection)


def _of_lives(read: Callable[[Lives], float | None]) -> Value:
    return lambda tested, _: None if tested.lives is None else read(tested.lives)


def rmse(errors: Errors) -> float:
    """Return the mean over the targets of √(mean d²)."""
    return float(np.sqrt(np.square(errors.away).mean(axis=0)).mean())


def r_squared(errors: Errors) -> float | None:
    """Return the mean of 1 − Σd²/Σ(y − ȳ)² over the targets that vary; None if all are constant.

    >>> r_squared(Errors(np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([[[1.0], [6.0]], [[2.0], [6.0]]])))
    0.5
    """
    varies = np.ptp(errors.wanted, axis=0) > 0
    wanted = errors.wanted[:, varies]
    away = errors.away[:, varies]
    spread = np.square(wanted - wanted.mean(axis=0)).sum(axis=0)
    return float((1 - np.square(away).sum(axis=0) / spread).mean()) if varies.any() else None


def nasa_score(errors: Errors) -> float:
    """Return Σ exp(−d/13) − 1 over d < 0, exp(d/10) − 1 over the others; ∞ beyond :data:`NO_LIFE`.

    Saxena et al., PHM 2008.

    >>> round(nasa_score(Errors(np.array([[10.0], [13.0]]), np.array([[[20.0]], [[0.0]]]))), 9)  # 2(e − 1)
    3.436563657
    """
    with np.errstate(over="ignore"):
        score = float(np.expm1(np.where(errors.away < 0, -errors.away / 13, errors.away / 10)).sum())
    return score if score <= NO_LIFE else math.inf


def coverage(errors: Errors) -> float | None:
    """Return the share of true numbers within the predicted interval; None without intervals.

    An interval that ends at a number, such as the cap, contains it regardless of rounding in single precision.

    >>> coverage(Errors(np.array([[125.0]]), np.array([[[90.0, 120.0, 124.99999]]])))
    1.0
    """
    slack = ROUNDING * np.abs(errors.wanted).max(axis=0, initial=0.0)
    low = errors.predicted[:, :, 0] - slack
    high = errors.predicted[:, :, -1] + slack
    inside = (low <= errors.wanted) & (errors.wanted <= high)
    return float(inside.mean()) if errors.predicted.shape[2] > 1 else None


def mase(errors: Errors) -> float | None:
    """Return the mean over the targets of mean |d| divided by the naive error; None without naive errors.

    >>> mase(Errors(np.array([[3.0, 5.0]]), np.array([[[4.0], [9.0]]]), naive=(2.0, 4.0)))
    0.75
    """
    each = np.abs(errors.away).mean(axis=0)
    return float((each / np.array(errors.naive)).mean()) if errors.naive else None


def _interval(errors: Errors) -> float | None:
    many = errors.predicted.shape[2]
    return float((errors.predicted[:, :, -1] - errors.predicted[:, :, 0]).mean()) if many > 1 else None


def _uncapped(errors: Errors) -> float:
    return rmse(replace(errors, cap=None))


NUMBERS = ("regression", "forecasting")
ODD = ("reconstruction",)
LASTING = ("survival",)
RECONSTRUCTION_ERROR = "reconstruction error"
FALSE_ALARMS = "false alarms"
MISSED = "missed"
KINDS = (
    Kind("accuracy", _accuracy, column="accuracy"),
    Kind("loss", lambda tested, _: tested.loss, unit="nats", better="lower", column="loss"),
    Kind("macro-F1", lambda tested, _: macro_f1(tested.table), column="macro_f1"),
    Kind("balanced accuracy", lambda tested, _: float(np.nanmean(recalls(tested.table)))),
    Kind("recall", _recall, "one"),
    Kind("precision", _precision, "one"),
    Kind("F1", _f1, "one"),
    Kind("AUROC", _ranked(lambda rank: rank.auroc), "either", ranking=True, shown=ODD),
    Kind("average precision", _ranked(lambda rank: rank.average_precision), "either", ranking=True, shown=ODD),
    Kind("VUS-PR", _of_detection(detection.vus_pr), tasks=ODD),
    Kind("anomaly F1", _of_detection(detection.f1), tasks=ODD),
    Kind(FALSE_ALARMS, _of_detection(detection.false_alarms), better="lower", tasks=ODD),
    Kind(MISSED, _of_detection(detection.missed), better="lower", tasks=ODD),
    Kind("NAB", _of_detection(detection.nab), unit="points", tasks=ODD),
    Kind(RECONSTRUCTION_ERROR, lambda tested, _: tested.loss, unit="variances", better="lower", tasks=ODD),
    Kind("MASE", _of_errors(mase), unit="naive errors", better="lower", tasks=("forecasting",)),
    Kind("RMSE", _of_errors(rmse), unit=OWN, better="lower", tasks=NUMBERS),
    Kind("MAE", _of_errors(lambda errors: float(np.abs(errors.away).mean())), unit=OWN, better="lower", tasks=NUMBERS),
    Kind("R2", _of_errors(r_squared), unit="", tasks=NUMBERS),
    Kind("NASA score", _of_errors(nasa_score), unit="points", better="lower", tasks=("regression",)),
    Kind("RMSE uncapped", _of_errors(_uncapped), unit=OWN, better="lower", tasks=("regression",)),
    Kind("coverage", _of_errors(coverage), tasks=NUMBERS),
    Kind("interval width", _of_errors(_interval), unit=OWN, better="lower", tasks=NUMBERS),
    Kind("concordance", _of_lives(lives.concordance), tasks=LASTING),
    Kind("integrated Brier score", _of_lives(lives.integrated_brier), better="lower", tasks=LASTING),
    Kind("calibration error", _of_lives(lives.calibration_error), better="lower", tasks=LASTING),
)


OF_LIVES = ("NASA score", "RMSE uncapped")
COLUMNS = tuple(kind.column for kind in KINDS if kind.column)


@dataclass(frozen=True)
class Figure:
    """A metric: a measure of a model's quality on the test data.

    Args:
        kind: the metric's entry in the list.
        of: the class to which it applies; "" for all classes.
        own: the target's unit, if the metric has this unit and the task sets it.
    """

    kind: Kind
    of: str = ""
    own: str = ""

    @property
    def name(self) -> str:
        """The name, such as ``"accuracy"`` or ``"recall of fault"``."""
        return f"{self.kind.name} of {self.of}" if self.of else self.kind.name

    def called(self, text: str) -> bool:
        """Return whether a text is the metric's name, regardless of case and of ``_`` or ``-`` for a blank."""
        return _plain(text) == _plain(self.name)

    @property
    def key(self) -> str:
        """The key in rows of JSON, such as ``"recall_of_fault"``."""
        return self.kind.column or self.name.replace(" ", "_")

    @property
    def share(self) -> bool:
        """Whether the metric lies in [0, 1]."""
        return self.kind.unit == "share"

    @property
    def phrase(self) -> str:
        """The name with its article, such as ``"an accuracy"``."""
        return f"{'an' if AN.match(self.name) else 'a'} {self.name}"

    @property
    def title(self) -> str:
        """The name at the beginning of a heading, such as ``"Accuracy"``."""
        return self.name[0].upper() + self.name[1:]

    @property
    def axis(self) -> str:
        """The name with its unit, for an axis."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def unit(self) -> str:
        """The unit for an axis; empty without a unit."""
        return "" if self.share else self.own or self.kind.unit

    def amount(self, value: str) -> str:
        """Return a value with the target's unit, if the metric has this unit.

        >>> named("RMSE").within("cycles").amount("13.4"), named("R2").amount("0.8")
        ('13.4 cycles', '0.8')
        """
        return f"{value} {self.own}" if self.own else value

    def within(self, unit: str) -> Figure:
        """Return the metric with the unit of a task's targets."""
        return replace(self, own=unit) if self.kind.unit == OWN else self

    def value(self, tested: Predictions, classes: Sequence[str]) -> float | None:
        """Return the value of the metric; None if it is undefined.

        Args:
            tested: the predictions of the test samples.
            classes: the names of the classes.
        """
        return self.kind.value(tested, classes.index(self.of) if self.of else -1)

    def scored(self, classes: Sequence[str]) -> list[int]:
        """Return the indices of the classes whose scores the metric reads; empty for most metrics."""
        if not (self.kind.ranking or self.kind.each):
            return []
        return [classes.index(self.of)] if self.of else list(range(len(classes)))

    def read(self, line: Any) -> float | None:
        """Return the metric in a ledger line or an evaluation, as an object or JSON; None if it is missing."""
        row = line if isinstance(line, Mapping) else {name: getattr(line, name, None) for name in (*COLUMNS, "figures")}
        value = row.get(self.kind.column) if self.kind.column else (row.get("figures") or {}).get(self.name)
        return None if value is None else float(value)

    def gain(self, value: float, other: float) -> float:
        """Return the advantage of a value over another; negative if it is worse.

        >>> named("NASA score").gain(math.inf, math.inf), named("RMSE").gain(2.0, 3.0)
        (0.0, 1.0)
        """
        if value == other:  # also where both are infinite
            return 0.0
        return value - other if self.kind.better == "higher" else other - value

    def worst(self, values: Iterable[float]) -> float:
        """Return the worst of several values."""
        return min(values) if self.kind.better == "higher" else max(values)

    def best(self, values: Iterable[float]) -> float:
        """Return the best of several values."""
        return max(values) if self.kind.better == "higher" else min(values)

    def reached(self, value: float, target: float) -> bool:
        """Return whether a value is as good as a target."""
        return self.gain(value, target) >= 0

    def round_target(self, reached: Iterable[float]) -> float | None:
        """Return the best round number that is no better than the best of several values; None if there is none."""
        best = max((self.gain(value, 0.0) for value in reached), default=-math.inf)
        every = NATS if self.kind.unit == "nats" else HALVES
        every = (*every, 0.0, *(-step for step in every)) if self.kind.each else every
        every = STEPS if self.share or not (self.kind.unit or self.kind.each) else every
        steps = [step for step in every if self.gain(step, 0.0) <= best]
        return self.best(steps) if steps else None

    def check_target(self, target: float, option: str) -> None:
        """Refuse a target that cannot be reached.

        Raises:
            SettingError: the target is not a share, or not a number above 0.
        """
        if self.kind.each and not self.share:
            require(math.isfinite(target), option, target, "a number, such as 40")
        elif self.share:
            require(0 < target <= 1, option, target, "a share, above 0 and at most 1, such as 0.8")
        else:
            require(0 < target < math.inf, option, target, "a number above 0, such as 0.5")


def named(text: str, option: str = "evaluate.headline") -> Figure:
    """Return the metric with a name, regardless of case and of ``_`` or ``-`` for a blank.

    Args:
        text: the name, such as ``"accuracy"``, ``"macro-F1"`` or ``"recall of fault"``.
        option: the setting with the name, for messages.

    Raises:
        SettingError: the metric does not exist, or its class is missing or superfluous.

    >>> named("Macro_F1").name, named("recall of fault").of, named("loss").kind.better
    ('macro-F1', 'fault', 'lower')
    """
    head, chosen, label = text.partition(" of ")
    names = {_plain(kind.name): kind for kind in KINDS}
    kind = names.get(_plain(head))
    if kind is None:
        hint = nearest(_plain(head), names)
        for plain, known in names.items():
            hint = hint.replace(f"'{plain}'", f"'{known.name}'")
        raise SettingError(
            f"{option} = {shown(text)}: unknown metric.{hint} Known: {', '.join(FIGURES)}.", key="metric"
        )
    if kind.of_class == "all" and chosen:
        raise SettingError(f"{option} = {shown(text)}: {kind.name} applies to all classes. Write '{kind.name}'.")
    if (kind.of_class == "one" or chosen) and not label.strip():
        raise SettingError(f"{option} = {shown(text)}: the class is missing. Write '{kind.name} of CLASS'.")
    return Figure(kind, label.strip())


def is_figure(text: str) -> bool:
    """Return whether a text begins with the name of a metric.

    >>> is_figure("recall of fault"), is_figure("seconds")
    (True, False)
    """
    return _plain(text.partition(" of ")[0]) in {_plain(kind.name) for kind in KINDS}


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", " ").replace("-", " ")


def _example(kind: Kind) -> str:
    return {"all": kind.name, "one": f"{kind.name} of CLASS", "either": f"{kind.name} [of CLASS]"}[kind.of_class]


def _meaning(kind: Kind) -> str:
    tasks = f", for {' and '.join(kind.tasks)}" if kind.tasks else ""
    return f"{kind.better} is better, {kind.unit or 'no unit'}{tasks}"


FIGURES = tuple(map(_example, KINDS))  # the notation of all metrics
METRICS = dict(zip(FIGURES, map(_meaning, KINDS), strict=True))  # with direction, unit and tasks
ACCURACY, LOSS, MACRO_F1 = (named(name) for name in ("accuracy", "loss", "macro-F1"))


def of_task(kind: str, *, lives: bool = True) -> tuple[Figure, ...]:
    """Return the metrics specific to a kind of task.

    Args:
        kind: the kind of the task.
        lives: whether its targets are remaining lives; :data:`OF_LIVES` apply only to them.
    """
    every = (entry for entry in KINDS if kind in (*entry.tasks, *entry.shown))
    return tuple(Figure(entry) for entry in every if lives or entry.name not in OF_LIVES)


ALWAYS = tuple(Figure(kind) for kind in KINDS if kind.column)  # in every run's ledger


def fits(figure: Figure, classes: Sequence[str], tests: Counts, task: str = "classification") -> None:
    """Refuse a headline metric of another task, of an unknown class, or of a class without test samples.

    ``tests``: int64 [F], the number of test samples of each class. ``task``: the kind of task.

    Raises:
        SettingError: the metric would be undefined.
    """
    setting = f"evaluate.headline = '{figure.name}'"
    if figure.kind.tasks and task not in figure.kind.tasks:
        known = ", ".join(_example(value) for value in KINDS if not value.tasks or task in value.tasks)
        raise SettingError(
            f"{setting}: it applies to tasks of the kind {' or '.join(figure.kind.tasks)}, and data.task is '{task}'. "
            f"Its metrics: {known}."
        )
    if figure.of and figure.of not in classes:
        known = ", ".join(classes[:20]) + (", …" if len(classes) > 20 else "")
        hint = nearest(figure.of, classes)
        raise SettingError(f"{setting}: no class has the name '{figure.of}'.{hint} Classes: {known}.")
    if figure.of and not tests[classes.index(figure.of)]:
        raise SettingError(
            f"{setting}: no test sample is of class '{figure.of}', so that the metric is undefined. Split the data "
            "another way, or choose another metric."
        )
    if figure.kind.ranking and int((tests > 0).sum()) < 2:
        raise SettingError(
            f"{setting}: all test samples have the same class, so that a ranking is undefined. Split the data another "
            "way, or choose another metric"
            + (": --set 'evaluate.headline=\"reconstruction error\"'." if task == "reconstruction" else ".")
        )
