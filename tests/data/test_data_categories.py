"""Sensors that are texts: one-hot or in an order, pooled over devices, carried to predictions and devices."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedfloor
import refusals
from commands import Command
from fedfloor.config import from_table
from fedfloor.data.files import own
from fedfloor.data.ranges import values_beyond
from fedfloor.data.reading import Columns, DeviceReading, OneHot, Reading
from fedfloor.deploy import facts
from fedfloor.deploy import own as own_of
from fedfloor.deploy.settings import DataSource, DeviceSettings, Endpoint
from fedfloor.experiment import DataSettings
from fedfloor.inference import inputs
from fedfloor.inference.inputs import table
from fedfloor.inference.trained import load_model
from fedfloor.runs.parks import build_park

BOTH: dict[str, Any] = {"material": "one-hot", "grade": ["low", "mid", "high"]}


def parts(path: Path, rows: int = 240, materials: tuple[str, ...] = ("alu", "steel", "brass")) -> Path:
    """Write rows whose class is told by texts alone: steel of a high grade cracks."""
    rng = random.Random(2)
    lines = ["device,material,heat,grade,label"]
    for n in range(rows):
        material = rng.choice(materials[: 2 + n % 2])
        grade = rng.choice(("low", "mid", "high"))
        cracks = material == "steel" and grade == "high"
        lines.append(f"m{n % 4},{material},{rng.gauss(0, 1):.2f},{grade},{'crack' if cracks else 'ok'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_values_become_columns(tmp_path: Path) -> None:
    data = own.load(parts(tmp_path / "p.csv"), Reading(columns=Columns(categories=BOTH)), 0)
    assert data.inputs.columns == ("heat", "material=alu", "material=brass", "material=steel", "grade")
    x = data.take(np.arange(len(data.y)), 0)
    assert (x[:, 1:4].sum(axis=1) == 1).all()
    assert {*x[:, 4].tolist()} == {0, 1, 2}
    cracks = (x[:, 3] == 1) & (x[:, 4] == 2)
    assert (cracks == (np.array(data.classes)[data.y] == "crack")).all()
    assert data.inputs.coding == {
        "categories": {
            "material": {"kind": "one-hot", "values": ["alu", "brass", "steel"]},
            "grade": {"kind": "ordinal", "values": ["low", "mid", "high"]},
        }
    }


def test_values_of_several_tables_are_pooled(tmp_path: Path) -> None:
    for device, materials in (("a", ("alu", "steel")), ("b", ("zinc", "brass"))):
        path = tmp_path / "d" / device / "x.csv"
        path.parent.mkdir(parents=True)
        rows = [f"{materials[n % 2]},{n},{'odd' if n % 2 else 'even'}" for n in range(20)]
        path.write_text("\n".join(["material,heat,label", *rows]) + "\n")
    data = own.load(tmp_path / "d", Reading(columns=Columns(categories={"material": "one-hot"})), 0)
    assert data.inputs.columns[1:] == tuple(f"material={name}" for name in ("alu", "brass", "steel", "zinc"))


@pytest.mark.parametrize(
    ("categories", "text"),
    [
        (
            {"grade": ["low", "mid"]},
            "unlisted",
        ),
        ({"material": OneHot(("alu", "steel"))}, "unlisted"),
        ({"matreial": "one-hot"}, "no-column"),
        ({"device": "one-hot"}, "data.columns"),
        ({"heat": "one-hot"}, "no-category"),
        ({"grade": ["low", "low"]}, "data.columns.categories"),
    ],
)
def test_refused(tmp_path: Path, categories: dict[str, Any], text: str) -> None:
    ignore = tuple(name for name in ("material", "grade") if name not in categories)
    with refusals.refused(text):
        own.load(parts(tmp_path / "p.csv", rows=400), Reading(columns=Columns(categories=categories, ignore=ignore)), 0)


def test_a_missing_text_is_missing_in_all_its_columns(tmp_path: Path) -> None:
    path = parts(tmp_path / "p.csv")
    path.write_text(path.read_text().replace(",steel,", ",,", 1))
    columns = Columns(categories=BOTH)
    with refusals.refused("missing"):  # one text, not 3 values
        own.load(path, Reading(columns=columns), 0)
    data = own.load(path, Reading(columns=columns, missing="mean"), 0)
    every = np.concatenate([data.take(np.arange(len(data.y)), 0), data.take_test(np.arange(len(data.y_test)))])
    assert np.isnan(every).sum(axis=0).tolist() == [0, 1, 1, 1, 0]


def test_a_missing_text_counts_once_in_the_note(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """240 rows of 3 columns, whatever these become: 3 texts and 1 number are missing."""
    lines = parts(tmp_path / "p.csv").read_text().splitlines()
    place = lines[0].split(",").index("material")
    heat = lines[0].split(",").index("heat")
    for row, column in ((5, place), (9, place), (20, place), (30, heat)):
        cells = lines[row].split(",")
        cells[column] = ""
        lines[row] = ",".join(cells)
    (tmp_path / "p.csv").write_text("\n".join(lines) + "\n")
    with caplog.at_level("INFO"):
        own.load(tmp_path / "p.csv", Reading(columns=Columns(categories=BOTH), missing="mean"), 0)
    assert "4 of 720 values are missing (0.56 %; of 'material' the most, 1.2 %): each is replaced" in caplog.text


def test_settings_are_read_and_recorded() -> None:
    said = {"material": "one-hot", "grade": ["low", "high"], "tool": {"kind": "one-hot", "values": ["a", "b"]}}
    found = from_table({"data": {"path": "p.csv", "columns": {"categories": said}}}).data.columns.categories
    assert found == {"material": "one-hot", "grade": ("low", "high"), "tool": OneHot(("a", "b"))}
    with refusals.refused("data.columns.categories.material"):
        from_table({"data": {"path": "p.csv", "columns": {"categories": {"material": "two-hot"}}}})
    assert "categories" not in DataSettings(path="p.csv").recipe()


@pytest.mark.parametrize("grade", ["low", ""])
def test_texts_mean_the_same_on_every_device(tmp_path: Path, grade: str) -> None:
    """Machines with one material each exchange them for the test rows: in training, both materials are well known."""
    rng = random.Random(0)
    lines = ["device,time,material,grade,heat,label"]
    for n in range(200):
        first = (n % 2 == 0) == (n < 160)
        word = grade if n == 0 else ("low", "mid", "high")[n // 2 % 3]
        material = "PET" if first else "ABS"
        label = "ok" if n % 3 else "crack"
        lines.append(f"m{n % 2},{n},{material},{word},{rng.gauss(0, 1):.2f},{label}")
    (tmp_path / "p.csv").write_text("\n".join(lines) + "\n")
    data = {"path": str(tmp_path / "p.csv"), "columns": {"categories": BOTH}, "split": {"kind": "time"}}
    what = from_table(
        {"data": data | {"normalise": "device", "missing": "mean"}, "rounds": 1, "model": {"name": "logistic"}}
    )
    park = build_park(what)
    assert values_beyond(park.dataset) == {}
    assert park.normalised is not None
    assert park.dataset.inputs.columns[1:] == ("material=ABS", "material=PET", "grade")
    for mean, deviation in park.normalised.statistics().values():
        assert mean[1:].tolist() == [0, 0, 1]
        assert deviation[1:].tolist() == [1, 1, pytest.approx((2 / 3) ** 0.5)]  # of 0, 1, 2
    x = park.samples(0)[0]
    assert {*x[:, 1].tolist()} == {0.0}
    assert {*x[:, 2].tolist()} == {1.0}
    run = fedfloor.run(what, tmp_path / "run", ranks=1)
    (tmp_path / "new.csv").write_text((tmp_path / "p.csv").read_text().replace("m1,", "m7,"))
    trained = load_model(run.folder)
    (read,) = inputs.read([tmp_path / "new.csv"], trained)
    there = np.array(read.devices) == "m7"
    assert {*read.x[there, 1].tolist()} == {0.0, 1.0}  # a new device's texts too


def test_a_device_reads_its_texts_as_the_park_does(tmp_path: Path) -> None:
    """A device that never saw brass has its column all the same; what the park never had is 0 in all of them."""
    path = tmp_path / "own.csv"
    path.write_text("device,material,heat,label\na,alu,1,ok\na,gold,2,ok\n")
    columns = Columns(categories={"material": OneHot(("alu", "brass", "steel"))})
    data = own.load(path, DeviceReading(columns=columns, classes=("crack", "ok")), 0)
    assert data.take(np.arange(2), 0)[:, 1:].tolist() == [[1, 0, 0], [0, 0, 0]]


def test_devices_are_told_the_values(tmp_path: Path) -> None:
    path = parts(tmp_path / "p.csv")
    experiment = from_table({"data": {"path": str(path), "columns": {"categories": BOTH}}})
    told = facts.of(experiment, own.load(path, experiment.data, 0))
    assert facts.read(json.loads(json.dumps(told.to_dict()))) == told
    place = tmp_path / "mine"
    place.mkdir()
    (place / "log.csv").write_text("material,heat,grade,label\nalu,1,mid,ok\ngold,2,low,ok\n")
    source = DataSource("folder", place)
    here = tmp_path / "e.toml"
    settings = DeviceSettings("p", "m1", 0, 1, Endpoint("b", 1), here, here, here, data=source, edge="e")
    park = own_of.park(settings, experiment, told)
    names = park.dataset.inputs.columns
    assert names == told.inputs.columns
    rows = [dict(zip(names, row, strict=True)) for row in park.samples(1)[0].tolist()]
    assert rows[0] == {"heat": 1, "grade": 1, "material=alu": 1, "material=brass": 0, "material=steel": 0}
    assert sum(value for name, value in rows[1].items() if "=" in name) == 0  # gold


PLAIN = ("--set", "work.lr=0.1", "--set", "work.momentum=0")


def test_new_run_predict_and_export(command: Command, caplog: pytest.LogCaptureFixture) -> None:
    parts(command.folder / "p.csv", rows=1200)
    said = command("new", "p.csv", "--set", 'data.columns.categories.grade=["low","mid","high"]')
    assert said.code == 0, said.err
    assert "'material' holds a few texts: a sensor for each (one-hot); in an order: --set" in said.err
    text = (command.folder / "p.toml").read_text()
    assert 'material = "one-hot"' in text
    ran = command("run", "p.toml", "--ranks", "1", "--out", "out", "--set", "rounds=84", *PLAIN)
    assert ran.code == 0, ran.err
    assert command("run", "p.toml", "--ranks", "1", "--out", "out", "--set", "rounds=84", *PLAIN, "--resume").code == 0
    answer = command("predict", "out", "p.csv", "--json")
    assert answer.code == 0, answer.err
    right = [one["predicted"] == one["label"] for one in answer.document["rows"]]
    assert sum(right) / len(right) > 0.95  # only the texts tell it
    (command.folder / "new.csv").write_text("material,heat,grade\nsteel,0,high\ngold,0,high\n")
    answer = command("predict", "out", "new.csv", "--json")
    assert answer.code == 0, answer.err
    assert "column 'material': texts that did not occur in training, each taken as 0 for all of" in answer.err
    assert "'gold' (1 row)" in answer.err
    assert [one["predicted"] for one in answer.document["rows"]] == ["crack", "ok"]
    (command.folder / "bad.csv").write_text("material,heat,grade\nsteel,0,huge\n")
    refused = command("predict", "out", "bad.csv")
    assert refused.code != 0
    assert "column 'grade'" in refused.err
    trained = load_model(command.folder / "out")
    assert trained.sensors is not None
    assert {"heat", "grade", "material=alu", "material=brass", "material=steel"} == {*trained.sensors.columns}
    assert table(command.folder / "new.csv", trained.sensors, trained.classes).x.shape == (2, 5)


def test_a_copy_of_the_label_is_no_category(command: Command) -> None:
    path = parts(command.folder / "p.csv")
    rows = path.read_text().splitlines()
    copied = [f"{row},{'bad' if row.endswith('crack') else 'good'}" for row in rows[1:]]
    path.write_text("\n".join([f"{rows[0]},verdict", *copied]) + "\n")
    said = command("new", "p.csv")
    assert "'verdict' holds a few texts and is ignored" in said.err
