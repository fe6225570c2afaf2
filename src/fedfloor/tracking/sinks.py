"""Export of a run: its description, its ledger as named numbers per round, CSV, TensorBoard and MLflow."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from fedfloor.base import regular
from fedfloor.base.checking import toml
from fedfloor.base.errors import MALFORMED, SettingError, unknown
from fedfloor.base.strict import csv_text
from fedfloor.runs.folder import flat, write_json

PLAIN = ("accuracy", "loss", "train_loss", "participants", "lost", "wall_s")


@dataclass(frozen=True)
class About:
    """The description of a run from its folder.

    Args:
        folder: the run's folder, whose name is the run's.
        settings: the resolved experiment, ``table.key`` → value, without provenance.
        provenance: versions, kind of CPU and the data's digest.
        classes: names of the classes, in the ledger's order.
    """

    folder: Path
    experiment: str
    method: str
    seed: int
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]
    classes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the run, equal to that of its folder, such as ``fedavg-seed0``."""
        return self.folder.resolve().name


@dataclass(frozen=True)
class Point:
    """The numbers of a round.

    Args:
        time_s: the end of the round, in seconds since 1970.
        figures: name → number; numbers that were not measured in the round are left out.
    """

    round: int
    time_s: float
    figures: Mapping[str, float]


def about(folder: Path) -> About:
    """Return a run's description from its folder.

    Raises:
        SettingError: the experiment is missing or not TOML.
        OSError: another file is missing.
    """
    document = toml(folder / "experiment.toml", "experiment")
    park = json.loads(regular.read_text(folder / "park.json"))
    provenance = document.pop("provenance", {})
    return About(
        folder=folder,
        experiment=str(document.get("name", folder.name)),
        method=str(document["method"]["name"]),
        seed=int(document["seed"]),
        settings=flat(document),
        provenance=provenance,
        classes=tuple(map(str, park["classes"])),
    )


def figures(row: Mapping[str, Any], classes: Sequence[str]) -> dict[str, float]:
    """Return name → number of a ledger line.

    >>> line = {"accuracy": 0.5, "loss": None, "by_device": {"p50": 0.4}, "by_class": [0.5, None]}
    >>> figures(line | {"priced": {"seconds": 2.0, "bytes": {"device_edge_up": 8}}}, ["a", "b"])
    {'accuracy': 0.5, 'device/p50': 0.4, 'class/a': 0.5, 'priced/seconds': 2.0, 'priced/bytes.device_edge_up': 8}
    """
    values = {name: row.get(name) for name in PLAIN}
    values |= {f"figure/{name}": value for name, value in (row.get("figures") or {}).items()}
    values |= {f"device/{name}": value for name, value in (row.get("by_device") or {}).items()}
    by_class = row.get("by_class")
    if by_class is not None:
        values |= {f"class/{name}": value for name, value in zip(classes, by_class, strict=True)}
    for table in ("priced", "info"):
        values |= {f"{table}/{name}": value for name, value in flat(row.get(table) or {}).items()}
    return {
        name: value for name, value in values.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }


def points(run: About) -> list[Point]:
    """Return the points of a run's ledger, without an incomplete last line.

    The ledger has the durations of rounds, not their ends, which are computed backwards from its last change.

    Raises:
        OSError: the ledger is missing.
        SettingError: a line is damaged.
    """
    path = run.folder / "ledger.jsonl"
    texts = regular.read_text(path).splitlines(keepends=True)
    time_s = path.stat().st_mtime
    result = []
    for number, text in reversed(list(enumerate(texts, start=1))):
        if not text.endswith("\n"):
            continue
        try:
            row = json.loads(text)
            result.append(Point(int(row["round"]), time_s, figures(row, run.classes)))
            time_s -= float(row.get("wall_s") or 0)
        except MALFORMED as error:
            raise SettingError(f"{path}, line {number}: not a ledger line of this run ({error!r}).") from error
    return result[::-1]


def safe_round(folder: Path) -> int:
    """Return the newest checkpoint's round, or 0; a resume does not repeat rounds up to it."""
    names = [path.name for path in (folder / "checkpoint").glob("round-*")]
    return max((int(name.removeprefix("round-")) for name in names), default=0)


FIRST = ("run", "method", "seed", "round", *PLAIN, "device:p10", "device:p50", "device:p90")
LATER = ("figure:", "class:", "priced:", "info:")


def csv_table(runs: Sequence[About]) -> str:
    """Return the ledgers of runs as one tidy CSV table, a row per run and round; missing numbers are empty cells.

    The columns are :data:`FIRST`, then ``figure:NAME``, ``class:NAME``, ``priced:NAME`` and ``info:NAME``, if any run
    has them.
    """
    rows: list[dict[str, object]] = []
    for run, name in zip(runs, run_names([run.folder for run in runs]).values(), strict=True):
        head = {"run": name, "method": run.method, "seed": run.seed}
        for point in points(run):
            measured = {key.replace("/", ":", 1): value for key, value in point.figures.items()}
            rows.append({**head, "round": point.round, **measured})
    columns = _columns(rows)
    return csv_text([columns, *([row.get(name) for name in columns] for row in rows)])


