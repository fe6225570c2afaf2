"""Each device normalised by its own rows: by hand, on every engine, in predictions, ONNX and on real machines."""

from __future__ import annotations

import csv
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedfloor
from commands import lines
from fedfloor import config
from fedfloor.data.reading import DeviceSplit, TimeSplit, Window
from fedfloor.deploy import facts
from fedfloor.deploy.settings import DataSource
from fedfloor.experiment import EngineSettings, EvaluateSettings, MethodSettings
from fedfloor.inference import inputs
from fedfloor.inference.answers import Classified, answers_of, results
from fedfloor.inference.trained import load_model
from fedfloor.park.build import build
from fedfloor.park.normalise import DeviceNormaliser, first_rows, mean_and_deviation, prepared, scaled, statistics
from fedfloor.park.partition import Iid
from fedfloor.runs import launch
from fedfloor.runs.orders import Limits, Orders
from fedfloor.runs.parks import build_park, load_data
from live_park import experiment as live_experiment
from live_park import live, simulated
from plant_tables import experiment, plant
from refusals import refused

ALL = DeviceNormaliser()
FIRST = DeviceNormaliser(rows=30)
NEW = DeviceSplit(test=0.4)


def test_the_statistics_of_overlapping_windows_are_those_of_their_rows() -> None:
    rows = np.array([[1, 10], [2, 20], [4, np.nan], [5, 30]], np.float32)
    windows = np.stack([rows[i : i + 2].T for i in range(3)])
    assert np.array_equal(first_rows(windows, np.arange(3), None), rows, equal_nan=True)
    assert np.array_equal(first_rows(windows[::-1], np.arange(3)[::-1], 3), rows[:3], equal_nan=True)
    mean, deviation = statistics(windows, np.arange(3), None)
    # means 12/4 and 60/3; squared deviations 4+1+1+4 and 100+0+100
    assert np.allclose(mean, [3, 20])
    assert np.allclose(deviation, [np.sqrt(10 / 4), np.sqrt(200 / 3)])
    assert np.allclose(statistics(windows, np.arange(3), 2), [[1.5, 15], [0.5, 5]])


def test_a_constant_sensor_is_centred_and_one_without_a_value_is_nothing() -> None:
    x = np.array([[7, np.nan], [7, np.nan], [9, 5]], np.float32)
    found = scaled(x, *statistics(x, None, 2))
    assert found[2].tolist() == [2, pytest.approx(0, abs=1e-30)]


@pytest.mark.parametrize("window", [None, Window(6, 2), Window(4)])
@pytest.mark.parametrize("part", [ALL, FIRST])
def test_every_device_has_mean_0_and_deviation_1_in_its_own_rows(
    tmp_path: Path, part: DeviceNormaliser, window: Window | None
) -> None:
    park = build_park(experiment(plant(tmp_path / "floor.csv"), part, window=window))
    raw = build_park(experiment(tmp_path / "floor.csv", "unit", window=window))
    assert park.normalised is not None
    for k in range(park.devices):
        x = park.samples(k)[0]
        (stored, _) = raw.samples(k)
        first = None if raw.dataset.first is None else raw.dataset.first[raw.indices[k]]
        rows = first_rows(x, first, part.rows)
        assert len(rows) == 30 if part.rows else len(rows) > 60
        assert np.allclose(rows.mean(axis=0), 0, atol=1e-4)
        assert np.allclose(rows.std(axis=0), 1, atol=1e-4)
        assert np.array_equal(park.normalised.apply(stored, k), x)
    assert np.array_equal(park.pooled()[0], np.concatenate([park.samples(k)[0] for k in range(park.devices)]))
    mean, deviation = park.normalised.statistics()["m3"]
    test, y = park.test()
    stored = raw.test()[0]
    assert np.array_equal(test[park.test_devices == 3], scaled(stored[park.test_devices == 3], mean, deviation))
    assert np.array_equal(y, raw.test()[1])


