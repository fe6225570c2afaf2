"""What the tests of streams share: a policy that reads the census, a method that chooses by it, and who saw what."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedfloor.base.outside import load
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.park.park import Park
from fedfloor.park.stream import Fifo, Recycle
from fedfloor.parts.objectives.objective import Objective, Visit
from fedfloor.parts.selection.selection import POLICIES
from fedfloor.plan.nodes import Node, Parallel, Probe, Repeat, Select, Work, edge
from floor import park

STEP = Work(steps=1, batch_size=4, rate=0.1)


def varied(candidates: Several[int], how_many: int, census: np.ndarray, rng: np.random.Generator) -> list[int]:
    """Choose those whose counts are most even, ties by lot: another census is soon another choice."""
    order = np.lexsort((rng.random(len(candidates)), census.max(axis=1) - census.min(axis=1)))
    return sorted(int(candidates[i]) for i in order[:how_many])


POLICIES["varied"] = varied  # there is no way yet to name a policy of one's own


@dataclass(frozen=True)
class Choosy(Method):
    """FedGS's plan with a simpler policy: three times each factory chooses two of its devices by the census."""

    @property
    def needs(self) -> Needs:
        return Needs(questions=(Probe((), "census"),))

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        work = replace(STEP, batch_size=8)
        branches = [
            Repeat(3, Select("varied", tuple(members), min(2, len(members)), work, edge(m)))
            for m, members in enumerate(view.factories)
        ]
        return Parallel(tuple(branches), mix="equal")


@dataclass(frozen=True)
class Seeing(Objective):
    """Cross-entropy, and a list of the labels that every mini-batch brought."""

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        SEEN.append(y.tolist())
        logits = module(x)
        return cross_entropy(logits, y), logits


SEEN: list[list[int]] = []
load("streaming:Seeing", "objective")


def streamed(stream: Fifo | Recycle, sizes: Several[int] = (6, 10, 4, 9, 5), **more: object) -> Park:
    """Return a small park whose data stream."""
    return replace(park(sizes, factory_of=[k % 2 for k in range(len(sizes))]), stream=stream, **more)  # type: ignore[arg-type]
