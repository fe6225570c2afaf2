"""Cohorts: several global models, each trained by a part of the devices and evaluated on them: IFCA, FL+HC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedfloor.base.errors import require
from fedfloor.methods.contract import Answers, Needs, State, View
from fedfloor.methods.fedavg import FedAvg, profile, profiling, visiting
from fedfloor.parts.selection.grouping import merged
from fedfloor.parts.selection.selection import fraction
from fedfloor.plan import nodes
from fedfloor.plan.nodes import KEEP, LEAST_LOSS, Node, Parallel, Probe, Select, model_name
from fedfloor.plan.outcome import Outcome

if TYPE_CHECKING:
    from torch import Tensor


def apart(cohorts: Mapping[int, Parallel | Select]) -> Node:
    """Return the plan in which every cohort (model number → its plan) trains and aggregates separately."""
    nodes = tuple(replace(node, model=model_name(number)) for number, node in cohorts.items())
    return nodes[0] if len(nodes) == 1 else Parallel(nodes, mix=KEEP)


def parted(state: State, groups: Sequence[Sequence[int]]) -> State:
    """Return the state in which every group is a cohort with its own copy of the model."""
    copies = {model_name(number): state.packet["w"].clone() for number in range(1, len(groups)) if "w" in state.packet}
    cohort_of = {k: number for number, group in enumerate(groups) for k in group}
    return joined(replace(state, packet={**state.packet, **copies}), cohort_of, len(groups))


def joined(state: State, cohort_of: Mapping[int, int], many: int, packet: Mapping[str, Tensor] | None = None) -> State:
    """Return the state in which the devices of ``cohort_of`` belong to new cohorts, and others to their former cohorts.

    A round reports the sizes of all cohorts as ``cohort_sizes``, and after a change their members as
    ``cohorts``.

    ``many``: the number of cohorts. ``packet``: the models; the state's models by default.
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
            S ← max(C·K, 1) devices drawn at random; each receives all models w_1 … w_J
            for k in S in parallel: j_k ← the model with the least mean loss over all training samples of k
            for k in S in parallel: w_k ← E epochs of SGD on the data of k, starting from w_{j_k}
            for each j: w_j ← the mean by samples of its devices' models; a model that no device chose stays

    The initial models differ: w_1 is the initial network; the others have the numbers of each of its tensors in another
    order, which is another draw from the same distribution. A device is evaluated with its last choice; a device that
    was never drawn, with the model of the least loss on its training samples, which it would choose.

    With cohorts = 1 this is FedAvg.

    Travels: all J models down; one model and J losses up. Model averaging, as in the paper's experiments.

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
        several = self.cohorts > 1
        return Needs(cohorts=several, questions=(self._question,) if several else ())

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
        many = len(chosen)
        todo = self.work.at(view.round, view.rounds, self.objective)
        train = {j: Select(LEAST_LOSS, tuple(chosen), many, todo) for j in range(self.cohorts)}
        return nodes.Sequence((replace(self._question, devices=tuple(chosen)), apart(train)))

    @property
    def _question(self) -> Probe:
        return Probe((), "losses", settings={"models": self.cohorts})

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
        in round n + 1: every device sends Δ_k, trained from w; one more round of FedAvg, and then
            cohorts ← clusters merged while their mean distance 1 − cos(Δ_k, Δ_l) is at most d; each begins with w
        for each later round: every cohort separately does a round of FedAvg

    A device that was absent in round n + 1 is evaluated with the cohort's model of the least loss on its training
    samples, and does not train. With distance = 2, the largest possible, all devices are one cohort: this is then
    FedAvg except for the sent updates. Sattler et al. (CFL, arXiv 1910.01991) repeatedly split cohorts in two by the
    same similarity; here the devices are clustered once, so that updates travel once.

    Travels: the model, down and up; in round n + 1 twice.

    Briggs, Fan, Andras, Federated learning with hierarchical clustering of local updates to improve training on non-IID
    data, IJCNN 2020, arXiv 2004.11791. Distances depend on the length of training; on four kinds of pictures they were
    0.5 within and 0.9 between kinds (``benchmarks/cohorts.py``, with another seed than the published ones).

    Args:
        after: n, the number of rounds of FedAvg before the clustering.
        distance: d, in [0, 2].
        cohorts: the number of cohorts; by default it follows from ``distance``.
        fraction: C in (0, 1], the share of devices, or of a cohort's devices, drawn in a round.
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
        return Needs(cohorts=True, questions=(profile(self, self.work),))

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
        """Return the state with the round's models, and with new cohorts once the devices' updates are known."""
        after = replace(state, packet=outcome.packet)
        models = {k: answer["profile"] for k, answer in outcome.answers.items() if "profile" in answer}
        if not models:
            return joined(after, {}, 1 + max(after.cohorts.values())) if after.cohorts else after
        updates = {k: (model - state.packet["w"]).double().cpu().numpy() for k, model in models.items()}
        return parted(after, merged(updates, self.distance, self.cohorts))
