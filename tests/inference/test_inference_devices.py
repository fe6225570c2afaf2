"""Predictions name a file's device as training does: by its folder, its own name, or a column."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import fedfloor
from commands import Command, lines
from fedfloor.data.files.tree import Naming
from fedfloor.experiment import DataSettings, ModelSettings
from fedfloor.park.normalise import DeviceNormaliser
from fedfloor.parts.work import WorkSettings
from plant_tables import plant

# place of a device's table, keys of [data], names of the devices
LAYOUTS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "folders": ("{factory}/m{k}/rec1.csv", {"layout": "factory/device/file"}, ["m0", "m1", "m2", "m3"]),
    "folders of one name": (
        "{factory}/m{twin}/rec1.csv", {"layout": "factory/device/file"},
        ["north/m0", "north/m1", "south/m0", "south/m1"],
    ),
    "labels": ("m{k}/{label}/rec1.csv", {"layout": "device/label/file"}, ["m0", "m1", "m2", "m3"]),
    "files": ("m{k}_{label}.csv", {"device": "file", "file_name": "DEVICE_*"}, ["m0", "m1", "m2", "m3"]),
    "files of one name": (
        "{factory}/m{twin}.csv", {"device": "file", "factory": "folder"},
        ["north/m0", "north/m1", "south/m0", "south/m1"],
    ),
    "columns of one name": (
        "{factory}/rec{twin}.csv", {"device": "column", "factory": "folder"},
        ["north/m0", "north/m1", "south/m0", "south/m1"],
    ),
}  # fmt: skip


def recordings(folder: Path, layout: str) -> dict[str, Any]:
    """Write the plant's machines as tables of a layout, their last 40 rows under ``test``; return keys of [data]."""
    place, keys, _ = LAYOUTS[layout]
    header, *rows = plant(folder / "all.csv", machines=4).read_text().splitlines()
    for k in range(4):
        mine = [row for row in rows if row.startswith(f"m{k},")]
        for part, some in (("train", mine[:80]), ("test", mine[80:])):
            for label in ("good", "worn"):
                at = place.format(factory="north" if k < 2 else "south", k=k, twin=k % 2, label=label)
                taken = [row.split(",") for row in some if "{label}" not in place or row.endswith(label)]
                named = keys.get("device") == "column"
                labelled = "label/" not in keys.get("layout", "")
                names = [*["device"] * named, *header.split(",")[1:4], *["label"] * labelled]
                body = [[*[f"m{k % 2}"] * named, *row[1:4], *row[4:] * labelled] for row in taken]
                path = folder / "data" / part / at
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("\n".join(map(",".join, [names, *body])) + "\n")
    return {"path": str(folder / "data"), **keys}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_predictions_of_the_runs_test_recordings_are_its_evaluation(
    tmp_path: Path, layout: str, command: Command
) -> None:
    data = DataSettings(**recordings(tmp_path, layout), normalise=DeviceNormaliser())
    what = fedfloor.Experiment(
        data=data, model=ModelSettings("logistic"), work=WorkSettings(batch_size=8, lr=0.05), rounds=3
    )
    run = fedfloor.run(what, tmp_path / "run", ranks=1)
    known = json.loads((run.folder / "normalisation.json").read_text())["devices"]
    assert list(known) == LAYOUTS[layout][2]
    table = tmp_path / "answers.csv"
    said = command("predict", *map(str, (run.folder, tmp_path / "data/test", "--csv", table)))
    assert said.code == 0
    assert "no statistics in the run" not in said.err
    rows = list(csv.DictReader(table.open()))
    assert sorted({row["device"] for row in rows}) == LAYOUTS[layout][2]
    labels = [row["label"] or Path(row["file"]).parent.name for row in rows]
    right = sum(row["predicted"] == label for row, label in zip(rows, labels, strict=True))
    assert right / len(rows) == lines(run.folder)[-1]["accuracy"]


def test_a_file_that_lies_elsewhere(tmp_path: Path, command: Command) -> None:
    data = DataSettings(**recordings(tmp_path, "folders"), normalise=DeviceNormaliser())
    what = fedfloor.Experiment(data=data, model=ModelSettings("logistic"), rounds=1)
    run = fedfloor.run(what, tmp_path / "run", ranks=1)
    (tmp_path / "new").mkdir()
    taken = tmp_path / "data/test/north/m1/rec1.csv"
    (tmp_path / "new/rec.csv").write_text(taken.read_text())
    lost = command("predict", *map(str, (run.folder, tmp_path / "new/rec.csv", "--json")))
    assert "new/rec.csv: device 'new': no statistics in the run" in lost.err
    told = command("predict", *map(str, (run.folder, tmp_path / "new/rec.csv", "--json", "--device", "m1")))
    there = command("predict", *map(str, (run.folder, taken, "--json")))
    assert [row["probability"] for row in json.loads(told.out)["rows"]] == [
        row["probability"] for row in json.loads(there.out)["rows"]
    ]
    assert [row["device"] for row in json.loads(told.out)["by_device"]] == ["m1"]
    header, *rows = taken.read_text().splitlines()
    pair = [f"{header},device", *(f"{row},m{place % 2}" for place, row in enumerate(rows))]
    (tmp_path / "new/pair.csv").write_text("\n".join(pair) + "\n")
    several = command("predict", *map(str, (run.folder, tmp_path / "new/pair.csv", "--device", "m1")))
    assert "pair.csv: rows of 2 devices (m0, m1); all are treated as rows of 'm1'" in several.err
    two = command("predict", *map(str, (run.folder, tmp_path / "data/test/north", "--device", "m1")))
    assert two.code == 2
    assert "--device m1: requires a single file, but 2 are given" in two.err


def test_a_file_whose_name_is_of_another_form_is_of_no_device() -> None:
    assert Naming("file", file_name="DEVICE_*").devices(Path("rec.csv"), None, 2) is None
    assert Naming("file", file_name="DEVICE_*").devices(Path("rec.csv"), ["a", "b"], 2) == ["a", "b"]
