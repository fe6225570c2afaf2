"""Control charts: the limits of normal operation from the moments of all machines, in one round."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.base.names import count as counted
from fedfloor.methods.exact.plausible import ROUNDING, indefinite, too_small
from fedfloor.methods.exact.rows import Called, Charted, Floats, Named, SampleRows, Shapes
from fedfloor.methods.exact.sums import ExactSums, near

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)
X = TypeVar("X", Floats, "Tensor")
SMALLEST = 1e-13  # smaller variances, as shares of a sensor's mean square, are rounding errors of single precision
FALSE = 0.1  # of the largest variance: a negative one of more is no rounding of a secure sum
ALIKE = 1e-9  # smaller variances along a direction of standardised sensors are rounding errors


@dataclass(frozen=True, kw_only=True)
class Chart(ExactSums):
    """What control charts have in common: m and σ of each sensor, and a value with a centre line and two limits.

    ::

        each device k: n_k, Σ_i (x_i − c), Σ_i (x_i − c)² for each sensor, c = 0 in the first round
        m = c + Σ(x − c)/n,  σ² = (Σ(x − c)² − n(m − c)²)/(n − 1);  a second round with c = m only where m² > 10⁴σ²
        e = (value − centre)/(limit − centre) on the value's side;  score = max e² over the chart's values

    A score above 1 is an alarm. With ``data.normalise = "device"`` each machine has limits of its own, in its own m and
    σ; otherwise all have the same. Samples are rows, or windows of R rows of which the last one counts. Sensors that do
    not change in training have no limits.
    """

    tasks: ClassVar[tuple[str, ...]] = ("reconstruction",)
    sends: ClassVar[str] = "number, means and squares of a device's samples, which are single samples if it has few"
    usual: ClassVar[int | None] = 1
    rows: ClassVar[int] = 1  # the fewest rows of a window

    limits: Literal["chart", "quantile"] = field(default="chart")

    @abstractmethod
    def drawn(self, x: Tensor, theta: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the values [n, J] of samples, and the lower limits, centre lines and upper limits [3, J]."""

    def called(self, sensors: tuple[str, ...]) -> Called:
        """Return each value's name, the sensor in whose unit it is, and 1 for a place or 0 for a deviation."""
        return [(name, (number, 1)) for number, name in enumerate(sensors)]

    def charted(self, x: Tensor, sensors: tuple[str, ...], theta: Mapping[str, Tensor]) -> Charted:
        return self.called(sensors), *self.drawn(x, theta)

    @property
    def threshold(self) -> float | None:
        return 1.0 if self.limits == "chart" else None

    def parameters(self, shape: tuple[int, ...], outputs: int) -> Named:
        rows = 1 if len(shape) == 1 else shape[-1]
        if len(shape) > 2 or rows < self.rows:
            wanted = "rows of sensors or windows" if self.rows == 1 else f"windows of at least {self.rows} rows"
            raise SettingError(
                f"method '{type(self).__name__.lower()}' needs {wanted}; a sample has the shape {list(shape)}. Set "
                "data.window = { length = 20, step = 1 }.",
                key="data.window",
            )
        return dict.fromkeys(("center", "mean", "sigma"), np.zeros(shape[0]))

    def shapes(self, shape: tuple[int, ...], outputs: int) -> Shapes:
        return {"first": shape[:1], "second": shape[:1]}

    def sums(self, rows: SampleRows, theta: Named) -> Named:
        away = _last(rows.x) - theta["center"]
        return {"first": away.sum(0), "second": (away**2).sum(0)}

    def implausible(self, total: Named, count: float, theta: Named) -> bool:
        return too_small(total["second"], total["first"], count)

    def solve(self, total: Named, count: float, theta: Named) -> tuple[Named, bool]:
        shift = total["first"] / count
        variance = (total["second"] - count * shift**2) / self._freedom(count, 1)
        mean = theta["center"] + shift
        return {"center": mean, "mean": mean, "sigma": _deviation(variance, mean)}, near(shift, variance, theta)

    def outputs(self, x: Tensor, theta: Mapping[str, Tensor]) -> Tensor:
        import torch

        values, lines = self.drawn(x, theta)
        low, center, high = lines
        away = values - center
        room = torch.where(away < 0, center - low, high - center)
        worst = torch.where(room > 0, away.abs() / torch.where(room > 0, room, 1.0), 0.0).amax(1, keepdim=True)
        return worst.expand(-1, x[0].numel())

    def _freedom(self, count: float, fitted: int) -> float:
        """Return n − ``fitted``; SettingError: no rows are left to estimate a variance."""
        if count <= fitted:
            raise SettingError(
                f"method '{type(self).__name__.lower()}': {int(count)} normal samples of all devices are too few for "
                f"limits, which need more than {fitted}. Give more samples, or fewer sensors.",
                key="too-few-rows",
            )
        return count - fitted


