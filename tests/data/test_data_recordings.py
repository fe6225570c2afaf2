"""A folder per device with tables, and the whole way from a folder to a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from commands import Command
from fedfloor.base.errors import SettingError
from fedfloor.data.files.own import load
from fedfloor.data.reading import Columns, Reading, Window
from fedfloor.park.build import build
from own_data import park_of, table
from refusals import refused


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLOOR_CACHE", str(tmp_path / "cache"))


def test_each_table_is_a_recording(tmp_path: Path) -> None:
    for device in ("p1", "p2"):
        for day in (10, 2):
            table(tmp_path / "data" / device / f"{day}.csv", rows=10, start=100 * day)
    data = load(tmp_path / "data", Reading(window=Window(4, 3)), 0)
    assert (data.shape, data.owned.names, data.inputs.columns) == ((2, 4), ("p1", "p2"), ("a", "b"))
    assert data.time is not None
    # day 2 has windows that end in rows 3, 6, 9; of day 10 the last 4 of the device's 20 rows are for testing
    assert data.time.tolist() == [203, 206, 209, 1003] * 2
    assert data.take_test(np.array([0]))[0].tolist() == [[6, 7, 8, 9], [12, 14, 16, 18]]


def test_factories_of_tables(tmp_path: Path) -> None:
    for factory, device in (("north", "a"), ("south", "b")):
        table(tmp_path / "data" / factory / device / "log.csv")
    park = build(load(tmp_path / "data", Reading(), 0))
    assert (park.names, park.factory_names) == (("a", "b"), ("north", "south"))


@pytest.mark.parametrize("above", ["", "north"])
def test_labels_as_folders(above: str, tmp_path: Path) -> None:
    layout = Reading(layout="factory/device/label/file" if above else "device/label/file")
    for label in ("calm", "shaking"):
        for number in range(2):
            table(tmp_path / "data" / above / "pump" / label / f"{number}.csv", rows=10, head="time,a,b")
    data = load(tmp_path / "data", layout, 0)
    assert (data.classes, data.owned.names) == (("calm", "shaking"), ("pump",))
    assert data.owned.factories == ((above,) if above else ())
    assert np.bincount(data.y_test).tolist() == [4, 4]  # the last two rows of each file, not the last files


def plant_of(root: Path, head: str = "time,a,b,label") -> Path:
    for factory in ("north", "south"):
        for number in range(2):
            table(root / factory / f"{factory}-{number}" / "log.csv", head=head)
    return root


def test_two_folders_without_a_label_column_are_read_in_two_ways(tmp_path: Path) -> None:
    """FACTORY/DEVICE was taken for DEVICE/LABEL, and the label, which has another name, for a sensor."""
    root = plant_of(tmp_path / "data", head="time,a,b,state")
    with pytest.raises(SettingError) as caught:
        load(root, Reading(), 0)
    for part in (
        "north/north-0/log.csv: two folders, and no column 'label'",
        "device/label/file: devices 'north', 'south'; labels 'north-0', 'north-1', 'south-0', … (4): "
        "--set data.layout=device/label/file.",
        "factory/device/file: factories 'north', 'south'; devices 'north-0', 'north-1', 'south-0', … (4); and the "
        "label is a column of the tables (a, b, state): --set data.layout=factory/device/file --set data.columns.",
    ):
        assert part in str(caught.value)


def test_a_layout_or_classes_say_which_way(tmp_path: Path) -> None:
    root = plant_of(tmp_path / "data", head="time,a,b")
    labels = load(root, Reading(layout="device/label/file"), 0)
    assert (labels.owned.names, len(labels.classes)) == (("north", "south"), 4)
    named = ("north-0", "north-1", "south-0", "south-1")
    assert load(root, Reading(classes=named), 0).owned.names == ("north", "south")
    with refused("no-column"):
        load(root, Reading(layout="factory/device/file"), 0)
    with refused("data.layout"):
        load(root, Reading(layout="device/file"), 0)


def test_a_label_column_settles_what_folders_are(tmp_path: Path) -> None:
    data = load(plant_of(tmp_path / "data"), Reading(), 0)
    assert (data.owned.factories, len(data.owned.names), data.classes) == (("north", "south"), 4, ("even", "odd"))
    for device in ("p", "q"):
        for label in ("calm", "shaking"):
            path = table(tmp_path / "sorted" / device / label / "log.csv")
            path.write_text(path.read_text().replace("even", label).replace("odd", label))
    data = load(tmp_path / "sorted", Reading(), 0)  # every file has its folder's name as the label
    assert (data.owned.names, data.classes) == (("p", "q"), ("calm", "shaking"))


def test_three_folders_whose_last_is_no_label(tmp_path: Path) -> None:
    for number in range(4):
        table(tmp_path / "data" / "plant" / f"line {number // 2}" / f"press {number}" / "log.csv", head="time,a,b")
    with refused("meaning-of-folders"):
        load(tmp_path / "data", Reading(), 0)


def test_tables_come_split(tmp_path: Path) -> None:
    for part, rows in (("train", 10), ("test", 4)):
        table(tmp_path / "data" / part / "p1" / "a.csv", rows=rows)
    data = load(tmp_path / "data", Reading(), 0)
    assert (len(data.y), len(data.y_test)) == (10, 4)


def broken(text: str) -> Callable[[Path], object]:
    return lambda root: (table(root / "p1" / "log.csv").parent / "log.csv").write_text(text)


def half_labelled(root: Path) -> None:
    table(root / "n" / "p" / "a.csv")
    table(root / "n" / "q" / "b.csv", head="time,a,b")


SHEETS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no label": (broken("a,b\n1,2\n"), "p1/log.csv, row 1 (the header): no column 'label'"),
    "text in a number": (broken("a,label\n1,x\nhot,y\n"), "p1/log.csv, row 3, column 'a': 'hot' is not a number"),
    "a hole": (broken("a,label\n1,x\n,y\n"), "p1/log.csv, row 3, column 'a': no value"),
    "other columns": (
        lambda root: (table(root / "p1" / "a.csv"), table(root / "p2" / "b.csv", head="a,time,label")),
        "p2/b.csv, row 1 (the header): other sensors than in p1/a.csv: 'b' missing",
    ),
    "times backwards": (
        broken("time,a,label\n2,1,x\n1,1,y\n"),
        "p1/log.csv, row 3, column 'time': device 'p1' has a later time in row 2",
    ),
    "another device": (
        broken("device,a,label\np2,1,x\n"),
        "p1/log.csv, row 2, column 'device': 'p2', but the folder is 'p1'",
    ),
    "some with a label": (half_labelled, "n/p/a.csv has a column 'label', but n/q/b.csv has none"),
    "one class": (broken("a,label\n1,x\n2,x\n"), "p1/log.csv, row 2, column 'label': 'x', as in all other rows"),
    "too few": (broken("a,label\n1,x\n2,y\n"), "p1/log.csv, row 2, column 'device': device 'p1' has 2 rows"),
    "too high": (
        lambda root: table(root / "a.csv"),
        "a.csv, row 1 (the header): no column 'device'. If each file is a device: --set data.device=file. "
        "Available: time, a, b, label. If it has another name: --set data.columns.device=NAME, and likewise label, "
        "factory and time. ",
    ),
    "one too high": (
        lambda root: (table(root / "a.csv"), table(root / "p" / "b.csv")),
        "a.csv: in the wrong place. Tables must be in",
    ),
}


@pytest.mark.parametrize("name", SHEETS)
def test_a_mistake_in_a_table_of_a_folder(name: str, tmp_path: Path) -> None:
    make, message = SHEETS[name]
    make(tmp_path / "data")
    with pytest.raises(SettingError) as caught:
        load(tmp_path / "data", Reading(), 0)
    assert message in str(caught.value)


def test_a_label_of_another_name(tmp_path: Path) -> None:
    for device in ("a", "b"):
        table(tmp_path / "data" / "hall" / device / "log.csv", head="time,a,state")
    with refused("single-class"):
        load(tmp_path / "data", Reading(columns=Columns(label="state")), 0)  # the made-up column holds "?" throughout


# -- the whole way -----------------------------------------------------------------------------------------------------

EXPERIMENT = """
rounds = 2
[data]
path = "data"
[model]
name = "logistic"
[work]
batch_size = 4
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pictures", "tables"])
def test_a_folder_trains(kind: str, command: Command) -> None:
    for device in ("p1", "p2"):
        if kind == "pictures":
            park_of(command.folder / "data" / "hall", (device,), each=20)
        else:
            table(command.folder / "data" / "hall" / device / "log.csv", rows=60)
    (command.folder / "mine.toml").write_text(EXPERIMENT)
    said = command("run", "mine.toml", "--ranks", "1", "--out", "out")
    assert said.code == 0, said.err
    assert any(name.endswith("ledger.jsonl") for name in said.new)


def test_train_and_test_that_change_places_are_other_data(tmp_path: Path) -> None:
    digests = set()
    for early, late in (("train", "test"), ("test", "train")):
        root = tmp_path / early / "data"
        table(root / early / "p" / "a.csv", start=0)
        table(root / late / "p" / "b.csv", start=100)
        digests.add(load(root, Reading(), 0).digest)
    assert len(digests) == 2


def test_sensors_that_change_names_are_other_data(tmp_path: Path) -> None:
    digests = set()
    for number, head in enumerate(("time,a,b,label", "time,c,b,label")):
        path = table(tmp_path / str(number) / "data" / "p" / "1.csv")
        path.write_text(path.read_text().replace("time,a,b,label", head))
        digests.add(load(tmp_path / str(number) / "data", Reading(), 0).digest)
    assert len(digests) == 2
