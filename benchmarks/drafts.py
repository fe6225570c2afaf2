"""Drafts of `fedfloor new`, unchanged, beside forests and boosting by hand, with and without own normalisation.

    python -m benchmarks.drafts [--only NAME,…] [--seeds 0,1,2] [--kept] [--folder runs/drafts] [--out PAGE.md]

Each set is written as a table that a plant may have, drafted with the words that `fedfloor new` asks for and no others,
and trained as drafted. By hand, scikit-learn's random forest and histogram boosting, with their defaults, learn from
statistics of the same windows (where rows were drafted: from rows, and from windows of 20, the better) of all devices
in one place: without normalisation, and with each device's own, by its first 200 rows where it does not train (of
engines half the shortest life: 200 rows are the whole life of 9 of the 20 tested engines of FD001, and tell when it
ends: R² 0.863 of boosting, 0.743 with 120 rows, 0.770 with 64). The best of these on the test samples counts, with
hindsight. Figures are AUROC, the mean over classes, and R². Made machines have 240 rows; 10 of them train, and others
that do not, or later rows of the same, are tested: with the two machines of a usual split the figure of a seed is that
of two machines (R² of load with seed 2: a lead of −0.40).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

from benchmarks import skab
from fedfloor import config
from fedfloor.experiment import Experiment
from fedfloor.inference.trained import load_model
from fedfloor.park.normalise import DeviceNormaliser, prepared
from fedfloor.park.park import Park
from fedfloor.runs.parks import build_park
from fedfloor.runs.references import columns
from papers import documents

Numbers = NDArray[np.float64]
KEPT = "figures.json"  # in the folder of a set and a seed
MARGIN = 0.02  # by which a draft may be behind the best by hand
ROWS = 200  # first rows of a device that does not train
STRANGERS = 40  # machines of a made plant that do not train
LATER = 4  # later rows of machines that do, in recordings
MOST = 20_000  # samples that are fitted by hand, evenly spread


@dataclass(frozen=True)
class Case:
    """A set, how it is written as tables, and the words of its draft beside the path."""

    name: str
    about: str
    write: Callable[[Path, int], Path]  # folder, seed → table
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plant:
    """A made plant: sensors with levels and scales of each machine's own, moved by states or by a load.

    Args:
        levels: standard deviation of machines' levels, in deviations of the noise.
        scales: standard deviation of the logarithm of machines' scales.
        turns: whether machines are recorded one after another, and others are tested than those that train.
        classes: number of states; 0: a load from 0 to 1 is to be predicted.
        lasts: rows that a state lasts.
        strength: what a state or the full load moves, in deviations of the noise.
    """

    levels: float
    scales: float = 0.0
    turns: bool = False
    classes: int = 2
    lasts: int = 60
    strength: float = 0.6
    machines: int = 10
    rows: int = 240

    def write(self, folder: Path, seed: int) -> Path:
        """Write the plant's tables; the first state of a recording lasts longest, as a machine starts sound.

        A figure of few machines, or of few states, is theirs: :data:`STRANGERS` machines that do not train, or
        :data:`LATER` times as many later rows of those that do, make it that of the plant.
        """
        rng = np.random.default_rng([seed, 47])
        effect = rng.normal(0, self.strength, (max(self.classes, 2), 6))
        lines: dict[str, list[str]] = {"plant": [], "test": []}
        for k in range(self.machines + STRANGERS * self.turns):
            level = rng.normal(0, self.levels, 6)
            scale = np.exp(rng.normal(0, self.scales, 6))
            state = 0
            load = 0.0
            until = self.rows // 4
            noise = rng.normal(size=6)
            for t in range(self.rows * (1 if self.turns else 1 + LATER)):
                if t >= until:
                    state = int(rng.integers(max(self.classes, 2)))
                    until = t + self.lasts
                load = 0.95 * load + 0.05 * rng.uniform(-1, 2)
                noise = 0.7 * noise + 0.7 * rng.normal(size=6)
                moved = effect[state] - effect[0] if self.classes else 4 * load * effect[1]
                x = level + scale * (noise + moved)
                label = f"s{state}" if self.classes else f"{load:.4f}"
                time = 10 * (t + self.turns * k * self.rows)
                table = lines["plant" if k < self.machines and t < self.rows else "test"]
                table.append(f"m{k},{time},{','.join(f'{value:.4f}' for value in x)},{label}")
        for name, table in lines.items():
            text = "\n".join(["machine,time,a,b,c,d,e,f,state", *table]) + "\n"
            (folder / f"{name}.csv").write_text(text, encoding="utf-8")
        return folder / "plant.csv"


def valve(folder: Path, _: int) -> Path:
    """Write SKAB's valve1 as one table with a column of recordings."""
    every = skab.recordings()
    return skab.table(folder / "plant.csv", every, list(every))


