"""What one attacker of eight reaches with a mean, within `deploy.norm_limit`.

    python -m benchmarks.within_limit                        # results/within-limit.md

MNIST, 8 devices in two factories, IID, a logistic model, 20 mini-batches of 32 a visit at rate 0.1, 20 rounds. The
limit is applied as on real machines (`deploy.simulate`). One device attacks in every visit. Accuracy on the test data
and success of the backdoor after 5, 10 and 20 rounds in per cent, means over three seeds; refused: visits of the
attacker, and of the others, of 20 and 140.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import fedfloor
from fedfloor import config
from papers import documents

Table = dict[str, Any]
SEEDS = (0, 1, 2)
ROUNDS = 20
SHOWN = (5, 10, 20)
ATTACKER = 0
METHODS = ("fedavg", "hierfavg")
LIMITS = (10.0, 4.0)
ATTACKS: dict[str, Table] = {
    "none": {},
    **{f"sign flip ×{by}": {"kind": "sign-flip", "strength": float(by)} for by in (1, 3, 8)},
    **{f"backdoor ×{by}": {"kind": "backdoor", "strength": float(by)} for by in (1, 3, 8)},
}
COLUMNS = ["method", "attack", "limit", "accuracy", "backdoor", "refused: attacker", "others"]


def experiment(method: str, attack: str, limit: float, seed: int) -> Table:
    """Return a cell's experiment."""
    faults = {"attackers": {"devices": [ATTACKER], **ATTACKS[attack]}} if ATTACKS[attack] else {}
    return {
        "seed": seed, "rounds": ROUNDS, "evaluate": {"every": 5}, "faults": faults,
        "data": {"name": "mnist", "partition": {"kind": "iid"}}, "park": {"devices": 8, "factories": 2},
        "model": {"name": "logistic"}, "method": {"name": method}, "deploy": {"simulate": True, "norm_limit": limit},
        "work": {"steps": 20, "batch_size": 32, "lr": 0.1},
    }  # fmt: skip


def measured(method: str, attack: str, limit: float) -> list[str]:
    """Run a cell with every seed; return its row."""
    accuracies = []
    successes = []
    refused = [0.0, 0.0]
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            what = config.from_table(experiment(method, attack, limit, seed))
            lines = fedfloor.run(what, Path(folder) / "run", ranks=1).lines
        accuracies.append([100 * line.headline[1] for line in lines if line.round in SHOWN])
        successes.append([100 * (line.backdoor or 0.0) for line in lines if line.round in SHOWN])
        for line in lines:
            devices = line.info.get("refused", {})
            refused[0] += str(ATTACKER) in devices
            refused[1] += len(devices.keys() - {str(ATTACKER)})

    def means(rows: list[list[float]]) -> str:
        return " · ".join(f"{fmean(column):.1f}" for column in zip(*rows, strict=True))

    backdoor = means(successes) if "backdoor" in attack else "–"
    counts = [f"{count / len(SEEDS):.1f}" for count in refused]
    return [method, attack, f"{limit:g}", means(accuracies), backdoor, *counts]


def main() -> None:
    """Measure every cell, and write the page."""
    rows = []
    for method in METHODS:
        for attack in ATTACKS:
            for limit in LIMITS:
                rows.append(measured(method, attack, limit))
                print(*rows[-1], flush=True)
    about = (__doc__ or "").split("\n\n")[2]
    blocks = [
        "# One attacker within the limit on updates", " ".join(about.split()),
        "```bash\npython -m benchmarks.within_limit\n```", {"columns": COLUMNS, "rows": rows},
    ]  # fmt: skip
    documents.publish(Path("results/within-limit.md"), blocks)


if __name__ == "__main__":
    main()
