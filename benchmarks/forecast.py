"""Forecasts of a test bench's sensors: SKAB's 16 recordings with valve 1, the next 10 rows of its 8 sensors.

    python benchmarks/forecast.py --out RUNS [--results results]         # goes on where it was stopped

Each recording is a device; the last 30 % of its rows are for testing. Every method's rate is chosen among four with a
seed of its own on the last rows of what trains (``evaluate.on = "validation"``), by MASE after 8 rounds. Five other
seeds then train 15 rounds, and the model of the last round is judged on the test rows beside persistence, the last
value that goes on. The page has the paired differences with their 95 % intervals. The data are looked for in
$FEDFLOOR_DATA/skab.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import fedfloor
from fedfloor import config
from fedfloor.base.errors import DivergedError
from fedfloor.data.sources import data_root
from fedfloor.experiment import Experiment
from fedfloor.report.groups import half_width
from fedfloor.runs import references
from fedfloor.runs.compare import PlannedRun, carry_out
from fedfloor.runs.orders import Limits

NETWORKS = ("linear", "cnn-sensor-gn")
METHODS = {"fedavg": "FedAvg", "centralized": "centralised", "local-only": "local only"}
ROWS = {f"{method}-{network}": (method, network) for network in NETWORKS for method in METHODS}
RATES = (0.01, 0.03, 0.1, 0.3)
TUNED_WITH = 100
TUNED_ROUNDS = 8
ROUNDS = 15
SEEDS = (0, 1, 2, 3, 4)
HORIZON = 10
WINDOW = 30
STEP = 2
FIGURES = ("MASE", "RMSE", "R2")
Table = dict[str, Any]


def experiment(method: str, network: str, seed: int, rate: float, rounds: int, *, tune: bool) -> Experiment:
    """Return what is run."""
    return config.from_table({
        "name": f"forecast-{method}-{network}", "seed": seed, "rounds": rounds,
        "data": {
            "path": str(data_root() / "skab" / "valve1"), "normalise": "standard", "device": "file",
            "columns": {"time": "datetime", "label": "anomaly", "ignore": ["changepoint"]},
            "window": {"length": WINDOW, "step": STEP},
            "task": {"kind": "forecasting", "horizon": HORIZON},
        },
        "model": {"name": network}, "method": {"name": method},
        "work": {"epochs": 1, "batch_size": 32, "momentum": 0.9, "lr": {"kind": "cosine", "start": rate}},
        "evaluate": {"on": "validation", "validation": 0.2, "every": rounds} if tune else {"every": rounds},
    })  # fmt: skip


def figures(folder: Path) -> Table | None:
    """Return the figures of a run that ended; None where it did not."""
    file = folder / "evaluation.json"
    return json.loads(file.read_text(encoding="utf-8"))["figures"] if file.exists() else None


def trained(what: Experiment, folder: Path) -> Table | None:
    """Return the figures of a run, which is carried out unless it is there; None where it diverged."""
    if figures(folder) is None and not (folder / "diverged.json").exists():
        try:
            fedfloor.run(what, out=folder, ranks=1, resume=(folder / "experiment.toml").exists())
        except DivergedError as error:
            (folder / "diverged.json").write_text(json.dumps({"error": str(error)}), encoding="utf-8")
    return figures(folder)


def persistence(folder: Path, seed: int) -> Table:
    """Return the figures of the last value that goes on."""
    what = experiment("fedavg", NETWORKS[0], seed, RATES[0], ROUNDS, tune=False)
    bare = replace(what, method=replace(what.method, name="persistence"))
    naive = PlannedRun("persistence", bare, folder, start=references.start)
    carry_out([naive], Limits(), 1, lambda _: _Quiet(), resume=True)
    found = figures(folder)
    assert found is not None
    return found


class _Quiet:
    def __enter__(self) -> Any:
        return lambda _: None

    def __exit__(self, *_: object) -> None:
        return None


def chosen(row: str, out: Path) -> tuple[float, Table]:
    """Return the rate with the lowest MASE on validation rows, and that of each."""
    tried: Table = {}
    for rate in RATES:
        what = experiment(*ROWS[row], TUNED_WITH, rate, TUNED_ROUNDS, tune=True)
        found = trained(what, out / f"tune-{row}-{rate:g}")
        tried[f"{rate:g}"] = math.inf if found is None else found["MASE"]
    return float(min(tried, key=lambda one: tried[one])), tried


def interval(values: list[float]) -> str:
    """Return a mean with its 95 % interval."""
    width = half_width(values)
    return f"{np.mean(values):.3f}" + ("" if width is None else f" ± {width:.3f}")


def page(rows: dict[str, list[Table]], naive_rows: list[Table], tuned: Table) -> str:
    """Return the results as Markdown."""
    told = [
        "# Forecasts of a test bench's sensors", "",
        "The next 10 rows (10 s) of the eight sensors of SKAB's 16 recordings with valve 1, from windows of 30 rows; "
        "each recording is a device, the last 30 % of its rows are for testing. Networks give changes from the newest "
        "row. `linear` is one linear layer (NLinear), `cnn-sensor-gn` three convolutions with group norm; 15 rounds of "
        "one pass, mini-batches of 32, momentum 0.9; rates chosen on validation rows (below). Mean over five seeds "
        "with its 95 % interval; MASE is the mean absolute error divided by that of repeating the value before, one "
        "row ahead, in training.",
        "",
        "```console", "python benchmarks/forecast.py --out runs/forecast", "```", "",
        "| | network | MASE | RMSE | R² | MASE less that of persistence |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    first = naive_rows[0]
    told.append(f"| persistence | | {first['MASE']:.3f} | {first['RMSE']:.3f} | {first['R2']:.3f} | |")
    for name, found in rows.items():
        gap = [one["MASE"] - other["MASE"] for one, other in zip(found, naive_rows, strict=True)]
        cells = [interval([one[key] for one in found]) for key in FIGURES]
        told.append(f"| {METHODS[ROWS[name][0]]} | `{ROWS[name][1]}` | {' | '.join(cells)} | {interval(gap)} |")
    told += [
        "",
        "MASE on validation rows after 8 rounds, by rate:",
        "",
        "| | network | " + " | ".join(f"{r:g}" for r in RATES) + " |",
    ]
    told.append("|---|---|" + "---|" * len(RATES))
    for name in rows:
        method, network = ROWS[name]
        told.append(
            f"| {METHODS[method]} | `{network}` | {' | '.join(f'{mase:.3f}' for mase in tuned[name].values())} |"
        )
    return "\n".join(told) + "\n"


def main() -> None:
    """Run what is missing and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the page and its JSON")
    given = parser.parse_args()
    best = {}
    tuned = {}
    for name in ROWS:
        best[name], tuned[name] = chosen(name, given.out)
        print(f"{name}: rate {best[name]:g} of {tuned[name]}", flush=True)
    naive_rows = [persistence(given.out / f"persistence-{seed}", seed) for seed in SEEDS]
    rows: dict[str, list[Table]] = {name: [] for name in ROWS}
    for seed in SEEDS:
        for name in ROWS:
            what = experiment(*ROWS[name], seed, best[name], ROUNDS, tune=False)
            found = trained(what, given.out / f"{name}-{seed}")
            if found is None:
                raise SystemExit(f"{name} with seed {seed} diverged: the page needs every run")
            rows[name].append(found)
            print(f"{name} seed {seed}: {found}", flush=True)
    whole = {"rates": best, "tuned": tuned, "persistence": naive_rows, **rows}
    (given.results / "forecast.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    (given.results / "forecast.md").write_text(page(rows, naive_rows, tuned), encoding="utf-8")


if __name__ == "__main__":
    main()
