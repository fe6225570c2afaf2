"""ring-optimization: one model travels one ring of all devices; nothing is averaged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfloor.errors import require
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.parts.selection import fraction
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node, Repeat, Sequence, Train, device


@dataclass(frozen=True)
class Ring(Method):
    """One ring of all participants, w ← SGD(w, D_k) for each k in turn.

    ::

        for each round:
            order the drawn devices in one ring at random
            for lap = 1 … R: for k in the ring: w ← E epochs of SGD on the data of k, starting from w

    On a park of one device this is centralised SGD.

    Travels: the model, from device to device.

    FedSR, arXiv 2403.14718, section III ("ring-optimization"), there with one lap of E = 1 per round (its Table III
    counts 20 models per round for 20 devices).

    Args:
        laps: R, times round the ring in one global round.
        fraction: share of the devices drawn in a round, in (0, 1].
        work: what a visit does; E = 1 epoch.
    """

    title = "ring-optimization"

    laps: int = 1
    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=1)

    def __post_init__(self) -> None:
        require(self.laps >= 1, "methods.ring.laps", self.laps, "a whole number of at least 1")
        require(0 < self.fraction <= 1, "methods.ring.fraction", self.fraction, "above 0 and at most 1")

    @property
    def needs(self) -> Needs:
        return Needs(crosses=True)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        work = self.work.at(view.round, view.rounds)
        order = rng.permutation(fraction(view.devices, self.fraction, rng)).tolist()
        return Repeat(self.laps, Sequence(tuple(Train(device(k), work) for k in order)), tick=False)
