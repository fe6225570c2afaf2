"""Figures of an evaluation: confusion matrix, the headline of each device and factory, errors of predicted numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Indices, Labels, Owners
from fedfloor.figures import ROUNDING, Counts, Errors, Figure, Predictions, macro_f1
from fedfloor.park.local import Roster
from fedfloor.park.park import Park

Values = tuple[list[float | None], list[float | None]]  # of the roster's devices, and of its factories
POINTS = 2000  # samples that are kept one by one, evenly over the order of their true numbers
TARGETS = 500  # targets that are kept one by one
DIGITS = 6


@dataclass(frozen=True, eq=False)
class SampleAnswers:
    """Answers to single test samples: their natural owners [n] or None, and the figures of a subset by its rows."""

    owners: Owners | None
    part: Callable[[Indices], Predictions]


def headlines(park: Park, figure: Figure, table: Counts, answers: SampleAnswers) -> Values:
    """Return a figure of each device and factory of the park's roster; None where it is not defined there.

    Measured, where test samples have owners: over the device's own test samples, or those of all devices of the
    factory. Expected otherwise: on test samples in the device's, or the factory's, own mix of classes, by how often
    each class is taken for which. A figure that ranks samples, or the loss, is not known from that. The figure of a
    class is not defined where no sample is of it and none was taken for it.
    """
    roster, places = park.roster, range(len(park.roster.factories))
    if figure.kind.column == "loss":
        return [None] * len(roster.numbers), [None] * len(places)
    if roster.figures == "measured" and answers.owners is not None:
        order = np.argsort(answers.owners, kind="stable")
        ordered = answers.owners[order]

        def measured(owners: Sequence[int]) -> float | None:
            ends = [np.searchsorted(ordered, [owner, owner + 1]) for owner in owners if owner >= 0]
            rows = np.concatenate([order[:0], *(order[first:last] for first, last in ends)])
            return _defined(figure, answers.part(rows), park) if len(rows) else None

        homes = [np.unique(roster.owners[roster.factory_of == m]).tolist() for m in places]
        return [measured([owner]) for owner in roster.owners.tolist()], [measured(home) for home in homes]
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
        index = classes.index(figure.of)
        if not tested.table[index].sum() + tested.table[:, index].sum():
            return None
    return figure.value(tested, classes)


def spread(values: Sequence[float | None]) -> dict[str, float]:
    """Return the 10th, 50th and 90th percentile of the values of devices, and of how many; empty where none has one.

    >>> spread([1.0, None, 1.0])
    {'p10': 1.0, 'p50': 1.0, 'p90': 1.0, 'devices': 2}
    """
    known = [value for value in values if value is not None]
    if not known:
        return {}
    return {f"p{q}": float(np.percentile(known, q)) for q in (10, 50, 90)} | {"devices": len(known)}


Floats = NDArray[np.float64]


def describe_errors(errors: Errors, bins: Sequence[str], owners: Owners | None) -> dict[str, Any]:
    """Return all of it as JSON.

    Returns:
        ``unit``, ``cap``, ``levels`` and ``samples``; ``targets``: RMSE, mean absolute error and mean error of each,
        and the share of the true numbers that is not above each level; ``ranges``: the same of the samples in each
        range of the first target; ``points``: that target sample by sample, of at most 2,000 samples.
    """
    many, middle = errors.true.shape[1], errors.predicted.shape[2] // 2
    names = _names(errors.names, many)
    place = np.searchsorted(np.array(errors.edges, np.float32), errors.wanted[:, 0].astype(np.float32), "right")
    order = np.argsort(errors.wanted[:, 0], kind="stable")
    kept = order[np.linspace(0, len(order) - 1, min(len(order), POINTS)).round().astype(np.int64)]
    points: dict[str, Any] = {
        "true": _short(errors.wanted[kept, 0]), "predicted": _short(errors.predicted[kept, 0, middle])
    }  # fmt: skip
    if errors.levels:
        points |= {"low": _short(errors.predicted[kept, 0, 0]), "high": _short(errors.predicted[kept, 0, -1])}
    if owners is not None:
        points["device"] = owners[kept].tolist()
    return {
        "unit": errors.unit, "cap": errors.cap, "levels": list(errors.levels), "samples": len(order),
        "targets": [{"name": name} | _of(errors, np.arange(len(order)), at) for at, name in enumerate(names[:TARGETS])],
        "ranges": [
            {"name": name} | _of(errors, np.flatnonzero(place == at), 0)
            for at, name in enumerate(bins) if (place == at).any()
        ],
        "points": points,
    }  # fmt: skip


def _of(errors: Errors, rows: NDArray[np.int64], target: int) -> dict[str, Any]:
    wanted, predicted = errors.wanted[rows, target], errors.predicted[rows, target]
    away = errors.away[rows, target]
    slack = ROUNDING * np.abs(errors.wanted[:, target]).max(initial=0.0)
    described: dict[str, Any] = {
        "samples": len(rows), "rmse": float(np.sqrt(np.square(away).mean())), "mae": float(np.abs(away).mean()),
        "bias": float(away.mean()),
    }  # fmt: skip
    if errors.levels:
        described["below"] = (wanted[:, None] <= predicted + slack).mean(axis=0).tolist()
        described["inside"] = float(((predicted[:, 0] - slack <= wanted) & (wanted <= predicted[:, -1] + slack)).mean())
    return described


def _names(names: Sequence[str], many: int) -> list[str]:
    """Return a name for each target: of rows ahead, how many rows.

    >>> _names(["a", "b"], 4)
    ['a, 1 ahead', 'a, 2 ahead', 'b, 1 ahead', 'b, 2 ahead']
    """
    if not names:
        return [f"value {at + 1}" for at in range(many)]
    ahead = many // len(names)
    if ahead == 1:
        return list(names)
    return [f"{name}, {row + 1} ahead" for name in names for row in range(ahead)]


def _short(values: Floats) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values.tolist()]


def confusion(y: Labels, predicted: Labels, classes: int) -> Counts:
    """Return int64 [F, F]: how many samples of class i (row) were taken for class j (column).

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2)
    array([[1, 1],
           [0, 1]])
    """
    return np.bincount(y * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def factory_accuracy(roster: Roster, by_device: NDArray[np.float64]) -> list[float | None]:
    """Return each factory's accuracy Σ_k n_k·a_k / Σ_k n_k over its devices k that have one; None where none has."""
    known = ~np.isnan(by_device) & (roster.factory_of >= 0)
    weight, factory_of = roster.weights[known], roster.factory_of[known]
    total = np.bincount(factory_of, weights=weight, minlength=len(roster.factories))
    right = np.bincount(factory_of, weights=weight * by_device[known], minlength=len(roster.factories))
    return [float(r / n) if n else None for r, n in zip(right, total, strict=True)]


