"""Codecs on FEMNIST: accuracy, bytes, seconds and joules on LTE Cat-M2 and on 5G.

    python benchmarks/codecs.py prices                    # of a round, by its plan: nothing is trained; two minutes
    python benchmarks/codecs.py train --out RUNS          # every codec and seed in turn; goes on where it was stopped
    python benchmarks/codecs.py others --out RUNS         # FedSR, HFedMS and RaFed with and without codecs
    python benchmarks/codecs.py page --out RUNS           # results/codecs: the runs that are there, and their tables
    python benchmarks/codecs.py speed                     # of codecs beside a visit to a model of 6.6 million numbers

The experiment is that of results/femnist-network.md: 300 writers, 30 of them in a round, two passes, the tutorial CNN.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).parents[1]))  # the source tree
import fedfloor
from fedfloor import config
from fedfloor.experiment import Experiment
from fedfloor.network.profile import NetworkSettings
from fedfloor.report.groups import half_width
from fedfloor.runs import forecast, ledger
from fedfloor.runs.forecast import priced
from fedfloor.runs.parks import build_park
from papers import documents

FILE = Path(__file__).parents[1] / "experiments/femnist-methods.toml"
NETWORKS = ("lte-cat-m2", "5g-edge")
SEEDS = (0, 1, 2)
ROUNDS = 40
TARGET = 0.8
COSTS = ("MB", "min, LTE", "kJ, LTE", "s, 5G", "kJ, 5G")
LAST = 5  # evaluations, whose mean is less noisy than the last one
COLUMNS = (
    "codecs", "seeds", "rounds to 0.80", "accuracy after 40 rounds, %", "less none", "less none, rounds 32 to 40",
    *COSTS,
)  # fmt: skip
RESULTS = Path(__file__).parents[1] / "results/codecs.json"
TOP = '{ kind = "top-k", share = 0.05 }'
CODECS = {
    "none": (), "float16 both ways": ('"float16"', '"float16"'), "int8 up": ('"int8"', ""),
    "int8 both ways": ('"int8"', '"int8"'), "int4, int8 down": ('"int4"', '"int8"'),
    "int2, int8 down": ('"int2"', '"int8"'), "top-k 5 % as int8, int8 down": (f'[{TOP}, "int8"]', '"int8"'),
    "random-k 5 %, int8 down": (TOP.replace("top", "random"), '"int8"'),
    "low-rank 4, int8 down": ('"low-rank"', '"int8"'), "sign, int8 down": ('"sign"', '"int8"'),
}  # fmt: skip
SMALL = {"model.name": "cnn-small"}
TRAINED = {"fedsr": (20, SMALL), "hfedms": (40, SMALL), "rafed": (40, {})}  # rounds, and what is smaller than there
CHOSEN = ("none", "int8 both ways", "int4, int8 down")  # codecs of the other methods
BESIDE = (
    "method", "codecs", "seeds", "rounds", "accuracy at the end, %", "less none", "less none, last five evaluations",
)  # fmt: skip
OTHERS = {  # methods beside FedAvg, with their own experiments
    "fedsr": (FILE, "lte-cat-m2"), "hfedms": (FILE.parent / "hfedms-femnist.toml", "lte-cat-m2"),
    "rafed": (FILE.parent / "rafed-mnist.toml", "rafed"),
}  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """Seconds, bytes on links of devices, and joules of a round."""

    seconds: float
    bytes: float
    joules: float


def experiment(
    codecs: Sequence[str], seed: int = 0, network: str = NETWORKS[0], file: Path = FILE, **more: Any
) -> Experiment:
    """Return the experiment with codecs up and down."""
    keys = zip(("method.travel", "method.travel_down"), codecs, strict=False)
    changes = [f"{key}={value}" for key, value in keys if value] + [f"{key}={value}" for key, value in more.items()]
    return config.read(file, [*changes, f"seed={seed}", f"network.profile={network}"])


def costs(what: Experiment, rounds: int = 5) -> Cost:
    """Return the mean price of the first rounds, by their plans."""
    prices = [one.price for one in forecast.rounds(what, build_park(what), rounds) if one.number]
    sizes = [sum(size for link, size in price.bytes.items() if link.startswith("device")) for price in prices]
    return Cost(mean(p.seconds for p in prices), mean(sizes), mean(p.joules for p in prices))


def show_prices() -> None:
    """Print the price of a round with every codec, and of other methods with and without int8."""
    print("| codecs | MB | s, LTE | kJ, LTE | s, 5G | J, 5G |\n|---|---|---|---|---|---|")
    for name, codecs in CODECS.items():
        lte, fast = (costs(experiment(codecs, network=network)) for network in NETWORKS)
        print(
            f"| {name} | {lte.bytes / 1e6:.2f} | {lte.seconds:.2f} | {lte.joules / 1e3:.2f} | "
            f"{fast.seconds:.3f} | {fast.joules:.1f} |", flush=True,
        )  # fmt: skip
    for method, (file, network) in OTHERS.items():
        for name in ("none", "int8 both ways", "top-k 5 % as int8, int8 down"):
            cost = costs(experiment(CODECS[name], 0, network, file, **{"method.name": method}))
            figures = f"{cost.bytes / 1e6:.2f} | {cost.seconds:.2f} | {cost.joules / 1e3:.3f}"
            print(f"| {method} on {network}, {name} | {figures} | | |", flush=True)


def train(out: Path, names: Sequence[str], seeds: Sequence[int]) -> None:
    """Train what is not there yet, one run after the other."""
    for seed in seeds:
        for name in names:
            folder = out / f"{slug(name)}-{seed}"
            what = experiment(CODECS[name], seed, rounds=60, **{"evaluate.every": 2})
            limits = fedfloor.Limits(ROUNDS)
            fedfloor.run(what, folder, ranks=1, resume=(folder / "experiment.toml").exists(), limits=limits)


def train_others(out: Path, seeds: Sequence[int]) -> None:
    """Train methods beside FedAvg on their own experiments, what is not there yet, one run after the other."""
    for seed in seeds:
        for method, (rounds, smaller) in TRAINED.items():
            file, network = OTHERS[method]
            for name in CHOSEN:
                folder = out / f"{method}-{slug(name)}-{seed}"
                more = {"method.name": method, "rounds": rounds, "evaluate.every": 2, **smaller}
                what = experiment(CODECS[name], seed, network, file, **more)
                fedfloor.run(what, folder, ranks=1, resume=(folder / "experiment.toml").exists())


def others(out: Path, runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs of methods beside FedAvg: those known, and those that are in a folder to their last round."""
    known = {(run["method"], run["codecs"], run["seed"]): dict(run) for run in runs}
    for method, (rounds, _) in TRAINED.items():
        for name in CHOSEN:
            for seed in SEEDS:
                path = out / f"{method}-{slug(name)}-{seed}" / "ledger.jsonl"
                lines = ledger.read(path) if path.exists() else []
                if lines and lines[-1].round == rounds:
                    scores = [round(100 * line.accuracy, 3) for line in lines if line.accuracy is not None]
                    key = {"method": method, "codecs": name, "seed": seed}
                    known[method, name, seed] = {**key, "rounds": rounds, "accuracies": scores}
    order = [(method, name, seed) for method in TRAINED for name in CHOSEN for seed in SEEDS]
    return [known[key] for key in order if key in known]


