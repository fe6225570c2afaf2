"""What a metric of one's own is computed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class TestedSamples:
    """A model's predictions for n samples, from which a metric of one's own is computed.

    Args:
        true: int64 [n], the classes' numbers; of a regression or forecast float64 [n, T], reduced to the task's cap; of
            a reconstruction bool [n], whether abnormal; of a survival model float64 [n, 3]: the age at the end, 1 for a
            failure or 0, and the age at the beginning of the observation.
        predicted: what was predicted, of the same kind and shape: classes, numbers, alarms; of a survival model float64
            [n], the mean life.
        scores: float64 [n, F], the classes' probabilities; [n, T, L], the numbers with the ends of their interval, if
            there is one; [n, 1], multiples of the threshold; [n, J], the survival curve.
        classes: the names of the classes, or of the ranges of numbers.
        devices: int64 [n], a number for the device that recorded each sample; None if that is unknown.
    """

    __test__: ClassVar[bool] = False  # no test of pytest

    true: NDArray[Any]
    predicted: NDArray[Any]
    scores: NDArray[np.float64]
    classes: tuple[str, ...] = ()
    devices: NDArray[np.int64] | None = None
