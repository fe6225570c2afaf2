"""FLDG: devices grouped once by the features of their data; one of each group trains in a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfloor.errors import require
from fedfloor.methods import grouped
from fedfloor.methods.cohorts import apart, joined, parted
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.methods.star import visiting
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node
from fedfloor.plan.outcome import Outcome


@dataclass(frozen=True)
class FLDG(Method):
    r"""Device grouping by mean features, w ← w + Σ_i |D_i| Δ_i / Σ_i |D_i| over one device i of each of K groups.

    ::

        before the first round: every device k tells v_k = (1/n_k) Σ_i f(x_i); K groups ← K-Means of all v_k
        for each round:
            S ← one device of each group, drawn at random
            for k in S in parallel: w_k ← E epochs of SGD on the data of k, starting from w
            w ← Σ_{k∈S} n_k w_k / Σ_{k∈S} n_k

    With as many groups as devices it is FedAvg. With cohorts = true every group is a cohort: all its devices train in
    every round, and w_g, which the group begins with the first model and is evaluated with, is the mean of theirs
    alone; with one group that is FedAvg, too.

    Travels: the D features once, then the model. The paper's f is MobileNetV2 (``mobilenet``, D = 1280), trained on
    ImageNet, which needs weights (``weights``); the default needs none. Devices see which group they are in by being
    drawn, and the server what their data look like on average: FLDG-L tells less.

    Liu et al., "Towards Fast and Accurate Federated Learning with non-IID Data for Cloud-Based IoT Applications". K =
    10 of 100 devices, E = 5, batches of 50, η = 0.01.

    Args:
        groups: K, and devices trained in a round.
        extractor: f, by name: ``hog``, ``random-conv``, ``raw``, ``penultimate``, ``mobilenet``, ``onnx``.
        weights: file or folder of the extractor's weights, for those that have them.
        cohorts: whether every group has a model of its own.
        refresh: ask and group anew where class shares have moved so far since, ½ Σ_c |p_c − q_c| on average, which
            costs a census in every round; left out, the groups stay (the paper).
        work: what a visit does.
    """

    groups: int = 10
    extractor: str = "random-conv"
    weights: str | None = None
    cohorts: bool = False
    refresh: float | None = None
    work: WorkSettings = WorkSettings(epochs=5, batch_size=50, lr=0.01)

    def __post_init__(self) -> None:
        grouped.check("fldg", self.groups, self.refresh)
        allowed = "left out with cohorts, which keep their devices"
        require(not self.cohorts or self.refresh is None, "methods.fldg.refresh", self.refresh, allowed)

    @property
    def needs(self) -> Needs:
        """The census, if groups may be formed anew; whether they have models of their own."""
        return Needs(census=self.refresh is not None, cohorts=self.cohorts)

    def setup(self, view: View) -> Node:
        return grouped.question(view, "features", {"extractor": self.extractor, "weights": self.weights})

    def init(self, view: View, answers: Mapping[int, Mapping[str, Any]], rng: np.random.Generator) -> State:
        state = grouped.begun(view, answers, "features", self.groups, int(rng.integers(2**32)))
        return parted(state, state.notes["groups"]) if self.cohorts else state

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        if self.cohorts:
            here = [[k for k in group if k in view.devices] for group in state.notes["groups"]]
            return apart({j: visiting(self, self.work, view, group) for j, group in enumerate(here) if group})
        again = grouped.question(view, "features", {"extractor": self.extractor, "weights": self.weights})
        return grouped.planned(self, self.work, state, view, rng, (again, self.refresh))

    def absorb(self, state: State, outcome: Outcome) -> State:
        after = grouped.absorbed(state, outcome, "features", self.groups)
        return joined(after, {}, len(state.notes["groups"])) if self.cohorts else after
