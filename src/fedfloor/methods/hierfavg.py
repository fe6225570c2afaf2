"""HierFAVG: frequent averages at edges, and an occasional average of the edges at the cloud."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfloor.base.errors import require
from fedfloor.methods.contract import Method, State, View
from fedfloor.parts.selection.selection import fraction
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node, Parallel, Repeat, Train, device, edge


@dataclass(frozen=True)
class HierFAVG(Method):
    r"""Client–edge–cloud averaging, w ← Σ_m (n_m/n) w_m, w_m ← Σ_{k∈m} (n_k/n_m) w_k.

    ::

        for each round:
            for each factory m in parallel: w_m ← w
                κ2 times: for k in m in parallel: w_k ← κ1 epochs of SGD on the data of k, starting from w_m
                          w_m ← Σ_{k∈m} n_k w_k / n_m
            w ← Σ_m n_m w_m / n

    With κ2 = 1 this is FedAvg up to rounding.

    Travels: the model, between edges and devices κ2 times in a round, between cloud and edges once.

    Liu et al., ICC 2020, arXiv 1905.06641, where κ1 counts SGD steps (``work.steps``); FedSR's comparison has κ1 = 1
    epoch and κ2 = 5.

    Args:
        edge_rounds: κ2, the number of averages at the edge per global round.
        fraction: the share of devices drawn in a round, in (0, 1].
        work: κ1, the work of a visit between two averages at the edge.
    """

    edge_rounds: int = 5
    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=1)

    def __post_init__(self) -> None:
        require(self.edge_rounds >= 1, "methods.hierfavg.edge_rounds", self.edge_rounds, "a whole number of at least 1")
        require(0 < self.fraction <= 1, "methods.hierfavg.fraction", self.fraction, "above 0 and at most 1")

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        work = self.work.at(view.round, view.rounds)
        drawn = np.asarray(fraction(view.devices, self.fraction, rng))
        factory_of = view.factory_of[drawn]
        branches = []
        for m in np.unique(factory_of).tolist():
            visits = tuple(Train(device(k), work) for k in drawn[factory_of == m].tolist())
            branches.append(Repeat(self.edge_rounds, Parallel(visits, at=edge(m)), tick=False))
        return Parallel(tuple(branches))
