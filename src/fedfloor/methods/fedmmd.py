"""FedMMD: FedAvg whose devices keep what they say near what the global model says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfloor.methods.contract import Method, State, View
from fedfloor.methods.star import check_share, star
from fedfloor.parts.mmd import Mmd
from fedfloor.parts.objective import Objective
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node


@dataclass(frozen=True)
class FedMMD(Method):
    r"""Two-stream federated learning, min F_k(w_k) + λ·MMD²(logits of w, logits of w_k).

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: w_k ← E epochs of SGD on F_k(w_k) + λ·MMD²(f(w), f(w_k)) per mini-batch,
                          starting from w
            w ← Σ_{k∈S} n_k w_k / Σ_{k∈S} n_k

    With weight = 0 this is FedAvg.

    Travels: the model, down and up.

    Yao et al., VCIP 2018; code thu-media/TwoStreamFederatedLearning, from which the kernel is (see
    :class:`fedfloor.parts.mmd.Mmd`). E = 5 is that of the comparisons here.

    Args:
        weight: λ ≥ 0, the weight of the distance; 0.1 is the authors'.
        fraction: C, share of the devices drawn in a round, in (0, 1].
        work: what a visit does.
    """

    weight: float = 0.1
    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=5)

    def __post_init__(self) -> None:
        check_share("fedmmd", self.fraction)
        Mmd(self.weight)

    @property
    def objective(self) -> Objective:
        """Return the two-stream objective."""
        return Mmd(self.weight)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:  # noqa: ARG002
        """Visit the drawn devices in parallel."""
        return star(self, self.work, view, self.fraction, rng)
