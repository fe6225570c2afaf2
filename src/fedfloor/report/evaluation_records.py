"""The types of ``evaluation.json``: the final model on test or validation data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from fedfloor.report.record_types import Amount, Count, Figures, Loss, Number, OptionalShare, Positive, Share, drawable
from fedfloor.tasks.figures import ACCURACY, Figure


@dataclass(frozen=True)
class PlaceRecord:
    """A device or a factory of ``evaluation.json``: its headlines by name; None if undefined or not tested.

    ``samples`` is the number of a device's own test samples, ``rarest`` of those of the rarest tested class.
    """

    accuracy: OptionalShare
    factory: Count | None
    device: Count | None = None
    name: str | None = None
    role: Literal["trains only", "tests only"] | None = None
    figures: dict[str, Loss] | None = None
    samples: Count | None = None
    rarest: Count | None = None

    @property
    def number(self) -> int:
        """The number of the device or the factory."""
        return (self.factory if self.device is None else self.device) or 0

    @property
    def key(self) -> tuple[int, str | None, int | None]:
        """The number, the name and the factory."""
        return self.number, self.name, self.factory

    def value(self, figure: Figure) -> float | None:
        """Return a metric; None if it is undefined or not recorded."""
        return self.accuracy if figure == ACCURACY else (self.figures or {}).get(figure.name)


@dataclass(frozen=True)
class DecidedRecord:
    """Decisions for one class: numbers of samples, and shares, which may be undefined (None)."""

    found: Count
    missed: Count
    false_alarms: Count
    recall: OptionalShare = None
    precision: OptionalShare = None
    f1: OptionalShare = None


@dataclass(frozen=True)
class ChosenRecord:
    """The choice of a threshold: its rule, and the numbers of held-out samples in total and of the class."""

    samples: Count
    positives: Count = 0
    by: str = ""
    missed_rule: bool = False


@dataclass(frozen=True)
class DecideRecord:
    """``decide`` of ``evaluation.json``; without a class and its metrics if only a temperature was chosen."""

    validation: ChosenRecord
    threshold: float = 1.0
    positive: Count | None = None
    decided: DecidedRecord = DecidedRecord(0, 0, 0)
    likeliest: DecidedRecord = DecidedRecord(0, 0, 0)


@dataclass(frozen=True)
class ErrorsOfRecord:
    """The errors of a target, or of the samples in a range: ``below`` has a share for each trained level."""

    name: str
    samples: Count
    rmse: Amount
    mae: Amount
    bias: Number
    below: tuple[Share, ...] = ()
    inside: OptionalShare = None


@dataclass(frozen=True)
class PointsRecord:
    """Values of single samples: true and predicted numbers, limits of the interval, devices."""

    true: tuple[Number, ...]
    predicted: tuple[Number, ...]
    low: tuple[Number, ...] = ()
    high: tuple[Number, ...] = ()
    device: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = {len(self.predicted), *(len(values) for values in (self.low, self.high, self.device) if values)}
        if sizes != {len(self.true)} or bool(self.low) != bool(self.high):
            raise ValueError(f"{len(self.true)} true numbers and {sorted(sizes)} others")


@dataclass(frozen=True)
class ErrorsRecord:
    """``errors`` of ``evaluation.json``."""

    samples: Count
    targets: Annotated[tuple[ErrorsOfRecord, ...], Field(min_length=1)]
    ranges: tuple[ErrorsOfRecord, ...]
    points: PointsRecord
    unit: str = ""
    cap: Number | None = None
    levels: tuple[Share, ...] = ()

    def __post_init__(self) -> None:
        if any(len(errors_of.below) != len(self.levels) for errors_of in (*self.targets, *self.ranges)):
            raise ValueError(f"shares of other levels than {list(self.levels)}")


@dataclass(frozen=True)
class ChanceRecord:
    """The chance to fail within the horizon in a group of samples: the mean predicted and the observed one."""

    samples: Count
    predicted: Share
    observed: Share


@dataclass(frozen=True)
class LivesRecord:
    """``lives`` of ``evaluation.json``."""

    samples: Count
    failures: Count
    within: Amount
    grid: tuple[Number, ...]
    predicted: tuple[Share, ...]
    observed: tuple[Share, ...]
    low: tuple[Share, ...]
    high: tuple[Share, ...]
    median: Annotated[tuple[Number | None, ...], Field(min_length=3, max_length=3)]
    groups: tuple[ChanceRecord, ...] = ()
    unit: str = ""
    steps: bool = False

    def __post_init__(self) -> None:
        if {*map(len, (self.predicted, self.observed, self.low, self.high))} != {len(self.grid)}:
            raise ValueError(f"curves at other than {len(self.grid)} times")


@dataclass(frozen=True)
class FactorRecord:
    """The factor of a column of lives per ``step``, or of a category's value beside another; bounds of 95 %."""

    name: str
    than: str
    step: Number
    effect: Number
    ratio: Number
    error: Number | None = None
    low: Number | None = None
    high: Number | None = None
    p: OptionalShare = None


