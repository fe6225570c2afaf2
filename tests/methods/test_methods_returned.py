"""What ``absorb`` and ``init`` of a method of one's own return by mistake is refused, by the method's name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fedfloor import FedAvg, Outcome, Parallel, State, Train, device
from fedfloor.methods.returned import checked
from fedfloor.plan import text
from fedfloor.plan.nodes import Broadcast, Probe, Select, Sequence, Work
from refusals import refused

W = torch.zeros(4)
PACKET = {"w": W, "c": torch.zeros(2)}


@pytest.mark.parametrize(
    "after",
    [
        None,
        PACKET,
        State({}),
        State({"w": W[:3]}),
        State({"w": W.double()}),
        State({"w": W.numpy()}),
        State({"w": W.view(1, 4)}),
        State({"w": W, "c": torch.zeros(3)}),
    ],
)
def test_a_state_that_cannot_travel_is_refused(after: Any) -> None:
    with refused("state-of-method"):
        checked(after, PACKET, "mine:Mine", "absorb")


@pytest.mark.parametrize("packet", [PACKET, {"w": W.clone()}, {**PACKET, "w/1": torch.zeros(4)}])
def test_entries_may_come_and_go_beside_the_model(packet: dict[str, torch.Tensor]) -> None:
    """Cohorts have more models from a round on, and fewer after it."""
    assert checked(State(packet), PACKET, "mine:Mine", "absorb").packet is packet


def test_a_preview_has_no_model() -> None:
    assert checked(State({}), {}, "mine:Mine", "init").packet == {}


@dataclass(frozen=True)
class Forgetful(FedAvg):
    """FedAvg whose ``absorb`` returns nothing."""

    def absorb(self, state: State, outcome: Outcome) -> State:  # type: ignore[empty-body]
        ...


def test_a_run_names_the_method_that_returns_nothing() -> None:
    from fedfloor.methods.configured import ConfiguredMethod, Parts

    state = State(PACKET, {"trained": 4})
    with refused("state-of-method"):
        ConfiguredMethod("mine:Forgetful", Forgetful(), Parts()).absorb(state, Outcome(PACKET, Sequence(())))


def test_children_and_devices_may_be_lists_or_generators() -> None:
    """A plan is the same, to its hash, however its children were listed."""
    visits = tuple(Train(device(k), Work(epochs=1)) for k in range(3))
    made = [Parallel(visits), Parallel(list(visits)), Parallel(visit for visit in visits)]  # type: ignore[arg-type]
    assert len({text.digest(plan) for plan in made}) == 1
    for plan in (Broadcast([1, 2]), Probe([1, 2], "loss"), Select("uniform", [1, 2], 1, Work(epochs=1))):  # type: ignore[arg-type]
        text.digest(plan)
