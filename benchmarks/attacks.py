"""Attacks beside defences: MNIST with 10 and 20 % attackers, and four C-MAPSS sites of which one attacks.

    python benchmarks/attacks.py                             # results/robust.json, goes on where it was stopped

MNIST: 30 devices, IID or with two labels each (shards), a logistic model, FedAvg with 6 mini-batches of 32 a visit and
rate 0.2, 10 rounds, all devices in each; accuracy on the test data after the last round. Rules that take the number of
attackers are told the true one. C-MAPSS: FD001 and FD003 at four sites of 50 engines, `cnn-sensor-gn`, momentum 0.9, 3
rounds of one pass along a cosine from 0.03 to 0.001; RMSE in cycles on the last window of each test engine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import fedfloor
from fedfloor import config
from fedfloor.base.errors import DivergedError
from fedfloor.runs.folder import write

Table = dict[str, Any]
SEEDS = (0, 1, 2)
DEVICES = 30
ROUNDS = 10
T_975 = 4.303  # of Student's distribution with two degrees of freedom
PARTITIONS: dict[str, Table] = {"IID": {"kind": "iid"}, "two labels": {"kind": "shards", "per_device": 2}}
ATTACKS: dict[str, Table] = {
    "sign flip ×5": {"kind": "sign-flip", "strength": 5.0},
    "Gaussian, σ = 1": {"kind": "gaussian"},
    "ALIE, z = 1.5": {"kind": "alie"},
    "min-max": {"kind": "min-max"},
    "inner product, ε = 1": {"kind": "inner-product", "epsilon": 1.0},
    "collusion ×5": {"kind": "collusion", "strength": 5.0},
    "label flip": {"kind": "label-flip"},
    "backdoor ×5": {"kind": "backdoor", "strength": 5.0},
    "free rider": {"kind": "free-rider"},
}
# the more telling cells come first
CORE = ("sign flip ×5", "min-max", "inner product, ε = 1", "label flip", "backdoor ×5")
CORE_RULES = ("mean", "centred clipping", "geometric median", "median", "trimmed mean", "Multi-Krum")
SITE_ATTACKS = ("sign flip ×5", "Gaussian, σ = 1")
SITE_RULES = ("mean", "median", "Krum", "geometric median")
NONE = "none"


class Cell(NamedTuple):
    """A run: data (a partition of MNIST, or ``C-MAPSS``), per cent of attackers, attack, rule, seed."""

    data: str
    percent: int
    attack: str
    rule: str
    seed: int

    @property
    def key(self) -> str:
        """The cell's name in the file of results."""
        return " | ".join(map(str, self))


def rules(attackers: int) -> dict[str, Table | str]:
    """Return the mixing rules, for so many attackers among the devices."""
    return {
        "mean": "by_samples",
        "norm bound": "norm_bound",
        "centred clipping": "centred_clipping",
        "geometric median": "geometric_median",
        "median": "median",
        "trimmed mean": {"kind": "trimmed_mean", "share": attackers / DEVICES},
        "Multi-Krum": {"kind": "multi_krum", "outliers": attackers},
        "Bulyan": {"kind": "bulyan", "outliers": attackers},
        "FoolsGold": "foolsgold",
    }


def cells() -> Iterator[Cell]:
    """Yield every cell once, the more telling ones first."""
    every = (NONE, *ATTACKS)
    all_rules = tuple(rules(1))
    order = (
        (20, (NONE, *CORE), CORE_RULES), (10, CORE, CORE_RULES), (25, (NONE, "sign flip ×5"), SITE_RULES),
        (20, (NONE, *CORE), all_rules), (25, (NONE, *SITE_ATTACKS), SITE_RULES), (20, every, all_rules),
        (10, every, all_rules),
    )  # fmt: skip
    every_once: dict[Cell, None] = {}
    for percent, attacks, chosen in order:
        for seed, attack, rule in itertools.product(SEEDS, attacks, chosen):
            data = ("C-MAPSS",) if percent == 25 else tuple(PARTITIONS)
            every_once.update(dict.fromkeys(Cell(name, percent, attack, rule, seed) for name in data))
    yield from every_once


def experiment(cell: Cell) -> Table:
    """Return a cell's experiment."""
    faults: Table = {}
    if cell.attack != NONE:
        which = {"count": 1} if cell.data == "C-MAPSS" else {"share": cell.percent / 100}
        faults = {"attackers": {**which, **ATTACKS[cell.attack]}}
    if cell.data == "C-MAPSS":
        given = {**rules(1), "Krum": {"kind": "krum", "outliers": 1, "guarantee": False}}
        return {
            "seed": cell.seed, "rounds": 3, "evaluate": {"every": 3}, "faults": faults,
            "data": {
                "name": "cmapss", "window": {"length": 30, "step": 1},
                "cmapss": {"subsets": ["FD001", "FD003"], "engines": 50},
            },
            "model": {"name": "cnn-sensor-gn"}, "method": {"name": "fedavg", "mix": given[cell.rule]},
            "work": {
                "epochs": 1, "batch_size": 64, "momentum": 0.9, "weight_decay": 1e-3,
                "lr": {"kind": "cosine", "start": 0.03, "end": 0.001},
            },
        }  # fmt: skip
    attackers = DEVICES * cell.percent // 100
    return {
        "seed": cell.seed, "rounds": ROUNDS, "evaluate": {"every": ROUNDS}, "faults": faults,
        "data": {"name": "mnist", "partition": PARTITIONS[cell.data]}, "park": {"devices": DEVICES},
        "model": {"name": "logistic"}, "method": {"name": "fedavg", "mix": rules(attackers)[cell.rule]},
        "work": {"steps": 6, "batch_size": 32, "lr": 0.2},
    }  # fmt: skip


