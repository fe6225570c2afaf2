"""FLDG-L: FLDG by a few hashes of the mean features instead of the features themselves."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfloor.errors import require
from fedfloor.methods import grouped
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node, Probe
from fedfloor.plan.outcome import Outcome
from fedfloor.solvers.clustering import fewest_functions

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FLDGL(Method):
    r"""Device grouping by locality-sensitive hashes, F_i(v_k) = ⌊(a_i·v_k + b_i)/r⌋, i = 1 … h.

    ::

        before the first round: every device k tells h integers F_1(v_k) … F_h(v_k) of its mean features v_k
        K groups ← K-Means of these; then as FLDG

    a_i ~ N(0, I), b_i ~ U[0, r], by the experiment's seed the same on all devices: near vectors have equal hashes more
    often than far ones. Devices with the same hashes share a group. With as many groups as devices it is FedAvg.

    Travels: h integers once, then the model. What they give away, ``fedfloor reproduce fldg-privacy`` measures.

    Liu et al., "Towards Fast and Accurate Federated Learning with non-IID Data for Cloud-Based IoT Applications". h =
    5, K = 10 of 100 devices, E = 5, batches of 50, η = 0.01; r = 3 for MobileNetV2's features, which are larger than
    those of the default extractor: r should be less than devices are apart. The paper's bound h ≥ ⌈log_r K⌉ takes r
    for the number of values that a hash can have; fewer hashes than that are warned of.

    Args:
        groups: K, and devices trained in a round.
        hashes: h.
        width: r, in the unit of the features.
        extractor: of the features; see FLDG.
        weights: file or folder of the extractor's weights, for those that have them.
        refresh: ask and group anew where class shares have moved so far since; see FLDG.
        work: what a visit does.
    """

    groups: int = 10
    hashes: int = 5
    width: float = 0.5
    extractor: str = "random-conv"
    weights: str | None = None
    refresh: float | None = None
    work: WorkSettings = WorkSettings(epochs=5, batch_size=50, lr=0.01)

    def __post_init__(self) -> None:
        grouped.check("fldgl", self.groups, self.refresh)
        require(self.hashes >= 1, "methods.fldgl.hashes", self.hashes, "a whole number of at least 1")
        require(self.width > 0, "methods.fldgl.width", self.width, "above 0")

    @property
    def needs(self) -> Needs:
        return Needs(census=self.refresh is not None)

    def setup(self, view: View) -> Node:
        if self.width > 1 and self.hashes < (bound := fewest_functions(self.groups, self.width)):
            log.warning(
                "methods.fldgl.hashes = %d is below ⌈log_r K⌉ = %d for %d groups and width %g: devices that are unlike "
                "may get the same hashes.", self.hashes, bound, self.groups, self.width,
            )  # fmt: skip
        return self._question(view)

    def init(self, view: View, answers: Mapping[int, Mapping[str, Any]], rng: np.random.Generator) -> State:
        return grouped.begun(view, answers, "hash", self.groups, int(rng.integers(2**32)))

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        return grouped.planned(self, self.work, state, view, rng, (self._question(view), self.refresh))

    def absorb(self, state: State, outcome: Outcome) -> State:
        return grouped.absorbed(state, outcome, "hash", self.groups)

    def _question(self, view: View) -> Probe:
        told = {"extractor": self.extractor, "weights": self.weights, "hashes": self.hashes, "width": self.width}
        return grouped.question(view, "hash", told)
