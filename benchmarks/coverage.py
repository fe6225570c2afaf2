"""Promised intervals and rates of false alarms: how many test samples keep the promise, before and after calibration.

    python benchmarks/coverage.py --out RUNS [--results results]         # goes on where it was stopped

*Life* is C-MAPSS, FD001 and FD003 at four sites of 50 engines, as in the page of cmapss: a fifth of every site's
engines is held out whole, and a test sample is the last window of another engine. *Forecast* are the next 10 rows of
the eight sensors of SKAB's 16 recordings with valve 1, as in the page of forecasts: the last 30 % of every
recording's rows are for testing, and a fifth of those before is held out. *Alarms, later rows* are those of an
autoencoder for these recordings, of which the first 400 rows train and their last tenth is held out; *alarms, new
recordings* are of four of the 16, of which 5 or 9 others are held out whole and the rest trains; 95 % would need 19.

Before: the outermost levels of quantile regression alone, or the threshold at a plain quantile of held-out scores
(``quantile``); after: ``coverage`` or ``false_alarms_per_1000``; each device: with ``calibrate = "device"``, too. A
promise at another level with the same network is a recalibration of it (``model.keep``). *Again* is one after 550 rows:
the rows from 400 to 550, which are later than all that trained, set the thresholds of all devices or of each, and the
rows after them are for testing; beside it what the thresholds of *after* keep on the same rows. The data are looked for
in $FEDFLOOR_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

import fedfloor
from fedfloor import config
from fedfloor.data.sources import data_root
from fedfloor.experiment import Experiment
from fedfloor.inference.trained import load_model
from fedfloor.runs.folder import write
from fedfloor.runs.parks import build_park

Table = dict[str, Any]
SEEDS = (0, 1, 2)
LEVELS = (0.8, 0.9, 0.95)
ROWS = 400  # rows of a recording that train, with those held out
AGAIN = 550  # rows of a recording after which thresholds are found again
SGD = {"epochs": 1, "batch_size": 64, "momentum": 0.9, "lr": {"kind": "cosine", "start": 0.03, "end": 1e-3}}
ADAM = {"optimizer": "adam", "lr": 0.001, "batch_size": 32, "epochs": 1}
LIFE: Table = {
    "name": "life", "rounds": 6, "work": SGD, "model": {"name": "cnn-sensor-gn"},
    "data": {
        "name": "cmapss", "window": {"length": 30, "step": 1},
        "cmapss": {"subsets": ["FD001", "FD003"], "engines": 50}, "task": {"kind": "regression", "cap": 125},
    },
    "evaluate": {"validation": 0.2},
}  # fmt: skip


def forecast() -> Table:
    """Return the experiment of forecasts."""
    return {
        "name": "forecast", "rounds": 15, "model": {"name": "linear"},
        "work": {**ADAM, "lr": {"kind": "cosine", "start": 0.01}},
        "data": {
            "path": str(data_root() / "skab" / "valve1"), "normalise": "standard", "device": "file",
            "columns": {"time": "datetime", "label": "anomaly", "ignore": ["changepoint"]},
            "window": {"length": 30, "step": 2}, "task": {"kind": "forecasting", "horizon": 10},
        },
        "evaluate": {"validation": 0.2},
    }  # fmt: skip


def later(rows: int = ROWS) -> Table:
    """Return the experiment of alarms in later rows of the recordings that trained."""
    data = {"name": "skab", "normalise": "device", "window": {"length": 30, "step": 1}, "skab": {"rows": rows}}
    return {"name": "later", "rounds": 10, "model": {"name": "ae-conv"}, "work": ADAM, "data": data}


def fresh(held: float) -> Table:
    """Return the experiment of alarms in other recordings."""
    data = {
        "path": str(data_root() / "skab" / "valve1"), "normalise": {"kind": "device", "rows": 400}, "device": "file",
        "window": {"length": 30, "step": 2},
        "columns": {"time": "datetime", "label": "anomaly", "ignore": ["changepoint"]},
        "split": {"kind": "device", "test": 0.25},
    }  # fmt: skip
    return {"name": "fresh", "rounds": 10, "model": {"name": "ae-conv"}, "work": ADAM, "data": data,
            "evaluate": {"validation": held}}  # fmt: skip


def experiment(table: Table, seed: int, task: Table, start: Path | None = None, headline: str = "") -> Experiment:
    """Return a set's experiment with a task; ``start``: the folder of the run whose model is recalibrated."""
    table = {**table, **({"rounds": 1} if start else {}), "seed": seed, "method": {"name": "fedavg"}}
    table["data"] = {**table["data"], "task": {**table["data"].get("task", {"kind": "reconstruction"}), **task}}
    table["model"] = {**table["model"], **({"init_from": str(start), "keep": True} if start else {})}
    table["evaluate"] = {
        **table.get("evaluate", {}), "every": table["rounds"], **({"headline": headline} if headline else {})
    }  # fmt: skip
    return config.from_table(table)


