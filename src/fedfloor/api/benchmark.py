"""The factory benchmark: methods and references on frozen protocols, with intervals, bytes, seconds and joules."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedfloor import config
from fedfloor.base import regular
from fedfloor.base.errors import MALFORMED, DivergedError, RunError, SettingError, unknown
from fedfloor.base.machine import processor
from fedfloor.base.names import REFERENCES
from fedfloor.base.version import __version__
from fedfloor.experiment import Experiment
from fedfloor.network.profile import NetworkSettings
from fedfloor.report import ledger
from fedfloor.report.groups import half_width
from fedfloor.report.intervals import Estimate, holm
from fedfloor.report.numbers import amount
from fedfloor.report.words import CHANCE
from fedfloor.runs.compare import PlannedRun, carry_out, planned_runs
from fedfloor.runs.folder import write_json
from fedfloor.runs.forecast import reprice
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Limits
from fedfloor.runs.references import beside
from fedfloor.tasks.figures import named as figure_named
from fedfloor.tasks.reconstruction import Reconstruction

METHODS = (
    "fedavg", "fedprox", "scaffold", "fedavgm", "fedadam", "ida", "hierfavg", "fedsr", "fedper", "fedrep", "ditto",
)  # fmt: skip
BASE = METHODS[0]  # the method for differences, and for the training of references
COMPONENTS = "pca"  # the reference for anomaly detection
SEEDS = (0, 1, 2)
OTHER_NETWORK = "5g-edge"  # in addition to the protocols' network, LTE Cat-M2
DEVICE = "median device"  # headline metric for its own test samples or class mix, by its own model if any
TOLERANCE = 0.02  # relative, of a metric repeated on another kind of processor
RESULTS = "benchmark.json"
BESIDE = ("local-only", "pooled", "scikit-learn")  # references on the page

log = logging.getLogger(__name__)
Record = dict[str, Any]


def protocols() -> dict[str, Path]:
    """Return the frozen protocols, experiment files without a method, by name."""
    here = Path(__file__).parents[1]
    folder = here / "experiments" if (here / "experiments").is_dir() else here.parents[1] / "experiments"
    return {path.stem: path for path in sorted((folder / "benchmark").glob("*.toml"))}


def read(chosen: Sequence[str], more: Sequence[Path] = ()) -> dict[str, Experiment]:
    """Return the experiments of the chosen protocols (all by default) and of the user's experiment files, by name.

    Raises:
        SettingError: a name is unknown, a file is not an experiment, or two experiments have the same name.
    """
    known = protocols()
    for name in chosen:
        if name not in known:
            raise unknown("protocol", name, known)
    given = {name: config.read(known[name]) for name in (chosen or (() if more else known))}
    for path in more:
        experiment = config.read(path)
        if experiment.name in given:
            raise SettingError(f"--data {path}: protocol '{experiment.name}' exists already. Rename one.")
        given[experiment.name] = experiment
    return given


def plan(name: str, experiment: Experiment, methods: Sequence[str], seed: int, out: Path) -> Iterator[PlannedRun]:
    """Yield the runs of a protocol with a seed: methods, references, and principal components for anomalies.

    A method excluded by the task or the data is left out by :func:`run`, which records the reason.
    """
    folder = out / name
    for method in methods:
        try:
            yield from planned_runs(experiment, [method], [seed], folder)
        except SettingError as refusal:
            named = replace(experiment, seed=seed, method=replace(experiment.method, name=method))
            yield PlannedRun(str(refusal), named, folder / "refused", start=_no)
    yield from beside([], experiment, [BASE], [seed], folder, Limits())
    if isinstance(experiment.data.asked, Reconstruction):
        components = replace(
            experiment, rounds=1, model=replace(experiment.model, name="monitor"), methods={},
            data=replace(experiment.data, window=None), evaluate=replace(experiment.evaluate, every=1),
        )  # fmt: skip
        yield from planned_runs(components, [COMPONENTS], [seed], folder)


def _no(*_: Any) -> str | None:
    """Do nothing, in place of a run that was refused while it was planned."""
    raise SettingError("refused")


def run(
    given: Mapping[str, Experiment], methods: Sequence[str], seeds: Sequence[int], out: Path, ranks: int,
    follow: Callable[[str, Line], None] | None = None,
) -> tuple[dict[str, Any], bool]:  # fmt: skip
    """Carry out missing runs, by seed and protocol; return all results, and whether they are complete.

    ``out/benchmark.json`` has the results after each run, so that the same call continues after a stop. Runs are in
    ``out/PROTOCOL``. If a method refuses a protocol or diverges, this is recorded, and the benchmark continues.

    Args:
        seeds: the seeds, each with another partition, initial model and order.
        ranks: the number of processes of each run.
        follow: called with a run's label and each of its ledger lines.

    Raises:
        SettingError: ``out`` has results of other protocols with these names.
        RunError: a run failed.
    """
    out.mkdir(parents=True, exist_ok=True)
    document = results(out / RESULTS) if (out / RESULTS).exists() else _empty()
    digests = {name: _digest(experiment) for name, experiment in given.items()}
    for name, digest in digests.items():
        if document["protocols"].setdefault(name, digest) != digest:
            raise SettingError(f"{out / RESULTS} has results of another protocol '{name}'. Give another --out.")
    done = {(each["protocol"], each["method"], each["seed"]) for each in document["records"]}
    for seed in seeds:
        for name, experiment in given.items():
            for planned in plan(name, experiment, methods, seed, out):
                method = planned.experiment.method.name
                if (name, method, seed) in done:
                    continue
                record = _record(planned, ranks, follow)
                if record is None:
                    return document, False
                here = {} if processor() == document["processor"] else {"processor": processor()}
                document["records"].append({"protocol": name, "method": method, "seed": seed, **record, **here})
                write_json(out / RESULTS, document)
    return document, True


def _empty() -> dict[str, Any]:
    import torch

    return {
        "fedfloor": __version__, "torch": str(torch.__version__), "processor": processor(), "protocols": {},
        "records": [],
    }  # fmt: skip


def _digest(experiment: Experiment) -> str:
    """Return a digest of a protocol's explicit settings, which does not change with the default of a new setting."""
    return hashlib.sha256(config.brief(replace(experiment, seed=0)).encode()).hexdigest()


