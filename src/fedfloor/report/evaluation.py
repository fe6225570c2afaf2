"""What a run's ``evaluation.json`` says about its final model, and the same for seeds taken together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedfloor.figures import ACCURACY, Figure
from fedfloor.report.records import DecideRecord, ErrorsRecord, EvaluationRecord, Figures

Matrix = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Place:
    """A device or a factory and the final model's figures there.

    Args:
        number: the device's or the factory's number.
        name: its name, where it has one.
        factory: the factory it belongs to, or is; None where that is not known.
        accuracy: None where nothing could be tested.
        figures: name → a headline that is not the accuracy; None where it is not defined there.
        role: ``"trains only"`` or ``"tests only"`` of a device that does not both.
    """

    number: int
    name: str | None
    factory: int | None
    accuracy: float | None
    role: str | None = None
    figures: Mapping[str, float | None] = field(default_factory=dict)

    def value(self, figure: Figure) -> float | None:
        """Return a figure; None where it is not defined there, or not recorded."""
        return self.accuracy if figure == ACCURACY else self.figures.get(figure.name)


@dataclass(frozen=True)
class Evaluation:
    """The final model on the test (or the validation) data.

    Args:
        round: the round it was made in.
        on: ``"test"`` or ``"validation"``.
        macro_f1: mean over classes of 2·precision·recall/(precision + recall).
        classes: their names.
        confusion: number of samples [true class][predicted class].
        devices, factories: the accuracy of each.
        figures: whether these are measured on test samples of each device, or expected from its classes; None where
            the run does not record it.
        decide: the decision that validation data chose; None where they chose none.
        errors: predicted numbers beside the true ones; None where classes are predicted.
        cohorts: the number of each device's model; empty where all have one.
    """

    round: int
    on: str
    macro_f1: float | None
    classes: tuple[str, ...]
    confusion: Matrix
    devices: tuple[Place, ...]
    factories: tuple[Place, ...]
    figures: Figures | None = None
    decide: DecideRecord | None = None
    errors: ErrorsRecord | None = None
    cohorts: tuple[int, ...] = ()


def evaluation(record: EvaluationRecord) -> Evaluation:
    """Return what a record says about a final model."""
    return Evaluation(
        round=record.round,
        on=record.on,
        macro_f1=record.macro_f1,
        classes=record.classes,
        confusion=record.confusion,
        devices=tuple(
            Place(place.device or 0, place.name, place.factory, place.accuracy, place.role, place.figures or {})
            for place in record.devices or ()
        ),
        factories=tuple(
            Place(place.factory or 0, place.name, place.factory, place.accuracy, figures=place.figures or {})
            for place in record.factories or ()
        ),
        figures=record.device_accuracy,
        decide=record.decide,
        errors=record.errors,
        cohorts=record.cohorts or (),
    )


def added(found: Sequence[Evaluation]) -> Matrix:
    """Return the sum of confusion matrices of the same classes.

    >>> one = Evaluation(1, "test", None, ("a", "b"), ((1, 2), (0, 3)), (), ())
    >>> added([one, one])
    ((2, 4), (0, 6))
    """
    total = np.sum([one.confusion for one in found], axis=0)
    return tuple(tuple(int(count) for count in row) for row in total)


def by_place(
    found: Sequence[Evaluation], pick: Callable[[Evaluation], Sequence[Place]], figure: Figure = ACCURACY
) -> dict[tuple[int, str | None, int | None], list[float]]:
    """Return a figure of each device or factory, one per evaluation that has it.

    Args:
        found: the evaluations of several seeds.
        pick: what is asked for, such as ``lambda one: one.factories``.
        figure: which.
    """
    places: dict[tuple[int, str | None, int | None], list[float]] = defaultdict(list)
    for one in found:
        for place in pick(one):
            values = places[place.number, place.name, place.factory]
            if (value := place.value(figure)) is not None:
                values.append(value)
    return dict(sorted(places.items(), key=lambda item: item[0][0]))


def frequent(matrix: Matrix, classes: Sequence[str], most: int = 5) -> list[tuple[str, str, int, int]]:
    """Return the most frequent confusions: true class, class it is taken for, how often, and of how many samples.

    >>> frequent(((8, 2), (0, 3)), ["a", "b"])
    [('a', 'b', 2, 10)]
    """
    wrong = [
        (count, i, j) for i, row in enumerate(matrix) for j, count in enumerate(row) if i != j and count > 0
    ]  # fmt: skip
    wrong.sort(key=lambda item: (-item[0], item[1], item[2]))
    return [(classes[i], classes[j], count, sum(matrix[i])) for count, i, j in wrong[:most]]