@dataclass(frozen=True)
class LogRankRecord:
    """The log-rank test that the values of a category have equal lives."""

    name: str
    values: Count
    statistic: Amount
    freedom: Count
    p: Share


@dataclass(frozen=True)
class FactorsRecord:
    """``factors`` of ``evaluation.json``: what they are, and whether steps are in the units of ``data.normalise``."""

    ratio: str
    scaled: bool
    ridge: Number
    rows: tuple[FactorRecord, ...]
    groups: tuple[LogRankRecord, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SharedPlaceRecord(PlaceRecord):
    """A device's metrics with the shared model."""

    factory: Count | None = None


@dataclass(frozen=True)
class SharedRecord:
    """``shared`` of ``evaluation.json``: the metrics of the shared model, if devices have personal models.

    ``sends`` is the share of the model's parameters that a device sends.
    """

    devices: tuple[SharedPlaceRecord, ...]
    sends: Share = 1.0


@dataclass(frozen=True)
class ResampledRecord:
    """``resampled`` of ``evaluation.json``: metrics on ``units`` units of test samples, drawn with replacement."""

    unit: str
    units: Count
    figures: dict[str, Annotated[tuple[Loss, ...], Field(max_length=100_000)]]


@dataclass(frozen=True)
class ChartValuesRecord:
    """A value of a control chart over the samples of a recording: lower limit, centre line, upper limit."""

    name: str
    value: tuple[Number, ...]
    limits: Annotated[tuple[Number, ...], Field(min_length=3, max_length=3)]


@dataclass(frozen=True)
class ChartRecord:
    """One of ``charts`` of ``evaluation.json``: a test recording; device −1: of none."""

    device: int
    alarm: tuple[Count, ...]
    abnormal: tuple[Count, ...]
    values: tuple[ChartValuesRecord, ...]

    def __post_init__(self) -> None:
        sizes = {len(self.abnormal), *(len(each.value) for each in self.values)}
        if sizes != {len(self.alarm)}:
            raise ValueError(f"a chart of {len(self.alarm)} samples with {sorted(sizes)} values")


@dataclass(frozen=True)
class PromiseRecord:
    """``promise`` of ``evaluation.json``: the promised share of samples, and the measured one, also of each device.

    ``units`` is the number of independent units of held-out samples; None if they are on other machines.
    """

    promised: Share
    devices: tuple[OptionalShare, ...]
    measured: OptionalShare = None
    units: Count | None = None


@dataclass(frozen=True)
class ShareRecord:
    """A measured share of samples within thresholds, in total and of each device; None: not defined."""

    measured: OptionalShare = None
    devices: tuple[OptionalShare, ...] = ()


@dataclass(frozen=True)
class RecalibratedRecord:
    """``recalibrated`` of ``evaluation.json``: :func:`fedfloor.runs.keeping.recalibrated`."""

    promised: Share
    before: ShareRecord
    after: ShareRecord
    nearer: bool | None = None


@dataclass(frozen=True)
class EvaluationRecord:
    """``evaluation.json``: the final model on test or validation data.

    Args:
        cohorts: each device's cohort.
        returned: the round whose model is the final one, by ``evaluate.patience``.
        over: whether no further round changes the model.
        gradient_norm: of a model of the exact shelf whose rounds were too few.
    """

    round: Positive
    classes: Annotated[tuple[str, ...], Field(min_length=1)]
    confusion: tuple[tuple[Count, ...], ...]  # samples [true class][predicted class]
    on: str = "test"
    macro_f1: OptionalShare = None
    device_accuracy: Figures | None = None
    devices: tuple[PlaceRecord, ...] | None = None
    factories: tuple[PlaceRecord, ...] | None = None
    decide: DecideRecord | None = None
    errors: ErrorsRecord | None = None
    charts: tuple[ChartRecord, ...] = ()
    lives: LivesRecord | None = None
    factors: FactorsRecord | None = None
    cohorts: tuple[Count, ...] | None = None
    returned: Positive | None = None
    over: bool = False
    gradient_norm: Annotated[Amount | None, BeforeValidator(drawable)] = None
    shared: SharedRecord | None = None
    resampled: ResampledRecord | None = None
    promise: PromiseRecord | None = None
    recalibrated: RecalibratedRecord | None = None
    seeded: bool = True

    def __post_init__(self) -> None:
        size = len(self.classes)
        if self.decide is not None and (self.decide.positive or 0) >= size:
            raise ValueError(f"a decision on class {self.decide.positive} of {size}")
        if len(self.confusion) != size or any(len(row) != size for row in self.confusion):
            raise ValueError(f"the confusion matrix is not {size} × {size}")
        shared = self.shared.devices if self.shared else ()
        if any(place.device is None for place in (*(self.devices or ()), *shared)):
            raise ValueError("a device has no number")
        if any(place.factory is None for place in self.factories or ()):
            raise ValueError("a factory has no number")
