"""A run walked without training: its plans, what a round costs, how a plan is previewed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fedfloor import models
from fedfloor.chance import generator
from fedfloor.config import combined
from fedfloor.engine import travel
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
from fedfloor.plan.nodes import Node, Train, Work
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
        normalised: before round 1, of the normalisation's questions, which ``price`` does not contain.
    """

    number: int  # 0: the method's first questions
    plan: Node  # resolved
    price: Price  # of the plan
    normalised: Price | None = None


def rounds(experiment: Experiment, park: Park, last: int, state: State | None = None) -> Iterator[ForecastRound]:
    """Price the rounds of an experiment up to ``last``, for methods whose plans do not hang on training's results.

    Args:
        state: the method's first one. Default: from pretended answers to its first questions.

    Raises:
        SettingError: the experiment names no network.
    """
    run = _Planner(experiment, park)
    if run.costs is None:
        raise SettingError(
            "the experiment names no network. Add one, such as --set network.profile=lte-cat-m2; fedfloor networks "
            "lists the profiles."
        )
    holders = frozenset[int]()
    if run.questions is not None:
        first = run.costs.price(run.questions, run.view.start, 0, 0)
        holders = first.holders
        yield ForecastRound(0, run.questions, first)
    run.begin(state)
    for number in range(1, last + 1):
        plan, tick, costs = run.plan(number), run.tick, run.costs.at(park.factory_at(run.tick))
        known = run.advance(number, plan)
        price = costs.price(known, run.state.packet, number, tick, holders=holders)
        holders = price.holders
        survey = run.costs.survey(steps(park, experiment.data.normalise), run.view.start) if number == 1 else None
        yield ForecastRound(number, known, price, survey)


def first_round(experiment: Experiment, park: Park) -> Node:
    """Return the first round's plan, resolved."""
    run = _Planner(experiment, park)
    run.begin()
    return run.advance(1, run.plan(1), loss_chance=0.0)


def plan_of(experiment: Experiment, park: Park, number: int = 1) -> Node:
    """Return the plan of a round, for methods whose plan does not depend on the results of earlier rounds.

    The rounds before it are planned, too, where its clock and the devices trained by then matter.

    Raises:
        SettingError: the round is not one of the experiment's.
    """
    if not 1 <= number <= experiment.rounds:
        raise SettingError(f"--round {number}: the experiment has rounds 1 to {experiment.rounds}.")
    run = _Planner(experiment, park, bare=True)
    run.begin()
    reads = run.method.needs.census or run.method.notes_plans
    for before in range(1, number) if reads or park.mobility is not None else ():
        run.advance(before, run.plan(before), resolve=reads)
    return run.plan(number)


class _Planner:
    """Plans an experiment's rounds one after the other, without training.

    Args:
        bare: make the view without the network where the method reads neither it nor the census.
    """

    def __init__(self, experiment: Experiment, park: Park, *, bare: bool = False) -> None:
        self.experiment, self.park, self.method = experiment, park, combined(experiment)
        self.costs: Tariff | None = None
        if bare and not self.method.needs.network and not self.method.needs.census:
            self.view = View(0, experiment.rounds, park.sizes, park.factory_of, {}, held=park.holdings)
        else:
            self.view, self.costs = seen(experiment, park, self.method)
        self.questions, self.tick, self.trained = self.method.setup(self.view), 0, Counter[int]()

    def begin(self, state: State | None = None) -> None:
        if state is None:
            answers = {} if self.questions is None else pretended(self.questions, self.view.trained, self.park)
            state = self.method.init(self.view, answers, generator(self.experiment.seed, "init"))
        self.state = state

    def plan(self, number: int) -> Node:
        costs = None if self.costs is None else self.costs.at(self.park.factory_at(self.tick))
        view = at(self.view, costs, self.park, self.method, number, self.tick, self.trained)
        return self.method.plan(self.state, view, generator(self.experiment.seed, "plan", number))

    def advance(self, number: int, plan: Node, *, resolve: bool = True, loss_chance: float | None = None) -> Node:
        """Return a round's plan, resolved, and go on to the next round."""
        chance = self.experiment.faults.visit if loss_chance is None else loss_chance
        ticks = max(1, walk.span(plan))
        if resolve:
            plan = resolved(plan, self.park, Place(self.experiment.seed, number, self.tick, chance), self.trained)
            self.state = self.method.noted(self.state, plan)
        self.tick += ticks
        return plan


