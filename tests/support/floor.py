"""What the tests of the engine share: small parks, engines, plans, teams of real processes, and code from "outside"."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedfloor.base.outside import load
from fedfloor.data.dataset import SamplePool, pooled
from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.ranks import run
from fedfloor.engine.team import Alone, Team
from fedfloor.methods.contract import Method, State, View
from fedfloor.methods.fedavg import FedAvg
from fedfloor.models.network import Network
from fedfloor.park.park import Park
from fedfloor.parts.mixing.mix import Mix
from fedfloor.parts.objectives.objective import Objective, Visit
from fedfloor.parts.travel.packing import Bytes, NumberLayout, Numbers
from fedfloor.parts.travel.path import NONE
from fedfloor.plan.nodes import Node, Parallel, Repeat, Train, Work, device
from fedfloor.plan.outcome import Outcome
from fedfloor.runs import launch
from networks import build

torch.set_num_threads(1)  # as every run does: two threads change the last bits

T = TypeVar("T")
WORK = Work(epochs=1, batch_size=4, rate=0.1, momentum=0.5)


def park(
    sizes: Sequence[int] = (6, 10, 4, 9, 5),
    *,
    factory_of: Sequence[int] | None = None,
    shape: tuple[int, int, int] = (1, 3, 3),
    classes: int = 3,
    tests: int = 7,
    seed: int = 0,
) -> Park:
    """Return a park of noise pictures; the first devices lack the last class."""
    rng = np.random.default_rng(seed)
    total = sum(sizes)
    y = rng.integers(0, classes, total)
    y[: sizes[0]] %= max(1, classes - 1)
    train = SamplePool(rng.integers(0, 256, (total, *shape), dtype=np.uint8), y)
    test = SamplePool(rng.integers(0, 256, (tests, *shape), dtype=np.uint8), rng.integers(0, classes, tests))
    names = tuple(f"class {c}" for c in range(classes))
    parts = np.split(rng.permutation(total), np.cumsum(sizes)[:-1])
    of = np.zeros(len(sizes), np.int32) if factory_of is None else np.array(factory_of, np.int32)
    return Park(pooled("noise", names, train, test, "no digest"), tuple(np.sort(part) for part in parts), of)


def network(here: Park, model: str | nn.Module = "mlp-2nn", seed: int = 0) -> Network:
    """Return a network for a park, by name or around a module."""
    data = here.dataset
    return Network(model) if isinstance(model, nn.Module) else build(model, data.shape, len(data.classes), seed)


def engine(
    here: Park, model: str | nn.Module = "mlp-2nn", team: Team | None = None, folder: Path | None = None, **more: object
) -> Engine:
    """Return one rank's engine."""
    settings = {"seed": 0, **more}
    return Engine(here, network(here, model), team or Alone(), DeviceMemory(folder), **settings)  # type: ignore[arg-type]


def adapted(here: Park, goal: Objective, model: str = "mlp-2nn", folder: Path | None = None) -> Engine:
    """Return one rank's engine with the network that an objective makes of a model."""
    data = here.dataset
    made = build(model, data.shape, len(data.classes), 0, adapt=goal.adapt)
    return Engine(here, made, Alone(), DeviceMemory(folder), seed=0)


def start(of: Engine) -> dict[str, Tensor]:
    """Return a packet that holds the engine's present model."""
    return {"w": of.network.flat.clone()}


def walk(of: Engine, plan: Node, packet: Mapping[str, Tensor] | None = None, number: int = 1, tick: int = 0) -> Outcome:
    """Run a plan."""
    return run(of, plan, start(of) if packet is None else packet, round_number=number, tick=tick)


def visits(devices: Sequence[int], work: Work = WORK) -> tuple[Train, ...]:
    """Return a visit to each device."""
    return tuple(Train(device(k), work) for k in devices)


