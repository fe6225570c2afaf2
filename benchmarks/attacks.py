"""Attacks beside defences: MNIST with 10 and 20 % attackers, and four C-MAPSS sites of which one attacks.

    python benchmarks/attacks.py --results results/robust.json     # goes on where it was stopped
    python benchmarks/attacks.py --page results/robust.md          # Markdown from the cells that are there

MNIST: 30 devices, IID or with two labels each (shards), a logistic model, FedAvg with 6 mini-batches of 32 a visit and
rate 0.2, 10 rounds, all devices in each; accuracy on the test data after the last round. Rules that take the number of
attackers are told the true one. C-MAPSS: FD001 and FD003 at four sites of 50 engines, `cnn-sensor-gn`, momentum 0.9, 3
rounds of one pass along a cosine from 0.03 to 0.001; RMSE in cycles on the last window of each test engine. A cell is a
run with one seed; cells are written as they are finished.
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
from fedfloor.errors import DivergedError
from fedfloor.runs.folder import write

Table = dict[str, Any]
SEEDS, DEVICES, ROUNDS = (0, 1, 2), 30, 10
T_975 = {2: 12.706, 3: 4.303}  # of Student's distribution with n − 1 degrees of freedom
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
CORE = ("sign flip ×5", "min-max", "inner product, ε = 1", "label flip", "backdoor ×5")  # come first
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
    every, all_rules = (NONE, *ATTACKS), tuple(rules(1))
    order = (
        (20, (NONE, *CORE), CORE_RULES), (10, CORE, CORE_RULES), (25, (NONE, "sign flip ×5"), SITE_RULES),
        (20, (NONE, *CORE), all_rules), (25, (NONE, *SITE_ATTACKS), SITE_RULES), (20, every, all_rules),
        (10, every, all_rules),
    )  # fmt: skip
    found: dict[Cell, None] = {}
    for percent, attacks, chosen in order:
        for seed, attack, rule in itertools.product(SEEDS, attacks, chosen):
            data = ("C-MAPSS",) if percent == 25 else tuple(PARTITIONS)
            found.update(dict.fromkeys(Cell(name, percent, attack, rule, seed) for name in data))
    yield from found


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
        write(results, json.dumps(done, indent=0, ensure_ascii=False) + "\n")
        print(cell.key, done[cell.key]["figure"], done[cell.key]["backdoor"], flush=True)


def interval(values: Sequence[float | None], scale: float = 100, digits: int = 1) -> str:
    """Return mean ± half of the 95 % t-interval."""
    known = [scale * value for value in values if value is not None]
    if len(known) < len(values):
        return f"{len(values) - len(known)} of {len(values)} diverged"
    if len(known) < 2:
        return f"{known[0]:.{digits}f}" if known else "–"
    return f"{fmean(known):.{digits}f} ± {T_975[len(known)] * stdev(known) / len(known) ** 0.5:.{digits}f}"


def page(results: Path) -> Iterator[str]:
    """Yield the page of the cells that are there."""
    done = list(json.loads(results.read_text()).values())
    about = (__doc__ or "").split("\n\n")
    yield f"# Attacks beside defences\n\nMade by `python benchmarks/attacks.py`. {' '.join(about[2].split())}\n"
    yield "Mean over seeds ± half of the 95 % t-interval. [What it means](../docs/robustness.md).\n"
    for data, percent in itertools.product((*PARTITIONS, "C-MAPSS"), (20, 10, 25)):
        some = [cell for cell in done if cell["data"] == data and cell["percent"] in (percent, 0)]
        if not some:
            continue
        sites = data == "C-MAPSS"
        named = "C-MAPSS, one attacker of four sites: RMSE (cycles)" if sites else (
            f"MNIST, {data}, {percent} % attackers: accuracy (%)"
        )  # fmt: skip
        yield from table(named, some, SITE_RULES if sites else tuple(rules(10)), 1.0 if sites else 100.0)
    marked = [cell for cell in done if cell["backdoor"] is not None]
    if marked:
        yield "\n## Success of the backdoor (%)\n"
        yield f"| data | attackers | {' | '.join(rules(10))} |\n|---{'|---' * (1 + len(rules(10)))}|"
        for data, percent in itertools.product(PARTITIONS, (20, 10)):
            own = [cell for cell in marked if (cell["data"], cell["percent"]) == (data, percent)]
            if own:
                by_rule = [[cell["backdoor"] for cell in own if cell["rule"] == rule] for rule in rules(10)]
                yield f"| {data} | {percent} % | {' | '.join(interval(values) for values in by_rule)} |"


def table(title: str, cells_of: Sequence[Table], columns: Sequence[str], scale: float) -> Iterator[str]:
    """Yield one table: a row for each attack, a column for each rule."""
    yield f"\n## {title}\n"
    yield f"| attack | {' | '.join(columns)} |\n|---{'|---' * len(columns)}|"
    for attack in (NONE, *ATTACKS):
        own = [cell for cell in cells_of if cell["attack"] == attack]
        if own:
            by_rule = [[cell["figure"] for cell in own if cell["rule"] == rule] for rule in columns]
            digits = 1 if scale > 1 else 2
            yield f"| {attack} | {' | '.join(interval(values, scale, digits) for values in by_rule)} |"


def main() -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=Path("results/robust.json"))
    parser.add_argument("--page", type=Path, help="write the page and run nothing")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no cell after so many")
    given = parser.parse_args()
    if given.page is None:
        train(given.results, given.seconds)
    else:
        write(given.page, "\n".join(page(given.results)) + "\n")


if __name__ == "__main__":
    main()
