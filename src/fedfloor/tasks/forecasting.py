"""Forecasting: the next rows of sensors, from a window of the rows before them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedfloor.errors import require, require_once
from fedfloor.figures import Counts, Predictions
from fedfloor.tasks.answer import Answer, Numbers
from fedfloor.tasks.regression import Regression
from fedfloor.tasks.task import Reduction, Task

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from fedfloor.tasks.task import Boosted, Rows


@dataclass(frozen=True)
class Forecasting(Task):
    """The next H rows of S sensors: a regression with T = S·H targets, sensor by sensor, each scaled by itself.

    A run is judged by MASE, the mean over the sensors of their mean absolute error divided by that of repeating the
    value before (or a season before) in the training recordings, one row ahead. Below 1 is better than repeating is one
    row ahead. Hyndman and Koehler, International Journal of Forecasting 22 (2006) 679. The bins are ranges of the first
    target. Networks give the change from a window's newest row unless ``from_last`` is false: most sensors move little
    from row to row, and a network that has to make their level anew is far behind a value that repeats.

    Args:
        horizon: H, rows.
        sensors: by name; all where they are left out.
        season: rows of a season, for MASE and the seasonal reference; left out, there is none.
        loss, delta, levels, bins: as of :class:`~fedfloor.tasks.regression.Regression`.
        center, scale, edges: taken from the training samples.
        from_last: whether the network's outputs are added to the newest row.
        channels: of the sensors among those of a window; taken from the data.
        naive: of each target, the mean absolute error that MASE divides by; taken from the training recordings.
    """

    headline: ClassVar[str] = "MASE"
    labelled: ClassVar[bool] = False
    offers: ClassVar[str] = "predicts the sensors' next rows"

    kind: Literal["forecasting"] = "forecasting"
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

    def __post_init__(self) -> None:
        for name in ("sensors", "levels", "center", "scale", "edges", "naive", "channels"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        require(1 <= self.horizon <= 10_000, "data.task.horizon", self.horizon, "a whole number from 1 to 10,000")
        fits = self.season is None or 1 <= self.season < math.inf
        require(fits, "data.task.season", self.season, "a whole number of at least 1")
        require_once("data.task.sensors", self.sensors, "names that are given once each")
        _ = self._numbers  # whose settings are checked

    @property
    def ahead(self) -> int:
        """H."""
        return self.horizon

    @property
    def targets(self) -> int:
        """S·H."""
        return len(self.center)

    @property
    def repeats(self) -> Mapping[str, int]:
        """The value before, and that of a season before where there is one."""
        return {"persistence": 1} | ({"seasonal": self.season} if self.season is not None and self.season > 1 else {})

    def outputs(self, bins: int, targets: int, shape: tuple[int, ...]) -> int:
        """Return S·H, or as many for each level."""
        return self._numbers.outputs(bins, targets, shape)

    def around(self, module: nn.Module, classifier: str | None) -> tuple[nn.Module, str | None]:
        """Return the network with its outputs added to the newest row of each sensor."""
        if not (self.from_last and self.channels):
            return module, classifier
        from fedfloor.tasks.residual import FromLast

        each = self.horizon * (len(self.levels) if self.loss == "quantile" else 1)
        return FromLast(module, self.channels, each), None if classifier is None else f"body.{classifier}"

    def losses(self, out: Tensor, y: Tensor, reduction: Reduction = "none") -> Tensor:
        """Return the regression's losses."""
        return self._numbers.losses(out, y, reduction)

    def values(self, out: Tensor) -> Tensor:
        """Return the predicted numbers, [n, S·H, levels], in the sensors' units."""
        return self._numbers.values(out)

    def predicted(self, out: Tensor) -> Tensor:
        """Return the bin of the first predicted number."""
        return self._numbers.predicted(out)

    def hits(self, out: Tensor, y: Tensor) -> Tensor:
        """Return whether the first predicted number lies in the bin of the sample's."""
        return self._numbers.hits(out, y)

    def scores(self, out: Tensor, y: Tensor, bins: Sequence[int]) -> Tensor:
        """Return the true and the predicted numbers."""
        return self._numbers.scores(out, y, bins)

    def judged(
        self, table: Counts, loss: float, y: NDArray[Any], scores: NDArray[Any], scored: Sequence[int]
    ) -> Predictions:
        """Return the confusion table of the bins, the loss, and the errors beside the naive ones."""
        predictions = self._numbers.judged(table, loss, y, scores, scored)
        return (
            predictions
            if predictions.errors is None
            else replace(predictions, errors=replace(predictions.errors, naive=self.naive, names=self.sensors))
        )

    def called(self) -> tuple[str, ...]:
        """Return the sensors' names."""
        return self.sensors

    def answer(self, out: Tensor, x: Tensor) -> Numbers:  # noqa: ARG002
        """Return the next H rows of each sensor, with their intervals where quantiles are learnt."""
        return self._numbers.numbers(self.values(out).unflatten(1, (-1, self.horizon)), self.sensors)

    def judge(self, answer: Answer, target: NDArray[Any]) -> Predictions:
        """Return the errors of paths [n, S, H] beside the true rows [n, S·H], and the naive errors."""
        judged = self._numbers.judge(answer, target)
        return judged if judged.errors is None else replace(judged, errors=replace(judged.errors, naive=self.naive))

    def check_fitted(self, bins: int, columns: Sequence[str]) -> None:
        """Refuse scales, edges or sensors that no training samples can have given."""
        self._numbers.check_fitted(bins, columns)
        many = len(self.sensors)
        if len(self.center) != many * self.horizon or len(set(self.sensors)) != many or set(self.sensors) - {*columns}:
            raise ValueError(f"{many} of the model's sensors, {self.horizon} rows ahead, in {len(self.center)} targets")
        if self.channels not in ((), tuple(columns.index(sensor) for sensor in self.sensors)):
            raise ValueError(f"channels {list(self.channels)} are not those of its sensors")
        if len(self.naive) not in (0, len(self.center)) or not all(0 < error < math.inf for error in self.naive):
            raise ValueError("naive errors that are not one number above 0 for each target")

    def unboosted(self, targets: int) -> str:
        """Return nothing, or that there are too many targets for a fit of each."""
        return self._numbers.unboosted(targets)

    def boosted(self, rows: Rows, y: NDArray[Any], bins: int, settings: Mapping[str, Any]) -> Boosted:
        """Fit the regression's regressors."""
        return self._numbers.boosted(rows, y, bins, settings)

    def fitted(self, targets: NDArray[Any], edges: Sequence[float] = (), naive: Sequence[float] = ()) -> Forecasting:
        """Return the task with scale and bins of the training targets [N, T], and the naive errors of these.

        Raises:
            SettingError: a target is the same in all of them.
        """
        numbers = self._numbers.fitted(targets, edges)
        return replace(self, center=numbers.center, scale=numbers.scale, edges=numbers.edges, naive=tuple(naive))

    def bin(self, targets: NDArray[Any]) -> NDArray[Any]:
        """Return the bins of targets [N, T], int64 [N]."""
        return self._numbers.bin(targets)

    @cached_property
    def _numbers(self) -> Regression:
        return Regression(
            loss=self.loss, delta=self.delta, levels=self.levels, bins=self.bins, center=self.center, scale=self.scale,
            edges=self.edges,
        )  # fmt: skip
