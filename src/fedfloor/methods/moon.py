"""MOON: FedAvg whose devices learn representations near the global model's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfloor.methods.contract import Method, State, View
from fedfloor.methods.star import check_share, star
from fedfloor.parts.contrastive import Contrastive
from fedfloor.parts.objective import Objective
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node


@dataclass(frozen=True)
class Moon(Method):
    r"""Model-contrastive federated learning, min F_k(w_k) + μ·ℓ, ℓ = −log(e^{a/τ}/(e^{a/τ} + e^{b/τ})).

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: w_k ← E epochs of SGD on F_k + μ·ℓ, starting from w, with the cosines
                          a = s(z(w_k), z(w)), b = s(z(w_k), z(v_k)); then v_k ← w_k, kept by k
            w ← Σ_{k∈S} n_k w_k / Σ_{k∈S} n_k

    z is the output of a projection head (linear, ReLU, linear to ``dim`` numbers) that the network gets before a new
    classifier; a device's first visit, which has no v_k yet, is without ℓ. With mu = 0 this is FedAvg on the same
    network with its head.

    Travels: the model with its head, down and up; v_k stays on the device.

    Li, He and Song, CVPR 2021, arXiv 2103.16257; code QinbinLi/MOON. The authors train with SGD of momentum 0.9 and
    weight decay 1e-5, batches of 64, rate 0.01 and 10 epochs; E = 5 is FedSR's comparison (arXiv 2403.14718).

    Args:
        mu: μ ≥ 0. The authors' code has 1, and 5 for CIFAR-10.
        temperature: τ > 0.
        dim: length of z.
        fraction: C, share of the devices drawn in a round, in (0, 1].
        work: what a visit does.
    """

    title = "MOON"

    mu: float = 1.0
    temperature: float = 0.5
    dim: int = 256
    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=5)

    def __post_init__(self) -> None:
        check_share("moon", self.fraction)
        Contrastive(self.mu, self.temperature, self.dim)

    @property
    def objective(self) -> Objective:
        """Return the contrastive objective."""
        return Contrastive(self.mu, self.temperature, self.dim)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:  # noqa: ARG002
        """Visit the drawn devices in parallel."""
        return star(self, self.work, view, self.fraction, rng)
