"""Forecasting: the next rows of sensors, predicted from a window of preceding rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from fedfloor.base.errors import require, require_once
from fedfloor.tasks.answer import Numbers
from fedfloor.tasks.regression import Predicting
from fedfloor.tasks.task import Calibrate

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn


@dataclass(frozen=True)
class Forecasting(Predicting):
    """The forecast of the next H rows of S sensors: a regression with T = S·H targets, sensor by sensor, each scaled.

    The headline metric is MASE: the mean over the sensors of their mean absolute error divided by that of repeating the
    last value (or that of a season before) in the training recordings, one row ahead. Hyndman and Koehler,
    International Journal of Forecasting 22 (2006) 679. The bins are ranges of the first target. Networks predict the
    change from a window's newest row unless ``from_last`` is false: most sensors change little from row to row, and
    networks that predict levels are much worse than repeated values.

    Args:
        horizon: H, the number of rows to forecast.
        sensors: the names of the sensors to forecast; by default all.
        season: the number of rows of a season, for MASE and the seasonal reference; None without seasons.
        loss, delta, levels, bins, coverage, calibrate: as for :class:`~fedfloor.tasks.regression.Regression`.
        center, scale, edges: derived from the training samples.
        margins: computed from held-out samples at evaluations.
        from_last: whether the network's outputs are added to the newest row.
        channels: the channels of these sensors in a window; derived from the data.
        naive: the mean absolute error of each target by which MASE divides; derived from the training recordings.
    """

    headline: ClassVar[str] = "MASE"
    labelled: ClassVar[bool] = False
    offers: ClassVar[str] = "predicts the sensors' next rows"
    trained: ClassVar[tuple[str, ...]] = (*Predicting.trained, "horizon", "from_last")

    kind: Literal["forecasting"] = field(default="forecasting", kw_only=True)
    horizon: int = 10
    sensors: tuple[str, ...] = ()
    season: int | None = None
    loss: Literal["squared", "huber", "quantile"] = "squared"
    delta: float = 1.0
    levels: tuple[float, ...] = (0.05, 0.5, 0.95)
    bins: int = 5
    center: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    edges: tuple[float, ...] = ()
    naive: tuple[float, ...] = ()
    from_last: bool = True
    channels: tuple[int, ...] = ()
    coverage: float | None = None
    calibrate: Calibrate = "park"
    margins: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require(1 <= self.horizon <= 10_000, "data.task.horizon", self.horizon, "a whole number from 1 to 10,000")
        fits = self.season is None or 1 <= self.season < math.inf
        require(fits, "data.task.season", self.season, "a whole number of at least 1")
        require_once("data.task.sensors", self.sensors, "unique names")
        super().__post_init__()

    @property
    def ahead(self) -> int:
        return self.horizon

    @property
    def repeats(self) -> Mapping[str, int]:
        """The references by name → rows back: the last value, and that of a season before if the task has a season."""
        return {"persistence": 1} | ({"seasonal": self.season} if self.season is not None and self.season > 1 else {})

    def around(self, module: nn.Module, classifier: str | None) -> tuple[nn.Module, str | None]:
        """Return the network with its outputs added to the newest row of each sensor."""
        if not (self.from_last and self.channels):
            return module, classifier
        from fedfloor.tasks.residual import FromLast

        path = None if classifier is None else f"body.{classifier}"
        return FromLast(module, self.channels, self.horizon * self._each), path

    def called(self) -> tuple[str, ...]:
        return self.sensors

    def answer(self, out: Tensor, x: Tensor) -> Numbers:
        """Return the next H rows of each sensor, with intervals for quantiles."""
        return self.numbers(self.values(out).unflatten(1, (-1, self.horizon)), self.sensors)

    def check_fitted(self, bins: int, columns: Sequence[str]) -> None:
        """Refuse scales, edges or sensors that cannot result from training samples."""
        super().check_fitted(bins, columns)
        many = len(self.sensors)
        if len(self.center) != many * self.horizon or len(set(self.sensors)) != many or set(self.sensors) - {*columns}:
            raise ValueError(f"{many} of the model's sensors, {self.horizon} rows ahead, in {len(self.center)} targets")
        if self.channels not in ((), tuple(columns.index(sensor) for sensor in self.sensors)):
            raise ValueError(f"channels {list(self.channels)} are not those of its sensors")
        if len(self.naive) not in (0, len(self.center)) or not all(0 < error < math.inf for error in self.naive):
            raise ValueError("naive errors that are not one number above 0 for each target")

    def fitted(self, targets: NDArray[Any], edges: Sequence[float] = (), naive: Sequence[float] = ()) -> Self:
        """Return the task with the scale and bins of the training targets [N, T], and their naive errors."""
        return replace(super().fitted(targets, edges), naive=tuple(naive))
