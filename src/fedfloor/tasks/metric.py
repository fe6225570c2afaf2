"""Metrics of one's own: a class with a direction, a unit and a calculation, named ``module:Name`` as a headline.

The file of a run's experiment states name, direction and unit, so that tables and drawings need no code.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError, shown
from fedfloor.base.names import SPEC
from fedfloor.base.outside import loaded
from fedfloor.tasks.figures import OWN, Figure, Kind, Predictions, is_figure, named
from fedfloor.tasks.tested import TestedSamples

Scalar = str | int | float | bool
STATED = ("name", "better", "unit", "tasks")  # what a run's file states of a metric beside its settings
LONGEST = 40  # characters of a name
NAME = re.compile(rf"(?! )[^,=<>|]{{1,{LONGEST}}}(?<! )")  # without what tables and pages have a use for
OPTION = "evaluate.headline"


class Metric(ABC):
    """A metric of one's own, a frozen dataclass of its settings, which are numbers, texts, true and false.

    Attributes:
        name: the name in tables; by default the class's, in words.
        better: ``"lower"`` or ``"higher"``.
        unit: ``"share"`` for values in [0, 1], ``"units of the target"``, or any other, such as ``"EUR"``.
        tasks: the kinds of task to which it applies, such as ``("regression",)``; all if empty.
    """

    name: str = ""
    better: Literal["higher", "lower"]
    unit: str = ""
    tasks: tuple[str, ...] = ()

    @abstractmethod
    def value(self, samples: TestedSamples) -> float | None:
        """Return the metric of these samples; None if it is undefined."""


@dataclass(frozen=True)
class Calculation:
    """The calculation of a metric of one's own, whose code has been imported with the experiment.

    Args:
        code: ``module:Name``.
        settings: name and value of each setting.
    """

    code: str
    settings: tuple[tuple[str, Scalar], ...] = ()

    def __call__(self, tested: Predictions, _: int) -> float | None:
        """Return the metric; None if it is undefined, or if the single samples are not known."""
        if tested.samples is None:
            return None
        found = self.made().value(tested.samples)
        if found is None:
            return None
        try:
            value = float(found)
        except (TypeError, ValueError):
            value = None
        if value is None or isinstance(found, str):
            raise SettingError(
                f"metric '{self.code}' returned {shown(found)}: must be a number, or None where it is undefined.",
                key="own-metric",
            )
        return None if math.isnan(value) else value

    def made(self) -> Metric:
        """Return the metric; its code was imported where the experiment, or a model for predictions, was read.

        Raises:
            SettingError: its code is not loaded, or no class derived from Metric.
        """
        kind = loaded(self.code, "metric")
        if not (isinstance(kind, type) and issubclass(kind, Metric)):  # a function would run with settings of a file
            raise SettingError(f"metric '{self.code}' is not a class derived from fedfloor.Metric.", key="own-metric")
        return kind(**dict(self.settings))


def recorded(value: str | Mapping[str, Any], option: str = OPTION) -> Figure:
    """Return the metric in a run's folder, which states name, direction and unit; no code is imported.

    Raises:
        SettingError: there is no such metric, or something is not stated.

    >>> recorded({"kind": "costs:Cost", "alarm": 40.0, "name": "cost", "better": "lower", "unit": "EUR"}).axis
    'cost (EUR)'
    """
    if isinstance(value, str) and not SPEC.fullmatch(value):
        return named(value, option)
    code, table = parts_of(value, option)
    if missing := [key for key in STATED[:3] if key not in table]:
        raise SettingError(f"{option}: metric '{code}': {missing[0]} is missing in a run's file.", key="own-metric")
    facts = {key: table[key] for key in STATED if key in table}
    settings = {key: setting for key, setting in table.items() if key not in STATED}
    return figure(code, settings, facts, option)


def parts_of(value: str | Mapping[str, Any], option: str) -> tuple[str, dict[str, Any]]:
    """Return ``module:Name`` of a metric of one's own, and the other keys of its table."""
    table = {"kind": value} if isinstance(value, str) else dict(value)
    code = table.pop("kind", None)
    if not isinstance(code, str) or not SPEC.fullmatch(code):
        example = '{ kind = "costs:AlarmCost", alarm = 40.0 }'
        raise SettingError(f"{option} = {shown(value)}: must be a metric's name, or a table such as {example}.")
    return code, table


