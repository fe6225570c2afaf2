"""Centralised training: what a data centre that held everybody's data would do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfloor.methods.contract import Method, State, View
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import CLOUD, Node, Train


@dataclass(frozen=True)
class Centralized(Method):
    """Stochastic gradient descent on the union of all devices' data, w ← w − η∇F(w; batch).

    ::

        for each round: E epochs of SGD on all data, in one place

    The bound federated methods are measured against. It is FedAvg on a park of one device.

    Travels: nothing; the data are where the model is, which is what federated methods do without.

    Robbins and Monro, Annals of Mathematical Statistics, 1951.

    Args:
        work: what a round does; one epoch.
    """

    title = "centralised training"

    work: WorkSettings = WorkSettings(epochs=1)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        return Train(CLOUD, self.work.at(view.round, view.rounds))