def _record(planned: PlannedRun, ranks: int, follow: Callable[[str, Line], None] | None) -> Record | None:
    """Carry out a run and return its record; None if it was interrupted."""

    def each(line: Line) -> None:
        if follow is not None:
            follow(f"{planned.out.parent.name}: {planned.label}", line)

    if planned.start is _no:
        return {"refused": planned.label}
    try:
        _, whole = carry_out([planned], Limits(), ranks, lambda _: nullcontext(each), resume=True, keep=True)
    except DivergedError as error:
        return {"diverged": str(error)}
    except SettingError as refusal:
        return {"refused": str(refusal)}
    if not whole:
        return None
    if not (planned.out / "experiment.toml").exists():  # the log has the reason
        return {"refused": "this task does not have this reference."}
    (done,) = ledger.collect([planned.out])
    spent = {kind: ledger.spent(kind)(done.rounds[-1]) for kind in ("bytes", "seconds", "joules")}
    figure = done.headline
    value = done.headline.read(done.rounds[-1])
    spread = done.rounds[-1].spread(figure)
    model = planned.out / "model.safetensors.sha256"
    return {
        "figure": figure.name, "value": value, "rounds": done.last, **spent,
        **({DEVICE: spread.p50} if spread is not None else {}),
        **({f"{kind} {OTHER_NETWORK}": cost for kind, cost in _elsewhere(planned).items()} if spent["bytes"] else {}),
        "wall_s": round(sum(line.wall_s or 0.0 for line in done.rounds), 2),
        "model": regular.read_text(model).split()[0] if model.exists() else None,
    }  # fmt: skip


