"""Linear regression with a ridge penalty, in one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.methods.exact.plausible import ROUNDING, indefinite
from fedfloor.methods.exact.rows import Named, SampleRows, Shapes
from fedfloor.methods.exact.sums import ExactSums
from fedfloor.parts.objectives.objective import Objective
from fedfloor.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Ridge(ExactSums):
    r"""Linear regression with a ridge penalty, from one sum of products.

    ::

        z = (1, x) [1 + D];  y [T], in standard deviations from the training mean
        each device k: A_k = Σ_i z_i z_iᵀ [1 + D, 1 + D],  B_k = Σ_i z_i y_iᵀ [1 + D, T],  and Σ_i y_i² [T] to check B_k
        W = (Σ_k A_k + λ·diag(0, 1, …, 1))⁻¹ Σ_k B_k,  the minimum of Σ_i ‖y_i − Wᵀz_i‖² + λ‖W without its first row‖²

    Why: where sensors add up to the answer, it is the best that can be had, it is exact after one round, and each
    weight can be read. It equals scikit-learn's ``Ridge(alpha=λ)`` on all samples in one place.

    Travels: 1 + (1 + D)² + (2 + D)·T numbers of 8 bytes per device, for samples of D numbers and T targets.

    Hoerl and Kennard, Technometrics 12 (1970) 55.

    Args:
        ridge: λ, for inputs as ``data.normalise`` makes them.
    """

    title: ClassVar[str] = "ridge regression"
    usual: ClassVar[int | None] = 1
    tasks: ClassVar[tuple[str, ...]] = ("regression",)
    sends: ClassVar[str] = "products of a device's sensors and targets, which are single samples if it has few"

    ridge: float = 1.0

    def __post_init__(self) -> None:
        require(0 <= self.ridge < np.inf, "methods.ridge.ridge", self.ridge, "a finite number of at least 0")

    def for_task(self, task: Task) -> Objective:
        super().for_task(task)
        if getattr(task, "loss", "") == "quantile":
            raise SettingError(
                "method 'ridge' with data.task.loss = 'quantile': it predicts means. Leave the loss out; intervals are "
                "those of data.task.coverage.",
                key="data.task.loss",
            )
        return self

    def parameters(self, shape: tuple[int, ...], outputs: int) -> Named:
        return {"weight": np.zeros((1 + prod(shape), outputs))}

    def shapes(self, shape: tuple[int, ...], outputs: int) -> Shapes:
        width = 1 + prod(shape)
        return {"zz": (width, width), "zy": (width, outputs), "yy": (outputs,)}

    def sums(self, rows: SampleRows, theta: Named) -> Named:
        task: Any = rows.task
        z = np.hstack([np.ones((len(rows.x), 1)), rows.x.reshape(len(rows.x), -1)])
        y = (np.minimum(rows.y, np.inf if task.cap is None else task.cap) - task.center) / task.scale
        return {"zz": z.T @ z, "zy": z.T @ y, "yy": (y**2).sum(0)}

    def implausible(self, total: Named, count: float, theta: Named) -> bool:
        both = [
            np.block([[total["zz"], one[:, None]], [one[None], np.full((1, 1), square)]])
            for one, square in zip(total["zy"].T, total["yy"], strict=True)
        ]
        return any(indefinite(one, count) for one in both) or abs(total["zz"][0, 0] - count) > ROUNDING * count

    def solve(self, total: Named, count: float, theta: Named) -> tuple[Named, bool]:
        penalty = self.ridge * np.eye(len(total["zz"]))
        penalty[0, 0] = 0.0
        weight: Any = np.linalg.lstsq(total["zz"] + penalty, total["zy"])[0]
        return {"weight": weight}, True

    def outputs(self, x: Tensor, theta: Mapping[str, Tensor]) -> Tensor:
        weight = theta["weight"]
        return x.flatten(1) @ weight[1:] + weight[0]
