"""A data set: labels and owners as arrays, images on demand as uint8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Owners = NDArray[np.int32]
Indices = NDArray[np.int64]

LETTERS_AND_DIGITS = (*"0123456789", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ", *"abcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images with a class each, and where they have them, natural owners. A pixel's value is ``scale`` · uint8.

    Args:
        name: as in ``[data] name``.
        classes: F names, in the order of the labels.
        shape: (C, H, W) of one image.
        y: int64 [N], labels of the training samples in 0..F−1.
        y_test: int64 [Nt].
        owner: int32 [N], who made each training sample, counted from 0; None where nobody is known.
        owner_test: int32 [Nt], with the same numbers as ``owner``.
        digest: SHA-256 over the content the data came from: the files' bytes, or the recipe of generated data.
        take: (training indices [n], device) → uint8 [n, C, H, W]. Only generated data look at the device: a device
            prints in its own style whatever the partition hands it. A pure function of its arguments.
        take_test: test indices [n] → uint8 [n, C, H, W].
        rendered: True where ``take`` makes its images anew each time, so that keeping them saves time.
        scale: factor from a uint8 to the pixel's value.
    """

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    y: Labels
    y_test: Labels
    owner: Owners | None
    owner_test: Owners | None
    digest: str
    take: Callable[[Indices, int], Images]
    take_test: Callable[[Indices], Images]
    rendered: bool = False
    scale: float = 1 / 255


@dataclass(frozen=True, eq=False)
class Pool:
    """Samples held in memory: one contiguous array, so that forked processes share its pages.

    Args:
        x: uint8 [N, C, H, W].
        y: int64 [N].
        owner: int32 [N], or None.
    """

    x: Images
    y: Labels
    owner: Owners | None = None


def pooled(name: str, classes: tuple[str, ...], train: Pool, test: Pool, digest: str) -> Dataset:
    """Make a data set of two arrays of images, whose ``take`` is ``x[indices]``.

    >>> ones = Pool(np.ones((3, 1, 2, 2), np.uint8), np.array([0, 1, 1]))
    >>> pooled("tiny", ("a", "b"), ones, ones, "").take(np.array([2, 0]), 0).shape
    (2, 1, 2, 2)
    """

    def take(indices: Indices, device: int) -> Images:  # noqa: ARG001  (who asks makes no difference here)
        return train.x[indices]

    def take_test(indices: Indices) -> Images:
        return test.x[indices]

    channels, height, width = train.x.shape[1:]
    return Dataset(
        name, classes, (channels, height, width), train.y, test.y, train.owner, test.owner, digest, take, take_test
    )