def run_names(folders: Sequence[Path]) -> Mapping[Path, str]:
    """Return a name for each run: its folder's name with as much of the path as is needed to make it unique.

    >>> list(run_names([Path("/r/a/fedavg-seed0"), Path("/r/b/fedavg-seed0")]).values())
    ['a/fedavg-seed0', 'b/fedavg-seed0']
    """
    whole = {folder: folder.resolve() for folder in folders}
    base = os.path.commonpath([path.parent for path in whole.values()])
    return {folder: path.relative_to(base).as_posix() for folder, path in whole.items()}


def _columns(rows: Sequence[Mapping[str, object]]) -> list[str]:
    columns = dict.fromkeys(key for row in rows for key in row if key not in FIRST)
    return [*FIRST, *sorted(columns, key=lambda key: next((i for i, p in enumerate(LATER) if key.startswith(p)), -1))]


LIVE = ("tensorboard", "mlflow")


class Sink(Protocol):
    """A target of a ledger's export; its exceptions do not affect training."""

    def open(self, run: About) -> str:
        """Begin the export, or continue an earlier one of the same run; return its location.

        A sink that failed is opened again; after every opening all rounds are sent, beginning with the first.
        """
        ...

    def send(self, new: Sequence[Point]) -> None:
        """Store rounds, without duplicates of rounds already stored."""
        ...

    def close(self, status: str, files: Sequence[Path]) -> None:
        """End the export with status ``"FINISHED"``, ``"FAILED"`` or ``"KILLED"``; ``files`` are the run's results."""
        ...


def check(kinds: Iterable[str], option: str = "--track") -> None:
    """Check that sinks exist and that their libraries are installed, without importing them.

    Raises:
        SettingError: a sink is unknown, or its library is missing.
    """
    for kind in kinds:
        if kind not in LIVE:
            raise unknown(option, kind, LIVE)
        if importlib.util.find_spec(kind) is None:
            raise SettingError(
                f"{option} {kind}: {kind} is not installed. Install it with pip install 'fedfloor[tracking]'."
            )


def make(kind: str, place: Path) -> Sink:
    """Return a sink of :data:`LIVE`; ``place`` is the folder for event files."""
    if kind == "tensorboard":
        return TensorBoard(place)
    return Mlflow()


OURS = "events.out.tfevents.*.fedfloor"


class TensorBoard:
    """A sink that writes a new event file at every start, which holds the whole ledger and replaces older points.

    Older files except the last, which a running TensorBoard may still read, are deleted. Records are written by this
    thread, as TensorBoard's own writer starts another, and a process with several threads cannot be forked for ranks.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.path = place

    def open(self, run: About) -> str:  # noqa: ARG002
        """Begin a new event file; return its folder."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self.place.mkdir(parents=True, exist_ok=True)
        older = sorted(self.place.glob(OURS))[:-1]
        self.path = self.place / f"events.out.tfevents.{time.time_ns():020d}.fedfloor"
        now = time.time()
        start = SessionLog(status=SessionLog.START)  # with step 0 it discards all points of this run
        _append(
            self.path, [Event(wall_time=now, file_version="brain.Event:2"), Event(wall_time=now, session_log=start)]
        )
        for path in older:
            path.unlink(missing_ok=True)
        return str(self.place)

    def send(self, new: Sequence[Point]) -> None:
        """Write one event per round."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        events = []
        for point in new:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in point.figures.items()]
            events.append(Event(wall_time=point.time_s, step=point.round, summary=Summary(value=values)))
        _append(self.path, events)

    def close(self, status: str, files: Sequence[Path]) -> None:
        """Do nothing, as every round is in the file already."""


def _append(path: Path, events: Sequence[object]) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    with regular.opened(path, "ab") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())  # type: ignore[attr-defined]


log = logging.getLogger(__name__)

NOTE = "tracking.json"
# MLflow's limits for one request
METRICS = 1000
PARAMS = 100
PARAM_LENGTH = 6000
# Defaults for unset environment variables: folders are allowed as stores, an unreachable server costs seconds instead
# of minutes, MLflow prints nothing, and no usage is reported.
DEFAULTS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class Mlflow:
    """A sink that logs to ``MLFLOW_TRACKING_URI``, one MLflow run per run, whose id is stored in the run's folder."""

    def __init__(self) -> None:
        self.client: Any = None
        self.run_id = ""
        self.held: set[tuple[str, int]] = set()

    def open(self, run: About) -> str:
        """Find or create the run's MLflow run, and read its points; return its location."""
        with defaults():
            os.environ.setdefault(
                "JE_ARROW_MALLOC_CONF", "background_thread:false"
            )  # its thread would prevent the forking of ranks
            from mlflow import MlflowClient
            from mlflow.entities import Param

            uri = tracking_uri()
            self.client = MlflowClient(tracking_uri=uri)
            known = True
            stored = _find(self.client, _stored_ids(run.folder).get(public(uri)))
            if stored is None:
                stored = _begin(self.client, run)
                known = False
                ids = _stored_ids(run.folder) | {public(uri): stored.info.run_id}
                write_json(run.folder / NOTE, {"mlflow": ids})
            else:
                self.client.update_run(stored.info.run_id, status="RUNNING")
            self.run_id = stored.info.run_id
            params = {
                re.sub(r"[^\w./-]", "_", key, flags=re.ASCII)[:250]: str(value)[:PARAM_LENGTH]
                for key, value in run.settings.items()
            }
            missing = [Param(key, value) for key, value in params.items() if key not in stored.data.params]
            for at in range(0, len(missing), PARAMS):
                self.client.log_batch(self.run_id, params=missing[at : at + PARAMS])
            self.held = _held(self.client, stored) if known else set()
        return f"{public(uri)}, run {self.run_id}"

    def send(self, new: Sequence[Point]) -> None:
        """Log the metrics that are not yet in the MLflow run."""
        from mlflow.entities import Metric

        metrics = [
            Metric(_key(name), float(value), round(1000 * point.time_s), point.round)
            for point in new
            for name, value in point.figures.items()
            if (_key(name), point.round) not in self.held
        ]
        with defaults():
            for at in range(0, len(metrics), METRICS):
                self.client.log_batch(self.run_id, metrics=metrics[at : at + METRICS])

    def close(self, status: str, files: Sequence[Path]) -> None:
        """Store the files and end the MLflow run."""
        with defaults():
            try:
                for path in files:
                    self.client.log_artifact(self.run_id, str(path))
            finally:
                self.client.set_terminated(self.run_id, status)


