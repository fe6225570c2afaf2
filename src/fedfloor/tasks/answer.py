"""Answers: the outputs of a model for a person, a machine's control, or a program with an ONNX runtime."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

A = TypeVar("A", bound="Answer")
Part = Any  # a Tensor, or the same numbers as an NDArray
Words = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Answer(ABC):
    """A model's answers for n samples, the first axis of each part; other fields give their meaning."""

    def parts(self) -> dict[str, Part]:
        """Return the answer's parts by name, in the order of an ONNX file's outputs."""
        named = {key.name: getattr(self, key.name) for key in fields(self)}
        return {name: part for name, part in named.items() if hasattr(part, "shape")}

    def changed(self: A, change: Callable[[str, Part], Part]) -> A:
        """Return this answer with each part replaced by ``change(name, part)``."""
        return replace(self, **{name: change(name, part) for name, part in self.parts().items()})

    @abstractmethod
    def sizes(self) -> Mapping[str, NDArray[Any] | float]:
        """Return the scale of rounding errors of each part, above 0, for an answer made of arrays."""

    @abstractmethod
    def document(self, i: int) -> Words:
        """Return the answer for sample i as JSON; :func:`flat` makes it a row of a table."""

    @abstractmethod
    def cells(self, i: int) -> Words:
        """Return the answer for sample i as a few short cells of a table."""

    def usable(self) -> bool:
        """Return whether the answers, made of arrays, are numbers that can be relied on."""
        return bool(np.isfinite(next(iter(self.parts().values()))).all())

    def informed(self, label: NDArray[Any]) -> Answer:
        """Return this answer, made of arrays, given the class numbers of the samples, int64 [n]; −1: unknown."""
        return self

    def truth(self, true: Sequence[float]) -> Words:
        """Return the true numbers [targets] of a sample in the format of :meth:`document`."""
        return {}

    @property
    def phrase(self) -> str:
        """A description of the quantity with its unit."""
        return ""


@dataclass(frozen=True, eq=False)
class Classes(Answer):
    """The answer of a classification.

    Args:
        probabilities: the probability of each class, [n, F].
        logits: the network's outputs, [n, F].
    """

    probabilities: Part
    logits: Part

    def sizes(self) -> Mapping[str, NDArray[Any] | float]:
        """Return 1 for probabilities; for logits, sums of large numbers, the largest of each sample, at least 1."""
        return {"probabilities": 1.0, "logits": np.maximum(1, np.abs(self.logits).max(axis=1, keepdims=True))}

    def document(self, i: int) -> Words:
        best = int(self.logits[i].argmax())
        return {"class": best, "probability": float(self.probabilities[i, best])}

    def cells(self, i: int) -> Words:
        return self.document(i)


@dataclass(frozen=True, eq=False)
class Numbers(Answer):
    """The answer of a regression or forecast: numbers in their unit.

    Args:
        value: the predictions [n, T], or [n, S, H] for the next H rows of S sensors.
        low, high: the bounds of an interval with probability ``level``, of the same shape; None without quantiles.
        names: the names of the T or S numbers.
        unit: the common unit of all numbers; "" if unknown.
        level: the interval's nominal coverage.
        scale: the standard deviations of the training targets, [T] or [S·H].
        above: the cap of training targets, so that a prediction near it means "this much or more"; None without a cap.
    """

    value: Part
    low: Part | None
    high: Part | None
    names: tuple[str, ...]
    unit: str = ""
    level: float | None = None
    scale: tuple[float, ...] = ()
    above: float | None = None

    def sizes(self) -> Mapping[str, NDArray[Any] | float]:
        """Return the targets' standard deviations in training, or the size of a number if it is larger."""
        spread = np.array(self.scale, np.float32).reshape(1, *self.value.shape[1:])
        return {name: np.maximum(spread, np.abs(part)) for name, part in self.parts().items()}

    def document(self, i: int) -> Words:
        """Return ``predicted`` and, if there is an interval, ``low`` and ``high``, each by the numbers' names."""
        parts = {"predicted": self.value, "low": self.low, "high": self.high}
        return {key: self._named(part[i].tolist()) for key, part in parts.items() if part is not None}

    def cells(self, i: int) -> Words:
        """Return each number with its interval; for a forecast, those of the next and the last row."""
        return {name: self._cell(i, k) for k, name in enumerate(self.names)}

    def truth(self, true: Sequence[float]) -> Words:
        return {"true": self._named(np.asarray(true, np.float64).reshape(self.value.shape[1:]).tolist())}

    @property
    def phrase(self) -> str:
        """The numbers' names and unit, the rows ahead, the interval, and the cap."""
        ahead = f", the next {self.value.shape[2]} rows" if self.value.ndim > 2 else ""
        span = "" if self.level is None else f", with the interval of {100 * self.level:.4g} %"
        cap = "" if self.above is None else f"; {self.above:g} means {self.above:g} or more"
        return f"{', '.join(self.names)}{f' in {self.unit}' if self.unit else ''}{ahead}{span}{cap}"

    def _named(self, values: list[Any]) -> dict[str, Any]:
        return dict(zip(self.names, values, strict=True))

    def _cell(self, i: int, k: int) -> str:
        ends: list[Any] = [(i, k)] if self.value.ndim == 2 else [(i, k, h) for h in {0, self.value.shape[2] - 1}]
        shown = []
        for at in ends:
            span = "" if self.low is None or self.high is None else f" ({self.low[at]:.4g} to {self.high[at]:.4g})"
            shown.append(f"{self.value[at]:.4g}{span}")
        return " → ".join(shown)


