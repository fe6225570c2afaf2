"""RaFed: joint selection of devices, channels and powers for the shortest training time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node, Parallel, Probe, Radio, Sequence, Train, device
from fedfloor.solvers.allocation.problem import Allocation, AllocationProblem, alone_s
from fedfloor.solvers.allocation.solve import SOLVERS, solve


@dataclass(frozen=True)
class RaFed(Method):
    r"""Resource allocation for latency, min n(|S|)·max_{k∈S} t_k·(1 + weight_divergence·‖P_S − P‖₂).

    ::

        t_k = y_k D_k/f_k + D_up/(r_k q_k), n(|S|) = μ(λ + 1/|S|)
        for each round:
            S, channels and powers of S ← the solver's allocation
            for k in S in parallel: w_k ← E epochs of SGD on the data of k, starting from w; sent as allocated
            w ← Σ_{k∈S} n_k w_k / Σ_{k∈S} n_k

    With weight_divergence = 0 it is RaFed, which minimises latency alone. Above 0, which is an addition, a set with
    class shares P_S far from those of all devices, P, costs more, as in FedGS's Eq. 6; all devices then report their
    census in each round.

    Travels: the model, down and up, and with weight_divergence > 0 a census up.

    Gao et al., "Resource Allocation for Latency-aware Federated Learning in Industrial Internet-of-Things". Its
    Algorithm 1 is ``solver = "rafed"``, read as in :func:`fedfloor.solvers.allocation.solve.rafed`. The allocation is
    computed in each round, and differs only where the devices' resources, or their classes, have changed.

    Args:
        weight_divergence: the weight of the class shares, at least 0.
        solver: ``search``: a local search of this implementation; ``rafed``: Algorithm 1 from a random start;
            ``exact``: a proven optimum, for few devices.
    """

    weight_divergence: float = 0.0
    solver: Literal["search", "rafed", "exact"] = "search"
    work: WorkSettings = WorkSettings(epochs=1)

    def __post_init__(self) -> None:
        weight = self.weight_divergence
        require(0 <= weight < math.inf, "methods.rafed.weight_divergence", weight, "finite and at least 0")
        require(self.solver in SOLVERS, "methods.rafed.solver", self.solver, f"one of {', '.join(SOLVERS)}")

    @property
    def needs(self) -> Needs:
        """The network's places and speeds of devices; the census, if class shares have a weight."""
        return Needs(network=True, census=self.weight_divergence > 0)

    def init(self, view: View, answers: object, rng: np.random.Generator) -> State:
        """Return the first state, with the seed of a random start, which is the same in every round."""
        return State(view.start, {"start": int(rng.integers(2**31))})

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        levels = view.resources.powers_dbm if view.resources is not None else ()
        chosen = self._allocation(self.problem(view), int(state.notes["start"]))
        work = self.work.at(view.round, view.rounds, self.objective)
        radio = {int(k): Radio(int(chosen.channel[k]), float(levels[chosen.level[k]])) for k in chosen.active}
        visits = Parallel(tuple(Train(device(k), work, own) for k, own in radio.items()))
        return Sequence((Probe(tuple(view.devices), "census"), visits)) if self.needs.census else visits

    def problem(self, view: View) -> AllocationProblem:
        """Return the allocation problem of a round: the invited devices, and the work of a visit."""
        known = None if view.resources is None else view.resources.problem
        if known is None:
            raise SettingError(
                "method 'rafed' allocates radio channels and powers: it needs a [network] whose uplink has "
                'sharing = "sinr", such as --set network.profile=rafed.'
            )
        invited = np.zeros(len(view.sizes), bool)
        invited[list(view.devices)] = True
        work = self.work.at(view.round, view.rounds)
        passes = np.array([work.passes(n) for n in view.holdings.tolist()])
        current = replace(known, compute_s=known.compute_s * passes, usable=known.allowed & invited[:, None])
        if not self.needs.census or view.census is None:
            return current
        counts = view.census.astype(np.float64)
        return replace(current, counts=counts, target=counts.sum(0), divergence_weight=self.weight_divergence)

    def _allocation(self, problem: AllocationProblem, seed: int) -> Allocation:
        """Return the solver's allocation; SettingError: none exists, or none is proven within the time limit."""
        if not math.isfinite(float(alone_s(problem).min())):
            raise SettingError(
                "method 'rafed': no device reaches the base station, not even alone on its channel. Allow more power "
                "(network.radio.powers_dbm), a smaller network.radio.threshold, or shorter distances."
            )
        chosen = solve(self.solver, problem, seed=seed)
        if self.solver == "exact" and chosen.status != "optimal":
            raise SettingError(
                f"methods.rafed.solver = 'exact': no proof within its time for {problem.devices} devices, so that "
                "another machine might choose otherwise. Use 'search', which is fast, or fewer devices."
            )
        return chosen.choice
