"""A trained model says of samples what the run's own evaluation said of them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import fedfloor
from commands import Command, lines
from fedfloor.base.errors import SettingError
from fedfloor.data.made.labels import labels
from fedfloor.inference.trained import load_model
from fedfloor.models.zoo import NETWORKS, REPRODUCING
from model_files import SENSORS, write_model
from networks import build
from refusals import refused

# -- the same as the evaluation ----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def tested() -> tuple[np.ndarray, np.ndarray]:
    """The test samples of ``labels_run``."""
    data = labels(devices=4, samples_per_device=310, seed=0)
    return data.take_test(np.arange(len(data.y_test))), data.y_test


@pytest.fixture
def arrays(command: Command, tested: tuple[np.ndarray, np.ndarray]) -> Path:
    x, y = tested
    np.savez(command.folder / "test.npz", x=x, y=y)
    return Path("test.npz")


def test_loss_and_accuracy_are_the_ledgers(labels_run: Path, tested: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = tested
    last = lines(labels_run)[-1]
    trained = fedfloor.load_model(labels_run)
    probabilities, logits = trained.outputs(x)
    assert float((probabilities.argmax(1).numpy() == y).mean()) == last["accuracy"]
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(y), reduction="sum").double()
    assert float(loss) / len(y) == last["loss"]  # one block of 124: the very same sums
    assert trained.round == 1
    assert np.array_equal(trained.predict(x), probabilities.numpy())


def test_predict_npz_reports_the_ledgers_accuracy(command: Command, labels_run: Path, arrays: Path) -> None:
    said = command("predict", str(labels_run), str(arrays), "--json")
    assert said.document["accuracy"] == lines(labels_run)[-1]["accuracy"]
    assert said.document["samples"] == said.document["labelled"] == len(said.document["rows"]) == 124
    assert sum(row["samples"] for row in said.document["by_class"]) == 124


def test_predict_pictures_gives_what_the_arrays_gave(
    command: Command, labels_run: Path, arrays: Path, tested: tuple[np.ndarray, np.ndarray]
) -> None:
    x, y = tested
    (command.folder / "photos").mkdir()
    for i, picture in enumerate(x):
        Image.fromarray(picture[0]).save(command.folder / "photos" / f"{i:03}.png")
    of_arrays = command("predict", str(labels_run), str(arrays), "--json").document["rows"]
    of_pictures = command("predict", str(labels_run), "photos", "--json").document["rows"]
    assert [row["file"] for row in of_pictures] == [f"photos/{i:03}.png" for i in range(len(x))]
    assert [row["top"] for row in of_pictures] == [row["top"] for row in of_arrays]
    names = labels(1, 1, 0).classes
    right = np.mean([row["predicted"] == names[label] for row, label in zip(of_pictures, y, strict=True)])
    assert right == lines(labels_run)[-1]["accuracy"]


@pytest.mark.slow
def test_a_convolutional_network_in_two_blocks_too(tmp_path: Path) -> None:
    """Channels-last weights, 600 test samples: the blocks are the evaluation's, so the loss is the same to the bit."""
    from fedfloor.experiment import DataSettings, ModelSettings, ParkSettings

    what = fedfloor.Experiment(
        rounds=1, data=DataSettings(samples_per_device=1500, normalise="standard"), park=ParkSettings(devices=4),
        model=ModelSettings("lenet"),
    )  # fmt: skip
    ran = fedfloor.run(what, tmp_path / "run", ranks=1)
    data = labels(devices=4, samples_per_device=1500, seed=0)
    x = data.take_test(np.arange(len(data.y_test)))
    y = torch.from_numpy(data.y_test)
    logits = load_model(ran.folder).outputs(x)[1]
    parts = zip(logits.split(500), y.split(500), strict=True)
    total = sum(float(torch.nn.functional.cross_entropy(z, t, reduction="sum").double()) for z, t in parts)
    assert len(y) == 600
    assert total / len(y) == ran.lines[-1].loss
    assert float((logits.argmax(1) == y).double().mean()) == ran.accuracy


# -- what is printed and written ---------------------------------------------------------------------------------------


def test_a_long_list_is_summed_up(command: Command, labels_run: Path, arrays: Path) -> None:
    said = command("predict", str(labels_run), str(arrays))
    assert sum(text.lstrip().startswith("test.npz") for text in said.out.splitlines()) == 20
    assert "and 104 more: print them with --all, or write them with --csv FILE." in said.out
    assert "124 samples" in said.out
    assert f"accuracy: {lines(labels_run)[-1]['accuracy']:.4f} on 124 samples with a known label" in said.out
    assert not said.new
    whole = command("predict", str(labels_run), str(arrays), "--all").out
    assert sum(text.lstrip().startswith("test.npz") for text in whole.splitlines()) == 124


