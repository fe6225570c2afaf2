"""Arrays of one's own: what an .npz file may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Command
from fedfloor.data.files.own import load
from fedfloor.data.reading import DeviceSplit, RandomSplit, Reading, Window
from fedfloor.park.build import build
from fedfloor.park.partition import Iid
from own_arrays import Arrays, N, read, rows, taken, without
from refusals import refused


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLOOR_CACHE", str(tmp_path / "cache"))


def test_rows_of_sensors(tmp_path: Path) -> None:
    data = read(tmp_path, rows())
    assert (data.name, data.shape, data.classes, data.scale) == ("own.npz", (2,), ("0", "1"), 1.0)
    assert (data.owned.names, data.inputs.kind, data.inputs.columns) == (("a", "b"), "table", ("x0", "x1"))
    assert (len(data.y), len(data.y_test)) == (16, 4)
    x = data.take(np.arange(16), 0)
    assert x.dtype == np.float32
    assert data.owner is not None
    assert (x[:, 0] % 2 == data.y).all()
    assert (x[:, 0] % 2 == 1 - data.owner).all()  # a has the odd ones
    assert (x[:, 1] == x[:, 0] / 2).all()


@pytest.mark.parametrize(
    ("shape", "kept"),
    [
        ((N, 4, 5), (1, 4, 5)),
        ((N, 1, 4, 5), (1, 4, 5)),
        ((N, 3, 4, 5), (3, 4, 5)),
        ((N, 4, 5, 3), (3, 4, 5)),
        ((N, 4, 5, 1), (1, 4, 5)),
        ((N, 3, 5, 3), (3, 5, 3)),  # either way: channels first
    ],
)
def test_images(shape: tuple[int, ...], kept: tuple[int, ...], tmp_path: Path) -> None:
    x = np.arange(np.prod(shape), dtype=np.int64).astype(np.uint8).reshape(shape)
    data = read(tmp_path, rows(x=x))
    assert (data.shape, data.scale, data.inputs.kind) == (kept, 1 / 255, "image")
    turned = x.transpose(0, 3, 1, 2) if shape[1:] == (4, 5, 3) else x.reshape(N, *kept)
    mine = data.take(np.arange(len(data.y)), 0)
    assert {image.tobytes() for image in mine} <= {image.tobytes() for image in turned}
    assert mine.dtype == np.uint8


def test_ready_made_windows(tmp_path: Path) -> None:
    x = np.arange(N * 6, dtype=np.float32).reshape(N, 2, 3)
    data = read(tmp_path, rows(x=x))
    assert (data.shape, data.inputs.length, data.inputs.columns) == ((2, 3), 3, ("x0", "x1"))
    assert {tuple(one.ravel()) for one in data.take(np.arange(16), 0)} <= {tuple(one.ravel()) for one in x}


def test_windows_of_rows(tmp_path: Path) -> None:
    data = read(tmp_path, rows(), Reading(window=Window(2)))
    assert (data.shape, data.inputs.length, data.inputs.step) == ((2, 2), 2, 2)
    assert data.take(np.array([1]), 0)[0].tolist() == [[5, 7], [2.5, 3.5]]  # of device a, in the order of the array


def test_times_split(tmp_path: Path) -> None:
    when = np.datetime64("2026-03-01T00:00") + np.arange(N).astype("timedelta64[m]")
    data = read(tmp_path, rows(time=when))
    assert data.time is not None
    assert data.time[:2].tolist() == [1772323260.0, 1772323380.0]  # date -u -d '2026-03-01 00:01' +%s, and 00:03
    assert taken(data) == list(range(16))
    backwards = rows(time=np.arange(N)[::-1])
    with refused("times"):
        read(tmp_path, backwards)
    assert taken(read(tmp_path, backwards, Reading(sort=True))) == list(range(4, N))


def test_a_split_that_is_given(tmp_path: Path) -> None:
    test = {"x_test": np.full((3, 2), 0.5), "y_test": np.array([0, 1, 1]), "device_test": np.array(["a", "b", "c"])}
    data = read(tmp_path, rows(**test))
    assert (len(data.y), data.y_test.tolist()) == (N, [0, 1, 1])
    assert data.owner_test is not None
    assert [data.owned.names[k] for k in data.owner_test] == ["a", "b", "c"]
    assert data.take_test(np.arange(3)).tolist() == [[0.5, 0.5]] * 3
    assert build(data).names == ("a", "b")


def test_factories(tmp_path: Path) -> None:
    park = build(read(tmp_path, rows(device=np.arange(N) % 4, factory=np.array(["n", "s"] * (N // 2))),
                      Reading(split=RandomSplit(test=0.4))))  # fmt: skip
    assert (park.names, park.factory_names) == (("0", "1", "2", "3"), ("n", "s"))
    assert park.factory_of.tolist() == [0, 1, 0, 1]
    test = {"x_test": np.zeros((1, 2)), "y_test": np.array([1]), "device_test": np.array(["b"])}
    data = read(tmp_path, rows(factory=np.array(["n", "s"] * (N // 2)), **test))
    assert data.owned.factory is not None
    assert data.owned.factory.tolist() == [1, 0]


def test_classes(tmp_path: Path) -> None:
    names = np.array(["ok", "bad", "unseen"])
    assert read(tmp_path, rows(classes=names)).classes == ("ok", "bad", "unseen")
    assert read(tmp_path, rows(), Reading(classes=("ok", "bad"))).classes == ("ok", "bad")
    assert read(tmp_path, rows(y=np.array([12, 3] * (N // 2)))).classes == ("3", "12")
    assert read(tmp_path, rows(y=np.array(["ok", "bad"] * (N // 2)))).classes == ("bad", "ok")
    assert read(tmp_path, rows(y=np.arange(N) % 2 == 1)).classes == ("0", "1")


def test_without_devices_samples_are_dealt(tmp_path: Path) -> None:
    data = read(tmp_path, without(rows(), "device"))
    assert (data.owner, len(data.y)) == (None, 16)
    assert build(data, partition=Iid(), devices=3).sizes.tolist() == [6, 5, 5]
    for devices in (None, 3):
        with refused("partition"):
            build(data, devices=devices)
    with refused("data.split"):
        read(tmp_path, without(rows(), "device"), Reading(split=DeviceSplit()))


def holes(x: Any) -> Arrays:
    x = x.astype(np.float64)
    x[4] = np.nan  # of device b, whose row before is 2
    return rows(x=x)


def test_missing_values(tmp_path: Path) -> None:
    x = rows()["x"]
    with refused("missing"):
        read(tmp_path, holes(x))
    assert 4 not in taken(read(tmp_path, holes(x), Reading(missing="drop")))
    everything = Reading(missing="previous", split=DeviceSplit(test=0.5))
    data = read(tmp_path, holes(x), everything)
    both = taken(data) + sorted(data.take_test(np.arange(10))[:, 0].tolist())
    assert sorted(both) == [0, 1, 2, 2, 3, *range(5, N)]
    data = read(tmp_path, holes(x), Reading(missing="mean", split=DeviceSplit(test=0.5)))
    kept = np.concatenate([data.take(np.arange(10), 0), data.take_test(np.arange(10))])
    assert np.isnan(kept).sum() == 2  # for whoever trains to replace them


def test_missing_values_in_windows(tmp_path: Path) -> None:
    x = np.arange(N * 6, dtype=np.float32).reshape(N, 2, 3)
    x[0, 1, 1] = np.nan
    with refused("missing"):
        read(tmp_path, rows(x=x))
    data = read(tmp_path, rows(x=x), Reading(missing="previous", split=DeviceSplit(test=0.5)))
    pieces = [*data.take(np.arange(10), 0).tolist(), *data.take_test(np.arange(10)).tolist()]
    assert [[0, 1, 2], [3, 3, 5]] in pieces
    assert len(taken(read(tmp_path, rows(x=x), Reading(missing="drop")))) == 16  # 9 of device b: one for testing


@pytest.mark.parametrize("x", [np.arange(N * 6.0).reshape(N, 2, 3), np.arange(N * 6, dtype=np.uint8).reshape(N, 2, 3)])
def test_samples_of_another_shape_are_other_data(tmp_path: Path, x: np.ndarray) -> None:
    assert read(tmp_path, rows(x=x)).digest != read(tmp_path, rows(x=x.reshape(N, 3, 2))).digest


def test_arrays_in_the_other_order_of_memory(tmp_path: Path) -> None:
    plain = read(tmp_path, rows())
    turned = read(tmp_path, rows(x=np.asfortranarray(rows()["x"])))
    assert (turned.take(np.arange(16), 0) == plain.take(np.arange(16), 0)).all()
    packed = tmp_path / "packed.npz"
    np.savez_compressed(packed, **rows(x=rows()["x"].astype(">f4")))
    assert load(packed, Reading(), 0).digest == plain.digest


def test_images_are_put_in_order_of_time(tmp_path: Path) -> None:
    late_first = rows(x=np.arange(N * 4, dtype=np.uint8).reshape(N, 2, 2), time=np.arange(N)[::-1])
    with refused("times"):
        read(tmp_path, late_first)
    data = read(tmp_path, late_first, Reading(sort=True))
    assert taken(data) == [4.0 * row for row in range(4, N)]  # the first four are the latest: for testing


# -- the whole way -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rows", "windows", "images"])
def test_arrays_train(kind: str, command: Command) -> None:
    x = {
        "rows": np.random.default_rng(0).normal(size=(N, 2)),
        "windows": np.random.default_rng(0).normal(size=(N, 2, 5)),
        "images": np.zeros((N, 8, 8, 3), np.uint8),
    }[kind]
    np.savez(command.folder / "own.npz", **rows(x=x))
    (command.folder / "mine.toml").write_text(
        'rounds = 2\n[data]\npath = "own.npz"\n[model]\nname = "logistic"\n[work]\nbatch_size = 4\n'
    )
    said = command("run", "mine.toml", "--ranks", "1", "--out", "out")
    assert said.code == 0, said.err
    assert any(name.endswith("ledger.jsonl") for name in said.new)


def test_windows_with_more_sensors_than_times_are_pointed_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = np.random.default_rng(0).normal(size=(20, 30, 4)).astype(np.float32)
    y = np.arange(20) % 2
    for shown, values in ((True, x), (False, x.transpose(0, 2, 1))):
        caplog.clear()
        np.savez(tmp_path / "w.npz", x=values, y=y)
        load(tmp_path / "w.npz", Reading(), 0)
        assert ("30 sensors over 4 times. If sensors are the last axis: x.transpose(0, 2, 1)" in caplog.text) == shown
