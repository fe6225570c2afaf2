"""Gaussian naive Bayes, in one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedfloor.base.errors import require
from fedfloor.methods.exact.plausible import miscounted, too_small
from fedfloor.methods.exact.rows import Floats, Named, SampleRows, Shapes
from fedfloor.methods.exact.sums import ExactSums, near

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Bayes(ExactSums):
    r"""Gaussian naive Bayes: each class has a mean and a variance of each number of a sample.

    ::

        each device k, class c: n_kc, Σ_i (x_i − r) [D], Σ_i (x_i − r)² [D] of its samples of that class, r = 0 at first
        m_c = r + Σ(x − r)/n_c;  v_c = Σ(x − r)²/n_c − (m_c − r)² + ε·max_j v_j, with v_j the variance of all samples
        log p(c | x) = log(n_c/n) − ½ Σ_j log(2π v_cj) − ½ Σ_j (x_j − m_cj)²/v_cj, less its normalisation

    Why: a class needs few samples, a new class or device changes nothing but its own sums, and one round is enough. It
    takes sensors for independent. A class without samples is never predicted. It equals scikit-learn's ``GaussianNB``
    on all samples in one place.

    Travels: 1 + F·(1 + 2D) numbers of 8 bytes per device, for F classes and samples of D numbers.

    Chan, Golub and LeVeque, Stanford STAN-CS-79-773, 1979 (variances from sums).

    Args:
        smoothing: ε, the share of the largest variance that is added to all.
    """

    title: ClassVar[str] = "naive Bayes"
    usual: ClassVar[int | None] = 1
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    sends: ClassVar[str] = "number, mean and variances of a device's samples by class, which are samples if it has few"

    smoothing: float = 1e-9

    def __post_init__(self) -> None:
        require(0 < self.smoothing < 1, "methods.bayes.smoothing", self.smoothing, "a share, above 0 and below 1")

    def parameters(self, shape: tuple[int, ...], outputs: int) -> Named:
        size = outputs, prod(shape)
        first = {"center": np.zeros(size[1]), "mean": np.zeros(size), "variance": np.ones(size)}
        return first | {"prior": np.full(outputs, -np.log(outputs))}

    def shapes(self, shape: tuple[int, ...], outputs: int) -> Shapes:
        size = outputs, prod(shape)
        return {"number": (outputs,), "first": size, "second": size}

    def sums(self, rows: SampleRows, theta: Named) -> Named:
        own = np.eye(len(theta["prior"]))[rows.y]
        away = rows.x.reshape(len(rows.x), -1) - theta["center"]
        return {"number": own.sum(0), "first": own.T @ away, "second": own.T @ away**2}

    def implausible(self, total: Named, count: float, theta: Named) -> bool:
        number = total["number"]
        few = too_small(total["second"], total["first"], number[:, None])
        return few or miscounted(number, count, all_counted=True)

    def solve(self, total: Named, count: float, theta: Named) -> tuple[Named, bool]:
        number = np.rint(total["number"])
        each = np.maximum(number, 1.0)[:, None]
        shift = total["first"] / each
        variance = total["second"] / each - shift**2
        whole = total["first"].sum(0) / count
        spread: Floats = total["second"].sum(0) / count - whole**2
        known = number > 0
        prior = np.where(known, np.log(np.where(known, number, 1.0) / count), -1e30)
        after = {"center": theta["center"] + whole, "mean": theta["center"] + shift, "prior": prior}
        after["variance"] = np.maximum(variance, 0.0) + self.smoothing * spread.max()
        return after, near(shift[known], variance[known], theta)

    def outputs(self, x: Tensor, theta: Mapping[str, Tensor]) -> Tensor:
        import torch

        away = (x.flatten(1)[:, None] - theta["mean"]).square() / theta["variance"]
        logs: Tensor = theta["prior"] - 0.5 * (away + torch.log(2 * torch.pi * theta["variance"])).sum(2)
        return logs.log_softmax(1)
