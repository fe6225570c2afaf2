"""FedAvg with one part exchanged: objective, mixing rule or server.

In every round S ← max(C·K, 1) devices are drawn at random and train in parallel, starting from w, by E epochs of SGD;
the cloud aggregates their models w_k. Δ is the mean of the models minus w. Each class gives the exchanged part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedfloor.methods.contract import Needs, State, View
from fedfloor.methods.fedavg import FedAvg, visiting
from fedfloor.parts.mixing.mix import InverseDistance, Mix, QFair
from fedfloor.parts.objectives.objective import Objective
from fedfloor.parts.objectives.proximal import Contrastive, Mmd, Prox
from fedfloor.parts.selection.selection import by_samples
from fedfloor.parts.server import Adagrad, Adam, Server, Sgd, Yogi
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node, Probe, Sequence

# -- the devices' objective --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FedProx(FedAvg):
    r"""Federated averaging with a proximal term, min F_k(w_k) + (μ/2)‖w_k − w‖².

    ::

        for each round: S, w as in FedAvg
            for k in S in parallel: w_k ← E epochs of SGD on F_k(w_k) + (μ/2)‖w_k − w‖², starting from w

    With mu = 0 this is FedAvg.

    Travels: the model, down and up.

    Li et al., MLSys 2020, arXiv 1812.06127. The paper draws devices in proportion to n_k and averages them equally, or
    draws uniformly and averages by samples, as is done here and in the papers that compare with FedProx. All devices
    finish their E epochs.

    Args:
        mu: μ ≥ 0. The authors used 1 for MNIST and FEMNIST, 0.01 and 0.001 for texts, with 20 epochs; the default is
            this implementation's.
    """

    mu: float = 0.01

    @property
    def objective(self) -> Objective:
        return Prox(self.mu)


@dataclass(frozen=True)
class FedMMD(FedAvg):
    r"""Two-stream federated learning, min F_k(w_k) + λ·MMD²(logits of w, logits of w_k).

    ::

        for each round: S, w as in FedAvg
            for k in S in parallel: w_k ← E epochs of SGD on F_k(w_k) + λ·MMD²(f(w), f(w_k)) per mini-batch, from w

    With weight = 0 this is FedAvg.

    Travels: the model, down and up.

    Yao et al., VCIP 2018. The kernel follows the code thu-media/TwoStreamFederatedLearning (see
    :class:`fedfloor.parts.objectives.proximal.Mmd`). E = 5 is the setting of the comparisons here.

    Args:
        weight: λ ≥ 0, the weight of the distance; the authors use 0.1.
    """

    weight: float = 0.1

    @property
    def objective(self) -> Objective:
        return Mmd(self.weight)


@dataclass(frozen=True)
class Moon(FedAvg):
    r"""Model-contrastive federated learning, min F_k(w_k) + μ·ℓ, ℓ = −log(e^{a/τ}/(e^{a/τ} + e^{b/τ})).

    ::

        for each round: S, w as in FedAvg
            for k in S in parallel: w_k ← E epochs of SGD on F_k + μ·ℓ, starting from w, with the cosines
                          a = s(z(w_k), z(w)), b = s(z(w_k), z(v_k)); then v_k ← w_k, kept by k

    z is the output of a projection head (linear, ReLU, linear to ``dim`` numbers) that is added to the network before a
    new classifier. A device's first visit, without v_k, has no ℓ. With mu = 0 this is FedAvg on the same network with
    its head.

    Travels: the model with its head, down and up; v_k stays on the device.

    Li, He and Song, CVPR 2021, arXiv 2103.16257; code QinbinLi/MOON. The authors train with SGD with momentum 0.9 and
    weight decay 1e-5, batches of 64, rate 0.01 and 10 epochs; E = 5 is FedSR's comparison (arXiv 2403.14718).

    Args:
        mu: μ ≥ 0. The authors' code has 1, and 5 for CIFAR-10.
        temperature: τ > 0.
        dim: the length of z.
    """

    title = "MOON"

    mu: float = 1.0
    temperature: float = 0.5
    dim: int = 256

    @property
    def objective(self) -> Objective:
        return Contrastive(self.mu, self.temperature, self.dim)


# -- the mixing rule ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ida(FedAvg):
    r"""Inverse distance aggregation, w ← Σ_k α_k w_k / Σ_k α_k, α_k = c_k/‖w̄ − w_k‖₁.

    ::

        for each round: S, w_k as in FedAvg
            w̄ ← mean_{k∈S} w_k; α_k ← c_k/‖w̄ − w_k‖₁; w ← Σ_{k∈S} α_k w_k / Σ_{k∈S} α_k

    With equal distances and factors = "none" this is FedAvg of equal sizes, with factors = "samples" it is FedAvg.

    Travels: the model, down and up; with factors = "accuracy" the training accuracy, up.

    Yeganeh et al., DCL at MICCAI 2020, arXiv 2008.07665. The paper's formulas could not be looked up; for the choices
    of this implementation see :func:`fedfloor.parts.mixing.means.inverse_distance`.

    Args:
        factors: c_k. "none" is IDA, c_k = 1; "accuracy" is IDA + INTRAC, c_k = 1/max(1/classes, training accuracy);
            "samples" is IDA + FedAvg, c_k = n_k.
    """

    title = "IDA"

    factors: Literal["none", "accuracy", "samples"] = "none"

    @property
    def mix(self) -> Mix:
        return InverseDistance(self.factors)


@dataclass(frozen=True)
class QFFL(FedAvg):
    r"""q-fair federated learning by q-FedAvg, min Σ_k p_k F_k(w)^(q+1)/(q + 1).

    ::

        for each round:
            S ← max(C·K, 1) devices drawn without replacement, with probabilities p_k = n_k/n
            for k in S in parallel: F_k ← mean loss of w on the data of k; w_k ← E epochs of SGD, starting from w
            u_k ← (w − w_k)/η, h_k ← q·F_k^(q−1)·‖u_k‖² + F_k^q/η
            w ← w − Σ_{k∈S} F_k^q·u_k / Σ_{k∈S} h_k

    With q = 0 and equal sizes this is FedAvg.

    Travels: the model, down and up, and a device's loss, up.

    Li et al., ICLR 2020, arXiv 1905.10497. Devices are drawn by their samples and have equal weights, as in the
    authors' code (litian96/fair_flearn, sampling 2), which draws without replacement. The loss costs a forward pass
    over a device's data.

    Args:
        q: q ≥ 0, the degree of fairness, which depends on the data. The authors' code has 5 for Vehicle.
        work: the work of a visit; the authors' scripts have E = 1 epoch. η is its learning rate.
    """

    title = "q-FFL"

    work: WorkSettings = WorkSettings(epochs=1)
    q: float = 1.0

    @property
    def mix(self) -> Mix:
        return QFair(self.q)

    @property
    def needs(self) -> Needs:
        return Needs(questions=(Probe((), "loss"),))

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        chosen = by_samples(view.devices, view.sizes, self.fraction, rng)
        visits = visiting(self, self.work, view, chosen, self.mix)
        return Sequence((Probe(tuple(chosen), "loss"), visits))


# -- the server --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    r"""Federated averaging with server momentum, m ← β·m + Δ, w ← w + η·m.

    ::

        m ← 0
        for each round: Δ as in FedAvg; m ← β·m + Δ; w ← w + η·m

    With momentum = 0 and server_rate = 1 this is FedAvg.

    Travels: the model, down and up. The cloud keeps m.

    Hsu et al., arXiv 1909.06335. Google's code for Reddi et al. (arXiv 2003.00295) gives 10^−0.5 as the best rate for
    EMNIST characters with β = 0.9, in FedAdagrad's setting. A constant Δ finally moves the model by η/(1 − β)·Δ per
    round.

    Args:
        server_rate: η > 0.
        momentum: β in [0, 1).
    """

    work: WorkSettings = WorkSettings(epochs=1)
    server_rate: float = 1.0
    momentum: float = 0.9

    @property
    def server(self) -> Server:
        return Sgd(self.server_rate, self.momentum)


@dataclass(frozen=True)
class FedAdagrad(FedAvg):
    r"""Federated averaging with Adagrad on the server, v ← v + Δ², w ← w + η·Δ/(√v + τ).

    ::

        v ← τ²
        for each round: Δ as in FedAvg; v ← v + Δ²; w ← w + η·Δ/(√v + τ)

    With τ → ∞ and server_rate = 2τ this is FedAvg, up to rounding.

    Travels: the model, down and up. The cloud keeps v.

    Reddi et al., ICLR 2021, arXiv 2003.00295: no bias correction. Google's code gives 10^−1 as the best rate for
    EMNIST characters, with devices' rates of 10^−1.5, 10 devices per round, mini-batches of 20 and 1,500 rounds; it was
    tuned together with τ = 10^−2, so both need tuning.

    Args:
        server_rate: η > 0.
        tau: τ > 0, the deviation of the step from one that is equal for every weight; the paper's default.
    """

    work: WorkSettings = WorkSettings(epochs=1)
    server_rate: float = 0.1
    tau: float = 1e-3

    @property
    def server(self) -> Server:
        return Adagrad(self.server_rate, tau=self.tau)


@dataclass(frozen=True)
class FedAdam(FedAvg):
    r"""Federated averaging with Adam on the server, w ← w + η·m/(√v + τ).

    ::

        m ← 0, v ← τ²
        for each round: Δ as in FedAvg; m ← β1·m + (1 − β1)Δ; v ← β2·v + (1 − β2)Δ²; w ← w + η·m/(√v + τ)

    With beta1 = beta2 = 0, τ → ∞ and server_rate = τ this is FedAvg, up to rounding.

    Travels: the model, down and up. The cloud keeps m and v.

    Reddi et al., ICLR 2021, arXiv 2003.00295: no bias correction. Google's code gives 10^−2.5 as the best rate for
    EMNIST characters in FedAdagrad's setting; it was tuned together with τ = 10^−4, so both need tuning.

    Args:
        server_rate: η > 0; 10^−2.5.
        beta1: β1 in [0, 1), decay of m.
        beta2: β2 in [0, 1), decay of v.
        tau: τ > 0, the deviation of the step from one that is equal for every weight; the paper's default.
    """

    work: WorkSettings = WorkSettings(epochs=1)
    server_rate: float = 0.00316
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    @property
    def server(self) -> Server:
        return Adam(self.server_rate, self.beta1, self.beta2, self.tau)


@dataclass(frozen=True)
class FedYogi(FedAdam):
    r"""Federated averaging with Yogi on the server, v ← v − (1 − β2)Δ² sign(v − Δ²), w ← w + η·m/(√v + τ).

    ::

        m ← 0, v ← τ²
        for each round: Δ as in FedAvg; m ← β1·m + (1 − β1)Δ; v ← v − (1 − β2)Δ² sign(v − Δ²); w ← w + η·m/(√v + τ)

    With beta1 = 0, τ → ∞ and server_rate = 2τ this is FedAvg, up to rounding.

    Travels: the model, down and up. The cloud keeps m and v.

    Reddi et al., ICLR 2021, arXiv 2003.00295, with the same best rate as for FedAdam.

    Args:
        server_rate: η > 0; 10^−2.5.
        beta1: β1 in [0, 1), decay of m.
        tau: τ > 0; the paper's default.
        beta2: β2 in [0, 1); v changes by at most (1 − β2)Δ².
    """

    @property
    def server(self) -> Server:
        return Yogi(self.server_rate, self.beta1, self.beta2, self.tau)
