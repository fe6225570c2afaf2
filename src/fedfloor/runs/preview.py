"""What a round will look like, without training anything."""

from __future__ import annotations

from dataclasses import replace

from fedfloor.chance import generator
from fedfloor.config import combined
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment
from fedfloor.methods.contract import View
from fedfloor.park.park import Park
from fedfloor.plan.nodes import Node
from fedfloor.runs import forecast


def plan_of(experiment: Experiment, park: Park, number: int = 1) -> Node:
    """Return the plan of a round, for methods whose plan does not depend on what earlier rounds brought.

    Raises:
        SettingError: the round is not one of the experiment's.
    """
    if not 1 <= number <= experiment.rounds:
        raise SettingError(f"--round {number}: the experiment has rounds 1 to {experiment.rounds}.")
    method = combined(experiment)
    view = View(number, experiment.rounds, park.sizes, park.factory_of, {})
    if method.reads_network or method.reads_census:
        seen, costs = forecast.seen(experiment, park, method)
        view = forecast.at(seen, costs, park, method, number, number - 1, {})
    asked = method.setup(replace(view, round=0))
    answers = {} if asked is None else forecast.pretended(asked, view.trained, park)
    state = method.init(view, answers, generator(experiment.seed, "init"))
    return method.plan(state, view, generator(experiment.seed, "plan", number))
