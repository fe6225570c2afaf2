"""Gradient-boosted trees, grown from devices' sums."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedfloor.errors import SettingError, require
from fedfloor.methods.contract import Answers, Method, Needs, State, View
from fedfloor.methods.fedavg import visiting
from fedfloor.parts.histograms import FARTHEST, Histograms
from fedfloor.parts.objective import Objective
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import WHOLE, Node
from fedfloor.plan.outcome import Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    Floats = NDArray[np.float64]

log = logging.getLogger(__name__)
STEP = WorkSettings(epochs=1, batch_size=WHOLE, lr=1.0)
REFINING = 4  # rounds that refine the bins until all hold about the same number of samples


@dataclass(frozen=True)
class Boosting(Method):
    r"""Gradient-boosted trees from sums of devices: one level of one tree per round.

    ::

        for each round, devices k in parallel:
            g_i, h_i ← first and second derivative of the loss of sample i with respect to each output of the model f
            G_k, H_k ← sums of g_i and h_i, by node of the level, feature, and bin of the feature's value
            G, H ← Σ_k G_k, Σ_k H_k
            in rounds 1 to 4:
                base ← base − G/(H + λ);  the edges of bins ← quantiles weighted by h
            in later rounds:
                split each node of the level at the feature and the edge with the largest
                Σ_nodes G_left²/(H_left + λ) + G_right²/(H_right + λ)
                after level D:  leaf ← −η·G_leaf/(H_leaf + λ)

    A round is FedAvg's with all samples of a device as one mini-batch, on a loss that is linear in the sums. T trees of
    depth D take 4 + T·D rounds; ``[model]`` and ``[work]`` are not used. Trees are symmetric: all nodes of a level have
    the same feature and edge. Up to rounding the trees do not depend on the partition of samples among devices.

    Travels: the model, down and up: 2^D·F·B·K sums for F features and K outputs, and T·(2D + 2^D·K) numbers of trees.

    Chen and Guestrin, KDD 2016, arXiv 1603.02754 (gain, leaves, bins weighted by h); Prokhorenkova et al., NeurIPS
    2018, arXiv 1706.09516 (symmetric trees).

    Args:
        trees: T, the greatest number of trees.
        depth: D, the number of levels of a tree.
        bins: B, the number of bins of each feature.
        rate: η, the learning rate.
        ridge: λ, in units of h, where all devices answer.
    """

    title = "boosted trees"
    short_batches: ClassVar[bool] = True

    trees: int = 100
    depth: int = 4
    bins: int = 32
    rate: float = 0.2
    ridge: float = 1.0

    def __post_init__(self) -> None:
        _ = self.objective
        require(0 < self.rate <= 1, "methods.boosting.rate", self.rate, "above 0 and at most 1")
        require(self.ridge > 0, "methods.boosting.ridge", self.ridge, "a number above 0")

    @property
    def objective(self) -> Objective:
        return Histograms(self.trees, self.depth, self.bins)

    @property
    def needs(self) -> Needs:
        return Needs(scopes=frozenset({"sums"}), objective=True, pooled=True)

    def init(self, view: View, answers: Answers, rng: np.random.Generator) -> State:
        """Return the first state, with the places of the network's tensors, and the number of samples."""
        most = REFINING + self.trees * self.depth
        if view.rounds > most:
            raise SettingError(
                f"rounds = {view.rounds}: {self.trees} trees of depth {self.depth} are grown after {REFINING} + "
                f"{self.trees}·{self.depth} = {most} rounds. Set rounds, or methods.boosting.trees."
            )
        return State(view.start, {"layout": dict(view.layout), "samples": int(view.sizes.sum()), "last": view.rounds})

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        return visiting(self, STEP, view, list(view.devices))

    def absorb(self, state: State, outcome: Outcome) -> State:
        import torch

        if outcome.packet["w"].equal(state.packet["w"]):  # every visit was lost
            return State(outcome.packet, state.notes, state.tensors)
        layout = state.notes["layout"]
        old = state.packet["w"].double().cpu().numpy().copy()
        model = {name: old[first:last] for name, (first, last) in layout.items()}
        model["sums"][:] = -outcome.packet["w"][slice(*layout["sums"])].double().cpu().numpy()
        halves = model["sums"].reshape(-1, 2, len(model["base"]))  # noise and codecs break h ≥ |g|/3
        halves[:, 1] = np.maximum(halves[:, 1], np.abs(halves[:, 0]) / FARTHEST)
        done = int(state.notes.get("rounds", 0))
        if not done and state.notes["last"] < REFINING + self.depth:
            log.warning("rounds = %d: a tree is complete after %d.", state.notes["last"], REFINING + self.depth)
        ridge = self.ridge / state.notes["samples"]
        grown = self._refine(model, ridge) if done < REFINING else self._grow(model, done - REFINING, ridge)
        model["sums"][:] = 0.0
        flat: Tensor = torch.from_numpy(old).to(outcome.packet["w"])
        notes = {**state.notes, "rounds": done + 1, "info": grown}
        return State({**outcome.packet, "w": flat}, notes, state.tensors)

    def _refine(self, model: dict[str, Floats], ridge: float) -> dict[str, object]:
        """Take a Newton step of the base, and move the edges to quantiles of H by interpolation; return the notes."""
        outputs, features = len(model["base"]), len(model["edges"]) // (self.bins - 1)
        sums = model["sums"].reshape(-1, features, self.bins, 2 * outputs)[0]
        total = sums[0].sum(0)
        model["base"] -= total[:outputs] / (total[outputs:] + ridge)
        below = sums[:, :, outputs:].sum(2).cumsum(1)
        edges = model["edges"].reshape(features, self.bins - 1)
        for own, mass in zip(edges, below, strict=True):
            own[:] = np.interp(np.arange(1, self.bins) / self.bins * mass[-1], mass[:-1], own)
        return {"trees": 0}

    def _grow(self, model: dict[str, Floats], level: int, ridge: float) -> dict[str, object]:
        """Add a level to the forest, in place, and its leaves after a tree's last level; return the notes."""
        outputs, features = len(model["base"]), len(model["edges"]) // (self.bins - 1)
        tree, depth = divmod(level, self.depth)
        sums = model["sums"].reshape(-1, features, self.bins, 2 * outputs)[: 2**depth]
        left = sums.cumsum(2)[:, :, :-1]
        right = sums.sum(2, keepdims=True) - left
        gains = [side[..., :outputs] ** 2 / (side[..., outputs:] + ridge) for side in (left, right)]
        gain = np.add(*gains).sum((0, 3))
        feature, edge = np.unravel_index(int(gain.argmax()), gain.shape)
        at = tree * self.depth + depth
        model["feature"][at] = feature
        model["threshold"][at] = model["edges"].reshape(features, -1)[feature, edge]
        model["progress"][:] = level + 1
        if depth == self.depth - 1:
            ends = np.concatenate([left[:, feature, edge], right[:, feature, edge]])  # node n's right side: n + 2^depth
            leaves = model["leaf"].reshape(self.trees, 2**self.depth, outputs)
            leaves[tree] = -self.rate * ends[:, :outputs] / (ends[:, outputs:] + ridge)
        return {"trees": tree + (depth == self.depth - 1)}
