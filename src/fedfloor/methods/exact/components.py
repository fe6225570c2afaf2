"""Charts of principal components: T² within them and Q beside them, in one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedfloor.base.errors import require
from fedfloor.methods.exact.charts import ALIKE, Hotelling
from fedfloor.methods.exact.rows import Called, Floats, Named

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Components(Hotelling):
    r"""Charts of principal components: T² of those that explain most of the variance, Q of what they leave.

    ::

        each device k: n_k, Σ_i (x_i − c), Σ_i (x_i − c)(x_i − c)ᵀ;  m and the covariance Σ of all, by n − 1
        z = (x − m)/σ;  eigenvalues λ_1 ≥ λ_2 ≥ … and vectors v_i of its covariance;  t_i = v_iᵀz
        r ← the least number of components that explain a share of Σ λ_i
        T² = Σ_{i≤r} t_i²/λ_i,  alarm above r(n + 1)(n − 1)/(n(n − r)) · F_{1−α}(r, n − r)
        Q = Σ_{i>r} t_i²,  alarm above g·χ²_{1−α}(h) with g = Σ λ²/Σ λ and h = (Σ λ)²/Σ λ² over i > r

    Why: where many sensors move together, few components describe normal operation; T² finds what is unusual within
    them, and Q what breaks the relations between sensors. It is method ``pca`` as sums, for devices without PyTorch.

    Travels: 1 + C + C² numbers of 8 bytes per device, for C sensors.

    Jackson and Mudholkar, Technometrics 21 (1979) 341; Box, Annals of Mathematical Statistics 25 (1954) 290; Tracy,
    Young and Mason, Journal of Quality Technology 24 (1992) 88.

    Args:
        explained: the share of the variance that the components explain.
        alpha: α, the share of false alarms of each chart.
        limits: as for :class:`~fedfloor.methods.exact.charts.Shewhart`.
    """

    title: ClassVar[str] = "T² and Q charts of principal components"

    explained: float = 0.9

    def __post_init__(self) -> None:
        require(0 < self.alpha < 1, "methods.components.alpha", self.alpha, "a share, above 0 and below 1")
        require(0 < self.explained < 1, "methods.components.explained", self.explained, "a share, above 0 and below 1")

    def parameters(self, shape: tuple[int, ...], outputs: int) -> Named:
        theta = super().parameters(shape, outputs)
        size = len(theta["mean"])
        return {**theta, "beside": np.zeros((size, size)), "limit": np.zeros(2)}

    def limited(self, values: Floats, vectors: Floats, unit: Floats, count: float) -> Named:
        """Return T²'s projection, Q's, and both limits."""
        from scipy.stats import chi2

        order = np.argsort(-values, kind="stable")
        shares = np.cumsum(values[order]) / values.sum()
        kept = order[: int(np.searchsorted(shares, self.explained - 1e-12)) + 1]
        kept = kept[values[kept] > ALIKE]
        left = np.setdiff1d(order, kept)
        rest = np.maximum(values[left], 0.0)
        inside = super().limited(values[kept], vectors[:, kept], unit, count)
        limit = 0.0  # nothing is left
        if rest.sum() > ALIKE:
            limit = (rest**2).sum() / rest.sum() * chi2.ppf(1 - self.alpha, rest.sum() ** 2 / (rest**2).sum())
        beside = np.zeros((len(values), len(values)))
        beside[: len(left)] = vectors[:, left].T * unit if limit else 0.0
        return {**inside, "beside": beside, "limit": np.append(inside["limit"], limit)}

    def called(self, sensors: tuple[str, ...]) -> Called:
        return [("T²", None), ("Q", None)]

    def drawn(self, x: Tensor, theta: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        import torch

        first, lines = super().drawn(x, {**theta, "limit": theta["limit"][:1]})
        second, others = super().drawn(x, {**theta, "whiten": theta["beside"], "limit": theta["limit"][1:]})
        return torch.cat([first, second], 1), torch.cat([lines, others], 1)
