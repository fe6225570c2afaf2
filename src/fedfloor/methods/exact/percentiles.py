"""Charts of percentiles: limits without a distribution, from histograms of all machines, in two rounds."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedfloor.base.errors import require
from fedfloor.base.names import count as counted
from fedfloor.methods.exact.charts import Chart, _last
from fedfloor.methods.exact.plausible import miscounted
from fedfloor.methods.exact.rows import Floats, Named, SampleRows, Shapes

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)
REACH = 8.0  # of the histograms, in σ to both sides of the mean


@dataclass(frozen=True, kw_only=True)
class Percentiles(Chart):
    r"""A chart of percentiles: the limits of each sensor are quantiles of the values of all machines.

    ::

        round 1, each device k: n_k, Σ_i x_i, Σ_i x_i² for each sensor;  m and σ of all
        round 2, each device k: its samples in each of B bins of m ± 8σ, and below and above them, for each sensor
        limits: the α/2 and the 1 − α/2 quantile, linear within a bin; centre line: the median

    A limit differs by at most one bin, 16σ/B, from a quantile of all samples; one that is beyond the bins is their end,
    which the log says.

    Why: sensors that are skewed, or rest at one value, have no 3σ limits that mean anything; α is then the share of
    false alarms for each sensor whatever the distribution, as far as there are several times 2/α samples.

    Travels: per round 1 + C·(B + 4) numbers of 8 bytes up, for C sensors.

    Willemain and Runger, Journal of Quality Technology 28 (1996) 31, on charts by empirical quantiles.

    Args:
        alpha: α, the share of false alarms of each sensor.
        bins: B, of each sensor's histogram.
        limits: as for :class:`~fedfloor.methods.exact.charts.Shewhart`.
    """

    title: ClassVar[str] = "percentile chart"
    sends: ClassVar[str] = (
        "number, means, squares and histograms of a device's samples, which are single samples if it has few"
    )

    usual: ClassVar[int | None] = 2

    alpha: float = 0.0027
    bins: int = 512

    def __post_init__(self) -> None:
        require(0 < self.alpha < 1, "methods.percentiles.alpha", self.alpha, "a share, above 0 and below 1")
        require(2 <= self.bins <= 65536, "methods.percentiles.bins", self.bins, "a whole number from 2 to 65,536")

    def parameters(self, shape: tuple[int, ...], outputs: int) -> Named:
        theta = super().parameters(shape, outputs)
        return {**theta, "low": theta["mean"], "high": theta["mean"]}

    def shapes(self, shape: tuple[int, ...], outputs: int) -> Shapes:
        return {**super().shapes(shape, outputs), "bins": (shape[0], self.bins + 2)}

    def sums(self, rows: SampleRows, theta: Named) -> Named:
        sigma = theta["sigma"]
        counts = np.zeros((len(sigma), self.bins + 2))
        if not sigma.any():
            return {**super().sums(rows, theta), "bins": counts}
        place = (_last(rows.x) - theta["center"]) / np.where(sigma > 0, sigma, 1.0) / REACH  # within ±1
        bins = np.clip(np.floor((place + 1) / 2 * self.bins) + 1, 0, self.bins + 1).astype(np.int64)
        for sensor in range(len(sigma)):
            counts[sensor] = np.bincount(bins[:, sensor], minlength=self.bins + 2)
        zeros = np.zeros(len(sigma))
        return {"first": zeros, "second": zeros, "bins": counts}

    def implausible(self, total: Named, count: float, theta: Named) -> bool:
        if not theta["sigma"].any():
            return super().implausible(total, count, theta)
        return any(miscounted(row, count, all_counted=True) for row in total["bins"])

    def solve(self, total: Named, count: float, theta: Named) -> tuple[Named, bool]:
        if not theta["sigma"].any():
            after, _ = super().solve(total, count, theta)
            return {**after, "low": after["mean"], "high": after["mean"]}, False
        shares = (self.alpha / 2, 0.5, 1 - self.alpha / 2)
        low, middle, high = (self._quantile(total["bins"], share, theta) for share in shares)
        varies = theta["sigma"] > 0
        ends = np.stack([theta["center"] + sign * REACH * theta["sigma"] for sign in (-1, 1)])
        if beyond := int((((low <= ends[0]) | (high >= ends[1])) & varies).sum()):
            log.warning("%s: a limit is beyond 8σ, where the bins end.", counted(beyond, "sensor"))
        return {**theta, "mean": np.where(varies, middle, theta["mean"]), "low": low, "high": high}, True

    def _quantile(self, counts: Floats, share: float, theta: Named) -> Floats:
        """Return a quantile of each sensor from its counts [C, B + 2], linear within a bin; the mean without σ."""
        found = []
        for row in np.maximum(counts, 0.0):
            reached = np.cumsum(row)
            wanted = share * reached[-1]
            bin_ = int(np.searchsorted(reached, wanted))
            inside = (wanted - (reached[bin_] - row[bin_])) / row[bin_]
            found.append(np.clip((bin_ - 1 + inside) / self.bins, 0.0, 1.0))
        return theta["center"] + (2 * np.array(found) - 1) * REACH * theta["sigma"]

    def drawn(self, x: Tensor, theta: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        import torch

        return _last(x), torch.stack([theta["low"], theta["mean"], theta["high"]])
