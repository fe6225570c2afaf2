"""What a round will look like, without training anything."""

from __future__ import annotations

from collections import Counter

from fedfloor.chance import generator
from fedfloor.config import combined
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment
from fedfloor.methods.contract import View
from fedfloor.park.park import Park
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node
from fedfloor.runs import forecast


def plan_of(experiment: Experiment, park: Park, number: int = 1) -> Node:
    """Return the plan of a round, for methods whose plan does not depend on what earlier rounds brought.

    The rounds before it are planned, too, where it matters when it begins and who was trained by then.

    Raises:
        SettingError: the round is not one of the experiment's.
    """
    if not 1 <= number <= experiment.rounds:
        raise SettingError(f"--round {number}: the experiment has rounds 1 to {experiment.rounds}.")
    seed, method, costs = experiment.seed, combined(experiment), None
    view = View(0, experiment.rounds, park.sizes, park.factory_of, {}, held=park.holdings)
    if method.needs.network or method.needs.census:
        view, costs = forecast.seen(experiment, park, method)
    asked = method.setup(view)
    answers = {} if asked is None else forecast.pretended(asked, view.trained, park)
    state, tick, trained = method.init(view, answers, generator(seed, "init")), 0, Counter[int]()
    hangs = method.needs.census or method.notes_plans or park.mobility is not None  # on the clock, or on earlier plans
    first = 1 if hangs else number
    for now in range(first, number + 1):
        paid = None if costs is None else costs.at(park.factory_at(tick))
        seen = forecast.at(view, paid, park, method, now, tick, trained)
        plan = method.plan(state, seen, generator(seed, "plan", now))
        if now < number and (method.needs.census or method.notes_plans):
            known = forecast.resolved(plan, park, forecast.Place(seed, now, tick, experiment.faults.visit), trained)
            state = method.noted(state, known)
        tick += max(1, walk.span(plan))
    return plan
