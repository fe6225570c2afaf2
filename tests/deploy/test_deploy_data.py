"""Devices with samples of their own, in a folder or seen by a function: the bits of the simulation with all of them."""

from __future__ import annotations

import json
import shutil
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import refusals
from fedfloor import config
from fedfloor.base.errors import RunError, SettingError
from fedfloor.deploy.device import of as agent_of
from fedfloor.deploy.edge import Edge
from fedfloor.deploy.settings import DataSource, Deadlines
from fedfloor.runs import ledger
from fedfloor.runs.parks import build_park
from live_park import MORE, device_settings, experiment, figures, live, simulated
from live_processes import needs_broker, processes
from parks import until

DEVICES = 4


def told(line: ledger.Line) -> dict[str, object]:
    """A ledger line's figures; whose the test samples are is not known where devices have samples of their own."""
    return {name: one for name, one in figures(line).items() if name != "by_device"}


def same(folder: Path, what: Path, data: Callable[[int], DataSource]) -> None:
    """Check that a park whose devices have their own samples is the simulation of the experiment."""
    _, wanted = simulated(what, folder / "simulated")
    with live(folder, what, data=data) as park:
        got = park.run()
    assert (folder / "live/model.safetensors").read_bytes() == (folder / "simulated/model.safetensors").read_bytes()
    assert [told(line) for line in got] == [told(line) for line in wanted]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A data folder, ``train`` and ``test``, of the partition that the labels' experiment has."""
    park = build_park(config.read(experiment(tmp_path, "fedavg", devices=DEVICES), []))
    root = tmp_path / "plant"
    for k in range(DEVICES):
        x, y = park.samples(k)
        for part, some in (("train", range(4, len(y))), ("test", range(4))):
            for i in some:
                place = root / part / f"d{k}" / park.dataset.classes[y[i] % 5]
                place.mkdir(parents=True, exist_ok=True)
                Image.fromarray(x[i, 0]).save(place / f"{i:03}.png")
    return root


def folder_of(root: Path) -> Callable[[int], DataSource]:
    return lambda k: DataSource("folder", root / "train" / f"d{k}")


@pytest.mark.parametrize("method", ["fedavg", "fedsr", "fedgs", "hfedms"])
@pytest.mark.parametrize("normalise", ["unit", "standard"])
def test_pictures_in_folders_of_devices_are_the_simulations_bits(
    tmp_path: Path, pictures: Path, method: str, normalise: str
) -> None:
    more = f"data.path = '{pictures}'\ndata.normalise = '{normalise}'\n{MORE.get(method, '')}"
    same(tmp_path, experiment(tmp_path, method, devices=DEVICES, more=more), folder_of(pictures))


RINGS = "methods.fedsr.ring_size = 4"  # each ring has devices of both factories


@pytest.mark.parametrize("method", ["fedsr", "astraea", "hfedms"])
def test_rounds_that_cross_factories_are_the_simulations_bits(tmp_path: Path, pictures: Path, method: str) -> None:
    """The edges of other factories are refused what devices hold, and lost every visit to them."""
    more = {"fedsr": RINGS, "astraea": "methods.astraea.devices = 4"}.get(method, MORE.get(method, ""))
    same(
        tmp_path, experiment(tmp_path, method, devices=DEVICES, more=f"data.path = '{pictures}'\n{more}"),
        folder_of(pictures),
    )  # fmt: skip


def test_a_device_that_comes_back_trains_in_rings_of_other_factories_again(tmp_path: Path, pictures: Path) -> None:
    more = f"data.path = '{pictures}'\n{RINGS}\nmethods.fedsr.laps = 1"
    what = experiment(tmp_path, "fedsr", rounds=6, devices=DEVICES, more=more)
    started = list[int]()
    with live(tmp_path, what, data=folder_of(pictures)) as park:

        def begin_again(edge: Edge, usual: Callable[[bytes], bytes], frame: bytes) -> bytes:
            if b'"round":3' in frame and not started:
                started.append(2)
                park.agents[2].leave()
                park.join(2)
                assert until(lambda: edge.channel.session(2) == park.agents[2]._session)
            return usual(frame)

        for edge in park.edges.values():
            edge.answer = partial(begin_again, edge, edge.answer)  # type: ignore[method-assign]
        lines = park.run()
    assert started
    assert [line.lost for line in lines[:2]] == [0, 0]
    assert [line.lost for line in lines[4:]] == [0, 0]


