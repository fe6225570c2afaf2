"""MLflow: one MLflow run per run, gone on with after a resume."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedfloor.runs.folder import write_json
from fedfloor.tracking.points import About, Point

log = logging.getLogger(__name__)

NOTE = "tracking.json"
METRICS, PARAMS = 1000, 100  # MLflow's limits for one request
PARAM_LENGTH = 6000
# Where the environment says nothing else: a folder may be a store, a server that is down costs seconds and not
# minutes, nothing is printed between our lines, and no usage is reported to anybody.
MANNERS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class Mlflow:
    """Logs to the store that ``MLFLOW_TRACKING_URI`` names; the run's folder remembers the MLflow run's id."""

    def __init__(self) -> None:
        self.client: Any = None
        self.run_id = ""
        self.held: set[tuple[str, int]] = set()

    def open(self, what: About) -> str:
        """Find the run's MLflow run or make one; read which points it holds."""
        with _manners():
            os.environ.setdefault(
                "JE_ARROW_MALLOC_CONF", "background_thread:false"
            )  # its thread would keep ranks from being forked
            from mlflow import MlflowClient
            from mlflow.entities import Param

            uri = tracking_uri()
            self.client, known = MlflowClient(tracking_uri=uri), True
            run = _find(self.client, _noted(what.folder).get(_public(uri)))
            if run is None:
                run, known = _begin(self.client, what), False
                _note(what.folder, _public(uri), run.info.run_id)
            else:
                self.client.update_run(run.info.run_id, status="RUNNING")
            self.run_id = run.info.run_id
            params = {_clean(key): str(value)[:PARAM_LENGTH] for key, value in what.settings.items()}
            missing = [Param(key, value) for key, value in params.items() if key not in run.data.params]
            for at in range(0, len(missing), PARAMS):
                self.client.log_batch(self.run_id, params=missing[at : at + PARAMS])
            self.held = _held(self.client, run) if known else set()
        return f"{_public(uri)}, run {self.run_id}"

    def send(self, new: Sequence[Point]) -> None:
        """Log the metrics that the MLflow run does not hold yet."""
        from mlflow.entities import Metric

        metrics = [
            Metric(_key(name), float(value), round(1000 * point.time_s), point.round)
            for point in new
            for name, value in point.figures.items()
            if (_key(name), point.round) not in self.held
        ]
        with _manners():
            for at in range(0, len(metrics), METRICS):
                self.client.log_batch(self.run_id, metrics=metrics[at : at + METRICS])

    def close(self, status: str, files: Sequence[Path]) -> None:
        """Store the files and end the MLflow run."""
        with _manners():
            try:
                for path in files:
                    self.client.log_artifact(self.run_id, str(path))
            finally:
                self.client.set_terminated(self.run_id, status)


def tracking_uri() -> str:
    """Return where MLflow stores runs: ``MLFLOW_TRACKING_URI``, else MLflow's own default where that works.

    Without SQLAlchemy, which ``mlflow-skinny`` does not bring, that default (a database) does not: then ``./mlruns``.
    """
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not given and importlib.util.find_spec("sqlalchemy") is not None:
        from mlflow import get_tracking_uri

        return str(get_tracking_uri())
    if given and (urlsplit(given).scheme or given.startswith("databricks")):
        return given
    return Path(given or "mlruns").resolve().as_uri()


def _public(uri: str) -> str:
    """Leave out a user's name and password: the run's folder may be shown to anybody."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if "@" in parts.netloc else uri


@contextlib.contextmanager
def _manners() -> Iterator[None]:
    added = {name: value for name, value in MANNERS.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _noted(folder: Path) -> dict[str, str]:
    """Return tracking URI → MLflow run id."""
    path = folder / NOTE
    return dict(json.loads(path.read_text())["mlflow"]) if path.exists() else {}


def _note(folder: Path, uri: str, run_id: str) -> None:
    write_json(folder / NOTE, {"mlflow": {**_noted(folder), uri: run_id}})


def _find(client: Any, run_id: str | None) -> Any:
    """Return an MLflow run, or None where there is none or its owner has deleted it."""
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


def _begin(client: Any, what: About) -> Any:
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or what.experiment
    found = client.get_experiment_by_name(name)
    experiment = found.experiment_id if found else client.create_experiment(name)
    tags = {
        "fedfloor.version": str(what.provenance.get("fedfloor", "")),
        "fedfloor.data_sha256": str(what.provenance.get("data_sha256", "")),
        "fedfloor.method": what.method,
        "fedfloor.seed": str(what.seed),
    }
    run = client.create_run(experiment, run_name=what.name, tags=tags)
    log.info("mlflow: run %s is %s in %s", what.name, run.info.run_id, _public(client.tracking_uri))
    return run


def _held(client: Any, run: Any) -> set[tuple[str, int]]:
    keys = list(run.data.metrics)
    return {(key, one.step) for key in keys for one in client.get_metric_history(run.info.run_id, key)}


def _key(name: str) -> str:
    """Return a metric's name in MLflow; one that it could not take is changed, and told from others by its hash.

    >>> _key("class/A"), _key("class/a+b"), _key("class/a/b")
    ('class/A', 'class/a_b-300273', 'class/a_b-c14cdd')
    """
    head, slash, rest = name.partition("/")
    clean = re.sub(r"[^\w.-]", "_", rest, flags=re.ASCII).strip(".")[:200]
    if clean != rest:
        clean += "-" + hashlib.sha256(rest.encode()).hexdigest()[:6]
    return head + slash + clean


def _clean(key: str) -> str:
    return re.sub(r"[^\w./-]", "_", key, flags=re.ASCII)[:250]
