"""How fast a FedGS round is, beside a loop over the same number of mini-batches that nobody had to choose.

The *bare loop* takes the same steps on as many samples, drawn beforehand, with one thread, ``torch.optim.SGD`` and the
default memory format: factory after factory from the same model, whose mean it takes at the end. A *round* is all that
a run does but evaluation: planning, choosing by the census of every tick, steps, receipts, the plan's hash, the line of
the ledger. Both run in turn in the same processes; figures are medians of the ratios.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import nn

from benchmarks import made
from fedfloor import models
from fedfloor.base.chance import generator
from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.place import keep_memory
from fedfloor.engine.team import Alone, Shared, Team, shared_file
from fedfloor.methods.contract import State
from fedfloor.methods.fedgs import FedGS
from fedfloor.park.stream import Fifo
from fedfloor.parts.selection import selection
from fedfloor.plan import text, walk
from fedfloor.plan.nodes import Node, Repeat, Select
from fedfloor.runs import launch, ledger
from fedfloor.runs.round import Position, Setup, planned, step, training

Row = dict[str, object]
KINDS = ("bare", "one", "choosing", "bares", "team", "unfused")
Shape = tuple[int, int, int]
# a mini-batch of each of a super node's devices, as in FedGS
BATCH = 32
CHOSEN = 10
CLASSES = 62
# of a device, and how skewed: about FEMNIST's writers
SAMPLES = 124
SKEW = 0.3


@dataclass(frozen=True)
class Case:
    """A workload: a round of ``iterations`` synchronisations in each of ``factories`` factories."""

    name: str
    model: str
    iterations: int
    factories: int
    devices: int
    shape: Shape = (1, 28, 28)


CASES = (
    Case("2NN, T 50", "mlp-2nn", 50, 10, 368),
    Case("LeNet, T 2", "lenet", 2, 10, 368),
    Case("FedGS CNN, T 1", "cnn-fedgs", 1, 2, 74),
)


def measure(cases: Sequence[Case], size: int, repeats: int, said: Callable[[str], None]) -> list[Row]:
    """Measure cases with a team of ``size`` processes and return one row per case.

    Args:
        cases: what to measure.
        size: ranks.
        repeats: rounds of each kind; their ratios' median is reported.
        said: told what is being measured.
    """
    torch.set_num_threads(1)
    rows = []
    for case in cases:
        said(f"{case.name}: {repeats} rounds each way")
        inner = shared_file(size, 4 * models.count(case.model, case.shape, CLASSES))
        try:
            rows.append(launch.copies(2 * size, 0, partial(_row, case, size, repeats, inner)))
        finally:
            inner.unlink()
    return rows


def _row(case: Case, size: int, repeats: int, inner: Path, everyone: Team) -> Row:
    """Be a bare loop (the first ``size`` processes, which keep the C library's default memory settings) or a rank."""
    place = everyone.rank - size
    kinds: dict[str, Callable[[int], object]] = dict.fromkeys(KINDS, lambda _: None)
    if place < 0:
        bare = _Bare(case)
        kinds["bares"] = bare.work
        if place == -size:
            kinds["bare"] = bare.work
    else:
        keep_memory()
        rounds = _Rounds(case, Shared(inner, place, size) if size > 1 else Alone())
        kinds["team"] = partial(rounds.work, "team")
        if place == 0:
            kinds |= {"one": partial(rounds.work, "one"), "choosing": rounds.choose, "unfused": rounds.unfused}
    return figures(case, size, made.in_turn(everyone, kinds, repeats))


def figures(case: Case, size: int, times: dict[str, list[float]]) -> Row:
    """Return the row: each kind of round beside the bare loop, or loops, of its turn.

    Args:
        case: says how many steps a round has.
        size: ranks, and bare loops at once.
        times: seconds of each kind, turn by turn; ``unfused`` only in the first.
    """

    def ratio(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))

    def step_ms(kind: str) -> float:
        return round(1e3 * statistics.median(times[kind]) / (case.iterations * case.factories), 3)

    return {
        "case": case.name,
        "bare_step_ms": step_ms("bare"),
        "fedgs_step_ms": step_ms("one"),
        "ranks_1": round(ratio("bare", "one"), 3),
        f"per_core_{size}": round(ratio("bares", "team") / size, 3),  # of one round in all, of one round on every core
        "unfused": round(times["bare"][0] / times["unfused"][0], 3),
        "choosing_ms": round(1e3 * statistics.median(times["choosing"]) / (case.iterations * case.factories), 3),
        "choosing_share": round(ratio("choosing", "one"), 4),
    }


