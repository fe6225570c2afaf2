"""An attack on what devices tell: their labels and mean features guessed from those of devices that told alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STRENGTHS = tuple(10.0**i for i in range(-4, 5))  # of ridge regression, to choose among
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def attacked(said: Floats, top: Integers, means: Floats) -> tuple[float, float, float]:
    """Return the share of right guesses of the second half's labels, and two relative errors of their mean features.

    Relative error: Σ‖v̂ − v‖² / Σ‖v − v̄‖², v̄ the mean of the first half: 0 knows all, 1 nothing. First that of ridge
    regression on what was told, then that of the mean of the nearest known devices.

    Args:
        said: what devices told [2K, …]; of the first K all is known.
        top: the label each has most of [2K].
        means: v [2K, D].
    """
    half = len(said) // 2
    near = nearest(said[:half], said[half:])
    right = float((guessed(near, top[:half]) == top[half:]).mean())
    if said.shape == means.shape and (said == means).all():
        return right, 0.0, 0.0  # it is told
    v, centre = means[half:], means[:half].mean(0)
    guesses = rebuilt(said[:half], means[:half], said[half:]), near @ means[:half] / near.sum(1, keepdims=True)
    ridge, alike = (float(((guess - v) ** 2).sum() / ((v - centre) ** 2).sum()) for guess in guesses)
    return right, ridge, alike


def nearest(known: Floats, said: Floats) -> Integers:
    """Return 1 for the known devices that told what is nearest, all that are equally near, else 0: [m, n].

    Args:
        known: what these told [n, …].
        said: what the others told [m, …].

    >>> nearest(np.array([[0.0], [0.0], [9.0]]), np.array([[1.0], [8.0]])).tolist()
    [[1, 1, 0], [0, 0, 1]]
    """
    from scipy.spatial.distance import cdist

    apart = cdist(said, known, "sqeuclidean")
    near: Integers = (apart == apart.min(1, keepdims=True)).astype(np.int64)
    return near


def guessed(near: Integers, kinds: Integers) -> Integers:
    """Return the kind that most of the nearest have [m]; of kinds as frequent the first.

    Args:
        near: of :func:`nearest` [m, n].
        kinds: what each known device is [n].

    >>> guessed(np.array([[1, 1, 1, 0], [0, 0, 0, 1]]), np.array([1, 2, 2, 3])).tolist()
    [2, 3]
    """
    votes: Integers = near @ (kinds[:, None] == np.arange(kinds.max() + 1)).astype(np.int64)
    most: Integers = votes.argmax(1)
    return most


def rebuilt(known: Floats, means: Floats, said: Floats) -> Floats:
    """Return mean features [m, D] by ridge regression on what was told, its strength by leaving one out.

    Args:
        known: what known devices told [n, …].
        means: their mean features [n, D].
        said: what the others told [m, …].
    """
    from sklearn.linear_model import RidgeCV

    spread = known.std(0)
    scale = np.where(spread > 0, spread, 1)
    centre = known.mean(0)
    found: Floats = RidgeCV(STRENGTHS).fit((known - centre) / scale, means).predict((said - centre) / scale)
    return found
