"""Methods with personal models or parts of models, which devices keep: FedPer, FedBN, FedRep, Ditto and APFL."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedfloor.base.errors import require
from fedfloor.methods.contract import Needs, State, View
from fedfloor.methods.fedavg import FedAvg, beside
from fedfloor.parts.objectives.objective import Objective, Plain
from fedfloor.parts.objectives.proximal import Interpolated, Prox
from fedfloor.parts.objectives.registry import to_spec
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

    A device is evaluated with its own model. Devices that were never visited, and the saved model, have the mean of the
    v_k; metrics on test samples without an owner are the mean over all devices' models.

    With own = "" this is FedAvg, with own = "all" training without federation, with own = "norms" FedBN, with
    own = "body" LG-FedAvg (Liang et al., arXiv 2001.01523).

    Travels: the shared part of the model, down and up.

    Arivazhagan et al., Federated learning with personalization layers, arXiv 1912.00818.

    Args:
        own: the part v: ``head``, ``body``, ``norms``, or a pattern of tensor names, such as ``layers.2.*``.
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
    r"""Federated averaging of all but the normalisation layers, which are each device's own: FedPer with own = "norms".

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: (u_k, b_k) ← E epochs of SGD on the data of k, starting from (u, b_k)
            u ← Σ_{k∈S} n_k u_k / Σ_{k∈S} n_k

    b_k are the scales and shifts of batch, group and layer norm, and batch norm's statistics, in which sensors with
    different scales or offsets differ. A device is evaluated with its own model. Devices that were never visited, and
    the saved model, have the mean of the b_k.

    On a network without normalisation layers this is FedAvg.

    Travels: the model without its normalisation layers, down and up.

    Li, Jiang, Zhang, Kamp and Dou, ICLR 2021, arXiv 2102.07623, with E = 1 epoch and the rate 0.01.

    Args:
        own: the part b, the ``norms``.
    """

    title = "FedBN"

    own: str = "norms"


@dataclass(frozen=True)
class FedRep(FedAvg):
    r"""A shared representation u with the devices' own heads v_k, min_u (1/K) Σ_k min_{v_k} F_k(u, v_k).

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: v_k ← H epochs of SGD on F_k(u, ·), starting from v_k
                                    u_k ← E epochs of SGD on F_k(·, v_k), starting from u
            u ← Σ_{k∈S} n_k u_k / Σ_{k∈S} n_k

    A device is evaluated with its own model. Devices that were never visited, and the saved model, have the mean of the
    v_k.

    With own = "" and head_epochs = 0 this is FedAvg; with head_epochs = 0 alone the heads keep their initial values.

    Travels: the body u, down and up.

    Collins, Hassani, Mokhtari and Shakkottai, ICML 2021, arXiv 2102.07078. The authors' code (lgcollins/FedRep) trains
    heads for 10 epochs and the body for 1 or 5.

    Args:
        own: the part v: ``head``, or a pattern of the names of adjacent tensors.
        head_epochs: H ≥ 0, the epochs of the head.
        work: the work of a visit, for the body.
    """

    work: WorkSettings = WorkSettings(epochs=1)
    own: str = "head"
    head_epochs: int = 10

    def __post_init__(self) -> None:
        require(self.own != "all", "methods.fedrep.own", self.own, "a part of the model that leaves a shared body")
        require(self.head_epochs >= 0, "methods.fedrep.head_epochs", self.head_epochs, "a whole number of at least 0")
        if not self.own:
            require(not self.head_epochs, "methods.fedrep.head_epochs", self.head_epochs, "0 where own = ''")
        super().__post_init__()

    @property
    def needs(self) -> Needs:
        return Needs(remembers=bool(self.own), own=self.own, epochs=max(1, self.head_epochs))

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        plan = self._visits(view, rng)
        sends = keeping(self.own)
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

    v_k begins as the first w that k receives. A device is evaluated with v_k, or with w if it was never visited; the
    saved model is w.

    The global models w are FedAvg's for every λ; with lam = 0 the v_k are those of local training.

    Travels: the model w, down and up. A visit trains two models.

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

    v_k begins as the first w that k receives. A device is evaluated with m_k at the end of its last visit, or with w if
    it was never visited; the saved model is w.

    The global models w are FedAvg's for every α. With alpha = 0 this is FedAvg, and no v_k is trained; with alpha = 1
    the m_k are those of local training.

    Travels: the model w, down and up. A visit trains two models, unless alpha = 0.

    Deng, Kamani and Mahdavi, arXiv 2003.13461, with a constant α. In the paper the steps of w_k and v_k alternate; here
    the mixture contains the arrived w, which is equivalent for visits of one step.

    Args:
        alpha: α in [0, 1], the share of a device's own model; the authors try 0.25, 0.5 and 0.75.
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