@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_sensors_in_files_of_devices_are_normalised_as_in_the_simulation(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(5, 3, (DEVICES * 20, 3)).round(3)
    y = rng.integers(0, 2, len(x))
    device = np.repeat(np.arange(DEVICES), 20)
    head = np.arange(len(x)) % 20 < 15  # the rest is for testing: a split by time takes the last quarter
    names = ["heat", "flow", "force"]
    if kind == "npz":
        np.savez(tmp_path / "all.npz", x=x[head], y=y[head], device=device[head], x_test=x[~head], y_test=y[~head],
                 device_test=device[~head], classes=np.array(["good", "bad"]))  # fmt: skip
    else:
        rows = [f"d{k},{i},{','.join(map(str, r))},{'good' if c == 0 else 'bad'}"
                for i, (k, r, c) in enumerate(zip(device, x.tolist(), y, strict=True))]  # fmt: skip
        (tmp_path / "all.csv").write_text("\n".join([f"device,time,{','.join(names)},label", *rows]) + "\n")
    for k in range(DEVICES):
        mine = head & (device == k)
        if kind == "npz":
            np.savez(tmp_path / f"{k}.npz", x=x[mine], y=y[mine], classes=np.array(["good", "bad"]))
        else:
            rows = [f"{i},{','.join(map(str, x[i].tolist()))},{'good' if y[i] == 0 else 'bad'}"
                    for i in np.flatnonzero(mine)]  # fmt: skip
            (tmp_path / f"{k}.csv").write_text("\n".join([f"time,{','.join(names)},label", *rows]) + "\n")
    more = f"data.path = '{tmp_path}/all.{kind}'" + ("\ndata.split = { kind = 'time', test = 0.25 }" * (kind == "csv"))
    what = experiment(tmp_path, "fedavg", devices=DEVICES, more=more)
    same(tmp_path, what, lambda k: DataSource("folder", tmp_path / f"{k}.{kind}"))


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module of one's own, named sensor."""
    made = types.ModuleType("sensor")
    monkeypatch.setitem(sys.modules, "sensor", made)
    return made


def sensor(_: int) -> DataSource:
    return DataSource("function", name="sensor:see")


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize("stream", ["static", "fifo"])
def test_what_a_function_sees_is_the_simulations_bits(
    tmp_path: Path, module: types.ModuleType, stream: str, names: bool
) -> None:
    more = MORE["fedgs"] if stream == "fifo" else ""
    what = experiment(tmp_path, "hierfavg", rounds=3, devices=DEVICES, more=more)
    park = build_park(config.read(what, []))

    def see(device: int, tick: int) -> tuple[Any, Any]:
        x, y = park.held(device, tick, 0)
        return x, np.array(park.dataset.classes)[y] if names else y

    module.see = see  # type: ignore[attr-defined]
    same(tmp_path, what, sensor)


def refused(folder: Path, what: Path, data: Callable[[int], DataSource], kind: type[Exception] = SettingError) -> str:
    with live(folder, what, data=data) as park:
        park.deadlines = Deadlines(join_s=1.0)
        with refusals.refused("holdings", kind) as error:
            park.run()
    assert not (folder / "live/model.safetensors").exists()
    return str(error.value)


def spoil_empty(place: Path) -> None:
    for one in list(place.rglob("*.png")):
        one.unlink()


def spoil_label(place: Path) -> None:
    (place / "Q").mkdir()
    next(place.rglob("*.png")).rename(place / "Q/x.png")


def spoil_shape(place: Path) -> None:
    for one in place.rglob("*.png"):
        Image.new("L", (30, 28)).save(one)


def spoil_colour(place: Path) -> None:
    for one in place.rglob("*.png"):
        Image.new("RGB", (28, 28)).save(one)


@pytest.mark.parametrize(
    ("spoil", "wanted"),
    [
        (spoil_empty, "contains no files"),
        (spoil_label, "Q/x.png: 'Q' is not one of"),
        (spoil_shape, r"samples of shape [1, 28, 30]; must be [1, 28, 28]"),
        (spoil_colour, r"samples of shape [3, 28, 28]; must be [1, 28, 28]"),
    ],
)
def test_a_folder_that_does_not_fit_is_named(
    tmp_path: Path, pictures: Path, spoil: Callable[[Path], None], wanted: str
) -> None:
    what = experiment(tmp_path, "fedavg", devices=DEVICES, more=f"data.path = '{pictures}'")
    copy = tmp_path / "own"
    shutil.copytree(pictures / "train", copy)
    spoil(copy / "d2")
    said = refused(tmp_path, what, lambda k: DataSource("folder", copy / f"d{k}"))
    assert "device 'd2'" in said
    assert wanted in said


X = np.zeros((3, 1, 28, 28), np.uint8)


def fails(*_: int) -> Any:
    raise ValueError("no light")


@pytest.mark.parametrize(
    ("see", "wanted"),
    [
        (fails, "at tick 0 failed: ValueError: no light"),
        (lambda *_: None, "returned NoneType; must be (x, y)"),
        (lambda *_: ([[1]], [0]), "x is list; must be a NumPy array [n, 1, 28, 28]"),
        (lambda *_: (X, [0, 1, 62]), "label 62; must be from 0 to 61"),
        (lambda *_: (X, ["0", "1", "Ä"]), "label 'Ä' is not a class"),
        (lambda *_: (X, [0.0, 1.0, 2.0]), "y is float64"),
        (lambda *_: (X, [0, 1]), "y has shape [2] for 3 samples"),
        (lambda *_: (X[..., :27], [0, 1, 2]), "x is uint8 [3, 1, 28, 27]; must be uint8 [n, 1, 28, 28]"),
        (lambda *_: (np.zeros((3, 4)), [0, 1, 2]), "x is float32 [3, 4]; must be uint8"),
    ],
)
def test_a_function_that_fails_or_returns_nonsense_is_named(
    tmp_path: Path, module: types.ModuleType, see: Callable[..., Any], wanted: str
) -> None:
    what = experiment(tmp_path, "fedavg", devices=DEVICES)
    module.see = lambda device, tick: see(device, tick) if device == 1 else (X, [0, 1, 2])  # type: ignore[attr-defined]
    said = refused(tmp_path, what, sensor)
    assert "device 'd1'" in said
    assert "sensor:see" in said
    assert wanted in said


FEW = "data.stream = { kind = 'fifo', window = 3 }"


def test_a_function_that_fails_later_loses_its_visits_alone(tmp_path: Path, module: types.ModuleType) -> None:
    def see(device: int, tick: int) -> tuple[Any, Any]:
        if (device, tick) == (1, 1):
            raise OSError("the camera is unplugged")
        return X[: 2 if (device, tick) == (2, 2) else 3], [0, 1, 2][: 2 if (device, tick) == (2, 2) else 3]

    module.see = see  # type: ignore[attr-defined]
    what = experiment(tmp_path, "fedavg", rounds=4, devices=DEVICES, more=FEW + "\nmethods.fedavg.work.batch_size = 3")
    with live(tmp_path, what, data=sensor) as park:
        lines = park.run()
    assert [line.lost for line in lines] == [0, 1, 1, 0]


def test_a_window_of_another_size_than_the_streams_is_named(tmp_path: Path, module: types.ModuleType) -> None:
    module.see = lambda *_: (X, [0, 1, 2])  # type: ignore[attr-defined]
    what = experiment(tmp_path, "fedavg", devices=DEVICES, more="data.stream = { kind = 'fifo', window = 5 }")
    assert "yields 3 samples; [data] stream window = 5" in refused(tmp_path, what, sensor)


def test_who_does_not_join_is_named(tmp_path: Path, pictures: Path) -> None:
    what = experiment(tmp_path, "fedavg", devices=DEVICES, more=f"data.path = '{pictures}'")
    with live(tmp_path, what, data=folder_of(pictures)) as park:
        park.links[3].die()
        park.deadlines = Deadlines(join_s=1.0)
        with refusals.refused("holdings-missing", RunError):
            park.run()


def test_a_device_that_comes_back_with_other_samples_is_refused_and_named(tmp_path: Path, pictures: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=4, devices=DEVICES, more=f"data.path = '{pictures}'")
    with live(tmp_path, what, data=folder_of(pictures)) as park:
        usual = park.agents[2].serve

        def attend(edge: str, payload: bytes) -> None:
            usual(edge, payload)
            if b'"visit"' in payload and b'"round":2' in payload:
                next((pictures / "train/d2").rglob("*.png")).unlink()
                park.agents[2].leave()
                park.join(2)

        park.agents[2].serve = attend  # type: ignore[method-assign]
        lines = park.run()
    assert [line.lost for line in lines] == [0, 0, 1, 1]
    edge = next(one for one in park.edges.values() if any(d.device == 2 for d in one.settings.devices))
    assert edge.channel.filter.counts()["d2"]["data"] >= 1


@pytest.mark.parametrize("second", ["second", "first"])
def test_a_new_run_trains_on_what_devices_hold_by_then(tmp_path: Path, pictures: Path, second: str) -> None:
    """In a folder that has the earlier run's name, too: devices took it for that run, and kept its samples."""
    copy = tmp_path / "copy"
    shutil.copytree(pictures, copy)
    what = experiment(tmp_path, "fedavg", rounds=1, devices=DEVICES, more=f"data.path = '{pictures}'")
    with live(tmp_path, what, data=folder_of(copy)) as park:
        park.run("first")
        before = park.agents[0].park
        taken = next(path for path in sorted((copy / "train/d0").rglob("*")) if path.is_file())
        shutil.copy(taken, taken.with_stem("taken-since"))
        (tmp_path / "first").rename(tmp_path / "away")
        assert [line.lost for line in park.run(second)] == [0]
        after = park.agents[0].park
        assert before is not None
        assert after is not None
        assert after.sizes[0] == before.sizes[0] + 1


def test_an_edge_that_is_started_again_is_told_who_holds_what(tmp_path: Path, pictures: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=3, devices=DEVICES, more=f"data.path = '{pictures}'")
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what, data=folder_of(pictures)) as park:
        edge = park.edges[0]
        usual = park.edges[0].answer
        asked = [0]

        def answer(frame: bytes) -> bytes:
            asked[0] += b'"kind":"walk"' in frame
            if asked[0] == 2:
                edge.ready = False
                asked[0] = 3
            return usual(frame)

        edge.answer = answer  # type: ignore[method-assign]
        got = park.run()
    assert asked[0] > 3
    assert [told(line) for line in got] == [told(line) for line in wanted]


