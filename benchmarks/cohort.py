"""How fast a cohort trains, beside a loop that takes its devices one after the other on the same hardware.

The *loop* is what anyone would write: samples as floats on the device, ``torch.optim.SGD``, device after device and
mini-batch after mini-batch, nothing else. A *round* is all that a run does but evaluation: planning, choosing, drawing
mini-batches, training, mixing, receipts, the plan's hash. Both run in turn, A B A B; figures are medians. Data are made
up: how long a step takes does not depend on them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import limits, made
from fedfloor import models
from fedfloor.engine import place
from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone
from fedfloor.methods.contract import Method, State
from fedfloor.methods.fedavg import FedAvg
from fedfloor.methods.fedgs import FedGS
from fedfloor.methods.fedsr import FedSR
from fedfloor.methods.hfedms import HFedMS
from fedfloor.park.park import Park
from fedfloor.park.stream import Fifo
from fedfloor.parts.selection.grouping import Log
from fedfloor.parts.work import WorkSettings
from fedfloor.plan import text, walk
from fedfloor.runs import ledger
from fedfloor.runs.round import Position, step, training

Row = dict[str, object]
Shape = tuple[int, int, int]
LOOPED = 400  # mini-batches of the loop that are timed at most


@dataclass(frozen=True)
class Case:
    """A workload: rounds of a method.

    Args:
        name: as it is printed.
        method: what is carried out.
        model: the network.
        shape, classes: of the samples.
        devices, factories, samples: of the park, and samples of a device.
        window: samples that a device holds at a time; 0: all.
        skew: of the devices' classes: Dirichlet(skew).
        batch: of the loop: a device's, or a super node's.
        only: what the timed rounds train, of a method whose rounds train different parts.
        rounds: that the time is extrapolated to; 0: not at all.
        period: rounds after which they come alike again: whole ones are timed, after one that warms up.
    """

    name: str
    method: Method
    model: str
    shape: Shape
    classes: int
    devices: int
    samples: int
    batch: int
    factories: int = 1
    window: int = 0
    skew: float | None = None
    only: str = ""
    rounds: int = 0
    period: int = 1


def _fedavg(model: str, shape: Shape, batch: int, devices: int, samples: int) -> Case:
    work = WorkSettings(epochs=1, batch_size=batch, lr=0.01)
    return Case(f"{model}, b {batch}, {devices} devices", FedAvg(work=work), model, shape, 10, devices, samples, batch)


def _hfedms(name: str, model: str, only: str, devices: int, groups: int, rounds: int = 0) -> Case:
    method = HFedMS(share=1.0, growth=Log(0.0, groups), work=WorkSettings(epochs=1, batch_size=5, lr=0.01))
    return Case(
        name, method, model, (1, 28, 28), 62, devices, 124, 5, window=50, skew=0.3, only=only, rounds=rounds, period=5
    )


def cases(*, quick: bool) -> tuple[Case, ...]:
    """Return the workloads; ``quick``: small ones, to see that they run."""
    few, some, many = (1, 2, 4) if quick else (10, 16, 100)
    held = 64 if quick else 500
    image = (1, 28, 28)
    colours = (3, 32, 32)
    turns, factories, members = (2, 2, 10) if quick else (50, 10, 37)
    gs = FedGS(iterations=turns, devices=2 if quick else 10, work=WorkSettings(steps=1, batch_size=32, lr=0.01))
    sr = FedSR(laps=1 if quick else 5, work=WorkSettings(epochs=1, batch_size=32, momentum=0.5, lr=0.01))
    cifar = 64 if quick else 2500
    found = [_fedavg("mlp-2nn", image, 32, count, held) for count in (few, many)]
    found += [_fedavg("lenet", colours, 50, count, held) for count in (few, many)]
    for model in ("cnn-small",) if quick else ("cnn-small", "cnn-hfedms"):
        for only in ("all", "classifier"):
            found.append(_hfedms(f"HFedMS {model}, {only}, {some} groups", model, only, 2 * some, some))
    found.append(
        Case("FedGS", gs, "cnn-small" if quick else "cnn-fedgs", image, 62, factories * members, 124,
             32 * (2 if quick else 10), factories, 32, 0.3, rounds=500)
    )  # fmt: skip
    found.append(Case("FedSR CIFAR-10", sr, "cnn-tutorial", colours, 10, 20, cifar, 32, 5, rounds=500))
    model = "cnn-small" if quick else "cnn-hfedms"
    found.append(_hfedms("HFedMS-D", model, "", 2 * some if quick else 110, some, rounds=500))
    return tuple(found)


def measure(
    chosen: Sequence[Case], device: place.Where, precision: Any, repeats: int, said: Callable[[str], None]
) -> list[Row]:
    """Measure cases on a device and return one row per case.

    Args:
        chosen: what to measure.
        device: ``cpu`` or ``cuda``.
        precision: of products, as in ``[engine] precision``.
        repeats: rounds, and loops, that are timed.
        said: told what is being measured.
    """
    torch.set_num_threads(1)
    here = place.placed("cohort", device)
    there = place.device_of(here, 0)
    place.engaged(here, precision, there)
    best = limits.reached(there)
    rows = []
    for case in chosen:
        said(f"{case.name}: {repeats} rounds and loops in turn")
        with TemporaryDirectory() as folder:
            rows.append(_row(case, _Rounds(case, here, precision, there, Path(folder)), repeats, best))
    return rows


def _row(case: Case, rounds: _Rounds, repeats: int, best: limits.Limits) -> Row:
    loop = _Loop(case, rounds.park, rounds.there)
    there = rounds.there
    repeats = -(-repeats // case.period) * case.period if not case.only else repeats  # whole periods
    times = list[float]()
    seconds = list[float]()
    samples = 0.0
    steps = 0.0
    if there.type == "cuda":
        torch.cuda.reset_peak_memory_stats(there)
    number = 0
    turn = 0
    warm = case.period if not case.only else 1
    while turn < repeats + warm:
        number += 1
        began = limits.now(there)
        trained, taken, scope = rounds.work(number)
        took = limits.now(there) - began
        if case.only and scope != case.only:
            continue
        if turn < warm:
            loop.work(taken)
        else:
            seconds.append(took)
            times.append(loop.work(taken))
            samples = samples + trained / repeats
            steps = steps + taken / repeats
        turn += 1
    part = rounds.engine.network.part("classifier") if case.only == "classifier" else None
    work = limits.of(rounds.engine.network, case.shape, part)
    least, what = best.least(work, samples, steps)
    typical = statistics.median if case.period == 1 or case.only else statistics.fmean  # rounds of a period differ
    took = typical(seconds)
    per_step = statistics.median(times)
    row: Row = {
        "case": case.name,
        "loop_samples_per_s": round(samples / (per_step * steps)),
        "cohort_samples_per_s": round(samples / took),
        "ratio": round(per_step * steps / took, 2),
        "round_s": round(took, 4),
        "limit": what,
        "share_of_limit": round(least / took, 4),
        "minutes": round(case.rounds * statistics.fmean(seconds) / 60, 2) if case.rounds else None,
        "rounds_timed": len(seconds),
    }
    if there.type == "cuda":
        row["peak_gib"] = round(torch.cuda.max_memory_allocated(there) / 2**30, 2)
    return row


class _Rounds:
    """Rounds of a case as a run does them, with a cohort."""

    def __init__(self, case: Case, here: place.Placement, precision: Any, there: torch.device, folder: Path) -> None:
        self.method = case.method
        self.there = there
        park = made.park(case.shape, case.classes, case.devices, case.samples, case.factories, case.skew)
        self.park: Park = replace(park, stream=Fifo(case.window)) if case.window else park
        network = models.build(case.model, case.shape, case.classes, seed=0).to(there)
        cohort = place.engaged(here, precision, there)
        self.engine = Engine(self.park, network, Alone(), DeviceMemory(folder), seed=0, cohort=cohort)
        self.setup = training(self.method, self.engine, 1000)
        self.point = Position(state=State(self.setup.start, {"share": park.distribution.tolist()}))

    def work(self, number: int) -> tuple[int, int, str]:
        """Do a round; return how many samples were trained on, in how many of the loop's steps, and which part."""
        self.point, record = step(self.setup, replace(self.point, round=number - 1))
        plan = record.plan
        outcome = record.outcome
        ledger.line(number, None, outcome.receipts, text.digest(outcome.resolved), 0.0, {})
        held = self.park.holdings
        size = int(max(walk.batch_sizes(plan)))
        samples = sum(_samples(one.steps, int(held[one.device]), size) for one in outcome.receipts)
        steps = sum(one.steps for one in outcome.receipts)
        if isinstance(self.method, FedGS):
            steps //= self.method.devices  # a super node's mini-batches at once
        return samples, steps, next(iter(walk.scopes(plan)))


