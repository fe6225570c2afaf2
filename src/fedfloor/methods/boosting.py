"""Gradient-boosted trees, grown from devices' sums."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from fedfloor.base.errors import SettingError, require, unknown
from fedfloor.methods.contract import Answers, Method, Needs, State, View
from fedfloor.parts.objectives.objective import Objective
from fedfloor.parts.trees.histograms import Histograms, used
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import WHOLE, Broadcast, Node, Parallel, Sequence, Train, device
from fedfloor.plan.outcome import Outcome

log = logging.getLogger(__name__)
STEP = WorkSettings(epochs=1, batch_size=WHOLE, lr=1.0)
LEVELS = 4  # statistics of a window that rise with all of its rows
EDGES = 255  # of each feature, of which every tree uses others


@dataclass(frozen=True)
class Boosting(Method):
    r"""Gradient-boosted trees from sums of devices: one level of one tree per round.

    ::

        for each round, devices k in parallel:
            g_i, h_i ← first and second derivative of the loss of sample i with respect to each output f of the model
            G_k, H_k ← sums of g_i and h_i, by node of the level, feature, and bin of the feature's value
            G, H ← Σ_k G_k, Σ_k H_k; those of a right child are the parent's without the left child's
            in rounds 1 to 4:
                base ← base − G/(H + λ);  255 edges of bins ← quantiles weighted by h
            in later rounds:
                split the nodes at the features and edges with the largest
                G_left²/(H_left + λ) + G_right²/(H_right + λ) − G²/(H + λ)
                after level D, or where no node can be split:  leaf ← −η·G_leaf/(H_leaf + λ)

    A tree uses about 24 of the 255 edges of a feature, and the next tree others, so that few bins travel and all edges
    are used. A round is FedAvg's with all samples of a device as one mini-batch, on a loss that is linear in the sums.
    T trees of depth D take at most ⌈1/C⌉·4 + T·D rounds; ``[model]`` and ``[work]`` are not used. Sums are exact, as g
    and h of a sample are rounded to multiples of a power of two, up or down by a hash of the sample: the trees do not
    depend on the partition of samples among devices by a bit, up to about a million samples.

    Travels: up to F·C·(B + 1)·2K sums of at most four nodes, up; the unfinished tree, down; and before each tree its
    edges, and of the forest the tensor with the last tree, down.

    Chen and Guestrin, KDD 2016, arXiv 1603.02754 (gain, leaves, missing values, bins weighted by h); Ke et al., NeurIPS
    2017 (sums of siblings by subtraction); Shi et al., NeurIPS 2022, arXiv 2207.09682 (rounded derivatives). The
    alternating edges, and rounding by a hash of the sample, are choices of this implementation.

    Args:
        trees: T, the greatest number of trees.
        depth: D, the greatest number of levels of a tree.
        bins: B, the number of bins of each feature in one tree; 0: 24, or more where features are fewer than eight.
        rate: η, the learning rate.
        ridge: λ, in units of the mean h of a sample.
        least: the least sum of h in a leaf, in units of the mean h of a sample.
        columns: C, the share of the features that a tree may use.
        rows: the share of the samples that a tree learns from.
        monotone: sensor → 1 if outputs must not fall as its value rises (for windows: the values of all rows), or −1 if
            they must not rise. The output of two classes is the log-odds of the second.
    """

    title = "boosted trees"
    short_batches: ClassVar[bool] = True

    trees: int = 100
    depth: int = 6
    bins: int = 0
    rate: float = 0.1
    ridge: float = 0.1
    least: float = 10.0
    columns: float = 1.0
    rows: float = 1.0
    monotone: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _ = self.objective
        require(0 < self.rate <= 1, "methods.boosting.rate", self.rate, "above 0 and at most 1")
        require(self.ridge > 0, "methods.boosting.ridge", self.ridge, "a number above 0")
        require(self.least >= 0, "methods.boosting.least", self.least, "a number of at least 0")
        for name, sign in self.monotone.items():
            require(sign in (1, -1), f"methods.boosting.monotone.{name}", sign, "1 or -1")

    @property
    def objective(self) -> Objective:
        return Histograms(self.trees, self.depth, self.bins, self.columns, self.rows)

    @property
    def needs(self) -> Needs:
        from fedfloor.models.forest import scope

        scopes = frozenset(scope(level) for level in range(-1, self.depth))
        draws = self.columns < 1 or self.rows < 1
        return Needs(scopes=scopes, objective=True, pooled=True, travel_down="zeros", draws=draws)

    def init(self, view: View, answers: Answers, rng: np.random.Generator) -> State:
        """Return the first state, with the places of the network's tensors, and the number of samples."""
        from fedfloor.models.forest import ROUNDS_OF_BINS
        from fedfloor.parts.trees import growing

        first, stop = view.layout.get("columns", (0, 1))
        features = used(self.columns, stop - first)
        refining = ROUNDS_OF_BINS * -(-(stop - first) // features)
        most = refining + self.trees * self.depth
        if view.rounds > most:
            raise SettingError(
                f"rounds = {view.rounds}: {self.trees} trees of depth {self.depth} are grown after {refining} + "
                f"{self.trees}·{self.depth} = {most} rounds. Set rounds, or methods.boosting.trees."
            )
        if view.rounds < refining + self.depth:
            log.warning("rounds = %d: a tree is complete after %d.", view.rounds, refining + self.depth)
        samples = int(view.sizes.sum())
        notes = {"layout": dict(view.layout), "samples": samples, "key": int(rng.integers(2**20))}
        notes |= {"features": features, "refining": refining, "drawn": self.rows * samples}
        if self.monotone:
            first_output, last_output = view.layout.get("base", (0, 1))
            notes["signs"] = self._signs(view.sensors, stop - first, last_output - first_output)
        if not view.start:  # a preview
            return State(view.start, notes)
        return State(*growing.begun(view.start, notes, stop - first, EDGES))

    def _signs(self, sensors: tuple[str, ...], features: int, outputs: int) -> list[int]:
        """Return the sign of each feature; windows have mean, minimum, maximum and last row before the others."""
        if outputs > 1:
            raise SettingError(
                f"methods.boosting.monotone: the model has {outputs} outputs, and no rise of one is a rise of another. "
                "Take two classes, or one number without quantiles; or leave it out."
            )
        for name in self.monotone:
            if name not in sensors:
                raise unknown("sensor in methods.boosting.monotone", name, sensors)
        each = [self.monotone.get(name, 0) for name in sensors]
        levels = min(features // len(each), LEVELS) * each
        return levels + [0] * (features - len(levels))

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        from fedfloor.models.forest import handed, scope

        level = int(state.notes.get("level", -1))
        if state.notes.get("tree", 0) == self.trees:  # all have been grown, some in fewer rounds
            return Sequence(())
        work = STEP.at(view.round, view.rounds, self.objective)
        work = replace(work, trains=scope(level), travel_down=self.needs.travel_down)
        visits = Parallel(tuple(Train(device(k), work) for k in view.devices), mix="by_samples")
        if level > 0:
            return visits
        done = "rounds" in state.notes
        return Sequence((Broadcast(tuple(view.devices), handed(state.notes.get("tree", 0)) if done else "all"), visits))

    def noted(self, state: State, plan: Node) -> State:
        """Return the state after a round of a forecast, in which all trees have the greatest depth."""
        done = int(state.notes.get("rounds", 0)) + 1
        tree, level = divmod(done - state.notes["refining"], self.depth)
        known = {"tree": tree, "level": level} if tree >= 0 else {}
        return replace(state, notes={**state.notes, **known, "rounds": done})

    def absorb(self, state: State, outcome: Outcome) -> State:
        from fedfloor.parts.trees.growing import ForestState

        answered = sum(receipt.samples for receipt in outcome.receipts if not receipt.lost)
        if not answered:
            return State(outcome.packet, state.notes, state.tensors)
        model = ForestState(state.packet["w"], state.notes["layout"], state.notes, state.tensors)
        sums = model.sums(outcome.packet["w"], answered, state.notes["samples"])
        model.measure(float(sums.total[: model.outputs].max()), float(sums.total[model.outputs :].max()))
        done = int(state.notes.get("rounds", 0))
        refines = done < state.notes["refining"]
        notes, tensors = model.refined(sums, self, EDGES, done) if refines else model.grow(sums, self)
        packet = {**outcome.packet, "w": model.flat(outcome.packet["w"])}
        return State(packet, {**state.notes, **notes, "rounds": done + 1}, tensors)
