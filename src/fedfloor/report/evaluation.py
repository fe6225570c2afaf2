"""What a run's ``evaluation.json`` says about its final model, and the same for seeds taken together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfloor.report.numbers import finite

Matrix = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Place:
    """A device or a factory and the final model's accuracy there.

    Args:
        number: the device's or the factory's number.
        name: its name, where it has one.
        factory: the factory it belongs to, or is.
        accuracy: None where nothing could be tested.
    """

    number: int
    name: str | None
    factory: int
    accuracy: float | None


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
    """

    round: int
    on: str
    macro_f1: float | None
    classes: tuple[str, ...]
    confusion: Matrix
    devices: tuple[Place, ...]
    factories: tuple[Place, ...]


def evaluation(body: Any) -> Evaluation:
    """Read an evaluation from its JSON value.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    classes = tuple(map(str, body["classes"]))
    confusion = tuple(tuple(int(count) for count in row) for row in body["confusion"])
    if len(confusion) != len(classes) or any(len(row) != len(classes) for row in confusion):
        raise ValueError(f"a confusion matrix that is not {len(classes)} × {len(classes)}")
    return Evaluation(
        round=int(body["round"]),
        on=str(body.get("on", "test")),
        macro_f1=finite(body.get("macro_f1")),
        classes=classes,
        confusion=confusion,
        devices=tuple(_place(one, "device") for one in body.get("devices") or ()),
        factories=tuple(_place(one, "factory") for one in body.get("factories") or ()),
    )


def _place(body: Any, kind: str) -> Place:
    name = body.get("name")
    return Place(int(body[kind]), None if name is None else str(name), int(body["factory"]), finite(body["accuracy"]))


def added(found: Sequence[Evaluation]) -> Matrix:
    """Return the sum of confusion matrices of the same classes.

    >>> one = Evaluation(1, "test", None, ("a", "b"), ((1, 2), (0, 3)), (), ())
    >>> added([one, one])
    ((2, 4), (0, 6))
    """
    total = np.sum([one.confusion for one in found], axis=0)
    return tuple(tuple(int(count) for count in row) for row in total)


def by_place(
    found: Sequence[Evaluation], pick: Callable[[Evaluation], Sequence[Place]]
) -> dict[tuple[int, str | None, int], list[float]]:
    """Return the accuracies of each device or factory, one per evaluation that has one.

    Args:
        found: the evaluations of several seeds.
        pick: what is asked for, such as ``lambda one: one.factories``.
    """
    places: dict[tuple[int, str | None, int], list[float]] = defaultdict(list)
    for one in found:
        for place in pick(one):
            values = places[place.number, place.name, place.factory]
            if place.accuracy is not None:
                values.append(place.accuracy)
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
