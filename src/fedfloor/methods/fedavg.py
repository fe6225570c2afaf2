"""FedAvg: devices train alone, the cloud averages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfloor.methods.contract import Method, State, View
from fedfloor.methods.star import check_server, check_share, star
from fedfloor.parts.mix import BySamples, Mix
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node


@dataclass(frozen=True)
class FedAvg(Method):
    r"""Federated averaging, w ← Σ_k (n_k/n) w_k.

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: w_k ← E epochs of SGD on the data of k, starting from w
            w ← Σ_{k∈S} n_k w_k / Σ_{k∈S} n_k

    With every device and one step per visit it is one centralised step on the union of the mini-batches (equal sizes).

    Travels: the model, down and up.

    McMahan et al., AISTATS 2017, arXiv 1602.05629. Methods that differ from it by what devices minimise, how their
    models meet or what the cloud does with the mean are this class with that property exchanged.

    Args:
        fraction: C, share of the devices drawn in a round, in (0, 1].
        work: what a visit does; E = 5 epochs is FedSR's setting (arXiv 2403.14718) and McMahan's usual one.
    """

    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=5)

    def __post_init__(self) -> None:
        name = type(self).__name__.lower()
        check_share(name, self.fraction)
        check_server(name, lambda: self.server)
        _ = self.objective, self.mix  # settings out of range are refused by the parts that have them

    @property
    def mix(self) -> Mix:
        """How the devices' models meet at the cloud."""
        return BySamples()

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        """Visit the drawn devices in parallel."""
        return star(self, self.work, view, self.fraction, rng, self.mix)
