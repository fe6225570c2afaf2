"""What models that are sums are given and return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfloor.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]
Named = Mapping[str, Floats]
Shapes = Mapping[str, tuple[int, ...]]
Called = list[tuple[str, tuple[int, int] | None]]  # names of a chart's values, and the sensors in whose units they are
Charted = tuple[Called, "Tensor", "Tensor"]  # with the values [n, J], and limits and centre lines [3, J]


class SampleRows(NamedTuple):
    """Some samples of a device.

    Attributes:
        x: inputs of the model, normalised as ``data.normalise`` says, float64 [n, *shape].
        y: targets: classes int64 [n], or numbers in their unit float64 [n, T].
        task: the task, with the targets' scale.
    """

    x: Floats
    y: NDArray[Any]
    task: Task
