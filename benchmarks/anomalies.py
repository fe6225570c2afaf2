"""SKAB's 16 runs of valve1: anomalies without labels, by detectors of each run alone and of all runs together.

Every detector is fitted on the first 400 rows of each run, as the leaderboard's are, each run normalised by these rows;
labels only judge. A run is a device. PCA: T² and Q in one score, locally by a run's own 360 rows, federated by the
moments of all runs (:mod:`fedfloor.methods.pca`); the threshold is the 99 % quantile of the scores of the last 40 of
the 400 rows, which fit nothing: a run's own, or of all runs. mean |z| is no model at all.

    FEDFLOOR_DATA=… python benchmarks/anomalies.py --out results/anomalies.md
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import IsolationForest

from fedfloor import detection
from fedfloor.data.sources import data_root
from fedfloor.detection import Detection
from fedfloor.engine.calibrate import quantile
from fedfloor.figures import ranking
from fedfloor.methods.pca import monitor, pooled

Floats = NDArray[np.float64]
FIT, HELD = 400, 40  # rows of a run that detectors know, and of these the ones that set the threshold alone
SHARE = 0.99
WINDOW = 30  # rows after a change that NAB's windows have: the leaderboard's 30 seconds


def runs() -> list[tuple[Floats, NDArray[np.bool_], NDArray[np.int64]]]:
    """Return of each run its sensors, normalised by its first rows, its labels and its change points."""
    found = []
    for path in sorted((data_root() / "skab" / "valve1").glob("*.csv"), key=lambda one: int(one.stem)):
        rows = np.loadtxt(path, delimiter=";", skiprows=1, usecols=range(1, 11))
        known = rows[: FIT - HELD, :8]
        deviation = known.std(axis=0)
        x = (rows[:, :8] - known.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
        found.append((x, rows[:, 8] > 0, np.flatnonzero(rows[:, 9])))
    return found


def moments(x: Floats) -> Floats:
    """Return what a device answers: n, the mean, and the upper triangle of the scatter matrix."""
    away = x - x.mean(axis=0)
    return np.concatenate([[len(x)], x.mean(axis=0), (away.T @ away)[np.triu_indices(x.shape[1])]])


def scored(x: list[Floats], fitted: list[Floats]) -> list[Floats]:
    """Return the scores of runs by the principal components of the moments of some."""
    center, weight, _ = monitor(*pooled(fitted, 8), 0.9, "T2+Q")
    return [(((one - center) @ weight.T) ** 2).mean(axis=1) for one in x]


def figures(every: list[Floats], labels: list[NDArray[np.bool_]], points: list[NDArray[np.int64]], own: bool) -> str:
    """Return a row of the table: AUROC, F1, false alarms, missed and NAB over the rows after those known."""
    held = [score[FIT - HELD : FIT] for score in every]
    limits = [quantile([one], SHARE)[0] for one in held] if own else [quantile(held, SHARE)[0]] * len(every)
    score = np.concatenate([one[FIT:] / limit for one, limit in zip(every, limits, strict=True)])
    odd = np.concatenate([one[FIT:] for one in labels])
    found = Detection(odd, score, score > 1, np.repeat(np.arange(len(every)), [len(one) - FIT for one in every]))
    total, many = 0.0, 0
    for part, at in zip(found.recordings(), points, strict=True):
        alarm = found.alarm[part]
        got, number = detection.nab_points(detection.changes(alarm), at[at >= FIT] - FIT, len(alarm), WINDOW)
        total, many = total + got, many + number
    nab, auroc = detection.nab_score(total, many), ranking(score, odd).auroc
    f1, false, missed = detection.f1(found), detection.false_alarms(found), detection.missed(found)
    return f"{auroc:.3f} | {f1:.3f} | {100 * (false or 0):.1f} | {100 * (missed or 0):.1f} | {nab:.1f}"


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    data = runs()
    x, labels, points = ([one[i] for one in data] for i in range(3))
    known = [moments(one[: FIT - HELD]) for one in x]
    local = [scored([one], [own])[0] for one, own in zip(x, known, strict=True)]
    federated = scored(x, known)
    trivial = [np.abs(one).mean(axis=1) for one in x]
    rows = {
        "mean \\|z\\| of a run": (trivial, True),
        "PCA, each run alone": (local, True),
        "PCA, federated, own threshold": (federated, True),
        "PCA, federated, one threshold": (federated, False),
    }
    for seed in range(3):
        trees = [IsolationForest(random_state=seed).fit(one[: FIT - HELD]) for one in x]
        each = [-tree.score_samples(one) for tree, one in zip(trees, x, strict=True)]
        rows[f"isolation forest, each run alone, seed {seed}"] = (each, True)
    text = "\n".join([
        "# SKAB, valve1: anomalies without labels",
        "",
        "Made by `python benchmarks/anomalies.py`: see its first lines for the protocol. The 16 runs of `valve1`, rows "
        "after the first 400; not the leaderboard's 34 runs, whose figures are therefore no comparison. NAB: standard "
        "profile, 30 rows after each published change point, detections are where alarms switch. Federated PCA sends "
        f"one answer of {len(known[0])} numbers per run. Nothing but the isolation forest draws at random.",
        "",
        "| | AUROC | F1 | false alarms % | missed % | NAB |",
        "|---|---|---|---|---|---|",
        *(f"| {name} | {figures(each, labels, points, own)} |" for name, (each, own) in rows.items()),
    ])  # fmt: skip
    print(text)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
