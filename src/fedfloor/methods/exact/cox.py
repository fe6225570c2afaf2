"""Proportional hazards: Cox's regression of lives, by Newton's method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.methods.exact.aft import CLOSE, check_converges, covariates
from fedfloor.methods.exact.effects import effects
from fedfloor.methods.exact.kaplanmeier import check_distribution
from fedfloor.methods.exact.plausible import ROUNDING, indefinite, miscounted
from fedfloor.methods.exact.rows import Floats, Named, SampleRows, Shapes
from fedfloor.methods.exact.sums import GROUPS, ExactSums, halved
from fedfloor.parts.objectives.objective import Objective
from fedfloor.tasks.lives import on_grid
from fedfloor.tasks.survival import GONE
from fedfloor.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 20_000_000  # numbers of a device's sums: 160 MB
EXACT = 1e-6  # the error of a sum in which terms cancel, as a share
MOST_FAILURES = 2.0  # of a life in sums, with the rounding of secure ones


@dataclass(frozen=True)
class Cox(ExactSums):
    r"""Cox's regression of lives, also of those that are not over: covariates multiply the hazard.

    ::

        grid g_1 < … < g_G of the task;  v = (1, x, products x_a·x_b for a ≤ b) [P]
        in each round, each device k, at the present β, for each g:
            R_kg = Σ e^{βᵀx} v over the lives at risk at g; E_kg, d_kg and X_kg = Σ x over those that fail
        with R, E, d, X their sums, and R_gj = R_g for Breslow, R_g − (j/d_g)·E_g for Efron, j = 0 … d_g − 1:
            ℓ = Σ_g βᵀX_g − Σ_j log R_gj[1]; its gradient and second derivatives follow from the other entries
        the cloud: a Newton step on ℓ − λ/2 ‖β‖²; if that of as many lives has fallen, half of the last
        ΔH_g = Σ_j 1/R_gj[1], and log S(t | x) = −Σ_{g ≤ t} ΔH_g·e^{βᵀx}

    Why: it assumes no distribution of lives, only that hazards are proportional; four to six rounds suffice. It equals
    the maximum of the partial likelihood of all lives in one place, with failures counted at the next time of the grid.

    Travels: per round 1 + G·(2·P + 1 + D) numbers of 8 bytes up, with P = (1 + D)(2 + D)/2; down the weights.

    Cox, Journal of the Royal Statistical Society B 34 (1972) 187; Breslow, Biometrics 30 (1974) 89; Efron, Journal of
    the American Statistical Association 72 (1977) 557.

    Args:
        ties: the treatment of failures at the same time.
        ridge: λ, for inputs as ``data.normalise`` makes them; above 0 where a covariate separates.
    """

    title: ClassVar[str] = "Cox"
    usual: ClassVar[int | None] = 6
    tasks: ClassVar[tuple[str, ...]] = ("survival",)
    sends: ClassVar[str] = (
        "sums and products of the sensors over its lives at risk and over those that fail at each time of the grid, "
        "from which single lives can be computed"
    )

    ratio: ClassVar[str] = "hazard ratio"

    ties: Literal["efron", "breslow"] = "efron"
    ridge: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.ridge < np.inf, "methods.cox.ridge", self.ridge, "a finite number of at least 0")

    def for_task(self, task: Task) -> Objective:
        super().for_task(task)
        check_distribution(self.title, task, ("steps",))
        return self

    def parameters(self, shape: tuple[int, ...], outputs: int) -> Named:
        if (size := outputs * sum(map(prod, self.shapes(shape, 1).values()))) > LARGEST:
            raise SettingError(
                f"method 'Cox' sends {size:,} numbers for {prod(shape):,} numbers per sample and {outputs} times; "
                f"{LARGEST:,} are the limit. Take fewer sensors, or fewer times: --set data.task.points=20."
            )
        zeros = np.zeros(prod(shape))
        first = {"value": np.full((), -1e300), "count": np.zeros(()), "hazard": np.zeros(outputs)}
        return {"weight": zeros, "last": zeros, **first}

    def shapes(self, shape: tuple[int, ...], outputs: int) -> Shapes:
        size = prod(shape)
        products = (1 + size) * (2 + size) // 2
        return {"risk": (outputs, products), "ends": (outputs, products), "x": (outputs, size), "failures": (outputs,)}

    def sums(self, rows: SampleRows, theta: Named) -> Named:
        task: Any = rows.task
        time, failed, entry = task.clocked(rows.y)
        x = covariates(rows)
        z = np.hstack([np.ones((len(x), 1)), x])
        a, b = np.triu_indices(z.shape[1])
        weighted = z[:, a] * z[:, b] * np.exp(x @ theta["weight"])[:, None]
        risk, ends = on_grid(time, failed, entry, np.array(task.grid), weighted)
        plain = on_grid(time, failed, entry, np.array(task.grid), z)[1]
        return {"risk": risk, "ends": ends, "x": plain[:, 1:], "failures": plain[:, 0]}

    def stated(self, total: Named, theta: Named, after: Named) -> Named:
        weight = theta["weight"]
        itself = np.eye(len(weight))
        information = -self._likelihood(total, weight)[2]
        pull = np.full(len(weight), self.ridge)
        found = effects(theta, after, information, pull, np.hstack([weight[:, None], itself]))
        if weight.any():
            return found
        at_risk = total["risk"][:, : 1 + len(weight)]  # of weights 0 each life counts as it is
        return {**found, GROUPS: np.stack([at_risk.T, np.vstack([total["failures"], total["x"].T])])}

    def implausible(self, total: Named, count: float, theta: Named) -> bool:
        failures = total["failures"]
        size = 1 + len(theta["weight"])
        a, b = np.triu_indices(size)
        both = np.zeros((2, len(failures), size, size))
        for matrices, sums in zip(both, (total["ends"], total["risk"] - total["ends"]), strict=True):
            matrices[:, a, b] = matrices[:, b, a] = sums
        if self._moved(total, count, theta["weight"]):
            return True
        certain = (failures > 0) & (total["ends"][:, 0] <= 0)
        return bool(certain.any()) or miscounted(failures, count) or any(indefinite(one, count) for one in both)

    @staticmethod
    def _moved(total: Named, count: float, weight: Floats) -> bool:
        """Return whether those that fail have other sums than their weighted ones allow: Σ e^s ≥ d·e^(Σs/d), s = wᵀx.

        At weights of 0 both sums are the same.
        """
        failures = total["failures"]
        x = total["x"]
        ends = total["ends"]
        if not weight.any():
            plain = np.hstack([failures[:, None], x])
            slack = ROUNDING * (count + float(np.abs(ends).max(initial=0.0)))
            return bool((np.abs(plain - ends[:, : plain.shape[1]]) > slack).any())
        some = (failures > ROUNDING * count) & (ends[:, 0] > 0)
        most = failures[some] * np.log(ends[some, 0] / failures[some])
        slack = EXACT * (count + np.abs(x[some] * weight).sum(1) + np.abs(most))
        return bool((x[some] @ weight > most + slack).any())

    def gradient(self, total: Named, theta: Named) -> Floats:
        weight = theta["weight"]
        return self._likelihood(total, weight)[1] - self.ridge * weight

    def solve(self, total: Named, count: float, theta: Named) -> tuple[Named, bool]:
        weight = theta["weight"]
        if not total["failures"].sum() <= MOST_FAILURES * count:
            raise np.linalg.LinAlgError("they count more failures than lives")
        value, gradient, curvature, hazard = self._likelihood(total, weight)
        check_converges(self.title, weight, self.ridge * np.eye(len(weight)) - curvature)
        value -= self.ridge * (weight**2).sum() / 2
        worse = not value >= theta["value"] - 1e-9 * abs(theta["value"])
        if (back := halved(theta, count, worse=worse)) is not None:
            return back, False
        slope = gradient - self.ridge * weight
        step: Any = np.linalg.lstsq(self.ridge * np.eye(len(weight)) - curvature, slope, rcond=1e-12)[0]
        done = bool(np.abs(step).max(initial=0.0) <= CLOSE * (1 + np.abs(weight).max(initial=0.0)))
        # the last step is left out, so that the hazard is that of the weights
        after = weight if done else weight + step
        best = {"value": np.asarray(value), "count": np.asarray(count)}
        return {"weight": after, "last": weight, **best, "hazard": hazard}, done

    def _likelihood(self, total: Named, weight: Floats) -> tuple[float, Floats, Floats, Floats]:
        """Return the log partial likelihood, its gradient and second derivatives, and the steps of the hazard."""
        size = len(weight)
        counted = np.where(total["risk"][:, 0] > 0, np.maximum(np.rint(total["failures"]), 0.0), 0.0)
        failures = counted.astype(np.int64)
        at = np.repeat(np.arange(len(failures)), failures)
        first = np.cumsum(failures) - failures
        order = np.arange(len(at)) - first[at]
        less = order / failures[at] if self.ties == "efron" else np.zeros(len(at))
        risk = total["risk"][at] - less[:, None] * total["ends"][at]  # [failures, P]
        scale = risk[:, 0]
        mean = risk[:, 1 : 1 + size] / scale[:, None]
        a, b = np.triu_indices(size)
        curvature = np.zeros((size, size))
        curvature[a, b] = curvature[b, a] = -(risk[:, 1 + size :] / scale[:, None]).sum(axis=0)
        curvature += mean.T @ mean
        gradient = total["x"].sum(axis=0) - mean.sum(axis=0)
        value = float(weight @ total["x"].sum(axis=0) - np.log(scale).sum())
        return value, gradient, curvature, np.bincount(at, 1 / scale, len(failures)).astype(np.float64)

    def outputs(self, x: Tensor, theta: Mapping[str, Tensor]) -> Tensor:
        steps = theta["hazard"].clamp(min=GONE).log()
        return (x.flatten(1) @ theta["weight"])[:, None] + steps
