"""The schedule most methods share: devices drawn at random train alone, and meet at the cloud."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedfloor.errors import SettingError, require
from fedfloor.methods.contract import Method, View
from fedfloor.parts import mix
from fedfloor.parts.mix import BySamples, Mix
from fedfloor.parts.selection import fraction
from fedfloor.parts.server import Server
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import ARRIVED, Parallel, Sequence, Train, Work, device


def star(
    method: Method, work: WorkSettings, view: View, share: float, rng: np.random.Generator, rule: Mix | None = None
) -> Parallel:
    """Return max(1, round(C·K)) visits in parallel, each with the method's objective.

    Args:
        rule: how the models meet; by samples where it is left out.
    """
    return visiting(method, work, view, fraction(view.devices, share, rng), rule)


def visiting(method: Method, work: WorkSettings, view: View, chosen: list[int], rule: Mix | None = None) -> Parallel:
    """Return visits to the chosen devices in parallel; see :func:`star`."""
    todo = work.at(view.round, view.rounds, method.objective)
    name, settings = mix.spoken(rule or BySamples())
    return Parallel(tuple(Train(device(k), todo) for k in chosen), mix=name, settings=settings)


def beside(plan: Parallel, own: Callable[[Work], Work]) -> Parallel:
    """Return visits that each train a model of the device's own first, beside what arrived (``Work.sends``)."""
    pairs = (
        (replace(one, work=replace(own(one.work), sends=ARRIVED)), one)
        for one in plan.children
        if isinstance(one, Train)
    )
    return replace(plan, children=tuple(map(Sequence, pairs)))


def check_share(method: str, share: float) -> None:
    """Check a method's ``fraction``."""
    require(0 < share <= 1, f"methods.{method}.fraction", share, "above 0 and at most 1")


def check_server(method: str, build: Callable[[], Server]) -> None:
    """Check a method's server settings by building the server, so that a wrong one shows before the run starts."""
    try:
        build()
    except SettingError as error:
        told = str(error).removeprefix("server.")
        raise SettingError(f"methods.{method}.{'server_' if told.startswith('rate') else ''}{told}") from error
