"""What a method's round costs beside FedAvg's: time per sample trained on, as a ratio.

A round is everything but evaluation and checkpoints: planning, batches, training, the files of what devices keep,
mixing, the server's step. FedAvg's rounds and the methods' alternate, A B A C A …, and a method's time is divided by
the mean of the two FedAvg rounds that stand beside it, so that a machine whose speed drifts does not matter. Every
method has its own default settings but the same work: epochs, batch size and rate. FedAvg also stands in the table as a
method, beside itself: how far its quartiles lie from 1 is what the machine's noise makes of equal rounds.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import made
from fedfloor import models
from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.place import keep_memory
from fedfloor.engine.team import Team
from fedfloor.methods.catalog import METHODS
from fedfloor.methods.configured import ConfiguredMethod, Parts
from fedfloor.park.park import Park
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.outcome import Receipt
from fedfloor.runs import launch
from fedfloor.runs.prepare import first_state
from fedfloor.runs.round import Position, step, training

Row = dict[str, object]
WARM_UP = 2  # rounds: from its second visit on a device has something to remember, and CGAU's extractor is frozen
SETTINGS: dict[str, dict[str, Any]] = {"cgau": {"warm_up": 1}}  # what is measured are the rounds after it
NOTES = {
    "moon": "second and third network, forward only, once a visit; a projection head",
    "fedmmd": "second network, forward only, once a visit; a distance of all pairs in a mini-batch",
    "fedfusion": "second network's features, forward only, once a visit",
    "fedl": "the gradient over all samples at the start and at the end of a visit",
    "scaffold": "a variate per device, read and written at every visit",
    "qffl": "the loss of all samples before a round, forward only",
    "cgau": "frozen rounds: the extractor forward only, once a visit; trains a head of 2 × 256 gated units",
}


@dataclass(frozen=True)
class Case:
    """The work every method does.

    Args:
        model: network.
        epochs: E of a visit.
        shape, classes: of the samples.
        devices, samples, factories: the park; ``samples`` each.
        batch_size: of a mini-batch.
    """

    model: str = "cnn-tutorial"
    epochs: int = 2
    shape: tuple[int, int, int] = (1, 28, 28)
    classes: int = 62
    devices: int = 10  # rounds short enough that neighbours see the same machine
    samples: int = 120
    factories: int = 5
    batch_size: int = 10


def measure(case: Case, names: Sequence[str], size: int, repeats: int, said: Callable[[str], None]) -> list[Row]:
    """Measure methods with a team of ``size`` processes and return one row per method.

    Args:
        case: the work.
        names: of methods.
        size: ranks.
        repeats: rounds of each method that are measured.
        said: told what is being measured.

    Raises:
        SettingError: the network does not exist, or does not fit a method.
    """
    packet = 4 * models.count(case.model, case.shape, case.classes)
    with tempfile.TemporaryDirectory(prefix="fedfloor-bench-") as folder:
        return launch.copies(size, packet, partial(_rows, case, names, repeats, said, Path(folder)))


def trained(receipt: Receipt, batch_size: int) -> int:
    """Return how many samples a visit went through: whole passes, and the mini-batches of the last one.

    >>> trained(Receipt(0, 0, 0, 8, 25, 0.0, 0.0, 0.0, 0, lost=False), 10)  # 25 + 25 + 10 + 10
    70
    """
    passes, rest = divmod(receipt.steps, -(-receipt.samples // batch_size))
    return passes * receipt.samples + min(receipt.samples, rest * batch_size)


def row(name: str, own: Sequence[float], beside: Sequence[tuple[float, float]]) -> Row:
    """Return a method's row.

    Args:
        name: the method's.
        own: seconds per sample of its rounds.
        beside: those of the FedAvg rounds before and after each.

    >>> row("moon", [3e-6, 5e-6], [(1e-6, 2e-6), (2e-6, 3e-6)])["ratio"]
    2.0
    """
    ratios = np.array(own) / np.mean(beside, axis=1)
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return {
        "method": name,
        "ms_per_1000_samples": round(1e6 * float(np.median(own)), 1),
        "ratio": round(float(middle), 3),
        "quartiles": f"{low:.3f}–{high:.3f}",
        "note": NOTES.get(name, ""),
    }


def _rows(
    case: Case, names: Sequence[str], repeats: int, said: Callable[[str], None], folder: Path, team: Team
) -> list[Row]:
    """Be a rank."""
    torch.set_num_threads(1)
    keep_memory()
    here = made.park(case.shape, case.classes, case.devices, case.samples, case.factories)
    beside = _Job(case, "fedavg", here, team, folder / "beside")
    jobs = {name: _Job(case, name, here, team, folder / name) for name in names}
    own: dict[str, list[float]] = {name: [] for name in names}
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for number in range(1 - WARM_UP, repeats + 1):
        if team.rank == 0:
            said(f"round {number} of {repeats}" if number > 0 else "warming up")
        before = beside.round()
        for name, job in jobs.items():
            taken = job.round()
            after = beside.round()
            if number > 0:
                own[name].append(taken)
                pairs[name].append((before, after))
            before = after
    return [row(name, own[name], pairs[name]) for name in names]


class _Job:
    """A method at work: one rank's part."""

    def __init__(self, case: Case, name: str, here: Park, team: Team, folder: Path) -> None:
        work = WorkSettings(epochs=case.epochs, batch_size=case.batch_size, lr=0.01)
        fields = {one.name for one in dataclasses.fields(METHODS[name])}  # type: ignore[arg-type]
        settings = SETTINGS.get(name, {}) | ({"work": work} if "work" in fields else {})
        self.case = case
        self.method = ConfiguredMethod(name, METHODS[name](**settings), Parts())
        network = models.build(
            case.model, case.shape, case.classes, seed=0, classifier=None, adapt=self.method.objective.adapt
        )
        self.engine = Engine(here, network, team, DeviceMemory(folder), seed=0)
        self.setup = training(self.method, self.engine, 1000)
        _, state = first_state(self.engine, self.method, self.setup.view(0))
        self.point = Position(state=state)

    def round(self) -> float:
        """Do a round; return its seconds per sample trained on."""
        seconds = made.timed(self.engine.team, self._work)
        if self.engine.team.rank == 0:
            self.engine.memory.sweep(set())  # a run does so when it writes a checkpoint
        return seconds / sum(trained(one, self.case.batch_size) for one in self.point.receipts)

    def _work(self) -> None:
        self.point, _ = step(self.setup, self.point)
