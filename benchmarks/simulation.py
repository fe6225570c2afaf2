"""How fast a round is, beside a loop that anyone would write.

The *bare loop* visits the same devices and the same mini-batches with one thread, ``torch.optim.SGD`` and the default
memory format, and does nothing else. A *round* is everything this package does but evaluation: planning, drawing
batches, training, mixing, receipts; ``evaluated`` is what a round with an evaluation takes, divided by that. All run in
turn in the same processes, so that a machine whose speed drifts does not matter; figures are medians of the ratios.
``beside_loops_2`` is two ranks beside two bare loops at once, with the least and the most of these ratios.
"""

from __future__ import annotations

import resource
import statistics
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks import made
from fedfloor import models
from fedfloor.base.chance import generator
from fedfloor.engine.engine import Engine
from fedfloor.engine.evaluate import evaluate
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.place import keep_memory
from fedfloor.engine.team import Alone, Shared, Team, deal, shared_file
from fedfloor.methods.contract import State
from fedfloor.methods.fedavg import FedAvg
from fedfloor.models.layers import Dilated
from fedfloor.park.park import Park
from fedfloor.park.stream import batch_order
from fedfloor.parts.work import WorkSettings
from fedfloor.runs import launch
from fedfloor.runs.round import Position, step, training
from fedfloor.tasks.regression import Regression

Row = dict[str, object]


@dataclass(frozen=True)
class Case:
    """A workload: ``devices`` devices of ``samples`` samples each, one FedAvg round of ``epochs`` epochs.

    Pictures (C, H, W) have classes; windows of sensors (C, L) a number, which is learnt by its squared error.
    """

    name: str
    model: str
    shape: tuple[int, ...]
    classes: int
    batch_size: int
    samples: int
    epochs: int
    devices: int = 10

    def park(self, tests: int = 1) -> Park:
        """Return the devices and their samples."""
        if len(self.shape) == 2:
            return made.sensors((self.shape[0], self.shape[1]), self.devices, self.samples, tests)
        return made.park(self.shape, self.classes, self.devices, self.samples, tests=tests)


CASES = (
    Case("2NN 28×28, b 32, E 5", "mlp-2nn", (1, 28, 28), 10, 32, 600, 5),
    Case("2NN 28×28, b 32, E 1", "mlp-2nn", (1, 28, 28), 10, 32, 600, 1),
    Case("tutorial CNN 28×28, b 32, E 1", "cnn-tutorial", (1, 28, 28), 10, 32, 300, 1),
    Case("LeNet 3×32×32, b 50, E 1", "lenet", (3, 32, 32), 10, 50, 300, 1),
    Case("FLDG CNN 28×28, b 50, E 1", "cnn-fldg-mnist", (1, 28, 28), 10, 50, 300, 1),
    Case("FedGS CNN 28×28, b 32, E 1", "cnn-fedgs", (1, 28, 28), 62, 32, 100, 1),
    Case("HFedMS CNN 28×28, b 5, E 1", "cnn-hfedms", (1, 28, 28), 62, 5, 50, 1),
    Case("1-D CNN 17×30, b 256, E 1", "cnn-sensor", (17, 30), 1, 256, 1024, 1),
    Case("1-D CNN with group norm 17×30, b 256, E 1", "cnn-sensor-gn", (17, 30), 1, 256, 1024, 1),
    Case("TCN 17×30, b 256, E 1", "tcn", (17, 30), 1, 256, 1024, 1),
    Case("LSTM 17×30, b 256, E 1", "lstm", (17, 30), 1, 256, 1024, 1),
)
TESTS = 10_000


