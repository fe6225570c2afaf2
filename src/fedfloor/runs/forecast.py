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
from fedfloor.engine.visit import Key, is_lost
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment
from fedfloor.methods.contract import View
from fedfloor.network.price import Price
from fedfloor.park.park import Park
from fedfloor.parts import sampling
from fedfloor.plan import nodes, walk
from fedfloor.plan.nodes import Node, Parallel, Probe, Repeat, Select, Train
from fedfloor.runs import pricing


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
    method, data, model = combined(experiment), park.dataset, experiment.model
    adapt = method.objective.adapt
    network = models.build(model.name, data.shape, len(data.classes), experiment.seed, model.classifier, adapt)
    costs = pricing.tariff(experiment, park, network.trained)
    if costs is None:
        raise SettingError(
            "the experiment names no network. Add one, such as --set network.profile=lte-cat-m2; fedfloor networks "
            "lists the profiles."
        )
    start, seen = {"w": torch.zeros_like(network.flat)}, Counter[int]()
    whole, trained, layout = experiment.rounds, network.trained, network.layout
    resources = costs.resources(start) if method.reads_network else None
    view = View(0, whole, park.sizes, park.factory_of, start, (), trained, layout, resources=resources)
    view = replace(view, held=park.holdings)
    asked = method.setup(view)
    if asked is not None:
        yield Round(0, asked, costs.price(asked, start, 0, 0))
    answers = {} if asked is None else pretended(asked, trained)
    state, tick = method.init(view, answers, generator(experiment.seed, "init")), 0
    for number in range(1, last + 1):
        every, stands = range(park.devices), park.factory_at(tick)
        costs = costs.at(stands)
        resources = costs.resources(start) if method.reads_network else None
        census = park.census(every, tick, [seen[k] for k in every]) if method.reads_census else None
        now = replace(view, round=number, factory_of=stands, census=census, resources=resources)
        plan = method.plan(state, now, generator(experiment.seed, "plan", number))
        known = resolved(plan, park, Place(experiment.seed, number, tick, experiment.faults.visit), seen)
        yield Round(number, known, costs.price(known, state.packet, number, tick))
        tick += max(1, walk.span(plan))


def pretended(asked: Node, trained: int) -> dict[int, dict[str, Any]]:
    """Return answers of the right size to what a method asks before its first round; gradients are 0."""
    zero = torch.zeros(trained)
    said: dict[str, Any] = {"gradient": zero, "loss": 1.0}
    parts = asked.children if isinstance(asked, nodes.Sequence) else (asked,)
    return {k: {one.what: said.get(one.what)} for one in parts if isinstance(one, Probe) for k in one.devices}


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
    round_ = _Round(park, place, trained)
    return round_.go(plan, place.tick)


class _Round:
    def __init__(self, park: Park, place: Place, trained: Counter[int]) -> None:
        self.park, self.place, self.trained = park, place, trained
        self.seen: Counter[int] = Counter()

    def go(self, node: Node, now: int) -> Node:
        """Resolve a node and count its visits."""
        if isinstance(node, Select):
            seed, number = self.place.seed, self.place.round
            return self.go(sampling.resolved(node, self.park, seed, number, now, self.seen, self.trained), now)
        if isinstance(node, Train):
            device = node.site.index if node.site.kind == "device" else -1
            key = Key(self.place.seed, self.place.round, now, device, self.seen[device])
            self.seen[device] += 1
            self.trained[device] += int(device < 0 or not is_lost(key, self.place.loss_chance))
            return node
        if isinstance(node, Parallel):
            return self.parallel(node, now)
        turns = (node.child,) * node.times if isinstance(node, Repeat) else walk.children(node)
        done = []
        for child in turns:
            done.append(self.go(child, now))
            now += max(1, walk.span(child)) if isinstance(node, Repeat) and node.tick else walk.span(child)
        return walk.rebuilt(node, done) if turns else node

    def parallel(self, node: Parallel, now: int) -> Node:
        """Resolve branches; each counts the visits that stand before it in the plan, not those that others choose."""
        before, ahead, done, visits = self.seen, Counter[int](), [], Counter[int]()
        trained, more = dict(self.trained), Counter[int]()
        for child in node.children:
            self.seen = before + ahead
            one = self.go(child, now)
            done.append(one)
            visits += walk.visits(one)
            ahead += walk.visits(child)
            more.update({k: count - trained.get(k, 0) for k, count in self.trained.items()})
            self.trained.clear()
            self.trained.update(trained)
        self.seen = before + visits
        self.trained.update(more)
        return replace(node, children=tuple(done)) if done != list(node.children) else node