def test_top_three_in_json_and_csv(command: Command, labels_run: Path, arrays: Path) -> None:
    said = command("predict", str(labels_run), str(arrays), "--top", "3", "--json", "--csv", "out.csv")
    with (command.folder / "out.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    trained = load_model(labels_run)
    probabilities = trained.predict(np.load(command.folder / arrays)["x"])
    for i, (row, cells) in enumerate(zip(said.document["rows"], written, strict=True)):
        assert [one["probability"] for one in row["top"]] == sorted(probabilities[i].tolist(), reverse=True)[:3]
        assert row["rows"] == [i, i]
        assert row["predicted"] == row["top"][0]["class"] == cells["predicted"]
        assert float(cells["probability_3"]) == row["top"][2]["probability"]
        assert cells["label"] == row["label"]


def test_progress_is_told_on_standard_error(command: Command) -> None:
    write_model(command.folder / "run", shape=(1, 2, 2))
    for i in range(3):
        np.savez(command.folder / f"{i}.npz", np.zeros((400, 2, 2), np.uint8))
    said = command("predict", "run", "0.npz", "1.npz", "2.npz", "--json")
    assert said.err == "2 of 3 files\n"
    assert said.document["samples"] == 1200
    assert said.document["accuracy"] is None


# -- loading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(NETWORKS) - {*REPRODUCING[2]}))  # they have no classes
def test_a_network_comes_back_with_its_weights(tmp_path: Path, name: str) -> None:
    shape = (3, 32, 32)
    try:
        network = build(name, shape, 2, seed=0)
    except SettingError:
        shape = (3, 32)  # a network for windows of sensors
        network = build(name, shape, 2, seed=0)
    trained = load_model(write_model(tmp_path, name, shape))
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (5, *shape), np.uint8) if len(shape) == 3 else rng.random((5, *shape), np.float32)
    mean, std = (torch.tensor([start + i for i in range(3)]).view(3, *(1,) * (len(shape) - 1)) for start in (0.25, 0.5))
    values = (torch.from_numpy(x) * (1 / 255 if len(shape) == 3 else 1.0) - mean) / std
    with torch.no_grad():
        expected = network.module.eval()(values)
    torch.testing.assert_close(trained.outputs(x)[1], expected)


def test_a_header_without_inputs_means_pictures(tmp_path: Path) -> None:
    assert load_model(write_model(tmp_path, inputs=None)).sensors is None


def test_library_call_takes_one_sample_and_none(tmp_path: Path) -> None:
    trained = load_model(write_model(tmp_path))
    one = np.full((1, 28, 28), 7, np.uint8)
    assert np.array_equal(trained.predict(one), trained.predict(one[None]))
    assert trained.predict(one[None]).sum() == pytest.approx(1)
    assert trained.predict(np.zeros((0, 1, 28, 28), np.uint8)).shape == (0, 2)
    with refused("shape-of-samples"):
        trained.predict(np.zeros((27, 28), np.uint8))


def test_loading_leaves_the_generator_and_the_threads_alone(tmp_path: Path) -> None:
    write_model(tmp_path)
    state = torch.random.get_rng_state()
    threads = torch.get_num_threads()
    load_model(tmp_path).predict(np.zeros((1, 28, 28), np.uint8))
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads


OWN = """
from torch import nn

def network(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear({wide}, {inner}), nn.BatchNorm1d({inner}), nn.Linear({inner}, classes))
"""


def test_an_own_network_that_has_changed(command: Command) -> None:
    command.module("grown", OWN.format(wide=784, inner=3))
    write_model(command.folder / "run", "grown:network")
    np.savez(command.folder / "x.npz", np.zeros((1, 28, 28), np.uint8))
    assert command("predict", "run", "x.npz", "--own-code").code == 0
    tensors = load_file(command.folder / "run" / "model.safetensors")
    assert "2.running_mean" in tensors  # statistics travel with the model
    command.module("other", OWN.format(wide=784, inner=4))
    path = command.folder / "run" / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"grown:network", b"other:network"))
    said = command("predict", "run", "x.npz", "--own-code")
    command.refused(said, "1.weight is (3, 784) in the file, (4, 784) in the network", "and 4 more")


