"""Logistic and softmax regression with a ridge penalty, by Newton's method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.methods.exact.plausible import ROUNDING, indefinite, miscounted
from fedfloor.methods.exact.rows import Floats, Named, SampleRows, Shapes
from fedfloor.methods.exact.sums import ExactSums, halved

if TYPE_CHECKING:
    from torch import Tensor

MOST = 4000  # weights, whose second derivatives are a matrix of 128 MB
CLOSE = 1e-6  # the greatest change of a weight in the last step: the error after it is about its square


@dataclass(frozen=True)
class Logistic(ExactSums):
    r"""Logistic regression (two classes) or softmax regression (several), by Newton's method.

    ::

        z = (1, x) [1 + D];  p = softmax(Wᵀz) [C], or for two classes p = (1 − s, s) with s = 1/(1 + exp(−wᵀz))
        in each round, each device k, at the present W:
            F_k = −Σ_i log p_i[y_i],  G_k = Σ_i z_i (p_i − onehot y_i)ᵀ,  H_k = Σ_i (diag p_i − p_i p_iᵀ) ⊗ z_i z_iᵀ
        the cloud, with λ for all weights but the intercepts:
            F = Σ_k F_k + λ/2 ‖W‖²;  if F of as many samples has risen, W ← the middle of the last step
            otherwise W ← W − (Σ_k H_k + λ)⁻¹ (Σ_k G_k + λW), until no weight changes by more than 10⁻⁶

    Why: the simplest classifier with probabilities, each of whose weights can be read; five to eight rounds suffice.
    It equals scikit-learn's ``LogisticRegression(C=1/λ)`` on all samples in one place.

    Travels: per round 1 + V + V² numbers of 8 bytes up, for V = 1 + D weights, times C for C > 2 classes; down the
    weights. A model has at most 4,000 weights.

    Cox, Journal of the Royal Statistical Society B 20 (1958) 215; Böhning, Annals of the Institute of Statistical
    Mathematics 44 (1992) 197.

    Args:
        ridge: λ > 0, for inputs as ``data.normalise`` makes them.
    """

    title: ClassVar[str] = "logistic regression"
    usual: ClassVar[int | None] = 8
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    sends: ClassVar[str] = "a gradient and second derivatives of the loss, from which single samples can be computed"

    ridge: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.ridge < np.inf, "methods.logistic.ridge", self.ridge, "a finite number above 0")

    def parameters(self, shape: tuple[int, ...], outputs: int) -> Named:
        size = 1 + prod(shape), _width(outputs)
        if prod(size) > MOST:
            raise SettingError(
                f"method 'logistic' has at most {MOST:,} weights; {prod(shape):,} numbers per sample and {outputs} "
                'classes need more. Take fewer sensors, or method fedavg with [model] name = "logistic".'
            )
        first = {"loss": np.full((), 1e300), "count": np.zeros(())}
        return {"weight": np.zeros(size), "last": np.zeros(size), **first}

    def shapes(self, shape: tuple[int, ...], outputs: int) -> Shapes:
        size = 1 + prod(shape), _width(outputs)
        return {"loss": (), "gradient": size, "curvature": (prod(size), prod(size))}

    def sums(self, rows: SampleRows, theta: Named) -> Named:
        z = np.hstack([np.ones((len(rows.x), 1)), rows.x.reshape(len(rows.x), -1)])
        scores = z @ theta["weight"]
        if scores.shape[1] == 1:  # of two classes the first has the score 0
            scores = np.hstack([np.zeros_like(scores), scores])
        logs = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
        p = np.exp(logs)
        slope = p - np.eye(p.shape[1])[rows.y]
        first = p.shape[1] - theta["weight"].shape[1]
        parts = [
            [z.T @ (z * (p[:, a] * ((a == b) - p[:, b]))[:, None]) for b in range(first, p.shape[1])]
            for a in range(first, p.shape[1])
        ]
        loss = -logs[np.arange(len(p)), rows.y].sum()
        return {"loss": loss, "gradient": z.T @ slope[:, first:], "curvature": np.block(parts)}

    def implausible(self, total: Named, count: float, theta: Named) -> bool:
        """Each |p − 1| of the sample's class is at most its loss; all p(1 − p) are at most ¼, and add up to 0."""
        width = theta["weight"].shape[1]
        gradient = total["gradient"]
        curvature = total["curvature"]
        if total["loss"] < 0 or indefinite(curvature, count):
            return True
        blocks = curvature.reshape(width, len(gradient), width, len(gradient))
        slack = ROUNDING * (count + float(np.abs(gradient).max()) + float(np.abs(curvature).max()))
        own = np.diagonal(blocks[:, 0, :, 0])
        if (np.abs(gradient[0]) > min(count, float(total["loss"])) + slack).any() or (own > count / 4 + slack).any():
            return True
        if width > 1 and max(np.abs(gradient.sum(1)).max(), np.abs(blocks.sum(2)).max()) > width**2 * slack:
            return True
        return not theta["weight"].any() and _impossible(total["loss"], gradient, blocks, count, slack)

    def gradient(self, total: Named, theta: Named) -> Floats:
        return (total["gradient"] + self._pull(theta["weight"]) * theta["weight"]).T.ravel()

    def _pull(self, weight: Floats) -> Floats:
        """Return λ for each weight, 0 for the intercepts."""
        pull = np.full(weight.shape, self.ridge)
        pull[0] = 0.0
        return pull

    def solve(self, total: Named, count: float, theta: Named) -> tuple[Named, bool]:
        weight = theta["weight"]
        pull = self._pull(weight)
        loss: Any = np.asarray(total["loss"] + (pull * weight**2).sum() / 2, np.float64)
        if (back := halved(theta, count, worse=bool(loss > theta["loss"] * (1 + 1e-12)))) is not None:
            return back, False
        same = np.zeros(weight.shape)
        same[0] = weight.shape[1] > 1  # the intercepts of all classes together change nothing, and stay 0
        curvature = total["curvature"] + np.diag(pull.T.ravel()) + np.outer(same.T, same.T) * count
        step: Any = np.linalg.solve(curvature, self.gradient(total, theta)).reshape(weight.T.shape).T
        after = {"weight": weight - step, "last": weight, "loss": loss, "count": np.asarray(count)}
        return after, bool(np.abs(step).max() <= CLOSE)

    def outputs(self, x: Tensor, theta: Mapping[str, Tensor]) -> Tensor:
        import torch

        scores = x.flatten(1) @ theta["weight"][1:] + theta["weight"][0]
        return torch.cat([-scores / 2, scores / 2], 1) if scores.shape[1] == 1 else scores


