"""FedPer: a shared body, and a head of every device's own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedfloor.errors import require
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.methods.star import check_share, star
from fedfloor.parts.work import WorkSettings
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node, keeping


@dataclass(frozen=True)
class FedPer(Method):
    r"""Federated averaging of a part of the model; the rest is each device's own, w_k = (u, v_k).

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: (u_k, v_k) ← E epochs of SGD on the data of k, starting from (u, v_k)
            u ← Σ_{k∈S} n_k u_k / Σ_{k∈S} n_k

    A device's figures are those of its own model; one that was never visited has the mean of the v_k, as has the model
    that is written, and test samples of nobody count with the mean over all devices' models.

    With own = "" this is FedAvg, with own = "all" training without federation, with own = "norms" FedBN, with
    own = "body" LG-FedAvg (Liang et al., arXiv 2001.01523).

    Travels: the shared part of the model, down and up.

    Arivazhagan et al., Federated learning with personalization layers, arXiv 1912.00818.

    Args:
        own: v: ``head``, ``body``, ``norms``, or a pattern of tensors' names, such as ``layers.2.*``.
        fraction: C, share of the devices drawn in a round, in (0, 1].
        work: what a visit does.
    """

    own: str = "head"
    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=5)

    def __post_init__(self) -> None:
        check_share("fedper", self.fraction)
        require(isinstance(self.own, str), "methods.fedper.own", self.own, "the name of a part of the model")

    @property
    def needs(self) -> Needs:
        return Needs(remembers=bool(self.own), own=self.own)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        plan = star(self, self.work, view, self.fraction, rng)
        return walk.with_work(plan, lambda work: replace(work, sends=keeping(self.own)))


@dataclass(frozen=True)
class FedBN(FedPer):
    r"""Federated averaging of all but the normalisation layers, which are each device's own: FedPer of the norms.

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: (u_k, b_k) ← E epochs of SGD on the data of k, starting from (u, b_k)
            u ← Σ_{k∈S} n_k u_k / Σ_{k∈S} n_k

    b_k are the scales and shifts of batch, group and layer norm and batch norm's statistics: sensors that are scaled or
    offset differently are told apart there. A device's figures are those of its own model; one that was never visited
    has the mean of the b_k, as has the model that is written.

    On a network without normalisation layers this is FedAvg.

    Travels: the model without its normalisation layers, down and up.

    Li, Jiang, Zhang, Kamp and Dou, ICLR 2021, arXiv 2102.07623; there E = 1 epoch and the rate is 0.01.

    Args:
        own: b, the ``norms``.
        fraction: C, share of the devices drawn in a round, in (0, 1].
        work: what a visit does.
    """

    title = "FedBN"

    own: str = "norms"
