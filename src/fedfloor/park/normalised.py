"""What was done to a park's samples before the network's own scaling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Values

Statistics = tuple[NDArray[np.float32], NDArray[np.float32]]  # mean and deviation of each channel


@dataclass(frozen=True)
class Step:
    """A question to every device before round 1, or its result being handed to every device.

    Args:
        kind: of the :class:`~fedfloor.park.survey.Question`; ``"result"``: nothing is asked.
        down, up: bytes to each device and from it.
    """

    kind: str
    down: int
    up: int


@dataclass(frozen=True, eq=False)
class Normalised:
    """What was done to a park's samples before the network's own scaling, and what is left to that.

    Args:
        about: the keys that a model's header has of it.
        apply: (samples as they are stored, device) → the same, normalised as that device's are.
        statistics: the mean and the deviation of each sensor by the device's name, of all whose samples are here.
        alike: the centre and the scale [C] that the network's scaling then has; None: 0 and 1.
        steps: the questions to devices that it took; none where devices keep their statistics.
    """

    about: Mapping[str, Any]
    apply: Callable[[Values, int], Values]
    statistics: Callable[[], Mapping[str, Statistics]]
    alike: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    steps: tuple[Step, ...] = ()
