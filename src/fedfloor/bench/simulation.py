"""How fast a round is, beside a loop that anyone would write.

The *bare loop* visits the same devices and the same mini-batches with one thread, ``torch.optim.SGD`` and the default
memory format, and does nothing else. A *round* is everything this package does but evaluation: planning, drawing
batches, training, mixing, receipts. Both run in turn in the same processes, so that a machine whose speed drifts does
not matter; figures are medians of the ratios.
"""

from __future__ import annotations

import json
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from fedfloor import models
from fedfloor.chance import generator
from fedfloor.engine import ranks
from fedfloor.engine.deal import deal
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.ranks import Engine
from fedfloor.engine.team import Alone, Team
from fedfloor.methods.contract import State, View
from fedfloor.methods.fedavg import FedAvg
from fedfloor.park.dataset import Pool, pooled
from fedfloor.park.park import Park
from fedfloor.park.stream import batch_order
from fedfloor.parts.work import WorkSettings
from fedfloor.runs import launch


@dataclass(frozen=True)
class Case:
    """A workload: ``devices`` devices of ``samples`` samples each, one FedAvg round of ``epochs`` epochs."""

    name: str
    model: str
    shape: tuple[int, int, int]
    classes: int
    batch_size: int
    samples: int
    epochs: int
    devices: int = 10


CASES = (
    Case("2NN 28×28, b 32, E 5", "mlp-2nn", (1, 28, 28), 10, 32, 600, 5),
    Case("2NN 28×28, b 32, E 1", "mlp-2nn", (1, 28, 28), 10, 32, 600, 1),
    Case("tutorial CNN 28×28, b 32, E 1", "cnn-tutorial", (1, 28, 28), 10, 32, 300, 1),
    Case("LeNet 3×32×32, b 50, E 1", "lenet", (3, 32, 32), 10, 50, 300, 1),
    Case("FedGS CNN 28×28, b 32, E 1", "cnn-fedgs", (1, 28, 28), 62, 32, 100, 1),
)


def measure(cases: Sequence[Case], size: int, repeats: int, said: Callable[[str], None]) -> list[dict[str, object]]:
    """Measure cases with a team of ``size`` processes and return one row per case.

    The pixels are random: how long a step takes does not depend on them.

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
        packet = 4 * models.count(case.model, case.shape, case.classes)
        rows.append(launch.copies(size, packet, partial(_row, case, repeats)))
    return rows


def _row(case: Case, repeats: int, team: Team) -> dict[str, object]:
    return _Bench(case, team).row(repeats)


class _Bench:
    """One case on one rank."""

    def __init__(self, case: Case, team: Team) -> None:
        self.case, self.team = case, team
        park = _park(case)
        self.method = FedAvg(work=WorkSettings(epochs=case.epochs, batch_size=case.batch_size, lr=0.01))

        def engine(with_team: Team) -> Engine:
            network = models.build(case.model, case.shape, case.classes, seed=0)
            return Engine(park, network, with_team, DeviceMemory(None), seed=0)

        self.together, self.alone = engine(team), engine(Alone())
        self.start = {"w": self.alone.network.flat.clone()}
        self.bare = _bare(case, park)

    def round(self, engine: Engine, number: int) -> None:
        park = engine.park
        view = View(number, 1000, park.sizes, park.factory_of, self.start)
        state = State(self.start)
        plan = self.method.plan(state, view, generator(0, "plan", number))
        self.method.absorb(state, ranks.run(engine, plan, state.packet, round_number=number, tick=0))

    def row(self, repeats: int) -> dict[str, object]:
        """Take the four kinds of round in turn: bare, team, one rank, and as many bare loops at once as there are
        ranks."""
        first = self.team.rank == 0
        samples = self.case.devices * self.case.samples * self.case.epochs
        times: dict[str, list[float]] = {"bare": [], "team": [], "one": [], "bares": []}
        for number in range(repeats + 1):  # the first one warms up
            kinds: dict[str, Callable[[], None]] = {
                "bare": partial(self.bare, number) if first else _rest,
                "team": partial(self.round, self.together, number),
                "one": partial(self.round, self.alone, number) if first else _rest,
                "bares": partial(self.bare, number),
            }
            for kind, work in kinds.items():
                taken = self.timed(work)
                if number:
                    times[kind].append(taken)
        memory = [json.loads(bytes(one[0])) for one in self.team.gather([json.dumps(_peak_mib()).encode()])]
        return self.figures(times, samples, memory)

    def timed(self, work: Callable[[], None]) -> float:
        """Return the seconds until every rank is done."""
        self.team.gather([])
        began = time.perf_counter()
        work()
        self.team.gather([])
        return time.perf_counter() - began

    def figures(self, times: dict[str, list[float]], samples: int, memory: list[float]) -> dict[str, object]:
        """Return the row: ratios of each kind to the bare loop beside it."""

        def ratio(kind: str, factor: float = 1.0) -> float:
            return round(statistics.median(b / t * factor for b, t in zip(times["bare"], times[kind], strict=True)), 3)

        size = self.team.size
        costs = [self.case.epochs * -(-self.case.samples // self.case.batch_size)] * self.case.devices
        busiest = max(sum(costs[i] for i in run) for run in deal(costs, size))
        return {
            "case": self.case.name,
            "bare_samples_per_s": round(samples / statistics.median(times["bare"])),
            "ranks_1": ratio("one"),
            f"ranks_{size}": ratio("team"),
            f"bare_loops_{size}": ratio("bares", size),
            "dealing_ceiling": round(sum(costs) / busiest, 3),
            "peak_mib_per_rank": round(max(memory)),
        }


def _rest() -> None:
    """Let the first rank work alone."""


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _park(case: Case) -> Park:
    rng = np.random.default_rng(0)
    total = case.devices * case.samples
    x = rng.integers(0, 256, (total, *case.shape), dtype=np.uint8)
    y = rng.integers(0, case.classes, total)
    data = pooled("random", tuple(map(str, range(case.classes))), Pool(x, y), Pool(x[:1], y[:1]), digest="")
    parts = tuple(np.arange(k * case.samples, (k + 1) * case.samples) for k in range(case.devices))
    return Park(data, parts, np.zeros(case.devices, np.int32))


def _bare(case: Case, park: Park) -> Callable[[int], None]:
    """Return the loop a user would write: floats in memory, an optimiser, a loop over devices and batches."""
    model = models.plain(case.model, case.shape, case.classes)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    loss_of = nn.CrossEntropyLoss()
    data: list[tuple[Tensor, Tensor]] = []
    for k in range(case.devices):
        x, y = park.samples(k)
        data.append((torch.from_numpy(x).float() / 255, torch.from_numpy(y)))

    def loop(number: int) -> None:
        for k, (x, y) in enumerate(data):
            model.load_state_dict(start)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
            rng = generator(0, "batches", number, 0, k, 0)
            for order, _ in batch_order(len(y), case.batch_size, case.epochs, None, rng):
                for rows in torch.from_numpy(order).split(case.batch_size):
                    optimiser.zero_grad()
                    loss = loss_of(model(x[rows]), y[rows])
                    loss.backward()
                    optimiser.step()

    return loop
