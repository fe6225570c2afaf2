"""K-Center: devices with distant first local models train together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.methods.contract import Answers, Method, Needs, State, View
from fedfloor.methods.fedavg import profile, profiling
from fedfloor.parts.work import WorkSettings
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node, Parallel, Train, device
from fedfloor.plan.outcome import Outcome


@dataclass(frozen=True)
class KCenter(Method):
    r"""Greedy K-center selection on profiles p_k, the weights after one local training: argmax_i min_c ‖p_i − p_c‖₂.

    ::

        before the first round: every device trains once from w and sends p_k
        for each round:
            S ← a device of the pool at random; then k − 1 times the device farthest from its nearest in S
            S leaves the pool; with fewer than k devices left, the pool is filled again
            for k in S in parallel: w_k ← E epochs of SGD on the data of k, starting from w
            w ← Σ_{k∈S} n_k w_k / Σ_{k∈S} n_k

    With as many centers as devices it is FedAvg.

    Travels: the model; before the first round the model to every device and, after a local training, back.

    The baseline of FAVOR, Wang et al., IEEE INFOCOM 2020, with which FLDG is compared; its pool is empty after N/k
    rounds. Profiles are computed only once.

    Args:
        centers: k, the number of devices trained in a round.
        work: the work of a visit, and of a profile.
    """

    title = "K-Center"

    centers: int = 10
    work: WorkSettings = WorkSettings(epochs=5, batch_size=50, lr=0.01)

    def __post_init__(self) -> None:
        require(self.centers >= 1, "methods.kcenter.centers", self.centers, "a whole number of at least 1")

    @property
    def needs(self) -> Needs:
        return Needs(questions=(profile(self, self.work),))

    def setup(self, view: View) -> Node:
        return profiling(self, self.work, view)

    def init(self, view: View, answers: Answers, rng: np.random.Generator) -> State:
        """Return the first state, with the distances between profiles instead of the profiles."""
        import torch

        from fedfloor.solvers.clustering import squared_distances

        known = sorted(k for k in answers if "profile" in answers[k])
        if not 1 <= self.centers <= len(known):
            raise SettingError(
                f"methods.kcenter.centers = {self.centers} of {len(known)} devices: must be at most the number "
                "of devices."
            )
        apart = squared_distances(np.stack([answers[k]["profile"].numpy() for k in known]))
        return State(view.start, {"known": known, "left": known}, {"apart": torch.from_numpy(apart)})

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        from fedfloor.solvers.clustering import k_center

        known = state.notes["known"]
        pool_rows = np.flatnonzero(np.isin(known, self._pool(state, view)))
        among = k_center(
            state.tensors["apart"].numpy(), min(self.centers, pool_rows.size), rng, among=pool_rows, known=True
        )
        todo = self.work.at(view.round, view.rounds, self.objective)
        return Parallel(tuple(Train(device(known[i]), todo) for i in among))

    def noted(self, state: State, plan: Node) -> State:
        trained = walk.visits(plan)
        left = state.notes["left"] if len(state.notes["left"]) >= self.centers else state.notes["known"]
        return replace(state, notes={**state.notes, "left": [k for k in left if k not in trained]})

    def absorb(self, state: State, outcome: Outcome) -> State:
        return self.noted(replace(state, packet=outcome.packet), outcome.resolved)

    def _pool(self, state: State, view: View) -> list[int]:
        """Return the devices of the pool that may take part; if they are too few, all devices that may."""
        may = set(view.devices)
        for pool in (state.notes["left"], state.notes["known"]):
            left = [k for k in pool if k in may]
            if len(left) >= self.centers:
                return left
        if not left:
            raise SettingError("method 'kcenter': no device with a profile may take part in this round.")
        return left