@dataclass(frozen=True, eq=False)
class Alarms(Answer):
    """The answer of a reconstruction: anomaly scores of samples.

    Args:
        score: [n], multiples of the threshold, with an alarm above 1 and for NaN; mean squares without a threshold.
        known: whether there is a threshold.
    """

    score: Part
    known: bool = True

    def sizes(self) -> Mapping[str, NDArray[Any] | float]:
        return {"score": np.maximum(1, np.abs(self.score))}

    def document(self, i: int) -> Words:
        score = float(self.score[i])
        return {"score": score} | ({"alarm": not score <= 1} if self.known else {})

    def cells(self, i: int) -> Words:
        alarm = {"alarm": "no" if float(self.score[i]) <= 1 else "yes"} if self.known else {}
        return {"score": f"{float(self.score[i]):.4g}"} | alarm

    @property
    def phrase(self) -> str:
        return "score, an alarm above 1" if self.known else "score (the model has no threshold)"


@dataclass(frozen=True, eq=False)
class Expectancy(Answer):
    """The answer of a survival model: how long a machine will still live.

    Args:
        chance: [n], the chance to fail within the horizon; infinite if it is not known.
        median: [n], the median time left; infinite if the curve does not fall so far.
        low, high: [n], the bounds of the time left with probability ``level``.
        within: the horizon.
        unit: the unit of times; "" if unknown.
        level: the probability of the interval.
        since: the beginning of the horizon, such as the ``present age``; "" for a sample's own time.
        end: the age beyond which nothing is known; None without one.
        failed: the samples of machines that have failed, which have no time left.
    """

    chance: Part
    median: Part
    low: Part
    high: Part
    within: float
    unit: str = ""
    level: float = 0.8
    since: str = ""
    end: float | None = None
    failed: frozenset[int] = frozenset()

    def informed(self, label: NDArray[Any]) -> Expectancy:
        """Return this answer without a future of machines that have failed, unless each sample has its own time."""
        return replace(self, failed=frozenset(np.flatnonzero(label > 0).tolist())) if self.since else self

    def sizes(self) -> Mapping[str, NDArray[Any] | float]:
        """Return 1 for the chance, and for times the horizon, or the time if it is longer."""
        times = {name: part for name, part in self.parts().items() if name != "chance"}
        finite = {name: np.where(np.isfinite(part), np.abs(part), 0.0) for name, part in times.items()}
        return {"chance": 1.0, **{name: np.maximum(self.within, part) for name, part in finite.items()}}

    def document(self, i: int) -> Words:
        """Return the chance, the median and its bounds; None for a time beyond the curve, and if it has failed."""
        over = math.inf if i in self.failed else 0.0
        values = {name: float(part[i]) + over for name, part in self.parts().items()}
        return {name: value if np.isfinite(value) else None for name, value in values.items()}

    def usable(self) -> bool:
        return not any(np.isnan(part).any() for part in self.parts().values())

    def cells(self, i: int) -> Words:
        if i in self.failed:
            return {"chance": "failed", "median left": "–"}
        low, high = (f"{float(part[i]):.4g}".replace("inf", "?") for part in (self.low, self.high))
        median = f"{float(self.median[i]):.4g}".replace("inf", "more than known")
        chance = float(self.chance[i])
        known = "not known" if np.isinf(chance) else f"{100 * chance:.3g} %"
        return {"chance": known, "median left": f"{median} ({low} to {high})"}

    @property
    def phrase(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        since = f" from the {self.since} on" if self.since else ""
        known = "" if self.end is None else f"; nothing is known beyond {self.end:.6g}{unit}, the last observed time"
        return (
            f"the chance to fail within {self.within:g}{unit}{since}, and the median time left"
            f"{f' in {self.unit}' if self.unit else ''} with the interval of {100 * self.level:.4g} %{known}"
        )


def flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document as the columns of a table.

    >>> flat({"score": 1.5, "predicted": {"oil": [7.0, 8.0]}, "low": {"life": 3.0}})
    {'score': 1.5, 'predicted oil +1': 7.0, 'predicted oil +2': 8.0, 'low life': 3.0}
    """
    entries: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            entries |= {f"{key} {name}": entry for name, entry in flat(value).items()}
        elif isinstance(value, list):
            entries |= {f"{key} +{h}": entry for h, entry in enumerate(value, start=1)}
        else:
            entries[key] = value
    return entries