class _Rounds:
    """One rank's FedGS rounds: with the team, as the only rank, and that without shortcuts."""

    def __init__(self, case: Case, team: Team) -> None:
        park = made.park(case.shape, CLASSES, case.devices, SAMPLES, case.factories, SKEW)
        self.park = replace(park, stream=Fifo(BATCH))
        self.method = FedGS(iterations=case.iterations, devices=CHOSEN)
        network = models.build(case.model, case.shape, CLASSES, seed=0)
        self.start = {"w": network.flat.clone()}

        def setup(of: Team, *, shortcuts: bool = True) -> Setup:  # each looks its windows up for itself
            engine = Engine(replace(self.park), network, of, DeviceMemory(None), seed=0, shortcuts=shortcuts)
            return training(self.method, engine, 1000, start=self.start)

        self.setups = {"team": setup(team), "one": setup(Alone()), "unfused": setup(Alone(), shortcuts=False)}

    def work(self, kind: str, number: int) -> None:
        """Do a round as a run does."""
        _, record = step(self.setups[kind], self._point(number))
        outcome = record.outcome
        ledger.line(number, None, outcome.receipts, text.digest(outcome.resolved), 0.0, {})

    def unfused(self, number: int) -> None:
        """Do the first round after the warm-up visit by visit: it takes several times as long."""
        if number == 1:
            self.work("unfused", number)

    def choose(self, number: int) -> None:
        """Only plan the round and choose."""
        _, plan = planned(self.setups["one"], self._point(number))
        for branch in walk.children(plan):
            visits: Counter[int] = Counter()
            for turn in range(self.method.iterations):
                tick = number * self.method.iterations + turn
                visits.update(selection.selected(_choice(branch), self.park, 0, number, tick, visits, {}))

    def _point(self, number: int) -> Position:
        state = State(self.start, {"share": self.park.distribution.tolist()})
        return Position(round=number - 1, tick=number * self.method.iterations, state=state)


def _choice(branch: Node) -> Select:
    return cast(Select, cast(Repeat, branch).child)


class _Bare:
    """The loop a user would write: floats in memory, an optimiser, a loop over factories and union batches."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.model = models.plain(case.model, case.shape, CLASSES)
        self.start = {name: value.clone() for name, value in self.model.state_dict().items()}
        park = made.park(case.shape, CLASSES, case.devices, SAMPLES, case.factories)
        self.data = []
        for members in map(park.members, range(park.factories)):
            pairs = [park.samples(k) for k in members]
            x, y = (np.concatenate(both) for both in zip(*pairs, strict=True))
            self.data.append((torch.from_numpy(x).float() / 255, torch.from_numpy(y)))
        rng = generator(0, "union batches")
        steps = [[rng.permutation(len(y))[: CHOSEN * BATCH] for _ in range(case.iterations)] for _, y in self.data]
        self.rows = [[torch.from_numpy(rows) for rows in one] for one in steps]

    def work(self, number: int) -> None:  # noqa: ARG002
        """Train in every factory in turn, and take the mean."""
        model = self.model
        loss_of = nn.CrossEntropyLoss()
        mean = {name: torch.zeros_like(value) for name, value in self.start.items()}
        for (x, y), steps in zip(self.data, self.rows, strict=True):
            model.load_state_dict(self.start)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
            for rows in steps:
                optimiser.zero_grad()
                loss = loss_of(model(x[rows]), y[rows])
                loss.backward()
                optimiser.step()
            for name, value in model.state_dict().items():
                mean[name] += value / len(self.data)
