"""A run walked without training: its plans, what a round costs, how a plan is previewed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedfloor import models
from fedfloor.chance import generator
from fedfloor.config import combined
from fedfloor.engine.questions import question
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.methods.contract import State, View
from fedfloor.network.price import Price
from fedfloor.park.normalise import steps
from fedfloor.park.park import Park
from fedfloor.parts import selection
from fedfloor.parts.objective import adapting
from fedfloor.plan import schedule, walk
from fedfloor.plan.nodes import Node, Train
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import (
    BranchWalk,
    Concurrent,
    Dry,
    Key,
    NodeResult,
    Packet,
    ParallelRequest,
    SelectRequest,
    TrainRequest,
    is_lost,
)
from fedfloor.runs import pricing
from fedfloor.runs.pricing import Tariff


@dataclass(frozen=True)
class ForecastRound:
    """A round that has not been trained.

    Args:
        number: 0: what the method asks first.
        plan: resolved.
        price: of the plan.
        normalised: before round 1, of the normalisation's questions, which ``price`` does not contain.
    """

    number: int
    plan: Node
    price: Price
    normalised: Price | None = None


def rounds(experiment: Experiment, park: Park, last: int, state: State | None = None) -> Iterator[ForecastRound]:
    """Price the rounds of an experiment up to ``last``, for methods whose plans do not hang on what training brings.

    Args:
        experiment: what would be run.
        park: its park.
        last: the last round's number.
        state: what the method begins with. Default: what it makes of pretended answers to what it asks first.

    Raises:
        SettingError: the experiment names no network.
    """
    method = combined(experiment)
    view, costs = seen(experiment, park, method)
    if costs is None:
        raise SettingError(
            "the experiment names no network. Add one, such as --set network.profile=lte-cat-m2; fedfloor networks "
            "lists the profiles."
        )
    trained, holders = Counter[int](), frozenset[int]()
    asked = method.setup(view)
    if asked is not None:
        first = costs.price(asked, view.start, 0, 0)
        holders = first.holders
        yield ForecastRound(0, asked, first)
    if state is None:
        answers = {} if asked is None else pretended(asked, view.trained, park)
        state = method.init(view, answers, generator(experiment.seed, "init"))
    tick = 0
    for number in range(1, last + 1):
        paid = costs.at(park.factory_at(tick))
        now = at(view, paid, park, method, number, tick, trained)
        plan = method.plan(state, now, generator(experiment.seed, "plan", number))
        known = resolved(plan, park, Place(experiment.seed, number, tick, experiment.faults.visit), trained)
        state = method.noted(state, known)
        price = paid.price(known, state.packet, number, tick, holders=holders)
        holders = price.holders
        survey = costs.survey(steps(park, experiment.data.normalise), view.start) if number == 1 else None
        yield ForecastRound(number, known, price, survey)
        tick += max(1, walk.span(plan))


def seen(experiment: Experiment, park: Park, method: ConfiguredMethod) -> tuple[View, Tariff | None]:
    """Return what a method sees before its first round, with a model of zeros, and what its rounds are priced by."""
    data, model = park.dataset, experiment.model
    adapt = adapting(data.task, method.objective)
    network = models.build(model.name, data.shape, data.outputs, experiment.seed, model.classifier, adapt)
    costs = pricing.tariff(experiment, park, network.trained, network.classifier_parameters, network.parcel)
    start = {"w": torch.zeros_like(network.flat)}
    resources = costs.resources(start) if costs is not None and method.needs.network else None
    whole, trained, layout = experiment.rounds, network.trained, network.layout
    of, held = park.factory_of, park.holdings
    return View(0, whole, park.sizes, of, start, (), trained, layout, resources=resources, held=held), costs


def at(
    view: View,
    costs: Tariff | None,
    park: Park,
    method: ConfiguredMethod,
    number: int,
    tick: int,
    trained: Mapping[int, int],
) -> View:
    """Return what a method sees of a round.

    Args:
        view: before the first round.
        costs: what this round is priced by.
        park: the devices.
        method: what it reads is worked out.
        number, tick: of the round.
        trained: device → how often it was trained so far in the run.
    """
    every, stands, known = range(park.devices), park.factory_at(tick), view.resources
    census = park.census(every, tick, [trained.get(k, 0) for k in every]) if method.needs.census_now(number) else None
    if known is not None and costs is not None and not np.array_equal(stands, view.factory_of):
        known = costs.resources(view.start)
    return replace(view, round=number, factory_of=stands, census=census, resources=known)


def pretended(asked: Node, trained: int, park: Park) -> dict[int, dict[str, Any]]:
    """Return answers to what a method asks before its first round: what a model would say is 1, gradients are 0.

    In the place of features, and of hashes of them, stand class counts: so groups are other ones than in a run.
    """
    answers: dict[int, dict[str, Any]] = {}
    for one in walk.probes(asked):
        for k in one.devices:
            answers.setdefault(k, {})[one.what] = question(one).pretended(park, k, trained)
    return answers


def first_round(experiment: Experiment, park: Park) -> Node:
    """Return the first round's plan, resolved."""
    method, seed = combined(experiment), experiment.seed
    view, costs = seen(experiment, park, method)
    asked = method.setup(view)
    answers = {} if asked is None else pretended(asked, view.trained, park)
    state = method.init(view, answers, generator(seed, "init"))
    plan = method.plan(state, at(view, costs, park, method, 1, 0, {}), generator(seed, "plan", 1))
    return resolved(plan, park, Place(seed, 1, 0), Counter())


