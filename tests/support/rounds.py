"""Rounds of a method as a run carries them out, without a folder: for laws and contracts over all methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedfloor import config, models
from fedfloor.base.chance import generator
from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone, Team
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.methods.contract import State, View
from fedfloor.models.network import Network
from fedfloor.park.park import Park
from fedfloor.parts.objectives.objective import adapting
from fedfloor.plan import text
from fedfloor.plan.nodes import Node
from fedfloor.plan.outcome import Outcome
from fedfloor.runs import checks, prepare, pricing
from fedfloor.runs.round import Position, Versions, step, training
from floor import bits

WORK = {"epochs": 1, "batch_size": 4, "lr": 0.05}

# so that parts.selection may say who takes part; so that few devices have to be chosen from, and rounds are short
OWN: dict[str, dict[str, Any]] = {
    "astraea": {"devices": 2}, "fedcs": {"fraction": 1.0}, 
    "fedgs": {"iterations": 3, "devices": 2, "random": 1, "work": {"epochs": None, "steps": 1}},
    "fldg": {"groups": 3, "extractor": "raw"}, "fldgl": {"groups": 3, "extractor": "raw"}, "kcenter": {"centers": 3},
    "hfedms": {"period": 2, "share": 1.0, "growth": {"kind": "log", "alpha": 2.0, "beta": 3}, "memory": 5},
}  # fmt: skip
NETWORKED = ("fedcs", "rafed")  # they choose by what the network says
RADIO = {
    "device_edge": {"sharing": "sinr"},
    "devices": {"cycles_per_bit": [10.0, 30.0], "clock_hz": [1e9, 2e9], "distance_m": [2.0, 50.0]},
    "radio": {"threshold": 0.01, "attempts": 100},
}


def method(name: str, parts: Mapping[str, Any] | None = None, rounds: int = 3, **settings: Any) -> ConfiguredMethod:
    """Return a method with settings of its own table, and parts of [method], read as from an experiment file."""
    settings = {**OWN.get(name, {}), **settings}
    work = {**WORK, **settings.pop("work", {})}
    table = {"rounds": rounds, "work": work, "method": {"name": name, **(parts or {})}, "methods": {name: settings}}
    return config.from_table(table).configured


@dataclass
class Job:
    """A method at work on a park.

    Attributes:
        method: what is carried out.
        here: the park.
        rounds: of the schedule.
        team: ranks.
        folder: of the devices' memory.
        loss: chance that a visit is lost.
        seed: of everything.
        model: the network's name.
        kind: of its numbers.
    """

    method: ConfiguredMethod
    here: Park
    rounds: int = 3
    team: Team = field(default_factory=Alone)
    folder: Path | None = None
    loss: float = 0.0
    seed: int = 0
    model: str = "mlp-2nn"
    kind: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        data = self.here.dataset
        adapt = adapting(data.task, self.method.objective)
        net = models.build(self.model, data.shape, data.outputs, self.seed, None, adapt)
        if net.flat.dtype != self.kind:
            net = Network(net.module.to(self.kind), net.classifier)
        memory = DeviceMemory(self.folder)
        network = {"network": RADIO} if self.method.name in NETWORKED else {}
        experiment = config.from_table({"seed": self.seed, **network})
        self.costs = pricing.build_price_model(experiment, self.here, net.trained)
        sites = None if self.costs is None else self.costs.sites
        self.engine = Engine(self.here, net, self.team, memory, self.seed, loss_chance=self.loss, sites=sites)
        checks.parts_there(self.engine, self.method)
        self.start = {"w": net.flat.clone()}
        self.setup = training(self.method, self.engine, self.rounds, self.costs, self.start)
        self.setup.priced = False
        self.outcomes: list[Outcome] = []
        self.versions: Versions = {}

    def view(self, number: int) -> View:
        """Return what the method sees of a round."""
        last = self.outcomes[-1].receipts if self.outcomes else ()
        return self.setup.view(number, max(0, number - 1), last)

    def begin(self) -> State:
        """Return the first state."""
        return prepare.first_state(self.engine, self.method, self.view(0))[1]

    def plan(self, state: State, number: int) -> Node:
        """Return the plan of a round."""
        return self.method.plan(state, self.view(number), generator(self.seed, "plan", number))

    def round(self, state: State, number: int) -> State:
        """Do a round."""
        last = self.outcomes[-1].receipts if self.outcomes else ()
        point = Position(round=number - 1, tick=number - 1, state=state, receipts=last, versions=self.versions)
        after, record = step(self.setup, point)
        self.versions = after.versions
        self.outcomes.append(record.outcome)
        return after.state

    def run(self) -> State:
        """Do all rounds and return the last state."""
        state = self.begin()
        for number in range(1, self.rounds + 1):
            state = self.round(state, number)
        return state


def after(of: ConfiguredMethod, here: Park, **more: Any) -> State:
    """Return the state after three rounds, or ``rounds``."""
    return Job(of, here, **more).run()


def digest(state: State, outcomes: list[Outcome]) -> list[object]:
    """Return everything of a state and of the rounds before it, as JSON."""
    tensors = {**state.packet, **state.tensors}
    return [
        {name: bits(one).hex() for name, one in sorted(tensors.items())},
        dict(state.notes),
        [[text.digest(one.resolved), [r.row() for r in one.receipts]] for one in outcomes],
    ]


def untouched(state: State) -> State:
    """Return a copy whose tensors are its own."""
    packet = {name: one.clone() for name, one in state.packet.items()}
    return replace(state, packet=packet, tensors={name: one.clone() for name, one in state.tensors.items()})
