"""Cohorts found without labels, beside known groups of pictures, engines, faults and kinds of machines.

    python benchmarks/cohorts.py --out RUNS                # goes on where it was stopped; results/cohorts.json

Every set of devices has groups that are known: pictures turned by 0, 90, 180 and 270 degrees, or with their labels
permuted in four ways; C-MAPSS's subsets FD001 and FD003, of which the second has two kinds of failure; the Tennessee
Eastman process's kinds of fault (steps, random variation, drift and sticking), where a row is normal or not; the made
plant's kinds of machine, which wear differently. `known groups` is FedAvg within each of them by itself: where it is
not better than FedAvg over all, cohorts have nothing to find there. IFCA and FL+HC are told how many cohorts there are,
and nothing else; `FL+HC, number open` is not, and merges as far as its default distance; FLDG's groups come from the
features of the samples alone.

Every device is judged on its own test samples, with the model of its cohort. Purity is the share of devices that are of
the most frequent known group of their cohort, the adjusted Rand index 0 for chance and 1 for equal partitions.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import fedfloor
from fedfloor import config
from fedfloor.data.made.machines import Machines, recordings
from fedfloor.methods.cohorts import apart, joined, parted
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.methods.fedavg import visiting
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node
from fedfloor.plan.outcome import Outcome
from fedfloor.report.groups import half_width
from fedfloor.runs import checkpoint
from fedfloor.runs.folder import write
from fedfloor.runs.parks import build_park
from fedfloor.solvers.clustering import purity

SEEDS = (0, 1, 2)
TURNED = 4
OF_EACH = 5
TRAIN = 100
TEST = 100
FAULTS = {"step": (1, 2, 4, 5, 6, 7), "random": (8, 10, 11, 12), "drift or sticking": (13, 14)}
Table = dict[str, Any]


@dataclass(frozen=True)
class KnownGroups(Method):
    """FedAvg within groups that are named: ``of`` has the group of every device, separated by commas."""

    of: str = ""
    work: WorkSettings = WorkSettings(epochs=5)

    @property
    def needs(self) -> Needs:
        """A model per group."""
        return Needs(cohorts=True)

    def init(self, view: View, answers: Mapping[int, Mapping[str, Any]], rng: np.random.Generator) -> State:  # noqa: ARG002
        """Copy the first model."""
        of = np.array(self.of.split(","))
        return parted(State(view.start), [np.flatnonzero(of == one).tolist() for one in sorted(set(of.tolist()))])

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:  # noqa: ARG002
        """Visit every group by itself."""
        groups: dict[int, list[int]] = {}
        for k, group in state.cohorts.items():
            groups.setdefault(group, []).append(k)
        return apart({g: visiting(self, self.work, view, groups[g]) for g in sorted(groups)})

    def absorb(self, state: State, outcome: Outcome) -> State:
        """Take the models in."""
        return joined(state, {}, 1 + max(state.cohorts.values()), outcome.packet)


def pictures(name: str, seed: int, file: Path, *, turned: bool) -> tuple[Table, list[str]]:
    """Write the pictures of 20 devices in four groups, and return the table of their experiment."""
    folder = Path(os.environ["FEDFLOOR_DATA"]) / name
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for part, many, to in (("train", TRAIN, ""), ("t10k", TEST, "_test")):
        x = idx(folder / f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
        y = idx(folder / f"{part}-labels-idx1-ubyte.gz", 8).astype(np.int64)
        rows = np.random.default_rng((seed, len(y))).permutation(len(y))[: TURNED * OF_EACH * many]
        device = np.repeat(np.arange(TURNED * OF_EACH), many)
        x, y = x[rows], y[rows]
        if turned:
            x = np.concatenate([np.rot90(x[device // OF_EACH == g], g, (1, 2)) for g in range(TURNED)])
        arrays |= {f"x{to}": x, f"y{to}": y, f"device{to}": device}
    if not turned:
        orders = np.array([rng.permutation(10) for _ in range(TURNED)])
        for to in ("", "_test"):
            arrays[f"y{to}"] = orders[arrays[f"device{to}"] // OF_EACH, arrays[f"y{to}"]]
    np.savez(file, **arrays, classes=np.arange(10).astype(str))
    work = {"epochs": 2, "batch_size": 20, "lr": 0.1, "momentum": 0.0}
    about = {"rounds": 15, "data": {"path": str(file)}, "model": {"name": "mlp-2nn"}, "work": work}
    return about, [str(k // OF_EACH) for k in range(TURNED * OF_EACH)]


def idx(path: Path, head: int) -> np.ndarray:
    """Return the bytes of an idx file behind its head."""
    return np.frombuffer(gzip.decompress(path.read_bytes())[head:], np.uint8)


def subsets(seed: int, file: Path) -> tuple[Table, list[str]]:  # noqa: ARG001
    """Return C-MAPSS's FD001 and FD003 at devices of ten engines each."""
    data = {
        "name": "cmapss", "window": {"length": 30, "step": 6},
        "cmapss": {"subsets": ["FD001", "FD003"], "engines": 10},
    }  # fmt: skip
    work = {"epochs": 4, "batch_size": 32, "lr": {"kind": "cosine", "start": 0.03}, "momentum": 0.9}
    about = {"rounds": 8, "data": data, "model": {"name": "cnn-sensor-gn"}, "work": work}
    names = build_park(config.from_table({"name": "look", **about})).names or ()
    return about, [name.partition("-")[0].partition(" ")[0] for name in names]


