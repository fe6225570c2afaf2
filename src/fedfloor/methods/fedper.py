"""FedPer: a shared body, and a head of every device's own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedfloor.errors import require
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.methods.star import check_share, star
from fedfloor.parts.work import WorkSettings
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node


@dataclass(frozen=True)
class FedPer(Method):
    r"""Federated averaging of a part of the model; the rest is each device's own, w_k = (u, v_k).

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: (u_k, v_k) ← E epochs of SGD on the data of k, starting from (u, v_k)
            u ← Σ_{k∈S} n_k u_k / Σ_{k∈S} n_k

    A device's figures are those of its own model; one that was never visited has the first model's part v, and test
    samples of nobody count with the mean over all devices' models. The model that is written has the mean of the v_k.

    With own = "" this is FedAvg, with own = "all" training without federation, with own = "norms" FedBN (Li et al.,
    ICLR 2021, arXiv 2102.07623), with own = "body" LG-FedAvg (Liang et al., arXiv 2001.01523).

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
        """Devices keep their own part, and are evaluated with it."""
        return Needs(remembers=bool(self.own), own=self.own)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:  # noqa: ARG002
        """Visit the drawn devices in parallel."""
        plan = star(self, self.work, view, self.fraction, rng)
        return walk.with_work(plan, lambda work: replace(work, own=self.own))
