"""ONNX files of models over columns of texts: the predictions of ``predict`` on the raw table, however normalised."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import fedfloor
from commands import Command
from fedfloor.data.reading import Columns, TimeSplit, Window
from fedfloor.experiment import DataSettings, ModelSettings
from fedfloor.inference import inputs
from fedfloor.inference.trained import load_model
from fedfloor.park.normalise import DeviceNormaliser, Normalise
from fedfloor.park.survey import RegimeNormaliser
from fedfloor.parts.work import WorkSettings
from fedfloor.runs.parks import build_park, load_data

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

TOOLS = ("drill", "mill", "saw")
SHIFTS = ("early", "late")
KINDS: dict[str, Normalise] = {
    "unit": "unit",
    "standard": "standard",
    "device": DeviceNormaliser(rows=20),
    "robust": "robust",
    "regime": RegimeNormaliser(("heat",), 2),
}


def plant(path: Path) -> Path:
    rng = np.random.default_rng(0)
    text = ["device,time,tool,shift,heat,label"]
    for k in range(3):
        for time in range(80):
            tool = int(rng.integers(0, 3))
            worn = int(rng.random() < 0.4)
            heat = 10 * tool + 5 * worn + rng.normal()
            row = f"m{k},{time},{TOOLS[tool]},{SHIFTS[time // 8 % 2]},{heat:.3f}"
            text.append(f"{row},{('good', 'worn')[worn]}")
    path.write_text("\n".join(text) + "\n")
    return path


@pytest.mark.parametrize("window", [None, Window(5, 2)], ids=["rows", "windows"])
@pytest.mark.parametrize("kind", KINDS)
def test_onnx_is_predict_on_the_raw_table(tmp_path: Path, kind: str, window: Window | None, command: Command) -> None:
    from fedfloor.inference.onnx import export

    table = plant(tmp_path / "shop.csv")
    columns = Columns(categories={"tool": "one-hot", "shift": SHIFTS})  # type: ignore[dict-item]
    data = DataSettings(path=str(table), normalise=KINDS[kind], split=TimeSplit(), window=window, columns=columns)
    what = fedfloor.Experiment(
        data=data, model=ModelSettings("logistic"), work=WorkSettings(batch_size=8, lr=0.05), rounds=2
    )
    run = fedfloor.run(what, tmp_path / "run", ranks=1)
    trained = load_model(run.folder)
    file = export(trained, tmp_path / "model.onnx").file
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    if kind == "device":  # the statistics of the machine that it runs on are inputs
        park = build_park(what)
        raw = load_data(what)
        stored = json.loads((run.folder / "normalisation.json").read_text())["devices"]
        for k in range(park.devices):
            mine = np.flatnonzero(park.test_devices == k)
            mean, std = (np.array(stored[f"m{k}"][key], np.float32) for key in ("mean", "deviation"))
            found = session.run(["probabilities"], {"x": raw.take_test(mine), "mean": mean, "std": std})[0]
            assert found == pytest.approx(trained.outputs(park.test()[0][mine])[0].numpy(), abs=1e-5)
        return
    (read,) = inputs.read([table], trained)
    found = session.run(["probabilities"], {"x": read.x})[0]
    assert found == pytest.approx(trained.predict(read.x), abs=1e-5)
    answers = command("predict", str(run.folder), str(table), "--json").document["rows"]
    assert [one["predicted"] for one in answers] == [trained.classes[c] for c in found.argmax(1)]
    assert kind == "unit" or len({one["predicted"] for one in answers}) == 2
    about = session.get_modelmeta().custom_metadata_map
    assert all(name in json.dumps(about) for name in (*TOOLS, *SHIFTS))


def test_true_and_false_are_the_same_in_files_and_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R and SQL write TRUE, pandas True: a model of either answers a table of the other."""
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {"m": np.repeat(["a", "b"], 60), "heat": rng.normal(size=120), "cover": rng.random(120) < 0.5}
    )
    frame["worn"] = frame["cover"] ^ (rng.random(120) < 0.1)
    upper = frame.assign(**{name: frame[name].astype(str).str.upper() for name in ("cover", "worn")})
    upper.to_csv("upper.csv", index=False)
    answers = []
    for name, table in (("file", Path("upper.csv")), ("frame", frame)):
        run = fedfloor.train(table, device="m", label="worn", rounds=14, name=name, references=False)
        for rows in (frame, upper):
            told = run.model.predict(rows)
            answers.append([str(label).casefold() for label in told])
    assert answers[0] == answers[1]
    assert answers[2] == answers[3]
    assert (
        np.mean([answer == str(worn).casefold() for answer, worn in zip(answers[0], frame["worn"], strict=True)]) > 0.8
    )


def test_a_model_of_texts_alone_reads_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    mode = rng.integers(0, 3, 120)
    worn = np.where((mode == 0) ^ (rng.random(120) < 0.1), "yes", "no")
    frame = pandas.DataFrame({" m": np.repeat(["a", "b"], 60), "mode ": [TOOLS[k] for k in mode], "worn": worn})
    frame.to_csv("counted.csv")  # with the numbers of rows, and blanks around names
    parquet.write_table(pa.Table.from_pandas(frame), "plain.parquet")
    for path in ("counted.csv", "plain.parquet"):
        run = fedfloor.train(Path(path), device="m", label="worn", rounds=14, name=path[:5], references=False)
        for rows in (frame, pandas.read_csv("counted.csv")):
            assert [*run.model.predict(rows)] == ["yes" if k == 0 else "no" for k in mode]
