"""Long runs of published tables, one after the other, in an order in which what is there at any time is of use.

    python benchmarks/evidence.py --out RUNS [--results results]            # goes on where it was stopped
    python benchmarks/evidence.py --out RUNS --list

A step takes a cell of a table (``fedfloor reproduce``) with a seed up to some round; later steps go on with it. After
each step the cell's file in the table's folder of the results is written anew: what was run, and what was measured in
each evaluation. Rates are constant in these tables, so that the first rounds of a long run are those of a short one.
``python -m benchmarks.pages`` makes the pages of what is there, finished or not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the source tree
import fedfloor
from fedfloor.base.errors import DivergedError
from fedfloor.runs import results as files
from fedfloor.runs.folder import write
from fedfloor.runs.orders import Limits
from papers.catalog import TABLES
from papers.cells import Cell, Table

EVALUATED = ("round", "accuracy", "loss", "macro_f1")
CLASSES_EVERY = 20  # rounds, of which a file holds the accuracy of every class
# of FedGS's Table II, claim by claim; last the rates that were best after 40 rounds, and lose in 500
BASELINES = (
    ("fedavg", "fedadam-cnn", "fedavgm-cnn"),
    ("fedyogi-cnn", "fedadagrad-cnn"),
    ("ida", "ida-intrac", "ida-fedavg"),
    ("fedmmd", "cgau"),
    ("fedgs-gbpcs",),
    ("fedprox", "fedprox-tuned"),
    ("fedfusion-conv", "fedfusion-multi", "fedfusion-single"),
    ("fedgs-random",),
    ("fedgs",),
    ("fedadam", "fedyogi", "fedavgm", "fedadagrad"),
)
EARLY = 100  # rounds after which all baselines are compared, as fedgs-table2 does
COMPARED = ("fedprox", "fedprox-tuned", "fedmmd", "ida", "ida-intrac", "ida-fedavg")
# of HFedMS's Table III with the small network, 500 rounds
HFEDMS = (
    ("stream/chains-epochs", "stream/chains-s", "stream/fedadam-printed", "stream/fedavg", "stream/fedadam"),
    ("static/hfedms-s", "static/fedadam-printed", "static/fedavg", "static/fedadam"),
    ("stream/chains", "stream/fedyogi-printed", "stream/fedadagrad-printed", "stream/fedmmd"),
    ("stream/fedfusion-multi", "stream/ida", "stream/fedprox", "static/benchmark", "static/icg"),
)
FOLDERS = {"hfedms-table3": "hfedms-runs"}  # where a page of the table's name is made of something else


class Step(NamedTuple):
    """A cell of a table with a seed, up to and with a round."""

    table: str
    cell: str
    seed: int
    last: int

    @property
    def name(self) -> str:
        """Its cell and seed, as a file's name."""
        return f"{self.table}-{self.cell.replace('/', '-')}-seed{self.seed}"

    def file(self, results: Path) -> Path:
        """Return its cell's file: the page of the table is made from the folder of its name."""
        return results / FOLDERS.get(self.table, self.table) / f"{self.name}.json"


def steps() -> Iterator[Step]:
    """Yield all steps: the log in stages, between them the skewed partitions, the strongest skew first."""
    log = ("fedgs-log", "cnn/n5/random-round", 0)
    yield Step(*log, 20)
    for stage, partition in ((40, "labels2"), (60, "alpha0.7"), (140, "alpha0.1")):
        yield from skewed(partition, 0)
        yield Step(*log, stage)
    for seed in (1, 2):
        for partition in ("labels2", "alpha0.7", "alpha0.1"):
            yield from skewed(partition, seed)
    for partition in ("labels2", "alpha0.1", "alpha0.7"):
        for seed in (0, 1, 2):
            yield Step("fedgs-skew", f"2nn/{partition}/balanced", seed, 100)
    for last in (20, 40, 60):
        for variant in ("gbpcs", "random-round", "random"):
            yield Step("fedgs-choice", f"cnn/n32/{variant}", 0, last)
    for one in COMPARED:
        yield from (Step("fedgs-baselines", f"2nn/writers/{one}", seed, EARLY) for seed in (0, 1, 2))
    for one in ("fedavg", "fedmmd"):  # which three seeds do not tell apart
        yield from (Step("fedgs-baselines", f"2nn/writers/{one}", seed, EARLY) for seed in (3, 4))
    for labels in ("writers", "alpha0.7"):
        for group in BASELINES:
            for seed in (0, 1, 2):
                yield from (Step("fedgs-baselines", f"2nn/{labels}/{one}", seed, 500) for one in group)
    for group in HFEDMS:
        for seed in (0, 1, 2):
            yield from (Step("hfedms-table3", f"small/{one}", seed, 500) for one in group)


def skewed(partition: str, seed: int) -> Iterator[Step]:
    """Yield the four ways to choose on a skewed partition."""
    for variant in ("random", "exact", "gbpcs", "random-round"):
        yield Step("fedgs-skew", f"2nn/{partition}/{variant}", seed, 100)


def cell_of(step: Step) -> tuple[Table, Cell]:
    """Return the table and the cell of a step."""
    table = TABLES[step.table]
    (cell,) = [one for one in table.cells if one.key == step.cell]
    return table, cell


