"""Methods whose devices keep a model, or a part of it, of their own: FedPer, FedBN, FedRep, Ditto and APFL."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedfloor.errors import require
from fedfloor.methods.contract import Needs, State, View
from fedfloor.methods.fedavg import FedAvg, beside
from fedfloor.parts.objective import Objective, Plain
from fedfloor.parts.objectives import to_spec
from fedfloor.parts.proximal import Interpolated, Prox
from fedfloor.parts.work import WorkSettings
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node, Sequence, Train, keeping


@dataclass(frozen=True)
class FedPer(FedAvg):
    r"""Federated averaging of a part of the model; the rest is each device's own, w_k = (u, v_k).

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: (u_k, v_k) ← E epochs of SGD on the data of k, starting from (u, v_k)
            u ← Σ_{k∈S} n_k u_k / Σ_{k∈S} n_k

    A device's figures are those of its own model; one that was never visited has the mean of the v_k, as has the model
    that is written, and test samples without an owner count with the mean over all devices' models.

    With own = "" this is FedAvg, with own = "all" training without federation, with own = "norms" FedBN, with
    own = "body" LG-FedAvg (Liang et al., arXiv 2001.01523).

    Travels: the shared part of the model, down and up.

    Arivazhagan et al., Federated learning with personalization layers, arXiv 1912.00818.

    Args:
        own: v: ``head``, ``body``, ``norms``, or a pattern of tensors' names, such as ``layers.2.*``.
    """

    own: str = "head"

    def __post_init__(self) -> None:
        require(isinstance(self.own, str), "methods.fedper.own", self.own, "the name of a part of the model")
        super().__post_init__()

    @property
    def needs(self) -> Needs:
        return Needs(remembers=bool(self.own), own=self.own)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        return walk.with_work(self._visits(view, rng), lambda work: replace(work, sends=keeping(self.own)))


@dataclass(frozen=True)
class FedBN(FedPer):
    r"""Federated averaging of all but the normalisation layers, which are each device's own: FedPer of the norms.

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: (u_k, b_k) ← E epochs of SGD on the data of k, starting from (u, b_k)
            u ← Σ_{k∈S} n_k u_k / Σ_{k∈S} n_k

    b_k are the scales and shifts of batch, group and layer norm and batch norm's statistics: sensors that are scaled or
    offset differently differ there. A device's figures are those of its own model; one that was never visited
    has the mean of the b_k, as has the model that is written.

    On a network without normalisation layers this is FedAvg.

    Travels: the model without its normalisation layers, down and up.

    Li, Jiang, Zhang, Kamp and Dou, ICLR 2021, arXiv 2102.07623; there E = 1 epoch and the rate is 0.01.

    Args:
        own: b, the ``norms``.
    """

    title = "FedBN"

    own: str = "norms"


@dataclass(frozen=True)
class FedRep(FedAvg):
    r"""A shared representation u under heads of the devices' own, min_u (1/K) Σ_k min_{v_k} F_k(u, v_k).

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: v_k ← H epochs of SGD on F_k(u, ·), starting from v_k
                                    u_k ← E epochs of SGD on F_k(·, v_k), starting from u
            u ← Σ_{k∈S} n_k u_k / Σ_{k∈S} n_k

    A device's figures are those of its own model; one that was never visited has the mean of the v_k, as has the
    model that is written.

    With own = "" and head_epochs = 0 this is FedAvg; with head_epochs = 0 alone the heads stay as they began.

    Travels: the body u, down and up.

    Collins, Hassani, Mokhtari and Shakkottai, ICML 2021, arXiv 2102.07078. The authors' code (lgcollins/FedRep) trains
    heads for 10 epochs and the body for 1 or 5.

    Args:
        own: v: ``head``, or a pattern of tensors' names that lie side by side.
        head_epochs: H ≥ 0.
        work: the work of a visit, for the body.
    """

    work: WorkSettings = WorkSettings(epochs=1)
    own: str = "head"
    head_epochs: int = 10

    def __post_init__(self) -> None:
        require(self.own != "all", "methods.fedrep.own", self.own, "a part of the model that leaves a body to share")
        require(self.head_epochs >= 0, "methods.fedrep.head_epochs", self.head_epochs, "a whole number of at least 0")
        if not self.own:
            require(not self.head_epochs, "methods.fedrep.head_epochs", self.head_epochs, "0 where own = ''")
        super().__post_init__()

    @property
    def needs(self) -> Needs:
        return Needs(remembers=bool(self.own), own=self.own)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        plan, sends = self._visits(view, rng), keeping(self.own)
        if not self.own:
            return plan
        visits: list[Node] = []
        for visit in plan.children:
            if isinstance(visit, Train):
                body = replace(visit, work=replace(visit.work, trains=sends, sends=sends))
                work = replace(visit.work, trains=self.own, sends=sends, steps=None, epochs=self.head_epochs)
                visits.append(Sequence((replace(visit, work=work), body)) if self.head_epochs else body)
        return replace(plan, children=tuple(visits))


@dataclass(frozen=True)
class Ditto(FedAvg):
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
        work: the work of a visit, for each of the two models.
    """

    lam: float = 0.1

    def __post_init__(self) -> None:
        require(0 <= self.lam < math.inf, "methods.ditto.lam", self.lam, "a number of at least 0")
        super().__post_init__()

    @property
    def needs(self) -> Needs:
        return Needs(remembers=True, own="all")

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        goal: Objective = Prox(self.lam) if self.lam else Plain()
        name, settings = to_spec(goal)
        return beside(self._visits(view, rng), lambda work: replace(work, objective=name, settings=settings))


@dataclass(frozen=True)
class APFL(FedAvg):
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
        work: the work of a visit, for each of the two models; its optimiser is SGD.
    """

    alpha: float = 0.5

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, "methods.apfl.alpha", self.alpha, "at least 0 and at most 1")
        super().__post_init__()

    @property
    def needs(self) -> Needs:
        return Needs(remembers=True, own="all") if self.alpha else Needs()

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        plan = self._visits(view, rng)
        if not self.alpha:
            return plan
        name, settings = to_spec(Interpolated(self.alpha))
        rate = self.alpha**2  # a step of v by ηα∇F moves the mixture by α times that
        return beside(plan, lambda work: replace(work, objective=name, settings=settings, rate=rate * work.rate))
