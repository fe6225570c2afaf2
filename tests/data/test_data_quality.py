"""Values whose quality is not good are missing: in training, in predictions and in drafts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import fedfloor
from commands import Command
from fedfloor.config import from_table
from fedfloor.data.files.own import load
from fedfloor.data.reading import Reading
from refusals import refused

NAMES = ["machine", "at", "heat", "heat_q", "load", "load_q", "state"]
ROWS = 80


def plant(path: Path, good: str = "192", bad: str = "24") -> tuple[Path, np.ndarray]:
    """Write a table of four machines in which every tenth value of ``heat`` is 0 and bad; return it with a mask."""
    rng = np.random.default_rng(0)
    wrong = np.arange(ROWS) % 10 == 3
    heat = np.where(wrong, 0.0, rng.uniform(20, 30, ROWS))
    state = np.where(heat > 25, "hot", "ok").tolist()
    rows = [
        [f"m{i % 4}", str(i // 4), f"{value:.3f}", bad if wrong[i] else good, f"{i % 7}", good, state[i]]
        for i, value in enumerate(heat)
    ]  # fmt: skip
    if path.suffix == ".parquet":
        columns = dict(zip(NAMES, map(list, zip(*rows, strict=True)), strict=True))
        numbers = {name: pa.array([float(cell) for cell in columns[name]]) for name in ("at", "heat", "load")}
        parquet.write_table(pa.table(columns | numbers), path)
    else:
        path.write_text("\n".join(",".join(row) for row in [NAMES, *rows]) + "\n")
    return path, wrong


def reading(**more: object) -> Reading:
    table = {
        "name": "plant", "rounds": 1, "method": {"name": "fedavg"}, "model": {"name": "logistic"},
        "data": {"path": "plant.csv", "columns": {"device": "machine", "label": "state", "time": "at",
                 "ignore": ["heat_q", "load_q"]}, "missing": "mean", "split": {"kind": "random"},
                 "quality": {"heat": "heat_q", "load": "load_q"}, **more},
    }  # fmt: skip
    return from_table(table).data


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_values_of_bad_quality_are_missing_and_no_others(tmp_path: Path, ending: str) -> None:
    path, wrong = plant(tmp_path / f"plant.{ending}")
    data = load(path, reading(), 0)
    heat = np.concatenate(
        [data.take(np.arange(len(data.y)), -1)[:, 0], data.take_test(np.arange(len(data.y_test)))[:, 0]]
    )
    assert np.isnan(heat).sum() == wrong.sum()
    assert np.nanmin(heat) >= 20


@pytest.mark.parametrize(
    ("good", "bad", "more"),
    [("Good", "Bad", {}), ("0x00000000", "0x80340000", {}), ("valid", "invalid", {"good": ["Valid"]})],
)
def test_qualities_are_those_of_opc_or_listed(tmp_path: Path, good: str, bad: str, more: dict[str, object]) -> None:
    path, wrong = plant(tmp_path / "plant.csv", good, bad)
    data = load(path, reading(**more), 0)
    heat = np.concatenate([data.take(np.arange(len(data.y)), -1), data.take_test(np.arange(len(data.y_test)))])[:, 0]
    assert np.isnan(heat).sum() == wrong.sum()


def test_other_texts_and_absent_columns_are_refused(tmp_path: Path) -> None:
    path, _ = plant(tmp_path / "plant.csv", "valid", "invalid")
    with refused("quality"):
        load(path, reading(), 0)
    with refused("quality"):
        load(path, reading(quality={"heat": "heat_x"}), 0)
    with refused("data.good"):
        reading(quality=None, good=["valid"])


def test_a_draft_names_qualities_and_predictions_heed_them(command: Command) -> None:
    """A prediction of a bad 0 is that of an empty cell, not of a 0."""
    path, wrong = plant(command.folder / "plant.csv")
    drafted = command("new", "plant.csv", "--set", "data.columns.label=state", "--set", "data.window.length=1")
    assert drafted.code == 0, drafted.err
    assert "(10 % are not good)" in (command.folder / "plant.toml").read_text()
    assert "data.quality" in (command.folder / "plant.toml").read_text()
    done = fedfloor.run(command.folder / "plant.toml", command.folder / "run", rounds=6, ranks=1)
    rows = [line.split(",") for line in path.read_text().splitlines()]
    emptied = [
        rows[0],
        *([*row[:2], "" if bad else row[2], *row[3:]] for row, bad in zip(rows[1:], wrong, strict=True)),
    ]
    (command.folder / "emptied.csv").write_text("\n".join(map(",".join, emptied)) + "\n")
    answers = [
        json.loads(command("predict", str(done.folder), name, "--json").out)["rows"]
        for name in ("plant.csv", "emptied.csv")
    ]
    assert [row["predicted"] for row in answers[0]] == [row["predicted"] for row in answers[1]]