def rounds_done(folder: Path) -> int:
    """Return the last round of a run's ledger, 0 where there is none."""
    path = folder / "ledger.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return int(json.loads(lines[-1])["round"]) if lines else 0


def document(step: Step, folder: Path, commits: list[str]) -> dict[str, Any]:
    """Return what a cell's file holds: settings, evaluations, coverage summed over the rounds."""
    lines = [json.loads(text) for text in (folder / "ledger.jsonl").read_text().splitlines()]
    park = json.loads((folder / "park.json").read_text())
    experiment = tomllib.loads((folder / "experiment.toml").read_text())
    evaluations = [evaluation(line) for line in lines if line["accuracy"] is not None]
    found = [line["coverage"] for line in lines if "coverage" in line]
    coverage = {
        "samples": np.sum([one["samples"] for one in found], axis=0).round(1).tolist(),
        "devices_per_round": np.mean([one["devices"] for one in found], axis=0).round(2).tolist(),
        "held": np.sum([one["counts"] for one in park["devices"]], axis=0).tolist(),
    } if found else None  # fmt: skip
    return {
        "table": step.table, "cell": step.cell, "seed": step.seed, "rounds": TABLES[step.table].rounds,
        "rounds_done": lines[-1]["round"], "commits": commits, "provenance": experiment.pop("provenance", {}),
        "wall_s": round(sum(line["wall_s"] for line in lines), 1), "evaluations": evaluations, "coverage": coverage,
        "experiment": experiment,
    }  # fmt: skip


def evaluation(line: dict[str, Any]) -> dict[str, Any]:
    """Return what a file holds of an evaluated round: whole numbers as they are, others with six digits."""
    found = {key: line[key] if isinstance(line[key], int) else round(line[key], 6) for key in EVALUATED}
    if line["round"] % CLASSES_EVERY == 0:
        found["by_class"] = [None if share is None else round(share, 4) for share in line["by_class"]]
    return found


def finished(step: Step, results: Path) -> bool:
    """Return whether the cell's file holds the step's last round, or diverged: its run's folder may be gone."""
    path = step.file(results)
    if not path.exists():
        return False
    found = json.loads(path.read_text())
    return "diverged" in found or int(found["rounds_done"]) >= step.last


def note_commit(folder: Path, commit: str) -> None:
    """Write down beside a run which commits its rounds were computed with."""
    path = folder.with_name(f"{folder.name}.commits")
    known = path.read_text().split() if path.exists() else []
    folder.parent.mkdir(parents=True, exist_ok=True)
    write(path, "\n".join(dict.fromkeys([*known, commit])) + "\n")


def collect(step: Step, folder: Path, results: Path) -> dict[str, Any]:
    """Write the file of a cell whose run has begun, and return what is in it."""
    found = document(step, folder, folder.with_name(f"{folder.name}.commits").read_text().split())
    lost = files.round_of(folder)
    if lost is not None:
        found["diverged"] = lost
    path = step.file(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, json.dumps(found) + "\n")
    return found


def carry_out(step: Step, out: Path, results: Path, commit: str) -> bool:
    """Run a step's rounds that are left, and write its cell's file; return whether it was not interrupted."""
    table, cell = cell_of(step)
    folder = out / step.name
    before = rounds_done(folder)
    began = time.monotonic()
    used = time.process_time()
    if before < step.last:
        note_commit(folder, commit)
        print(f"{time.strftime('%H:%M:%S')} {step.name}: rounds {before + 1} to {step.last}", flush=True)
        what = table.experiment(cell, table.rounds, step.seed)
        begun = (folder / "experiment.toml").exists()
        try:
            run = fedfloor.run(what, folder, ranks=1, resume=begun, limits=Limits(stop_after=step.last))
        except DivergedError as error:
            print(f"{step.name}: {error}", flush=True)
        else:
            if run.stopped == "interrupted":
                return False
    found = collect(step, folder, results)
    if before < step.last:
        last = found["evaluations"][-1]
        print(
            f"{time.strftime('%H:%M:%S')} {step.name}: round {last['round']}, accuracy {last['accuracy']:.4f}, "
            f"macro-F1 {last['macro_f1']:.4f}; {time.monotonic() - began:.0f} s, {time.process_time() - used:.0f} s "
            "of them on the processor",
            flush=True,
        )
    return True


def commit_of(here: Path) -> str:
    """Return the commit that the sources are at, marked where they differ from it."""
    said = ["git", "-C", str(here), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    return subprocess.run(said, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    """Do all steps, or list them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/evidence"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the tables' folders")
    parser.add_argument("--only", default="", help="steps whose names hold this")
    parser.add_argument("--list", action="store_true", help="print what is done and what is left")
    parser.add_argument(
        "--collect", action="store_true", help="write the files of the cells that have begun, run nothing"
    )
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    commit = commit_of(Path(__file__).parent)
    for step in (one for one in steps() if given.only in one.name):
        folder = given.out / step.name
        if given.collect:
            if rounds_done(folder):
                collect(step, folder, given.results)
        elif given.list:
            done = step.last if finished(step, given.results) else min(rounds_done(folder), step.last)
            print(f"{step.name}: {done} of {step.last} rounds")
        elif not finished(step, given.results) and not carry_out(step, given.out, given.results, commit):
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
