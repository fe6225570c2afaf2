"""Networks for windows of sensors with FedAvg, and boosted trees, on the factory benchmark's data, with more rounds.

    python -m benchmarks.windows [--seeds 0,1,2] [--only SET,…]

Data, partition, normalisation and work are the protocols'; only the network or method and the number of rounds differ.
Boosting draws nothing: with the turbofans' fixed split, seeds differ in rounding only. On process-faults it is left
out: 7·52 features and 22 classes make sums of 16 MB per device and round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import fedfloor
from fedfloor import config
from fedfloor.report.groups import half_width
from papers import documents

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "results/windows.md"
NETWORKS = ("mlp-sensor", "cnn-sensor", "cnn-sensor-gn", "mlp-window", "cnn-window", "boosting")  # the last is a method
LEVELS = 604  # rounds of boosting: 4, and 100 trees of at most 6 levels
LEFT_OUT = ("process-faults", "boosting")
SETS = {
    "process-faults": (45, "macro-F1"),
    "rare-faults": (36, "macro-F1"),
    "turbofans": (12, "RMSE"),
}  # rounds, metric


def metric(name: str, network: str, seed: int) -> tuple[float, float]:
    """Return the metric of a run on the test samples, and the seconds of its rounds."""
    rounds, headline = SETS[name]
    trees = network == "boosting"
    rounds = LEVELS if trees else rounds
    changes = ["method.name=boosting"] if trees else [f"model.name={network}"]
    changes += [f"seed={seed}", f"rounds={rounds}", f"evaluate.every={rounds}"]
    experiment = config.read(ROOT / f"experiments/benchmark/{name}.toml", changes)
    with tempfile.TemporaryDirectory() as folder:
        out = fedfloor.run(experiment, Path(folder) / "run", ranks=1).folder
        found = json.loads((out / "evaluation.json").read_text())
        lines = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    value = found["macro_f1"] if headline == "macro-F1" else found["figures"][headline]
    return float(value), sum(line["wall_s"] for line in lines)


def main() -> None:
    """Run each combination that is not on the page yet, and write the page after each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default=",".join(SETS))
    given = parser.parse_args()
    file = PAGE.with_suffix(".json")
    runs: dict[str, Any] = json.loads(file.read_text())["runs"] if file.exists() else {}
    for seed in given.seeds.split(","):
        for name in given.only.split(","):
            for network in NETWORKS:
                key = f"{name} {network} {seed}"
                if key not in runs and (name, network) != LEFT_OUT:
                    runs[key] = metric(name, network, int(seed))
                    print(key, *runs[key], flush=True)
                    publish(runs)


def publish(runs: dict[str, Any]) -> None:
    """Write the page of the runs so far."""
    rows = []
    for name, (rounds, headline) in SETS.items():
        for network in NETWORKS:
            got = [value for key, value in runs.items() if key.rpartition(" ")[0] == f"{name} {network}"]
            if got:
                values, seconds = zip(*got, strict=True)
                mean = statistics.mean(values)
                half = half_width(values)
                spread = "–" if half is None else f"{half:.3f}"
                shown = str(LEVELS if network == "boosting" else rounds)
                rows.append([name, shown, network, headline, f"{mean:.3f}", spread, str(len(got)),
                             f"{statistics.median(seconds):.0f}"])  # fmt: skip
    columns = [
        "data",
        "rounds",
        "network",
        "metric",
        "mean",
        "half width of 95 %",
        "seeds",
        "seconds beside other work",
    ]
    documents.publish(PAGE, ["# Networks for windows", __doc__ or "", {"columns": columns, "rows": rows}], runs=runs)


if __name__ == "__main__":
    main()
