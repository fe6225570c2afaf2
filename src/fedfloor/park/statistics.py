"""Normalisation from what each device tells: counts, sums and sums of squares, never its samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Values

CHUNK = 1024  # samples summed at once
SMALLEST = 1e-30  # deviations from here on have a reciprocal in single precision
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Told:
    """What devices say of samples that stay with them.

    Args:
        counts: int64 [K, F], the class counts that they report, noise and all; None: the samples are here.
        standard: the mean and the deviation of each channel over all devices, float64 [C] each; None: not asked for.
    """

    counts: NDArray[np.int64] | None = None
    standard: tuple[Floats, Floats] | None = None


def device_sums(x: Values) -> tuple[Floats, Floats, Floats]:
    """Return what one device tells: per channel the count n of its numbers v, S = Σ v and D = Σ (v − S/n)².

    Squares are summed around the device's own mean: Σ v² − S²/n would lose 1e6 ± 0.01 in rounding.

    Args:
        x: uint8 or float32 [samples, C, …]; NaN is no number and not counted.

    >>> device_sums(np.array([[[[1, 2]]], [[[3, 4]]]], np.uint8))
    (array([4.]), array([10.]), array([5.]))
    """
    count, total, squares = (np.zeros(x.shape[1]) for _ in range(3))
    axes = (0, *range(2, x.ndim))
    for part in _chunks(x):
        count += (~np.isnan(part)).sum(axis=axes)
        total += np.nansum(part, axis=axes)
    mean = (total / np.maximum(count, 1)).reshape(-1, *(1,) * (x.ndim - 2))
    for part in _chunks(x):
        squares += np.nansum((part - mean) ** 2, axis=axes)
    return count, total, squares


def _chunks(x: Values) -> Iterator[Floats]:
    for start in range(0, len(x), CHUNK):
        yield x[start : start + CHUNK].astype(np.float64)


def standard(told: Iterable[tuple[Floats, Floats, Floats]], scale: float = 1.0) -> tuple[Floats, Floats]:
    """Return mean m [C] = Σ_k S_k / n and standard deviation [C] = √(Σ_k (D_k + n_k (m_k − m)²) / n), both times scale.

    Here n = Σ_k n_k and m_k = S_k/n_k. A channel that is constant, or that nobody has a number of, has deviation 1 (and
    in the second case mean 0).

    Args:
        told: (n_k, S_k, D_k) of each device, as of :func:`device_sums`, in the devices' order.
        scale: factor from a stored number to its value.

    Reference: Chan, Golub, LeVeque, The American Statistician 37 (1983) 242, doi:10.1080/00031305.1983.10483115.

    >>> standard([(np.array([1.0]), np.array([2.0]), np.zeros(1)), (np.ones(1), np.array([4.0]), np.zeros(1))])
    (array([3.]), array([1.]))
    """
    count, total, squares = (np.zeros(()) for _ in range(3))
    for n, s, d in told:
        both = np.maximum(count + n, 1)
        apart = s / np.maximum(n, 1) - total / np.maximum(count, 1)
        squares = squares + d + apart**2 * (count * n / both)
        count, total = count + n, total + s
    known = np.maximum(count, 1)
    mean, deviation = total / known, np.sqrt(squares / known)
    constant = deviation <= np.maximum(1e-14 * np.abs(mean), SMALLEST)  # nothing, or what rounding leaves of it
    return scale * mean, np.where(constant, 1.0, scale * deviation)