def rows_of_others(runs: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yield the table's rows of methods beside FedAvg; see :func:`rows`."""
    for method, name in dict.fromkeys((run["method"], run["codecs"]) for run in runs):
        own = {run["seed"]: run for run in runs if (run["method"], run["codecs"]) == (method, name)}
        plain = {run["seed"]: run for run in runs if (run["method"], run["codecs"]) == (method, "none")}
        pairs = [(own[seed]["accuracies"], plain[seed]["accuracies"]) for seed in own if seed in plain]
        less = [spread([mean(a[-n:]) - mean(b[-n:]) for a, b in pairs]) if name != "none" else "" for n in (1, LAST)]
        rounds = str(next(iter(own.values()))["rounds"])
        yield [method, name, str(len(own)), rounds, spread([run["accuracies"][-1] for run in own.values()]), *less]


def slug(name: str) -> str:
    """Return a name as a folder has it."""
    return "-".join("".join(c if c.isalnum() else " " for c in name).split())


def page(out: Path, results: Path = RESULTS) -> None:
    """Add the runs that are there to the results, and write the table to 0.80 from all of them."""
    document = json.loads(results.read_text(encoding="utf-8"))
    runs = {(run["codecs"], run["seed"]): run for run in document["runs"]}
    for name in CODECS:
        for seed in SEEDS:
            folder = out / f"{slug(name)}-{seed}"
            if (folder / "ledger.jsonl").exists() and ledger.read(folder / "ledger.jsonl")[-1].round >= ROUNDS:
                runs[name, seed] = {"codecs": name, "seed": seed, **measured(folder)}
    document["runs"] = [runs[key] for key in sorted(runs, key=lambda key: (list(CODECS).index(key[0]), key[1]))]
    document["others"] = others(out, document.get("others", ()))
    first, second, _ = (block for block in document["blocks"] if isinstance(block, dict))
    first |= {"columns": list(COLUMNS), "rows": list(rows(document["runs"]))}
    second |= {"columns": list(BESIDE), "rows": list(rows_of_others(document["others"]))}
    documents.publish(results.with_suffix(".md"), document.pop("blocks"), **document)


def rows(runs: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yield the table's rows: means over seeds; accuracies with half of the 95 % t-interval, differences paired."""
    plain = {run["seed"]: run["accuracies"] for run in runs if run["codecs"] == "none"}
    for name in dict.fromkeys(run["codecs"] for run in runs):
        own = [run for run in runs if run["codecs"] == name]
        pairs = [(run["accuracies"], plain[run["seed"]]) for run in own if run["seed"] in plain and name != "none"]
        cells = [name, str(len(own)), f"{mean(run['rounds'] for run in own):.4g}"]
        cells += [spread([run["accuracies"][-1] for run in own])]
        cells += [spread([mean(ours[-n:]) - mean(theirs[-n:]) for ours, theirs in pairs]) for n in (1, LAST)]
        yield cells + [f"{mean(run[key] for run in own):.4g}" for key in COSTS]


def spread(values: Sequence[float]) -> str:
    """Return a mean with half of its 95 % t-interval, where there are several."""
    if not values:
        return ""
    half = half_width(values)
    return f"{mean(values):.2f}" + (f" ± {half:.2f}" if half is not None else "")


def measured(folder: Path) -> dict[str, Any]:
    """Return a run's accuracies in per cent, and its costs up to the first evaluated round of 0.80, or its last."""
    lines = ledger.read(folder / "ledger.jsonl")
    scored = [line for line in lines if line.accuracy is not None]
    first = next((line for line in scored if (line.accuracy or 0) >= TARGET), scored[-1])
    what = config.read(folder / "experiment.toml")
    park = build_park(what)
    costs = list[float]()
    for network in NETWORKS:
        there = replace(what, network=NetworkSettings(profile=network))
        paid = [line.priced or {} for line in priced(there, park, lines, folder)[: first.round]]
        if not costs:
            sizes = [sum(n for link, n in each["bytes"].items() if link.startswith("device")) for each in paid]
            costs = [sum(sizes) / 1e6]
        seconds = sum(each["seconds"] for each in paid)
        costs += [seconds / 60 if network == NETWORKS[0] else seconds, sum(each["joules"] for each in paid) / 1e3]
    return {
        "accuracies": [round(100 * (line.accuracy or 0), 3) for line in scored], "rounds": first.round,
        **dict(zip(COSTS, costs, strict=True)),
    }  # fmt: skip


def speed() -> None:
    """Print how long codecs take beside rounds of four visits of 10 mini-batches to 6.6 million numbers."""
    table = {
        "data": {"name": "labels", "samples_per_device": 320}, "park": {"devices": 4},
        "model": {"name": "cnn-fedgs"}, "work": {"epochs": 1, "batch_size": 32}, "rounds": 4,
    }  # fmt: skip
    for name, codecs in CODECS.items():
        chosen = {key: config.value(text) for key, text in zip(("travel", "travel_down"), codecs, strict=False) if text}
        with tempfile.TemporaryDirectory() as folder:
            what = config.from_table({**table, "method": {"name": "fedavg", **chosen}})
            run = fedfloor.run(what, Path(folder) / "run", ranks=1)
            walls = [line.wall_s for line in run.lines]
        print(f"{name:32} {min(walls):.3f} s, the best of {len(walls)} rounds", flush=True)


def main() -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("do", choices=("prices", "train", "others", "page", "speed"))
    parser.add_argument("--out", type=Path, default=Path("runs/codecs"))
    parser.add_argument("--only", action="append", choices=tuple(CODECS), help="codecs; all where it is left out")
    parser.add_argument("--seed", action="append", type=int)
    asked = parser.parse_args()
    if asked.do == "prices":
        show_prices()
    elif asked.do == "train":
        train(asked.out, asked.only or tuple(CODECS), asked.seed or SEEDS)
    elif asked.do == "others":
        train_others(asked.out, asked.seed or SEEDS)
    elif asked.do == "page":
        page(asked.out)
    else:
        speed()


if __name__ == "__main__":
    main()
