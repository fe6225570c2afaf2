"""Regression: one or several numbers per sample, such as the remaining life of a machine."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.tasks.answer import Answer, Numbers
from fedfloor.tasks.figures import Counts, Errors, Predictions
from fedfloor.tasks.task import Calibrate, Reduction, Task

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from fedfloor.tasks.task import Boosted, Rows

# of NASA's score, in the target's unit
EARLY = 13.0
LATE = 10.0
STEEPEST = 50.0
MOST_FITS = 20  # by scikit-learn, one for each output
LIVES = re.compile(  # names of a remaining life; "rows left" is the name for counted rows
    r"(remaining.?(useful.?)?)?life|rul|ttf|time.to.failure|(cycles|rows).left|restlebensdauer", re.IGNORECASE
)

# fields that follow from the samples
DERIVED = ("center", "scale", "edges", "naive", "channels", "sensors", "names", "unit", "season", "margins")


class Predicting(Task):
    """The prediction of numbers ŷ = μ + σ·o from outputs o, common to regression and forecasting.

    Attributes:
        loss, cap, delta, levels, bins, unit, names, center, scale, edges, coverage, calibrate, margins:
            as for :class:`Regression`.
        naive: the error of each target by which metrics are divided; empty if unknown.
    """

    loss: str
    delta: float
    levels: tuple[float, ...]
    bins: int
    center: tuple[float, ...]
    scale: tuple[float, ...]
    edges: tuple[float, ...]
    cap: float | None = None
    unit: str = ""
    names: tuple[str, ...] = ()
    naive: tuple[float, ...] = ()
    coverage: float | None = None
    calibrate: Calibrate = "park"
    margins: tuple[float, ...] = ()

    promises: ClassVar[tuple[str, ...]] = ("coverage", "calibrate")
    trained: ClassVar[tuple[str, ...]] = ("loss", "cap", "levels", "delta")

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
        require(self.cap is None or math.isfinite(self.cap), "data.task.cap", self.cap, "a finite number")
        require(0 < self.delta < math.inf, "data.task.delta", self.delta, "a finite number above 0")
        require(self.bins >= 2, "data.task.bins", self.bins, "a whole number of at least 2")
        ascend = all(low < high for low, high in zip(self.levels, self.levels[1:], strict=False))
        inside = all(0 < level < 1 for level in self.levels)
        wanted = "an odd number of ascending shares, such as [0.05, 0.5, 0.95]"
        require(ascend and inside and len(self.levels) % 2 == 1, "data.task.levels", list(self.levels), wanted)
        within = self.levels[-2] - self.levels[1] if self._each > 3 else 0.0
        fits = self.coverage is None or within < self.coverage < 1
        wanted = f"a share above {within:g} and below 1, such as 0.9"
        require(fits, "data.task.coverage", self.coverage, wanted)

    @property
    def calibrates(self) -> bool:
        return self.coverage is not None

    @property
    def apart(self) -> bool:
        return self.calibrates and self.calibrate == "device"

    @property
    def share(self) -> float:
        return self.coverage or 1.0

    @property
    def promised(self) -> float | None:
        return self.coverage

    @property
    def targets(self) -> int:
        return len(self.center)

    def outputs(self, bins: int, targets: int, shape: tuple[int, ...]) -> int:
        """Return the number of outputs: T, or T for each level of quantiles."""
        return targets * self._each

    def losses(self, out: Tensor, y: Tensor, reduction: Reduction = "none") -> Tensor:
        """Return the losses [n] of outputs [n, T·levels] and targets float32 [n, T], or their mean or sum."""
        import torch
        from torch.nn.functional import huber_loss

        center, scale = self._scaling(out)
        wanted = (self.capped(y) - center) / scale
        if self.loss == "squared":
            each = (out - wanted).square()
        elif self.loss == "huber":
            each = huber_loss(out, wanted, reduction="none", delta=self.delta)
        elif self.loss == "quantile":
            levels = out.new_tensor(self.levels)
            below = wanted[:, :, None] - out.unflatten(1, (-1, self._each))
            each = torch.maximum(levels * below, (levels - 1) * below).mean(2)
        else:
            away = (out - wanted) * scale
            near = away.clamp(-STEEPEST, STEEPEST)
            width = torch.where(away < 0, -EARLY, LATE)
            grown = torch.exp(near / width)
            each = (grown - 1 + grown * (away - near) / width) / scale
        losses: Tensor = each.mean(1)
        return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()

    def values(self, out: Tensor) -> Tensor:
        """Return the predicted numbers in the targets' unit, [n, T, L]: the prediction between the ends of an interval.

        L is 1 without an interval. The ends are moved outwards by the margins, or inwards if these are below 0.
        """
        values = self._trained(out)
        if not self.margins:
            return values
        import torch

        middle = values[:, :, [self._each // 2]]
        margin = (values.new_tensor(self.margins) * values.new_tensor(self.scale))[:, None]
        low = torch.minimum(values[:, :, :1] - margin, middle)
        high = torch.maximum(values[:, :, -1:] + margin, middle)
        inner = values[:, :, 1:-1] if self._each > 1 else middle
        return torch.cat([low, torch.minimum(torch.maximum(inner, low), high), high], 2)

    def strangeness(self, out: Tensor, y: Tensor) -> Tensor:
        """Return 2^e [n, T] of the distance e = max(low − y, y − high)/σ of targets from the trained interval.

        Without quantiles both ends are the prediction, and e is |ŷ − y|/σ. A power is above 0 inside an interval, too,
        and a factor of it is a difference of distances. Romano, Patterson and Candès, Conformalized quantile
        regression, NeurIPS 2019, Eq. (6).
        """
        import torch

        values = self._trained(out)
        wanted = self.capped(y)
        away = torch.maximum(values[:, :, 0] - wanted, wanted - values[:, :, -1]) / values.new_tensor(self.scale)
        return torch.exp2(away.double())

    def calibrated(self, thresholds: Sequence[float]) -> Self:
        """Return the task with the margins log2 t [T] of thresholds t of :meth:`strangeness`."""
        fitted: Self = replace(self, margins=tuple(map(math.log2, thresholds)))  # type: ignore[type-var]
        return fitted

    def uncalibrated(self, asked: Task) -> Self:
        promised = {name: getattr(asked, name) for name in self.promises}
        made: Self = replace(self, margins=(), **promised)  # type: ignore[type-var]
        return made

    def of_devices(self) -> Self:
        made: Self = replace(self, calibrate="device")  # type: ignore[type-var]
        return made

    def predicted(self, out: Tensor) -> Tensor:
        """Return the bin of the first predicted number of each sample, int64 [n]."""
        return self._bin(self._trained(out)[:, 0, self._each // 2])

    def hits(self, out: Tensor, y: Tensor) -> Tensor:
        """Return whether the first predicted number is in the sample's bin, bool [n]."""
        return self.predicted(out) == self._bin(self.capped(y[:, 0]))

    def scores(self, out: Tensor, y: Tensor, bins: Sequence[int]) -> Tensor:
        """Return the true and the predicted numbers, float32 [n, T·(1 + L)]."""
        import torch

        return torch.cat([y, self.values(out).flatten(1)], 1)

    def judged(
        self, table: Counts, loss: float, y: NDArray[Any], scores: NDArray[Any], scored: Sequence[int]
    ) -> Predictions:  # fmt: skip
        """Return the confusion table of the bins, the loss, and the errors."""
        many = len(self.center)
        values = scores[:, many:].reshape(len(scores), many, scores.shape[1] // many - 1).astype(np.float64)
        true = scores[:, :many].astype(np.float64)
        names = self.called()
        levels = self._ends(promised=self.calibrates) if values.shape[2] > 1 else ()
        errors = Errors(true, values, self.cap, self.naive, names, self.unit, levels, self.edges)
        return Predictions(table, loss, errors=errors)

    def answer(self, out: Tensor, x: Tensor) -> Numbers:
        """Return the predicted numbers, with their interval if there is one."""
        return self.numbers(self.values(out), self.called(), self.unit, self.cap)

    def numbers(self, values: Tensor, names: tuple[str, ...], unit: str = "", above: float | None = None) -> Numbers:
        """Return numbers [n, …, levels] as an answer: the middle level, and the outermost ones as interval."""
        last = values.shape[-1] - 1
        ends = self._ends(promised=bool(self.margins))
        level = ends[-1] - ends[0] if last else None
        low, high = (values[..., 0], values[..., last]) if last else (None, None)
        return Numbers(values[..., last // 2], low, high, names, unit, level, self.scale, above)

    def called(self) -> tuple[str, ...]:
        """Return the names of the targets."""
        many = len(self.center)
        return self.names or (("value",) if many == 1 else tuple(f"value {k + 1}" for k in range(many)))

    def judge(self, answer: Answer, target: NDArray[Any]) -> Predictions:
        """Return predictions for metrics from predicted numbers [n, …] and true ones [n, T]."""
        ends = [answer.parts()[name] for name in ("low", "value", "high") if name in answer.parts()]
        values = np.stack([np.asarray(end, np.float64).reshape(target.shape) for end in ends], 2)
        errors = Errors(target.astype(np.float64), values, self.cap, self.naive)
        return Predictions(np.zeros((1, 1), np.int64), math.nan, errors=errors)

    def check_fitted(self, bins: int, columns: Sequence[str]) -> None:
        """Refuse scales, edges or names that cannot result from training samples."""
        many = len(self.center)
        edges = self.edges
        if not 1 <= many == len(self.scale) or not all(map(math.isfinite, (*self.center, *self.scale))):
            raise ValueError(f"{many} means and {len(self.scale)} standard deviations of targets, all finite")
        if min(self.scale) <= 0:
            raise ValueError("a standard deviation of a target that is not above 0")
        ascend = all(map(math.isfinite, edges)) and all(map(operator.lt, edges, edges[1:]))
        if not ascend or len(edges) + 1 != bins:
            raise ValueError(f"{len(edges)} edges between {bins} ranges, finite and ascending")
        if self.names and len(self.names) != many:
            raise ValueError(f"{len(self.names)} names of {many} targets")
        if len(self.margins) not in (0, many if self.calibrates else 0) or not all(map(math.isfinite, self.margins)):
            raise ValueError(f"{len(self.margins)} margins of {many} targets, all finite")

    def unboosted(self, targets: int) -> str:
        """Return a message if a fit per output would be too many, otherwise ""."""
        many = targets * self._each
        return "" if many <= MOST_FITS else f"{many} outputs need separate fits, and {MOST_FITS} are the limit"

    def boosted(self, rows: Rows, y: NDArray[Any], bins: int, settings: Mapping[str, Any]) -> Boosted:
        """Fit a regressor to each target, for ``quantile`` to each level; for other losses, with squared errors."""
        from sklearn.ensemble import HistGradientBoostingRegressor

        wanted = y if self.cap is None else np.minimum(y, np.float32(self.cap))
        wanted = (wanted - np.array(self.center)) / np.array(self.scale)
        levels: list[dict[str, Any]] = [{}]
        if self.loss == "quantile":
            levels = [{"loss": "quantile", "quantile": level} for level in self.levels]
        models = [
            HistGradientBoostingRegressor(**level, **settings).fit(rows, column)
            for column in wanted.T
            for level in levels
        ]
        return lambda rows: np.stack([model.predict(rows) for model in models], 1)

    def admits(self, got: Task | None, bins: Sequence[float] | None) -> bool:
        if not isinstance(got, type(self)):
            return False
        names = [name for name in vars(self) if name not in DERIVED]
        alike = all(getattr(got, name) == getattr(self, name) for name in names)
        return alike and (len(got.edges) < self.bins if bins is None else got.edges == tuple(bins))

    def fitted(self, targets: NDArray[Any], edges: Sequence[float] = ()) -> Self:
        """Return the task with the scale and bins of the training targets [N, T].

        Raises:
            SettingError: all targets are equal.
        """
        own = targets if self.cap is None else np.minimum(targets, self.cap)
        center = own.mean(axis=0, dtype=np.float64)
        scale = own.std(axis=0, dtype=np.float64)
        if (scale == 0).any():
            column = int(np.flatnonzero(scale == 0)[0])
            capped = f", with data.task.cap = {self.cap:g}" if self.cap is not None else ""
            raise SettingError(
                f"every training sample has the target {own[0, column]:g}{capped}: a model cannot learn anything. "
                "Check the label's column, the split, or the cap.",
                key="constant-target",
            )
        require(
            not self.names or len(self.names) == own.shape[1],
            "data.task.names", list(self.names), f"as many as there are targets, {own.shape[1]}",
        )  # fmt: skip
        cuts = np.quantile(own[:, 0], np.linspace(0, 1, self.bins + 1)[1:-1])
        above = own[:, 0][own[:, 0] > own[:, 0].min()].min()  # an edge even if most targets are equal to the lowest
        bounds = tuple(edges) or tuple(np.unique(np.maximum(cuts, above).astype(np.float32)).tolist())
        fitted: Self = replace(  # type: ignore[type-var]
            self, center=tuple(center.tolist()), scale=tuple(scale.tolist()), edges=bounds
        )
        return fitted

    def bin(self, targets: NDArray[Any]) -> NDArray[np.int64]:
        """Return the bins of targets [N, T], int64 [N]."""
        own = targets[:, 0] if self.cap is None else np.minimum(targets[:, 0], np.float32(self.cap))
        return np.searchsorted(np.array(self.edges, np.float32), own.astype(np.float32), "right").astype(np.int64)

    def capped(self, y: Tensor) -> Tensor:
        """Return min(y, cap)."""
        return y if self.cap is None else y.clamp(max=self.cap)

    @property
    def _each(self) -> int:
        return len(self.levels) if self.loss == "quantile" else 1

    def _ends(self, *, promised: bool) -> tuple[float, ...]:
        """Return the levels of intervals as trained, or as promised: the outermost are then at ``coverage``."""
        if self.coverage is None or not promised:
            return self.levels
        inner = self.levels[1:-1] if self._each > 1 else (0.5,)
        return (round((1 - self.coverage) / 2, 12), *inner, round((1 + self.coverage) / 2, 12))

    def _trained(self, out: Tensor) -> Tensor:
        """Return the network's numbers in the targets' unit, [n, T, levels]; [n, T, 1] without quantiles.

        Quantiles are sorted, which never increases the pinball loss (Chernozhukov, Fernández-Val and Galichon,
        Econometrica 78 (2010) 1093).
        """
        center, scale = self._scaling(out)
        values: Tensor = out.unflatten(1, (-1, self._each)) * scale[:, None] + center[:, None]
        return values if self._each == 1 else values.sort(dim=2).values

    def _scaling(self, out: Tensor) -> tuple[Tensor, Tensor]:
        return out.new_tensor(self.center), out.new_tensor(self.scale)

    def _bin(self, values: Tensor) -> Tensor:
        import torch

        edges = values.new_tensor(self.edges, dtype=torch.float32)
        return torch.bucketize(values.float().contiguous(), edges, right=True)


@dataclass(frozen=True)
class Regression(Predicting):
    """The regression of one or several numbers, predicted as ŷ = μ + σ·o from outputs o, with μ and σ of training.

    With z = (min(y, cap) − μ)/σ and the error d = ŷ − min(y, cap) the loss of a sample is

    - ``squared``: (o − z)²;
    - ``huber``: (o − z)²/2 up to |o − z| = δ, then δ(|o − z| − δ/2);
    - ``quantile``: the mean over the levels τ of max(τ(z − o_τ), (τ − 1)(z − o_τ)), the pinball loss, with an output
    for each level; the middle level is the prediction, the outermost two are its interval;
    - ``nasa``: (exp(−d/13) − 1)/σ for d < 0, (exp(d/10) − 1)/σ above, linear beyond |d| = 50: late predictions of a
    failure cost more than early ones. Saxena et al., PHM 2008.

    Several targets count equally. The bins are ranges of the first target.

    Args:
        loss: the loss, one of those above.
        cap: the upper limit of targets in training and in metrics, because sensors do not show a distant failure.
            Metrics of the uncapped values are reported, too.
        delta: δ of ``huber``, in standard deviations.
        levels: τ of ``quantile``: an odd number of ascending levels.
        bins: the number of ranges of equal frequency of the training targets, unless ``[data] bins`` sets edges.
        unit: the unit of the targets, for display.
        names: the names of the targets, for display; by default the name of the label's column.
        center, scale: μ and σ of each target, [T]; derived from the training samples.
        edges: the edges between the bins, ascending; derived from the training samples.
        coverage: the promised share of true numbers within their intervals: see :mod:`fedfloor.engine.calibrate`. None:
            intervals are those of ``quantile``, as trained.
        calibrate: whether intervals are those of the whole ``park``, or of each ``device``, drawn towards the park's.
        margins: the distance of each interval's ends from the trained ones, in σ, [T]; computed from held-out samples
            at evaluations.
    """

    headline: ClassVar[str] = "RMSE"

    kind: Literal["regression"] = field(default="regression", kw_only=True)
    loss: Literal["squared", "huber", "quantile", "nasa"] = "squared"
    cap: float | None = None
    delta: float = 1.0
    levels: tuple[float, ...] = (0.05, 0.5, 0.95)
    bins: int = 5
    unit: str = ""
    names: tuple[str, ...] = ()
    center: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    edges: tuple[float, ...] = ()
    coverage: float | None = None
    calibrate: Calibrate = "park"
    margins: tuple[float, ...] = ()

    @property
    def wishes(self) -> Mapping[str, str]:
        return {"loss": "data.task.loss=quantile (with intervals)", "unit": "data.task.unit=NAME"}

    @property
    def lives(self) -> bool:
        """Whether a cap, NASA's loss or a target's name indicates remaining lives."""
        return self.cap is not None or self.loss == "nasa" or any(map(LIVES.fullmatch, self.names))