def evaluated(what: Experiment, folder: Path) -> Table:
    """Return ``evaluation.json`` of a run, which is carried out unless it is there."""
    file = folder / "evaluation.json"
    if not file.exists():
        fedfloor.run(what, out=folder, ranks=1, resume=(folder / "experiment.toml").exists())
    return json.loads(file.read_text(encoding="utf-8"))


def summary(share: float | None, devices: list[float | None], **more: Any) -> Table:
    """Return a cell: the share of all samples, and of each device's."""
    return {"share": share, "devices": [round(one, 6) for one in devices if one is not None], **more}


def uncalibrated(what: Experiment, folder: Path) -> Table:
    """Return the share within the trained interval of a run's model."""
    model = load_model(folder)
    park = build_park(what)
    data = park.dataset
    rows = np.arange(len(data.y_test))
    owner = data.owner_test
    assert owner is not None
    assert data.target_test is not None
    answers = [model.answer(*given) for given in batches(park, rows, owner)]
    low, high = (
        np.concatenate([one.parts()[end] for one in answers]).reshape(len(rows), -1) for end in ("low", "high")
    )
    order = np.concatenate([np.flatnonzero(owner == k) for k in np.unique(owner)])
    task: Any = model.task
    margin = np.array(task.margins) * np.array(task.scale)  # the promised interval's ends, put back
    cap = np.inf if task.cap is None else task.cap
    true = np.minimum(data.target_test[order], cap)
    slack = 1e-6 * np.abs(true).max(axis=0)
    inside = (low + margin - slack <= true) & (true <= high - margin + slack)
    width = float((high - low - 2 * margin).mean())
    whose = owner[order]
    return summary(float(inside.mean()), [float(inside[whose == k].mean()) for k in np.unique(whose)], width=width)


def batches(park: Any, rows: NDArray[np.int64], owner: NDArray[np.int32]) -> list[tuple[Any, str]]:
    """Return the test samples of each device with the device's name."""
    names = park.dataset.owned.names
    return [
        (park.dataset.take_test(rows[owner == k]), names[k] if names else str(k)) for k in np.unique(owner).tolist()
    ]


def numbers(name: str, table: Table, level: float, seed: int, out: Path) -> Table:
    """Return a cell of predicted numbers: quantile regression alone, and calibrated."""
    half = round(level / 2, 4)
    levels = [round(0.5 - half, 4), 0.5, round(0.5 + half, 4)]
    what = experiment(table, seed, {"loss": "quantile", "levels": levels, "coverage": level})
    folder = out / f"{name}-{level:g}-{seed}"
    told = evaluated(what, folder)
    after = summary(
        told["promise"]["measured"], told["promise"]["devices"], width=told["figures"]["interval width"],
        units=told["promise"]["units"],
    )  # fmt: skip
    task = {"loss": "quantile", "levels": levels, "coverage": level, "calibrate": "device"}
    own = evaluated(experiment(table, seed, task, folder), out / f"{name}-{level:g}-{seed}-device")
    device = summary(own["promise"]["measured"], own["promise"]["devices"], width=own["figures"]["interval width"])
    return {"before": uncalibrated(what, folder), "after": after, "device": device}


def alarms(name: str, table: Table, level: float, seed: int, out: Path) -> Table:
    """Return a cell of alarms: the share of normal rows without one by a plain quantile, and as promised."""
    first = out / f"{name}-{seed}"
    evaluated(experiment(table, seed, {"quantile": 0.99}), first)
    plain = experiment(table, seed, {"quantile": level}, first, "false alarms")
    told = evaluated(plain, out / f"{name}-{level:g}-{seed}-plain")
    kept = [one["figures"]["false alarms"] for one in told["devices"]]
    before = summary(1 - told["figures"]["false alarms"], [None if one is None else 1 - one for one in kept])
    task = {"false_alarms_per_1000": round(1000 * (1 - level), 6)}
    told = evaluated(experiment(table, seed, task, first), out / f"{name}-{level:g}-{seed}")["promise"]
    after = summary(told["measured"], told["devices"], units=told["units"])
    own = experiment(table, seed, {**task, "calibrate": "device"}, first)
    told = evaluated(own, out / f"{name}-{level:g}-{seed}-device")["promise"]
    cell = {"before": before, "after": after, "device": summary(told["measured"], told["devices"])}
    return cell | (again(level, seed, out, task) if name == "later" else {})


def again(level: float, seed: int, out: Path, task: Table) -> Table:
    """Return the parts of a cell for later rows: the thresholds of before on them, and those that are found again."""
    newer = {**later(AGAIN), "evaluate": {"validation": round(1 - ROWS / AGAIN, 4)}}
    cell = {}
    for when, whose in (("again", {}), ("again, each device", {"calibrate": "device"})):
        first = out / f"later-{level:g}-{seed}{'-device' if whose else ''}"
        told = evaluated(experiment(newer, seed, {**task, **whose}, first), out / f"{first.name}-again")
        known = told["recalibrated"]["before"]
        cell["earlier" + when.removeprefix("again")] = summary(known["measured"], known["devices"])
        cell[when] = summary(told["promise"]["measured"], told["promise"]["devices"], units=told["promise"]["units"])
    return cell


