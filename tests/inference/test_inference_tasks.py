"""What a model of another task than classification answers: by command, from Python, in ONNX, from a hostile file."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedfloor
from commands import Command
from fedfloor import Experiment, run
from fedfloor.base.checking import checked
from fedfloor.data.made.machines import Machines, columns, recordings
from fedfloor.inference import inputs
from fedfloor.inference.samples import Sensors
from fedfloor.inference.trained import load_model
from fedfloor.runs.parks import load_data
from fedfloor.tasks.regression import Regression
from refusals import refused

TASKS: dict[str, dict[str, Any]] = {
    "life": {"kind": "regression", "cap": 40, "unit": "rows", "loss": "quantile"},
    "next": {"kind": "forecasting", "horizon": 3, "sensors": ["oil", "speed"]},
}


def experiment(table: Path, task: str) -> Experiment:
    return checked(Experiment, {
        "name": task, "rounds": 2, "model": {"name": "cnn-sensor"},
        "work": {"lr": 0.02, "momentum": 0.9, "batch_size": 8},
        "data": {
            "path": str(table), "split": {"kind": "run", "test": 0.4}, "window": {"length": 8, "step": 4},
            "columns": {"device": "machine", "factory": "hall", "run": "run", "time": "row", "label": "life"},
            "task": TASKS[task],
        },
    }, "")  # fmt: skip


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``plant.csv`` and a run of each task on it."""
    folder = tmp_path_factory.mktemp("plant")
    made = columns(recordings(3, 1, 0, Machines(runs=2, life=50)), 1)
    names = [name for name in made if name not in ("fault", "regime", "wear")]
    with (folder / "plant.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(zip(*(made[name].tolist() for name in names), strict=True))
    for task in TASKS:
        run(experiment(folder / "plant.csv", task), out=folder / task)
    return folder


def told(folder: Path, name: str) -> Any:
    return json.loads((folder / "evaluation.json").read_text())["figures"][name]


@pytest.mark.parametrize(("task", "figure"), [("life", "RMSE"), ("next", "MASE")])
def test_the_test_samples_have_the_figures_of_the_run(plant: Path, task: str, figure: str) -> None:
    data = load_data(experiment(plant / "plant.csv", task))
    trained = load_model(plant / task)
    every = np.arange(len(data.y_test))
    tested = trained.task.judge(trained.answer(data.take_test(every)), data.targets_test(every))
    assert tested is not None
    found = fedfloor.tasks.figures.named(figure).value(tested, ())
    assert found == pytest.approx(told(plant / task, figure), rel=1e-6)


def test_a_life_with_its_interval(plant: Path, command: Command) -> None:
    said = command("predict", str(plant / "life"), str(plant / "plant.csv"), "--json", "--csv", "life.csv")
    document = said.document
    trained = load_model(plant / "life")
    first = document["rows"][0]
    assert (first["device"], first["rows"], first["time"]) == ("0", [2, 9], "7")
    low, middle, high = (first[key]["life"] for key in ("low", "predicted", "high"))
    assert low <= middle <= high
    source = [*csv.DictReader((plant / "plant.csv").open())]
    x = np.array([[row[name] for name in trained.sensors.columns] for row in source[:8]], np.float32).T  # type: ignore[union-attr]
    assert trained.predict(x)[0, 0] == pytest.approx(middle, rel=1e-6)
    assert first["true"] == {"life": float(source[7]["life"])}
    errors = [min(one["true"]["life"], 40) - one["predicted"]["life"] for one in document["rows"]]
    assert document["figures"]["RMSE"] == pytest.approx(np.sqrt(np.mean(np.square(errors))))
    assert document["known"] == document["samples"] == len(errors)
    assert document["task"]["unit"] == "rows"
    last = {one["device"]: one for one in document["rows"]}
    assert [one["last"]["predicted"] for one in document["by_device"]] == [one["predicted"] for one in last.values()]
    rows = [*csv.DictReader((command.folder / "life.csv").open())]
    assert [float(row["predicted life"]) for row in rows] == [one["predicted"]["life"] for one in document["rows"]]
    assert list(rows[0])[:5] == ["file", "device", "time", "first", "last"]


def test_single_rows_keep_their_times(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("machine,at,id,heat\na,09.03. 02:19,x,1\nb,,y,2\n")
    names = {"device": "machine", "time": "at", "label": "", "id": "id"}
    task = Regression().fitted(np.array([[1.0], [2.0]], np.float32))
    samples = inputs.table(tmp_path / "rows.csv", Sensors(("heat",), None, "mean", names), (), task)
    assert samples.times == ["09.03. 02:19", ""]


def test_the_next_rows_and_what_came(plant: Path, command: Command) -> None:
    document = command("predict", str(plant / "next"), str(plant / "plant.csv"), "--json").document
    source = [*csv.DictReader((plant / "plant.csv").open())]
    first, last = document["rows"][0], document["rows"][-1]
    assert first["true"]["oil"] == pytest.approx([float(row["oil"]) for row in source[8:11]])
    assert first["predicted"].keys() == {"oil", "speed"}
    assert [len(path) for path in first["predicted"].values()] == [3, 3]
    assert last["rows"][1] > len(source) - 3
    assert last["true"]["oil"][-1] is None  # beyond the recording
    assert 0 < document["known"] < document["samples"]


def test_the_words_of_the_command(plant: Path, command: Command) -> None:
    said = command("predict", str(plant / "life"), str(plant / "plant.csv")).out
    assert "answer: life in rows, with the interval of 90 %; 40 means 40 or more" in said
    assert "RMSE" in said
    assert "accuracy" not in said
    wrong = command("predict", str(plant / "life"), str(plant / "plant.csv"), "--top", "2")
    assert "--top 2: is only for classifications, but this model's task is regression" in wrong.err


def test_a_table_without_the_truth(plant: Path, command: Command) -> None:
    text = [line.rpartition(",")[0] for line in (plant / "plant.csv").read_text().splitlines()]
    (command.folder / "new.csv").write_text("\n".join(text) + "\n")
    document = command("predict", str(plant / "life"), "new.csv", "--json").document
    assert "true" not in document["rows"][0]
    assert (document["known"], document["figures"]) == (0, {})
    (command.folder / "odd.csv").write_text("\n".join([text[0] + ",life", *(line + ",worn" for line in text[1:])]))
    said = command("predict", str(plant / "life"), "odd.csv")
    assert said.code == 0
    assert "63 of 63 samples have a label that is no number, and count in no score: 'worn' (63)." in said.err


def test_arrays_with_and_without_targets(plant: Path, command: Command) -> None:
    x = np.random.default_rng(0).normal(20, 5, (5, 8, 8)).astype(np.float32)
    np.savez(command.folder / "some.npz", x=x, y=np.array([1.0, 2.0, np.nan, 4.0, 5.0]))
    document = command("predict", str(plant / "life"), "some.npz", "--json").document
    assert document["known"] == 4
    assert document["rows"][2]["true"] == {"life": None}
    np.savez(command.folder / "wrong.npz", x=x, y=np.zeros((5, 2)))
    said = command("predict", str(plant / "life"), "wrong.npz").err
    assert "the model predicts 1 number for each of 5 samples" in said


@pytest.mark.parametrize("task", TASKS)
def test_onnx_answers_in_the_targets_unit(plant: Path, task: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from fedfloor.inference.onnx import export

    trained = load_model(plant / task)
    rng = np.random.default_rng(1)
    export(trained, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    x = rng.normal(20, 4, (11, *trained.shape)).astype(np.float32)
    answer = trained.answer(x)
    assert [one.name for one in session.get_outputs()] == [*answer.parts()]
    found = session.run(None, {"x": x})
    for one, (name, part) in zip(found, answer.parts().items(), strict=True):
        assert (np.abs(one - part) <= 1e-5 * answer.sizes()[name]).all()
    about = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()
             if key in ("task", "window", "columns", "normalise")}  # fmt: skip
    assert about["task"]["kind"] == TASKS[task]["kind"]
    assert about["task"]["names"] == (["life"] if task == "life" else ["oil", "speed"])
    assert about["window"] == {"length": 8, "step": 4}
    assert about["normalise"] == {"kind": "inside", "levels": [*map(list, trained.levels or ())]}
    assert about["task"].get("unit", "") == ("rows" if task == "life" else "")
    assert len(about["columns"]) == 8


def changed(model: Path, folder: Path, part: str = "task", **other: object) -> Path:
    """Write a model with other settings of its task, or of another part of its header."""
    file = (model / "model.safetensors").read_bytes()
    size = int.from_bytes(file[:8], "little")
    head = json.loads(file[8 : 8 + size])
    about = json.loads(head["__metadata__"]["fedfloor"])
    about[part] |= other
    head["__metadata__"]["fedfloor"] = json.dumps(about)
    text = json.dumps(head).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + file[8 + size :])
    return folder


@pytest.mark.parametrize(
    ("model", "task", "said"),
    [
        ("life", {"kind": "guessing"}, "damaged-model"),
        ("life", {"kind": ["regression"]}, "damaged-model"),
        ("life", {"scale": [0.0]}, "damaged-model"),
        ("life", {"scale": [float("nan")]}, "damaged-model"),
        ("life", {"center": []}, "damaged-model"),
        ("life", {"center": [1.0, 2.0]}, "damaged-model"),
        ("life", {"edges": [3.0, 2.0, 1.0, 0.0]}, "damaged-model"),
        ("life", {"edges": []}, "damaged-model"),
        ("life", {"levels": [0.9, 0.5, 0.1]}, "damaged-model"),
        ("life", {"loss": "cubic"}, "damaged-model"),
        ("life", {"unit": 3}, "damaged-model"),
        ("life", {"names": ["a", "b"]}, "damaged-model"),
        ("life", {"kind": "forecasting"}, "damaged-model"),
        ("next", {"sensors": ["oil", "secret"]}, "damaged-model"),
        ("next", {"horizon": 10_000}, "damaged-model"),
        ("next", {"horizon": 10**9}, "damaged-model"),
    ],
)
def test_a_file_that_no_training_left(
    plant: Path, tmp_path: Path, model: str, task: dict[str, object], said: str
) -> None:
    with refused(said) as error:
        load_model(changed(plant / model, tmp_path, **task))
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    "inputs",
    [
        {"names": {"tyme": "at"}},
        {"names": {"values": "oil"}},
        {"dialect": {"hedaer": ["a"]}},
        {"dialect": {"header": 5}},
        {"dialect": {"ended": 5}},
        {"coding": {"bins": "all"}},
        {"coding": {"categories": {"grade": 5}}},
        {"coding": {"categories": {"grade": {"kind": "one-hot"}}}},
        {"coding": {"categories": ["grade"]}},
    ],
)
def test_a_file_whose_tables_no_training_read(plant: Path, tmp_path: Path, inputs: dict[str, object]) -> None:
    """A single changed letter of a column's role ended predictions in a traceback."""
    with refused("damaged-model") as error:
        load_model(changed(plant / "life", tmp_path, "inputs", **inputs))
    assert str(tmp_path) in str(error.value)


def test_a_file_whose_tables_have_points_between_thousands(plant: Path, tmp_path: Path) -> None:
    inputs: dict[str, Any] = {"decimal": ",", "dialect": {"thousands": ".", "ended": ["x"], "quality": {"oil": "q"}}}
    assert load_model(changed(plant / "life", tmp_path, "inputs", **inputs)).sensors is not None


def test_a_task_that_does_not_fit_the_weights(plant: Path, tmp_path: Path) -> None:
    with refused("damaged-model"):
        load_model(changed(plant / "life", tmp_path, loss="squared"))
