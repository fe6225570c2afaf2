"""Normalisation from what each device tells: counts, sums and sums of squares, never its samples."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedfloor.park.dataset import Values

CHUNK = 1024  # samples summed at once
Floats = NDArray[np.float64]


def device_sums(x: Values) -> tuple[Floats, Floats, Floats]:
    """Return what one device tells: per channel the count n of its numbers v, Σ v and Σ v²; exact for bytes.

    Args:
        x: uint8 or float32 [samples, C, …]; NaN is no number and not counted.

    >>> device_sums(np.array([[[[1, 2]]], [[[3, 4]]]], np.uint8))
    (array([4.]), array([10.]), array([30.]))
    """
    kind = np.int64 if x.dtype.kind in "iu" else np.float64
    count, total, squares = (np.zeros(x.shape[1], kind) for _ in range(3))
    axes = (0, *range(2, x.ndim))
    for start in range(0, len(x), CHUNK):
        part = x[start : start + CHUNK].astype(kind)
        known = ~np.isnan(part)
        part = np.where(known, part, 0)
        count += known.sum(axis=axes)
        total += part.sum(axis=axes)
        squares += (part * part).sum(axis=axes)
    return count.astype(np.float64), total.astype(np.float64), squares.astype(np.float64)


def standard(told: Iterable[tuple[Floats, Floats, Floats]], scale: float = 1.0) -> tuple[Floats, Floats]:
    """Return mean [C] = Σ_k S_k / n and standard deviation [C] = √(Σ_k Q_k / n − mean²), n = Σ_k n_k, both times scale.

    A channel that is constant, or that nobody has a number of, has deviation 1 (and in the second case mean 0).

    Args:
        told: (n_k, S_k, Q_k) of each device, as of :func:`device_sums`, in the devices' order.
        scale: factor from a stored number to its value.

    >>> standard([(np.array([1.0]), np.array([2.0]), np.array([4.0])), (np.ones(1), np.array([4.0]), np.array([16.0]))])
    (array([3.]), array([1.]))
    """
    count, total, squares = (np.zeros(()) for _ in range(3))
    for n, s, q in told:
        count, total, squares = count + n, total + s, squares + q
    known = np.maximum(count, 1)
    mean = total / known
    variance = np.maximum(squares / known - mean**2, 0.0)
    # what is left of a constant channel is rounding: about 1e-16 of the mean's square
    constant = variance <= 1e-14 * mean**2
    return scale * mean, np.where(constant, 1.0, scale * np.sqrt(variance))