def _samples(steps: int, held: int, size: int) -> int:
    """Return how many samples so many mini-batches of a device are.

    >>> _samples(3, held=10, size=4), _samples(4, held=10, size=4)
    (10, 14)
    """
    passes, left = divmod(steps, -(-held // size))
    return passes * held + min(held, left * size)


class _Loop:
    """The loop a user would write: floats on the device, an optimiser, a loop over mini-batches."""

    def __init__(self, case: Case, park: Park, there: torch.device) -> None:
        self.model = models.plain(case.model, case.shape, case.classes).to(there)
        self.start = {name: value.clone() for name, value in self.model.state_dict().items()}
        x, y = park.samples(0)
        rows = np.resize(np.arange(len(y)), max(case.batch * 8, len(y)))
        self.x = torch.from_numpy(x[rows]).to(there).float() / 255
        self.y = torch.from_numpy(y[rows]).to(there)
        self.batch = case.batch
        self.there = there
        self.only = case.only
        network = models.build(case.model, case.shape, case.classes, seed=0)
        self.head = network.classifier or ""

    def work(self, steps: int) -> float:
        """Take steps, at most :data:`LOOPED`; return the seconds of one."""
        model = self.model
        loss_of = nn.CrossEntropyLoss()
        many = min(steps, LOOPED)
        began = limits.now(self.there)
        per_pass = max(1, len(self.y) // self.batch)
        trained = model.get_submodule(self.head) if self.only == "classifier" else model
        for parameter in model.parameters():
            parameter.requires_grad_(trained is model)
        for parameter in trained.parameters():
            parameter.requires_grad_()
        for turn in range(many):
            if turn % per_pass == 0:  # another device
                model.load_state_dict(self.start)
                optimiser = torch.optim.SGD(trained.parameters(), lr=0.01)
                order = torch.randperm(len(self.y), device=self.there)
            first = turn % per_pass * self.batch
            rows = order[first : first + self.batch]
            optimiser.zero_grad()
            loss_of(model(self.x[rows]), self.y[rows]).backward()
            optimiser.step()
        return (limits.now(self.there) - began) / many
