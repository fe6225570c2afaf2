"""Faults of a test bench (SKAB, valve1) in recordings held out: federated, pooled, local and a forest, by AUROC.

python -m benchmarks.skab [--rounds 30] [--seeds 0,1,2] [--out results/skab-valve1.md]

Each of the 16 recordings is a device. In each seed six of them, drawn by it, are held out and never train. All networks
are the same, begin with the same weights and see every training window once per round. The data are looked for in
$FEDFLOOR_DATA/skab.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t
from sklearn.ensemble import RandomForestClassifier

import fedfloor
from fedfloor import config
from fedfloor.inference.trained import load_model
from fedfloor.park.park import Park
from fedfloor.runs.parks import build_park
from papers import documents

HELD_OUT = 6  # of 16 recordings
OWN = "each recording by its first 200 rows"
ALIKE = "one scale for all"
NORMALISE = {OWN: '{ kind = "device", rows = 200 }', ALIKE: '"standard"'}  # all 200 are before the fault
METHODS = {"FedAvg": "fedavg", "FedSR, rings of 5": "fedsr", "pooled": "centralized"}
LOCAL = "local only, mean of 10 networks"
FOREST = "random forest on window statistics, pooled"
EXPERIMENT = """
name = "skab"
rounds = {rounds}
seed = {seed}
model.name = "cnn-sensor"
method.name = "{method}"
evaluate.every = {rounds}
[data]
path = "{train}"
test = "{test}"
columns = {{ device = "recording", label = "state" }}
window = {{ length = 30, step = 10 }}
normalise = {normalise}
[work]
epochs = 1
batch_size = 32
momentum = 0.9
lr = {{ kind = "cosine", start = 0.01, end = 1e-4 }}
[methods.fedavg.work]
epochs = 1
[methods.fedsr]
fraction = 1.0
laps = 1
work.epochs = 1
[methods.centralized.work]
epochs = 1
"""
Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Tested:
    """The windows of the held-out recordings of one seed.

    Args:
        faulty: bool [n].
        recording: str [n], the name of the recording of each window.
    """

    faulty: NDArray[np.bool_]
    recording: NDArray[np.str_]


def recordings() -> dict[str, list[str]]:
    """Return the lines of a table for each recording, its name and its state in front and behind."""
    source = Path(os.environ["FEDFLOOR_DATA"]) / "skab" / "valve1"
    found = {}
    for path in sorted(source.glob("*.csv"), key=lambda one: int(one.stem)):
        header, *rows = (line.split(";") for line in path.read_text().splitlines())
        sensors = [name for name in header if name not in ("datetime", "anomaly", "changepoint")]
        place = {name: i for i, name in enumerate(header)}
        first = ",".join(["recording", "time", *sensors, "state"])
        name = f"run {path.stem}"
        found[name] = [first] + [
            ",".join([name, row[0], *(row[place[s]] for s in sensors), "normal" if float(row[-2]) == 0 else "faulty"])
            for row in rows
        ]
    return found


def table(path: Path, every: dict[str, list[str]], names: Iterable[str]) -> Path:
    """Write some recordings as one table."""
    lines = [line for name in names for line in every[name][1:]]
    path.write_text("\n".join([every[next(iter(every))][0], *lines]) + "\n")
    return path


def trained(text: str, out: Path) -> tuple[Tested, Scores]:
    """Run an experiment, and return what was tested and how likely the model takes a fault to be."""
    what = config.from_table(tomllib.loads(text))
    fedfloor.run(what, out, ranks=1)
    park = build_park(what)
    model = load_model(out)
    chances = model.outputs(park.test()[0])[0].numpy()[:, model.classes.index("faulty")]
    return tested(park), chances.astype(np.float64)


def tested(park: Park) -> Tested:
    """Return which test windows are faulty, and whose they are."""
    owner = park.dataset.owner_test
    if owner is None:
        raise SystemExit("the test windows have no recording")
    names = np.array(park.dataset.owned.names)
    return Tested(park.dataset.y_test == park.dataset.classes.index("faulty"), names[owner])


def forest(text: str, seed: int) -> Scores:
    """Return the scores of a random forest on each sensor's mean, deviation, smallest and largest value in a window."""
    park = build_park(config.from_table(tomllib.loads(text)))

    def table_of(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.concatenate([x.mean(2), x.std(2), x.min(2), x.max(2)], axis=1)

    x, y = park.pooled()
    made = RandomForestClassifier(300, random_state=seed, n_jobs=1).fit(table_of(x), y)
    chances: Scores = made.predict_proba(table_of(park.test()[0]))[:, park.dataset.classes.index("faulty")]
    return chances


def seed_scores(
    seed: int, rounds: int, every: dict[str, list[str]], folder: Path
) -> tuple[Tested, dict[str, list[Scores]]]:
    """Return what one seed tests, and the scores of every row of the table; several for those that are means."""
    drawn = np.random.default_rng([seed, 1]).permutation(list(every))
    held = sorted(drawn[:HELD_OUT])
    train = sorted(drawn[HELD_OUT:])
    test = table(folder / "test.csv", every, held)
    whole = table(folder / "train.csv", every, train)
    found: dict[str, list[Scores]] = {}
    same: Tested | None = None

    def text(path: Path, method: str, normalise: str) -> str:
        return EXPERIMENT.format(rounds=rounds, seed=seed, method=method, train=path, test=test, normalise=normalise)

    for title, normalise in NORMALISE.items():
        for name, method in METHODS.items():
            same, scores = trained(text(whole, method, normalise), folder / f"{method}-{title[:3]}")
            found[f"{name}|{title}"] = [scores]
        alone = [table(folder / f"{one}.csv", every, [one]) for one in train]
        found[f"{LOCAL}|{title}"] = [
            trained(
                text(path, "centralized", normalise).replace("park.factories = 2\n", ""),
                folder / f"{path.stem}-{title[:3]}",
            )[1]
            for path in alone
        ]
        found[f"{FOREST}|{title}"] = [forest(text(whole, "fedavg", normalise), seed)]
        print(f"seed {seed}, {title}: done", file=sys.stderr, flush=True)
    if same is None:
        raise SystemExit("nothing was tested")
    return same, found


def wins(test: Tested, scores: Scores) -> NDArray[np.float64]:
    """Return [recordings, recordings]: the share of AUROC's pairs (faulty window of a, normal one of b) in right order.

    Not yet divided: entry (a, b) is the number of such pairs that are right, ties counted by half.
    """
    names = np.unique(test.recording)
    right = np.zeros((len(names), len(names)))
    for i, a in enumerate(names):
        for j, b in enumerate(names):
            gap = np.subtract.outer(scores[test.faulty & (test.recording == a)],
                                    scores[~test.faulty & (test.recording == b)])  # fmt: skip
            right[i, j] = (gap > 0).sum() + 0.5 * (gap == 0).sum()
    return right


def aurocs(seeds: list[tuple[Tested, list[Scores]]]) -> NDArray[np.float64]:
    """Return the mean over seeds of the AUROC over all their test windows: first of all, then without each recording.

    Args:
        seeds: of each what is tested, and one or more scores, whose AUROC are averaged.
    """
    every = np.unique(np.concatenate([test.recording for test, _ in seeds]))
    found = []
    for test, several in seeds:
        names = np.unique(test.recording)
        used = np.concatenate([np.ones((1, len(names))), names != every[:, None]])
        faulty, normal = (np.array([(chosen & (test.recording == one)).sum() for one in names])
                          for chosen in (test.faulty, ~test.faulty))  # fmt: skip
        pairs = (used @ faulty) * (used @ normal)
        found += [np.einsum("ra,ab,rb->r", used, wins(test, scores), used) / pairs / len(several) for scores in several]
    whole: NDArray[np.float64] = np.sum(found, axis=0) / len(seeds)
    return whole


def cell(values: NDArray[np.float64], sign: str = "") -> str:
    """Return a figure θ with half of its 95 % interval by the jackknife over recordings.

    t·√((n − 1)/n Σ_r (θ_r − mean θ_r)²), θ_r without recording r in any seed, t of n − 1 degrees of freedom (Efron and
    Stein, Ann. Statist. 9 (1981) 586).
    """
    less = values[1:]
    error = np.sqrt((len(less) - 1) * np.var(less))
    return f"{values[0]:{sign}.3f} ± {t.ppf(0.975, len(less) - 1) * error:.3f}"


def blocks(
    seeds: list[int], rounds: int, tests: list[Tested], scores: list[dict[str, list[Scores]]]
) -> Iterator[str | dict[str, list[Any]]]:
    """Yield what the page consists of: words and the table."""
    yield "# SKAB, valve1: faults in recordings that never trained"
    yield (
        f"Made by `python -m benchmarks.skab --rounds {rounds} --seeds {','.join(map(str, seeds))}`. 16 recordings, "
        f"each a device; in each of {len(seeds)} seeds {HELD_OUT} are held out. Windows of 30 rows every 10, with the "
        "label of the last; `cnn-sensor`; every network sees each training window once per round, SGD with momentum "
        "0.9 and a rate from 0.01 along a cosine. AUROC over the windows of held-out recordings, mean over seeds, "
        "with half of the 95 % interval by the jackknife over recordings: each is left out of all tests in turn, and "
        "trains as before, so that the chance in what trains is not in it; “− pooled” is the difference to the pooled "
        "network of the same column."
    )
    rows = []
    for row in dict.fromkeys(key.split("|")[0] for key in scores[0]):
        cells = [row]
        for title in NORMALISE:
            mine, base = (
                aurocs([(test, some[f"{name}|{title}"]) for test, some in zip(tests, scores, strict=True)])
                for name in (row, "pooled")
            )
            cells += [cell(mine), "" if row == "pooled" else cell(mine - base, "+")]
        rows.append(cells)
    yield {"columns": ["", OWN, "− pooled", ALIKE, "− pooled"], "rows": rows}


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    seeds = [int(one) for one in given.seeds.split(",")]
    every = recordings()
    tests = []
    scores = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            test, found = seed_scores(seed, given.rounds, every, Path(folder))
        tests.append(test)
        scores.append(found)
    made = list(blocks(seeds, given.rounds, tests, scores))
    print(documents.page({"blocks": made}))
    if given.out is not None:
        documents.publish(given.out, made)


if __name__ == "__main__":
    main()