def _impossible(loss: Floats, gradient: Floats, blocks: Floats, count: float, slack: float) -> bool:
    """Return whether no samples have these sums at weights of 0, where all p = 1/C.

    The sums then are those of z zᵀ over all samples, A, and of z over each class, S, so that A − Σ_c S_c S_cᵀ/n_c ≥ 0.
    """
    width = gradient.shape[1]
    p = 1 / max(width, 2)
    products = blocks[0, :, 0] / (p * (1 - p))
    share = p * np.eye(width) - p**2
    expected = share[:, None, :, None] * products[None, :, None, :]
    wrong = np.abs(blocks - expected).max() > slack or abs(products[0, 0] - count) > 8 * width * slack
    if wrong or abs(loss + count * np.log(p)) > slack * 10:
        return True
    sums = p * products[:, :1] - gradient
    sums = np.hstack([products[:, :1] - sums, sums]) if width == 1 else sums
    number = sums[0]
    some = number > slack
    within = products - (sums[:, some] / number[some]) @ sums[:, some].T
    none = (np.abs(sums[:, ~some]) > np.sqrt(slack * np.diag(products))[:, None] + slack).any()
    return bool(none) or miscounted(number, count) or indefinite(within, count + float(np.abs(products).max()))


def _width(classes: int) -> int:
    """Return the number of scores of a sample: one for two classes."""
    return 1 if classes == 2 else classes