def measure(cases: Sequence[Case], size: int, repeats: int, said: Callable[[str], None]) -> list[Row]:
    """Measure cases with a team of ``size`` processes and return one row per case.

    The samples are random: how long a step takes does not depend on them.

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
        inner = shared_file(size, packet)
        try:
            rows.append(launch.copies(2 * size, 0, partial(_row, case, size, repeats, inner)))
        finally:
            inner.unlink()
    return rows


def _row(case: Case, size: int, repeats: int, inner: Path, everyone: Team) -> Row:
    """Be a bare loop (the first ``size`` processes, which keep the C library's default memory settings) or a rank."""
    place = everyone.rank - size
    team: Team = Alone()
    if place >= 0:
        keep_memory()
        team = Shared(inner, place, size) if size > 1 else Alone()
    worker = _Bare(case) if place < 0 else Ranks(case, team)
    kinds = {
        "bare": lambda number: worker.work(number) if place == -size else None,
        "team": lambda number: worker.work(number) if place >= 0 else None,
        "told": lambda number: worker.evaluated(number) if place >= 0 else None,
        "one": lambda number: worker.alone(number) if place == 0 else None,
        "bares": lambda number: worker.work(number) if place < 0 else None,
    }
    times = made.in_turn(everyone, kinds, repeats)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 if place >= 0 else 0.0
    memory = max(struct.unpack("d", one[0])[0] for one in everyone.gather([struct.pack("d", peak)]))
    return _figures(case, size, times, memory)


def _figures(case: Case, size: int, times: dict[str, list[float]], memory: float) -> Row:
    """Return the row: ratios of each kind of round to the bare loop beside it."""

    def ratio(kind: str, factor: float = 1.0) -> float:
        return round(statistics.median(b / t * factor for b, t in zip(times["bare"], times[kind], strict=True)), 3)

    costs = [case.epochs * -(-case.samples // case.batch_size)] * case.devices
    busiest = max(sum(costs[i] for i in run) for run in deal(costs, size))
    samples = case.devices * case.samples * case.epochs
    beside = [b / t / size for b, t in zip(times["bares"], times["team"], strict=True)]
    return {
        "case": case.name,
        "bare_samples_per_s": round(samples / statistics.median(times["bare"])),
        "ranks_1": ratio("one"),
        f"ranks_{size}": ratio("team"),
        f"bare_loops_{size}": ratio("bares", size),
        f"beside_loops_{size}": round(statistics.median(beside), 3),
        "least": round(min(beside), 3),
        "most": round(max(beside), 3),
        "evaluated": round(statistics.median(b / t for b, t in zip(times["told"], times["team"], strict=True)), 3),
        "dealing_ceiling": round(sum(costs) / busiest, 3),
        "peak_mib_per_rank": round(memory),
    }


class Ranks:
    """One rank's part of a case."""

    def __init__(self, case: Case, team: Team) -> None:
        park = case.park(TESTS)
        self.method = FedAvg(work=WorkSettings(epochs=case.epochs, batch_size=case.batch_size, lr=0.01))
        network = models.build(case.model, case.shape, case.classes, seed=0)
        self.engines = [Engine(park, network, one, DeviceMemory(None), seed=0) for one in (team, Alone())]
        self.start = {"w": network.flat.clone()}

    def work(self, number: int) -> None:
        """Do a round with the team."""
        self.round(self.engines[0], number)

    def alone(self, number: int) -> None:
        """Do a round without the team."""
        self.round(self.engines[1], number)

    def evaluated(self, number: int) -> None:
        """Do a round with the team, and evaluate its model on :data:`TESTS` samples."""
        evaluate(self.engines[0], self.round(self.engines[0], number))

    def round(self, engine: Engine, number: int) -> Tensor:
        """Do a round from the initial model; return its model."""
        point = Position(round=number - 1, state=State(self.start))
        after, _ = step(training(self.method, engine, 1000, start=self.start), point)
        return after.state.packet["w"]


def conv1d(model: nn.Module) -> nn.Module:
    """Return a network of windows as users write it: with ``Conv1d`` where ours convolves pictures of height 1."""
    if not isinstance(model, nn.Sequential) or not isinstance(model[0], nn.Unflatten):
        return model
    return nn.Sequential(*map(_over_rows, list(model)[1:]))


def _over_rows(layer: nn.Module) -> nn.Module:
    if isinstance(layer, Dilated):
        layer.body, layer.straight = nn.Sequential(*map(_over_rows, layer.body)), _over_rows(layer.straight)
    elif isinstance(layer, nn.Conv2d):
        (_, kernel) = layer.kernel_size
        (_, stride) = layer.stride
        (_, dilation) = layer.dilation
        size = layer.in_channels, layer.out_channels, kernel
        return nn.Conv1d(*size, stride=stride, padding=int(layer.padding[1]), dilation=dilation)
    elif isinstance(layer, nn.ZeroPad2d):
        return nn.ConstantPad1d(layer.padding[:2], 0.0)
    elif isinstance(layer, nn.AdaptiveAvgPool2d):
        return nn.AdaptiveAvgPool1d(1)
    return layer


class _Bare:
    """The loop a user would write: floats in memory, an optimiser, a loop over devices and mini-batches."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.model = conv1d(models.plain(case.model, case.shape, case.classes))
        self.start = {name: value.clone() for name, value in self.model.state_dict().items()}
        park = case.park()
        pairs = [park.samples(k) for k in range(case.devices)]
        scale = park.dataset.scale
        self.data = [(torch.from_numpy(x).float() * scale, torch.from_numpy(y)) for x, y in pairs]
        self.loss: nn.Module = nn.CrossEntropyLoss()
        if isinstance(park.dataset.task, Regression):
            mean, std = (torch.tensor(one) for one in (park.dataset.task.center, park.dataset.task.scale))
            self.data = [(x, (y - mean) / std) for x, y in self.data]
            self.loss = nn.MSELoss()

    def work(self, number: int) -> None:
        """Visit every device in turn."""
        case = self.case
        model = self.model
        loss_of = self.loss
        for k, (x, y) in enumerate(self.data):
            model.load_state_dict(self.start)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
            rng = generator(0, "batches", number, 0, k, 0)
            for order, _ in batch_order(len(y), case.batch_size, case.epochs, None, rng):
                for rows in torch.from_numpy(order).split(case.batch_size):
                    optimiser.zero_grad()
                    loss = loss_of(model(x[rows]), y[rows])
                    loss.backward()
                    optimiser.step()

    alone = evaluated = work  # a bare loop has no team, and is not asked
