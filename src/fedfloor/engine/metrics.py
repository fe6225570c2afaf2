"""What predictions come to: confusion, and accuracy by device and factory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Labels
from fedfloor.engine.headlines import Values
from fedfloor.figures import Counts, macro_f1
from fedfloor.park.local import Roster
from fedfloor.park.park import Park


def confusion(y: Labels, predicted: Labels, classes: int) -> Counts:
    """Return int64 [F, F]: how many samples of class i (row) were taken for class j (column).

    Args:
        y: int64 [n], the true classes.
        predicted: int64 [n].
        classes: F.

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2)
    array([[1, 1],
           [0, 1]])
    """
    return np.bincount(y * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def factory_accuracy(roster: Roster, by_device: NDArray[np.float64]) -> list[float | None]:
    """Return each factory's accuracy Σ_k n_k·a_k / Σ_k n_k over its devices k that have one; None where none has.

    Args:
        roster: whose devices, and their weights n_k.
        by_device: float64 [n], a_k, NaN where there is none.
    """
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

    Args:
        park: the devices.
        table: int64 [F, F], the confusion matrix.
        by_device: float64 [n], the accuracy of each device of the roster, NaN where there is none.
        headlines: name → the headline of each device and factory; None: it is the accuracy.
        errors: predicted numbers beside the true ones; None where classes are predicted.
    """
    roster, found = park.roster, {} if errors is None else {"errors": errors}
    shares = [None if np.isnan(value) else float(value) for value in by_device]
    rows = zip(roster.numbers.tolist(), roster.names, roster.factory_of.tolist(), shares, strict=True)

    def more(at: int, place: int) -> dict[str, Any]:
        return {"figures": {name: found[at][place] for name, found in (headlines or {}).items()}} if headlines else {}

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
                | _role(park, k, share)
                for row, (k, name, m, share) in enumerate(rows)
            ],
            "factories": [
                {"factory": m, "name": name, "accuracy": share} | more(1, m)
                for m, (name, share) in enumerate(factories)
            ],
        }
        | ({} if len(park.listed) == park.devices else {"of_devices": park.devices})
        | found
    )


def _role(park: Park, device: int, share: float | None) -> dict[str, str]:
    """Return what a device does that does not both train and test, where figures are measured."""
    if park.roster.figures == "expected" or (share is not None and device < park.devices):
        return {}
    return {"role": "trains only" if device < park.devices else "tests only"}