def engines(subset: str) -> Callable[[Path, int], Path]:
    """Return a writer of the training engines of a subset of C-MAPSS, with their remaining life."""

    def write(folder: Path, _: int) -> Path:
        text = gzip.decompress(next(source("cmapss").rglob(f"train_{subset}.txt.gz")).read_bytes()).decode()
        rows = [line.split() for line in text.splitlines()]
        last = {row[0]: int(row[1]) for row in rows}
        names = ["engine", "cycle", "altitude", "mach", "throttle", *(f"s{i}" for i in range(1, 22)), "rul"]
        lines = [",".join([*row, str(last[row[0]] - int(row[1]))]) for row in rows]
        path = folder / "plant.csv"
        path.write_text("\n".join([",".join(names), *lines]) + "\n", encoding="utf-8")
        return path

    return write


def process(folder: Path, _: int) -> Path:
    """Write the Tennessee Eastman process: its training and test recordings, of which the first 160 rows are normal."""
    names = ["run", "minute", *(f"x{i}" for i in range(1, 53)), "fault"]
    for part, end in (("train", ""), ("test", "_te")):
        lines = [",".join(names)]
        for fault in range(22):
            path = next(source("tep").rglob(f"d{fault:02}{end}.dat*"))
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            x = np.array([line.split() for line in content.decode().splitlines() if line.strip()])
            x = x if x.shape[1] == 52 else x.T
            for t, row in enumerate(x):
                label = f"IDV{fault}" if fault and (not end or t >= 160) else "normal"
                lines.append(",".join([f"{part}{fault}", str(3 * t), *row, label]))
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "train.csv"


def source(name: str) -> Path:
    """Return the folder of a published set."""
    return Path(os.environ["FEDFLOOR_DATA"]) / name


DEAL = ("--set", "data.columns.device=", "--set", "park.devices=6", "--set", 'data.partition={kind="iid"}')
APART = ("--set", "data.test=test.csv")
LIFE = ("--task", "regression", "--set", "data.task.cap=125")
CASES = (
    Case("valve1", "SKAB, 16 recordings of a valve, whole ones held out", valve,
         ("--set", "data.columns.device=recording")),
    Case("FD001", "C-MAPSS, 100 engines to failure, whole ones held out", engines("FD001"), LIFE),
    Case("FD003", "the same with two kinds of failures", engines("FD003"), LIFE),
    Case("TEP", "Tennessee Eastman process, 22 states, its own test recordings", process,
         (*DEAL, "--set", "data.test=test.csv")),
    Case("turns", "made: recordings one after another, levels of 5 deviations", Plant(5, turns=True).write, APART),
    Case("known", "made: machines that are known, levels of 5 deviations", Plant(5).write, APART),
    Case("scales", "made: recordings, levels of 3 deviations and scales of their own",
         Plant(3, 0.7, turns=True).write, APART),
    Case("kinds", "made: four states, recordings, levels of 4 deviations",
         Plant(4, turns=True, classes=4).write, APART),
    Case("load", "made: a load to predict, recordings, levels of 4", Plant(4, turns=True, classes=0).write, APART),
    Case("alike", "made: recordings without levels of their own", Plant(0, turns=True).write, APART),
)  # fmt: skip


def drafted(case: Case, folder: Path, seed: int) -> Experiment:
    """Write a set, draft it and train it as drafted, unless this was done; return the experiment."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "out" / "evaluation.json").exists():
        path = case.write(folder, seed)
        command(folder, "new", path.name, "--out", "e.toml", "--force", *case.words, "--set", f"seed={seed}")
        again = ("--resume", "--force") if (folder / "out" / "experiment.toml").exists() else ()  # it was interrupted
        command(folder, "run", "e.toml", "--ranks", "1", "--out", "out", *again)
    return config.read(folder / "out" / "experiment.toml")


def command(folder: Path, *words: str) -> None:
    """Carry out a command of fedfloor in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "fedfloor", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr}")


