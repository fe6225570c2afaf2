"""Predicted numbers beside the true ones, as ``evaluation.json`` has them and a report draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Owners
from fedfloor.figures import ROUNDING, Errors

POINTS = 2000  # samples that are kept one by one, evenly over the order of their true numbers
TARGETS = 500  # targets that are kept one by one
DIGITS = 6
Floats = NDArray[np.float64]


def describe(errors: Errors, bins: Sequence[str], owners: Owners | None) -> dict[str, Any]:
    """Return all of it as JSON.

    Args:
        errors: true and predicted numbers of the test samples.
        bins: names of the ranges of the first target.
        owners: [n], the device of each sample; None where samples have none.

    Returns:
        ``unit``, ``cap``, ``levels`` and ``samples``; ``targets``: RMSE, mean absolute error and mean error of each,
        and the share of the true numbers that is not above each level; ``ranges``: the same of the samples in each
        range of the first target; ``points``: that target sample by sample, of at most 2,000 samples.
    """
    many, middle = errors.true.shape[1], errors.predicted.shape[2] // 2
    names = _names(errors.names, many)
    place = np.searchsorted(np.array(errors.edges, np.float32), errors.wanted[:, 0].astype(np.float32), "right")
    order = np.argsort(errors.wanted[:, 0], kind="stable")
    shown = order[np.linspace(0, len(order) - 1, min(len(order), POINTS)).round().astype(np.int64)]
    points: dict[str, Any] = {
        "true": _short(errors.wanted[shown, 0]), "predicted": _short(errors.predicted[shown, 0, middle])
    }  # fmt: skip
    if errors.levels:
        points |= {"low": _short(errors.predicted[shown, 0, 0]), "high": _short(errors.predicted[shown, 0, -1])}
    if owners is not None:
        points["device"] = owners[shown].tolist()
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
    """Return what the errors of some samples come to."""
    wanted, found = errors.wanted[rows, target], errors.predicted[rows, target]
    away = errors.away[rows, target]
    slack = ROUNDING * np.abs(errors.wanted[:, target]).max(initial=0.0)
    told: dict[str, Any] = {
        "samples": len(rows), "rmse": float(np.sqrt(np.square(away).mean())), "mae": float(np.abs(away).mean()),
        "bias": float(away.mean()),
    }  # fmt: skip
    if errors.levels:
        told["below"] = (wanted[:, None] <= found + slack).mean(axis=0).tolist()
        told["inside"] = float(((found[:, 0] - slack <= wanted) & (wanted <= found[:, -1] + slack)).mean())
    return told


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
    return [float(f"{one:.{DIGITS}g}") for one in values.tolist()]