def test_an_agent_says_at_once_where_there_is_nothing(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", devices=DEVICES)
    for source, wanted in (
        (DataSource("folder", tmp_path / "none"), "none does not exist"),
        (DataSource("function", name="no_such_module:see"), "no module 'no_such_module'"),
    ):
        with pytest.raises(SettingError, match=wanted):
            agent_of(device_settings(tmp_path, what, 0, 0, data=source))


@pytest.mark.slow
@needs_broker
@pytest.mark.parametrize("method", ["hierfavg", "fedsr"])
def test_real_processes_with_samples_of_their_own_are_the_simulations_bits(
    tmp_path: Path, pictures: Path, method: str
) -> None:
    what = experiment(tmp_path, method, rounds=3, devices=DEVICES, more=f"data.path = '{pictures}'\n{RINGS}")
    _, wanted = simulated(what, tmp_path / "simulated")
    with processes(tmp_path, what, data=folder_of(pictures)) as park:
        assert park.cloud().wait(240) == 0, park.logs()
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    assert [told(one) for one in ledger.read(tmp_path / "live/ledger.jsonl")] == [told(line) for line in wanted]


def test_a_devices_census_has_noise_that_the_experiment_file_does_not_reveal(tmp_path: Path, pictures: Path) -> None:
    what = experiment(tmp_path, "fedgs", devices=DEVICES, more=f"data.path = '{pictures}'\n{MORE['fedgs']}")
    what.write_text(what.read_text().replace("factories = 2", "factories = 2, census_epsilon = 0.5"))
    public = build_park(config.read(what, []))
    with live(tmp_path, what, data=folder_of(pictures)) as park:
        park.run()
        drawn = {k: agent.park.classes(k).tolist() for k, agent in park.agents.items() if agent.park}
        assert len(drawn) == DEVICES
        assert all(said != public.classes(k).tolist() for k, said in drawn.items())
        # one that is started again gives the same report: it is not taken for another, and tells no more than before
        park.links[0].die()
        assert until(lambda: all(0 not in edge.channel.connected for edge in park.edges.values()))
        park.join(0)
        assert until(lambda: all(0 in edge.channel.connected for edge in park.edges.values()))
        assert [line.lost for line in park.run("again")] == [0, 0]
        again = park.agents[0].park
        assert again is not None
        assert again.classes(0).tolist() == drawn[0]
    told = json.loads((tmp_path / "live" / "privacy.json").read_text())
    assert (told["noise"], "note" in told) == ("secret", False)
