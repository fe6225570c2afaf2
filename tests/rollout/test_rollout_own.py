"""Models whose own parts stay on devices: one shared file, and each device's numbers as an input of it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import save
from test_rollout_drift import CA, predicting

from fedfloor.base.ranges import RefusedError
from fedfloor.deploy.mqtt import MqttConnection
from fedfloor.inference.onnx import export
from fedfloor.inference.trained import Trained, load_model
from fedfloor.models.staying import Staying
from fedfloor.park.normalise import scaled
from fedfloor.rollout import delivery, registry
from fedfloor.rollout import model as models
from fedfloor.rollout.model import OwnPart
from fedfloor.rollout.serving import Serving
from fedfloor.rollout.statement import CHUNK_BYTES, Statement, sealed
from live_park import experiment, live
from model_files import SENSORS, write_model
from parks import needs_mosquitto, until
from refusals import refused
from rollouts import COLUMNS, TOP, provisioned, running

RUN = "run-3"
WAIT_S = 60.0
SCALE = [[3.0, -1.0], [2.0, 0.5]]
DEVICE = {"scale": 1.0, "mean": [0.0, 0.0], "std": [1.0, 1.0], "kind": "device", "rows": None}
CASES: dict[str, tuple[str, str, tuple[int, ...], dict[str, Any]]] = {
    "head": ("lenet", "head", (1, 28, 28), {"decide": {"positive": 1, "threshold": 0.4, "temperature": 2.0}}),
    "convolutions": ("lenet", "all but head", (1, 28, 28), {}),
    "norms": ("cnn-sensor-bn", "norms", (2, 12), {}),
    "recurrent": ("gru", "all", (2, 12), {}),
    "normalised by device": ("mlp-2nn", "head", (2,), {"normalise": DEVICE}),
}


def statement(data: bytes, network: str, **more: Any) -> Statement:
    return Statement("trial", "d0", 1, 1, network, hashlib.sha256(data).hexdigest(), len(data), **more)


def staying(run: Path) -> Staying:
    """The part of a run that stays."""
    part = load_model(run, stays=True).staying
    assert part is not None
    return part


def run_of(folder: Path, name: str, part: str, shape: tuple[int, ...], **header: Any) -> Path:
    """A run's folder whose devices 0 and 1 keep a part, each in its folder; the run has both in memory, too."""
    run = write_model(folder / RUN, name, shape, **header)
    (run / "memory").mkdir()
    records = {"0": {"file": "memory/0-.safetensors", "stays": part, "run": RUN}}
    (run / "devices.json").write_text(json.dumps(records))
    own = staying(run)
    for k in (0, 1):
        numbers = own.parcel.cut(own.network.flat) * (1.5 + k)
        data = save({f"own {part}": numbers})
        records[str(k)] = records["0"] | {"file": f"memory/{k}-{hashlib.sha256(data).hexdigest()[:32]}.safetensors"}
        (run / records[str(k)]["file"]).write_bytes(data)
        (folder / f"device-{k}").mkdir()
        (folder / f"device-{k}" / own.file).write_bytes(own.content(numbers))
    (run / "devices.json").write_text(json.dumps(records))
    return run


def released(run: Path, out: Path) -> bytes:
    return export(load_model(run, stays=True), out / "model.onnx").file.read_bytes()


def drawn(trained: Trained) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    if trained.sensors is None:
        return rng.integers(0, 256, (5, *trained.shape), np.uint8)
    return rng.standard_normal((5, *trained.shape), np.float32)


@pytest.mark.parametrize("case", CASES)
def test_one_file_answers_on_each_device_as_its_own_model_does_in_pytorch(tmp_path: Path, case: str) -> None:
    name, part, shape, header = CASES[case]
    run = run_of(tmp_path, name, part, shape, **header)
    data = released(run, tmp_path)
    answers = []
    for k in (0, 1):
        trained = load_model(run, device=str(k))
        x = drawn(trained)
        scale = None if trained.own is None else tuple(map(tuple, SCALE))
        made = models.load(data, statement(data, name, scale=scale), tmp_path / f"device-{k}")
        wanted = trained.outputs(x if scale is None else scaled(x, *np.array(SCALE, np.float32)))
        outputs = made.outputs(x)
        for got, want in zip(outputs.values(), wanted, strict=False):
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)
        answers.append(outputs["logits"])
    assert np.abs(answers[0] - answers[1]).max() > 1e-3


