"""IFCA: several global models, and every device trains the one that fits its data best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfloor.errors import require
from fedfloor.methods.cohorts import apart, joined
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.methods.star import check_share, visiting
from fedfloor.parts.selection import fraction
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import LEAST_LOSS, Node, Probe, Select, Sequence, model_name
from fedfloor.plan.outcome import Outcome


@dataclass(frozen=True)
class IFCA(Method):
    r"""Iterative federated clustering, w_j ← Σ_{k: j_k = j} n_k w_k / Σ_{k: j_k = j} n_k, j_k = argmin_j F_k(w_j).

    ::

        for each round:
            S ← max(C·K, 1) devices drawn at random; all models w_1 … w_J go to each of them
            for k in S in parallel: j_k ← the model of the least mean loss over all the training samples of k
            for k in S in parallel: w_k ← E epochs of SGD on the data of k, starting from w_{j_k}
            for each j: w_j ← the mean by samples of its devices' models; a model that nobody chose stays

    The first models differ: w_1 is the network as it is begun, the others have each of its tensors' numbers in another
    order, which is another draw from the same distribution. A device is evaluated with the model that it chose last;
    one that was never drawn with the model of the least loss on its training samples, as it would choose.

    With cohorts = 1 this is FedAvg.

    Travels: all J models down, one up, and J losses. Model averaging, as in the paper's experiments.

    Ghosh, Chung, Yin, Ramchandran, An efficient framework for clustered federated learning, NeurIPS 2020, arXiv
    2006.04088.

    Args:
        cohorts: J, the number of models.
        fraction: C, share of the devices drawn in a round, in (0, 1].
        work: what a visit does.
    """

    cohorts: int = 2
    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=5)

    def __post_init__(self) -> None:
        check_share("ifca", self.fraction)
        require(self.cohorts >= 1, "methods.ifca.cohorts", self.cohorts, "a whole number of at least 1")

    @property
    def needs(self) -> Needs:
        return Needs(cohorts=self.cohorts > 1)

    def init(self, view: View, answers: Mapping[int, Mapping[str, Any]], rng: np.random.Generator) -> State:
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
        return Sequence((Probe(tuple(chosen), "losses", settings={"models": self.cohorts}), apart(train)))

    def absorb(self, state: State, outcome: Outcome) -> State:
        if self.cohorts == 1:
            return State(outcome.packet, state.notes, state.tensors)
        heard = {k: said["losses"] for k, said in outcome.answers.items()}
        of = {k: losses.index(min(losses)) for k, losses in heard.items()}
        return joined(state, of, self.cohorts, outcome.packet)
