"""SKAB's 16 runs of valve1: anomalies without labels, by detectors of each run alone, federated and pooled.

    python benchmarks/anomalies.py --out RUNS [--results results]         # goes on where it was stopped

Every detector is fitted on the first 400 rows of each run, as the leaderboard's are, each run on its own scale; labels
only judge. A run is a device. The last 40 of the 400 rows fit nothing: the 99 % quantile of their scores is the
threshold, a run's own or of all runs. All are judged on the same rows, from the 430th on, where windows of 30 rows lie
behind the first 400. Autoencoders are trained by the product; nothing of them was tuned on these data. The data are
looked for in $FEDFLOOR_DATA/skab.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import IsolationForest

import fedfloor
from fedfloor import config
from fedfloor.data.sources import data_root
from fedfloor.engine.calibrate import quantile
from fedfloor.engine.evaluate import SampleAnswers
from fedfloor.methods.pca import monitor, pooled
from fedfloor.report.groups import half_width
from fedfloor.tasks import detection
from fedfloor.tasks.detection import Detection
from fedfloor.tasks.figures import Predictions
from fedfloor.tasks.rankings import ranking

Floats = NDArray[np.float64]
Table = dict[str, Any]
FIT = 400
HELD = 40
WINDOW = 30
SHARE = 0.99
JUDGED = FIT + WINDOW - 1  # the first row that every detector has a score of
NAB_WINDOW_S = 30.0
ROUNDS = 20
SEEDS = {"ae-conv": (0, 1, 2, 3, 4), "ae-dense": (0, 1, 2, 3, 4), "ae-lstm": (0,)}
METHODS = {"local-only": "each run alone", "fedavg": "FedAvg", "centralized": "pooled"}
PRICED = ("fedavg", "pca")
TREES = 100
FIGURES = ("AUROC", "VUS-PR", "F1", "false alarms %", "missed %", "NAB", "NAB, median of 30")
PUBLISHED = """| | F1 | false alarms % | missed % | NAB |
|---|---|---|---|---|
| convolutional autoencoder | 0.78 | 13.6 | 28.0 | 23.6 |
| T²+Q (PCA) | 0.76 | 26.6 | 24.9 | 25.4 |
| LSTM autoencoder | 0.74 | 30.0 | 25.9 | |
| isolation forest | 0.29 | | | 26.2 |
| MSCRED | | | | 32.4 |"""


class Runs:
    """The recordings: rows on the scale of their first ones, labels, seconds, and seconds of the change points."""

    def __init__(self) -> None:
        self.x = []
        self.odd = []
        self.seconds = []
        self.changes = []
        for path in sorted((data_root() / "skab" / "valve1").glob("*.csv"), key=lambda one: int(one.stem)):
            rows = np.loadtxt(path, delimiter=";", skiprows=1, usecols=range(1, 11))
            dates = np.loadtxt(path, delimiter=";", skiprows=1, usecols=0, dtype="datetime64[s]")
            known = rows[: FIT - HELD, :8]
            deviation = known.std(axis=0)
            self.x.append((rows[:, :8] - known.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0))
            self.odd.append(rows[:, 8] > 0)
            seconds = (dates - dates[0]).astype(np.float64)
            self.seconds.append(seconds)
            self.changes.append(seconds[rows[:, 9] > 0])


def figures(runs: Runs, score: Floats, alarm: NDArray[np.bool_], buffer: int) -> Table:
    """Return the figures of scores (multiples of the threshold) and alarms of all runs' rows from JUDGED on."""
    odd = np.concatenate([one[JUDGED:] for one in runs.odd])
    whose = np.repeat(np.arange(len(runs.odd)), [len(one) - JUDGED for one in runs.odd])
    found = Detection(odd, score, alarm, whose, buffer)
    told = {"AUROC": ranking(score, odd).auroc, "VUS-PR": detection.vus_pr(found), "F1": detection.f1(found)}
    told["false alarms %"] = 100 * (detection.false_alarms(found) or 0.0)
    told["missed %"] = 100 * (detection.missed(found) or 0.0)
    smooth = np.concatenate([median(score[part]) > 1 for part in found.recordings()])
    for name, flags in (("NAB", alarm), ("NAB, median of 30", smooth)):
        points = 0.0
        many = 0
        for run, part in enumerate(found.recordings()):
            when = runs.seconds[run][JUDGED:][detection.switched(flags[part])]
            points += detection.nab_points(when, runs.changes[run], NAB_WINDOW_S)
            many += len(runs.changes[run])
        told[name] = detection.nab_score(points, many)
    return told


