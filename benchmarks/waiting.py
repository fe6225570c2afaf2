"""When waiting costs: methods that wait for all, for the first, for a deadline, or for nobody, by spread of speeds.

    python -m benchmarks.waiting [--out results/waiting.json]     # goes on where it was stopped; about 20 minutes

Fashion-MNIST, labels dealt by Dirichlet 0.3 to 100 devices in 10 factories, the 2NN, visits of 20 mini-batches of 10
samples. A visit of the median device takes 10 s of computing; the logarithm of the devices' speeds is normal, with a
standard deviation of log 1, log 3 or log 10. Every run has 600 results that count; evaluated every 50.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))  # the source tree
import fedfloor
from fedfloor import config
from fedfloor.report.groups import half_width
from fedfloor.runs import ledger
from fedfloor.runs.folder import write

RESULTS = Path(__file__).parents[1] / "results/waiting.json"
NETWORKS = ("5g-edge", "lte-cat-m2")
FACTORS = (1.0, 3.0, 10.0)
SEEDS = (0, 1, 2)
# results that count in a run, results between evaluations, accuracy
RESULTS_EACH = 600
EVERY = 50
TARGET = 0.7
FIRST = {"first": 10}
# name → method, its settings, results in a round, [round] close
METHODS: dict[str, tuple[str, dict[str, Any], int, dict[str, Any] | None]] = {
    "fedavg, 10 of 100": ("fedavg", {"fraction": 0.1}, 10, None),
    "fedavg, first 10 of 13": ("fedavg", {"fraction": 0.13}, 10, FIRST),
    "fedavg, first 10 of 20": ("fedavg", {"fraction": 0.2}, 10, FIRST),
    "fedavg, 13, deadline 30 s": ("fedavg", {"fraction": 0.13}, 10, {"deadline_s": 30.0}),
    "hierfavg, 100": ("hierfavg", {"edge_rounds": 1}, 100, None),
    "fedsr, chains of 10": ("fedsr", {"laps": 1}, 100, None),
    "fedbuff, 10 of 20 on their way": ("fedbuff", {"buffer": 10, "concurrency": 20}, 10, None),
    "fedasync, 20 on their way": ("fedasync", {"concurrency": 20, "rate": 0.2}, 1, None),
}


def experiment(name: str, network: str, factor: float, seed: int) -> fedfloor.Experiment:
    """Return the experiment of a cell."""
    method, settings, results, close = METHODS[name]
    table: dict[str, Any] = {
        "name": "waiting",
        "seed": seed,
        "rounds": RESULTS_EACH // results,
        "data": {"name": "fashion-mnist", "partition": {"kind": "dirichlet", "alpha": 0.3}},
        "park": {"devices": 100, "factories": 10},
        "model": {"name": "mlp-2nn"},
        "work": {"steps": 20, "batch_size": 10, "lr": 0.05, "short_batches": True},
        "method": {"name": method},
        "methods": {method: {**settings, "work": {"epochs": None, "steps": 20}}},
        "network": {"profile": network, "devices": {"seconds_per_sample": {"median": 0.05, "factor": factor}}},
        "evaluate": {"every": max(1, EVERY // results)},
    }
    if close is not None:
        table["round"] = {"close": close}
    return config.from_table(table)


def measured(name: str, network: str, factor: float, seed: int) -> list[dict[str, Any]]:
    """Carry out a cell; return its row with a curve: (results, accuracy, seconds, bytes, joules) of each evaluation."""
    results = METHODS[name][2]
    with tempfile.TemporaryDirectory() as folder:
        fedfloor.run(experiment(name, network, factor, seed), Path(folder) / "run", ranks=1)
        lines = ledger.read(Path(folder) / "run" / "ledger.jsonl")
    curve = []
    for line in lines:
        if line.accuracy is not None:
            total = ledger.total(line)
            cost = [round(total[key], 3) for key in ("seconds", "bytes", "joules")]
            curve.append([line.round * results, round(line.accuracy, 4), *cost])
    return [{"method": name, "network": network, "factor": factor, "seed": seed, "curve": curve}]


def cells() -> Iterator[tuple[str, str, float, int]]:
    """Yield all cells, seed by seed."""
    for seed in SEEDS:
        for network in NETWORKS:
            for factor in FACTORS:
                for name in METHODS:
                    yield name, network, factor, seed


def reached(row: dict[str, Any]) -> Sequence[float] | None:
    """Return (seconds, bytes, joules) of the first evaluation at the target; None if there is none."""
    return next((point[2:] for point in row["curve"] if point[1] >= TARGET), None)


def mean_of(values: Sequence[float | None], scale: float = 1.0) -> str:
    """Return a mean with its half width; the number of runs that reached the target where not all did."""
    there = [value / scale for value in values if value is not None]
    if not there:
        return "not reached"
    mean = sum(there) / len(there)
    text = f"{mean:.3g}"
    if len(there) > 1:
        text += f" ± {half_width(there):.2g}"
    return text if len(there) == len(values) else f"{text} ({len(there)} of {len(values)})"


def beside(rows: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> str:
    """Return the geometric mean over seeds of the time to the target beside another method's on the same seed."""
    theirs = {row["seed"]: reached(row) for row in others}
    ratios = []
    for row in rows:
        own = reached(row)
        other = theirs.get(row["seed"])
        if own is not None and other is not None:
            ratios.append(own[0] / other[0])
    return f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2g}" if ratios else "–"


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Return the page of the runs that are there."""
    blocks: list[Any] = [
        "# When waiting costs",
        (__doc__ or "").split("\n\n")[2].replace("\n", " "),
        "Time, traffic and energy until an evaluation has an accuracy of "
        f"{TARGET:.2f}, and the accuracy after {RESULTS_EACH} results: mean ± half width of 95 % over "
        "seeds, which differ in speeds as well. "
        "× FedAvg is the geometric mean of the ratios of times on equal seeds. "
        "`python -m benchmarks.waiting`; what the methods are: [When waiting costs](../docs/waiting.md).",
    ]
    for network in NETWORKS:
        for factor in FACTORS:
            own = [row for row in rows if row["network"] == network and row["factor"] == factor]
            if not own:
                continue
            table = []
            for name in METHODS:
                runs = [row for row in own if row["method"] == name]
                if not runs:
                    continue
                ends = [reached(row) for row in runs]
                costs = [
                    mean_of([None if end is None else end[i] for end in ends], scale)
                    for i, scale in enumerate((60, 1e9, 1e3))
                ]
                waited = [row for row in own if row["method"] == next(iter(METHODS))]
                costs.insert(1, beside(runs, waited))
                table.append([name, str(len(runs)), *costs, mean_of([100 * row["curve"][-1][1] for row in runs])])
            heads = ["method", "seeds", "minutes", "× FedAvg, paired", "GB", "kJ", "accuracy at the end, %"]
            lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
            lines += ["| " + " | ".join(line) + " |" for line in table]
            blocks += [f"## {network}, speeds within a factor of {factor:g}", "\n".join(lines)]
    return "\n\n".join(blocks) + "\n"


def go_on(
    about: str | None,
    out: Path,
    cells: Iterable[Any],
    measured: Callable[..., list[dict[str, Any]]],
    page: Callable[[Sequence[dict[str, Any]]], str],
) -> None:
    """Carry out the cells that a file of results lacks, by command line, and write its page.

    Args:
        about: the text of ``--help``.
        out: the file, unless ``--out`` names another.
        cells: the arguments of ``measured``, of which the last is the seed.
        measured: returns the rows of a cell, which have its arguments as their first fields.
        page: returns the page of all rows.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    arguments = parser.parse_args()
    rows = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
    for cell in cells:
        known = [json.dumps(row["cell"]) for row in rows]
        if cell[-1] not in arguments.seeds or json.dumps(cell) in known:
            continue
        began = time.perf_counter()
        new = [{"cell": cell, **row} for row in measured(*cell)]
        print(*cell, new[-1]["curve"][-1], f"{time.perf_counter() - began:.0f} s", flush=True)
        rows += new
        write(arguments.out, json.dumps(rows).replace("}, {", "},\n{") + "\n")
    write(arguments.out.with_suffix(".md"), page(rows))


if __name__ == "__main__":
    go_on(__doc__, RESULTS, cells(), measured, page)
