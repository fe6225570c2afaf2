"""Class counts of batches that owners of a data set draw, for problems that need no park."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Dataset


def by_owner(data: Dataset) -> list[NDArray[np.int64]]:
    """Return the labels of each owner's samples; of a data set without owners one list of all.

    Args:
        data: the data set.
    """
    owner = np.zeros(len(data.y), np.int32) if data.owner is None else data.owner
    order = np.argsort(owner, kind="stable")
    labels = np.asarray(data.y)[order]
    return np.split(labels, np.flatnonzero(np.diff(owner[order])) + 1)


def drawn(
    devices: int, labels: Sequence[NDArray[np.int64]], rng: np.random.Generator, size: int, classes: int
) -> NDArray[np.int64]:
    """Return the counts of a batch of each of some owners, different ones where there are enough [F, devices].

    Args:
        devices: how many.
        labels: of each owner's samples; one with fewer than a batch has them more than once.
        rng: of the draws.
        size: samples of a batch.
        classes: F.
    """
    owners = rng.choice(len(labels), devices, replace=devices > len(labels))
    held = [rng.choice(labels[one], size, replace=labels[one].size < size) for one in owners]
    return np.stack([np.bincount(one, minlength=classes) for one in held], axis=1)