def figure(predicted: Numbers, park: Park) -> float:
    """Return R² of numbers [n], or the mean AUROC over classes of probabilities [n, F], of the test samples."""
    from sklearn.metrics import r2_score, roc_auc_score

    y = park.test()[1]
    if park.dataset.target is not None:
        return float(r2_score(capped(park, y[:, 0]), capped(park, predicted.reshape(len(y), -1)[:, 0])))
    tested = [c for c in range(len(park.dataset.classes)) if 0 < (y == c).mean() < 1]
    return float(np.mean([roc_auc_score(y == c, predicted[:, c]) for c in tested]))


def capped(park: Park, numbers: Numbers) -> Numbers:
    """Return numbers cut at the task's cap, above which a model is not to tell lives apart."""
    cap = getattr(park.dataset.task, "cap", None)
    return numbers if cap is None else np.minimum(numbers, cap)


def by_hand(experiment: Experiment, seed: int) -> dict[str, float]:
    """Return the figures by hand: of the draft's samples, and of windows of 20 where rows were drafted."""
    data = replace(experiment.data, normalise="auto")
    kinds = {"": data}
    if data.window is None and data.columns.time and data.partition.kind == "natural":
        kinds["windows, "] = replace(
            data, window=config.from_table({"data": {"window": {"length": 20, "step": 1}}}).data.window
        )
    figures: dict[str, float] = {}
    for kind, samples in kinds.items():
        park = build_park(
            replace(experiment, data=samples, evaluate=replace(experiment.evaluate, on="test", patience=None))
        )
        parks = {"": park}
        if park.natural_owners is not None and park.dataset.owner_test is not None:
            parks["own, "] = prepared(park, DeviceNormaliser(rows=first_rows(park)))
        for own, scaled in parks.items():
            figures |= {f"{kind}{own}{name}": value for name, value in fitted(scaled, seed).items()}
    return figures


def first_rows(park: Park) -> int | None:
    """Return the number of a device's first rows that normalise it by hand; None: all, as it trains.

    Of a life they are half of the shortest that trains: its end, which is asked for, must not be among them.
    """
    if not (park.test_devices < 0).any():
        return None
    if getattr(park.dataset.task, "cap", None) is None:
        return ROWS
    shortest = int(park.sizes.min()) + (park.dataset.shape[-1] - 1 if len(park.dataset.shape) > 1 else 0)
    return min(ROWS, shortest // 2)


def fitted(park: Park, seed: int) -> dict[str, float]:
    """Return the figures of a forest and of boosting that are fitted to a park's training samples."""
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
        RandomForestClassifier,
        RandomForestRegressor,
    )

    x, y = park.pooled()
    some = np.arange(0, len(x), -(-len(x) // MOST))
    train = columns(x[some])
    test = columns(park.test()[0])
    if park.dataset.target is not None:
        numbers = (
            RandomForestRegressor(random_state=seed, min_samples_leaf=2),
            HistGradientBoostingRegressor(random_state=seed),
        )
        return {
            name: figure(model.fit(train, capped(park, y[some, 0])).predict(test), park)
            for name, model in zip(("forest", "boosting"), numbers, strict=True)
        }
    figures = {}
    kinds = (RandomForestClassifier(300, random_state=seed), HistGradientBoostingClassifier(random_state=seed))
    for name, model in zip(("forest", "boosting"), kinds, strict=True):
        chances = np.zeros((len(test), len(park.dataset.classes)))
        model.fit(train, y[some])
        chances[:, model.classes_] = model.predict_proba(test)
        figures[name] = figure(chances, park)
    return figures


def measured(case: Case, folder: Path, seed: int) -> dict[str, Any]:
    """Return what was drafted, and the figures of the draft and of the models by hand; kept in a file."""
    kept = folder / KEPT
    if kept.exists():
        return dict(json.loads(kept.read_text(encoding="utf-8")))
    here = Path.cwd()
    experiment = drafted(case, folder, seed)
    os.chdir(folder)  # paths to data are relative to it
    try:
        park = build_park(experiment)
        model = load_model(Path("out"))
        outputs = model.outputs(park.test()[0])[0].numpy().astype(np.float64)
        data = experiment.data
        result = {
            "split": getattr(data.split, "kind", "own test"),
            "window": getattr(data.window, "length", 1),
            "normalise": describe(data.normalise),
            "method": experiment.method.name,
            "fedfloor": figure(outputs, park),
            **by_hand(experiment, seed),
        }
    finally:
        os.chdir(here)
    kept.write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(f"{case.name}, seed {seed}: {result}", file=sys.stderr, flush=True)
    return result


def describe(normalise: object) -> str:
    """Return a normalisation in a word."""
    rows = getattr(normalise, "rows", None)
    kind = str(getattr(normalise, "kind", normalise))
    return f"{kind}, {rows} rows" if rows else kind.replace("auto", "standard")


HAND = ("forest", "boosting", "own, forest", "own, boosting")


def hand(result: dict[str, Any]) -> dict[str, float]:
    """Return the figures by hand, the better of rows and windows."""
    figures = {name: [result[kind + name] for kind in ("", "windows, ") if kind + name in result] for name in HAND}
    return {name: max(values) for name, values in figures.items() if values}


def published(page: Path | None) -> dict[str, list[str]]:
    """Return the rows of a page by set; none without a page."""
    if page is None or not page.with_suffix(".json").exists():
        return {}
    made = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))["blocks"]
    return {row[0]: row for block in made if isinstance(block, dict) for row in block["rows"]}


