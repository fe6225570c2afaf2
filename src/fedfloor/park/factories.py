"""Which factory each device stands in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedfloor.data.dataset import Owners
from fedfloor.errors import SettingError, require, unknown

Assignment = Literal["random", "equal"] | tuple[int, ...]
RANDOM_DRAWS = 1000


def assign(devices: int, factories: int, how: Assignment, rng: np.random.Generator) -> Owners:
    """Assign K devices to M factories; every factory gets at least one.

    ``equal``: a random permutation dealt into shares whose sizes differ by at most one. ``random``: each device
    independently and uniformly (FedGS's reference code), drawn again while a factory is empty, up to 1,000 times.
    A list of numbers: the factory of each device, as on a real floor.

    Args:
        devices: K ≥ M.
        factories: M ≥ 1.
        how: ``"random"``, ``"equal"``, or K numbers from 0 to M−1.
        rng: where the draws come from.

    Returns:
        int32 [K], the factory of each device.

    Raises:
        SettingError: M > K, an unknown way, numbers that do not fit, or every random draw left a factory empty.

    >>> np.bincount(assign(7, 3, "equal", np.random.default_rng(0)))
    array([3, 2, 2])
    """
    require(factories >= 1, "[park] factories", factories, "a whole number of at least 1")
    if factories > devices:
        few = f"there are {devices} devices, and every factory needs one. Use fewer factories or more devices."
        raise SettingError(f"[park] factories = {factories}: {few}")
    if not isinstance(how, str):
        return _listed(devices, factories, how)
    if how == "equal":
        factory_of = np.empty(devices, np.int32)
        factory_of[rng.permutation(devices)] = np.arange(devices) % factories
        return factory_of
    if how != "random":
        raise unknown("assignment of devices to factories", how, ("random", "equal"))
    for _ in range(RANDOM_DRAWS):
        drawn = rng.integers(factories, size=devices, dtype=np.int32)
        if np.bincount(drawn, minlength=factories).min() > 0:
            return drawn
    raise SettingError(
        f"[park] assignment = 'random' left one of {factories} factories without any of the {devices} devices in each "
        f"of {RANDOM_DRAWS:,} draws. Use assignment = 'equal', or fewer factories."
    )


def _listed(devices: int, factories: int, numbers: Sequence[int]) -> Owners:
    require(len(numbers) == devices, "[park] assignment", list(numbers), f"one number for each of {devices} devices")
    lacking = sorted(set(range(factories)) ^ set(numbers))
    allowed = f"numbers from 0 to {factories - 1}, each at least once"
    require(not lacking, "[park] assignment", list(numbers), allowed)
    return np.array(numbers, np.int32)
