"""The same number of updates with and without waiting: accuracy by updates and by seconds.

    python -m benchmarks.updates [--out results/updates.json] [--seeds 0 1 2]   # goes on where it was stopped

A run takes about eight minutes of a processor's time, the twelve of three seeds one hour and a half.

CIFAR-10 with LeNet, labels dealt by Dirichlet 0.5 to eight devices, visits of one epoch in mini-batches of 64 samples.
Fifty rounds of FedAvg with all devices have 400 updates, and so have a hundred rounds of FedBuff with a buffer of four
results and all eight devices on their way. The logarithm of the devices' speeds is normal with a standard deviation of
log 1, log 3 or log 10; a sample takes the median device 5 ms.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))  # the source tree
import fedfloor
from benchmarks.waiting import go_on, mean_of
from fedfloor import config
from fedfloor.runs import ledger
from fedfloor.runs.forecast import reprice

RESULTS = Path(__file__).parents[1] / "results/updates.json"
FACTORS = (1.0, 3.0, 10.0)
SEEDS = (0, 1, 2)
DEVICES = 8
UPDATES = 400
EVERY = 40  # updates between evaluations
METHODS: dict[str, dict[str, Any]] = {"fedavg": {}, "fedbuff": {"buffer": 4, "concurrency": DEVICES}}


def each(method: str) -> int:
    """Return the number of updates in a round of a method."""
    return int(METHODS[method].get("buffer", DEVICES))


def experiment(method: str, factor: float, seed: int, updates: int = UPDATES) -> fedfloor.Experiment:
    """Return the experiment of a cell."""
    table: dict[str, Any] = {
        "name": "updates",
        "seed": seed,
        "rounds": updates // each(method),
        "data": {"name": "cifar-10", "partition": {"kind": "dirichlet", "alpha": 0.5, "at_least": 64}},
        "park": {"devices": DEVICES, "factories": 1},
        "model": {"name": "lenet"},
        "work": {"batch_size": 64, "lr": 0.05},
        "method": {"name": method},
        "methods": {method: {**METHODS[method], "work": {"epochs": 1}}},
        "network": {"profile": "5g-edge", "devices": {"seconds_per_sample": {"median": 0.005, "factor": factor}}},
        "evaluate": {"every": EVERY // each(method)},
    }
    return config.from_table(table)


def measured(method: str, factors: tuple[float, ...], seed: int, updates: int = UPDATES) -> list[dict[str, Any]]:
    """Return a row for each spread of speeds; training does not depend on it where all results are waited for.

    The curve of a row is (updates, accuracy, seconds) of each evaluation.
    """
    with tempfile.TemporaryDirectory() as place:
        first = Path(place) / "run"
        folders = [first]
        fedfloor.run(experiment(method, factors[0], seed, updates), first, ranks=1)
        for factor in factors[1:]:
            into = Path(place) / f"{factor:g}"
            folders += reprice([first], experiment(method, factor, seed, updates).network, into, print)
        return [_row(method, factor, seed, folder) for factor, folder in zip(factors, folders, strict=True)]


def _row(method: str, factor: float, seed: int, folder: Path) -> dict[str, Any]:
    lines = [line for line in ledger.read(folder / "ledger.jsonl") if line.accuracy is not None]
    curve = [[line.round * each(method), round(line.accuracy, 4), _seconds(line)] for line in lines]
    return {"method": method, "factor": factor, "seed": seed, "curve": curve}


def _seconds(line: ledger.Line) -> float:
    return round(ledger.total(line)["seconds"], 1)


def cells() -> Iterator[tuple[str, tuple[float, ...], int]]:
    """Yield all cells, seed by seed; FedAvg's differ only in their prices."""
    for seed in SEEDS:
        yield "fedavg", FACTORS, seed
        for factor in FACTORS:
            yield "fedbuff", (factor,), seed


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Return the page of the runs that are there."""
    about = (__doc__ or "").split("\n\n")[3].replace("\n", " ").strip()
    blocks = [
        f"# {UPDATES} updates with and without waiting",
        f"{about} Mean ± half width of 95 % over seeds. `python -m benchmarks.updates`.",
    ]
    for factor in FACTORS:
        marks = [f"{n}" for n in (*range(EVERY, UPDATES + 1, 2 * EVERY), UPDATES)]
        heads = ["method", "seeds", *marks, "minutes, by seed"]
        lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
        for method in METHODS:
            curves = [row["curve"] for row in rows if row["method"] == method and row["factor"] == factor]
            if curves:
                places = [n // EVERY - 1 for n in (*range(EVERY, UPDATES + 1, 2 * EVERY), UPDATES)]
                accuracies = [mean_of([100 * curve[place][1] for curve in curves]) for place in places]
                minutes = ", ".join(f"{curve[-1][2] / 60:,.0f}" for curve in curves)
                lines.append("| " + " | ".join([method, str(len(curves)), *accuracies, minutes]) + " |")
        if len(lines) > 2:
            blocks += [
                f"## Speeds within a factor of {factor:g}: accuracy in % after so many updates",
                "\n".join(lines),
            ]
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    go_on(__doc__, RESULTS, cells(), measured, page)
