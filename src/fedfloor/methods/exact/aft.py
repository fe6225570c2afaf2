"""Accelerated failure times: Weibull and log-normal regression of lives, by Newton's method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.methods.exact.effects import effects
from fedfloor.methods.exact.kaplanmeier import check_distribution
from fedfloor.methods.exact.plausible import ROUNDING, miscounted
from fedfloor.methods.exact.rows import Floats, Named, SampleRows, Shapes
from fedfloor.methods.exact.sums import ExactSums, halved
from fedfloor.parts.objectives.objective import Objective
from fedfloor.tasks.lives import TINY, normal_tail
from fedfloor.tasks.survival import WIDEST
from fedfloor.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor

TAIL = 1e-3  # of 1: the error of a second derivative far in a tail
CLOSE = 1e-9  # the greatest change of a weight in the last step: the error after it is about its square
FAR = 5.0  # size of weights along a flat direction
FLAT = 1e-6  # curvature along it, as a share of the largest


@dataclass(frozen=True)
class AFT(ExactSums):
    r"""Weibull or log-normal regression of lives, also of those that are not over: covariates stretch the time.

    ::

        u = (log t − μ)/s with μ and s of the task;  z = τ·u − aᵀ(1, x);  so that (log t − μ)/s = aᵀ(1, x)/τ + z/τ
        ψ = z − eᶻ and φ = −eᶻ for Weibull, ψ = log N(z) and φ = log Φ(−z) for log-normal
        ℓ_i = ψ(z_i) + log τ for a failure, φ(z_i) for a life censored at t_i, and −φ(z of its entry) for a late entry
        in each round, each device k, at the present (a, τ): Σ_i ℓ_i, its gradient and its second derivatives
        the cloud: a Newton step on Σ_k − λ/2 ‖a without its first‖²; half of the last one if that of as many has fallen

    Why: a few numbers say by which factor each sensor or kind of machine shortens lives, and four to eight rounds
    suffice. It equals the maximum of the likelihood of all lives in one place: without entries it is concave in (a, τ).

    Travels: per round 1 + 1 + V + V² numbers of 8 bytes up, for V = 2 + D weights; down the weights.

    Kalbfleisch and Prentice, The Statistical Analysis of Failure Time Data, 2002, chapter 3; Burridge, Journal of the
    Royal Statistical Society B 43 (1981) 41, on concavity.

    Args:
        ridge: λ, for inputs as ``data.normalise`` makes them; above 0 where a covariate separates.
    """

    title: ClassVar[str] = "AFT"
    usual: ClassVar[int | None] = 8
    tasks: ClassVar[tuple[str, ...]] = ("survival",)
    sends: ClassVar[str] = (
        "a gradient and second derivatives of the likelihood, from which single lives can be computed"
    )

    ratio: ClassVar[str] = "time ratio"
    distribution: ClassVar[str] = ""  # that of the task, if it is known

    ridge: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.ridge < np.inf, "methods.aft.ridge", self.ridge, "a finite number of at least 0")

    def for_task(self, task: Task) -> Objective:
        super().for_task(task)
        check_distribution(self.title, task, ("weibull", "log-normal"))
        told = replace(self)
        object.__setattr__(told, "distribution", getattr(task, "distribution", ""))
        return told

    def parameters(self, shape: tuple[int, ...], outputs: int) -> Named:
        weight = np.zeros(2 + prod(shape))
        weight[-1] = 1.0  # τ
        return {"weight": weight, "last": weight, "value": np.full((), -1e300), "count": np.zeros(())}

    def shapes(self, shape: tuple[int, ...], outputs: int) -> Shapes:
        size = 2 + prod(shape)
        return {"value": (), "gradient": (size,), "curvature": (size, size)}

    def sums(self, rows: SampleRows, theta: Named) -> Named:
        task: Any = rows.task
        time, failed, entry = task.clocked(rows.y)
        x = covariates(rows)
        known = time > 0
        parts = [(time, known & failed, known & ~failed)]
        parts += [(entry, np.zeros_like(failed), entry > 0)] if (entry > 0).any() else []
        total = {name: np.zeros(shape) for name, shape in self.shapes(rows.x.shape[1:], 2).items()}
        for sign, (when, ends, lasts) in zip((1.0, -1.0), parts, strict=False):
            u = (np.log(np.maximum(when, TINY)) - task.center) / task.scale
            w = np.hstack([-np.ones((len(x), 1)), -x, u[:, None]])
            z = w @ theta["weight"]
            kinds = zip((ends, lasts), (_density, _tail), strict=True)
            for mine, function in kinds:
                value, slope, bend = function(task.distribution, z[mine])
                total["value"] += sign * value.sum()
                total["gradient"] += sign * (slope @ w[mine])
                total["curvature"] += sign * (w[mine].T @ (w[mine] * bend[:, None]))
        tau = theta["weight"][-1]
        many = int(parts[0][1].sum())
        total["value"] += many * np.log(tau)
        total["gradient"][-1] += many / tau
        total["curvature"][-1, -1] -= many / tau**2
        return total

    def stated(self, total: Named, theta: Named, after: Named) -> Named:
        weight = theta["weight"]
        tau = weight[-1]
        size = len(weight) - 2
        effect = weight[1:-1, None] / tau
        slopes = np.hstack([np.zeros((size, 1)), np.eye(size) / tau, -effect / tau])
        return effects(theta, after, -total["curvature"], self._pull(size), np.hstack([effect, slopes]))

    def unit(self, task: Any) -> float:
        return float(task.scale)

    def _pull(self, size: int) -> Floats:
        """Return λ for each weight [2 + D], 0 for the first and for τ."""
        return np.pad(np.full(size, self.ridge), 1)

    def implausible(self, total: Named, count: float, theta: Named) -> bool:
        """Of lives with a late entry the curvature is not definite; a second derivative of log-normal ones is up to 1.

        With ψ = z − eᶻ and φ = −eᶻ, gradient and curvature give Σ w over the failures, and with it the value.
        """
        gradient = total["gradient"]
        curvature = total["curvature"]
        weight = theta["weight"]
        slack = ROUNDING * (count + float(np.abs(curvature).max()) + float(np.abs(gradient).max()))
        if (np.abs(curvature - curvature.T) > slack).any():
            return True
        if self.distribution == "log-normal":
            return bool(abs(curvature[0, 0]) > count * (1 + TAIL) + slack)
        if self.distribution != "weibull":
            return False
        failed = gradient + curvature[0]
        number = -failed[0]
        failed[-1] -= number / weight[-1]
        value = failed @ weight + number * np.log(weight[-1]) + curvature[0, 0]
        far = slack * (1 + float(np.abs(weight).sum()) + 1 / weight[-1])
        return miscounted(np.array([number]) + far, count + 2 * far) or abs(value - total["value"]) > far

    def gradient(self, total: Named, theta: Named) -> Floats:
        weight = theta["weight"]
        return total["gradient"] - self._pull(len(weight) - 2) * weight

    def solve(self, total: Named, count: float, theta: Named) -> tuple[Named, bool]:
        weight = theta["weight"]
        pull = self._pull(len(weight) - 2)
        value = total["value"] - (pull * weight**2).sum() / 2
        check_converges(self.title, weight, np.diag(pull) - total["curvature"], first=1)
        worse = not value >= theta["value"] - 1e-9 * abs(theta["value"])
        if (back := halved(theta, count, worse=worse)) is not None:
            return back, False
        slope = self.gradient(total, theta)
        step: Any = np.linalg.lstsq(np.diag(pull) - total["curvature"], slope, rcond=1e-12)[0]
        after = weight + step
        while np.isfinite(step[-1]) and after[-1] <= 0:
            step /= 2
            after = weight + step
        done = bool(np.abs(step).max() <= CLOSE * (1 + np.abs(weight).max()))
        return {"weight": after, "last": weight, "value": np.asarray(value), "count": np.asarray(count)}, done

    def outputs(self, x: Tensor, theta: Mapping[str, Tensor]) -> Tensor:
        import torch

        weight = theta["weight"]
        location = (x.flatten(1) @ weight[1:-1] + weight[0]) / weight[-1]
        scale = torch.zeros_like(location) - weight[-1].log()
        inside = scale.clamp(-WIDEST, WIDEST)  # beyond which the task takes a tenth
        return torch.stack([location, inside + 10 * (scale - inside)], 1)


def covariates(rows: SampleRows) -> Floats:
    """Return the inputs [n, D] of samples, with 0 for the age of a machine, which is no covariate."""
    task: Any = rows.task
    x = rows.x.reshape(len(rows.x), prod(rows.x.shape[1:]))
    if task.age is not None:
        x = x.copy()
        x[:, task.age] = 0.0
    return x


def check_converges(title: str, weight: Floats, curvature: Floats, first: int = 0) -> None:
    """Refuse weights that grow without limit: far along a direction in which the likelihood is flat.

    Args:
        weight: [V], with the weight of the first sensor at ``first``.
        curvature: [V, V], the negative second derivatives of what is maximised.

    Raises:
        SettingError: a covariate separates.
    """
    if not np.isfinite(curvature).all():
        raise SettingError(f"method '{title}': sensors hold infinite or missing values. Set data.missing.")
    values, vectors = np.linalg.eigh(curvature)
    along = np.abs(vectors.T @ weight)
    away = np.flatnonzero((values < FLAT * values[-1]) & (along > FAR))
    if not len(away):
        return
    worst = np.abs(vectors[first:, away[0]])
    raise SettingError(
        f"method '{title}' has no finite answer: the weight of sensor number {int(worst.argmax()) + 1} of the samples "
        "grows without limit. It separates the lives, such as a kind of "
        "machine of which none has failed yet. Leave this column out ([data] columns.ignore), or pull weights to 0: "
        f"--set methods.{title.lower()}.ridge=1.",
        key="separates",
    )


Parts = tuple[Floats, Floats, Floats]


def _density(distribution: str, z: Floats) -> Parts:
    """Return ψ(z), ψ′(z) and ψ″(z)."""
    if distribution == "weibull":
        steep = np.exp(z)
        return z - steep, 1 - steep, -steep
    return -(z**2) / 2 - np.log(2 * np.pi) / 2, -z, -np.ones_like(z)


def _tail(distribution: str, z: Floats) -> Parts:
    """Return φ(z), φ′(z) and φ″(z)."""
    if distribution == "weibull":
        steep = np.exp(z)
        return -steep, -steep, -steep
    log_tail, hazard = normal_tail(z)
    return log_tail, -hazard, -hazard * (hazard - z)
