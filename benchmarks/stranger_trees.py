"""Boosted trees as `fedfloor new` drafts them beside scikit-learn's histogram boosting with its defaults.

The tables are those of :mod:`benchmarks.strangers` for which trees are drafted. scikit-learn sees all devices' training
rows in one place. Dealt rows are trained on a single device, for speed: the trees are the same to the bit on any number
(`tests/methods/test_methods_boosting.py`). Differences are tested by a paired bootstrap over the test samples, seed by
seed. Runs that stand in the JSON are kept, so that an interrupted benchmark goes on.

PACKAGES: those of benchmarks.strangers.

python -m benchmarks.stranger_trees [--only NAME,…] [--seeds 0,1,2] [--out results/strangers-trees.md]
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.strangers import CASES, LEAST, AbsentError, Case, Result, command, write
from fedfloor import config
from fedfloor.data.dataset import Dataset
from fedfloor.inference.trained import load_model
from fedfloor.runs.parks import build_park
from fedfloor.runs.references import columns as statistics
from papers import documents

DRAWS = 1000  # of the bootstrap
NEAR = {"RMSE": 0.03, "macro-F1": 0.02}  # relative to scikit-learn's, or absolute
Figure = Callable[[NDArray[Any], NDArray[Any]], float]


def draft(case: Case, folder: Path) -> str:
    """Draft an experiment as a user would; return why none for trees was drafted, or ""."""
    result = Result()
    words = ("new", str(write(case, folder)), "--out", "e.toml")
    if command(result, folder, *words).returncode and command(result, folder, *words, *case.answer).returncode:
        return result.reason
    made = config.read(folder / "e.toml")
    return "" if made.method.name == "boosting" else f"drafted was {made.method.name} for {made.data.task.kind}"


def seed_of(case: Case, folder: Path, seed: int) -> dict[str, Any]:
    """Train the draft with a seed, and scikit-learn's boosting on the same rows; return both figures."""
    result = Result()
    out = folder / f"out{seed}"
    began = time.perf_counter()
    words = ("run", "e.toml", "--ranks", "1", "--out", out.name, "--set", f"seed={seed}", "--json")
    words += ("--set", "park.devices=1") if config.read(folder / "e.toml").data.partition.kind == "dirichlet" else ()
    if command(result, folder, *words).returncode:
        return {"reason": result.reason.replace(f"{folder}/", "")}
    seconds = time.perf_counter() - began
    data = build_park(config.read(out / "experiment.toml")).dataset
    truth, mine = of_run(out, data)
    other = by_hand(data, seed)
    figure: Figure = rmse if case.figure == "RMSE" else macro_f1(len(data.classes))
    rounds = sum(1 for _ in (out / "ledger.jsonl").open(encoding="utf-8"))
    difference = compared(figure, truth, mine, other, relative=case.figure == "RMSE", seed=seed)
    return {
        "here": figure(truth, mine), "hand": figure(truth, other), "difference": difference[0], "error": difference[1],
        "train": len(data.y), "test": len(truth), "rounds": rounds, "seconds": seconds,
    }  # fmt: skip


def of_run(out: Path, data: Dataset) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the test samples' true answers, and those of a run's model."""
    every = np.arange(len(data.y_test))
    first = load_model(out).outputs(data.take_test(every))[0].numpy()
    if data.target is None:
        return data.y_test, first.argmax(1)
    return data.targets_test(every).ravel(), first.ravel()


def by_hand(data: Dataset, seed: int) -> NDArray[Any]:
    """Return the answers of scikit-learn's histogram boosting for the test samples."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    x = data.take(np.arange(len(data.y)), 0)
    z = data.take_test(np.arange(len(data.y_test)))
    if x.ndim > 2:
        x = statistics(x)
        z = statistics(z)
    if data.target is None:
        answers: NDArray[Any] = HistGradientBoostingClassifier(random_state=seed).fit(x, data.y).predict(z)
        return answers
    y = data.targets(np.arange(len(x))).ravel()
    answers = HistGradientBoostingRegressor(random_state=seed).fit(x, y).predict(z)
    return answers


def rmse(truth: NDArray[Any], guess: NDArray[Any]) -> float:
    """Return the root of the mean squared error."""
    return math.sqrt(float(((truth - guess) ** 2).mean()))


