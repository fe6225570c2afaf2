"""Local training only: every device by itself, without federation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node, Parallel, Train, device
from fedfloor.plan.outcome import Outcome


@dataclass(frozen=True)
class LocalOnly(Method):
    """Stochastic gradient descent on each device's own data, w_k ← w_k − η∇F_k(w_k; batch), all from one first model.

    ::

        for each round: for each device k: w_k ← E epochs of SGD on the data of k, starting from its own w_k

    The reference from below: what a federation brings is what it is better by. Its accuracy is that of each tested
    device's own model on its own test samples, weighted by their number; on test samples of owners who never train, or
    of nobody, it is the mean over all devices' models. It is a plan of visits that send nothing
    (``Work.sends = "nothing"``): no vector of all models exists, engines, checkpoints and ranks are those of every
    method, and the arithmetic of a visit is that of FedAvg, so that on a park of one device the two agree to the bit.

    Travels: nothing.

    Args:
        work: what a device does in a round; E = 1 epoch.
    """

    title = "local only"

    work: WorkSettings = WorkSettings(epochs=1)

    @property
    def needs(self) -> Needs:
        return Needs(remembers=True, own="all", separate=True)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        work = replace(self.work.at(view.round, view.rounds), sends="nothing")
        return Parallel(tuple(Train(device(k), work) for k in view.devices))

    def absorb(self, state: State, outcome: Outcome) -> State:
        return state
