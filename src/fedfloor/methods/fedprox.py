"""FedProx: FedAvg with a pull back to the global model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfloor.methods.contract import Method, State, View
from fedfloor.methods.star import check_share, star
from fedfloor.parts.objective import Objective
from fedfloor.parts.prox import Prox
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node


@dataclass(frozen=True)
class FedProx(Method):
    r"""Federated averaging of proximal devices, min F_k(w_k) + (μ/2)‖w_k − w‖².

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: w_k ← E epochs of SGD on F_k(w_k) + (μ/2)‖w_k − w‖², starting from w
            w ← Σ_{k∈S} n_k w_k / Σ_{k∈S} n_k

    With mu = 0 this is FedAvg.

    Travels: the model, down and up.

    Li et al., MLSys 2020, arXiv 1812.06127. The paper draws devices in proportion to n_k and averages them equally, or
    the other way round; as in the papers that compare with it, devices are drawn uniformly and averaged by samples
    here. All devices finish their E epochs.

    Args:
        mu: μ ≥ 0. The authors used 1 for MNIST and FEMNIST, 0.01 and 0.001 for texts, with 20 epochs; the default is
            ours.
        fraction: C, share of the devices drawn in a round, in (0, 1].
        work: what a visit does.
    """

    mu: float = 0.01
    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=5)

    def __post_init__(self) -> None:
        check_share("fedprox", self.fraction)
        Prox(self.mu)

    @property
    def objective(self) -> Objective:
        """Return the proximal objective."""
        return Prox(self.mu)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:  # noqa: ARG002
        """Visit the drawn devices in parallel."""
        return star(self, self.work, view, self.fraction, rng)