def macro_f1(classes: int) -> Figure:
    """Return the mean over the classes that occur in truth or guess of 2·right/(true + guessed)."""

    def figure(truth: NDArray[Any], guess: NDArray[Any]) -> float:
        right = np.bincount(truth[truth == guess], minlength=classes)
        both = np.bincount(truth, minlength=classes) + np.bincount(guess, minlength=classes)
        return float((2 * right[both > 0] / both[both > 0]).mean())

    return figure


def compared(
    figure: Figure, truth: NDArray[Any], mine: NDArray[Any], other: NDArray[Any], *, relative: bool, seed: int
) -> tuple[float, float]:
    """Return the difference of a figure of two models' answers, and its standard error by a paired bootstrap."""

    def difference(chosen: NDArray[np.int64]) -> float:
        a, b = (figure(truth[chosen], answers[chosen]) for answers in (mine, other))
        return a / b - 1 if relative else a - b

    rng = np.random.default_rng(seed)
    drawn = [difference(rng.integers(0, len(truth), len(truth))) for _ in range(DRAWS)]
    return difference(np.arange(len(truth))), float(np.std(drawn, ddof=1))


def row(case: Case, seeds: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a case's cells of the table: means over seeds, and the interval of the mean difference."""
    about = f"{case.name}: {case.about}"
    why = next((made["reason"] for made in seeds.values() if "reason" in made), "")
    if why:
        return [about, case.figure, "", "", "", why.replace("|", "/")[:160], ""]
    made = list(seeds.values())
    here, hand, gap = (float(np.mean([one[key] for one in made])) for key in ("here", "hand", "difference"))
    half = 1.96 * math.sqrt(sum(one["error"] ** 2 for one in made)) / len(made)
    scale, unit = (100, " %") if case.figure in LEAST else (1, "")
    digits = 1 if case.figure in LEAST else 3
    shown = (
        f"{scale * gap:+.{digits}f}{unit} ({scale * (gap - half):+.{digits}f} to {scale * (gap + half):+.{digits}f})"
    )
    worse = gap if case.figure in LEAST else -gap
    verdict = "yes" if worse <= NEAR[case.figure] else "within chance" if worse - half <= NEAR[case.figure] else "no"
    return [about, f"{case.figure}, {made[0]['train']:,}", str(len(made)), f"{here:.3f}", f"{hand:.3f}", shown, verdict]


def blocks(cases: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str | dict[str, list[Any]]]:
    """Yield what the page consists of."""
    yield "# Boosted trees beside scikit-learn's"
    yield (
        "`python -m benchmarks.stranger_trees`: the [tables of strangers](strangers.md) for which `fedfloor new` "
        "drafts boosted trees, trained as drafted (the trees are the same to the bit on any devices), beside "
        "scikit-learn's histogram boosting with its defaults on all training rows in one place. Means over seeds, each "
        "with another split; in brackets the 95 % interval of the mean difference, by a paired bootstrap over the test "
        "samples of each seed. "
        "RMSE: less is better, and the difference is relative. *Near*: at most 3 % (RMSE) or 0.02 (macro-F1) worse; "
        "*within chance*: the interval reaches there."
    )
    columns = ["data", "figure, training samples", "seeds", "federated", "by hand", "difference", "near"]
    yield {"columns": columns, "rows": [row(case, cases[case.name]) for case in CASES if case.name in cases]}


def main() -> None:
    """Carry out what the JSON lacks, case by case and seed by seed, and write the page after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    kept: Path = given.out.with_suffix(".json")
    found: dict[str, dict[str, Any]] = json.loads(kept.read_text(encoding="utf-8"))["cases"] if kept.exists() else {}
    for case in (
        case for case in CASES if case.figure in NEAR and (not given.only or case.name in given.only.split(","))
    ):
        missing = [seed for seed in given.seeds.split(",") if seed not in found.get(case.name, {})]
        if missing:
            play(case, missing, found, given.out)


def play(case: Case, seeds: Sequence[str], found: dict[str, dict[str, Any]], out: Path) -> None:
    """Carry out a case's seeds, and write the page after each."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        try:
            why = draft(case, folder).replace(f"{folder}/", "")
        except AbsentError as lack:
            why = f"left out: {lack}"
        for seed in seeds:
            found.setdefault(case.name, {})[seed] = {"reason": why} if why else seed_of(case, folder, int(seed))
            print(case.name, seed, found[case.name][seed], flush=True)
            documents.publish(out, list(blocks(found)), cases=found)


if __name__ == "__main__":
    main()