SETS = ("life", "forecast", "later", "fresh")


def measured(name: str, level: float, seed: int, out: Path) -> Table:
    """Return a cell, which is measured unless its file is there."""
    file = out / f"cell-{name}-{level:g}-{seed}.json"
    if not file.exists():
        held = 0.4 if level < 0.9 else 0.75  # 5 or 9 of the 12 recordings that are not for testing
        table = {"life": LIFE, "forecast": forecast(), "later": later(), "fresh": fresh(held)}[name]
        of = numbers if name in ("life", "forecast") else alarms
        cell = {"set": name, "level": level, "seed": seed}
        cell |= of(f"{name}-{held:g}" if name == "fresh" else name, table, level, seed, out)
        file.write_text(json.dumps(cell), encoding="utf-8")
    return json.loads(file.read_text(encoding="utf-8"))


TITLES = {
    "life": "Remaining life, C-MAPSS", "forecast": "Forecast, SKAB", "later": "Alarms, SKAB, later rows",
    "fresh": "Alarms, SKAB, new recordings",
}  # fmt: skip


READ = """Lives and forecasts keep their promise after calibration on the mean of the seeds; the lowest seed
has 89.0 % of promised 90 %. Rates and sizes of the networks are not tuned, so that quantile regression alone
may be worse here than it must. A rate of alarms is kept on recordings like the held-out ones, with few of them
by a threshold that is nearly the largest score, and so with hardly an alarm; it is not kept on later rows of
the same recordings, which drift: there no threshold of earlier rows holds, and the measured share in the report
says so. Nor does one that is found again on rows 400 to 550, whose five units a recording are again unlike the
rows that follow, which all come after the recording's fault: with seed 0, half or more of these normal rows of eleven
of the 16 recordings have scores above the 80 % quantile of their own held-out rows, in seven all; and two recordings,
whose scores were highest just before, raise the threshold of all. So where 80 % are promised fewer than half are
kept, where 90 or 95 % nearly all: nearer to the promise than the earlier thresholds, but no promise.
Thresholds of each device hold more than is promised here, as each device has few units."""


def page(cells: list[Table]) -> str:
    """Return the page of the cells that are there."""
    first, _, about = (__doc__ or "").partition("\n\n    python")
    lines = [f"# {first.split(':')[0]}", "", first, "", "Made by `python benchmarks/coverage.py`.", ""]
    lines += [
        about.split("\n\n", 1)[1].replace("``", "`"),
        "Means over seeds in per cent; in brackets the least and the greatest share of a device, also means.",
        "",
        READ,
        "",
    ]
    for name in dict.fromkeys(one["set"] for one in cells):
        here = [one for one in cells if one["set"] == name]
        wide = "width" in here[0]["after"]
        head = ["promised", "seeds", "before", "after", "each device", "held-out units"]
        again = [when for when in here[0] if when.startswith(("earlier", "again"))]
        head += ["width before", "width after"] if wide else again
        lines += [f"## {TITLES[name]}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for level in sorted({one["level"] for one in here}):
            own = [one for one in here if one["level"] == level]
            cells_of = [
                f"{100 * level:g} %",
                str(len(own)),
                *(shares([one[when] for one in own]) for when in ("before", "after", "device")),
            ]
            cells_of.append(str(own[0]["after"]["units"]))
            if wide:
                cells_of += [f"{np.mean([one[when]['width'] for one in own]):.3g}" for when in ("before", "after")]
            cells_of += [shares([one[when] for one in own]) for when in again]
            lines.append(f"| {' | '.join(cells_of)} |")
        lines.append("")
    return "\n".join(lines)


def shares(parts: list[Table]) -> str:
    """Return the mean share with the least and the greatest one of a device."""
    total, low, high = (
        100 * float(np.mean([read(one) for one in parts]))
        for read in (lambda one: one["share"], lambda one: min(one["devices"]), lambda one: max(one["devices"]))
    )
    return f"{total:.1f} ({low:.1f} to {high:.1f})"


def main() -> None:
    """Measure the cells and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=SETS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    cells = [
        measured(name, level, seed, given.out)
        for seed in SEEDS for name in given.sets for level in LEVELS
        if name != "fresh" or level < 0.95  # needs 19 recordings held out
    ]  # fmt: skip
    cells.sort(key=lambda one: (SETS.index(one["set"]), one["level"], one["seed"]))
    print(page(cells))
    if given.results is not None:
        file = given.results / "coverage.json"
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        cells += [one for one in known if one["set"] not in given.sets]
        cells.sort(key=lambda one: (SETS.index(one["set"]), one["level"], one["seed"]))
        write(file, json.dumps(cells, indent=1) + "\n")


if __name__ == "__main__":
    main()