@functools.cache
def _extended(kind: type[Any]) -> type[Any]:
    return make_dataclass(f"New{kind.__name__}", [("added", float, field(default=0.0))], bases=(kind,), frozen=True)


def extended(part: T, added: float = 1.0) -> T:
    """Return a work or a node as it is once its class has a field more, which no fast path knows."""
    same = {one.name: getattr(part, one.name) for one in fields(part)}  # type: ignore[arg-type]
    return _extended(type(part))(**same, added=added)  # type: ignore[no-any-return]


def plan_of(method: Method, here: Park, seed: int = 0, number: int = 1, rounds: int = 10) -> Node:
    """Return a method's plan of a round, drawn as a run draws it."""
    from fedfloor.base.chance import generator

    view = View(number, rounds, here.sizes, here.factory_of, {})
    return method.plan(State({}), view, generator(seed, "plan", number))


def bits(vector: Tensor) -> bytes:
    """Return a vector's bytes: unlike ``torch.equal`` it tells −0 from 0 and finds NaN equal to itself."""
    return vector.detach().contiguous().numpy().tobytes()


def digest(outcome: Outcome) -> tuple[object, ...]:
    """Return everything of an outcome, comparable, with the model as bytes."""
    packet = {name: bits(value) for name, value in outcome.packet.items()}
    return packet, outcome.resolved, outcome.receipts, {k: dict(v) for k, v in outcome.answers.items()}, outcome.ticks


def together(ranks: int, body: Callable[[Team], T], size: int = 0) -> T:
    """Run ``body`` on a team of real processes (copies of this one); return the first rank's result."""
    return launch.copies(ranks, size, body)


def everywhere(ranks: int, body: Callable[[Team], object]) -> list[object]:
    """Run ``body`` on a team of real processes; return every rank's result, which must be JSON."""

    def and_tell(team: Team) -> list[object]:
        said = json.dumps(body(team)).encode()
        return [json.loads(bytes(one[0])) for one in team.gather([said])]

    return together(ranks, and_tell)


# -- from outside: what a user writes in files of their own ------------------------------------------------------------


@dataclass(frozen=True)
class Counting(Objective):
    """An objective that remembers: visit n of a device has the loss (cross-entropy)/(1 + n), n = 0, 1, …"""

    @property
    def remembers(self) -> bool:
        return True

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        logits = module(x)
        seen = visit.memory["seen"] if "seen" in visit.memory else torch.zeros(())
        return torch.nn.functional.cross_entropy(logits, y) / (1 + seen), logits

    def remember(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        seen = visit.memory["seen"] if "seen" in visit.memory else torch.zeros(())
        return {"seen": seen + 1, "last": model.clone()}


load("floor:Counting", "objective")
COUNTING = Work(objective="floor:Counting", epochs=1, batch_size=4, rate=0.1)


@dataclass(frozen=True)
class Rememberer(Method):
    """FedAvg of two parallel nodes a round, each visiting everybody, with an objective that remembers."""

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        from fedfloor.plan.nodes import Sequence as Chain

        first = Parallel(visits(view.devices, COUNTING))
        return Chain((first, Parallel(first.children[::-1])))


@dataclass(frozen=True)
class Halved(Mix):
    """The mean of halved updates."""

    def weight(self, samples: int) -> float:
        return float(samples)

    def leave(self, x: Numbers, layout: NumberLayout, rng: np.random.Generator) -> tuple[Bytes, Numbers]:
        return NONE, x / 2


@dataclass(frozen=True)
class Twice(FedAvg):
    """FedAvg with two meetings in a round."""

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        work = self.work.at(view.round, view.rounds, self.objective)
        return Repeat(2, Parallel(tuple(Train(device(k), work) for k in view.devices)))


def dropout(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return logistic regression behind dropout."""
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(int(np.prod(shape)), classes))


def batch_norm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a small convolutional network with batch normalisation."""
    body = [nn.Conv2d(shape[0], 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(4 * shape[1] * shape[2], classes))
