"""ONNX Runtime says what PyTorch says, normalisation included, for every network; or nothing is written."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Command
from fedfloor import __version__
from fedfloor.inference.onnx import TOLERANCE, export, samples
from fedfloor.inference.trained import load_model
from fedfloor.models.zoo import NETWORKS, REPRODUCING
from model_files import SENSORS, WINDOWS, write_model

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def session(path: Path) -> Any:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def facts(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


QUICK = ("logistic", "lenet", "mlp-window")
EVERY = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in sorted(set(NETWORKS) - {*REPRODUCING[2]})
]


@pytest.mark.parametrize("name", EVERY)
def test_every_network(tmp_path: Path, name: str) -> None:
    """The comparison of ``export`` is made again here, on other samples and through the file."""
    from fedfloor.base.errors import SettingError

    try:
        trained = load_model(write_model(tmp_path, name, (3, 32, 32), tuple("abcde")))
    except SettingError:  # a network for windows of sensors; sums of 30 equal numbers are rounded
        scales = {"scale": 1.0, "mean": [31.7123, -4.123, 1013.77], "std": [1.3317, 0.0777, 7.1313]}
        about = {"inputs": WINDOWS | {"columns": list("xyz")}, "normalise": scales}
        trained = load_model(write_model(tmp_path, name, (3, 30), tuple("abcde"), **about))
    done = export(trained, tmp_path / "model.onnx")
    assert max(done.differences.values()) <= TOLERANCE
    rng = np.random.default_rng(1)
    x = (
        rng.integers(0, 256, (11, *trained.shape), np.uint8)
        if trained.sensors is None
        else (rng.standard_normal((11, *trained.shape), np.float32))
    )
    probabilities, logits = session(tmp_path / "model.onnx").run(None, {"x": x})
    expected = [part.numpy() for part in trained.outputs(x)]
    np.testing.assert_allclose(probabilities, expected[0], atol=TOLERANCE, rtol=0)
    assert (np.abs(logits - expected[1]) <= TOLERANCE * np.maximum(1, np.abs(expected[1]))).all()


def test_a_trained_model_by_command(command: Command, labels_run: Path) -> None:
    said = command("export", str(labels_run), "--out", "model.onnx", "--json")
    (row,) = said.document["rows"]
    assert row["file"] == "model.onnx"
    assert row["input"] == "x: uint8 [n, 1, 28, 28]"
    assert row["size_bytes"] == (command.folder / "model.onnx").stat().st_size
    assert max(row["probabilities"], row["logits"]) <= row["tolerance"] == 1e-5
    assert said.new == {"model.onnx"}
    assert said.err == ""
    told = facts(command.folder / "model.onnx")
    assert json.loads(told["classes"]) == list(load_model(labels_run).classes)
    assert told["fedfloor"] == __version__
    assert (told["model"], told["round"]) == ("logistic", "1")


def test_the_words_of_the_command(command: Command) -> None:
    write_model(command.folder / "run")
    said = command("export", "run")
    assert said.new == {"run/model.onnx"}
    assert "model: run/model.onnx (" in said.out
    assert "takes x: uint8 [n, 1, 28, 28] as stored in files" in said.out
    assert "ONNX Runtime and PyTorch differ by at most" in said.out
    assert said.err == ""


def test_windows_with_holes(tmp_path: Path) -> None:
    inputs = WINDOWS | {"missing": "mean"}
    trained = load_model(write_model(tmp_path, "logistic", (2, 4), inputs=inputs))
    export(trained, tmp_path / "model.onnx")
    told = facts(tmp_path / "model.onnx")
    assert json.loads(told["columns"]) == ["temp", "torque"]
    assert json.loads(told["window"]) == {"length": 4, "step": 2}
    assert told["missing"] == "mean"
    x = np.ones((1, 2, 4), np.float32)
    x[0, 0, 1] = np.nan
    filled = np.where(np.isnan(x), np.float32(0.25), x)  # the mean that stands in the header
    got = [session(tmp_path / "model.onnx").run(None, {"x": one})[1] for one in (x, filled)]
    np.testing.assert_allclose(got[0], got[1], rtol=1e-6)


def test_without_holes_nan_stays_nan(tmp_path: Path) -> None:
    export(load_model(write_model(tmp_path, shape=(2,), inputs=SENSORS)), tmp_path / "model.onnx")
    logits = session(tmp_path / "model.onnx").run(["logits"], {"x": np.full((1, 2), np.nan, np.float32)})[0]
    assert np.isnan(logits).all()


def test_what_is_compared(tmp_path: Path) -> None:
    pictures = samples(load_model(write_model(tmp_path / "a")))
    assert [len(x) for x in pictures] == [1, 2, 7, 2]
    assert {int(value) for value in np.unique(pictures[3])} == {0, 255}
    windows = samples(load_model(write_model(tmp_path / "b", shape=(2, 4), inputs=WINDOWS | {"missing": "mean"})))
    assert [len(x) for x in windows] == [1, 2, 7, 8, 3]
    assert np.isnan(windows[3][0]).all()
    assert np.array_equal(np.isnan(windows[3][1:]), windows[3][1:] != windows[2])
    mean, std = np.array([0.25, 1.25]), np.array([0.5, 1.5])  # of write_model
    np.testing.assert_allclose(windows[4][2], np.repeat((mean + 10 * std)[:, None], 4, axis=1), rtol=1e-6)
    drawn = (windows[2] - mean[:, None]) / std[:, None]
    assert 0.7 < drawn.std() < 1.3  # 56 standard normal numbers


def test_a_dead_sensor_far_from_its_mean(tmp_path: Path) -> None:
    """0 is 2,000 deviations from the mean of 200: logits are large, and agree to a share of their size."""
    normalise = {"scale": 1.0, "mean": [200.0, 1.0], "std": [0.1, 1.0]}
    trained = load_model(write_model(tmp_path, "cnn-sensor", (2, 20), inputs=WINDOWS, normalise=normalise))
    done = export(trained, tmp_path / "model.onnx")
    assert max(done.differences.values()) <= TOLERANCE
    assert np.abs(trained.outputs(samples(trained)[3])[1].numpy()).max() > 10


def test_two_exports_are_one_file(tmp_path: Path) -> None:
    trained = load_model(write_model(tmp_path, "lenet", (3, 32, 32)))
    written = []
    for name in ("a", "b"):
        export(trained, tmp_path / name)
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
    assert str(tmp_path).encode() not in written[0]
    assert b".py" not in written[0]  # where the network's code stands is nobody's business


# -- networks of one's own ---------------------------------------------------------------------------------------------

OWN = """
import torch
from torch import nn

