"""FedYogi: the cloud steps by Yogi."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfloor.methods.contract import Method, State, View
from fedfloor.methods.star import check_server, check_share, star
from fedfloor.parts.server import Server, Yogi
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node


@dataclass(frozen=True)
class FedYogi(Method):
    r"""Federated averaging with Yogi on the server, v ← v − (1 − β2)Δ² sign(v − Δ²), w ← w + η·m/(√v + τ).

    ::

        m ← 0, v ← τ²
        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: w_k ← E epochs of SGD on the data of k, starting from w
            Δ ← Σ_{k∈S} n_k w_k / Σ_{k∈S} n_k − w; m ← β1·m + (1 − β1)Δ
            v ← v − (1 − β2)Δ² sign(v − Δ²); w ← w + η·m/(√v + τ)

    With beta1 = 0, τ → ∞ and server_rate = 2τ this is FedAvg, up to rounding.

    Travels: the model, down and up. The cloud keeps m and v.

    Reddi et al., ICLR 2021, arXiv 2003.00295: no bias correction, v starts at τ². Google's code names 10^−2.5 as the
    best rate for EMNIST characters, with devices' rates of 10^−1.5, 10 devices a round, mini-batches of 20 and 1,500
    rounds; it was tuned together with τ = 10^−4, so look for both anew.

    Args:
        server_rate: η > 0; 10^−2.5.
        beta1: β1 in [0, 1), decay of m.
        beta2: β2 in [0, 1); 1 − β2 is the largest share of Δ² that v changes by.
        tau: τ > 0, how far the step is from being the same for every weight; the paper's default.
        fraction: C, share of the devices drawn in a round, in (0, 1].
        work: what a visit does; E = 1 epoch as in the paper that tuned the rates.
    """

    server_rate: float = 0.00316
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=1)

    def __post_init__(self) -> None:
        check_share("fedyogi", self.fraction)
        check_server("fedyogi", lambda: self.server)

    @property
    def server(self) -> Server:
        """Return Yogi."""
        return Yogi(self.server_rate, self.beta1, self.beta2, self.tau)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:  # noqa: ARG002
        """Visit the drawn devices in parallel."""
        return star(self, self.work, view, self.fraction, rng)
