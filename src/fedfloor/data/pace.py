"""The pace of recordings: usual steps of time of devices, and holes, which windows should not cross."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]
Owners = NDArray[np.int32]

PERIODS = 5  # usual steps: a longer one is a hole, as by default in buffers of sensors
REGULAR = 0.9  # share of a device's steps between half and twice the usual one, at least
RATES = 2.0  # ratio of usual steps from which rates of devices differ


class Pace(NamedTuple):
    """The steps of time of regular recordings.

    Args:
        usual: float64 [devices], the median step of each device.
        device: int32 [devices], the number of each device.
        steps: float64 [T − 1], the step from each row to the next; 0 between recordings.
    """

    usual: Times
    device: Owners
    steps: Times

    @property
    def gap(self) -> float:
        """The step above which there is a hole."""
        return float(f"{PERIODS * self.usual.max():.6g}")

    def holes(self) -> Times:
        """Return the steps that are holes."""
        return self.steps[self.steps > self.gap]

    def rates(self, names: Sequence[str]) -> str:
        """Return a description of the fastest and the slowest device; empty where rates are alike."""
        if self.usual.max() < RATES * self.usual.min():
            return ""
        fast, slow = (
            f"'{names[self.device[i]]}' every {self.usual[i]:g} s" for i in (self.usual.argmin(), self.usual.argmax())
        )
        return f"{fast}, but of {slow}"


def pace_of(time: Times, segment: Owners, owner: Owners | None) -> Pace | None:
    """Return the pace of rows in the order of time; None where a device's steps are irregular or too few.

    Args:
        time: float64 [T], in seconds.
        segment: int32 [T], the recording of each row.
        owner: int32 [T], the device of each row.

    >>> pace = pace_of(np.array([0, 1, 2, 3, 60, 61, 62, 63, 64, 65, 66.0]), np.zeros(11, np.int32), None)
    >>> pace and (pace.usual.tolist(), pace.gap, pace.holes().tolist())
    ([1.0], 5.0, [57.0])
    """
    steps = np.where(np.diff(segment) == 0, np.diff(time), 0.0)
    whose = np.zeros(len(steps), np.int32) if owner is None else owner[1:]
    known = steps > 0
    devices = np.unique(whose[known])
    usual = []
    for device in devices.tolist():
        mine = steps[known & (whose == device)]
        middle = float(np.median(mine))
        if np.mean((mine >= middle / 2) & (mine <= 2 * middle)) < REGULAR:
            return None
        usual.append(middle)
    return Pace(np.array(usual), devices.astype(np.int32), steps) if usual else None
