"""Cohorts: several global models, each trained by a part of the devices and evaluated on them: IFCA, FL+HC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedfloor.errors import require
from fedfloor.methods.contract import Answers, Needs, State, View
from fedfloor.methods.fedavg import FedAvg, profiling, visiting
from fedfloor.parts.grouping import merged
from fedfloor.parts.selection import fraction
from fedfloor.plan import nodes
from fedfloor.plan.nodes import KEEP, LEAST_LOSS, Node, Parallel, Probe, Select, model_name
from fedfloor.plan.outcome import Outcome

if TYPE_CHECKING:
    from torch import Tensor


def apart(cohorts: Mapping[int, Parallel | Select]) -> Node:
    """Return the plan in which every cohort, by its model's number, trains and aggregates by itself."""
    nodes = tuple(replace(node, model=model_name(number)) for number, node in cohorts.items())
    return nodes[0] if len(nodes) == 1 else Parallel(nodes, mix=KEEP)


def parted(state: State, groups: Sequence[Sequence[int]]) -> State:
    """Return the state in which every group has a copy of the same model."""
    copies = {model_name(number): state.packet["w"].clone() for number in range(1, len(groups)) if "w" in state.packet}
    cohort_of = {k: number for number, group in enumerate(groups) for k in group}
    return joined(replace(state, packet={**state.packet, **copies}), cohort_of, len(groups))


def joined(state: State, cohort_of: Mapping[int, int], many: int, packet: Mapping[str, Tensor] | None = None) -> State:
    """Return the state in which devices belong to these cohorts, and the rest to their former ones.

    A round reports the sizes of all cohorts as ``cohort_sizes``, and after a change their members as
    ``cohorts``.

    ``packet``: the models; those of before, where it is left out.
    """
    now = dict(sorted({**state.cohorts, **cohort_of}.items()))
    members = [[k for k, number in now.items() if number == cohort] for cohort in range(many)]
    info = {key: value for key, value in state.notes.get("info", {}).items() if key not in ("cohorts", "cohort_sizes")}
    info |= {"cohort_sizes": list(map(len, members))} | ({"cohorts": members} if now != state.cohorts else {})
    return replace(state, packet=packet or state.packet, notes={**state.notes, "cohorts": now, "info": info})


@dataclass(frozen=True)
class IFCA(FedAvg):
    r"""Iterative federated clustering, w_j ← Σ_{k: j_k = j} n_k w_k / Σ_{k: j_k = j} n_k, j_k = argmin_j F_k(w_j).

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random; all models w_1 … w_J go to each of them
            for k in S in parallel: j_k ← the model of the least mean loss over all the training samples of k
            for k in S in parallel: w_k ← E epochs of SGD on the data of k, starting from w_{j_k}
            for each j: w_j ← the mean by samples of its devices' models; a model that no device chose stays

    The first models differ: w_1 is the network as it is begun, the others have each of its tensors' numbers in another
    order, which is another draw from the same distribution. A device is evaluated with the model that it chose last;
    one that was never drawn with the model of the least loss on its training samples, as it would choose.

    With cohorts = 1 this is FedAvg.

    Travels: all J models down, one up, and J losses. Model averaging, as in the paper's experiments.

    Ghosh, Chung, Yin, Ramchandran, An efficient framework for clustered federated learning, NeurIPS 2020, arXiv
    2006.04088.

    Args:
        cohorts: J, the number of models.
    """

    cohorts: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.cohorts >= 1, "methods.ifca.cohorts", self.cohorts, "a whole number of at least 1")

    @property
    def needs(self) -> Needs:
        return Needs(cohorts=self.cohorts > 1)

    def init(self, view: View, answers: Answers, rng: np.random.Generator) -> State:
        packet = dict(view.start)
        for number in range(1, self.cohorts if "w" in packet else 1):
            model = packet["w"].clone()
            for first, last in view.layout.values():
                model[first:last] = packet["w"][first:last][rng.permutation(last - first)]
            packet[model_name(number)] = model
        return State(packet)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        chosen = fraction(view.devices, self.fraction, rng)
        if self.cohorts == 1:
            return visiting(self, self.work, view, chosen)
        many, todo = len(chosen), self.work.at(view.round, view.rounds, self.objective)
        train = {j: Select(LEAST_LOSS, tuple(chosen), many, todo) for j in range(self.cohorts)}
        return nodes.Sequence((Probe(tuple(chosen), "losses", settings={"models": self.cohorts}), apart(train)))

    def absorb(self, state: State, outcome: Outcome) -> State:
        if self.cohorts == 1:
            return State(outcome.packet, state.notes, state.tensors)
        losses_of = {k: answer["losses"] for k, answer in outcome.answers.items()}
        cohort_of = {k: losses.index(min(losses)) for k, losses in losses_of.items()}
        return joined(state, cohort_of, self.cohorts, outcome.packet)