def seen(experiment: Experiment, park: Park, method: ConfiguredMethod) -> tuple[View, Tariff | None]:
    """Return a method's view before its first round, with a model of zeros, and the price model of its rounds."""
    data, model = park.dataset, experiment.model
    adapt = adapting(data.task, method.objective)
    network = models.build(model.name, data.shape, data.outputs, experiment.seed, model.classifier, adapt)
    parts = (network.trained, network.classifier_parameters, partial(travel.coded, network))
    costs = pricing.tariff(experiment, park, *parts, method.coded(Work()))
    start = {"w": torch.zeros_like(network.flat)}
    resources = costs.resources(start) if costs is not None and method.needs.network else None
    return View(
        0, experiment.rounds, park.sizes, park.factory_of, start, (), network.trained, network.layout,
        resources=resources, held=park.holdings,
    ), costs  # fmt: skip


def at(
    view: View, costs: Tariff | None, park: Park, method: ConfiguredMethod, number: int, tick: int,
    trained: Mapping[int, int],
) -> View:  # fmt: skip
    """Return a method's view of a round from that before the first; ``trained``: device → visits so far in the run."""
    every, factory_of, resources = range(park.devices), park.factory_at(tick), view.resources
    census = park.census(every, tick, [trained.get(k, 0) for k in every]) if method.needs.census_now(number) else None
    if resources is not None and costs is not None and not np.array_equal(factory_of, view.factory_of):
        resources = costs.resources(view.start)
    return replace(view, round=number, factory_of=factory_of, census=census, resources=resources)


def pretended(questions: Node, trained: int, park: Park) -> dict[int, dict[str, Any]]:
    """Return pretended answers to a method's first questions: losses are 1, gradients are 0.

    Class counts stand for features and their hashes: so groups are other ones than in a run.
    """
    answers: dict[int, dict[str, Any]] = {}
    for node in walk.probes(questions):
        for k in node.devices:
            answers.setdefault(k, {})[node.what] = question(node).pretended(park, k, trained)
    return answers


@dataclass(frozen=True)
class Place:
    """The key of a round's chance: seed, number and first tick; and the chance that a visit is lost."""

    seed: int
    round: int
    tick: int
    loss_chance: float = 0.0


def resolved(plan: Node, park: Park, place: Place, trained: Counter[int]) -> Node:
    """Return a plan with every ``Select`` replaced by the devices it chooses, as a walk that trains would.

    Args:
        trained: device → how often it was trained so far in the run; those that this round trains are added. Losses on
            the air of interfering radio are not known here, and count as trained.
    """

    def is_gone(node: Train, concurrent: Concurrent, key: Key) -> bool:  # noqa: ARG001
        return is_lost(key, place.loss_chance)

    context = schedule.RoundContext(place.seed, place.round, lost=is_gone)
    return _Forecast(park, place, trained).over(plan, context, place.tick).resolved


class _Forecast(Dry):
    """Chooses as training would: by the census that devices would report now, counting each visit that is not lost."""

    def __init__(self, park: Park, place: Place, trained: Counter[int]) -> None:
        self.park, self.place, self.trained = park, place, trained

    def train(self, request: TrainRequest) -> tuple[Packet, Receipt] | None:
        self.trained[request.key.device] += 1
        return super().train(request)

    def select(self, request: SelectRequest) -> list[Sequence[int]]:
        place, seen = self.place, request.visits
        return [selection.selected(request.node, self.park, place.seed, place.round, request.tick, seen, self.trained)]

    def parallel(self, request: ParallelRequest) -> NodeResult:
        whole = super().parallel(request)
        self.trained.update(receipt.device for receipt in whole.receipts if not receipt.lost)
        return whole

    def branch(self, branch: BranchWalk, request: ParallelRequest) -> NodeResult:
        # no branch counts the visits of another one
        known = {k: self.trained[k] for k in branch.known}
        done = super().branch(branch, request)
        self.trained.update({k: count - self.trained[k] for k, count in known.items()})
        return done
