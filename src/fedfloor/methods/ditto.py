"""Ditto: a global model by FedAvg, and beside it a model of every device's own that is pulled towards it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedfloor.errors import require
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.methods.star import beside, check_share, star
from fedfloor.parts.objective import Objective, Plain
from fedfloor.parts.objectives import spoken
from fedfloor.parts.proximal import Prox
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node


@dataclass(frozen=True)
class Ditto(Method):
    r"""Personal models near a global one, min_{v_k} F_k(v_k) + (λ/2)‖v_k − w*‖², w* = argmin_w Σ_k n_k F_k(w)/Σ_k n_k.

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: v_k ← E epochs of v_k ← v_k − η(∇F_k(v_k; batch) + λ(v_k − w)), kept by k
                                    w_k ← E epochs of SGD on F_k, starting from w, with the same mini-batches
            w ← Σ_{k∈S} n_k w_k / Σ_{k∈S} n_k

    v_k begins as the w that k receives first. A device's figures are those of v_k, and of w where it was never visited;
    the model that is written is w.

    The w of the rounds are FedAvg's, whatever λ is; with lam = 0 the v_k are those of local training.

    Travels: the model w, down and up. A visit computes twice.

    Li, Hu, Beirami and Smith, ICML 2021, arXiv 2012.04221; the authors tune λ among 0.05, 0.1, 0.2, 1 and 2.

    Args:
        lam: λ ≥ 0.
        fraction: C, share of the devices drawn in a round, in (0, 1].
        work: what a visit does, to each of the two models.
    """

    lam: float = 0.1
    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=5)

    def __post_init__(self) -> None:
        check_share("ditto", self.fraction)
        require(0 <= self.lam < math.inf, "methods.ditto.lam", self.lam, "a number of at least 0")

    @property
    def needs(self) -> Needs:
        return Needs(remembers=True, own="all")

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        goal: Objective = Prox(self.lam) if self.lam else Plain()
        name, settings = spoken(goal)
        plan = star(self, self.work, view, self.fraction, rng)
        return beside(plan, lambda work: replace(work, objective=name, settings=settings))