def median(score: Floats) -> Floats:
    """Return of each row the median of the last 30 scores, fewer at the beginning."""
    padded = np.concatenate([np.full(WINDOW - 1, np.nan), score])
    return np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, WINDOW), axis=1)


def judged(runs: Runs, each: list[Floats], *, own: bool) -> Table:
    """Return the figures of scores of all rows, by each run's own threshold or by a common one."""
    held = [score[FIT - HELD : FIT] for score in each]
    limits = [quantile([one], SHARE)[0] for one in held] if own else [quantile(held, SHARE)[0]] * len(each)
    score = np.concatenate([one[JUDGED:] / limit for one, limit in zip(each, limits, strict=True)])
    return figures(runs, score, score > 1, 1)


def moments(x: Floats) -> Floats:
    """Return what a device answers: n, the mean, and the upper triangle of the scatter matrix."""
    away = x - x.mean(axis=0)
    return np.concatenate([[len(x)], x.mean(axis=0), (away.T @ away)[np.triu_indices(x.shape[1])]])


def scored(x: Iterable[Floats], mean: Floats, covariance: Floats) -> list[Floats]:
    """Return the scores of runs by the principal components of a mean and a covariance."""
    center, weight, _ = monitor(mean, covariance, 0.9, "T2+Q")
    return [(((one - center) @ weight.T) ** 2).mean(axis=1) for one in x]


