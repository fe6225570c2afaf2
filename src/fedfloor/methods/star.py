"""The schedule most methods share: devices drawn at random train alone, and meet at the cloud."""

from __future__ import annotations

import numpy as np

from fedfloor.errors import require
from fedfloor.methods.contract import Method, View
from fedfloor.parts.selection import fraction
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Parallel, Train, device


def star(
    method: Method, work: WorkSettings, view: View, share: float, rng: np.random.Generator, mix: str = "by_samples"
) -> Parallel:
    """Return max(1, round(C·K)) visits in parallel, each with the method's objective.

    Args:
        method: whose objective the devices minimise.
        work: what a visit does.
        view: the park.
        share: C, of the devices drawn.
        rng: where the draw comes from.
        mix: how the models meet.
    """
    todo = work.at(view.round, view.rounds, method.objective)
    return Parallel(tuple(Train(device(k), todo) for k in fraction(view.devices, share, rng)), mix=mix)


def check_share(method: str, share: float) -> None:
    """Check a method's ``fraction``.

    Raises:
        SettingError: it is no share.
    """
    require(0 < share <= 1, f"methods.{method}.fraction", share, "above 0 and at most 1")
