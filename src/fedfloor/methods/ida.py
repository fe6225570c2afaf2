"""IDA: models far from the mean count less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedfloor.errors import require
from fedfloor.methods.contract import Method, State, View
from fedfloor.methods.star import check_share, star
from fedfloor.parts.mix import InverseDistance
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node

FACTORS = ("none", "accuracy", "samples")


@dataclass(frozen=True)
class Ida(Method):
    r"""Inverse distance aggregation, w ← Σ_k α_k w_k / Σ_k α_k, α_k = c_k/‖w̄ − w_k‖₁.

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random
            for k in S in parallel: w_k ← E epochs of SGD on the data of k, starting from w
            w̄ ← mean_{k∈S} w_k; α_k ← c_k/‖w̄ − w_k‖₁
            w ← Σ_{k∈S} α_k w_k / Σ_{k∈S} α_k

    With equal distances and factors = "none" this is FedAvg of equal sizes, with factors = "samples" it is FedAvg.

    Travels: the model, down and up; with factors = "accuracy" the training accuracy, up.

    Yeganeh et al., DCL at MICCAI 2020, arXiv 2008.07665; what was chosen where its formulas could not be looked up:
    see :func:`fedfloor.parts.means.inverse_distance`.

    Args:
        factors: c_k. "none" is IDA, c_k = 1; "accuracy" is IDA + INTRAC, c_k = 1/max(1/classes, training accuracy);
            "samples" is IDA + FedAvg, c_k = n_k.
        fraction: C, share of the devices drawn in a round, in (0, 1].
        work: what a visit does.
    """

    title = "IDA"

    factors: Literal["none", "accuracy", "samples"] = "none"
    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=5)

    def __post_init__(self) -> None:
        check_share("ida", self.fraction)
        require(self.factors in FACTORS, "methods.ida.factors", self.factors, f"one of {', '.join(FACTORS)}")

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:  # noqa: ARG002
        """Visit the drawn devices in parallel; they meet by inverse distance."""
        return star(self, self.work, view, self.fraction, rng, InverseDistance(self.factors))
