"""Astraea: fixed groups with similar class shares; within a group the model travels from device to device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedfloor.base.errors import SettingError, require, unknown
from fedfloor.methods.contract import Answers, Method, Needs, State, View
from fedfloor.parts.selection.grouping import chosen_groups, formed, present
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node, Parallel, Probe, Repeat, Sequence, Train, device
from fedfloor.solvers.grouping.solve import SOLVERS


@dataclass(frozen=True)
class Astraea(Method):
    r"""Self-balancing mediators, w ← Σ_{m∈S} (n_m/Σ_{m∈S} n_m) w_m with n_m samples in group m.

    ::

        M = ⌊K/L⌋ groups of L devices each ← the class counts of all devices, once; their order within a group at random
        for each round:
            S ← ⌊κM⌋ groups drawn at random
            for m in S in parallel: w_m ← w
                E_m times: for k in m, one after the other: w_m ← E epochs of SGD on the data of k, starting from w_m
            w ← Σ_{m∈S} n_m w_m / Σ_{m∈S} n_m

    With devices = 1 and share = 1 this is FedAvg. With one group of all devices and mediator_epochs = R it is FedSR
    with one ring of R laps, whose order is drawn once and not in every round. With grouping = "random" it is the static
    "Benchmark" of HFedMS (arXiv 2211.03300, Section IV), with grouping = "icg" its ablation "ICG".

    Travels: the model, from device to device; once the class counts of every local set, F numbers per device, if the
    grouping needs them. The remaining K − M·L devices never train; with fewer than L devices there is one group of
    all. Devices that may not take part in a round are left out of their group.

    Duan, Liu, Chen, Tan, Ren, Qiao, Liang, ICCD 2019, arXiv 1907.01132; IEEE TPDS 32(1), 2021. The paper's mediator
    takes the remaining device that brings its class shares nearest to equal shares (Kullback–Leibler): the solver
    ``astraea``. The paper's augmentation of rare classes is not implemented, nor is the training of the remaining
    devices in a smaller group, as in HFedMS. L = 10 is this implementation's choice.

    Args:
        devices: L, the number of devices per group.
        mediator_epochs: E_m, the number of passes of the model through a group in a round.
        share: κ in (0, 1], the share of groups drawn in a round.
        grouping: the name of the algorithm that forms the groups; ``random`` needs no counts.
        weights: the weights of the groups: ``by_samples`` (the paper) or ``equal``.
    """

    devices: int = 10
    mediator_epochs: int = 1
    share: float = 1.0
    grouping: str = "astraea"
    weights: Literal["by_samples", "equal"] = "by_samples"
    work: WorkSettings = WorkSettings(epochs=1)

    def __post_init__(self) -> None:
        whole = "a whole number of at least 1"
        require(self.devices >= 1, "methods.astraea.devices", self.devices, whole)
        require(self.mediator_epochs >= 1, "methods.astraea.mediator_epochs", self.mediator_epochs, whole)
        require(0 < self.share <= 1, "methods.astraea.share", self.share, "above 0 and at most 1")
        for name, known in {"grouping": SOLVERS, "weights": ("by_samples", "equal")}.items():
            if getattr(self, name) not in known:
                raise unknown(f"methods.astraea.{name}", getattr(self, name), known)

    @property
    def needs(self) -> Needs:
        """The class counts, unless groups are drawn at random; chains cross factories."""
        by_classes = self.grouping != "random" and self.devices > 1
        questions = (Probe((), "classes"),) if by_classes else ()
        return Needs(labels=self.grouping != "random", crosses=True, questions=questions)

    def _blind(self, everyone: int) -> bool:
        return self.grouping == "random" or self.devices == 1 or self.devices >= everyone

    def setup(self, view: View) -> Node | None:
        return None if self._blind(len(view.devices)) else Probe(tuple(view.devices), "classes")

    def init(self, view: View, answers: Answers, rng: np.random.Generator) -> State:
        """Form the groups; a device without an answer counts as empty, and without any answers groups are random."""
        everyone = view.devices
        size = min(self.devices, len(everyone))
        reported = [answers[k]["classes"] if k in answers else () for k in everyone]
        counts = np.zeros((len(everyone), max(1, *map(len, reported))))
        for row, row_counts in zip(counts, reported, strict=True):
            row[: len(row_counts)] = np.maximum(row_counts, 0)  # noise can make counts negative
        known = counts.any() and not self._blind(len(everyone))
        solver, known_counts = (self.grouping, counts) if known else ("random", None)
        return State(view.start, {"groups": formed(solver, everyone, known_counts, len(everyone) // size, rng, size)})

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        work = self.work.at(view.round, view.rounds)
        groups = state.notes["groups"]
        left = present(groups, view.devices)
        if not left:
            raise SettingError("method 'astraea': no group has a device that may take part.")
        many = min(chosen_groups(self.share, len(groups)), len(left))
        drawn = [left[m] for m in rng.choice(len(left), many, replace=False)]
        chains = (Sequence(tuple(Train(device(k), work) for k in group)) for group in sorted(drawn, key=min))
        return Parallel(tuple(Repeat(self.mediator_epochs, chain, tick=False) for chain in chains), mix=self.weights)
