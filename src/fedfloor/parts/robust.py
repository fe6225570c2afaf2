"""Mixing rules that bear outliers: coordinate median, trimmed mean, Krum and Multi-Krum.

Models count equally here, whatever their devices hold: a weight that a device can claim would undo the protection. A
coordinate that is not a number counts as larger than every other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedfloor.errors import SettingError, require
from fedfloor.parts.means import Models, mean, rows, spans


def median(models: Models) -> Tensor:
    """Return the median of every coordinate; of an even number of models the mean of the two in the middle.

    Yin et al., ICML 2018, arXiv 1803.01498.

    Args:
        models: float32 [n, P].

    >>> median(torch.tensor([[1.0], [9.0], [2.0], [4.0]]))
    tensor([3.])
    """
    found = rows(models)
    out, middle = torch.empty_like(found[0]), len(found) // 2
    for span, ordered in _sorted(found):
        high = ordered[:, middle]
        # halves first: the sum of two large numbers may not be one
        out[span] = torch.from_numpy(high if len(found) % 2 else ordered[:, middle - 1] * 0.5 + high * 0.5)
    return out


def trimmed_mean(models: Models, share: float) -> Tensor:
    """Return the mean of every coordinate without its ⌊b·n⌋ smallest and ⌊b·n⌋ largest values.

    With b = 0, or so few models that b·n < 1, it is the plain mean to the bit. Yin et al., ICML 2018, arXiv 1803.01498.

    Args:
        models: float32 [n, P].
        share: b, trimmed at each end, in [0, 1/2).

    Raises:
        SettingError: a share that would trim everyone.

    >>> trimmed_mean(torch.tensor([[1.0], [90.0], [2.0], [4.0], [3.0]]), 0.2)
    tensor([3.])
    """
    require(
        0 <= share < 0.5,
        "share trimmed at each end",
        share,
        "at least 0 and below 0.5, as half at each end is everyone",
    )
    found = rows(models)
    n = len(found)
    cut = min(math.floor(share * n + 1e-9), (n - 1) // 2)  # 0.29·100 is 28.999999999999996, and somebody stays
    if cut == 0:
        return mean(found)
    out = torch.empty_like(found[0])
    for span, ordered in _sorted(found):
        out[span] = torch.from_numpy(ordered[:, cut : n - cut].sum(1)).div_(n - 2 * cut)
    return out


def krum(models: Models, outliers: int) -> Tensor:
    """Krum: return the model with the smallest sum of squared distances to its n − f − 2 nearest others.

    Of equal ones the first. Blanchard et al., NeurIPS 2017.

    Args:
        models: float32 [n, P].
        outliers: f, how many models may be anything; n ≥ 2f + 3.

    Raises:
        SettingError: too few models for so many outliers.

    >>> krum(torch.tensor([[0.0], [1.0], [3.0], [4.0], [100.0]]), outliers=1)
    tensor([1.])
    """
    return multi_krum(models, outliers, keep=1)


def multi_krum(models: Models, outliers: int, keep: int | None = None) -> Tensor:
    """Multi-Krum: return the plain mean of the m models with the best Krum scores.

    With m = 1 it is Krum, with f = 0 and m = n the plain mean. The paper lets m be anything from 1 to n and uses
    m = n − f in its experiments; more than that are refused here, as one would be an outlier. Blanchard et al., NeurIPS
    2017.

    Args:
        models: float32 [n, P].
        outliers: f, how many models may be anything; n ≥ 2f + 3.
        keep: m, from 1 to n − f; n − f if left out.

    Raises:
        SettingError: too few models for so many outliers, or m out of range.
    """
    found = rows(models)
    scores = krum_scores(found, outliers)
    most = len(found) - outliers
    m = most if keep is None else keep
    require(1 <= m <= most, "krum keep", m, f"1 to {most}, the {len(found)} models without {outliers} outliers")
    best = sorted(sorted(range(len(found)), key=lambda i: (scores[i], i))[:m])  # added in the order of branches
    return mean([found[i] for i in best])


def krum_scores(models: Models, outliers: int) -> list[float]:
    """Return each model's sum of squared distances to its n − f − 2 nearest others.

    Raises:
        SettingError: too few models for so many outliers.

    >>> krum_scores(torch.tensor([[0.0], [1.0], [3.0]]), outliers=0)
    [1.0, 1.0, 4.0]
    """
    found = rows(models)
    n = len(found)
    require(outliers >= 0, "krum outliers", outliers, "a whole number of at least 0")
    if n < 2 * outliers + 3:
        most = (n - 3) // 2
        fewer = f", or lower krum outliers to at most {most}" if most >= 0 else ""
        raise SettingError(
            f"krum with {n} models and outliers = {outliers}: it needs at least 2·{outliers} + 3 = {2 * outliers + 3} "
            f"models. Let {2 * outliers + 3 - n} more take part{fewer}."
        )
    apart = _distances(found)
    return [float(np.sort(np.delete(apart[i], i))[: n - outliers - 2].sum()) for i in range(n)]


def _distances(found: list[Tensor]) -> np.ndarray:
    """Return the squared distances between all pairs, float64 [n, n]; one that is not a number is infinite.

    By differences, not by products: models differ far less from each other than from 0.
    """
    n = len(found)
    apart = torch.zeros(n, n, dtype=torch.float64)
    for span in spans(found[0].numel()):
        block = torch.stack([one[span] for one in found])
        for i in range(n - 1):
            apart[i, i + 1 :] += (block[i + 1 :] - block[i]).square_().sum(1)
    apart = torch.nan_to_num(apart, nan=math.inf, posinf=math.inf)
    return (apart + apart.T).numpy()


def _sorted(found: list[Tensor]) -> Iterator[tuple[slice, np.ndarray]]:
    """Return chunks of coordinates with the n values of each in ascending order, float32 [chunk, n]."""
    for span in spans(found[0].numel()):
        block = np.stack([one[span].numpy() for one in found], axis=1)
        block += 0.0  # −0 becomes 0: sorting leaves their order open
        block.sort(axis=1)  # of lines that lie together it is several times faster than of columns
        yield span, block