@dataclass(frozen=True)
class FLHC(FedAvg):
    r"""Federated learning with hierarchical clustering of the updates Δ_k = w_k − w of one local training.

    ::

        for each of the first n rounds: FedAvg
        in round n + 1: every device sends Δ_k, trained from w; FedAvg once more, and then
            cohorts ← clusters merged while their mean distance 1 − cos(Δ_k, Δ_l) is at most d; each begins with w
        for each round after: every cohort by itself does a round of FedAvg

    A device that was not there in round n + 1 is evaluated with the cohort's model of the least loss on its training
    samples, and does not train. With distance = 2, the largest possible, all are one cohort: this is then FedAvg,
    but for the updates sent. Sattler et al. (CFL, arXiv 1910.01991) part cohorts in two by the same similarity, again
    and again; here it is done once, so that the updates travel once.

    Travels: the model, down and up; in round n + 1 twice.

    Briggs, Fan, Andras, Federated learning with hierarchical clustering of local updates to improve training on
    non-IID data, IJCNN 2020, arXiv 2004.11791. Distances depend on how long is trained; on pictures of four kinds they
    were 0.5 within and 0.9 between (``benchmarks/cohorts.py``, another seed than those that are shown).

    Args:
        after: n, rounds of FedAvg before the clustering.
        distance: d, in [0, 2].
        cohorts: their number; as many as ``distance`` leaves where it is left out.
        fraction: C, share of the devices, or of a cohort's, drawn in a round, in (0, 1].
        work: the work of a visit, and of an update.
    """

    title = "FL+HC"

    after: int = 3
    distance: float = 0.7
    cohorts: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.after >= 0, "methods.flhc.after", self.after, "a whole number of at least 0")
        require(0 <= self.distance <= 2, "methods.flhc.distance", self.distance, "from 0 to 2")
        allowed = "a whole number of at least 1, or left out"
        require(self.cohorts is None or self.cohorts >= 1, "methods.flhc.cohorts", self.cohorts, allowed)

    @property
    def needs(self) -> Needs:
        return Needs(cohorts=True)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        if view.round <= self.after:
            return self._visits(view, rng)
        if not state.cohorts:
            return nodes.Sequence((profiling(self, self.work, view), self._visits(view, rng)))
        members: dict[int, list[int]] = {}
        for k in view.devices:
            members.setdefault(state.cohorts.get(k, -1), []).append(k)
        drawn = {j: fraction(members[j], self.fraction, rng) for j in sorted(members) if j >= 0}
        return apart({j: visiting(self, self.work, view, chosen) for j, chosen in drawn.items()})

    def absorb(self, state: State, outcome: Outcome) -> State:
        """Return the state with the round's model, and with the cohorts once the devices' updates are known."""
        after = replace(state, packet=outcome.packet)
        models = {k: answer["profile"] for k, answer in outcome.answers.items() if "profile" in answer}
        if not models:
            return joined(after, {}, 1 + max(after.cohorts.values())) if after.cohorts else after
        updates = {k: (model - state.packet["w"]).double().cpu().numpy() for k, model in models.items()}
        return parted(after, merged(updates, self.distance, self.cohorts))
