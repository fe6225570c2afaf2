"""The devices that figures name one by one, and what their figures are: measured, or expected from their classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedfloor.data.dataset import Dataset
    from fedfloor.park.park import Park

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


def roster(park: Park) -> Roster:
    """Return the devices that a park's figures name.

    An owner of test samples who has no training sample in the data only tests. One who has some and is no device of
    this park, because the park is smaller than the data, is left out. Where devices are no natural owners (a partition
    has mixed these), figures are measured if every owner of test samples only tests, else expected.
    """
    shown, owned, data, natural = park.shown, park.dataset.owned, park.dataset, park.natural_owners
    names = tuple(park.names[k] for k in shown.tolist()) if park.names else (None,) * len(shown)
    home = park.factory_of[shown].astype(np.int64)
    factories: tuple[str | None, ...] = park.factory_names or (None,) * park.factories
    only = only_test(data)
    if data.owner_test is None or (natural is None and not np.isin(data.owner_test, only).all()):
        return Roster("expected", shown, shown[:0], names, home, park.sizes[shown], factories)
    only = only[spread(len(only))]
    away = np.full(len(only), -1)
    if owned.factory is not None and (park.factory_names or natural is None):
        named = [owned.factories[m] for m in owned.factory[only].tolist()]
        factories = (*factories, *dict.fromkeys(name for name in named if name not in factories))
        away = np.array([factories.index(name) for name in named], np.int64)
    mine = np.full(len(shown), -1) if natural is None else natural[shown]
    tests = np.bincount(data.owner_test, minlength=int(max(mine.max(), 0)) + 1)
    owners = np.concatenate([mine, only]).astype(np.int64)
    weights = np.where(owners < 0, 0, tests[owners])
    numbers = np.concatenate([shown, park.devices + np.arange(len(only))])
    names += tuple(owned.names[k] if owned.names else None for k in only.tolist())
    return Roster("measured", numbers, owners, names, np.concatenate([home, away]), weights, factories)


def only_test(data: Dataset) -> NDArray[np.int64]:
    """Return int64, ascending: the natural owners of test samples that have no training sample in the data."""
    tested = np.zeros(0, np.int64) if data.owner_test is None else np.unique(data.owner_test).astype(np.int64)
    return tested if data.owner is None else tested[~np.isin(tested, np.unique(data.owner))]
