"""Statistics of devices' samples (counts, sums, sums of squares), and the state of a normalisation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Dataset, Indices, Values

CHUNK = 1024  # samples summed at a time
SMALLEST = 1e-30  # smallest deviation with a finite reciprocal in single precision
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RemoteStatistics:
    """Statistics that devices report of samples that stay on them.

    Args:
        counts: int64 [K, F], the reported class counts, including noise; None: the samples are in this process.
        standard: the mean and the deviation of each channel over all devices, float64 [C] each; None: not reported.
        sums: float64 [K, 3, C], the answers of :func:`device_sums`; None: not reported.
    """

    counts: NDArray[np.int64] | None = None
    standard: tuple[Floats, Floats] | None = None
    sums: Floats | None = None


def device_sums(x: Values) -> tuple[Floats, Floats, Floats]:
    """Return the sums of one device per channel: the count n of its values v, S = Σ v and D = Σ (v − S/n)².

    Squares are summed around the device's own mean, as Σ v² − S²/n cancels for values such as 1e6 ± 0.01.

    Args:
        x: uint8 or float32 [samples, C, …]; NaN is not counted.

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


def standard(sums: Iterable[tuple[Floats, Floats, Floats]], scale: float = 1.0) -> tuple[Floats, Floats]:
    """Return mean m [C] = Σ_k S_k / n and standard deviation [C] = √(Σ_k (D_k + n_k (m_k − m)²) / n), both times scale.

    Here n = Σ_k n_k and m_k = S_k/n_k. A constant channel has deviation 1; a channel without values also has mean 0.

    Args:
        sums: (n_k, S_k, D_k) of each device from :func:`device_sums`, in the order of devices.
        scale: factor from a stored number to its value.

    Reference: Chan, Golub, LeVeque, The American Statistician 37 (1983) 242, doi:10.1080/00031305.1983.10483115.

    >>> standard([(np.array([1.0]), np.array([2.0]), np.zeros(1)), (np.ones(1), np.array([4.0]), np.zeros(1))])
    (array([3.]), array([1.]))
    """
    count, total, squares = (np.zeros(()) for _ in range(3))
    for n, s, d in sums:
        both = np.maximum(count + n, 1)
        apart = s / np.maximum(n, 1) - total / np.maximum(count, 1)
        squares = squares + d + apart**2 * (count * n / both)
        count = count + n
        total = total + s
    known = np.maximum(count, 1)
    mean = total / known
    deviation = np.sqrt(squares / known)
    constant = deviation <= np.maximum(1e-14 * np.abs(mean), SMALLEST)  # zero, or a rounding error
    return scale * mean, np.where(constant, 1.0, scale * deviation)


def first_rows(x: Values, first: Indices | None, rows: int | None) -> Values:
    """Return the rows of samples, each once, [R, C]; at most ``rows`` of them.

    Args:
        x: [n, C], or windows [n, C, L].
        first: int64 [n], the first row of each window if windows may share rows; otherwise None.
        rows: R at most; None for all.

    >>> first_rows(np.array([[[1.0, 2.0]], [[2.0, 3.0]]], np.float32), np.array([0, 1]), None).ravel().tolist()
    [1.0, 2.0, 3.0]
    """
    if x.ndim > 2:
        flat = x.transpose(0, 2, 1).reshape(-1, x.shape[1])
        if first is not None:
            flat = flat[np.unique((first[:, None] + np.arange(x.shape[2])).ravel(), return_index=True)[1]]
        x = flat
    return x if rows is None else x[:rows]


Statistics = tuple[NDArray[np.float32], NDArray[np.float32]]  # mean and deviation of each channel


@dataclass(frozen=True)
class Step:
    """A question to every device before round 1, or the delivery of its result to every device.

    Args:
        kind: the kind of the :class:`~fedfloor.park.survey.RowQuestion`; ``"result"``: no question.
        down, up: bytes to each device and from it.
    """

    kind: str
    down: int
    up: int


@dataclass(frozen=True, eq=False)
class Normalised:
    """The normalisation of a park's samples before the network's own scaling, and that remaining scaling.

    Args:
        about: the entries for a model's header.
        apply: (stored samples, device) → samples normalised as those of the device.
        statistics: device's name → mean and deviation of each sensor, for all devices with samples in this process.
        alike: centre and scale [C] of the network's scaling; None: 0 and 1.
        steps: the questions to devices; empty if devices keep their statistics.
        stored: the data set before its normalisation; None if the network normalises, or samples are elsewhere.
    """

    about: Mapping[str, Any]
    apply: Callable[[Values, int], Values]
    statistics: Callable[[], Mapping[str, Statistics]]
    alike: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    steps: tuple[Step, ...] = ()
    stored: Dataset | None = None
