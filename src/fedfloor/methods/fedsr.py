"""FedSR, which averages models that travel along rings of devices, and ring-optimization, with a single ring."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfloor.base.errors import require
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.parts.selection.selection import fraction
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node, Parallel, Repeat, Sequence, Train, device


@dataclass(frozen=True)
class FedSR(Method):
    r"""Semi-decentralised rings, w ← Σ_m (|D_m|/|D|) w_m.

    ::

        for each round:
            every factory m orders its devices in a ring at random
            for m in parallel: w_m ← w
                for lap = 1 … R: for k in the ring: w_m ← E epochs of SGD on the data of k, starting from w_m
            w ← Σ_m |D_m| w_m / |D|

    With rings of one device (``ring_size = 1``) and one lap this is FedAvg. With one ring of all devices and one lap it
    is ring-optimization.

    Travels: the model, down to each ring, from device to device, and up from the ring's last device.

    Algorithm 1 of FedSR, arXiv 2403.14718. Its loop "r = 0 … R" is read as R laps, which agrees with its traffic (Table
    III). The order of a ring is drawn in each round, and the last device of a lap passes the model to the first. In the
    paper devices change factories in each round, as with ``park.mobility = { every = 1, share = 1.0 }``.

    Args:
        laps: R, the number of passes of the model through a ring in a global round.
        ring_size: the number of devices per ring, drawn from the whole park; None: one ring per factory. The last ring
            may be smaller.
        fraction: the share of devices drawn in a round, in (0, 1].
        work: the work of a visit; E = 1 epoch.
    """

    laps: int = 5
    ring_size: int | None = None
    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=1)

    def __post_init__(self) -> None:
        require(self.laps >= 1, "methods.fedsr.laps", self.laps, "a whole number of at least 1")
        require(0 < self.fraction <= 1, "methods.fedsr.fraction", self.fraction, "above 0 and at most 1")
        size = self.ring_size
        require(size is None or size >= 1, "methods.fedsr.ring_size", size, "a whole number of at least 1, or left out")

    @property
    def needs(self) -> Needs:
        """Whether rings cross factories: those of a given size do."""
        return Needs(crosses=self.ring_size is not None)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        work = self.work.at(view.round, view.rounds)
        drawn = fraction(view.devices, self.fraction, rng)
        branches = []
        for ring in sorted(self._rings(drawn, view, rng), key=min):
            chain = Sequence(tuple(Train(device(k), work) for k in ring))
            branches.append(Repeat(self.laps, chain, tick=False))  # no tick: streams do not advance within a round
        return Parallel(tuple(branches))

    def _rings(self, drawn: list[int], view: View, rng: np.random.Generator) -> list[list[int]]:
        if self.ring_size is not None:
            order = rng.permutation(drawn).tolist()
            return [order[i : i + self.ring_size] for i in range(0, len(order), self.ring_size)]
        devices = np.asarray(drawn)
        factories = view.factory_of[devices]
        return [rng.permutation(devices[factories == m]).tolist() for m in np.unique(factories)]


@dataclass(frozen=True)
class Ring(Method):
    """A single ring of all participants, w ← SGD(w, D_k) for each k in turn.

    ::

        for each round:
            order the drawn devices in one ring at random
            for lap = 1 … R: for k in the ring: w ← E epochs of SGD on the data of k, starting from w

    On a park of one device this is centralised SGD.

    Travels: the model, from device to device.

    FedSR, arXiv 2403.14718, section III ("ring-optimization"), with one lap of E = 1 per round in the paper (its Table
    III counts 20 models per round for 20 devices).

    Args:
        laps: R, the number of passes through the ring in a global round.
        fraction: the share of devices drawn in a round, in (0, 1].
        work: the work of a visit; E = 1 epoch.
    """

    title = "ring-optimization"

    laps: int = 1
    fraction: float = 1.0
    work: WorkSettings = WorkSettings(epochs=1)

    def __post_init__(self) -> None:
        require(self.laps >= 1, "methods.ring.laps", self.laps, "a whole number of at least 1")
        require(0 < self.fraction <= 1, "methods.ring.fraction", self.fraction, "above 0 and at most 1")

    @property
    def needs(self) -> Needs:
        return Needs(crosses=True)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        work = self.work.at(view.round, view.rounds)
        order = rng.permutation(fraction(view.devices, self.fraction, rng)).tolist()
        return Repeat(self.laps, Sequence(tuple(Train(device(k), work) for k in order)), tick=False)
