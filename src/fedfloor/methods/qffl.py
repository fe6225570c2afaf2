"""q-FFL: who has the larger loss counts more."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedfloor.errors import require
from fedfloor.methods.contract import Method, State, View
from fedfloor.methods.star import check_share, visiting
from fedfloor.parts.mix import QFair
from fedfloor.parts.selection import by_samples
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node, Probe, Sequence


@dataclass(frozen=True)
class QFFL(Method):
    r"""q-fair federated learning by q-FedAvg, min Σ_k p_k F_k(w)^(q+1)/(q + 1).

    ::

        for each round:
            S ← max(C·K, 1) devices drawn without replacement, with chances p_k = n_k/n
            for k in S in parallel: F_k ← mean loss of w on the data of k; w_k ← E epochs of SGD, starting from w
            u_k ← (w − w_k)/η, h_k ← q·F_k^(q−1)·‖u_k‖² + F_k^q/η
            w ← w − Σ_{k∈S} F_k^q·u_k / Σ_{k∈S} h_k

    With q = 0 and equal sizes this is FedAvg.

    Travels: the model, down and up, and a device's loss, up.

    Li et al., ICLR 2020, arXiv 1905.10497. Devices are drawn by their samples and count equally, as in the authors'
    code (litian96/fair_flearn, its sampling 2), which draws without replacement; one pass over a device's data more,
    forward only, says its loss.

    Args:
        q: q ≥ 0, how fair; depends on the data. The authors' code shows 5 for Vehicle.
        fraction: C, share of the devices drawn in a round, in (0, 1].
        work: what a visit does; the authors' scripts take E = 1 epoch. η is its learning rate.
    """

    title = "q-FFL"

    q: float = 1.0
    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=1)

    def __post_init__(self) -> None:
        check_share("qffl", self.fraction)
        require(0 <= self.q < math.inf, "methods.qffl.q", self.q, "a number of at least 0")

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        chosen = by_samples(view.devices, view.sizes, self.fraction, rng)
        visits = visiting(self, self.work, view, chosen, QFair(self.q))
        return Sequence((Probe(tuple(chosen), "loss"), visits))
