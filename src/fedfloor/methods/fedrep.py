"""FedRep: every device's own head is trained first, then the shared body."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedfloor.errors import require
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.methods.star import check_share, star
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node, Sequence, Train, keeping


@dataclass(frozen=True)
class FedRep(Method):
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
        fraction: C, share of the devices drawn in a round, in (0, 1].
        work: what a visit does to the body.
    """

    own: str = "head"
    head_epochs: int = 10
    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=1)

    def __post_init__(self) -> None:
        check_share("fedrep", self.fraction)
        require(self.own != "all", "methods.fedrep.own", self.own, "a part of the model that leaves a body to share")
        require(self.head_epochs >= 0, "methods.fedrep.head_epochs", self.head_epochs, "a whole number of at least 0")
        if not self.own:
            require(not self.head_epochs, "methods.fedrep.head_epochs", self.head_epochs, "0 where own = '' is no head")

    @property
    def needs(self) -> Needs:
        return Needs(remembers=bool(self.own), own=self.own)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        plan = star(self, self.work, view, self.fraction, rng)
        return replace(plan, children=tuple(self._visit(one) for one in plan.children if isinstance(one, Train)))

    def _visit(self, visit: Train) -> Node:
        if not self.own:
            return visit
        sends = keeping(self.own)
        body = replace(visit, work=replace(visit.work, trains=sends, sends=sends))
        if not self.head_epochs:
            return body
        work = replace(visit.work, trains=self.own, sends=sends, steps=None, epochs=self.head_epochs)
        return Sequence((replace(visit, work=work), body))
