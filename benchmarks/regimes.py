"""Remaining life at six operating regimes: one scale for all rows beside one for each regime, on the made plant.

    python -m benchmarks.regimes --out runs/regimes --page results/regimes.md

Twelve machines in three halls, of each two runs to failure for training and one for testing; what a machine is set to
stands in three columns. FedAvg trains with both normalisations, for regimes that move the sensors more and more beside
what wear does (6 deviations of the noise), with three seeds of plant and model. Nothing was tuned.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import fedfloor
from fedfloor import config
from fedfloor.data.made.machines import SETTINGS
from papers import documents

SEEDS = (0, 1, 2)
SHIFTS = (6.0, 20.0, 60.0)
T_975 = 4.303
NORMALISE = {
    "one scale": "standard",
    "a scale per regime": {"kind": "regime", "columns": list(SETTINGS), "regimes": 6},
}


def rmse(out: Path, shift: float, label: str, seed: int) -> float:
    """Run an experiment where its figure is not there yet, and return the RMSE in rows."""
    folder = out / f"{label.replace(' ', '-')}-{shift:g}-{seed}"
    if not (folder / "result.json").exists():
        what = config.from_table({
            "name": "regimes", "seed": seed, "rounds": 12, "evaluate": {"every": 12}, "park": {"devices": 12},
            "data": {
                "name": "machines", "machines": {"runs": 3, "factories": 3, "regimes": 6, "shift": shift},
                "normalise": NORMALISE[label], "window": {"length": 20, "step": 3},
                "task": {"kind": "regression", "cap": 100, "unit": "rows"},
            },
            "model": {"name": "cnn-sensor-gn"}, "method": {"name": "fedavg"},
            "work": {"epochs": 2, "batch_size": 16, "momentum": 0.9, "lr": {"kind": "cosine", "start": 0.03}},
        })  # fmt: skip
        found = fedfloor.run(what, out=folder, ranks=1).headline[1]
        (folder / "result.json").write_text(json.dumps({"RMSE": found}), encoding="utf-8")
    return float(json.loads((folder / "result.json").read_text(encoding="utf-8"))["RMSE"])


def row(out: Path, shift: float) -> list[str]:
    """Return the table's row of a shift: both normalisations, and their difference paired by seed."""
    pooled, own = ([rmse(out, shift, label, seed) for seed in SEEDS] for label in NORMALISE)
    away = np.subtract(own, pooled)
    half = T_975 * away.std(ddof=1) / len(away) ** 0.5
    cells = (f"{np.mean(one):.1f} ({', '.join(f'{each:.1f}' for each in one)})" for one in (pooled, own))
    return [f"{shift:g}", *cells, f"{away.mean():+.1f} ± {half:.1f}"]


def main() -> None:
    """Run all and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path, required=True)
    given = parser.parse_args()
    heading, command, about = (__doc__ or "").split("\n\n", 2)
    words = (
        f"Made by `{command.strip()}`. {' '.join(about.split())}\n"
        "RMSE in rows of three seeds; the difference is paired, ± half of its 95 % t-interval."
    )
    columns = ["shift of the regimes, deviations of the noise", *NORMALISE, "difference"]
    rows = [row(given.out, shift) for shift in SHIFTS]
    blocks = ["# Operating regimes on the made plant", heading, words, {"columns": columns, "rows": rows}]
    documents.publish(given.page, blocks)


if __name__ == "__main__":
    main()
