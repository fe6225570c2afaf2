"""The headline of each device and factory, from its own test samples or as its mix of classes lets expect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Indices, Owners
from fedfloor.figures import Counts, Figure, Predictions
from fedfloor.park.park import Park

Values = tuple[list[float | None], list[float | None]]  # of the roster's devices, and of its factories


@dataclass(frozen=True, eq=False)
class Answers:
    """What was answered to single test samples.

    Args:
        owners: [n], the natural owner of each answered sample; None where samples have none.
        part: what some of these answers, by their places, come to; their loss is not known.
    """

    owners: Owners | None
    part: Callable[[Indices], Predictions]


def headlines(park: Park, figure: Figure, table: Counts, answers: Answers) -> Values:
    """Return a figure of each device and factory of the park's roster; None where it is not defined there.

    Measured, where test samples have owners: over the device's own test samples, or those of all devices of the
    factory. Expected otherwise: on test samples in the device's, or the factory's, own mix of classes, by how often
    each class is taken for which. A figure that ranks samples, or the loss, is not known from that. The figure of a
    class is not defined where no sample is of it and none was taken for it.

    Args:
        park: the devices.
        figure: any but accuracy.
        table: int64 [F, F], the confusion matrix of all test samples.
        answers: sample by sample.
    """
    roster, places = park.roster, range(len(park.roster.factories))
    if figure.kind.column == "loss":
        return [None] * len(roster.numbers), [None] * len(places)
    if roster.figures == "measured" and answers.owners is not None:
        order = np.argsort(answers.owners, kind="stable")
        ordered = answers.owners[order]

        def measured(owners: Sequence[int]) -> float | None:
            ends = [np.searchsorted(ordered, [one, one + 1]) for one in owners if one >= 0]
            rows = np.concatenate([order[:0], *(order[first:last] for first, last in ends)])
            return _defined(figure, answers.part(rows), park) if len(rows) else None

        homes = [np.unique(roster.owners[roster.factory_of == m]).tolist() for m in places]
        return [measured([one]) for one in roster.owners.tolist()], [measured(home) for home in homes]
    if figure.kind.ranking or figure.kind.tasks:
        return [None] * len(roster.numbers), [None] * len(places)
    tested = table.sum(axis=1)
    rates = table / np.maximum(tested, 1)[:, None]
    held = park.listed_counts * (tested > 0)

    def expected(counts: NDArray[np.int64]) -> float | None:
        return _defined(figure, Predictions(counts[:, None] * rates, np.nan), park) if counts.any() else None

    homes = [held[roster.factory_of == m].sum(axis=0) for m in places]
    return [expected(row) for row in held], [expected(row) for row in homes]


def _defined(figure: Figure, tested: Predictions, park: Park) -> float | None:
    classes = park.dataset.classes
    if figure.of and not figure.kind.ranking:
        of = classes.index(figure.of)
        if not tested.table[of].sum() + tested.table[:, of].sum():
            return None
    return figure.value(tested, classes)


def spread(values: Sequence[float | None]) -> dict[str, float]:
    """Return the 10th, 50th and 90th percentile of the values of devices, and of how many; empty where none has one.

    >>> spread([1.0, None, 1.0])
    {'p10': 1.0, 'p50': 1.0, 'p90': 1.0, 'devices': 2}
    """
    known = [one for one in values if one is not None]
    if not known:
        return {}
    return {f"p{q}": float(np.percentile(known, q)) for q in (10, 50, 90)} | {"devices": len(known)}