def test_a_new_device_is_normalised_by_its_own_first_rows_whatever_its_labels(tmp_path: Path) -> None:
    table = plant(tmp_path / "floor.csv")
    park, raw = (build_park(experiment(table, part, NEW, Window(6, 2))) for part in (FIRST, "unit"))
    strangers = sorted({*np.unique(raw.dataset.owner_test).tolist()})  # type: ignore[arg-type]
    assert len(strangers) == 2
    for owner in strangers:
        mine = np.flatnonzero(raw.dataset.owner_test == owner)
        rows = np.array([[float(row["temp"]), float(row["torque"])] for row in csv.DictReader(table.open())
                         if row["device"] == f"m{owner}"][:30], np.float32)  # fmt: skip
        expected = scaled(raw.test(mine)[0], *statistics(rows, None, None))
        assert np.allclose(park.test(mine)[0], expected, atol=1e-5)
    text = table.read_text().replace("good", "x").replace("worn", "good").replace("x", "worn")
    table.write_text(text)
    assert np.array_equal(build_park(experiment(table, FIRST, NEW, Window(6, 2))).test()[0], park.test()[0])


def test_levels_and_ranges_of_machines_do_not_matter(tmp_path: Path) -> None:
    """The identity that makes it worth having: a machine's own units change nothing but roundings."""
    table = plant(tmp_path / "floor.csv")
    before = build_park(experiment(table, "device"))
    rows = list(csv.DictReader(table.open()))
    for row in rows:
        row["temp"] = str(float(row["temp"]) * 1.8 + 32) if row["device"] == "m1" else row["temp"]
    with table.open("w") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    after = build_park(experiment(table, "device"))
    assert np.allclose(before.pooled()[0], after.pooled()[0], atol=1e-4)
    assert np.allclose(before.test()[0], after.test()[0], atol=1e-4)


def test_it_finds_what_one_scale_for_all_hides(tmp_path: Path) -> None:
    plant(tmp_path / "floor.csv")
    accuracy = {}
    for name, kind in (("own", FIRST), ("alike", "standard")):
        what = experiment(tmp_path / "floor.csv", kind, NEW, rounds=20)
        accuracy[name] = lines(fedfloor.run(what, tmp_path / name, ranks=1).folder)[-1]["accuracy"]
    assert accuracy["own"] > 0.85
    assert accuracy["alike"] < 0.65


# -- every engine ------------------------------------------------------------------------------------------------------


