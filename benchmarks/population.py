"""Very large parks: how much memory a run takes at its peak, and how long all but the training takes in a round.

Every case is a whole run with a folder, in a process of its own, so that one's peak is not another one's. Training is
what goes on within visits, but for getting hold of the device's data; all else of a round is the rest: choosing and
planning, making data, mixing, evaluating, the ledger, checkpoints. By the clock on the wall, and in processor time,
which a machine that has other things to do stretches less.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedfloor.data.made.procedural import Procedural
from fedfloor.engine import local_update, visit
from fedfloor.engine.team import Alone
from fedfloor.experiment import DataSettings, Experiment, MethodSettings, ParkSettings
from fedfloor.parts.work import WorkSettings
from fedfloor.runs import launch, loop
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Orders
from fedfloor.runs.prepare import prepare

Row = dict[str, object]
SAMPLES = 20  # of a device
RING = 5  # devices in a ring
PER_MIB = 1 << 20 if sys.platform == "darwin" else 1 << 10  # of what the system says of peaks


@dataclass(frozen=True)
class Case:
    """A run of the 2NN on procedural data.

    Args:
        name: of the case.
        method: ``fedavg``; or ``fedsr`` in rings of five drawn devices, one lap.
        devices: K of the park.
        active: devices in a round.
        rounds: of the run.
    """

    name: str
    method: str
    devices: int
    active: int
    rounds: int

    @property
    def experiment(self) -> Experiment:
        """What is run: each device has 20 samples of 28×28, and goes through them once in mini-batches of 10."""
        own: dict[str, Any] = {"fraction": self.active / self.devices}
        if self.method == "fedsr":
            own |= {"ring_size": RING, "laps": 1}
        return Experiment(
            rounds=self.rounds,
            data=DataSettings(name="procedural", samples_per_device=SAMPLES, procedural=Procedural()),
            park=ParkSettings(devices=self.devices, factories=min(100, self.devices)),
            method=MethodSettings(self.method),
            methods={self.method: own},
            work=WorkSettings(epochs=1, batch_size=10, lr=0.05),
        )


def cases(devices: int = 1_000_000, active: int = 100, rounds: int = 20, many: int = 10_000) -> list[Case]:
    """Return the cases: a run each of FedAvg and FedSR, and a single round of FedAvg with many devices."""
    of = f"of {devices:,} devices"
    many = min(many, devices)
    return [
        Case(f"FedAvg, {active:,} {of}", "fedavg", devices, active, rounds),
        Case(f"FedSR, {active:,} {of}", "fedsr", devices, active, rounds),
        Case(f"FedAvg, {many:,} {of}, one round", "fedavg", devices, many, 1),
    ]


def measure(wanted: Iterable[Case], said: Callable[[str], None]) -> list[Row]:
    """Run each case in a process of its own and return a row for each.

    Args:
        wanted: what to run.
        said: told what is being measured.
    """
    rows = []
    for case in wanted:
        said(case.name)
        command = [sys.executable, __file__, json.dumps(asdict(case)), repr(time.time())]
        rows.append(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))
    return rows


class Seen(NamedTuple):
    """Seconds by the clock on the wall and of the processor, all and in training."""

    wall: float
    busy: float
    trained_wall: float
    trained_busy: float


def ran(case: Case, began: float) -> Row:
    """Run a case in this process.

    Args:
        case: what to run.
        began: ``time.time()`` of when the process was started.
    """
    ends = list[Seen]()  # of rounds
    first = list[Seen]()  # and where the first one began

    def told(line: Line) -> None:
        ends.append(Seen(time.perf_counter(), time.process_time(), clock.wall, clock.busy))
        if not first:
            first.append(Seen(ends[0].wall - line.wall_s, ends[0].busy - line.wall_s, 0.0, 0.0))

    with tempfile.TemporaryDirectory() as folder, _timed() as clock:
        behind = time.time() - time.perf_counter()
        experiment = case.experiment
        orders = Orders(Path(folder))
        park = launch.build_park(experiment)
        prepare(experiment, orders, park)
        loop.execute(experiment, orders, Alone(), park, told, lambda: False)
        stored = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    spans = [Seen(*(y - x for x, y in zip(a, b, strict=True))) for a, b in zip([*first, *ends], ends, strict=False)]
    others = [1e3 * (one.wall - one.trained_wall) for one in spans]
    busy = [1e3 * (one.busy - one.trained_busy) for one in spans[1:]]  # not of the first, whose start is not known
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / PER_MIB
    return {
        "run": case.name, "peak_mib": round(peak), "startup_s": round(first[0].wall + behind - began, 2),
        "rounds": len(spans), "train_s": round(ends[-1].trained_wall, 2),
        "other_ms": round(statistics.median(others), 1), "worst_other_ms": round(max(others), 1),
        "other_cpu_ms": round(statistics.median(busy), 1) if busy else None,
        "folder_kib": round(stored / 1024),
    }  # fmt: skip


@dataclass
class _Clock:
    wall: float = 0.0
    busy: float = 0.0


@contextmanager
def _timed() -> Iterator[_Clock]:
    """Count the seconds that visits train."""
    clock = _Clock()
    train = visit.train

    def counted(*given: Any, **named: Any) -> Any:
        started = time.perf_counter()
        busy = time.process_time()
        try:
            return train(*given, **named)
        finally:
            clock.wall += time.perf_counter() - started
            clock.busy += time.process_time() - busy

    vars(local_update)["train"] = counted
    try:
        yield clock
    finally:
        vars(local_update)["train"] = train


if __name__ == "__main__":
    print(json.dumps(ran(Case(**json.loads(sys.argv[1])), float(sys.argv[2]))))