def test_an_own_network_that_is_not_there(command: Command) -> None:
    write_model(command.folder / "run")
    path = command.folder / "run" / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'\\"logistic\\"', b'\\"gone:net\\"'))
    np.savez(command.folder / "x.npz", np.zeros((1, 28, 28), np.uint8))
    said = command("predict", "run", "x.npz", "--own-code")
    command.refused(said, "model 'gone:net': no module 'gone'", "Start fedfloor in")


NAMING: dict[str, dict[str, Any]] = {
    "model 'marked:network'": {"model": "marked:network"},
    "objective 'os:system'": {"made": {"objective": ["os:system", {"command": "touch called"}]}},
    "objective 'subprocess:Popen'": {"made": {"objective": ["subprocess:Popen", {"args": "touch called"}]}},
    "model 'marked:network' and objective 'marked:Goal'": {
        "model": "marked:network", "made": {"objective": ["marked:Goal", {}]},
    },
}  # fmt: skip


@pytest.mark.parametrize(("names", "header"), NAMING.items(), ids=NAMING)
def test_a_file_that_names_code_is_refused_unless_it_is_trusted(
    command: Command, names: str, header: dict[str, Any]
) -> None:
    command.module("marked", "open('called', 'w').close()\n")
    write_model(command.folder / "run", **header)
    np.savez(command.folder / "x.npz", np.zeros((1, 28, 28), np.uint8))
    for words in (["export", "run"], ["predict", "run", "x.npz"]):
        command.refused(command(*words), f"names code outside fedfloor: {names}. Loading the file", "give --own-code")
    with refused("foreign-code"):
        load_model("run")
    assert not (command.folder / "called").exists()
    if "os:system" in names:  # a function is not called, even where the file is trusted
        command.refused(command("export", "run", "--own-code"), "must be the name of a dataclass")


def test_class_names_reach_the_terminal_without_control_characters(command: Command) -> None:
    write_model(command.folder / "run", classes=("\x1b]0;title\x07a", "b\x1b[2J\u202e"))
    np.savez(command.folder / "x.npz", np.zeros((2, 28, 28), np.uint8))
    said = command("predict", "run", "x.npz", "--top", "2")
    assert said.code == 0
    assert "\\x1b]0;title\\x07a" in said.out
    assert "\\x1b[2J\\u202e" in said.out
    assert all(character.isprintable() or character == "\n" for character in said.out)


# -- what is not a model ----------------------------------------------------------------------------------------------


def header(folder: Path, **changes: Any) -> None:
    write_model(folder, **changes)


def means(folder: Path) -> None:
    write_model(folder, normalise={"scale": 1.0, "mean": [], "std": [1.0]})


def nested(folder: Path) -> None:
    folder.mkdir()
    save_file({"a": torch.zeros(1)}, folder / "model.safetensors", {"fedfloor": "[" * 200_000})


def endless(folder: Path) -> None:
    folder.mkdir()
    save_file({"a": torch.zeros(1)}, folder / "model.safetensors", {"fedfloor": "9" * 5000})


def damaged(folder: Path) -> None:
    write_model(folder)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def unfinished(folder: Path) -> None:
    folder.mkdir()
    (folder / "experiment.toml").write_text("")


def infinite(folder: Path) -> None:
    write_model(folder)
    path = folder / "model.safetensors"
    text = path.read_bytes()
    path.write_bytes(text[:-4] + b"\x00\x00\x80\x7f")


def foreign(folder: Path) -> None:
    folder.mkdir()
    save_file({"a": torch.zeros(2)}, folder / "model.safetensors")


NO_MODEL = {
    "no folder": (lambda folder: None, "run: no such run. Give a run's folder"),
    "an empty folder": (lambda folder: folder.mkdir(), "run is not a run's folder: it has no model.safe"),
    "a folder of runs": (lambda folder: write_model(folder / "a") and None, "Runs in it: run/a."),
    "not finished": (unfinished, "run has no model yet: a run writes it when it ends or is stopped."),
    "a name nearly right": (lambda folder: (folder.parent / "runs").mkdir(), "runs/NAME. Did you mean 'runs'?"),
    "damaged": (damaged, "model.safetensors is not a trained model, or damaged"),
    "another program's": (foreign, "model.safetensors has format 'none': this version reads 'fedfloor 1'"),
    "another version's": (lambda f: header(f, format="fedfloor 9"), "has format 'fedfloor 9'"),
    "deeply nested": (nested, "model.safetensors has format 'unreadable'"),
    "a number without end": (endless, "model.safetensors has format 'unreadable'"),
    "no round": (lambda f: header(f, round=None), "not the header of a model (round is missing)"),
    "odd inputs": (lambda f: header(f, inputs={"kind": "sound"}), "inputs.kind = 'sound'"),
    "too few means": (means, "0 means and 1 deviations for 1 channels"),
    "infinite weights": (infinite, "holds infinite or undefined numbers"),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_MODEL)
