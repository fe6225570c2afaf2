"""Remaining life at six operating regimes: one scale for all rows beside one for each regime, on the made plant.

    python benchmarks/regimes.py --out RUNS

The plant of twelve machines is written as a table in which the regime stands as a column, as what a machine is set to
does in plants. FedAvg trains with both normalisations and three seeds of plant and model; the last run of each machine
is for testing.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import fedfloor
from fedfloor import config
from fedfloor.data.made.machines import SENSORS, Machines, columns, recordings

NORMALISE = {"one scale": "standard", "a scale per regime": {"kind": "regime", "columns": ["regime"], "regimes": 6}}


def table(file: Path, seed: int) -> None:
    """Write the plant of a seed as CSV."""
    made = columns(recordings(12, 3, seed, Machines(runs=3, regimes=6)), 3)
    kept = ("machine", "hall", "run", "row", *SENSORS, "regime", "life")
    rows = zip(*(made[name].tolist() for name in kept), strict=True)
    file.write_text("\n".join([",".join(kept), *(",".join(map(str, row)) for row in rows)]) + "\n", encoding="utf-8")


def main() -> None:
    """Run all and print RMSE."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for label, normalise in NORMALISE.items():
        found = []
        for seed in range(3):
            file = out / f"plant-{seed}.csv"
            table(file, seed)
            what = config.from_table({
                "name": "regimes", "seed": seed, "rounds": 12, "evaluate": {"every": 12},
                "data": {
                    "path": str(file), "normalise": normalise, "window": {"length": 20, "step": 3},
                    "split": {"kind": "run", "test": 0.3}, "task": {"kind": "regression", "cap": 100, "unit": "rows"},
                    "columns": {
                        "device": "machine", "factory": "hall", "run": "run", "time": "row", "label": "life",
                    },
                },
                "model": {"name": "cnn-sensor-gn"}, "method": {"name": "fedavg"},
                "work": {"epochs": 2, "batch_size": 16, "momentum": 0.9, "lr": {"kind": "cosine", "start": 0.03}},
            })  # fmt: skip
            run = fedfloor.run(what, out=out / f"{label.replace(' ', '-')}-{seed}", ranks=1)
            found.append(run.headline[1] or np.nan)
        print(f"{label}: RMSE {np.mean(found):.1f} ({', '.join(f'{one:.1f}' for one in found)})", flush=True)


if __name__ == "__main__":
    main()