def ledger(folder: Path) -> tuple[list[dict[str, Any]], bytes]:
    return lines(folder), (folder / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedsr", "fedgs", "centralized"])
def test_ranks_and_a_resume_are_the_same_bits(tmp_path: Path, method: str) -> None:
    what = experiment(plant(tmp_path / "floor.csv"), FIRST, NEW, Window(6, 2), method=MethodSettings(method))
    for ranks in (1, 2):
        launch.start(what, Orders(tmp_path / f"{ranks}"), ranks, lambda line: None, build_park(what))
    assert ledger(tmp_path / "1") == ledger(tmp_path / "2")
    launch.start(what, Orders(tmp_path / "cut", limits=Limits(1)), 1, lambda line: None, build_park(what))
    launch.start(what, Orders(tmp_path / "cut", resume=True), 1, lambda line: None, build_park(what))
    assert ledger(tmp_path / "cut") == ledger(tmp_path / "1")
    statistics = [(tmp_path / name / "normalisation.json").read_bytes() for name in ("1", "2", "cut")]
    assert len(set(statistics)) == 1


@pytest.mark.parametrize("engine", [EngineSettings(shortcuts="off"), EngineSettings(kind="cohort")])
@pytest.mark.parametrize("method", ["fedavg", "fedgs"])
def test_shortcuts_and_cohorts_train_on_the_same_samples(tmp_path: Path, method: str, engine: EngineSettings) -> None:
    table = plant(tmp_path / "floor.csv", holes=True)
    for name, how in (("plain", EngineSettings(kind="ranks")), ("other", engine)):
        what = experiment(table, ALL, missing="mean", engine=how, method=MethodSettings(method))
        fedfloor.run(what, tmp_path / name, ranks=1)
    plain, other = (lines(tmp_path / name) for name in ("plain", "other"))
    for one, two in zip(plain, other, strict=True):
        assert one["loss"] == pytest.approx(two["loss"], abs=1e-4)
        assert one["train_loss"] == pytest.approx(two["train_loss"], abs=1e-4)


def test_validation_samples_are_normalised_by_the_training_rows_that_are_left(tmp_path: Path) -> None:
    plant(tmp_path / "floor.csv")
    what = experiment(tmp_path / "floor.csv", ALL, evaluate=EvaluateSettings(on="validation", validation=0.2))
    park = build_park(what)
    assert park.normalised is not None
    rows = park.samples(2)[0]
    assert np.allclose(rows.mean(axis=0), 0, atol=1e-4)
    assert park.test_samples == 5 * round(0.2 * 96)
    assert not np.allclose(park.test()[0].mean(axis=0), 0, atol=1e-3)


# -- prediction --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [TimeSplit(), NEW])
@pytest.mark.parametrize("window", [None, Window(6, 2)])
def test_predictions_are_the_evaluations(tmp_path: Path, window: Window | None, split: TimeSplit | DeviceSplit) -> None:
    """The whole table holds every test sample; each is answered as the run's evaluation answers it."""
    table = plant(tmp_path / "floor.csv", holes=True)
    what = experiment(table, FIRST, split, window, missing="mean")
    run = fedfloor.run(what, tmp_path / "run", ranks=1)
    trained = load_model(run.folder)
    park = build_park(what)
    x, y = park.test()
    wanted = trained.outputs(x)[0].numpy()
    assert float((wanted.argmax(1) == y).mean()) == lines(run.folder)[-1]["accuracy"]
    (read,) = inputs.read([table], trained)
    known = {sample.tobytes(): row for sample, row in zip(read.x, trained.outputs(read.x)[0].numpy(), strict=True)}
    assert all(np.allclose(known[sample.tobytes()], row, atol=1e-6) for sample, row in zip(x, wanted, strict=True))
    raw = load_data(what).take_test(np.arange(len(y)))
    mine = park.dataset.owner_test == 1
    if mine.any():
        assert np.allclose(trained.predict(raw[mine], device="m1"), wanted[mine], atol=1e-6)  # batches differ


def test_a_machine_that_the_run_does_not_know_is_normalised_by_its_own_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = plant(tmp_path / "floor.csv", machines=6)
    held = [row for row in table.read_text().splitlines() if row.startswith("m5,")]
    rows = [row for row in table.read_text().splitlines() if not row.startswith("m5,")]
    (tmp_path / "old.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "new.csv").write_text("\n".join([rows[0], *held]) + "\n")
    (tmp_path / "short.csv").write_text("\n".join([rows[0].split(",", 1)[1], *(r.split(",", 1)[1] for r in held[:9])]))
    run = fedfloor.run(experiment(tmp_path / "old.csv", FIRST, rounds=20), tmp_path / "run", ranks=1)
    trained = load_model(run.folder)
    with caplog.at_level(logging.INFO):
        found = results(trained, answers_of(trained, inputs.read([tmp_path / "new.csv"], trained)))
    assert isinstance(found, Classified)
    assert np.mean([one.label == one.best[0][0] for one in found.predictions]) > 0.85
    assert "device 'm5': no statistics in the run, therefore normalised by its first 30 rows" in caplog.text
    with caplog.at_level(logging.INFO):
        results(trained, answers_of(trained, inputs.read([tmp_path / "short.csv"], trained)))
    assert (
        "short.csv: the device has 9 rows for its normalisation; in training, devices were normalised by 30."
        in caplog.text
    )
    stored = json.loads((run.folder / "normalisation.json").read_text())
    assert list(stored["devices"]) == [f"m{k}" for k in range(5)]
    stored["devices"]["m0"]["deviation"][0] = 0
    (run.folder / "normalisation.json").write_text(json.dumps(stored))
    with refused("damaged-normalisation"):
        load_model(run.folder)
    (run.folder / "normalisation.json").write_text("{}")
    with refused("damaged-model"):
        load_model(run.folder)


def test_onnx_takes_the_statistics_of_the_device_it_runs_on(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from fedfloor.inference.onnx import export

    what = experiment(plant(tmp_path / "floor.csv", holes=True), FIRST, None, Window(6, 2), missing="mean")
    run = fedfloor.run(what, tmp_path / "run", ranks=1)
    trained = load_model(run.folder)
    park = build_park(what)
    export(trained, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["normalise"]) == {"kind": "device", "rows": 30}
    stored = json.loads((run.folder / "normalisation.json").read_text())["devices"]
    raw = load_data(what).take_test(np.arange(park.test_samples))
    for k in range(park.devices):
        mine = park.test_devices == k
        mean, std = (np.array(stored[f"m{k}"][key], np.float32) for key in ("mean", "deviation"))
        probabilities, _ = session.run(None, {"x": raw[mine], "mean": mean, "std": std})
        assert np.allclose(probabilities, trained.outputs(park.test()[0][mine])[0].numpy(), atol=1e-5)


# -- real machines -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "partition"])
def test_real_devices_keep_their_statistics_and_train_the_simulations_bits(tmp_path: Path, kind: str) -> None:
    table = plant(tmp_path / "all.csv", machines=4)
    header, *rows = table.read_text().splitlines()
    for k in range(4):
        mine = [row for row in rows if row.startswith(f"m{k},")][:90]  # the rest is for testing
        (tmp_path / f"{k}.csv").write_text("\n".join([header, *mine]) + "\n")
    more = f"data.path = '{table}'\ndata.split = {{ kind = 'time', test = 0.25 }}\n"
    more += "data.normalise = { kind = 'device', rows = 30 }\n"
    what = live_experiment(tmp_path, "fedavg", devices=4, more=more)
    simulated(what, tmp_path / "simulated")
    sources = {"folder": lambda k: DataSource("folder", tmp_path / f"{k}.csv"), "partition": lambda k: None}
    with live(tmp_path, what, **({"data": sources[kind]} if kind == "folder" else {})) as park:
        park.run()
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    assert (tmp_path / "live/normalisation.json").exists() == (kind == "partition")


def test_a_device_sends_no_sums(tmp_path: Path) -> None:
    what = experiment(plant(tmp_path / "floor.csv"), "device")
    known = facts.of(what, load_data(what))
    assert not known.sums
    assert facts.holding(build_park(what), 0, known).sums == ()


# -- refused -----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    table = plant(tmp_path / "floor.csv")
    with refused("data.normalise"):
        build_park(experiment(table, "device", NEW))
    with refused("data.normalise"):
        prepared(build(load_data(experiment(table, "unit")), devices=3, partition=Iid()), "device")
    with refused("data.normalise"):
        prepared(build("labels", devices=2, samples_per_device=10), "device")
    with refused("unknown normalisation"):
        prepared(build_park(experiment(table, "unit")), "devise")  # type: ignore[arg-type]
    with refused("not-normalised"):
        mean_and_deviation(build_park(experiment(table, "unit")), "device")
    with refused("data.normalise"):
        mean_and_deviation(build_park(experiment(table, "unit")), "symmetric")
    with refused("data.normalise.rows"):
        config.from_table({"data": {"normalise": {"kind": "device", "rows": 1}}})
    with refused("unknown-key"):
        config.from_table({"data": {"normalise": {"kind": "device", "row": 9}}})


def test_it_stands_in_an_experiment_file_and_comes_back(tmp_path: Path) -> None:
    for given in ("device", FIRST):
        what = experiment(tmp_path / "floor.csv", given)  # type: ignore[arg-type]
        for text in (config.brief(what), config.resolved(what)):
            (tmp_path / "again.toml").write_text(text)
            assert config.read(tmp_path / "again.toml").data.normalise == given