def test_what_is_no_model(command: Command, case: str) -> None:
    make, message = NO_MODEL[case]
    np.savez(command.folder / "x.npz", np.zeros((1, 28, 28), np.uint8))
    make(command.folder / "run")
    command.refused(command("predict", "run", "x.npz"), message)
    command.refused(command("export", "run"), message)


def test_an_experiment_file_in_the_place_of_its_run(command: Command) -> None:
    np.savez(command.folder / "x.npz", np.zeros((1, 28, 28), np.uint8))
    (command.folder / "wear.toml").write_text('name = "press"\n')
    (command.folder / "bare.toml").write_text("rounds = ")
    write_model(command.folder / "run")
    (command.folder / "run" / "experiment.toml").write_text("")
    for file, folder in (("wear.toml", "runs/press"), ("bare.toml", "runs/bare"), ("run/experiment.toml", "run")):
        message = f"{file} is an experiment file, not a trained model. Give its run's folder, such as {folder}."
        command.refused(command("predict", file, "x.npz"), message)


def test_what_is_typed_wrongly(command: Command) -> None:
    write_model(command.folder / "run")
    np.savez(command.folder / "x.npz", np.zeros((1, 28, 28), np.uint8))
    command.refused(command("predict", "run", "x.npz", "--top", "3"), "--top = 3: must be from 1 to 2.")
    command.refused(command("predict", "run", "x.npz", "--csv", "no/x.csv"), "--csv no/x.csv: no such folder.")
    command.refused(command("predict", "run", "xx.npz"), "xx.npz: no such file. Did you mean 'x.npz'?")
    command.refused(command("export", "run", "--out", "run"), "--out run: this is a folder.")
    command.refused(command("export", "run", "--out", "no/m.onnx"), "--out no/m.onnx: no such folder.")


def test_files_that_are_no_samples_are_named_at_the_end_and_the_others_answered(command: Command) -> None:
    write_model(command.folder / "run")
    good = np.zeros((2, 1, 28, 28), np.uint8)
    np.savez(command.folder / "a.npz", x=good)
    np.savez(command.folder / "b.npz", x=np.zeros((2, 1, 9, 9), np.uint8))
    (command.folder / "c.npz").write_bytes(b"no archive")
    np.savez(command.folder / "d.npz", x=good)
    said = command("predict", "run", "a.npz", "b.npz", "c.npz", "d.npz", "--json", "--csv", "out.csv")
    assert said.code == 1
    assert [row["file"] for row in said.document["rows"]] == ["a.npz"] * 2 + ["d.npz"] * 2
    assert [one["file"] for one in said.document["failed"]] == ["b.npz", "c.npz"]
    assert "error: 2 of 4 files have no answer:\nb.npz, array x" in said.err
    assert said.err.splitlines()[-1].startswith("c.npz")
    assert len((command.folder / "out.csv").read_text().splitlines()) == 5
    (command.folder / "out.csv").unlink()
    said = command("predict", "run", "b.npz", "c.npz", "--csv", "out.csv")
    assert (said.code, said.out, said.new) == (2, "", frozenset())
    assert "b.npz, array x" in said.err
    assert "c.npz" in said.err


def test_values_too_large_for_the_network(command: Command) -> None:
    write_model(command.folder / "run", shape=(2,), inputs=SENSORS)
    np.savez(command.folder / "x.npz", x=np.array([[0, 0], [3e38, 3e38]], np.float32))
    command.refused(
        command("predict", "run", "x.npz"), "x.npz: the model's answer is not a finite number"
    )  # 3e38 / std = ∞


def test_json_of_a_model_for_tables(command: Command) -> None:
    write_model(command.folder / "run", shape=(2,), inputs=SENSORS)
    np.savez(command.folder / "x.npz", x=np.zeros((2, 2)), y=np.array(["worn", ""]))
    said = command("predict", "run", "x.npz", "--json").document
    assert [row["label"] for row in said["rows"]] == ["worn", None]
    assert said["labelled"] == 1
    json.dumps(said, allow_nan=False)