def test_a_device_without_a_part_or_with_that_of_another_run_refuses_by_name(tmp_path: Path) -> None:
    run = run_of(tmp_path, "logistic", "head", (1, 28, 28))
    data = released(run, tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    other = staying(run)
    (empty / Staying(other.network, "head", "run-2").file).write_bytes(other.content(torch.ones(1570)))
    why = "own: this device has no personal part: it has not trained in run 'run-3'"
    with pytest.raises(RefusedError, match=why):
        models.load(data, statement(data, "logistic"), empty)


def test_a_device_takes_a_release_by_itself_once_it_has_trained(tmp_path: Path) -> None:
    run = run_of(tmp_path, "logistic", "head", (1, 28, 28))
    data = released(run, tmp_path)
    own = staying(run)
    told = list[dict[str, Any]]()
    link = SimpleNamespace(
        publish=lambda _topic, body, **_: told.append(json.loads(body)), subscribe=lambda _: None,
        unsubscribe=lambda _: None, unacknowledged=0,
    )  # fmt: skip
    made = Serving(predicting(tmp_path), cast(MqttConnection, link))
    said = statement(data, "logistic")
    made._release(sealed(said, CA))
    for i in range(said.pieces):
        made._piece(said.sha256, str(i), data[i * CHUNK_BYTES : (i + 1) * CHUNK_BYTES])
    assert told[-1]["state"] == "refused"
    assert "it has not trained in run 'run-3'" in told[-1]["why"]
    made._repeat()  # nothing has changed
    folder = tmp_path / "models"
    count = len(told)
    (folder / Staying(own.network, "head", "run-2").file).write_bytes(own.content(torch.ones(1570)))
    made._repeat()  # of another run
    assert [one["state"] for one in told[count:]] == ["refused"]
    shutil.copy(tmp_path / "device-0" / own.file, folder)
    made._repeat()
    assert (told[-1]["state"], told[-1]["version"]) == ("serving", 1)
    made._repeat()
    assert len(told) == count + 2


def test_a_part_that_changes_is_used_from_the_next_rows_on_and_a_damaged_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of(tmp_path, "logistic", "head", (1, 28, 28))
    data = released(run, tmp_path)
    own = staying(run)
    here, there = (tmp_path / f"device-{k}" / own.file for k in (0, 1))
    made = models.load(data, statement(data, "logistic"), here.parent)
    x = drawn(load_model(run))
    first = made.outputs(x)["logits"]
    os.replace(there, here)
    second = made.outputs(x)["logits"]
    np.testing.assert_allclose(second, load_model(run, device="1").outputs(x)[1].numpy(), rtol=1e-5, atol=1e-5)
    assert np.abs(first - second).max() > 1e-3
    here.write_bytes(b"\x93NUMPY")
    assert (made.outputs(x)["logits"] == second).all()
    here.unlink()
    for _ in range(2):
        assert (made.outputs(x)["logits"] == second).all()
    assert len([one for one in caplog.records if one.name == "fedfloor.rollout.model"]) == 2


def _array(values: Any, **more: Any) -> bytes:
    data = io.BytesIO()
    np.save(data, values, **more)
    return data.getvalue()


def _header(kind: str, shape: str) -> bytes:
    text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00v\x00" + text.encode()


GOOD = np.ones(4, np.float32)
DAMAGED = {
    "nothing": b"",
    "text": b"own",
    "cut short": _array(GOOD)[:-1],
    "without end": _header("'<f4'", f"(1{40 * '0'},)"),
    "negative": _header("'<f4'", "(-4,)") + GOOD.tobytes(),
    "code": _header("__import__('os')", "(4,)"),
    "a pickle": _array(np.array([print] * 4, object), allow_pickle=True),
    "doubles": _array(GOOD.astype(np.float64)),
    "too many": _array(np.ones(5, np.float32)),
    "a table": _array(np.ones((2, 2), np.float32)),
    "not finite": _array(np.array([1, 2, np.nan, 3], np.float32)),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_file_that_is_no_such_part_is_refused(tmp_path: Path, name: str) -> None:
    about = {"numbers": 4, "file": f"own-{32 * '0'}.npy", "run": RUN}
    path = tmp_path / str(about["file"])
    path.write_bytes(_array(GOOD))
    assert (OwnPart.of(about, tmp_path).now() == GOOD).all()
    path.write_bytes(DAMAGED[name])
    with refused("own", RefusedError) as error:
        OwnPart.of(about, tmp_path).now()
    assert error.value.reason == "own"
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "change", [{"file": "../own.npy"}, {"file": 1}, {"numbers": 1 << 40}, {"numbers": 0}, {"run": None}, {"more": 1}]
)
def test_metadata_that_name_no_part_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(RefusedError):
        OwnPart.of({"numbers": 4, "file": f"own-{32 * '0'}.npy", "run": RUN} | change, tmp_path)


def test_a_run_of_an_earlier_version_is_refused_by_name(tmp_path: Path) -> None:
    run = run_of(tmp_path, "logistic", "head", (1, 28, 28))
    (run / "devices.json").write_text('{"0": {"file": "memory/0-1.safetensors", "stays": true}}')
    with refused("earlier-version"):
        load_model(run, stays=True)


@pytest.mark.live
@pytest.mark.parametrize("method", ["fedper", "apfl"])
def test_a_run_on_a_park_is_released_and_each_device_answers_as_its_own_model(tmp_path: Path, method: str) -> None:
    what = experiment(tmp_path, method, rounds=3, devices=4, model="mlp-2nn")
    with live(tmp_path, what) as park:
        park.run()
    known, version = registry.register(registry.read(provisioned(tmp_path)), tmp_path / "live")
    assert set(known.versions[version].files) == {""}
    known = registry.release(known, version)
    answers = []
    for k in range(4):
        said = known.statement(f"d{k}")
        made = models.load(known.data(said.sha256), said, tmp_path / f"device-{k}" / "models")
        shutil.copytree(tmp_path / f"device-{k}/memory", tmp_path / "live/memory", dirs_exist_ok=True)
        trained = load_model(tmp_path / "live", device=str(k))
        x = drawn(trained)
        answers.append(made.outputs(x)["logits"])
        np.testing.assert_allclose(answers[k], trained.outputs(x)[1].numpy(), rtol=1e-5, atol=1e-5)
    assert len({one.tobytes() for one in answers}) == 4


@pytest.mark.slow
@needs_mosquitto
def test_agents_without_pytorch_serve_with_their_parts_and_refuse_where_there_is_none(tmp_path: Path) -> None:
    run = run_of(tmp_path, "logistic", "head", (3,), inputs=SENSORS | {"columns": COLUMNS})
    out = provisioned(tmp_path)
    own = staying(run)
    known, version = registry.register(registry.read(out), run)
    places = [out / f"devices/d{k}/state/models" / own.file for k in (0, 1)]
    for place in places:
        place.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "device-0" / own.file, places[0])
    x = np.array([[0.5, -1.0, 2.0]], np.float32)
    with running(out) as park:
        edge = park.client("north")
        edge.subscribe(f"{TOP}/predictions/+")
        park.start("d0", "d1")
        known = registry.release(known, version, ["d0", "d1"])
        rows = {row["device"]: row for row in delivery.deliver(known, ["d0", "d1"], WAIT_S)}
        assert rows["d0"]["state"] == "serving"
        assert (rows["d1"]["state"], rows["d1"]["runs"]) == ("refused", None)
        assert "it has not trained in run 'run-3'" in rows["d1"]["why"]
        with (tmp_path / "rows-d0/press.csv").open("a") as table:
            table.write(",".join(COLUMNS) + "\n")
            for k in (0, 1):
                table.write("0.5,-1.0,2.0\n")
                table.flush()
                answer = json.loads(edge.hears()[1])
                wanted = load_model(run, device=str(k)).predict(x)[0]
                assert answer["rows"] == [k + 1, k + 1]
                assert answer["probability"] == pytest.approx(wanted.max(), rel=1e-5)
                shutil.copy(tmp_path / "device-1" / own.file, places[0].with_suffix(".part"))
                os.replace(places[0].with_suffix(".part"), places[0])
        shutil.copy(tmp_path / "device-1" / own.file, places[1])
        assert until(lambda: delivery.deliver(known, ["d1"], 5, send=False)[0]["state"] == "serving", WAIT_S)
        edge.close()
