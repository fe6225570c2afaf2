"""FEDL: devices correct their steps by the mean gradient of all devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfloor.methods.contract import Answers, Needs, State, View
from fedfloor.methods.fedavg import FedAvg
from fedfloor.parts.objectives.correction import Corrected
from fedfloor.parts.objectives.objective import Objective
from fedfloor.plan.nodes import Node, Probe


@dataclass(frozen=True)
class FEDL(FedAvg):
    r"""Averaging of devices with corrected gradients, min F_k(w_k) + ⟨η·ḡ − ∇F_k(w), w_k⟩.

    ::

        ḡ ← Σ_k n_k ∇F_k(w) / n, from all devices before the first round
        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: w_k ← E epochs of w_k ← w_k − lr·(∇F_k(w_k; batch) + η·ḡ − ∇F_k(w)), from w
            w ← Σ_{k∈S} n_k w_k / Σ_{k∈S} n_k, ḡ ← Σ_{k∈S} n_k ∇F_k(w_k) / Σ_{k∈S} n_k

    With weight = 0 this is FedAvg. With η = 1 on a park of one device it is FedAvg, too.

    Travels: the model and ḡ down, the model and a gradient up; before the first round the model down and a gradient up.

    Dinh et al., IEEE/ACM Transactions on Networking 2021, arXiv 1910.13067. As in the paper a device sends its gradient
    at its final model. The authors' code (CharlieDinh/FEDL_pytorch) starts with ḡ = 0 and has no correction in the
    first round; here the first ḡ is queried. The authors train networks with mini-batches of 40 or of all samples, and
    find FEDL unstable with 20: choose a large ``work.batch_size``.

    Args:
        eta: η ≥ 0. The authors used 0.2 with mini-batches of 20 for MNIST and FEMNIST (lr 0.003, 20 epochs), 0.5 to 4
            with all samples at once, 0.01 to 0.07 for linear regression; their code's own default is 1.
        weight: the weight of the whole correction, at least 0; 1 is FEDL.
    """

    eta: float = 0.2
    weight: float = 1.0

    @property
    def objective(self) -> Objective:
        return Corrected(self.weight, self.eta)

    @property
    def needs(self) -> Needs:
        return Needs(questions=(Probe((), "gradient"),) if self.weight > 0 else ())

    def setup(self, view: View) -> Node | None:
        """Return the question to every device for its gradient at the initial model; None without a correction."""
        return Probe(tuple(view.devices), "gradient") if self.weight > 0 else None

    def init(self, view: View, answers: Answers, rng: np.random.Generator) -> State:
        """Return the first state, with the answers' mean by samples as ``grad``, or without it in a preview."""
        if not answers:
            return State(view.start)
        from fedfloor.parts.mixing.means import mean

        order = sorted(answers)
        grad = mean([answers[k]["gradient"] for k in order], [float(view.holdings[k]) for k in order])
        return State({**view.start, "grad": grad})
