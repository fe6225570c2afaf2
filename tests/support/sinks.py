"""What TensorBoard and MLflow hold of a run, read back by their own readers, and what its ledger says."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

Points = dict[int, dict[str, float]]  # round → name → number


def ledger_points(folder: Path, single: bool = False) -> Points:
    """The ledger's numbers; ``single``: as TensorBoard keeps them, in single precision."""
    classes = json.loads((folder / "park.json").read_text())["classes"]
    found: Points = {}
    for row in map(json.loads, (folder / "ledger.jsonl").read_text().splitlines()):
        values = {name: row[name] for name in ("accuracy", "loss", "train_loss", "participants", "lost", "wall_s")}
        values |= {f"device/{name}": value for name, value in (row["by_device"] or {}).items()}
        values |= {f"class/{name}": value for name, value in zip(classes, row["by_class"] or (), strict=False)}
        measured = {name: float(value) for name, value in values.items() if value is not None}
        found[row["round"]] = {name: float(np.float32(v)) for name, v in measured.items()} if single else measured
    return found


def tensorboard_points(folder: Path) -> Points:
    """What TensorBoard's own reader finds; a round that is there twice fails."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder)).Reload()
    found: Points = {}
    for tag in reader.Tags()["scalars"]:
        for event in reader.Scalars(tag):
            assert tag not in found.setdefault(event.step, {}), f"{tag} of round {event.step} is there twice"
            found[event.step][tag] = event.value
    return found


@dataclass(frozen=True)
class Found:
    """An MLflow run."""

    id: str
    name: str
    status: str
    points: Points
    params: dict[str, str]
    tags: dict[str, str]
    files: set[str]


def mlflow_runs(uri: str, experiment: str) -> dict[str, Found]:
    """The runs of an MLflow experiment by name; a metric that is there twice for a round fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        found: dict[str, Found] = {}
        for run in client.search_runs([client.get_experiment_by_name(experiment).experiment_id]):
            points: Points = {}
            for key in run.data.metrics:
                for metric in client.get_metric_history(run.info.run_id, key):
                    assert key not in points.setdefault(metric.step, {}), f"{key} of round {metric.step} is there twice"
                    assert abs(time.time() - metric.timestamp / 1000) < 86_400, f"{key}: its time is not in ms"
                    points[metric.step][key] = metric.value
            files = {file.path for file in client.list_artifacts(run.info.run_id)}
            name = run.info.run_name
            status = run.info.status
            assert name not in found
            found[name] = Found(run.info.run_id, name, status, points, run.data.params, run.data.tags, files)
        return found


def one_mlflow_run(uri: str, experiment: str) -> Found:
    """The only run of an MLflow experiment."""
    (run,) = mlflow_runs(uri, experiment).values()
    return run
