"""A model per device beside one for all: pictures of two classes each, and sites whose sensors stand at other levels.

    python benchmarks/personal.py --out RUNS               # goes on where it was stopped; results/personal.json

Pictures: 20 devices hold 100 pictures of two classes each (shards, ξ = 2) and are tested on pictures of their own two
classes; a model for all has to tell ten apart at once. FEMNIST: 40 writers with at least 120 characters, a fifth of
them for testing; they differ in hand, not in labels. *Personal* is the
accuracy with each device's own model on its own test pictures, *one model* that of the model that a run writes (for
FedPer and FedRep with the mean of all heads) on the test pictures of all devices.

Sites: the made plant's remaining lives, row by row, at sites of one operating regime each, or with calibration offsets
of their own. `FedAvg that knows the site` has every site's sensors on a scale of its own (`normalise = "device"`). The
gap closed is (FedAvg − method)/(FedAvg − FedAvg that knows the site), of mean RMSEs; *minus knowing* is the method less
FedAvg that knows the site, paired by seed.

Bytes and joules are those of all rounds on LTE Cat-M2. Nothing was tuned for a method; rates and passes are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from torch import nn

import fedfloor
from benchmarks.cohorts import idx, spread
from fedfloor import config
from fedfloor.data import sources
from fedfloor.data.made.machines import SENSORS, Machines, columns, recordings
from fedfloor.experiment import EvaluateSettings
from fedfloor.methods.catalog import METHODS, REFERENCES
from fedfloor.runs.folder import write

# of sites; pictures have the first three
SEEDS = tuple(range(8))
DEVICES = 20
TRAIN = 100
TEST = 50
Table = dict[str, Any]
PICTURES: dict[str, tuple[str, Table]] = {
    "local only": ("local-only", {}),
    "FedAvg": ("fedavg", {}),
    "FedAvg, fine-tuned": ("fedavg", {"finetune": 1}),
    "FedPer": ("fedper", {}),
    "FedRep": ("fedrep", {"head_epochs": 2}),
    "Ditto": ("ditto", {}),
    "APFL": ("apfl", {}),
    "IFCA, 4 models": ("ifca", {"cohorts": 4}),
    "FL+HC": ("flhc", {}),
    "FedAvg, batch norm": ("fedavg", {"model": "personal:normed"}),
    "FedBN, batch norm": ("fedper", {"model": "personal:normed", "own": "norms"}),
}
WRITERS = {title: own for title, own in PICTURES.items() if "batch norm" not in title}  # some end on a single sample
SITES: dict[str, tuple[str, Table]] = {
    "local only": ("local-only", {}),
    "FedAvg": ("fedavg", {}),
    "FedAvg that knows the site": ("fedavg", {"normalise": "device"}),
    "FedAvg, fine-tuned": ("fedavg", {"finetune": 1}),
    "FedPer": ("fedper", {}),
    "FedPer, own body (LG-FedAvg)": ("fedper", {"own": "body"}),
    "FedRep": ("fedrep", {"head_epochs": 2}),
    "Ditto": ("ditto", {}),
    "APFL": ("apfl", {}),
    "IFCA, 3 models": ("ifca", {"cohorts": 3}),
}


def normed(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the 2NN with batch normalisation."""
    layers = [nn.Linear(int(np.prod(shape)), 200), nn.BatchNorm1d(200), nn.ReLU(), nn.Linear(200, 200)]
    return nn.Sequential(nn.Flatten(), *layers, nn.BatchNorm1d(200), nn.ReLU(), nn.Linear(200, outputs))


