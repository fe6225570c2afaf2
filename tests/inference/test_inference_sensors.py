"""Predictions are warned of sensors unlike those of training, in the values by which the model normalises."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedfloor
from commands import Command
from fedfloor.base.errors import SettingError
from fedfloor.config import from_table
from fedfloor.inference.trained import load_model
from fedfloor.park import summaries

SENSORS = ("setting", "heat", "load", "flow")
Rows = list[list[Any]]
NORMALISE = {
    "standard": "standard",
    "device": "device",
    "device, first rows": {"kind": "device", "rows": 40},
    "regime": {"kind": "regime", "columns": ["setting"], "regimes": 3},
    "robust": "robust",
}


def rows_of(names: list[str], seed: int, *, drifts: bool = True) -> dict[str, np.ndarray]:
    """Return rows [120, 4] of machines: three regimes far apart, levels of their own, and a drift along recordings."""
    machines = {}
    for k, name in enumerate(names):
        rng = np.random.default_rng((seed, k))
        regime = rng.integers(3, size=120)
        z = rng.normal(size=(120, 3))
        z[:, 2] = 0.95 * z[:, 1] + 0.31 * z[:, 2]
        z += 0.5 * rng.normal(size=3) + drifts * np.linspace(0, 8, 120)[:, None] * [1, 0, 0]
        level = np.array([[10.0, 200, 3], [60, 500, 9], [90, 900, 27]])[regime]
        machines[name] = np.c_[regime, level + z * [1.0, 20, 0.4]].astype(np.float32)
    return machines


def write(path: Path, machines: dict[str, np.ndarray]) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["machine", "t", *SENSORS, "state"])
        for name, x in machines.items():
            rows.writerows([name, t, *map(repr, row), ("ok", "bad")[t % 2]] for t, row in enumerate(x.tolist()))
    return path


TRAINED = [f"m{k}" for k in range(8)]
NEW = [f"n{k}" for k in range(4)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    path = write(folder / "train.csv", rows_of(TRAINED, 0))
    columns = {"device": "machine", "time": "t", "label": "state"}
    for name, normalise in NORMALISE.items():
        data = {"path": str(path), "columns": columns, "normalise": normalise}
        table = {"name": "own", "rounds": 1, "data": data, "model": {"name": "logistic"}, "method": {"name": "fedavg"},
                 "work": {"batch_size": 8}}  # fmt: skip
        fedfloor.run(from_table(table), folder / name, ranks=1)
    return folder


def sensors_named(command: Command, run: Path, file: Path) -> list[str]:
    warnings = command("predict", str(run), str(file), "--json").document["warnings"]
    return [text for text in warnings if "sensor" in text]


@pytest.mark.parametrize("normalise", NORMALISE)
def test_neither_training_nor_new_machines_are_warned_of(normalise: str, runs: Path, command: Command) -> None:
    assert sensors_named(command, runs / normalise, runs / "train.csv") == []
    new = write(command.folder / "new.csv", rows_of(NEW, 1))
    assert sensors_named(command, runs / normalise, new) == []


@pytest.mark.parametrize("normalise", NORMALISE)
@pytest.mark.parametrize("fault", ["°F", "×10", "constant", "sign", "swapped"])
def test_a_fault_is_named(normalise: str, fault: str, runs: Path, command: Command) -> None:
    machines = rows_of(NEW[:1], 1)
    x = machines["n0"]
    if fault == "°F":
        x[:, 1] = 1.8 * x[:, 1] + 32
    elif fault == "×10":
        x[:, 1] *= 10
    elif fault == "constant":
        x[:, 1] = 30
    elif fault == "sign":
        x[:, 3] *= -1
    else:
        x[:, [1, 2]] = x[:, [2, 1]]
    named = sensors_named(command, runs / normalise, write(command.folder / "odd.csv", machines))
    if fault in ("°F", "×10", "swapped") and normalise.startswith("device"):
        assert named == []  # normalised by its own rows, these follow the regimes whatever their unit
    elif fault == "°F" and normalise in ("standard", "robust"):
        assert len(named) <= 1  # three regimes of 10, 60 and 90 °C hide a factor of 1.8
    else:
        assert any("'heat'" in text or "'flow'" in text for text in named)


def test_a_run_without_a_record_is_compared_with_its_normalisation(
    runs: Path, tmp_path: Path, command: Command
) -> None:
    machines = rows_of(NEW[:1], 1)
    machines["n0"][:, 1] *= 1000
    odd = write(command.folder / "odd.csv", machines)
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("standard", "regime", "device"):
        (bare / "model.safetensors").write_bytes((runs / name / "model.safetensors").read_bytes())
        assert len(sensors_named(command, bare, odd)) == (1 if name == "standard" else 0)


def test_a_damaged_record_is_named(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((runs / "standard" / "model.safetensors").read_bytes())
    for text in ("", "[]", '{"sensors": ["a"]}', "null"):
        (tmp_path / summaries.FILE).write_text(text)
        with pytest.raises(SettingError, match=summaries.FILE):
            _ = load_model(tmp_path).training.sensors