def describe(
    park: Park, table: Counts, by_device: NDArray[np.float64], headlines: Mapping[str, Values] | None = None,
    errors: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return all of it as JSON: what ``evaluation.json`` in a run's folder says beside accuracy and loss.

    ``device_accuracy`` says whether the devices' and factories' figures are measured on test samples of their own or
    expected from their classes. ``figures`` of each has the headline where that is not the accuracy; None where it is
    not defined there, for instance where only one class was tested. Of a park with more than 5,000 devices it has those
    of the roster, and their number.
    """
    roster, extra = park.roster, {} if errors is None else {"errors": errors}
    shares = [None if np.isnan(value) else float(value) for value in by_device]
    rows = zip(roster.numbers.tolist(), roster.names, roster.factory_of.tolist(), shares, strict=True)

    def more(at: int, place: int) -> dict[str, Any]:
        return {"figures": {name: extra[at][place] for name, extra in (headlines or {}).items()}} if headlines else {}

    def role(device: int, share: float | None) -> dict[str, str]:  # where a device does not both train and test
        if roster.figures == "expected" or (share is not None and device < park.devices):
            return {}
        return {"role": "trains only" if device < park.devices else "tests only"}

    factories = zip(roster.factories, factory_accuracy(roster, by_device), strict=True)
    return (
        {
            "macro_f1": macro_f1(table),
            "classes": list(park.dataset.classes),
            "confusion": table.tolist(),
            "device_accuracy": roster.figures,
            "devices": [
                {"device": k, "name": name, "factory": m if m >= 0 else None, "accuracy": share}
                | more(0, row)
                | role(k, share)
                for row, (k, name, m, share) in enumerate(rows)
            ],
            "factories": [
                {"factory": m, "name": name, "accuracy": share} | more(1, m)
                for m, (name, share) in enumerate(factories)
            ],
        }
        | ({} if len(park.listed) == park.devices else {"of_devices": park.devices})
        | extra
    )
