"""FedAvgM: the cloud has momentum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfloor.methods.contract import Method, State, View
from fedfloor.methods.star import check_server, check_share, star
from fedfloor.parts.server import Server, Sgd
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node


@dataclass(frozen=True)
class FedAvgM(Method):
    r"""Federated averaging with server momentum, m ← β·m + Δ, w ← w + η·m.

    ::

        m ← 0
        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: w_k ← E epochs of SGD on the data of k, starting from w
            Δ ← Σ_{k∈S} n_k w_k / Σ_{k∈S} n_k − w; m ← β·m + Δ; w ← w + η·m

    With momentum = 0 and server_rate = 1 this is FedAvg.

    Travels: the model, down and up. The cloud keeps m.

    Hsu et al., arXiv 1909.06335. Google's code for Reddi et al. (ICLR 2021, arXiv 2003.00295) names 10^−0.5 as the best
    rate for EMNIST characters with β = 0.9, with devices' rates of 10^−1.5, 10 devices a round, mini-batches of 20 and
    1,500 rounds. A steady Δ moves the model by η/(1 − β) of it, ten times Δ with the defaults.

    Args:
        server_rate: η > 0.
        momentum: β in [0, 1).
        fraction: C, share of the devices drawn in a round, in (0, 1].
        work: what a visit does; E = 1 epoch as in the paper that tuned the rates.
    """

    server_rate: float = 1.0
    momentum: float = 0.9
    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=1)

    def __post_init__(self) -> None:
        check_share("fedavgm", self.fraction)
        check_server("fedavgm", lambda: self.server)

    @property
    def server(self) -> Server:
        """Return SGD with momentum."""
        return Sgd(self.server_rate, self.momentum)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:  # noqa: ARG002
        """Visit the drawn devices in parallel."""
        return star(self, self.work, view, self.fraction, rng)