@dataclass(frozen=True, kw_only=True)
class Shewhart(Chart):
    """Shewhart's chart of single values: m ± Lσ for each sensor.

    Why: it needs no past, and finds large jumps at once.

    Travels: 1 + 2C numbers of 8 bytes per device, for C sensors.

    Shewhart, Economic Control of Quality of Manufactured Product, 1931; Montgomery, Introduction to Statistical Quality
    Control.

    Args:
        width: L. Of normally distributed values a share of 0.0027 is beyond 3σ, by chance, for each sensor.
        limits: ``chart``, or a ``quantile`` of the scores of held-out normal samples as ``data.task`` says.
    """

    title: ClassVar[str] = "Shewhart chart"

    width: float = 3.0

    def __post_init__(self) -> None:
        require(0 < self.width < math.inf, "methods.shewhart.width", self.width, "a number above 0")

    def drawn(self, x: Tensor, theta: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return _last(x), _around(theta["mean"], self.width * theta["sigma"])


@dataclass(frozen=True, kw_only=True)
class XbarS(Chart):
    r"""x̄–s charts: the mean and the standard deviation of each window's R rows, for each sensor.

    ::

        each device k: Σ x̄ and Σ s over its windows;  m and s̄ are the means of all windows
        x̄ within m ± L·s̄/(c₄√R);  s within s̄ ± L·s̄·√(1 − c₄²)/c₄, and not below 0
        c₄ = √(2/(R − 1))·Γ(R/2)/Γ((R − 1)/2)

    Why: means of several rows find smaller shifts than single ones, and the second chart a process that has become
    restless. Windows are the subgroups: set their step to their length.

    Travels: 1 + 2C numbers of 8 bytes per device, for C sensors.

    Shewhart, 1931; ISO 7870-2:2013.

    Args:
        width: L.
        limits: as for :class:`Shewhart`.
    """

    title: ClassVar[str] = "x̄–s charts"
    rows: ClassVar[int] = 2

    width: float = 3.0

    def __post_init__(self) -> None:
        require(0 < self.width < math.inf, "methods.xbars.width", self.width, "a number above 0")

    def sums(self, rows: SampleRows, theta: Named) -> Named:
        return {"first": rows.x.mean(2).sum(0), "second": rows.x.std(2, ddof=1).sum(0)}

    def implausible(self, total: Named, count: float, theta: Named) -> bool:
        return bool((total["second"] < 0).any())

    def solve(self, total: Named, count: float, theta: Named) -> tuple[Named, bool]:
        spread = total["second"] / count
        mean = total["first"] / count
        return {"center": theta["center"], "mean": mean, "sigma": _deviation(spread**2, mean)}, True

    def called(self, sensors: tuple[str, ...]) -> Called:
        means = [(f"mean of {name}", (number, 1)) for number, name in enumerate(sensors)]
        return [*means, *((f"deviation of {name}", (number, 0)) for number, name in enumerate(sensors))]

    def drawn(self, x: Tensor, theta: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        import torch

        length = x.shape[2]
        c4 = math.sqrt(2 / (length - 1)) * math.exp(math.lgamma(length / 2) - math.lgamma((length - 1) / 2))
        spread = theta["sigma"]
        means = _around(theta["mean"], self.width * spread / (c4 * math.sqrt(length)))
        spreads = _around(spread, self.width * spread * math.sqrt(1 - c4**2) / c4).clamp(min=0)
        middle = x.mean(2, keepdim=True)
        own = ((x - middle).square().sum(2) / (length - 1)).sqrt()
        return torch.cat([middle[:, :, 0], own], 1), torch.cat([means, spreads], 1)


@dataclass(frozen=True, kw_only=True)
class EWMA(Chart):
    r"""EWMA charts: an exponentially weighted mean of each sensor over a window's R rows.

    ::

        z_0 = m;  z_t = λx_t + (1 − λ)z_{t−1};  z_R within m ± Lσ·√(λ/(2 − λ)·(1 − (1 − λ)^{2R}))

    Why: it finds shifts of one σ or less within a few rows, which single values miss. Each window begins anew at m, so
    that a device keeps nothing between samples; with R ≥ 3/λ this changes z by 5 % of a shift at most.

    Travels: 1 + 2C numbers of 8 bytes per device, for C sensors.

    Roberts, Technometrics 1 (1959) 239; Lucas and Saccucci, Technometrics 32 (1990) 1.

    Args:
        weight: λ, the weight of the newest row, above 0 and at most 1.
        width: L.
        limits: as for :class:`Shewhart`.
    """

    title: ClassVar[str] = "EWMA chart"
    rows: ClassVar[int] = 2

    weight: float = 0.2
    width: float = 3.0

    def __post_init__(self) -> None:
        require(0 < self.weight <= 1, "methods.ewma.weight", self.weight, "above 0 and at most 1")
        require(0 < self.width < math.inf, "methods.ewma.width", self.width, "a number above 0")

    def drawn(self, x: Tensor, theta: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        length = x.shape[2]
        weights = x.new_tensor([self.weight * (1 - self.weight) ** age for age in reversed(range(length))])
        center = theta["mean"]
        value = center + (x - center[:, None]) @ weights
        share = self.weight / (2 - self.weight) * (1 - (1 - self.weight) ** (2 * length))
        return value, _around(center, self.width * math.sqrt(share) * theta["sigma"])


@dataclass(frozen=True, kw_only=True)
class CUSUM(Chart):
    r"""CUSUM charts: what each sensor's deviations add up to over a window's R rows.

    ::

        u_t = (x_t − m)/σ;  S⁺_t = max(0, S⁺_{t−1} + u_t − κ),  S⁻_t = max(0, S⁻_{t−1} − u_t − κ),  S_0 = 0
        alarm: S⁺_R > h or S⁻_R > h, drawn as S⁺ and −S⁻

    Why: of all charts it finds a lasting shift of 2κσ with the least delay at a given rate of false alarms. Each window
    begins anew at 0, so that a device keeps nothing between samples: R should be several times h/κ.

    Travels: 1 + 2C numbers of 8 bytes per device, for C sensors.

    Page, Biometrika 41 (1954) 100; Lorden, Annals of Mathematical Statistics 42 (1971) 1897.

    Args:
        slack: κ, half of the shift to find, in σ.
        height: h, in σ.
        limits: as for :class:`Shewhart`.
    """

    title: ClassVar[str] = "CUSUM chart"
    rows: ClassVar[int] = 2

    slack: float = 0.5
    height: float = 5.0

    def __post_init__(self) -> None:
        require(0 <= self.slack < math.inf, "methods.cusum.slack", self.slack, "a number of at least 0")
        require(0 < self.height < math.inf, "methods.cusum.height", self.height, "a number above 0")

    def called(self, sensors: tuple[str, ...]) -> Called:
        return [(f"{sign} of {name}", None) for sign in ("S⁺", "S⁻") for name in sensors]

    def drawn(self, x: Tensor, theta: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        import torch

        sigma = theta["sigma"][:, None]
        u = torch.where(sigma > 0, (x - theta["mean"][:, None]) / torch.where(sigma > 0, sigma, 1.0), 0.0)
        both = torch.cat([u, -u], 1) - self.slack
        sums = both.cumsum(2)
        risen = sums[:, :, -1] - torch.minimum(sums.amin(2), torch.zeros_like(sums[:, :, -1]))
        up, down = risen.tensor_split(2, 1)
        high = x.new_full((1, 2 * x.shape[1]), self.height)
        return torch.cat([up, -down], 1), torch.cat([-high, 0 * high, high])


@dataclass(frozen=True, kw_only=True)
class Hotelling(Chart):
    r"""Hotelling's T² chart of all sensors together.

    ::

        each device k: n_k, Σ_i (x_i − c), Σ_i (x_i − c)(x_i − c)ᵀ;  m and the covariance Σ of all, by n − 1
        T² = (x − m)ᵀ Σ⁻¹ (x − m),  alarm above r(n + 1)(n − 1)/(n(n − r)) · F_{1−α}(r, n − r),  r the rank of Σ

    Why: sensors that move together can each be within limits and yet be impossible together. The limit is that of new
    samples, exact for normally distributed ones. Directions in which no sample differs have no limit.

    Travels: 1 + C + C² numbers of 8 bytes per device, for C sensors.

    Hotelling, Multivariate quality control, 1947; Tracy, Young and Mason, Journal of Quality Technology 24 (1992) 88.

    Args:
        alpha: α, the share of false alarms.
        limits: as for :class:`Shewhart`.
    """

    title: ClassVar[str] = "Hotelling's T² chart"
    sends: ClassVar[str] = "number, mean and covariance matrix of a device's samples"

    alpha: float = 0.0027

    def __post_init__(self) -> None:
        require(0 < self.alpha < 1, "methods.hotelling.alpha", self.alpha, "a share, above 0 and below 1")

    def parameters(self, shape: tuple[int, ...], outputs: int) -> Named:
        theta = super().parameters(shape, outputs)
        size = len(theta["mean"])
        return {
            "center": theta["center"],
            "mean": theta["mean"],
            "whiten": np.zeros((size, size)),
            "limit": np.zeros(1),
        }

    def shapes(self, shape: tuple[int, ...], outputs: int) -> Shapes:
        return {"first": shape[:1], "second": shape[:1] * 2}

    def sums(self, rows: SampleRows, theta: Named) -> Named:
        away = _last(rows.x) - theta["center"]
        return {"first": away.sum(0), "second": away.T @ away}

    def implausible(self, total: Named, count: float, theta: Named) -> bool:
        first = total["first"]
        whole = np.block([[np.full((1, 1), count), first[None]], [first[:, None], total["second"]]])
        return indefinite(whole, count)

    def solve(self, total: Named, count: float, theta: Named) -> tuple[Named, bool]:
        shift = total["first"] / count
        size = len(shift)
        covariance = (total["second"] - count * np.outer(shift, shift)) / self._freedom(count, size)
        covariance *= (count - size) / (count - 1)
        variance = np.diag(covariance)
        mean = theta["center"] + shift
        sigma = _deviation(variance, mean)
        unit = np.where(sigma > 0, 1 / np.where(sigma > 0, sigma, 1.0), 0.0)
        values, vectors = np.linalg.eigh(covariance * np.outer(unit, unit))
        after = {"center": mean, "mean": mean, **self.limited(values, vectors, unit, count)}
        return after, near(shift, variance, theta)

    def limited(self, values: Floats, vectors: Floats, unit: Floats, count: float) -> Named:
        """Return the projection of which T² is the sum of squares, and its limit.

        Args:
            values, vectors: eigenvalues [r] and vectors [C, r] of the sensors' correlations.
            unit: 1/σ of each sensor, 0 without a limit, [C].
            count: the number of samples.
        """
        from scipy.stats import f

        kept = values > ALIKE
        rank = int(kept.sum())
        whiten = np.zeros((len(unit), len(unit)))
        whiten[: len(values)] = (vectors * np.where(kept, 1 / np.sqrt(np.where(kept, values, 1.0)), 0.0)).T * unit
        limit = rank * (count + 1) * (count - 1) / (count * (count - rank)) * f.ppf(1 - self.alpha, rank, count - rank)
        return {"whiten": whiten, "limit": np.full(1, limit)}

    def called(self, sensors: tuple[str, ...]) -> Called:
        return [("T²", None)]

    def drawn(self, x: Tensor, theta: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        import torch

        away = (_last(x) - theta["mean"]) @ theta["whiten"].T
        limit = theta["limit"]
        return away.square().sum(1, keepdim=True), torch.stack([0 * limit, 0 * limit, limit])


def _last(x: X) -> X:
    """Return rows [n, C], or the last rows of windows [n, C, R]."""
    return x if x.ndim == 2 else x[:, :, -1]


def _around(center: Tensor, room: Tensor) -> Tensor:
    """Return lower limit, centre line and upper limit, [3, J]."""
    import torch

    return torch.stack([center - room, center, center + room])


def _deviation(variance: Floats, mean: Floats) -> Floats:
    """Return σ; 0 for sensors that do not change, which are told. Each is judged by itself, in whichever unit it is."""
    if (variance < -np.maximum(FALSE * np.abs(variance).max(), ROUNDING * mean**2)).any():
        raise np.linalg.LinAlgError("a sensor has a negative variance, as by false sums behind masks")
    varies = variance > SMALLEST * (variance + mean**2)
    if not varies.any():
        raise SettingError(
            "no sensor changes in the training samples, so that there are no limits. Check the columns and the "
            "normalisation.",
            key="constant-sensors",
        )
    if not varies.all():
        log.warning("%s: no limits, as nothing changes.", counted(int((~varies).sum()), "sensor"))
    return np.where(varies, np.sqrt(np.where(varies, variance, 1.0)), 0.0)
