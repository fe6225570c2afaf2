"""FL+HC: devices whose updates point the same way are a cohort, found once by hierarchical clustering."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedfloor.errors import require
from fedfloor.methods.cohorts import apart, joined, parted
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.methods.star import check_share, star, visiting
from fedfloor.parts.grouping import merged
from fedfloor.parts.selection import fraction
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node, Probe, Sequence
from fedfloor.plan.outcome import Outcome


@dataclass(frozen=True)
class FLHC(Method):
    r"""Federated learning with hierarchical clustering of the updates Δ_k = w_k − w of one local training.

    ::

        for each of the first n rounds: FedAvg
        in round n + 1: every device tells Δ_k, trained from w; FedAvg once more, and then
            cohorts ← clusters merged while their mean distance 1 − cos(Δ_k, Δ_l) is at most d; each begins with w
        for each round after: every cohort by itself does a round of FedAvg

    A device that was not there in round n + 1 is evaluated with the cohort's model of the least loss on its training
    samples, and does not train. With distance = 2, the largest that there is, all are one cohort: this is then FedAvg,
    the updates told apart. Sattler et al. (CFL, arXiv 1910.01991) part cohorts in two by the same similarity, again
    and again; here it is done once, so that the updates travel once.

    Travels: the model, down and up; in round n + 1 twice.

    Briggs, Fan, Andras, Federated learning with hierarchical clustering of local updates to improve training on
    non-IID data, IJCNN 2020, arXiv 2004.11791. Distances depend on how long is trained; on pictures of four kinds they
    were 0.5 within and 0.9 between (``benchmarks/cohorts.py``, another seed than those that are shown).

    Args:
        after: n, rounds of FedAvg before the clustering.
        distance: d, in [0, 2].
        cohorts: how many; as many as ``distance`` leaves, where it is left out.
        fraction: C, share of the devices, or of a cohort's, drawn in a round, in (0, 1].
        work: what a visit does, and what makes an update.
    """

    title = "FL+HC"

    after: int = 3
    distance: float = 0.7
    cohorts: int | None = None
    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=5)

    def __post_init__(self) -> None:
        check_share("flhc", self.fraction)
        require(self.after >= 0, "methods.flhc.after", self.after, "a whole number of at least 0")
        require(0 <= self.distance <= 2, "methods.flhc.distance", self.distance, "from 0 to 2")
        allowed = "a whole number of at least 1, or left out"
        require(self.cohorts is None or self.cohorts >= 1, "methods.flhc.cohorts", self.cohorts, allowed)

    @property
    def needs(self) -> Needs:
        return Needs(cohorts=True)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        if view.round <= self.after:
            return star(self, self.work, view, self.fraction, rng)
        if not state.cohorts:
            todo = replace(self.work.at(view.round, view.rounds, self.objective), moments="visit")
            settings = {name: one for name, one in todo.told().items() if name != "settings" and one is not None}
            visits = star(self, self.work, view, self.fraction, rng)
            return Sequence((Probe(tuple(view.devices), "profile", settings=settings), visits))
        members: dict[int, list[int]] = {}
        for k in view.devices:
            members.setdefault(state.cohorts.get(k, -1), []).append(k)
        drawn = {j: fraction(members[j], self.fraction, rng) for j in sorted(members) if j >= 0}
        return apart({j: visiting(self, self.work, view, chosen) for j, chosen in drawn.items()})

    def absorb(self, state: State, outcome: Outcome) -> State:
        """Take the models in, and the cohorts once the updates are known."""
        after = replace(state, packet=outcome.packet)
        told = {k: said["profile"] for k, said in outcome.answers.items() if "profile" in said}
        if not told:
            return joined(after, {}, 1 + max(after.cohorts.values())) if after.cohorts else after
        updates = {k: (model - state.packet["w"]).double().cpu().numpy() for k, model in told.items()}
        return parted(after, merged(updates, self.distance, self.cohorts))
