"""Kaplan and Meier's survival curve, in one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedfloor.base.errors import SettingError
from fedfloor.methods.exact.plausible import ROUNDING, miscounted
from fedfloor.methods.exact.rows import Named, SampleRows, Shapes
from fedfloor.methods.exact.sums import ExactSums
from fedfloor.parts.objectives.objective import Objective
from fedfloor.tasks.lives import on_grid
from fedfloor.tasks.survival import GONE
from fedfloor.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class KaplanMeier(ExactSums):
    r"""The share of machines that live longer than t, from lives that ended and lives that are not over.

    ::

        grid g_1 < … < g_G of the task, the same for all devices
        each device k: n_kg, its lives at risk at g, and d_kg, those that fail at g
        S(t) = Π_{g ≤ t} (1 − Σ_k d_kg / Σ_k n_kg)

    A failure between two times of the grid counts at the second, and a life whose observation ends between them is not
    at risk at the second: on a grid of all failure times the curve is that of the exact times, and otherwise that of
    failures so moved. The answer is the same for all machines but for their present age.

    Why: it assumes nothing about how machines wear, and one round suffices. It equals the estimate of all lives in one
    place, with Greenwood's intervals.

    Travels: 1 + 2·G numbers of 8 bytes per device.

    Kaplan and Meier, Journal of the American Statistical Association 53 (1958) 457.
    """

    title: ClassVar[str] = "Kaplan–Meier"
    usual: ClassVar[int | None] = 1
    tasks: ClassVar[tuple[str, ...]] = ("survival",)
    sends: ClassVar[str] = (
        "how many of a device's lives were at risk and failed at each time of the grid; if the grid holds every "
        "failure time (data.task.points), these are its failure times"
    )

    def for_task(self, task: Task) -> Objective:
        super().for_task(task)
        check_distribution(self.title, task, ("steps",))
        return self

    def parameters(self, shape: tuple[int, ...], outputs: int) -> Named:
        return {"at_risk": np.zeros(outputs), "failures": np.zeros(outputs)}

    def shapes(self, shape: tuple[int, ...], outputs: int) -> Shapes:
        return {"at_risk": (outputs,), "failures": (outputs,)}

    def sums(self, rows: SampleRows, theta: Named) -> Named:
        task: Any = rows.task
        time, failed, entry = task.clocked(rows.y)
        one = rows.y[:, 3:]  # of a recording only the first sample counts as a life
        at_risk, failures = on_grid(time, failed, entry, np.array(task.grid), one)
        return {"at_risk": at_risk[:, 0], "failures": failures[:, 0]}

    def implausible(self, total: Named, count: float, theta: Named) -> bool:
        at_risk = total["at_risk"]
        slack = ROUNDING * count
        beyond = (total["failures"] > at_risk + slack) | (at_risk > count + slack)
        return bool(beyond.any()) or miscounted(total["failures"], count)

    def solve(self, total: Named, count: float, theta: Named) -> tuple[Named, bool]:
        return {name: np.rint(value) for name, value in total.items()}, True

    def outputs(self, x: Tensor, theta: Mapping[str, Tensor]) -> Tensor:
        import torch

        share = theta["failures"] / theta["at_risk"].clamp(min=1.0)
        hazard = (-torch.log1p(-share.clamp(max=1 - 1e-7))).clamp(min=GONE)
        return torch.zeros_like(x.flatten(1)[:, :1]) + hazard.log()


def check_distribution(title: str, task: Task, allowed: tuple[str, ...]) -> None:
    """Refuse a survival of a distribution that a method cannot give.

    Raises:
        SettingError: the distribution, with the setting that changes it.
    """
    got = getattr(task, "distribution", "")
    if got not in allowed:
        raise SettingError(
            f"method '{title}' with data.task.distribution = '{got}': it gives {' or '.join(allowed)}. Set it: --set "
            f"data.task.distribution={allowed[0]}.",
            key="data.task.distribution",
        )
