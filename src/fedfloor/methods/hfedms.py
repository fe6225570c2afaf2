"""HFedMS: a growing number of groups, a memory of features, and an extractor that travels rarely."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedfloor.base.errors import SettingError, require, unknown
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.parts.objectives.replay import Replay, Rule, calibrating
from fedfloor.parts.selection.grouping import Growth, Log, chosen_groups, formed, groups_of, is_full, period_of, present
from fedfloor.parts.work import WorkSettings
from fedfloor.plan import visit_order, walk
from fedfloor.plan.nodes import Broadcast, Node, Parallel, Probe, Sequence, Train, device
from fedfloor.plan.outcome import Outcome
from fedfloor.solvers.grouping.solve import SOLVERS

PAPERS = Log(alpha=2.0, beta=10)
WORDS = {
    "variant": ("D", "S"), "weights": ("equal", "by_samples"), "shuffle": ("period", "round"),
    "keep": ("semantics", "samples"),
}  # fmt: skip


@dataclass(frozen=True)
class HFedMS(Method):
    r"""Sequential-to-parallel training, w ← 1/(κM)·Σ_m w_m over chains with similar class shares, and kept semantics.

    ::

        for each period q = 1, 2, … of T rounds:
            form M = f(q) groups of ⌊K/M⌋ devices with similar class shares (ICG); draw κM of them
            first round:  for m in parallel: w_m ← w; for k in m in turn: w_m ← SGD on the window of k, from w_m
                          w ← mean of w_m, sent to all of their devices
            T − 1 rounds: the same with the classifier alone, on the features of the window and of k's memory (SCC)

    Variant "S" forms groups in every round, with T = 1: devices keep nothing, and the model is not sent out
    after the round. With as many groups as devices, all of them drawn, it is FedAvg if devices hold the same
    number of samples. "D" with T = 1 yields the model of "S" at another price; with memory = 0 there is no
    memory, and calibration rounds train the classifier on the stream.

    Travels: the census of a window, F counts, at the beginning of a period; the model, then the classifier.

    Zeng et al., IEEE TCC 2023, arXiv 2211.03300: K = 368, T = 5, κ = 0.3, Q = 200, f = log with α = 2 and β = 10,
    b = 5, η = 0.01, windows of 50 (``data.stream = augmented``). Rounds are counted from 1, so r = 1, T + 1, … begin a
    period. The reference code (slz-ai/hfedms) differs: shuffle = "round", rule = "random", calibration_epochs = 3,
    grouping = "icg-euclidean", a stream of ``window = 49, every = T``, objective = distilled with weight 0.1/62 (its
    teacher is the round's global model, here the arrived model, which is the same for the first device of a chain), and
    groups weighted by the sizes of local sets (here ``by_samples`` weights by the samples that devices hold, on streams
    a window each). Other groupings: ``exchange`` is an addition; ``random`` needs no census and replaces any grouping
    without answers.

    Args:
        variant: ``D`` for streaming data, ``S`` for static data.
        period: T, the number of rounds of a period.
        share: κ, the share of groups drawn in a period.
        growth: f, the growth of the number of groups.
        grouping: the name of the algorithm that forms the groups.
        weights: the weights of the groups: ``equal`` (the paper) or ``by_samples``.
        shuffle: the order within groups, once a ``period`` or in every ``round``.
        memory: Q, the number of features that a device keeps; 0: no memory.
        compensate: whether kept features are moved when the extractor has changed.
        rule: the kept features: the nearest to their class's mean over all ``candidates`` or the last ``window``, or
            ``random`` features.
        keep: ``semantics``, or all ``samples`` of calibration rounds, as an upper bound.
        calibration_epochs: the epochs of the T − 1 rounds; those of ``work`` by default.
        census_free: whether the bytes of the census are not counted.
    """

    variant: Literal["D", "S"] = "D"
    period: int = 5
    share: float = 0.3
    growth: Growth = PAPERS
    grouping: str = "icg"
    weights: Literal["equal", "by_samples"] = "equal"
    shuffle: Literal["period", "round"] = "period"
    memory: int = 200
    compensate: bool = True
    rule: Rule = "candidates"
    keep: Literal["semantics", "samples"] = "semantics"
    calibration_epochs: int | None = None
    census_free: bool = False
    work: WorkSettings = WorkSettings(epochs=1, batch_size=5, lr=0.01)

    def __post_init__(self) -> None:
        whole = isinstance(self.period, int)
        require(whole and self.period >= 1, "methods.hfedms.period", self.period, "a whole number of at least 1")
        require(0 < self.share <= 1, "methods.hfedms.share", self.share, "above 0 and at most 1")
        require(self.memory >= 0, "methods.hfedms.memory", self.memory, "a whole number of at least 0")
        epochs = self.calibration_epochs
        require(epochs is None or epochs >= 1, "methods.hfedms.calibration_epochs", epochs, "at least 1, or left out")
        for name, known in {"grouping": SOLVERS, **WORDS}.items():
            if getattr(self, name) not in known:
                raise unknown(f"methods.hfedms.{name}", getattr(self, name), known)
        Replay(max(1, self.memory), self.compensate, self.rule)
        chosen_groups(self.share, self.growth.groups(1))  # later groups are no fewer, unless devices are fewer

    @property
    def every(self) -> int:
        """T, the number of rounds from one full synchronisation to the next."""
        return 1 if self.variant == "S" else self.period

    @property
    def needs(self) -> Needs:
        """The census at the beginning of a period; devices keep features, or samples; chains cross factories."""
        by_census = self.grouping != "random"
        return Needs(
            census=by_census,
            census_in=lambda number: number > 0 and is_full(number, self.every),
            labels=by_census,
            crosses=True,
            scopes=frozenset({"all"} if self.every == 1 else {"all", "classifier"}),
            remembers=self.every > 1 and (self.memory > 0 or self.keep == "samples"),
            epochs=self.calibration_epochs or 1,
        )

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        full = is_full(view.round, self.every)
        groups = self._formed(view, rng) if full else self._kept(state, view, rng)
        work = self.work.at(view.round, view.rounds, self.objective)
        last = view.round % self.every == 0
        work = work if full else calibrating(work, self._replay(last=last), self.calibration_epochs)
        chains = Parallel(tuple(Sequence(tuple(Train(device(k), work) for k in g)) for g in groups), mix=self.weights)
        nodes: list[Node] = [chains] if groups else []
        if full and self.needs.census and not self.census_free:
            nodes.insert(0, Probe(tuple(view.devices), "census"))
        if full and self.variant == "D":
            nodes.append(Broadcast(tuple(sorted(k for g in groups for k in g)), "all"))
        return nodes[0] if len(nodes) == 1 else Sequence(tuple(nodes))

    def noted(self, state: State, plan: Node) -> State:
        groups = state.notes.get("groups", [])
        if walk.scopes(plan) == {"all"}:
            groups = [[visit.site.index for visit in visit_order.in_order(branch)] for branch in walk.branches(plan)]
        info = {"chosen_groups": len(groups), "group_size": max(map(len, groups), default=0)}
        return replace(state, notes={**state.notes, "groups": groups, "info": info})

    def absorb(self, state: State, outcome: Outcome) -> State:
        return self.noted(replace(state, packet=outcome.packet), outcome.resolved)

    def _formed(self, view: View, rng: np.random.Generator) -> list[list[int]]:
        if not view.devices:
            raise SettingError("method 'hfedms': no device may take part.")
        period = period_of(view.round, self.every)
        groups = groups_of(self.growth, period, len(view.devices))
        census = None if view.census is None else view.census[list(view.devices)]
        known = census is None or census.any()  # otherwise no answer, or no samples
        every = formed(self.grouping if known else "random", view.devices, census if known else None, groups, rng)
        chosen_groups(self.share, groups_of(self.growth, period, len(view.sizes)))  # a park too small is refused
        many = chosen_groups(self.share, groups) if self.share * groups >= 1 else 1  # few may take part in the round
        return [every[m] for m in sorted(rng.choice(groups, many, replace=False))]

    def _kept(self, state: State, view: View, rng: np.random.Generator) -> list[list[int]]:
        groups = present(state.notes["groups"], view.devices)
        return [rng.permutation(group).tolist() for group in groups] if self.shuffle == "round" else groups

    def _replay(self, *, last: bool) -> Replay | None:
        raw = self.keep == "samples"
        if not raw and self.memory == 0:
            return None
        return Replay(max(1, self.memory), self.compensate, self.rule, last and not raw, raw)
