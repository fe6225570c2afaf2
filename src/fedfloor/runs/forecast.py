"""What rounds will cost, and the plans they will be, without training anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedfloor import models
from fedfloor.chance import generator
from fedfloor.config import combined
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment
from fedfloor.methods.combined import Combined
from fedfloor.methods.contract import View
from fedfloor.network.price import Price
from fedfloor.park.park import Park
from fedfloor.parts import sampling
from fedfloor.plan import nodes, walk
from fedfloor.plan.nodes import Node, Parallel, Probe, Repeat, Select, Train
from fedfloor.runs import pricing
from fedfloor.runs.pricing import Tariff


@dataclass(frozen=True)
class Round:
    """A round that has not been trained: its number (0: what is asked first), its resolved plan and its price."""

    number: int
    plan: Node
    price: Price


def rounds(experiment: Experiment, park: Park, last: int) -> Iterator[Round]:
    """Price the rounds of an experiment up to ``last``, for methods whose plans do not hang on what training brings.

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
    asked = method.setup(view)
    if asked is not None:
        yield Round(0, asked, costs.price(asked, view.start, 0, 0))
    answers = {} if asked is None else pretended(asked, view.trained)
    state, tick = method.init(view, answers, generator(experiment.seed, "init")), 0
    for number in range(1, last + 1):
        plan = method.plan(state, at(view, park, method, number, tick), generator(experiment.seed, "plan", number))
        known = resolved(plan, park, experiment.seed, number, tick)
        yield Round(number, known, costs.price(known, state.packet, number, tick))
        tick += max(1, walk.span(plan))


def seen(experiment: Experiment, park: Park, method: Combined) -> tuple[View, Tariff | None]:
    """Return what a method sees before its first round, with a model of zeros, and what its rounds are priced by."""
    data, model, adapt = park.dataset, experiment.model, method.objective.adapt
    network = models.build(model.name, data.shape, len(data.classes), experiment.seed, model.classifier, adapt)
    costs = pricing.tariff(experiment, park, network.trained)
    start = {"w": torch.zeros_like(network.flat)}
    resources = costs.resources(start) if costs is not None and method.reads_network else None
    whole, trained, layout = experiment.rounds, network.trained, network.layout
    return View(0, whole, park.sizes, park.factory_of, start, (), trained, layout, resources=resources), costs


def at(view: View, park: Park, method: Combined, number: int, tick: int) -> View:
    """Return what a method sees of a round."""
    census = park.census(range(park.devices), tick, [0] * park.devices) if method.reads_census else None
    return replace(view, round=number, census=census)


def pretended(asked: Node, trained: int) -> dict[int, dict[str, Any]]:
    """Return answers of the right size to what a method asks before its first round; gradients are 0."""
    zero = torch.zeros(trained)
    said: dict[str, Any] = {"gradient": zero, "loss": 1.0}
    parts = asked.children if isinstance(asked, nodes.Sequence) else (asked,)
    return {k: {one.what: said.get(one.what)} for one in parts if isinstance(one, Probe) for k in one.devices}


def resolved(plan: Node, park: Park, seed: int, number: int, tick: int) -> Node:
    """Return a plan with every ``Select`` replaced by whom it chooses, as a walk that trains would."""
    seen: Counter[int] = Counter()

    def go(node: Node, now: int) -> Node:
        if isinstance(node, Select):
            return go(sampling.resolved(node, park, seed, number, now, seen), now)
        if isinstance(node, Train):
            seen[node.site.index if node.site.kind == "device" else -1] += 1
            return node
        if isinstance(node, Parallel):
            return _parallel(node, now)
        turns = (node.child,) * node.times if isinstance(node, Repeat) else walk.children(node)
        done = []
        for child in turns:
            done.append(go(child, now))
            now += max(1, walk.span(child)) if isinstance(node, Repeat) and node.tick else walk.span(child)
        return walk.rebuilt(node, done) if turns else node

    def _parallel(node: Parallel, now: int) -> Node:
        """Resolve branches; each counts the visits that stand before it in the plan, not those that others choose."""
        nonlocal seen
        before, ahead, done, visits = seen, Counter[int](), [], Counter[int]()
        for child in node.children:
            seen = Counter({k: before[k] + ahead[k] for k in walk.devices(child)})  # not all: quadratic
            one = go(child, now)
            done.append(one)
            visits.update(walk.visits(one))
            ahead.update(walk.visits(child))
        seen = before + visits
        return replace(node, children=tuple(done)) if done != list(node.children) else node

    return go(plan, tick)