def blocks(
    every: Sequence[tuple[Case, dict[int, dict[str, Any]]]], before: dict[str, list[str]]
) -> Iterator[str | dict[str, Any]]:
    """Yield the paragraphs and the table of the page, from each case's results by seed, and the rows of other sets."""
    yield "# Drafts beside models by hand"
    yield " ".join((__doc__ or "").split("\n\n")[2].split())
    yield "    python -m benchmarks.drafts"
    rows = dict(before)
    for case, by_seed in every:
        results = [*by_seed.values()]
        best = [max(hand(each).values()) for each in results]
        mine = [each["fedfloor"] for each in results]
        lead = np.subtract(mine, best)
        kinds = {
            f"{each['method']}, {each['split']}, windows of {each['window']}, {each['normalise']}" for each in results
        }
        others = [f"{np.mean([hand(each)[name] for each in results]):.3f}" for name in hand(results[0])]
        rows[case.name] = [
            case.name, case.about, "; ".join(sorted(kinds)), f"{np.mean(mine):.3f}",
            *others, *["–"] * (len(HAND) - len(others)),
            f"{lead.mean():+.3f}",
            ", ".join(f"{seed}: {value:+.3f}" for seed, value in zip(by_seed, lead, strict=True)),
            "yes" if lead.mean() >= -MARGIN else "no",
        ]  # fmt: skip
    names = ["set", "what", "drafted", "the draft", *HAND, "lead over the best by hand", "seed: lead", "within 0.02"]
    yield {"columns": names, "rows": [rows[case.name] for case in CASES if case.name in rows]}
    if lacking := [case.name for case in CASES if case.name not in rows]:
        yield f"Not measured yet: {', '.join(lacking)}."


def main() -> None:
    """Measure what is not kept, and print the page or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--kept", action="store_true", help="measure nothing: only the sets and seeds that are kept")
    parser.add_argument("--folder", type=Path, default=Path("runs/drafts"))
    parser.add_argument("--out", type=Path, help="the page, where sets without results in the folder keep their row")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    cases = [case for case in CASES if not given.only or case.name in given.only.split(",")]
    every = []
    for case in cases:
        places = {seed: (given.folder / f"{case.name}-{seed}").resolve() for seed in seeds}
        places = {seed: place for seed, place in places.items() if not given.kept or (place / KEPT).exists()}
        if places:
            every.append((case, {seed: measured(case, place, seed) for seed, place in places.items()}))
    made = list(blocks(every, published(given.out)))
    print(documents.page({"blocks": made}))
    if given.out is not None:
        documents.publish(given.out, made)


if __name__ == "__main__":
    main()