class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient

class Own(nn.Module):
    def __init__(self, shape, classes, last):
        super().__init__()
        self.first = nn.Sequential(nn.Flatten(), nn.Linear(shape[0], classes))
        self.norm, self.drop, self.last = nn.BatchNorm1d(classes), nn.Dropout(0.5), last

    def forward(self, x):
        return self.last(self.drop(self.norm(self.first(x))))

def square(h):
    return h[:, :, None] * h[:, None, :]

def good(shape, classes):
    return Own(shape, classes, nn.Identity())

def sign(shape, classes):
    return Own(shape, classes, Sign.apply)

def recurrent(shape, classes):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.out = nn.LSTM(shape[0], 5, batch_first=True), nn.Linear(5, classes)

        def forward(self, x):
            return self.out(self.lstm(x.transpose(1, 2))[0][:, -1])

    return Recurrent()

def eigen(shape, classes):
    return Own(shape, classes, lambda h: h + torch.linalg.eigvals(square(h)).abs())

def branches(shape, classes):
    return Own(shape, classes, lambda h: h if h.sum() > 0 else 2 * h)

def random(shape, classes):
    return Own(shape, classes, lambda h: h + torch.rand_like(h))

def two(shape, classes):
    return Own(shape, classes, lambda h: h.view(2, -1))
"""


@pytest.fixture
def own(command: Command) -> Command:
    command.module("onnx_networks", OWN)
    return command


@pytest.mark.parametrize("name", ["good", pytest.param("sign", marks=pytest.mark.slow)])
def test_own_networks(own: Command, name: str) -> None:
    write_model(own.folder / "run", f"onnx_networks:{name}", (2,), inputs=SENSORS)
    said = own("export", "run", "--own-code", "--json")
    assert said.document["rows"][0]["logits"] <= TOLERANCE


@pytest.mark.slow
def test_an_own_recurrent_network(own: Command) -> None:
    write_model(own.folder / "run", "onnx_networks:recurrent", (2, 4), inputs=WINDOWS)
    assert own("export", "run", "--own-code", "--json").document["rows"][0]["logits"] <= TOLERANCE


REFUSED = {
    "eigen": "ONNX has no operator for 'torch.linalg_eig' (aten.linalg_eig).",
    "branches": "its control flow depends on computed numbers",
    "random": "differs in ONNX Runtime by",
    "two": "does not take a batch of 1 samples: shape '[2, -1]' is invalid",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_onnx_cannot_say_is_refused(own: Command, name: str) -> None:
    classes = ("ok", "worn", "loose")
    write_model(own.folder / "run", f"onnx_networks:{name}", (2,), classes, inputs=SENSORS)
    said = own("export", "run", "--own-code")
    own.refused(said, f"network 'onnx_networks:{name}'", REFUSED[name])
    assert len(said.err.splitlines()) == 1


def test_an_older_file_stays_when_an_export_fails(own: Command) -> None:
    write_model(own.folder / "run", "onnx_networks:eigen", (2,), inputs=SENSORS)
    (own.folder / "model.onnx").write_text("older")
    own.refused(own("export", "run", "--own-code", "--out", "model.onnx"), "linalg_eig")
    assert (own.folder / "model.onnx").read_text() == "older"


def test_what_is_not_installed_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(command.folder / "run")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if "onnx" in name else find(name, *more))
    command.refused(command("export", "run"), "onnx, onnxscript, onnxruntime", "pip install 'fedfloor[onnx]'")


DEVICE = """
import sys
import numpy, onnxruntime
model = onnxruntime.InferenceSession("run/model.onnx", providers=["CPUExecutionProvider"])
print(model.run(["probabilities"], {"x": numpy.zeros((3, 1, 28, 28), numpy.uint8)})[0].shape)
print({"torch", "fedfloor"} & set(sys.modules))
"""


def test_a_device_needs_neither_torch_nor_fedfloor(command: Command) -> None:
    write_model(command.folder / "run")
    command("export", "run")
    done = subprocess.run(
        [sys.executable, "-c", DEVICE], cwd=command.folder, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "(3, 2)\nset()\n", done.stderr