def faults(seed: int, file: Path) -> tuple[Table, list[str]]:
    """Write rows of the Tennessee Eastman process: each device has normal rows, and those of one kind of fault."""
    folder = Path(os.environ["FEDFLOOR_DATA"]) / "tep"
    rng = np.random.default_rng(seed)
    groups = list(FAULTS)
    arrays: dict[str, list[np.ndarray]] = {name: [] for name in ("x", "y", "device", "x_test", "y_test", "device_test")}
    devices = 4 * len(groups)
    onset = 160
    for to, tail in (("", ""), ("_test", "_te")):
        normal = _rows(folder, f"d00{tail}")
        parts = [(normal, 0, devices_of) for devices_of in [range(devices)]]
        for g, group in enumerate(groups):
            for fault in FAULTS[group]:
                rows = _rows(folder, f"d{fault:02d}{tail}")
                parts.append((rows[onset:] if tail else rows, 1, range(4 * g, 4 * g + 4)))
        for rows, y, whose in parts:
            arrays[f"x{to}"].append(rows)
            arrays[f"y{to}"].append(np.full(len(rows), y))
            arrays[f"device{to}"].append(rng.permutation(np.arange(len(rows)) % len(whose)) + whose[0])
    joined_up = {name: np.concatenate(one) for name, one in arrays.items()}
    for name in ("x", "x_test"):
        joined_up[name] = joined_up[name].astype(np.float32)
    np.savez(file, **joined_up, classes=np.array(["normal", "fault"]))
    work = {"epochs": 2, "batch_size": 16, "lr": 0.05, "momentum": 0.5}
    about = {"rounds": 8, "data": {"path": str(file)}, "model": {"name": "mlp-sensor"}, "work": work}
    about["evaluate"] = {"every": 8, "headline": "macro-F1"}  # nine of ten test rows are of a fault
    return about, [groups[k // 4] for k in range(devices)]


def _rows(folder: Path, name: str) -> np.ndarray:
    path = next(one for one in (folder / f"{name}.dat", folder / f"{name}.dat.gz") if one.exists())
    found = np.loadtxt(path)
    return found.T if found.shape[0] == 52 else found


def machines(seed: int, file: Path) -> tuple[Table, list[str]]:  # noqa: ARG001
    """Return the made plant's remaining lives, on machines without offsets."""
    like = {"calibration": 0.0, "fault": 0.0}
    data = {
        "name": "machines", "machines": like, "window": {"length": 20, "step": 3},
        "task": {"kind": "regression", "cap": 100, "unit": "rows"},
    }  # fmt: skip
    work = {"epochs": 2, "batch_size": 16, "lr": {"kind": "cosine", "start": 0.03}, "momentum": 0.9}
    about = {"rounds": 6, "data": data, "park": {"devices": 12}, "model": {"name": "cnn-sensor-gn"}, "work": work}
    plant = recordings(12, 3, seed, Machines(**like))
    return about, [str(one) for one in plant.kind.tolist()]


SETS = {
    "MNIST, labels permuted": lambda seed, file: pictures("mnist", seed, file, turned=False),
    "MNIST, turned": lambda seed, file: pictures("mnist", seed, file, turned=True),
    "TEP, kinds of fault": faults,
    "made plant, kinds of machine": machines,
    "Fashion-MNIST, turned": lambda seed, file: pictures("fashion-mnist", seed, file, turned=True),
    "C-MAPSS, FD001 and FD003": subsets,
}


def methods(of: list[str], *, rows: bool) -> dict[str, tuple[str, Table]]:
    """Return what is run on devices of these known groups: title → (method, settings)."""
    many = len(set(of))
    return {
        "FedAvg": ("fedavg", {}),
        "known groups": ("cohorts:KnownGroups", {"of": ",".join(of)}),
        "IFCA": ("ifca", {"cohorts": many}),
        "FL+HC": ("flhc", {"cohorts": many}),
        "FL+HC, number open": ("flhc", {}),
        "FLDG's groups": ("fldg", {"groups": many, "cohorts": True, **({"extractor": "raw"} if rows else {})}),
        "local only": ("local-only", {}),
    }


def cell(name: str, title: str, seed: int, out: Path) -> Table:
    """Run a method on a set with a seed."""
    out.mkdir(parents=True, exist_ok=True)
    about, of = SETS[name](seed, out / f"{name} {seed}.npz")
    method, settings = methods(of, rows="MNIST" not in name)[title]
    work = {"work": about["work"]}  # the same for every method
    what = config.from_table(
        {"name": "cohorts", "seed": seed, "evaluate": {"every": about["rounds"]}, "method": {"name": method}}
        | {"methods": {method: settings | work}} | about
    )  # fmt: skip
    folder = out / f"{name} {title} {seed}".replace("/", "-")
    began = time.monotonic()
    run = fedfloor.run(what, folder, ranks=1, resume=(folder / "experiment.toml").exists())
    figure, value = run.headline
    found: Table = {"set": name, "method": title, "seed": seed, "figure": figure, "value": value}
    found |= {"higher is better": figure != "RMSE", "wall_s": round(time.monotonic() - began, 1)}
    point = checkpoint.latest(folder / "checkpoint", folder / "memory")
    if point is not None and point.state.cohorts:
        from sklearn.metrics import adjusted_rand_score

        found_of = np.array([point.state.cohorts[k] for k in range(len(of))])
        known = np.unique(of, return_inverse=True)[1]
        found |= {"cohorts": found_of.tolist(), "known": of, "purity": purity(found_of, known)}
        found |= {"rand": float(adjusted_rand_score(known, found_of))}
    return found


def page(cells: list[Table]) -> str:
    """Return the page of the cells that are there."""
    text = " ".join((__doc__ or "").partition("RUNS")[0].splitlines()[0].split())
    about = (__doc__ or "").split("\n\n", 2)[2]
    lines = ["# Cohorts found without labels", "", text, "", "Made by `python benchmarks/cohorts.py`.", "", about]
    lines += ["Mean over seeds ± half of the 95 % t-interval.", ""]
    for name in dict.fromkeys(one["set"] for one in cells):
        here = [one for one in cells if one["set"] == name]
        better = "higher" if here[0]["higher is better"] else "lower"
        figure = f"{here[0]['figure']} ({better} is better)"
        lines += [f"## {name}", "", f"| method | seeds | {figure} | purity | adjusted Rand index | cohorts |"]
        lines += ["|---|---|---|---|---|---|"]
        for title in dict.fromkeys(one["method"] for one in here):
            own = [one for one in here if one["method"] == title]
            sizes = sorted({len(set(one["cohorts"])) for one in own if "cohorts" in one})
            parts = [spread([one[key] for one in own if key in one]) for key in ("value", "purity", "rand")]
            lines.append(f"| {title} | {len(own)} | {' | '.join(parts)} | {', '.join(map(str, sizes))} |")
        lines += ["", gain(here), ""]
    return "\n".join(lines)


def gain(here: list[Table]) -> str:
    """Return how much better a model per known group is than FedAvg, seed by seed, in a sentence."""
    known, shared = (
        {one["seed"]: one["value"] for one in here if one["method"] == title} for title in ("known groups", "FedAvg")
    )
    sign = 1 if here[0]["higher is better"] else -1
    gains = [sign * (known[seed] - shared[seed]) for seed in sorted(known.keys() & shared.keys())]
    if not gains:
        return ""
    found = np.mean(gains) > (half_width(gains) or 0)
    verdict = "there is something to find" if found else "these seeds do not show that there is something to find"
    return f"A model per known group is better than FedAvg by {spread(gains)}, seed by seed: {verdict}."


def spread(values: list[float]) -> str:
    """Return the mean with half of its 95 % t-interval."""
    if not values:
        return ""
    half = half_width(values)
    digits = 3 if max(map(abs, values)) <= 1 else 2
    return f"{np.mean(values):.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def _place(cell: Table) -> tuple[int, int, int]:
    return list(SETS).index(cell["set"]), list(methods(["0"], rows=False)).index(cell["method"]), cell["seed"]


def main() -> int:
    """Run all cells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/cohorts"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=Path("results/cohorts.json"), help="file of the finished cells")
    parser.add_argument("--only", default="", help="sets whose names hold this")
    given = parser.parse_args()
    cells: list[Table] = json.loads(given.results.read_text()) if given.results.exists() else []
    for name in SETS:
        for seed in SEEDS:
            for title in methods(["0"], rows=False):
                done = {(one["set"], one["method"], one["seed"]) for one in cells}
                if given.only in name and (name, title, seed) not in done:
                    got = cell(name, title, seed, given.out)
                    cells = sorted([*cells, got], key=_place)
                    write(given.results, "[\n" + ",\n".join(map(json.dumps, cells)) + "\n]\n")
                    print(*(got.get(key) for key in ("set", "method", "seed", "value", "rand", "wall_s")), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
