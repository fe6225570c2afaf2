"""Metrics: measures of a model's quality, each with name, unit and direction. A new one is an entry of ``KINDS``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedfloor import detection
from fedfloor.detection import Detection
from fedfloor.errors import SettingError, nearest, require, shown

Counts = NDArray[np.int64]
Unit = Literal["share", "nats", "units of the target", "points", "naive errors", "variances", ""]
NO_LIFE = 1e30  # of NASA's score: one sample that is missed by 690, or targets that are no remaining lives
STEPS = tuple(step / 100 for step in (*range(5, 95, 5), *range(95, 100)))  # of a share, from the easiest
OWN: Unit = "units of the target"
ROUNDING = 1e-6  # of numbers in single precision, relative to the largest
NATS = tuple(value * 10.0**power for power in range(3, -7, -1) for value in (5, 2, 1))  # of a loss, from the easiest
HALVES = tuple(value / 2 * 10.0**power for power in range(6, -7, -1) for value in range(19, 1, -1))  # of other numbers
SPELT = ("F1", "RMSE", "R2", "MAE")  # names whose first letter is spoken with a vowel: "eff", "ar", "em"


@dataclass(frozen=True, eq=False)
class Ranking:
    """The ranking of a class's samples among the rest by a score.

    Args:
        own: int64 [B], the number of samples of the class have each distinct score, from the lowest.
        others: int64 [B], the number of other samples with each of them.
    """

    own: Counts
    others: Counts

    @property
    def auroc(self) -> float | None:
        """P(a sample of the class scores above one of the others) + ½ P(equal); None where either is missing."""
        pairs = int(self.own.sum()) * int(self.others.sum())
        below = np.cumsum(self.others) - self.others
        return float((self.own * (below + self.others / 2)).sum() / pairs) if pairs else None

    @property
    def average_precision(self) -> float | None:
        """Σ_t (R_t − R_t−1)·P_t over the distinct scores t from the highest, with recall R and precision P."""
        own, every = self.own[::-1], (self.own + self.others)[::-1]
        total = int(own.sum())
        return float((own * np.cumsum(own) / np.cumsum(every)).sum() / total) if total else None


def ranking(scores: NDArray[np.floating[Any]], own: NDArray[np.bool_]) -> Ranking:
    """Return the ranking by a score.

    Args:
        scores: [n], higher where a sample looks more like the class.
        own: bool [n], whether a sample is of the class.

    >>> found = ranking(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
    >>> found.auroc, round(found.average_precision, 4)
    (0.75, 0.8333)
    """
    distinct, at = np.unique(scores, return_inverse=True)
    counts = [np.bincount(at[label], minlength=len(distinct)) for label in (own, ~own)]
    return Ranking(*counts)


@dataclass(frozen=True, eq=False)
class Errors:
    """True numbers and predicted ones.

    Args:
        true: float64 [n, T].
        predicted: float64 [n, T, L]: the prediction is in the middle, its interval at both ends; L = 1 without one.
        cap: true values above it count as the cap; None: no cap.
        naive: of each target, the mean absolute error of repeating a value in training; empty where there is no order.
        names: the names of the targets, or of sensors whose rows ahead they are, as many for each.
        unit: the unit of the targets.
        levels: L quantiles that were learnt; empty where there is no interval.
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
        """The true numbers, [n, T], none above the cap."""
        return self.true if self.cap is None else np.minimum(self.true, self.cap)

    @cached_property
    def away(self) -> NDArray[np.float64]:
        """d = predicted − true, [n, T]."""
        return self.predicted[:, :, self.predicted.shape[2] // 2] - self.wanted


@dataclass(frozen=True, eq=False)
class Predictions:
    """A model's predictions of the test samples: sums, and for ranking figures the order of its scores.

    Args:
        table: int64 [F, F], the number of samples of class i (row) predicted as class j (column).
        loss: mean loss, nats.
        rankings: class → ranking by the log-odds of the class, of the classes that the figure reads.
        errors: the errors of a regression.
        detection: the detection of anomalies: scores and alarms in the order of time.
    """

    table: Counts
    loss: float
    rankings: Mapping[int, Ranking] = field(default_factory=dict)
    errors: Errors | None = None
    detection: Detection | None = None


Value = Callable[[Predictions, int], float | None]


@dataclass(frozen=True)
class Kind:
    """An entry of the list of figures.

    Args:
        name: the name, as written.
        value: (predictions of the test samples, number of the class) → the figure; None where it is
            not defined.
        of_class: whether it is of all classes together, of one that is named, or of either.
        unit: ``"share"``, in [0, 1], or ``"nats"``.
        better: the direction of improvement.
        column: its column in the ledger, where every run has one.
        ranking: whether it reads scores in order.
        tasks: the kinds of task to which it applies; all if empty.
        shown: further kinds of task whose runs always record it.
    """

    name: str
    value: Value
    of_class: Literal["all", "one", "either"] = "all"
    unit: Unit = "share"
    better: Literal["higher", "lower"] = "higher"
    column: str = ""
    ranking: bool = False
    tasks: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()


def _accuracy(tested: Predictions, _: int) -> float:
    return float(np.trace(tested.table) / tested.table.sum())


def recalls(table: Counts) -> NDArray[np.float64]:
    """Return float64 [F], the share of each class's samples predicted correctly; NaN for a class without samples."""
    of_class, share = table.sum(axis=1), np.full(len(table), np.nan)
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
    both, share = table.sum(axis=0) + table.sum(axis=1), np.full(len(table), np.nan)
    np.divide(2 * np.diag(table), both, out=share, where=both > 0)
    return share


def macro_f1(table: Counts) -> float:
    """Return the mean of F1 = 2·TP / (2·TP + FP + FN) over the classes that occur or were predicted.

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


def rmse(errors: Errors) -> float:
    """Return the mean over the targets of √(mean d²)."""
    return float(np.sqrt(np.square(errors.away).mean(axis=0)).mean())


def r_squared(errors: Errors) -> float:
    """Return the mean over the targets of 1 − Σd²/Σ(y − ȳ)²; −∞ for a constant target with errors."""
    spread = np.square(errors.wanted - errors.wanted.mean(axis=0)).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.nan_to_num(1 - np.square(errors.away).sum(axis=0) / spread, nan=1.0, neginf=-np.inf).mean())


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
    """Return the share of true numbers that lie in the predicted interval; None without intervals.

    An interval that ends at a number, such as the cap, holds it whichever way single precision rounded the end.

    >>> coverage(Errors(np.array([[125.0]]), np.array([[[90.0, 120.0, 124.99999]]])))
    1.0
    """
    slack = ROUNDING * np.abs(errors.wanted).max(axis=0, initial=0.0)
    low, high = errors.predicted[:, :, 0] - slack, errors.predicted[:, :, -1] + slack
    inside = (low <= errors.wanted) & (errors.wanted <= high)
    return float(inside.mean()) if errors.predicted.shape[2] > 1 else None


def mase(errors: Errors) -> float | None:
    """Return the mean over the targets of mean |d| divided by the naive error; None without these.

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
    Kind("false alarms", _of_detection(detection.false_alarms), better="lower", tasks=ODD),
    Kind("missed", _of_detection(detection.missed), better="lower", tasks=ODD),
    Kind("NAB", _of_detection(detection.nab), unit="points", tasks=ODD),
    Kind("reconstruction error", lambda tested, _: tested.loss, unit="variances", better="lower", tasks=ODD),
    Kind("MASE", _of_errors(mase), unit="naive errors", better="lower", tasks=("forecasting",)),
    Kind("RMSE", _of_errors(rmse), unit=OWN, better="lower", tasks=NUMBERS),
    Kind("MAE", _of_errors(lambda errors: float(np.abs(errors.away).mean())), unit=OWN, better="lower", tasks=NUMBERS),
    Kind("R2", _of_errors(r_squared), unit="", tasks=NUMBERS),
    Kind("NASA score", _of_errors(nasa_score), unit="points", better="lower", tasks=("regression",)),
    Kind("RMSE uncapped", _of_errors(_uncapped), unit=OWN, better="lower", tasks=("regression",)),
    Kind("coverage", _of_errors(coverage), tasks=NUMBERS),
    Kind("interval width", _of_errors(_interval), unit=OWN, better="lower", tasks=NUMBERS),
)


OF_LIVES = ("NASA score", "RMSE uncapped")
COLUMNS = tuple(kind.column for kind in KINDS if kind.column)


@dataclass(frozen=True)
class Figure:
    """A metric: a measure of a model's quality on the test data.

    Args:
        kind: the metric's entry in the list.
        of: the class that it is of; "" where it is of all classes.
        own: the target's unit, where the figure is in it and the task names one.
    """

    kind: Kind
    of: str = ""
    own: str = ""

    @property
    def name(self) -> str:
        """The notation, such as ``"accuracy"`` or ``"recall of fault"``."""
        return f"{self.kind.name} of {self.of}" if self.of else self.kind.name

    @property
    def key(self) -> str:
        """Its key in rows of JSON, such as ``"recall_of_fault"``."""
        return self.kind.column or self.name.replace(" ", "_")

    @property
    def share(self) -> bool:
        """Whether the metric lies in [0, 1]."""
        return self.kind.unit == "share"

    @property
    def phrase(self) -> str:
        """The name with its article, such as ``"an accuracy"``."""
        vowel = self.name[0] in "aAi" or self.name.startswith(SPELT)
        return f"{'an' if vowel else 'a'} {self.name}"

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
        """The unit in words, for an axis; empty where there is none."""
        return "share right" if self.kind.name == "accuracy" else self.own or self.kind.unit

    def amount(self, value: str) -> str:
        """Return a value with the target's unit, if the metric has this unit.

        >>> named("RMSE").within("cycles").amount("13.4"), named("R2").amount("0.8")
        ('13.4 cycles', '0.8')
        """
        return f"{value} {self.own}" if self.own else value

    def within(self, unit: str) -> Figure:
        """Return the figure of a task whose targets have a unit."""
        return replace(self, own=unit) if self.kind.unit == OWN else self

    def value(self, tested: Predictions, classes: Sequence[str]) -> float | None:
        """Return the figure; None where it is not defined.

        Args:
            tested: the predictions of the test samples.
            classes: their names.
        """
        return self.kind.value(tested, classes.index(self.of) if self.of else -1)

    def scored(self, classes: Sequence[str]) -> list[int]:
        """Return the classes whose scores a ranking figure reads; none for other figures."""
        if not self.kind.ranking:
            return []
        return [classes.index(self.of)] if self.of else list(range(len(classes)))

    def read(self, line: Any) -> float | None:
        """Return the figure of a ledger line or an evaluation, an object or JSON; None without it."""
        row = line if isinstance(line, Mapping) else {name: getattr(line, name, None) for name in (*COLUMNS, "figures")}
        value = row.get(self.kind.column) if self.kind.column else (row.get("figures") or {}).get(self.name)
        return None if value is None else float(value)

    def gain(self, value: float, other: float) -> float:
        """Return the lead of the first of two values over the second; negative where it is worse."""
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
        """Return the best round figure that is no better than the best of several values; None if there is none."""
        best = max((self.gain(value, 0.0) for value in reached), default=-math.inf)
        every = STEPS if self.share or not self.kind.unit else NATS if self.kind.unit == "nats" else HALVES
        steps = [step for step in every if self.gain(step, 0.0) <= best]
        return self.best(steps) if steps else None

    def check_target(self, target: float, option: str) -> None:
        """Refuse a target that no value can have.

        Raises:
            SettingError: the target is not a share, or not a number above 0.
        """
        if self.share:
            require(0 < target <= 1, option, target, "a share, above 0 and at most 1, such as 0.8")
        else:
            require(0 < target < math.inf, option, target, "a number above 0, such as 0.5")


def named(text: str, option: str = "evaluate.headline") -> Figure:
    """Return the figure of a name; case, and ``_`` or ``-`` in place of a blank, do not matter.

    Args:
        text: such as ``"accuracy"``, ``"macro-F1"`` or ``"recall of fault"``.
        option: the setting that named it, for messages.

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
        raise SettingError(f"{option} = {shown(text)}: no such metric.{hint} Known: {', '.join(FIGURES)}.")
    if kind.of_class == "all" and chosen:
        raise SettingError(f"{option} = {shown(text)}: {kind.name} is of all classes. Write '{kind.name}'.")
    if (kind.of_class == "one" or chosen) and not label.strip():
        raise SettingError(f"{option} = {shown(text)}: of which class? Write '{kind.name} of CLASS'.")
    return Figure(kind, label.strip())


def is_figure(text: str) -> bool:
    """Return whether a text begins with the name of a figure.

    >>> is_figure("recall of fault"), is_figure("seconds")
    (True, False)
    """
    return _plain(text.partition(" of ")[0]) in {_plain(kind.name) for kind in KINDS}


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", " ").replace("-", " ")


def _example(kind: Kind) -> str:
    return {"all": kind.name, "one": f"{kind.name} of CLASS", "either": f"{kind.name} [of CLASS]"}[kind.of_class]


FIGURES = tuple(map(_example, KINDS))  # how they are written
ACCURACY, LOSS, MACRO_F1 = (named(name) for name in ("accuracy", "loss", "macro-F1"))


def of_task(kind: str, *, lives: bool = True) -> tuple[Figure, ...]:
    """Return the metrics specific to a kind of task.

    Args:
        kind: the kind of the task.
        lives: whether its targets are remaining lives; :data:`OF_LIVES` mean nothing of others.
    """
    every = (entry for entry in KINDS if kind in (*entry.tasks, *entry.shown))
    return tuple(Figure(entry) for entry in every if lives or entry.name not in OF_LIVES)


ALWAYS = tuple(Figure(kind) for kind in KINDS if kind.column)  # in every run's ledger


def fits(figure: Figure, classes: Sequence[str], tests: Counts, task: str = "classification") -> None:
    """Refuse a headline of another task, of a class that the data do not have, or without a test sample.

    ``tests``: int64 [F], test samples of each class. ``task``: its kind.

    Raises:
        SettingError: the metric would never be defined.
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
            f"{setting}: no test sample is of class '{figure.of}', so that it is not defined. Split the data another "
            "way, or choose another figure."
        )
    if figure.kind.ranking and int((tests > 0).sum()) < 2:
        raise SettingError(
            f"{setting}: all test samples are of one class, and there is no order between classes to measure. Split "
            "the data another way, or choose another figure"
            + (": --set 'evaluate.headline=\"reconstruction error\"'." if task == "reconstruction" else ".")
        )