def _elsewhere(planned: PlannedRun) -> dict[str, float | None]:
    """Return the seconds and joules of a run on :data:`OTHER_NETWORK`; empty if its plans depend on training."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            (copy,) = reprice([planned.out], NetworkSettings(profile=OTHER_NETWORK), Path(folder) / "r", lambda _: None)
        except SettingError:
            return {}
        (done,) = ledger.collect([copy])
        return {kind: ledger.spent(kind)(done.rounds[-1]) for kind in ("seconds", "joules")}


# -- results -----------------------------------------------------------------------------------------------------------


def results(path: Path) -> dict[str, Any]:
    """Return the results in a file.

    Raises:
        SettingError: the file cannot be read, or is not a benchmark's.
    """
    try:
        document = json.loads(regular.read_text(path))
        _ = [(each["protocol"], each["method"], each["seed"]) for each in document["records"]], document["protocols"]
    except (OSError, *MALFORMED) as error:
        raise SettingError(
            f"{path} has no results of a benchmark ({error}). Run fedfloor benchmark with this --out first.",
            key="results-of-benchmark",
        ) from error
    return dict(document)


def table(document: Mapping[str, Any], protocol: str) -> list[Record]:
    """Return a row per method: mean and 95 % interval of the headline metric, paired difference from FedAvg, costs.

    There is no interval of one seed, nor where all seeds have the same figure, which shows nothing about its error.
    """
    records = [each for each in document["records"] if each["protocol"] == protocol]
    base = {each["seed"]: each["value"] for each in records if each["method"] == BASE and each.get("value") is not None}
    rows = []
    for method in dict.fromkeys(each["method"] for each in records):
        own = [each for each in records if each["method"] == method]
        values = [each["value"] for each in own if each.get("value") is not None]
        pairs = [
            each["value"] - base[each["seed"]] for each in own if each.get("value") is not None and each["seed"] in base
        ]
        whole = len(values) == len(own)
        row: Record = {"method": method, "seeds": len(values), "value": fmean(values) if whole else None}
        row |= {"half_width": (half_width(values) or None) if whole else None}
        row |= {"difference": fmean(pairs) if whole and pairs and method != BASE else None}
        row |= {"difference_half_width": (half_width(pairs) or None) if row["difference"] is not None else None}
        for kind in (DEVICE, "bytes", "seconds", "joules", f"seconds {OTHER_NETWORK}"):
            known = [each[kind] for each in own if each.get(kind) is not None]
            row[kind] = fmean(known) if known else None
        row["note"] = next((key for key in ("refused", "diverged") for each in own if key in each), "")
        rows.append(row)
    return rows


def alike(document: Mapping[str, Any], protocol: str, method: str, others: Sequence[str]) -> list[str]:
    """Return the methods whose paired differences from another one over seeds may be chance.

    Their p-values by Student's t, corrected by Holm's method for the number of the others, are at least :data:`CHANCE`,
    or there are none: with one seed.
    """
    every = [each for each in document["records"] if each["protocol"] == protocol and each.get("value") is not None]
    values = {name: {each["seed"]: each["value"] for each in every if each["method"] == name} for name in others}
    first = {each["seed"]: each["value"] for each in every if each["method"] == method}
    apart = [[first[seed] - own[seed] for seed in first if seed in own] for own in values.values()]
    chances = holm([Estimate((*each,), same=False).chance if each else None for each in apart])
    return [name for name, p in zip(others, chances, strict=True) if p is None or p >= CHANCE]


def page(document: Mapping[str, Any]) -> str:
    """Return the results as Markdown: the best methods, a table per protocol, and the reasons for refused methods."""
    from fedfloor.base.templates import render

    names = dict.fromkeys(each["protocol"] for each in document["records"])
    processors = dict.fromkeys(each.get("processor", document["processor"]) for each in document["records"])
    return render(
        "fedfloor.report", "benchmark.md", document=document, processors=processors, network=OTHER_NETWORK,
        protocols=[_protocol_values(document, name) for name in names], beside=BESIDE, device=DEVICE, amount=amount,
        seeds=len({each["seed"] for each in document["records"]}),
    )  # fmt: skip


def _protocol_values(document: Mapping[str, Any], protocol: str) -> dict[str, Any]:
    """Return the values of a protocol on the page: its rows, the best method first, and the rows to name above all."""
    records = [each for each in document["records"] if each["protocol"] == protocol]
    figure = figure_named(next((each["figure"] for each in records if "figure" in each), "accuracy"))
    rows = table(document, protocol)
    known = {row["method"]: row for row in rows if row["value"] is not None}
    methods = [row for method, row in known.items() if method not in (*REFERENCES, COMPONENTS)]

    def best(rows: Sequence[Record], key: str) -> Record | None:
        return max(rows, key=lambda row: figure.gain(row[key], 0.0), default=None)

    def mean(row: Record, key: str = "value") -> str:
        if row[key] is None:
            return "–"
        half = row.get({"value": "half_width", "difference": "difference_half_width"}.get(key, ""))
        scale, digits = (100.0, 1) if figure.share else (1.0, 2)
        return f"{scale * row[key]:.{digits}f}" + (f" ± {scale * half:.{digits}f}" if half is not None else "")

    about = protocols().get(protocol)
    beside = [known.get(method) for method in BESIDE]
    first = best(methods, "value")
    others = [row["method"] for row in methods if row is not first]
    tied = alike(document, protocol, first["method"], others) if first else []
    return {
        "name": protocol, "about": _about(about) if about else "", "mean": mean,
        "figure": figure.name + ("" if figure.gain(1.0, 0.0) > 0 else " (less is better)"),
        "best": first, "others": others, "tied": tied, "alone": known.get(BESIDE[0]),
        "own": best([row for row in methods if row[DEVICE] is not None], DEVICE),
        "beside": [*beside[:-1], beside[-1] or known.get(COMPONENTS)],
        "devices": any(DEVICE in each for each in records),
        "rows": sorted(rows, key=lambda row: math.inf if row["value"] is None else -figure.gain(row["value"], 0.0)),
        "refused": {each["method"]: each["refused"] for each in records if "refused" in each},
    }  # fmt: skip


def _about(path: Path) -> str:
    lines = regular.read_text(path).splitlines()
    return " ".join(line.lstrip("# ") for line in lines[: next(i for i, line in enumerate(lines) if line[:1] != "#")])


def check(
    document: Mapping[str, Any], given: Mapping[str, Experiment], count: int, seed: int, ranks: int
) -> list[Record]:
    """Repeat randomly drawn runs, and compare their results with the recorded ones.

    On the recorded kind of processor, metric and model must be identical to the bit; on another, the metric must agree
    within :data:`TOLERANCE`.

    Returns:
        A row per record with the recorded values, the new values, and whether they agree.
    """
    known = [each for each in document["records"] if each.get("value") is not None and each["protocol"] in given]
    if not known:
        raise SettingError("these protocols have no recorded results. Run the benchmark without --rerun first.")
    drawn = np.random.default_rng(seed).permutation(len(known))[:count]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for record in (known[i] for i in drawn):
            methods = [] if record["method"] in (*REFERENCES, COMPONENTS) else [record["method"]]
            work = plan(record["protocol"], given[record["protocol"]], methods, record["seed"], Path(folder))
            planned = next(each for each in work if each.experiment.method.name == record["method"])
            now = _record(planned, ranks, None)
            if now is None or now.get("value") is None:
                raise RunError(f"{planned.out.name} of {record['protocol']} could not be run again: {now}.")
            same = now["value"] == record["value"] and now["model"] == record["model"]
            near = math.isclose(now["value"], record["value"], rel_tol=TOLERANCE)
            same_processor = record.get("processor", document["processor"]) == processor()
            row = {key: record[key] for key in ("protocol", "method", "seed", "figure")}
            row |= {"recorded": record["value"], "now": now["value"], "same": same}
            rows.append(row | {"agrees": same if same_processor else near})
    return rows
