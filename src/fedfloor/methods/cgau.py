"""CGAU: gated activation units conditioned on the client, on a frozen extractor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfloor.base.errors import require
from fedfloor.methods.contract import Answers, State, View
from fedfloor.methods.fedavg import FedAvg
from fedfloor.parts.objectives.layers import Gated
from fedfloor.parts.objectives.objective import Objective
from fedfloor.parts.selection.selection import fraction
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node, Parallel, Train, device
from fedfloor.plan.outcome import Outcome


@dataclass(frozen=True)
class CGAU(FedAvg):
    r"""Client-conditioned gated units on a frozen extractor, h = tanh(W1 x + b1 + V1 c) ⊙ σ(W2 x + b2 + V2 c).

    ::

        w ← FedAvg of extractor and head, for the first `warm_up` rounds; then the extractor is frozen
        for each later round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: (head_k, V c_k) ← E epochs of SGD, from the head of w and the device's own V c_k
            head ← Σ_{k∈S} n_k head_k / Σ_{k∈S} n_k; the devices keep their columns V c_k and are evaluated with them

    With warm_up = rounds this is FedAvg of the network with the gated head.

    Travels: the model, down and up, with the mean of the columns, for devices that were never visited.

    Rieger et al. 2020, arXiv 2007.04806; without dropout, as in FedGS (arXiv 2202.01512), which compares CGAU with 1
    and 2 layers of 256 units. Both papers begin with a trained extractor, which is ``[model] init_from`` with warm_up =
    0; the warm-up replaces it. The authors' own settings are 2 layers of 64 units, and visits of 10 steps of 32 samples
    with rate 0.01 and momentum 0.9.

    Args:
        layers: the number of gated layers before the last layer.
        units: the outputs of each gated layer.
        warm_up: the number of rounds before the extractor is frozen; half of all rounds, rounded down, by default.
    """

    layers: int = 2
    units: int = 256
    warm_up: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        rounds = self.warm_up
        require(rounds is None or rounds >= 0, "methods.cgau.warm_up", rounds, "a whole number of at least 0")

    @property
    def objective(self) -> Objective:
        return Gated(self.layers, self.units)

    def init(self, view: View, answers: Answers, rng: np.random.Generator) -> State:
        """Return the first state, with the place of the head in the model."""
        paths = [name.removesuffix("own.columns") for name in view.layout if name.endswith("own.columns")]
        places = [at for name, at in view.layout.items() if paths and name.startswith(paths[-1])]
        return State(view.start, {"head": [min(at[0] for at in places), max(at[1] for at in places)]} if places else {})

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        warm_up = view.rounds // 2 if self.warm_up is None else self.warm_up
        work = self.work.at(view.round, view.rounds, Gated(self.layers, self.units, frozen=view.round > warm_up))
        return Parallel(tuple(Train(device(k), work) for k in fraction(view.devices, self.fraction, rng)))

    def absorb(self, state: State, outcome: Outcome) -> State:
        """Return the state with the new head; a frozen extractor is not averaged, as means have rounding errors."""
        packet = dict(outcome.packet)
        works = walk.works(outcome.resolved)
        frozen = all(work.objective == "gated" and work.settings.get("frozen", True) for work in works)
        if "head" in state.notes and frozen:
            head = slice(*state.notes["head"])
            new = state.packet["w"].clone()
            new[head] = packet["w"][head]
            packet["w"] = new
        return State(packet, state.notes, state.tensors)
