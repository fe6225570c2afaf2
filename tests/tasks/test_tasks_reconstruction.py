"""Reconstruction: scores, thresholds, what labels do, and runs without and with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from commands import Command
from fedfloor import Experiment, run
from fedfloor.base.checking import checked
from fedfloor.data.dataset import Dataset
from fedfloor.data.files.own import load
from fedfloor.data.reading import Reading
from fedfloor.engine.calibrate import counts, quantile
from fedfloor.inference.onnx import TOLERANCE, export
from fedfloor.inference.trained import load_model
from fedfloor.models.zoo import REPRODUCING
from fedfloor.tasks.kinds import made
from fedfloor.tasks.reconstruction import Reconstruction
from refusals import refused


def table(folder: Path, odd: slice = slice(0), rows: int = 60, labels: bool = True) -> Path:
    rng = np.random.default_rng(0)
    lines = ["machine,a,b,c" + (",label" if labels else "")]
    for machine in ("m1", "m2", "m3"):
        base = rng.normal(size=rows)
        for i in range(rows):
            shift = 8.0 if i in range(*odd.indices(rows)) or (i >= rows - 6 and odd != slice(0)) else 0.0
            values = base[i] + 0.1 * rng.normal(size=3) + [shift, 0, -shift]
            state = f",{'fault' if shift else 'normal'}" if labels else ""
            lines.append(f"{machine}," + ",".join(f"{one:.5f}" for one in values) + state)
    path = folder / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path: Path, task: object = "reconstruction", **more: object) -> Dataset:
    return load(path, checked(Reading, {"task": task, "columns": {"device": "machine"}, **more}, ""), 0)


def experiment(path: Path, task: object = "reconstruction", **more: object) -> Experiment:
    about = {
        "rounds": 1, "model": {"name": "monitor"}, "method": {"name": "pca"},
        "data": {"path": str(path), "columns": {"device": "machine"}, "task": task,
                 "split": {"kind": "time", "test": 0.3}, **more.pop("data", {})},  # type: ignore[dict-item]
        "evaluate": {"validation": 0.3}, **more,
    }  # fmt: skip
    return checked(Experiment, about, "")


def test_the_score_is_the_mean_square_of_the_window_or_of_its_last_row() -> None:
    out = torch.tensor([[1.0, 2.0, 3.0, 4.0]])  # two channels, two rows: the last row has 2 and 4
    assert Reconstruction(rows=2).errors(out).tolist() == [7.5]
    assert Reconstruction(rows=2, score="last").errors(out).tolist() == [10.0]
    assert Reconstruction().losses(out, torch.zeros(1), "sum").item() == 7.5
    assert Reconstruction(threshold=7.0).predicted(out).tolist() == [1]
    assert Reconstruction(threshold=8.0).predicted(out).tolist() == Reconstruction().predicted(out).tolist() == [0]


def test_a_network_gives_residuals() -> None:
    body = nn.Sequential(nn.Flatten(), nn.Linear(6, 6))
    module, head = Reconstruction().around(body, "1")
    x = torch.randn(4, 3, 2)
    assert torch.equal(module(x), body(x) - x.flatten(1))
    assert module.get_submodule(head or "") is body[1]
    assert Reconstruction().around(module, head) == (module, head)


def test_false_alarms_per_hour_are_a_share_of_samples() -> None:
    assert Reconstruction(false_alarms_per_hour=3.6, period_s=10).share == pytest.approx(0.99)
    with refused("data.task.false_alarms_per_hour"):
        Reconstruction(false_alarms_per_hour=1.0)
    with refused("data.task.quantile"):
        Reconstruction(quantile=1.0)
    assert made(Reconstruction(quantile=0.9, threshold=2.0).describe()) == Reconstruction(quantile=0.9, threshold=2.0)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 0.999])
def test_the_quantile_is_that_of_all_scores_within_its_error(share: float) -> None:
    rng = np.random.default_rng(1)
    devices = [rng.lognormal(sigma=3, size=n) for n in (1, 40, 959)]
    value, error = quantile(devices, share)
    every = np.sort(np.concatenate(devices))
    exact = every[int(np.ceil(share * 1000)) - 1]
    assert exact <= value <= exact * (1 + error) * (1 + 1e-12)
    assert error < 4e-6
    assert quantile(devices, share, rounds=1)[1] > 1  # 64 bins over 80 octaves: a factor of 2^1.25


def test_scores_of_0_have_a_threshold_above_0() -> None:
    value, _ = quantile([np.zeros(5)], 0.99)
    assert 0 < value < 1e-11


def test_labelled_anomalies_are_left_out_of_training_and_judge(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    found = read(table(tmp_path, slice(5, 9)))
    assert "are left out" in caplog.text
    assert found.classes == ("normal", "anomaly")
    assert not found.y.any()
    assert found.y_test.any()
    used = read(tmp_path / "table.csv", {"kind": "reconstruction", "abnormal": "used"})
    assert used.y.any()
    assert "are used" in caplog.text


def test_a_window_with_one_abnormal_row_does_not_train(tmp_path: Path) -> None:
    whole = read(table(tmp_path, slice(5, 9)), window={"length": 4, "step": 1})
    x = whole.take(np.arange(len(whole.y)), -1)
    assert float(x[:, 0].max()) < 6  # a fault moves the sensor by 8
    assert whole.recording_test is not None
    assert len(whole.recording_test) == len(whole.y_test)


def test_a_run_detects_with_a_threshold_of_held_out_samples(tmp_path: Path) -> None:
    done = run(experiment(table(tmp_path, slice(5, 9))), out=tmp_path / "run")
    figures = done.lines[-1].figures
    assert figures["AUROC"] == 1.0
    assert figures["anomaly F1"] > 0.8
    assert figures["missed"] == 0.0
    assert figures["false alarms"] < 0.15
    assert figures["VUS-PR"] > 0.7
    header = (tmp_path / "run" / "model.safetensors").read_bytes()
    about = json.loads(json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"]["fedfloor"])
    assert about["task"]["kind"] == "reconstruction"
    assert about["task"]["threshold"] > 0


def test_labels_of_a_table_judge_predictions(tmp_path: Path, command: Command) -> None:
    labelled = table(tmp_path, slice(5, 9)).rename(tmp_path / "labelled.csv")
    plain = table(tmp_path, slice(5, 9), labels=False)
    run(experiment(labelled), out=tmp_path / "run")
    found = command("predict", str(tmp_path / "run"), str(labelled), str(plain), "--json").document
    assert found["known"] == 180
    assert found["figures"]["AUROC"] == 1.0
    assert [row["AUROC"] for row in found["by_file"]] == [1.0, None]
    assert found["figures"]["missed"] == 0.0
    assert set(found["figures"]) == {
        "AUROC", "average precision", "VUS-PR", "anomaly F1", "false alarms", "missed", "NAB",
    }  # fmt: skip


def test_without_labels_the_reconstruction_error_judges(tmp_path: Path) -> None:
    path = table(tmp_path, labels=False)
    asked = experiment(path, evaluate={"headline": "reconstruction error", "validation": 0.3})
    figures = run(asked, out=tmp_path / "run").lines[-1].figures
    assert set(figures) == {"reconstruction error", "false alarms"}


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold", "fedsr", "hierfavg", "local-only", "centralized"])
def test_autoencoders_are_trained_by_methods(method: str, tmp_path: Path) -> None:
    asked = experiment(
        table(tmp_path, slice(5, 9)), rounds=6, model={"name": "mlp-sensor"}, method={"name": method},
        work={"epochs": 5, "batch_size": 8, "lr": 0.05},
    )  # fmt: skip
    lines = run(asked, out=tmp_path / "run").lines
    errors = [one.figures["reconstruction error"] for one in lines]
    assert errors[-1] is not None
    assert lines[-1].figures["AUROC"] > 0.8


@pytest.mark.parametrize("name", REPRODUCING[2][1:])
def test_a_round_of_an_autoencoder_on_ranks_and_its_onnx_file(name: str, tmp_path: Path) -> None:
    asked = experiment(
        table(tmp_path, slice(5, 9)), model={"name": name}, method={"name": "fedavg"},
        data={"window": {"length": 5, "step": 1}}, work={"epochs": 1, "batch_size": 8, "lr": 0.05},
    )  # fmt: skip
    for ranks in (1, 2):
        run(asked, out=tmp_path / str(ranks), ranks=ranks)
    one, two = ((tmp_path / str(ranks) / "model.safetensors").read_bytes() for ranks in (1, 2))
    assert one == two
    pytest.importorskip("onnxscript")
    session = pytest.importorskip("onnxruntime").InferenceSession
    trained = load_model(tmp_path / "1")
    done = export(trained, tmp_path / "model.onnx")
    assert max(done.differences.values()) <= TOLERANCE
    x = np.random.default_rng(0).standard_normal((7, 3, 5), np.float32)
    given = session(tmp_path / "model.onnx", providers=["CPUExecutionProvider"]).run(None, {"x": x})
    answer = trained.answer(x)
    np.testing.assert_allclose(given[0], answer.score, rtol=1e-4)  # multiples of the threshold


def test_bad_input_is_refused_by_name(tmp_path: Path) -> None:
    path = table(tmp_path, slice(5, 9))
    with refused("data.task.normal"):
        read(path, {"kind": "reconstruction", "normal": "norml"})
    path.write_text(path.read_text().replace("normal", "on"))
    with refused("normal-class"):
        read(path)
    with refused("nothing-to-train"):
        run(
            experiment(
                table(tmp_path),
                method={"name": "fedavg"},
                data={"split": {"kind": "time"}},
                evaluate={"headline": "loss"},
            ),
            tmp_path / "a",
        )
    with refused("method"):
        run(experiment(table(tmp_path, slice(5, 9)), model={"name": "logistic"}), out=tmp_path / "b")


def test_constant_sensors_are_nothing_to_learn(tmp_path: Path) -> None:
    lines = ["machine,a,b"] + [f"m{k},1.0,2.0" for k in (1, 2) for _ in range(20)]
    path = tmp_path / "still.csv"
    path.write_text("\n".join(lines) + "\n")
    asked = experiment(path, evaluate={"headline": "reconstruction error", "validation": 0.3})
    with refused("constant-sensors"):
        run(asked, out=tmp_path / "run")


def test_a_score_that_is_no_number_alarms_and_has_no_threshold() -> None:
    task = Reconstruction(threshold=1.0)
    out = torch.tensor([[float("nan"), 0.0], [0.0, 0.0]])
    assert task.predicted(out).tolist() == [1, 0]
    assert [task.answer(out, out).document(i)["alarm"] for i in range(2)] == [True, False]
    assert task.answer(out, out).cells(0)["alarm"] == "yes"
    with refused("not-finite"):
        counts(np.array([1.0, np.nan]), 0.0, 64.0)
