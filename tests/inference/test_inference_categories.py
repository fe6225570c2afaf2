"""ONNX files of models over columns of texts: the predictions of ``predict`` on the raw table, however normalised."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

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
