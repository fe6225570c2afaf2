"""Predictions name devices that did not train, and judge samples that trained apart from the others."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedfloor
from commands import Command, lines
from fedfloor.base.errors import SettingError
from fedfloor.config import from_table
from fedfloor.inference.trained import load_model
from fedfloor.park import recorded
from fedfloor.runs.parks import build_park

DEVICES = ("M0", "M1", "M2", "M3")
Rows = list[list[Any]]


def rows_of(devices: tuple[str, ...], each: int, seed: int) -> Rows:
    """Return rows of a plant: device, time, two sensors and the state that one of them determines."""
    rng = np.random.default_rng(seed)
    rows: Rows = []
    for k, name in enumerate(devices):
        y = rng.integers(2, size=each)
        x = rng.normal(size=(each, 2)) + [[k, 0]] + 2 * y[:, None] * [[0, 1]]
        rows += [[name, t, *map(repr, x[t].tolist()), ("ok", "worn")[y[t]]] for t in range(each)]
    return rows


def written(path: Path, rows: Rows) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["machine", "at", "a", "b", "state"], *rows])
    return path


def experiment(path: Path, **data: Any) -> dict[str, Any]:
    columns = {"device": "machine", "label": "state", "time": "at"}
    return {
        "name": "own", "rounds": 2, "data": {"path": str(path), "columns": columns} | data,
        "model": {"name": "logistic"}, "method": {"name": "fedavg"}, "work": {"batch_size": 8, "lr": 0.1},
    }  # fmt: skip


@pytest.fixture
def plant(tmp_path: Path) -> Path:
    return written(tmp_path / "plant.csv", rows_of(DEVICES, 100, 0))


def run(table: dict[str, Any], folder: Path) -> Path:
    return fedfloor.run(from_table(table), folder, ranks=1).folder


def test_numbers_of_rows_that_trained_are_judged_apart(tmp_path: Path, command: Command) -> None:
    """320 rows train, 80 are for testing, and 10 are new: the mean squares of both parts make that of all."""

    def numbers(rows: Rows) -> Rows:
        return [[*row[:4], float(row[3]) + float(row[2])] for row in rows]

    path = written(tmp_path / "plant.csv", numbers(rows_of(DEVICES, 100, 0)))
    about = experiment(path, task="regression")
    folder = run(about | {"model": {"name": "linear"}}, tmp_path / "run")
    copy = numbers(rows_of(DEVICES, 100, 0) + rows_of(("M1",), 10, 5))
    body = command("predict", str(folder), str(written(tmp_path / "copy.csv", copy)), "--json").document
    assert (body["trained"]["known"], body["others"]["known"]) == (320, 90)
    squares = [count * body[part]["figures"]["RMSE"] ** 2 for part, count in (("trained", 320), ("others", 90))]
    assert sum(squares) == pytest.approx(410 * body["figures"]["RMSE"] ** 2)


@pytest.mark.parametrize("normalise", ["standard", "device", "robust"])
def test_rows_that_trained_are_judged_apart_whatever_the_file(
    normalise: str, plant: Path, tmp_path: Path, command: Command
) -> None:
    folder = run(experiment(plant, normalise=normalise), tmp_path / "run")
    copy = rows_of(DEVICES, 100, 0)[::-1] + rows_of(("M1",), 10, 5)  # another order, and 10 new rows
    body = command("predict", str(folder), str(written(tmp_path / "copy.csv", copy)), "--json").document
    parts = [row["part"] for row in body["rows"]]
    # the last fifth of each device's 100 rows is for testing
    assert [parts.count(part) for part in ("training", "test", "")] == [320, 80, 10]
    times = {part: {int(row["time"]) for row, kind in zip(body["rows"], parts, strict=True) if kind == part}
             for part in ("training", "test")}  # fmt: skip
    assert times == {"training": {*range(80)}, "test": {*range(80, 100)}}
    assert (body["trained"]["labelled"], body["others"]["labelled"]) == (320, 90)
    shares = 320 * body["trained"]["figures"]["accuracy"] + 90 * body["others"]["figures"]["accuracy"]
    assert body["accuracy"] == pytest.approx(shares / 410)
    assert sum(row["trained"] for row in body["by_device"]) == 320
    command("predict", str(folder), str(plant), "--csv", "answers.csv")
    with (command.folder / "answers.csv").open() as file:
        cells = [*csv.DictReader(file)]
    assert [row["part"] for row in cells] == (["training"] * 80 + ["test"] * 20) * 4
    judged = np.mean([row["predicted"] == row["label"] for row in cells if row["part"] == "test"])
    assert judged == pytest.approx(lines(folder)[-1]["accuracy"])


def test_a_file_without_rows_of_the_run_is_judged_as_a_whole(plant: Path, tmp_path: Path, command: Command) -> None:
    folder = run(experiment(plant), tmp_path / "run")
    new = written(tmp_path / "new.csv", rows_of(("M2",), 50, 9))
    body = command("predict", str(folder), str(new), "--json").document
    assert {row["part"] for row in body["rows"]} == {""}
    assert "trained" not in body
    assert "trained the model" not in command("predict", str(folder), str(new)).out
    assert "400 of" not in (told := command("predict", str(folder), str(plant)).out)
    assert "320 of these samples trained the model: accuracy: " in told.splitlines()[-1]
    (folder / recorded.FILE).unlink()  # as in runs of real machines
    assert {row["part"] for row in command("predict", str(folder), str(plant), "--json").document["rows"]} == {None}


def test_a_device_that_did_not_train_is_named(plant: Path, tmp_path: Path, command: Command) -> None:
    folder = run(experiment(plant, split={"kind": "device"}), tmp_path / "run")
    park = json.loads((folder / "park.json").read_text())
    trained = {device["name"] for device in park["devices"]}
    tested = {*park["test_devices"]}
    assert (trained | tested, trained & tested) == ({*DEVICES}, set())
    mixed = written(tmp_path / "mixed.csv", rows_of((*DEVICES, "M9"), 10, 0))
    got = command("predict", str(folder), str(mixed), "--json", "--csv", "answers.csv")
    known = {row["device"]: row["device_trained"] for row in got.document["rows"]}
    assert known == {name: name in trained for name in (*DEVICES, "M9")}
    warned = [text for text in got.document["warnings"] if "not in training" in text]
    assert [all(f"'{name}'" in text for name in ({*DEVICES, "M9"} - trained)) for text in warned] == [True]
    with (command.folder / "answers.csv").open() as file:
        assert {row["device"]: row["device_trained"] == "yes" for row in csv.DictReader(file)} == known
    only = written(tmp_path / "only.csv", [row for row in rows_of(DEVICES, 10, 0) if row[0] in trained])
    assert "not in training" not in command("predict", str(folder), str(only)).err
    as_new = command("predict", str(folder), str(only), "--device", "nobody")
    assert "device 'nobody' was not in training" in as_new.err


def test_the_mix_of_training_is_shown_beside_that_of_the_predictions(
    plant: Path, tmp_path: Path, command: Command
) -> None:
    folder = run(experiment(plant), tmp_path / "run")
    counts = np.sum([device["counts"] for device in json.loads((folder / "park.json").read_text())["devices"]], axis=0)
    body = command("predict", str(folder), str(plant), "--json").document
    shares = {row["class"]: row["share_in_training"] for row in body["by_class"]}
    assert shares == pytest.approx(dict(zip(("ok", "worn"), counts / counts.sum(), strict=True)))
    life = experiment(plant, task="regression", columns={"device": "machine", "label": "b", "ignore": ["state", "at"]})
    body = command("predict", str(run(life, tmp_path / "life")), str(plant), "--json").document
    assert "of these samples trained the model: " in command("predict", str(tmp_path / "life"), str(plant)).out
    rows = [[*row[:3], "", row[4]] for row in rows_of(DEVICES, 100, 0)]  # the same without their true values
    said = command("predict", str(tmp_path / "life"), str(written(tmp_path / "untold.csv", rows))).out
    assert "trained the model" not in said
    assert sum(row["share_in_training"] for row in body["by_range"]) == pytest.approx(1)
    assert sum(row["samples"] for row in body["by_range"]) == 400


def test_windows_with_most_of_their_rows_in_training_trained(plant: Path, tmp_path: Path, command: Command) -> None:
    folder = run(experiment(plant, window={"length": 10, "step": 5}), tmp_path / "run")
    rows = rows_of(DEVICES[:1], 100, 0)[3:]  # windows of other rows than in training
    body = command("predict", str(folder), str(written(tmp_path / "part.csv", rows)), "--json").document
    # windows begin at rows 3, 8, …; the first 80 rows trained: row 73 has 7 of them, row 78 two
    first = [row["rows"][0] - 2 + 3 for row in body["rows"]]
    assert [row["part"] == "training" for row in body["rows"]] == [start <= 74 for start in first]


@pytest.mark.parametrize("task", [{}, {"task": "regression"}])
def test_recordings_have_figures_of_their_own(task: dict[str, Any], tmp_path: Path, command: Command) -> None:
    """Each device has the recordings 1 and 2, of which windows cross no end."""
    rows = rows_of(DEVICES, 60, 0)
    with (command.folder / "plant.csv").open("w", newline="") as file:
        body = [[*row[:4], ["ok", "worn"].index(row[4]), 1 + (row[1] >= 25)] for row in rows]
        csv.writer(file).writerows([["machine", "at", "a", "b", "state", "run"], *body])
    columns = {"device": "machine", "label": "state", "time": "at", "run": "run"}
    window = {"length": 5, "step": 1}
    folder = run(experiment(Path("plant.csv"), columns=columns, window=window, **task), tmp_path / "run")
    found = command("predict", str(folder), "plant.csv", "--json").document
    names = {f"{name}, {part}": samples for name in DEVICES for part, samples in ((1, 21), (2, 31))}
    assert {row["recording"]: row["samples"] for row in found["by_recording"]} == names
    key = "RMSE" if task else "accuracy"
    assert key in found["by_recording"][0], found["by_recording"][0]
    mine = [row for row in found["rows"] if (row["device"], row["recording"]) == ("M1", "2")]
    if not task:
        right = np.mean([row["predicted"] == row["label"] for row in mine])
        assert right == next(row for row in found["by_recording"] if row["recording"] == "M1, 2")["accuracy"]
    said = command("predict", str(folder), "plant.csv", "--csv", "answers.csv").out
    assert "by recording" in said
    with (command.folder / "answers.csv").open() as file:
        assert [row["recording"] for row in csv.DictReader(file)] == [row["recording"] for row in found["rows"]]


def test_an_archive_keeps_its_devices(tmp_path: Path, command: Command) -> None:
    rows = rows_of(DEVICES, 60, 0)
    arrays = {
        "x": np.array([[float(a), float(b)] for _, _, a, b, _ in rows], np.float32),
        "y": np.array([row[4] for row in rows]),
        "device": np.array([row[0] for row in rows]),
    }
    np.savez(command.folder / "plant.npz", **arrays)  # type: ignore[arg-type]
    assert command("new", "plant.npz").code == 0
    assert command("run", "plant.toml", "--set", "rounds=1", "--out", "run").code == 0
    body = command("predict", "run", "plant.npz", "--json").document
    assert {row["device"]: row["samples"] for row in body["by_device"]} == dict.fromkeys(DEVICES, 60)
    assert {row["part"] for row in body["rows"]} == {"training", "test"}
    np.savez(command.folder / "new.npz", **(arrays | {"device": np.repeat(["M1", "M7"], 120)}))  # type: ignore[arg-type]
    got = command("predict", "run", "new.npz", "--csv", "new.csv")
    assert "device 'M7' was not in training" in got.err
    with (command.folder / "new.csv").open() as file:
        assert [row["device"] for row in csv.DictReader(file)] == ["M1"] * 120 + ["M7"] * 120


def test_scores_of_anomalies_keep_the_label(plant: Path, tmp_path: Path, command: Command) -> None:
    table = experiment(plant, task={"kind": "reconstruction", "normal": "ok"})
    table |= {"model": {"name": "monitor"}, "method": {"name": "pca"}, "rounds": 1}
    folder = run(table, tmp_path / "run")
    command("predict", str(folder), str(plant), "--csv", "scores.csv")
    with (command.folder / "scores.csv").open() as file:
        assert [row["label"] for row in csv.DictReader(file)] == [
            {"ok": "normal", "worn": "anomaly"}.get(row[4], row[4]) for row in rows_of(DEVICES, 100, 0)
        ]


def test_no_hash_depends_on_the_device_or_the_normalisation(plant: Path) -> None:
    parts = [
        recorded.record(build_park(from_table(experiment(plant, normalise=kind)))) for kind in ("standard", "device")
    ]
    for part, hashes in parts[0].items():
        assert np.array_equal(hashes, parts[1][part])
    assert {part: len(hashes) for part, hashes in parts[0].items()} == {"training": 320, "validation": 0, "test": 80}


def test_equal_rows_have_equal_hashes_and_others_hardly_ever() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 3)).astype(np.float32)
    one = recorded.hashes(x)
    assert np.array_equal(recorded.hashes(x[::-1])[::-1], one)
    # n²/2³³ = 0.05 pairs are expected to have equal hashes
    assert len(np.unique(one)) >= len(one) - 2
    swapped = recorded.hashes(x[:, [1, 0, 2]])
    assert np.isin(swapped, one).sum() <= 2
    pictures = rng.integers(256, size=(50, 1, 5, 5), dtype=np.uint8)
    assert len(np.unique(recorded.hashes(pictures))) == 50


def test_a_damaged_record_is_named(plant: Path, tmp_path: Path) -> None:
    folder = run(experiment(plant), tmp_path / "run")
    for content in (b"", b"PK\x03\x04", None):
        if content is None:
            np.savez(folder / recorded.FILE, training=np.zeros((2, 2)))
        else:
            (folder / recorded.FILE).write_bytes(content)
        with pytest.raises(SettingError, match=recorded.FILE):
            _ = load_model(folder).training.rows
