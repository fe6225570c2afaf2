"""Predictions of a run with different models are those of the models by which the run was judged."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedfloor
from commands import Command, lines
from fedfloor.config import from_table
from fedfloor.inference.trained import load_model
from refusals import refused

DEVICES = ["M0", "M1", "M2", "M3", "M4"]
CLASSES = ["ok", "worn", "hot"]


def samples(rows: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return x [n, 4], y and device: devices differ by the offset of a sensor, and classes by two."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=rows)
    device = np.arange(rows) % len(DEVICES)
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    x[:, 0] += y * np.where(device % 2, 1, -1)
    x[:, 1] += device
    return x, y, np.array(DEVICES)[device]


def trained(folder: Path, method: str, headline: str = "macro-F1") -> Path:
    for name, rows, seed in (("train", 200, 0), ("test", 100, 1)):
        x, y, device = samples(rows, seed)
        labels = np.array(CLASSES)[y]
        np.savez(folder / f"{name}.npz", x=x, y=labels, device=device)
        cells = [[k, *map(repr, row), label] for k, row, label in zip(device, x.tolist(), labels, strict=True)]
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["machine", *"abcd", "state"], *cells])
    columns = {"device": "machine", "label": "state"}
    data = {"path": str(folder / "train.csv"), "test": str(folder / "test.csv"), "columns": columns}
    table = {
        "name": "own", "rounds": 3, "data": data, "model": {"name": "mlp-sensor"},
        "method": {"name": method}, "work": {"batch_size": 8, "lr": 0.1}, "evaluate": {"headline": headline},
    }  # fmt: skip
    return fedfloor.run(from_table(table), folder / "run", ranks=1).folder


@pytest.mark.parametrize("method", ["fedper", "ditto", "ifca"])
@pytest.mark.parametrize("file", ["test.csv", "test.npz"])
def test_every_row_is_answered_by_the_model_of_its_device(
    method: str, file: str, tmp_path: Path, command: Command
) -> None:
    run = trained(tmp_path, method)
    judged = lines(run)[-1]
    body = json.loads((got := command("predict", str(run), str(tmp_path / file), "--json")).out)
    assert (got.code, got.err, body["warnings"]) == (0, "", [])
    assert body["accuracy"] == judged["accuracy"]
    assert body["figures"] == {"macro-F1": pytest.approx(judged["macro_f1"], abs=1e-12)}
    places = json.loads((run / "evaluation.json").read_text())["devices"]
    assert {row["device"]: row["accuracy"] for row in body["by_device"]} == {
        place["name"]: place["accuracy"] for place in places
    }


def test_a_device_without_a_model_is_answered_by_the_shared_model_and_named(tmp_path: Path, command: Command) -> None:
    run = trained(tmp_path, "fedper")
    x, _, _ = samples(20, 2)
    np.savez(tmp_path / "new.npz", x=x, device=["M0", "M9"] * 10)
    np.savez(tmp_path / "none.npz", x=x)
    shared = load_model(run).predict(x)
    own = load_model(run, device="M0").predict(x)
    assert np.array_equal(load_model(run).predict(x, device="M0"), own)
    assert not np.array_equal(shared, own)
    got = command("predict", str(run), str(tmp_path / "new.npz"), "--json")
    assert (got.code, "'M9'" in got.err, "'M0'" in got.err) == (0, True, False)
    wanted = np.where(np.arange(20)[:, None] % 2, shared, own).max(1)
    answered = [row["probability"] for row in json.loads(got.out)["rows"]]
    assert answered == pytest.approx(wanted.tolist(), abs=1e-6)
    assert "samples without a device" in command("predict", str(run), str(tmp_path / "none.npz")).err
    alone = command("predict", str(run), str(tmp_path / "new.npz"), "--device", "M0")
    assert "new.npz: rows of 2 devices (M0, M9); all are treated as rows of 'M0'" in alone.err
    np.savez(tmp_path / "other.npz", x=x, device=["M1"] * 20)
    other = command("predict", str(run), str(tmp_path / "other.npz"), "--device", "M0")
    assert "other.npz: rows of 1 device (M1); all are treated as rows of 'M0'" in other.err


def test_cohorts_have_no_model_for_a_strange_device(tmp_path: Path, command: Command) -> None:
    run = trained(tmp_path, "ifca")
    x, _, _ = samples(10, 2)
    np.savez(tmp_path / "new.npz", x=x, device=["M0", "M9"] * 5)
    strange = command("predict", str(run), str(tmp_path / "new.npz"))
    assert (strange.code, "'M9' is none of its devices" in strange.err) == (2, True)
    assert command("predict", str(run), str(tmp_path / "new.npz"), "--device", "M1").code == 0
    with refused("choice-of-cohort"):
        load_model(run)


@pytest.mark.parametrize("headline", ["balanced accuracy", "recall of hot", "AUROC of worn", "accuracy", "loss"])
def test_the_headline_of_a_run_is_that_of_its_predictions(headline: str, tmp_path: Path, command: Command) -> None:
    run = trained(tmp_path, "fedavg", headline)
    told = command("predict", str(run), str(tmp_path / "test.csv")).out.splitlines()[-1]
    body = json.loads(command("predict", str(run), str(tmp_path / "test.csv"), "--json").out)
    judged = lines(run)[-1]
    if headline in ("accuracy", "loss"):
        assert "figures" not in body
        assert told == f"accuracy: {judged['accuracy']:.4f} on 100 samples with a known label"
        return
    value = judged["figures"][headline]
    assert body["figures"] == {headline: pytest.approx(value, abs=1e-9)}
    assert told == f"{headline}: {value:.4f}, accuracy: {judged['accuracy']:.4f} on 100 samples with a known label"
    (tmp_path / "moved.safetensors").write_bytes((run / "model.safetensors").read_bytes())
    assert "figures" not in json.loads(
        command("predict", str(tmp_path / "moved.safetensors"), str(tmp_path / "test.csv"), "--json").out
    )
