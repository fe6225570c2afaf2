"""A forecast says where a plan reads what only training gives, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fedfloor
from fedfloor import FedAvg, FedSR, HFedMS, Method, Node, Outcome, Parallel, Scaffold, State, Train, View, device
from fedfloor.runs import forecast
from fedfloor.runs.parks import build_park


@dataclass(frozen=True)
class Learning(FedAvg):
    """FedAvg that keeps the losses of devices, and reads them as ``reads`` says."""

    reads: str = "notes"

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        match self.reads:
            case "notes":
                state.notes.get("losses")
            case "packet":
                dict(**state.packet)
            case "receipts":
                [receipt.device for receipt in view.receipts]
        return Parallel(tuple(Train(device(k), self.work.at(view.round, view.rounds)) for k in view.devices))

    def absorb(self, state: State, outcome: Outcome) -> State:
        return State(outcome.packet, {"losses": [receipt.loss_last for receipt in outcome.receipts]})


@dataclass(frozen=True)
class Noting(Learning):
    """The same with ``noted``, which gives a forecast the notes."""

    def noted(self, state: State, plan: Node) -> State:
        return state


@pytest.mark.parametrize(
    ("method", "reads"),
    [
        (Learning(reads="notes"), True),
        (Learning(reads="packet"), True),
        (Learning(reads="receipts"), True),
        (Learning(reads="nothing"), False),
        (Noting(reads="notes"), False),
        (Noting(reads="receipts"), True),
        (FedAvg(), False),
        (FedSR(), False),
        (HFedMS(), False),
        (Scaffold(), False),
    ],
)
def test_a_plan_that_reads_outcomes_is_named(method: Method, reads: Any) -> None:
    """Only such a plan may differ in a run: FedAvg's, FedSR's, HFedMS's and SCAFFOLD's are known beforehand."""
    settings: dict[str, Any] = {"devices": 4, "factories": 2, "model": "linear", "network": "wifi", "rounds": 3}
    experiment = fedfloor.load("labels", method=method, changes={"data.samples_per_device": 40}, **settings)
    found = []
    rounds = forecast.rounds(experiment, build_park(experiment), 3, unforeseen=lambda: found.append(True))
    assert len([planned for planned in rounds if planned.number]) == 3
    assert bool(found) == reads