def tracking_uri() -> str:
    """Return the location of MLflow's runs: ``MLFLOW_TRACKING_URI``, or MLflow's own default if it is usable.

    That default, a database, needs SQLAlchemy, which ``mlflow-skinny`` lacks; without it the location is ``./mlruns``.
    """
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not given and importlib.util.find_spec("sqlalchemy") is not None:
        from mlflow import get_tracking_uri

        return str(get_tracking_uri())
    if given and (urlsplit(given).scheme or given.startswith("databricks")):
        return given
    return Path(given or "mlruns").resolve().as_uri()


def public(uri: str) -> str:
    """Return a URI without user name and password, as the run's folder may become public."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if "@" in parts.netloc else uri


@contextlib.contextmanager
def defaults() -> Iterator[None]:
    """Set the variables of :data:`DEFAULTS` that are unset in the environment."""
    added = {name: value for name, value in DEFAULTS.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _stored_ids(folder: Path) -> dict[str, str]:
    """Return tracking URI → MLflow run id."""
    path = folder / NOTE
    return dict(json.loads(regular.read_text(path))["mlflow"]) if path.exists() else {}


def _find(client: Any, run_id: str | None) -> Any:
    """Return an MLflow run, or None if it does not exist or was deleted."""
    from mlflow.exceptions import MlflowException

    if run_id is None:
        return None
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
    return run if run.info.lifecycle_stage == "active" else None


def _begin(client: Any, run: About) -> Any:
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.experiment
    known = client.get_experiment_by_name(name)
    experiment = known.experiment_id if known else client.create_experiment(name)
    tags = {
        "fedfloor.version": str(run.provenance.get("fedfloor", "")),
        "fedfloor.data_sha256": str(run.provenance.get("data_sha256", "")),
        "fedfloor.method": run.method,
        "fedfloor.seed": str(run.seed),
    }
    stored = client.create_run(experiment, run_name=run.name, tags=tags)
    log.info("mlflow: run %s is %s in %s", run.name, stored.info.run_id, public(client.tracking_uri))
    return stored


def _held(client: Any, run: Any) -> set[tuple[str, int]]:
    keys = list(run.data.metrics)
    return {(key, metric.step) for key in keys for metric in client.get_metric_history(run.info.run_id, key)}


def _key(name: str) -> str:
    """Return a metric's name in MLflow; an invalid name is changed and made unique by a hash.

    >>> _key("class/A"), _key("class/a+b"), _key("class/a/b")
    ('class/A', 'class/a_b-300273', 'class/a_b-c14cdd')
    """
    head, slash, rest = name.partition("/")
    clean = re.sub(r"[^\w.-]", "_", rest, flags=re.ASCII).strip(".")[:200]
    if clean != rest:
        clean += "-" + hashlib.sha256(rest.encode()).hexdigest()[:6]
    return head + slash + clean
