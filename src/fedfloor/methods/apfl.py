"""APFL: every device uses a mixture of the global model and one of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedfloor.errors import require
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.methods.star import beside, check_share, star
from fedfloor.parts.objectives import spoken
from fedfloor.parts.proximal import Interpolated
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node


@dataclass(frozen=True)
class APFL(Method):
    r"""Adaptive personalised federated learning: min_{v_k} F_k(m_k) of the mixture m_k = α v_k + (1 − α) w.

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: v_k ← E epochs of v_k ← v_k − η α ∇F_k(α v_k + (1 − α) w; batch), kept by k
                                    w_k ← E epochs of SGD on F_k, starting from w, with the same mini-batches
            w ← Σ_{k∈S} n_k w_k / Σ_{k∈S} n_k

    v_k begins as the w that k receives first. A device's figures are those of m_k at the end of its last visit, and of
    w where it was never visited; the model that is written is w.

    The w of the rounds are FedAvg's, whatever α is. With alpha = 0 this is FedAvg, and no v_k is trained; with
    alpha = 1 the m_k are those of local training.

    Travels: the model w, down and up. A visit computes twice, but for alpha = 0.

    Deng, Kamani and Mahdavi, arXiv 2003.13461, with an α that stays as it is set. There w_k and v_k take their steps in
    turn; here the mixture holds w as it arrived, which is the same for visits of one step.

    Args:
        alpha: α, share of a device's own model, in [0, 1]; the authors try 0.25, 0.5 and 0.75.
        fraction: C, share of the devices drawn in a round, in (0, 1].
        work: what a visit does, to each of the two models; its optimiser is SGD.
    """

    alpha: float = 0.5
    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=5)

    def __post_init__(self) -> None:
        check_share("apfl", self.fraction)
        require(0 <= self.alpha <= 1, "methods.apfl.alpha", self.alpha, "at least 0 and at most 1")

    @property
    def needs(self) -> Needs:
        return Needs(remembers=True, own="all") if self.alpha else Needs()

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        plan = star(self, self.work, view, self.fraction, rng)
        if not self.alpha:
            return plan
        name, settings = spoken(Interpolated(self.alpha))
        rate = self.alpha**2  # a step of v by ηα∇F moves the mixture by α times that
        return beside(plan, lambda work: replace(work, objective=name, settings=settings, rate=rate * work.rate))
