"""Networks and objectives of your own that fail in a visit: who, when, why and what to do is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor, nn

from fedfloor.base.errors import RunError, SettingError
from fedfloor.engine.engine import Engine
from fedfloor.engine.visit import train
from fedfloor.parts.objectives import registry as objectives
from fedfloor.parts.objectives.objective import Objective, Plain, Visit
from fedfloor.plan.nodes import Parallel, Work
from fedfloor.plan.schedule import Key
from floor import WORK, bits, engine, park, start, visits, walk
from refusals import refused

KEY = Key(seed=5, round=7, tick=2, device=3, visit=1)


def visit(of: Engine, work: Work, objective: Objective, device: int = 0) -> None:
    train(of.network, of.samples(device), work, objective, Visit(None, {}), KEY)


@dataclass(frozen=True)
class Failing(Plain):
    """An objective that fails in its own way."""

    error: Exception = field(default_factory=Exception)

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        raise self.error


def test_an_objective_that_fails_is_told_with_device_and_round() -> None:
    of = engine(park())
    error = ValueError("no such feature")
    before = bits(of.network.flat)
    with refused("own-code", RunError) as said:
        visit(of, WORK, Failing(error=error))
    assert said.value.__cause__ is error
    assert bits(of.network.flat) == before
    own = SettingError("mu = -1: must be at least 0.")  # an error that is meant for the user stays as it is
    with refused("mu") as said_:
        visit(of, WORK, Failing(error=own))
    assert said_.value is own


def test_a_loss_without_a_gradient_is_told() -> None:
    class Constant(Plain):
        def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
            return torch.ones(()), module(x)

    of = engine(park())
    with refused("own-code", RunError):
        visit(of, WORK, Constant())


@dataclass(frozen=True)
class Sending(Plain):
    """An objective that sends something of its own."""

    what: str = "extra"
    numbers: int = 2

    @property
    def travels(self) -> tuple[str, ...]:
        return ("extra",)

    def send(self, model: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        return {self.what: torch.ones(self.numbers)}


SENT = {
    "another name": (Sending("other"), "objective"),
    "the model": (Sending("w"), "objective"),
    "another size": (
        Sending(numbers=3),
        "objective",
    ),
}


@pytest.mark.parametrize(("goal", "said"), SENT.values(), ids=SENT)
def test_what_an_objective_sends_must_be_what_travels(goal: Sending, said: str) -> None:
    of = engine(park())
    name, settings = objectives.to_spec(goal)
    plan = Parallel(visits((0, 1), replace(WORK, objective=name, settings=settings)))
    with refused(said):
        walk(of, plan, {**start(of), "extra": torch.zeros(2)})


def test_batch_norm_that_meets_a_single_sample_says_what_to_do() -> None:
    here = park((9, 8), shape=(2, 1, 1))  # 9 by 4: 4, 4 and 1 with one pixel each
    module = nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3))
    visit(engine(here, module), WORK, Plain(), device=1)
    with refused("single-sample", RunError):
        visit(engine(here, module), WORK, Plain())