def shards(name: str, seed: int, file: Path) -> Table:
    """Write pictures of two classes for each device; return the table of their experiment."""
    folder = Path(os.environ["FEDFLOOR_DATA"]) / name
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.arange(2 * DEVICES) % 10).reshape(DEVICES, 2)
    arrays: dict[str, np.ndarray] = {}
    for part, many, to in (("train", TRAIN, ""), ("t10k", TEST, "_test")):
        x = idx(folder / f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
        y = idx(folder / f"{part}-labels-idx1-ubyte.gz", 8).astype(np.int64)
        rows = [rng.choice(np.flatnonzero(y == c), many // 2, replace=False) for own in classes for c in own]
        taken = np.concatenate(rows)
        arrays |= {f"x{to}": x[taken], f"y{to}": y[taken], f"device{to}": np.repeat(np.arange(DEVICES), many)}
    np.savez(file, **arrays, classes=np.arange(10).astype(str))
    work = {"epochs": 2, "batch_size": 20, "lr": 0.1, "momentum": 0.0}
    return {"rounds": 12, "data": {"path": str(file)}, "model": {"name": "mlp-2nn"}, "work": work}


def writers(seed: int, file: Path) -> Table:
    """Write the characters of 40 of FEMNIST's writers with 120 or more, a fifth of each writer's for testing."""
    rng = np.random.default_rng(seed)
    data = sources.load("femnist")
    owner = np.asarray(data.owner)
    chosen = rng.permutation(np.flatnonzero(np.bincount(owner) >= 120))[:40]
    rows: dict[str, list[np.ndarray]] = {"": [], "_test": []}
    for writer in chosen.tolist():
        own = rng.permutation(np.flatnonzero(owner == writer))
        rows["_test"].append(own[: len(own) // 5])
        rows[""].append(own[len(own) // 5 :])
    arrays: dict[str, np.ndarray] = {}
    for to, parts in rows.items():
        taken = np.concatenate(parts)
        arrays |= {
            f"x{to}": data.take(taken, 0).reshape(-1, 28, 28),
            f"y{to}": data.y[taken],
            f"device{to}": owner[taken],
        }
    np.savez(file, **arrays, classes=np.arange(62).astype(str))
    work = {"epochs": 2, "batch_size": 20, "lr": 0.1, "momentum": 0.0}
    return {
        "rounds": 20,
        "data": {"path": str(file), "normalise": "standard"},
        "model": {"name": "mlp-2nn"},
        "work": work,
    }


def plant(kind: str, seed: int, file: Path) -> Table:
    """Write the made plant's rows with sites as devices: of one regime each, or a machine with an offset of its own."""
    by_regime = kind == "regimes"
    like = Machines(runs=4, regimes=6 if by_regime else 1, calibration=0.0 if by_regime else 4.0, fault=0.0, kinds=1)
    made = columns(recordings(8, 2, seed, like), 2)
    site = made["regime"] if by_regime else made["machine"]
    names = ("site", "recording", "row", *SENSORS, "life")
    recording = [
        f"{machine}-{run}" for machine, run in zip(made["machine"].tolist(), made["run"].tolist(), strict=True)
    ]
    values = [[f"site {one}" for one in site.tolist()], recording, *(made[name].tolist() for name in ("row", *SENSORS))]
    rows = zip(*values, made["life"].tolist(), strict=True)
    file.write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)]) + "\n", encoding="utf-8")
    data = {
        "path": str(file), "normalise": "standard", "split": {"kind": "run", "test": 0.25},
        "task": {"kind": "regression", "cap": 100, "unit": "rows"},
        "columns": {"device": "site", "run": "recording", "time": "row", "label": "life"},
    }  # fmt: skip
    work = {"epochs": 2, "batch_size": 16, "lr": {"kind": "cosine", "start": 0.03}, "momentum": 0.5}
    return {"rounds": 12, "data": data, "model": {"name": "mlp-sensor"}, "work": work}


SETS = {
    "MNIST, two classes each": (PICTURES, lambda seed, file: shards("mnist", seed, file.with_suffix(".npz"))),
    "FEMNIST, 40 writers": (WRITERS, lambda seed, file: writers(seed, file.with_suffix(".npz"))),
    "made plant, a regime per site": (SITES, lambda seed, file: plant("regimes", seed, file.with_suffix(".csv"))),
    "made plant, an offset per site": (SITES, lambda seed, file: plant("offsets", seed, file.with_suffix(".csv"))),
    "Fashion-MNIST, two classes each": (
        PICTURES, lambda seed, file: shards("fashion-mnist", seed, file.with_suffix(".npz")),
    ),
}  # fmt: skip


def cell(name: str, title: str, seed: int, out: Path) -> Table:
    """Run a method on a set with a seed."""
    out.mkdir(parents=True, exist_ok=True)
    method, own = SETS[name][0][title]
    table = SETS[name][1](seed, out / f"{name} {seed}")
    settings = {key: value for key, value in own.items() if key not in ("model", "normalise", "finetune")}
    evaluate: Table = {"every": table["rounds"]}
    if "finetune" in own:
        evaluate["finetune"] = {"epochs": own["finetune"]}
    if "model" in own:
        table["model"] = {"name": own["model"]}
    if "normalise" in own:
        table["data"]["normalise"] = own["normalise"]
    network = {} if method == "local-only" else {"network": {"profile": "lte-cat-m2"}}  # nothing travels
    about = {"name": "personal", "seed": seed, "evaluate": evaluate, "method": {"name": method}} | network | table
    what = config.from_table(about | {"methods": {method: settings | {"work": table["work"]}}})
    folder = out / f"{name} {title} {seed}"
    began = time.monotonic()
    run = fedfloor.run(what, folder, ranks=1, resume=(folder / "experiment.toml").exists())
    figure, value = run.headline
    found: Table = {"set": name, "method": title, "seed": seed, "figure": figure, "value": value}
    found["wall_s"] = round(time.monotonic() - began, 1)
    priced = run.lines[-1].priced
    if priced:
        found |= {"bytes": priced["total"]["bytes"], "joules": priced["total"]["joules"]}
    if SETS[name][0] is not SITES and method not in ("local-only", "ifca", "flhc"):
        arrays = np.load(table["data"]["path"])
        trained = fedfloor.load_model(folder, own="model" in own)
        found["one model"] = float(np.mean(trained.predict(arrays["x_test"][:, None]).argmax(1) == arrays["y_test"]))
    return found


def page(cells: list[Table]) -> str:
    """Return the page of the cells that are there."""
    first, _, about = (__doc__ or "").partition("\n\n    python")
    lines = [
        "# A model per device, and what it is worth",
        "",
        first,
        "",
        "Made by `python benchmarks/personal.py`.",
        "",
    ]
    lines += [about.split("\n\n", 1)[1], "Mean over seeds ± half of the 95 % t-interval.", ""]
    for name in dict.fromkeys(one["set"] for one in cells):
        here = [one for one in cells if one["set"] == name]
        pictures = SETS[name][0] is not SITES
        head = ["personal accuracy", "one model"] if pictures else ["RMSE, rows", "gap closed", "minus knowing"]
        lines += [
            f"## {name}",
            "",
            f"| method | seeds | {' | '.join(head)} | MB | kJ |",
            "|---" * (4 + len(head)) + "|",
        ]
        titles = sorted({one["method"] for one in here}, key=lambda title: _mean(here, title), reverse=pictures)
        for title in titles:
            own = [one for one in here if one["method"] == title]
            second = [spread([one["one model"] for one in own if "one model" in one])] if pictures else [
                gap(here, title), spread(paired(here, title))
            ]  # fmt: skip
            cost = [
                spread([one[key] / by for one in own if key in one]) for key, by in (("bytes", 1e6), ("joules", 1e3))
            ]
            cost = [one.partition(" ±")[0] for one in cost]
            values = spread([one["value"] for one in own])
            lines.append(f"| {title} | {len(own)} | {values} | {' | '.join(second)} | {' | '.join(cost)} |")
        lines.append("")
    return "\n".join(lines)


def gap(here: list[Table], title: str) -> str:
    """Return the share of the gap between FedAvg and FedAvg that knows the site that a method closes, of means."""
    shared = _mean(here, "FedAvg")
    knowing = _mean(here, "FedAvg that knows the site")
    return f"{(shared - _mean(here, title)) / (shared - knowing):.2f}"


def paired(here: list[Table], title: str) -> list[float]:
    """Return a method's values less those of FedAvg that knows the site, by seed."""
    of = {(one["method"], one["seed"]): one["value"] for one in here}
    seeds = [one["seed"] for one in here if one["method"] == title]
    return [of[title, seed] - of["FedAvg that knows the site", seed] for seed in seeds]


def _mean(here: list[Table], title: str) -> float:
    return float(np.mean([one["value"] for one in here if one["method"] == title]))


def known(title: str, of: dict[str, tuple[str, Table]]) -> bool:
    """Return whether this version has the method, and what it is run with."""
    method, own = of[title]
    evaluates = "finetune" not in own or "finetune" in EvaluateSettings.__annotations__
    return evaluates and (method in METHODS or method in REFERENCES)


def main() -> int:
    """Run all cells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/personal"), help="folder of the runs")
    parser.add_argument(
        "--results", type=Path, default=Path("results/personal.json"), help="file of the finished cells"
    )
    parser.add_argument("--only", default="", help="sets whose names hold this")
    given = parser.parse_args()
    cells: list[Table] = json.loads(given.results.read_text()) if given.results.exists() else []
    for name in (one for one in SETS if given.only in one):
        for seed in SEEDS if SETS[name][0] is SITES else SEEDS[:3]:
            done = {(one["set"], one["method"], one["seed"]) for one in cells}
            for title in SETS[name][0]:
                if (name, title, seed) not in done and known(title, SETS[name][0]):
                    got = cell(name, title, seed, given.out)
                    cells = sorted(
                        [*cells, got], key=lambda one: (list(SETS).index(one["set"]), one["method"], one["seed"])
                    )
                    write(given.results, "[\n" + ",\n".join(map(json.dumps, cells)) + "\n]\n")
                    print(*(got.get(key) for key in ("set", "method", "seed", "value", "wall_s")), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
