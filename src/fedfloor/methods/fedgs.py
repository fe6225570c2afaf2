"""FedGS: super nodes, selected in every iteration so that their class shares approach those of all devices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedfloor.base.errors import SettingError, require, unknown
from fedfloor.methods.contract import Answers, Method, Needs, State, View
from fedfloor.park.privacy import shares
from fedfloor.parts.selection.selection import choose
from fedfloor.parts.work import WorkSettings
from fedfloor.plan import schedule
from fedfloor.plan.nodes import Node, Parallel, Probe, Repeat, Select, Sequence, edge
from fedfloor.plan.outcome import Outcome
from fedfloor.solvers.selection.solve import SOLVERS


@dataclass(frozen=True)
class FedGS(Method):
    r"""Group client selection: each iteration min_S ‖Σ_{k∈S} a_k − n|S|P‖₂ with the class counts a_k of k's next batch.

    ::

        P ← norm(Σ_k n_k P_k), queried once
        for each round:
            for each factory m in parallel: w_m ← w
                T times: S ← L_rnd devices at random and the L − L_rnd that complement them best, by their census
                         for k in S in parallel: w_k ← one step of SGD on the next mini-batch of k, starting from w_m
                         w_m ← Σ_{k∈S} n_k w_k / Σ_{k∈S} n_k
            w ← mean of w_m

    With T = 1, all devices and equal factories it is a centralised step on the union of the mini-batches. With
    solver = "random" only its synchronisation remains; with T = 1 and work.epochs it is FedAvg with averages at edges
    and a selection by classes.

    Travels: the model; in each iteration the census of every device, F counts up, unless ``census_free``; the counts of
    the whole local set once. The method is meant for a stream (``data.stream``) whose window is a mini-batch. Otherwise
    the census covers all samples of a device, and a mini-batch is assumed to have the same class shares.

    Li et al., IEEE IoT-J 9(18), 2022, arXiv 2202.01512. M = 10 factories, T = 50, L = 10, L_rnd = 2, n = 32, η = 0.01.
    Its GBP-CS are the solvers ``gbpcs`` (pseudo-inverse), ``gbpcs-zero`` and ``gbpcs-random``; ``exact``, the default
    here, proves the optimum. A factory with fewer than L devices trains all of them, as in the reference code, and a
    factory without devices none; classes without samples are left out.

    Args:
        iterations: T, the number of synchronisations at an edge per round.
        devices: L, the number of devices selected per factory and iteration.
        random: L_rnd, the number of these that are drawn uniformly.
        solver: the name of the algorithm that selects the remaining devices; ``random`` needs no census.
        choose: the time of the selection: every ``iteration``, or the beginning of a ``round`` (an addition, to
            separate the effects).
        weights: the weights of the factories: ``equal`` (the paper) or ``by_samples``.
        census_free: whether the bytes of the census are not counted, as in the paper.
        balance: whether classes that were trained less than their share get more weight (an addition). With C the
            expected number of samples of each class trained so far, and s the samples of a round, P becomes
            norm(((Σ C + s)·P − C)₊) in each factory, over the classes that it holds.
    """

    iterations: int = 50
    devices: int = 10
    random: int = 2
    solver: str = "exact"
    choose: Literal["iteration", "round"] = "iteration"
    weights: Literal["equal", "by_samples"] = "equal"
    census_free: bool = False
    balance: bool = False
    work: WorkSettings = WorkSettings(steps=1, batch_size=32, lr=0.01)

    def __post_init__(self) -> None:
        require(self.iterations >= 1, "methods.fedgs.iterations", self.iterations, "a whole number of at least 1")
        require(self.devices >= 1, "methods.fedgs.devices", self.devices, "a whole number of at least 1")
        most = f"from 0 to devices = {self.devices}"
        require(0 <= self.random <= self.devices, "methods.fedgs.random", self.random, most)
        if self.solver not in SOLVERS:
            raise unknown("methods.fedgs.solver", self.solver, SOLVERS)

    @property
    def blind(self) -> bool:
        """Whether the method needs no census."""
        return self.solver == "random" or self.random == self.devices

    @property
    def needs(self) -> Needs:
        """The census, which the plan itself reads if devices are selected once per round."""
        questions = () if self.blind else (Probe((), "classes"), Probe((), "census"))
        return Needs(census=self.choose == "round" and not self.blind, labels=not self.blind, questions=questions)

    def setup(self, view: View) -> Node | None:
        few = max(map(len, view.factories)) <= self.devices  # all devices are visited, and factories keep their sizes
        return None if self.blind or few else Probe(tuple(view.devices), "classes")

    def init(self, view: View, answers: Answers, rng: np.random.Generator) -> State:
        counts = [answers[k]["classes"] for k in sorted(answers)]
        notes = {"share": shares(counts).tolist()} if counts else {}
        if not (counts and self.balance):
            return State(view.start, notes)
        import torch  # device agents start without it

        held = torch.zeros(len(view.holdings), len(counts[0]), dtype=torch.float64)
        held[sorted(answers)] = torch.as_tensor(np.array(counts), dtype=torch.float64)
        return State(view.start, notes, {"held": held, "trained": torch.zeros_like(held[0])})

    def absorb(self, state: State, outcome: Outcome) -> State:
        after = super().absorb(state, outcome)
        held = state.tensors.get("held")
        if held is None:
            return after
        steps = held.new_zeros(len(held))
        for receipt in outcome.receipts:
            steps[receipt.device] += receipt.steps
        trained = state.tensors["trained"] + steps @ (held / held.sum(1, keepdim=True).clamp(min=1))
        return replace(after, tensors={**after.tensors, "trained": trained})

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        work = self.work.at(view.round, view.rounds, self.objective)
        share = tuple(state.notes.get("share", ()))
        branches = []
        for m, members in enumerate(view.factories):
            if members:
                wanted = self._wanted(state, members, share, len(view.factories))
                node = self._super_node(tuple(members), Select("uniform", (), self.devices, work, edge(m)), wanted)
                branches.append(Repeat(self.iterations, self._settled(node, view, rng)))
        if not branches:
            raise SettingError("method 'fedgs': no factory has a device that may take part.")
        rounds = Parallel(tuple(branches), mix=self.weights)
        priced = self.needs.census and not self.census_free
        return Sequence((Probe(tuple(view.devices), "census"), rounds)) if priced else rounds

    def _wanted(
        self, state: State, members: Iterable[int], share: tuple[float, ...], factories: int
    ) -> tuple[float, ...]:
        """Return the target class shares of a factory's super nodes."""
        held = state.tensors.get("held")
        if held is None:
            return share
        trained = state.tensors["trained"].numpy()
        steps = factories * self.iterations * self.devices * (self.work.steps or 1)
        wanted = np.maximum((trained.sum() + steps) * np.array(share) - trained, 0) * (
            held[list(members)].sum(0).numpy() > 0
        )
        return tuple((wanted / wanted.sum()).tolist()) if wanted.sum() > 0 else share

    def _super_node(self, members: tuple[int, ...], node: Select, share: tuple[float, ...]) -> Select:
        """Return the ``Select`` node of a factory's members, which takes all of them if there are at most L."""
        if len(members) <= self.devices:
            return replace(node, policy="everyone", candidates=members, how_many=len(members))
        if self.blind:
            return replace(node, candidates=members)
        free = self.census_free
        return replace(node, policy=self.solver, candidates=members, random=self.random, share=share, census_free=free)

    def _settled(self, node: Select, view: View, rng: np.random.Generator) -> Node:
        if self.choose == "iteration":
            return node
        candidates = list(node.candidates)
        census = np.zeros((0, len(node.share))) if view.census is None else view.census[candidates]
        return schedule.visits(node, choose(node, census, view.holdings[candidates], rng))