@dataclass(frozen=True)
class Place:
    """What a round's chance is drawn by: seed, number and first tick, and the chance that a visit is lost."""

    seed: int
    round: int
    tick: int
    loss_chance: float = 0.0


def resolved(plan: Node, park: Park, place: Place, trained: Counter[int]) -> Node:
    """Return a plan with every ``Select`` replaced by whom it chooses, as a walk that trains would.

    Args:
        plan: the round's, as the method wrote it.
        park: whose census is read.
        place: of the round.
        trained: device → how often it was trained so far in the run; those that this round trains are added. What gets
            lost on the air of interfering radio is not known here, and counts as trained.
    """

    def is_gone(node: Train, concurrent: Concurrent, key: Key) -> bool:  # noqa: ARG001
        return is_lost(key, place.loss_chance)

    of = schedule.RoundContext(place.seed, place.round, lost=is_gone)
    return _Forecast(park, place, trained).over(plan, of, place.tick).resolved


class _Forecast(Dry):
    """Chooses as training would, where it counts a visit for each that is not lost."""

    def __init__(self, park: Park, place: Place, trained: Counter[int]) -> None:
        self.park, self.place, self.trained = park, place, trained

    def train(self, request: TrainRequest) -> tuple[Packet, Receipt] | None:
        """Count it."""
        self.trained[request.key.device] += 1
        return super().train(request)

    def select(self, request: SelectRequest) -> list[Sequence[int]]:
        """Choose by the census that devices would report now."""
        place, seen = self.place, request.visits
        return [selection.selected(request.node, self.park, place.seed, place.round, request.tick, seen, self.trained)]

    def parallel(self, request: ParallelRequest) -> NodeResult:
        """Walk branches, of which none counts what another one trains."""
        whole = super().parallel(request)
        self.trained.update(receipt.device for receipt in whole.receipts if not receipt.lost)
        return whole

    def branch(self, branch: BranchWalk, request: ParallelRequest) -> NodeResult:
        """Walk a branch, and take its visits out of the counts again."""
        known = {k: self.trained[k] for k in branch.known}
        done = super().branch(branch, request)
        self.trained.update({k: count - self.trained[k] for k, count in known.items()})
        return done


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
        view, costs = seen(experiment, park, method)
    asked = method.setup(view)
    answers = {} if asked is None else pretended(asked, view.trained, park)
    state, tick, trained = method.init(view, answers, generator(seed, "init")), 0, Counter[int]()
    hangs = method.needs.census or method.notes_plans or park.mobility is not None  # on the clock, or on earlier plans
    first = 1 if hangs else number
    for now in range(first, number + 1):
        paid = None if costs is None else costs.at(park.factory_at(tick))
        current = at(view, paid, park, method, now, tick, trained)
        plan = method.plan(state, current, generator(seed, "plan", now))
        if now < number and (method.needs.census or method.notes_plans):
            known = resolved(plan, park, Place(seed, now, tick, experiment.faults.visit), trained)
            state = method.noted(state, known)
        tick += max(1, walk.span(plan))
    return plan
