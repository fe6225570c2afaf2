"""The devices that figures name one by one, and what their figures are: measured, or expected from their classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedfloor.data.dataset import Dataset

SHOWN = 5_000  # devices that figures and files name one by one
Figures = Literal["measured", "expected"]


@dataclass(frozen=True, eq=False)
class Roster:
    """The devices of the park that are ``shown``, and after them those that test a model and never train it.

    Args:
        figures: ``"measured"`` where test samples have owners, and devices are natural owners or these owners never
            train: a device's accuracy is that on its own test samples. ``"expected"`` otherwise: it follows from the
            device's mix of classes.
        numbers: int64 [n]; devices that only test are counted on from K.
        owners: int64 [n], their natural owners, −1 for none; empty where figures are expected.
        names: [n], None where a device has none.
        factory_of: int64 [n], a place in ``factories``; −1 where the factory is not known.
        weights: int64 [n], the samples that an accuracy stands for: the device's own test samples where figures are
            measured, else its training samples.
        factories: names of the park's factories, None where they have none, then of those where devices only test.
    """

    figures: Figures
    numbers: NDArray[np.int64]
    owners: NDArray[np.int64]
    names: tuple[str | None, ...]
    factory_of: NDArray[np.int64]
    weights: NDArray[np.int64]
    factories: tuple[str | None, ...]


def spread(count: int) -> NDArray[np.int64]:
    """Return int64, ascending: 0 … count − 1, or of more than 5,000 so many of them, evenly spread.

    >>> spread(3)
    array([0, 1, 2])
    """
    shown = min(count, SHOWN)
    return np.arange(shown) * count // max(1, shown)


def only_test(data: Dataset) -> NDArray[np.int64]:
    """Return int64, ascending: the natural owners of test samples that have no training sample in the data."""
    tested = np.zeros(0, np.int64) if data.owner_test is None else np.unique(data.owner_test).astype(np.int64)
    return tested if data.owner is None else tested[~np.isin(tested, np.unique(data.owner))]