def forests(x: list[Floats], seed: int) -> dict[str, list[Floats]]:
    """Return scores by isolation forests: of each run alone, of trees that runs grow and share, and of all rows.

    The score is 2^(−h/c), h the mean depth; depths of shared trees are means over the runs' forests of 7 trees.
    """
    known = [one[: FIT - HELD] for one in x]
    grown = [IsolationForest(n_estimators=TREES, random_state=seed).fit(one) for one in known]
    share = [
        IsolationForest(n_estimators=-(-TREES // len(x)), random_state=100 * seed + k).fit(one)
        for k, one in enumerate(known)
    ]
    whole = IsolationForest(n_estimators=TREES, random_state=seed).fit(np.concatenate(known))
    depth = [np.mean([-np.log2(-tree.score_samples(one)) for tree in share], axis=0) for one in x]
    return {
        "each run alone": [-tree.score_samples(one) for tree, one in zip(grown, x, strict=True)],
        "shared trees": [2**-one for one in depth],
        "pooled": [-whole.score_samples(one) for one in x],
    }


def experiment(network: str, method: str, seed: int) -> fedfloor.Experiment:
    """Return what is run."""
    deep = network != "monitor"
    return config.from_table({
        "name": f"{network}-{method}", "seed": seed, "rounds": ROUNDS if deep else 1,
        "data": {
            "name": "skab", "normalise": "device", **({"window": {"length": WINDOW, "step": 1}} if deep else {}),
        },
        "model": {"name": network}, "method": {"name": method},
        "work": {"optimizer": "adam", "lr": 0.001, "batch_size": 32, "epochs": 1} if deep else {},
        "evaluate": {"every": ROUNDS}, **({"network": {"profile": "lte-cat-m2"}} if method in PRICED else {}),
    })  # fmt: skip


def trained(runs: Runs, network: str, method: str, seed: int, out: Path) -> Table:
    """Return the figures and the price of a run of the product, which is carried out unless its file is there."""
    file = out / f"{network}-{method}-{seed}.json"
    if not file.exists():
        kept = []
        original = SampleAnswers.predictions

        def keep(*given: Any, **named: Any) -> Predictions:
            """Keep scores and alarms of all test samples, which the run's folder has no place for."""
            found = original(*given, **named)
            kept.append(found.detection)
            return found

        with patch.object(SampleAnswers, "predictions", keep):
            done = fedfloor.run(experiment(network, method, seed), out=out / file.stem, ranks=1)
        test = sum(len(one) - FIT - (WINDOW - 1) * (network != "monitor") for one in runs.x)
        found = next(one for one in reversed(kept) if one is not None and len(one.odd) == test)
        told = {}
        if method in PRICED:
            priced = done.lines[-1].priced["total"]
            told = {"bytes": priced["bytes"], "seconds": priced["seconds"]}
        if network != "monitor":
            told |= figures(runs, found.score, found.alarm, WINDOW)
        file.write_text(json.dumps(told), encoding="utf-8")
    return json.loads(file.read_text(encoding="utf-8"))


def cell(values: list[float | None]) -> str:
    """Return a mean with its 95 % interval, where there are several."""
    known = [one for one in values if one is not None]
    if not known:
        return ""
    digits = 3 if max(map(abs, known)) < 2 else 1
    width = half_width(known) if len(known) > 1 and np.ptp(known) > 0 else None
    return f"{np.mean(known):.{digits}f}" + ("" if width is None else f" ± {width:.{digits}f}")


def page(rows: dict[str, list[Table]], apart: float) -> str:
    """Return the results as Markdown."""
    lines = [
        "# SKAB, valve1: anomalies without labels", "",
        "The 16 runs of `valve1`; not the leaderboard's 34 runs, whose figures below are context and no comparison. "
        "Detectors are fitted on the first 400 rows of each run, each run on its own scale, and judged on the rows "
        "from the 430th on (the leaderboard counts the fitted rows too, which dilutes false alarms). The threshold is "
        "the 99 % quantile of the scores of the last 40 of the 400 rows, which fit nothing: of all runs for FedAvg and "
        "for pooled autoencoders, else as named. Autoencoders: windows of 30 rows, scored as a whole, with the label "
        "of the last row; 20 rounds of one pass, Adam 0.001, mini-batches of 32, untuned. Means over seeds with their "
        "95 % interval where anything draws at random: five seeds; of the LSTM a single one, "
        "and none pooled. Principal components, forests and mean |z| score single rows, so that windows are a part of "
        "what the autoencoders are ahead by.", "",
        "NAB by the leaderboard's rule, standard profile: windows of 30 s around each published change point, the "
        "first switch of alarms in one gives from 1 where it begins over 0.445 at the change to −0.11 where it ends, "
        "a window without one −1, a switch outside −0.11; 0 is to detect nothing. So it punishes alarms that flicker, "
        "which F1 does not: the last column has the same scores with an alarm where the median of the last 30 is above "
        "the threshold. The leaderboard's autoencoders alarm only where all 60 windows that hold a row do.", "",
        "```console", "python benchmarks/anomalies.py --out runs/anomalies", "```", "",
        f"| | {' | '.join(FIGURES)} | LTE Cat-M2: MB | s |", "|---" * (len(FIGURES) + 3) + "|",
    ]  # fmt: skip
    for name, several in rows.items():
        cells = [cell([one[key] for one in several]) for key in FIGURES]
        first = several[0]
        price = [f"{first['bytes'] / 1e6:.3g}", f"{first['seconds']:.3g}"] if first.get("bytes") else ["", ""]
        lines.append(f"| {name} | {' | '.join(cells + price)} |")
    lines += [
        "",
        "Prices are those of a whole training of the 16 devices, to the base station and on to the cloud, both ways; a "
        "federated threshold takes 4 answers of 66 counts from each device besides. Pooled "
        "training would send the rows, which is not priced here.", "",
        f"Federated principal components and those of all rows in one place: scores differ by {apart:.1e} of "
        "themselves at most.", "",
        "Published for all 34 runs (SKAB's repository):", "", PUBLISHED,
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the page and its JSON")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    runs = Runs()
    known = [one[: FIT - HELD] for one in runs.x]
    told = [moments(one) for one in known]
    every = np.concatenate(known)
    federated = scored(runs.x, *pooled(told, 8))
    whole = scored(runs.x, every.mean(axis=0), np.cov(every.T, bias=True))
    apart = max(float(np.abs(a / b - 1).max()) for a, b in zip(federated, whole, strict=True))
    local = [scored([one], *pooled([own], 8))[0] for one, own in zip(runs.x, told, strict=True)]
    price = trained(runs, "monitor", "pca", 0, given.out)
    rows: dict[str, list[Table]] = {
        "mean \\|z\\| of a run, no model": [judged(runs, [np.abs(one).mean(axis=1) for one in runs.x], own=True)],
        "PCA, each run alone": [judged(runs, local, own=True)],
        "PCA, federated, own thresholds": [price | judged(runs, federated, own=True)],
        "PCA, federated, one threshold": [price | judged(runs, federated, own=False)],
        "PCA, pooled, one threshold": [judged(runs, whole, own=False)],
    }
    grown = [forests(runs.x, seed) for seed in range(5)]
    for title in grown[0]:
        named = f"isolation forest, {title}{'' if title == 'each run alone' else ', own thresholds'}"
        rows[named] = [judged(runs, one[title], own=True) for one in grown]
    for network, seeds in SEEDS.items():
        for method, title in METHODS.items():
            if (network, method) == ("ae-lstm", "centralized"):
                continue
            found = []
            for seed in seeds:
                found.append(trained(runs, network, method, seed, given.out))
                print(f"{network}, {title}, seed {seed}: {found[-1]}", flush=True)
            rows[f"`{network}`, {title}"] = found
    document = {"federated less pooled": apart, "rows": rows}
    (given.results / "anomalies.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (given.results / "anomalies.md").write_text(page(rows, apart), encoding="utf-8")


if __name__ == "__main__":
    main()