def measure(cell: Cell) -> Table:
    """Run a cell; a run that diverges has no figure."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            line = fedfloor.run(config.from_table(experiment(cell)), Path(folder) / "run", ranks=1).lines[-1]
            figures: Table = {"figure": line.headline[1], "backdoor": line.backdoor}
        except DivergedError:
            figures = {"figure": None, "backdoor": None}
    return {**cell._asdict(), **figures, "seconds": round(time.perf_counter() - began, 2)}


def train(results: Path, seconds: float) -> None:
    """Run the cells that are not there yet, until so many seconds are over."""
    done: dict[str, Table] = json.loads(results.read_text()) if results.exists() else {}
    began = time.monotonic()
    for cell in cells():
        if cell.key in done:
            continue
        if time.monotonic() - began > seconds:
            break
        done[cell.key] = measure(cell)
        write(results, text(done))
        print(cell.key, done[cell.key]["figure"], done[cell.key]["backdoor"], flush=True)


def text(done: dict[str, Table]) -> str:
    """Return cells as JSON, a line each."""
    lines = (f"{json.dumps(k, ensure_ascii=False)}: {json.dumps(v, ensure_ascii=False)}" for k, v in done.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def interval(values: Sequence[float | None], scale: float, digits: int) -> str:
    """Return mean ± half of the 95 % t-interval over all seeds."""
    known = [scale * value for value in values if value is not None]
    if len(values) < len(SEEDS):
        return "–"
    if len(known) < len(values):
        return f"{len(values) - len(known)} of {len(values)} diverged"
    if max(known) > 1000:  # nothing held the attack: a mean would mean nothing
        return f"{min(known):,.0f} to {max(known):,.0f}"
    return f"{fmean(known):.{digits}f} ± {T_975 * stdev(known) / len(known) ** 0.5:.{digits}f}"


def page(results: Path) -> Iterator[str]:
    """Yield the page of the cells that are there."""
    done = list(json.loads(results.read_text()).values())
    every = tuple(rules(1))
    about = (__doc__ or "").split("\n\n")
    yield f"# Attacks beside defences\n\n{' '.join(about[2].split())}\n"
    yield "Mean over three seeds ± half of the 95 % t-interval; –: not run."
    yield "What follows from it: [what rules bear](../docs/robustness.md#what-rules-bear).\n"
    yield "```bash\npython benchmarks/attacks.py\n```"

    def some(data: str, percent: int, attack: str) -> list[Table]:
        return [cell for cell in done if (cell["data"], cell["percent"], cell["attack"]) == (data, percent, attack)]

    for data, percent in itertools.product(PARTITIONS, (20, 10)):
        rows = {attack: some(data, percent, attack) for attack in (NONE, *ATTACKS)}
        yield from table(f"MNIST, {data}, {percent} % attackers: accuracy (%)", "attack", rows, every)
    rows = {f"{data}, {percent} %": some(data, percent, "backdoor ×5") for data in PARTITIONS for percent in (20, 10)}
    yield from table("MNIST: success of the backdoor ×5 (%)", "devices, attackers", rows, every, "backdoor")
    rows = {attack: some("C-MAPSS", 25, attack) for attack in (NONE, *SITE_ATTACKS)}
    yield from table(
        "C-MAPSS, one attacker of four sites: RMSE (cycles)", "attack", rows, SITE_RULES, scale=1, digits=2
    )


def table(
    title: str, head: str, rows: dict[str, list[Table]], columns: Sequence[str], figure: str = "figure",
    scale: float = 100, digits: int = 1,
) -> Iterator[str]:  # fmt: skip
    """Yield a table with a column for each rule; rows that were not run are left out."""
    yield f"\n## {title}\n\n| {head} | {' | '.join(columns)} |\n|---{'|---' * len(columns)}|"
    for name, cells_of in rows.items():
        by_rule = ([cell[figure] for cell in cells_of if cell["rule"] == rule] for rule in columns)
        shown = [interval(values, scale, digits) for values in by_rule]
        if set(shown) != {"–"}:
            yield f"| {name} | {' | '.join(shown)} |"


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=Path("results/robust.json"))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no cell after so many")
    given = parser.parse_args()
    train(given.results, given.seconds)


if __name__ == "__main__":
    main()
