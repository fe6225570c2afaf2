"""The work that a device's own method can require, with which orders are compared.

That is done where masks or noise protect updates, and where visits depart at any time.

An edge, or the cloud through edges that follow the protocol, could otherwise choose an objective, a rate or a number of
steps with which the updates of all devices but one are zero, or with which a sample counts more than ε allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfloor.base.errors import SettingError
from fedfloor.base.outside import ANY
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy.checks import printable
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.methods.contract import View
from fedfloor.park.park import Park
from fedfloor.parts.mixing import weighting
from fedfloor.plan import walk
from fedfloor.plan.flow import Arrival, VisitFlow
from fedfloor.plan.nodes import Node, Work

if TYPE_CHECKING:
    from fedfloor.models.parcel import Packet

# a park of devices like this one, for which the device's own method plans
DEVICES = 12
FACTORIES = 3
ROUNDING = 1e-9  # relative, of rates and class weights that another machine computes


class OwnWork:
    """The work of visits by a device's own copy of the experiment.

    Args:
        method: the method.
        rounds: number of rounds of the experiment.
        park: the park with the device's samples.
        device: number of the device.
        start: returns the present model.
        trained, layout: how many of its numbers are trained, and the places of its tensors.

    Attributes:
        at_once: most visits of a device in one tick, in the round that was checked last.
    """

    def __init__(
        self, method: ConfiguredMethod, rounds: int, park: Park, device: int, start: Callable[[], Packet], trained: int,
        layout: Mapping[str, tuple[int, int]],
    ) -> None:  # fmt: skip
        self._method = method
        self._rounds = rounds
        self._park = park
        self._device = device
        self._start = start
        self._trained = trained
        self._layout = layout
        self.at_once = 1

    def check(self, work: Work, number: int) -> None:
        """Check the work of an order for a round.

        Raises:
            RefusedError: it differs from all work of the device's own plan of that round.
        """
        known = self.planned(number, self.class_weights(work))
        differing = [different(work, own) for own in known]
        if not all(differing):
            return
        name = min(differing, key=len)[0]
        own = [getattr(one, name) for one, names in zip(known, differing, strict=True) if name in names]
        got, due = (printable(repr(value)) for value in (getattr(work, name), own[0]))
        raise RefusedError("work", f"its {name} is {got}; by this device's experiment it is {due} in round {number}.")

    def planned(self, number: int, weights: tuple[float, ...]) -> list[Work]:
        """Return the work of the visits in the device's own plan of a round.

        Args:
            weights: class weights from the census, which a device cannot compute; () without such weights.

        Raises:
            RefusedError: the method makes no plan for devices like this one.
        """
        method = self._method
        park = self._park
        held = int(park.holdings[self._device])
        classes = len(park.dataset.classes)
        view = View(
            0, self._rounds, np.full(DEVICES, held), np.arange(DEVICES, dtype=np.int32) % FACTORIES,
            self._start(), (), self._trained, self._layout, census=np.ones((DEVICES, classes)),
            held=np.full(DEVICES, held), sensors=park.dataset.inputs.columns,
            arrivals=partial(departing, number) if method.needs.clock else None,
        )  # fmt: skip
        if not 1 <= number <= self._rounds:
            raise RefusedError("work", f"this device's experiment has rounds 1 to {self._rounds}, not {number}.")
        try:
            setup = method.method.setup(view)
            answers = {} if setup is None else dict.fromkeys(range(DEVICES), self._answers(setup))
            plan = method.own_plan(view, replace(view, round=number), answers, weights)
            works = walk.works(plan, cloud=False)
        except ANY as error:
            raise RefusedError(
                "work", f"this device cannot plan round {number} by its own method: {printable(str(error))}"
            ) from error
        most = max(walk.visits(plan).values(), default=1)
        self.at_once = most if most > walk.span(plan) else 1
        return [work for place, work in enumerate(works) if work not in works[:place]]

    def _answers(self, setup: Node) -> dict[str, Any]:
        """Return pretended answers to the questions before the first round."""
        from fedfloor.engine.questions import question  # imports PyTorch

        return {
            probe.what: question(probe).pretended(self._park, self._device, self._trained)
            for probe in walk.probes(setup)
        }

    def class_weights(self, work: Work) -> tuple[float, ...]:
        """Return the class weights in an order, if the device's own objective takes them from the census; else ().

        Raises:
            RefusedError: no class counts have these weights.
        """
        goal = weighting.by_census(self._method.parts.objective)
        if goal is None:
            return ()
        classes = len(self._park.dataset.classes)
        text = work.settings.get("weights", work.settings.get("samples.weights"))
        try:
            weights = (1.0,) * classes if text is None else weighting.numbers(str(text))
        except SettingError as error:
            raise RefusedError("work", str(error)) from error
        if len(weights) != classes or not weighting.of_counts(weights, goal.cap, ROUNDING):
            raise RefusedError("work", "its class weights are not those of any class counts.")
        return weights


def departing(number: int, flow: VisitFlow) -> tuple[Arrival, ...]:
    """Return arrivals of all devices of a flow whose visits depart in a round, as if they arrived at once."""
    return tuple(Arrival(k, number - 1, 0.0, 0.0) for k in flow.devices)


def different(work: Work, own: Work) -> list[str]:
    """Return the fields in which work differs from a device's own, but for the rounding of rates.

    >>> different(Work(epochs=1, rate=0.1), Work(epochs=1, rate=0.1 * (1 + 1e-15)))
    []
    >>> different(Work(epochs=1, rate=0.1), Work(epochs=2, rate=0.1))
    ['epochs']
    """
    alike = replace(work, rate=own.rate) if math.isclose(work.rate, own.rate, rel_tol=ROUNDING) else work
    return [field.name for field in fields(Work) if getattr(alike, field.name) != getattr(own, field.name)]
