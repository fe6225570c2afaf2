"""What predictions come to: confusion, F1, accuracy by class, device and factory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Labels
from fedfloor.park.park import Park

Counts = NDArray[np.int64]


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


def macro_f1(table: Counts) -> float:
    """Return the mean of F1 = 2·TP / (2·TP + FP + FN) over the classes that occur or were predicted.

    Args:
        table: int64 [F, F], of :func:`confusion`.

    >>> round(macro_f1(np.array([[1, 1], [0, 1]])), 4)
    0.6667
    """
    right = np.diag(table)
    said = table.sum(axis=0) + table.sum(axis=1)  # 2·TP + FP + FN
    there = said > 0
    return float((2 * right[there] / said[there]).mean())


def class_accuracy(table: Counts) -> NDArray[np.float64]:
    """Return float64 [F], the share of each class's samples that are right; NaN for a class without samples."""
    of_class = table.sum(axis=1)
    share = np.full(len(table), np.nan)
    np.divide(np.diag(table), of_class, out=share, where=of_class > 0)
    return share


def factory_accuracy(park: Park, by_device: NDArray[np.float64]) -> list[float | None]:
    """Return each factory's accuracy Σ_k n_k·a_k / Σ_k n_k over its devices k of which one is known.

    Args:
        park: whose devices.
        by_device: float64 [shown], a_k of the devices that are shown, NaN where it cannot be told; n_k are the device's
            own test samples where devices have them, else its training samples.
    """
    weight, factory_of = np.where(np.isnan(by_device), 0, park.weights[park.shown]), park.factory_of[park.shown]
    total = np.bincount(factory_of, weights=weight, minlength=park.factories)
    right = np.bincount(factory_of, weights=weight * np.nan_to_num(by_device), minlength=park.factories)
    return [float(r / n) if n else None for r, n in zip(right, total, strict=True)]


def describe(park: Park, table: Counts, by_device: NDArray[np.float64]) -> dict[str, Any]:
    """Return all of it as JSON: what ``evaluation.json`` in a run's folder says beside accuracy and loss.

    Of a park with more than 5,000 devices it speaks of those that are shown, and says how many there are.
    """
    shown, names = park.shown.tolist(), park.names
    shares = [None if np.isnan(value) else float(value) for value in by_device]
    of_device = zip(shown, park.factory_of[park.shown].tolist(), shares, strict=True)
    factories = factory_accuracy(park, by_device)
    called = park.factory_names or (None,) * park.factories
    return {
        "macro_f1": macro_f1(table),
        "classes": list(park.dataset.classes),
        "confusion": table.tolist(),
        "devices": [
            {"device": k, "name": names[k] if names else None, "factory": m, "accuracy": share}
            for k, m, share in of_device
        ],
        "factories": [
            {"factory": m, "name": name, "accuracy": share}
            for m, (name, share) in enumerate(zip(called, factories, strict=True))
        ],
    } | ({} if len(shown) == park.devices else {"of_devices": park.devices})  # fmt: skip