def stated(metric: Figure) -> str | dict[str, Any]:
    """Return a metric as the setting of a run's folder: the inverse of :func:`recorded`.

    >>> stated(named("accuracy"))
    'accuracy'
    """
    calculation = metric.kind.value
    if not isinstance(calculation, Calculation):
        return metric.name
    facts = {"name": metric.name, "better": metric.kind.better, "unit": metric.kind.unit}
    tasks = {"tasks": list(metric.kind.tasks)} if metric.kind.tasks else {}
    return {"kind": calculation.code, **dict(calculation.settings), **facts, **tasks}


def described(metric: Figure) -> str:
    """Return a metric's name, with code, settings, direction and unit if it is one's own.

    >>> described(recorded({"kind": "costs:Cost", "alarm": 4, "name": "cost", "better": "lower", "unit": "EUR"}))
    'cost of costs:Cost with alarm = 4 in EUR, lower is better'
    """
    calculation = metric.kind.value
    if not isinstance(calculation, Calculation):
        return metric.name
    settings = ", ".join(f"{name} = {value}" for name, value in calculation.settings)
    unit = f" in {metric.kind.unit}" if metric.kind.unit else ""
    return (
        f"{metric.name} of {calculation.code}{f' with {settings}' if settings else ''}{unit}, {metric.kind.better} is "
        "better"
    )


def figure(code: str, settings: Mapping[str, Any], facts: Mapping[str, Any], option: str = OPTION) -> Figure:
    """Return a metric of one's own.

    Args:
        code, settings: ``module:Name``, and the settings of its class.
        facts: its name, direction, unit and tasks.
        option: the setting, for messages.

    Raises:
        SettingError: one of the facts is not valid.
    """
    name, better, unit = (facts[key] for key in STATED[:3])
    tasks = facts.get("tasks", ())
    where = f"{option}: metric '{code}'"
    if (
        not isinstance(name, str)
        or not (NAME.fullmatch(name) and name.isprintable())
        or " of " in name
        or is_figure(name)
    ):
        raise SettingError(
            f"{where}: name = {shown(name)}: must be a text of at most {LONGEST} characters, without a comma, =, <, "
            ">, |, or ' of ', and not the name of a built-in metric.",
            key="own-metric",
        )
    if better not in ("higher", "lower"):
        raise SettingError(f"{where}: better = {shown(better)}: must be 'higher' or 'lower'.", key="own-metric")
    if unit != "" and not _short(unit):
        raise SettingError(
            f"{where}: unit = {shown(unit)}: must be a text, such as 'EUR' or 'share'.", key="own-metric"
        )
    if not isinstance(tasks, list | tuple) or not all(isinstance(task, str) for task in tasks):
        raise SettingError(f"{where}: tasks = {shown(tasks)}: must be kinds of task, such as ('regression',).")
    if odd := [key for key, setting in settings.items() if not isinstance(setting, Scalar)]:
        raise SettingError(f"{where}: {odd[0]} = {shown(settings[odd[0]])}: must be a number, a text, true or false.")
    value = Calculation(code, tuple(sorted(settings.items())))
    kind = Kind(name, value, unit=unit, better=better, tasks=tuple(tasks), each=True)
    return Figure(kind, own="" if unit in ("share", OWN) else unit)


def _short(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and NAME.fullmatch(text) is not None


def samples_of(
    tested: Predictions, y: NDArray[np.int64], predicted: NDArray[Any], odds: NDArray[Any], classes: Sequence[str],
    devices: NDArray[np.int64] | None = None,
) -> TestedSamples:  # fmt: skip
    """Return the single samples of a task's predictions, in their order.

    Args:
        y, predicted: int64 [n], true and predicted classes.
        odds: [n, F], the log-odds of all classes, read of a classification alone.
    """
    if tested.errors is not None:
        numbers = tested.errors.predicted
        return TestedSamples(
            tested.errors.wanted, numbers[:, :, numbers.shape[2] // 2], numbers, tuple(classes), devices
        )
    if (found := tested.detection) is not None:
        return TestedSamples(found.odd, found.alarm, found.score[:, None], tuple(classes), devices)
    if (lives := tested.lives) is not None:
        true = np.stack([lives.time, lives.failed.astype(np.float64), lives.entry], 1)
        return TestedSamples(true, lives.expected, lives.survival, tuple(classes), devices)
    with np.errstate(over="ignore"):
        chance = 1 / (1 + np.exp(-np.asarray(odds, np.float64)))
    return TestedSamples(y, predicted, chance, tuple(classes), devices)


def of_some(figure: Figure, tested: Predictions, classes: Sequence[str]) -> float | None:
    """Return the metric of some of the samples; None also where a user's calculation fails because of them."""
    try:
        return figure.value(tested, classes)
    except (ArithmeticError, LookupError, ValueError):
        if figure.kind.each:  # it did not fail on all samples
            return None
        raise
