"""Data in forms that are not read: each is refused with lines that convert it, which are run here."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import refusals
from commands import Command
from conversions_run import convert, refused
from fedfloor.data.files import own
from fedfloor.data.files.conversions import ConversionError, check
from fedfloor.data.reading import Columns, RandomSplit, Reading
from fedfloor.drafting.draft import draft
from fedfloor.tasks.reconstruction import Reconstruction
from own_data import park_of, picture, table

pytestmark = pytest.mark.usefixtures("empty_folder")

SENSORS = ("temp", "press", "vib")


def rows(path: str, cells: Sequence[Sequence[object]], delimiter: str = ",") -> Path:
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows(cells)
    return place


def at(minute: int) -> str:
    return (datetime(2026, 1, 1) + timedelta(minutes=minute)).isoformat(" ")


# -- columns for each machine ------------------------------------------------------------------------------------------


def widened(names: list[str]) -> None:
    rows = "".join(f"2026-03-01 06:{n:02},{','.join(str(100 * k + n) for k in range(len(names)))}\n" for n in range(40))
    Path("wide.csv").write_text(f"time,{','.join(names)}\n{rows}")


@pytest.mark.parametrize("mark", [".", "_", " "])
def test_columns_of_machines_become_rows(mark: str) -> None:
    widened([f"P{machine}{mark}{sensor}" for machine in (1, 2, 10) for sensor in ("temp", "flow_in")])
    with refusals.refused("conversion") as caught:
        draft(Path("wide.csv"), Path("x.toml"), [])
    if convert(str(caught.value)):
        pandas = pytest.importorskip("pandas")
        table = pandas.read_csv("wide-rows.csv").set_index(["device", "time"])
        assert table.loc[("P2", "2026-03-01 06:07")].to_dict() == {"temp": 207, "flow_in": 307}
        assert len(table) == 3 * 40
        task = ["data.task=reconstruction"]
        assert draft(Path("wide-rows.csv"), Path("x.toml"), task).park.names == ("P1", "P2", "P10")


@pytest.mark.parametrize("names", [["accel_x", "accel_y", "gyro_x", "gyro_y"], ["P1.temp", "P1.flow"], ["t1", "t2"]])
def test_sensors_of_one_machine_are_no_machines(names: list[str]) -> None:
    widened(names)
    with refusals.refused("no-column"):
        draft(Path("wide.csv"), Path("x.toml"), [])


# -- a row per sensor and time -----------------------------------------------------------------------------------------

LONG = [("timestamp", "tag", "value")] + [(at(i), tag, i + n) for i in range(40) for n, tag in enumerate(SENSORS)]
OF_MACHINES = [("machine", "timestamp", "sensor", "value", "state")] + [
    (machine, at(i), sensor, i + n, "ok" if i % 2 else "bad")
    for machine in "AB" for i in range(40) for n, sensor in enumerate(SENSORS)
]  # fmt: skip


def test_a_row_per_sensor_and_time_is_refused() -> None:
    message = refused(rows("long.csv", LONG))
    assert "'tag' names the sensor, and 'value' holds the values of all sensors" in message
    assert "--set data.columns.device=tag" in message
    if convert(message):
        wide = Path("long-wide.csv").read_text(encoding="utf-8").splitlines()
        assert wide[:2] == ["timestamp,temp,press,vib", f"{at(0)},0,1,2"]
        assert len(wide) == 41


def test_machines_and_labels_stay_columns() -> None:
    message = refused(rows("long.csv", OF_MACHINES))
    assert 'index=["machine", "timestamp", "state"]' in message
    if convert(message):
        assert draft(Path("long-wide.csv"), Path("x.toml"), ["data.sort=true"]).park.devices == 2


def test_sensors_with_numbers_are_refused_beside_a_label() -> None:
    cells = [(device, i, sensor, i + sensor, "ok" if i % 2 else "bad")
             for device in "AB" for i in range(40) for sensor in (1, 2, 3)]  # fmt: skip
    names = ("device", "time", "sensor_id", "value", "label")
    assert "'sensor_id' names the sensor" in refused(rows("long.csv", [names, *cells]))
    rows("folder/A/long.csv", [names[1:], *(cell[1:] for cell in cells[:120])])
    table(Path("folder/B/wide.csv"), head="device,time,a,b,label")
    refused("folder")
    for _ in range(2):  # what is refused is not kept
        with refusals.refused("conversion", ConversionError):
            own.load(Path("long.csv"), Reading(split=RandomSplit()), 0)


def test_an_archive_of_wincc() -> None:
    tags = ("Kessel_Temp", "Kessel_Druck", "Pumpe_Ein")
    lines = ['"VarName";"TimeString";"VarValue";"Validity";"Time_ms"']
    for i in range(40):
        moment = datetime(2026, 3, 2) + timedelta(seconds=10 * i)
        lines += [f'"{tag}";"{moment:%d.%m.%Y %H:%M:%S}";{i}{n},5;1;{46083e6 + i:.6f}' for n, tag in enumerate(tags)]
    lines.append('"$RT_OFF$";"02.03.2026 08:00:00";0;2;46083333333,333333')
    Path("log.csv").write_text("\r\n".join(lines).replace(".000000", ",000000"), encoding="utf-16")
    if convert(refused("log.csv")):
        wide = list(csv.reader(Path("log-wide.csv").read_text(encoding="utf-8").splitlines()))
        assert wide[:2] == [["TimeString", *tags], ["02.03.2026 00:00:00", "00,5", "01,5", "02,5"]]
        assert len(wide) == 41


def test_channels_of_an_oscilloscope_with_times_of_their_own() -> None:
    names = ("Axis.Torque", "Axis.Velocity", "Axis.State")
    above = ["Name\tProject\t\t", "File\tC:\\a.svdx", "Start\t1330\t2022-06-18 10:00:00", ""]
    channels = ["\t".join(f"{key}\t{value or name}" for name in names) for key, value in (("Name", ""), ("Port", "x"))]
    body = ["\t".join(f"{i}\t{i}.{n}" for n in range(3)) for i in range(40)]
    Path("scope.csv").write_text("\n".join([*above, *channels, "", *body, ""]))
    message = refused("scope.csv")
    assert "3 channels" in message
    if convert(message):
        wide = list(csv.reader(Path("scope-wide.csv").read_text(encoding="utf-8").splitlines()))
        assert wide[:2] == [["time", *names], ["0", "0.0", "0.1", "0.2"]]
        assert len(wide) == 41


WRITTEN = {
    "other words": ([("Zeit", "Messgröße", "Wert"), *LONG[1:]], 'columns="Messgröße", values="Wert"'),
    "numbers for sensors": (
        [("time", "sensor_id", "value", "quality")] + [(at(i), n, i * n, 192) for i in range(40) for n in (1, 2, 3)],
        'index=["time"], columns="sensor_id"',
    ),
    "a unit, which is no device": (
        [(*LONG[0], "unit"), *((*row, "bar") for row in LONG[1:])],
        'index=["timestamp"]',
    ),
    "only the values named": ([("timestamp", "what", "value"), *LONG[1:]], 'columns="what"'),
    "only the sensors named": ([("timestamp", "tag", "amount"), *LONG[1:]], 'values="amount"'),
    "a date and a time of day": (
        [("Date", "Time", "tag", "value")] + [(*str(row[0]).split(" "), *row[1:]) for row in LONG[1:] * 2],
        'index=["Time", "Date"]' ,
    ),
    "something else that tells rows apart": (
        [("time", "lane", "tag", "value")] + [(row[0], lane, *row[1:]) for row in LONG[1:] for lane in ("L1", "L2")],
        'index=["time", "lane"]',
    ),
}  # fmt: skip


@pytest.mark.parametrize(("cells", "words"), WRITTEN.values(), ids=WRITTEN)
def test_rows_per_sensor_are_known(cells: Sequence[Sequence[object]], words: str) -> None:
    if "Date" in cells[0]:
        cells = [cells[0], *((f"2026-01-0{1 + i % 2}", *row[1:]) for i, row in enumerate(cells[1:]))]
    assert words in refused(rows("long.csv", cells))


OTHERS = {
    "a device of one sensor": [("machine", "timestamp", "temperature", "state")]
    + [(machine, at(i), i, "ok" if i % 2 else "bad") for machine in "AB" for i in range(40)],
    "a category beside the values": [("machine", "timestamp", "operator", "value", "state")]
    + [(machine, at(i), "xy"[i % 2], i, "ok" if i % 2 else "bad") for machine in "AB" for i in range(40)],
    "a row that is longer": [*LONG, (at(99), "temp", 1, 2)],
    "a name that is given twice": [("timestamp", "tag", "value", "value"), *((*row, 1) for row in LONG[1:])],
    "a text for each row": [("timestamp", "tag", "value")] + [(at(i), f"message {i}", i) for i in range(40)],
}


@pytest.mark.parametrize("cells", OTHERS.values(), ids=OTHERS)
def test_other_tables_are_not_taken_for_rows_per_sensor(cells: Sequence[Sequence[object]]) -> None:
    check(rows("table.csv", cells), {})
    with refusals.refused("conversion", ConversionError):
        check(rows("long.csv", LONG), {})


def test_a_sensors_column_that_is_stated_is_not_doubted() -> None:
    path = rows("long.csv", LONG)
    for columns in ({"device": "tag"}, {"ignore": ["tag"]}, {"categories": {"tag": "one-hot"}}):
        check(path, {"columns": columns})
    reading = Reading(columns=Columns(device="tag", label="", time="timestamp"), task="forecasting")
    with refusals.refused("data.task"):  # what it lacks then
        own.load(path, reading, 0)


def test_how_a_table_is_written_stands_in_the_lines() -> None:
    text = "\n".join(";".join(map(str, row)) for row in [("Zeit", "Messgröße", "Wert"), *LONG[1:]])
    Path("long.csv").write_bytes(f"Anlage 7\n\n{text}\n".encode("cp1252"))
    message = refused("long.csv")
    assert 'pandas.read_csv("long.csv", dtype=str, keep_default_na=False, sep=";", encoding="cp1252"' in message
    assert "skiprows=[0]" in message
    parquet.write_table(pa.table(dict(zip(LONG[0], zip(*LONG[1:], strict=True), strict=True))), "long.parquet")
    assert 'pandas.read_parquet("long.parquet")' in refused("long.parquet")


HEAD = (
    "#group,false,false,true,true,false,false,true,true\n#datatype,string,long,dateTime:RFC3339,dateTime:RFC3339,"
    "dateTime:RFC3339,double,string,string\n#default,_result,,,,,,,\n,result,table,_start,_stop,_time,_value,_field,machine\n"
)  # fmt: skip


@pytest.mark.parametrize("last", ["defect", "label"])
def test_a_label_in_several_columns_is_one_label(last: str) -> None:
    faults = ["scratch", "stain", last]
    cells = [[k, 1.5 * k, k % 2, *(int(k % 3 == i) for i in range(3))] for k in range(9)]
    rows("plates.csv", [["machine", "thickness", "steel", *faults], *cells])
    message = refused("plates.csv", columns={})
    assert f"of the 3 columns scratch, stain, {last} exactly one is 1" in message
    assert f"With '{last}' as the label" in message
    if convert(message):
        made = list(csv.DictReader(Path("plates-labelled.csv").read_text().splitlines()))
        assert [*made[0]] == ["machine", "thickness", "steel", "label"]
        assert [row["label"] for row in made[:4]] == ["scratch", "stain", last, "scratch"]
    check(Path("plates.csv"), {"columns": {"label": last}})


def test_columns_of_flags_that_are_1_together_are_sensors() -> None:
    rows("plates.csv", [["machine", "a", "b", "defect"], *([k, k % 2, 1, 1 - k % 2] for k in range(9))])
    check(Path("plates.csv"), {})


@pytest.mark.parametrize("flags", [(1, 0, 0), (0, 0, 1)])
def test_columns_of_flags_that_never_change_are_no_label(flags: tuple[int, ...]) -> None:
    rows("pumps.csv", [["machine", "running", "door", "failure"], *([k % 3, *flags] for k in range(9))])
    check(Path("pumps.csv"), {})


def test_names_of_channels_are_no_pairs() -> None:
    rows("plc.csv", [["time", "1:1", "1:2"], *([k, 2.5 * k, k % 2] for k in range(9))])
    check(Path("plc.csv"), {})


def test_pairs_of_index_and_value_become_columns() -> None:
    Path("gas.dat").write_text("3 1:1.5 2:-2e-3\n1 2:7 # a comment\n\n")
    message = refused("gas.dat")
    assert "LIBSVM" in message
    if convert(message):
        assert Path("gas-columns.csv").read_text() == "label,x1,x2\n3,1.5,-2e-3\n1,0,7\n"


def test_many_columns_without_names_are_named() -> None:
    Path("secom.data").write_text("\n".join(" ".join(f"{i * k % 7}.{i}" for i in range(1, 60)) for k in (1, 2, 3)))
    message = refused("secom.data")
    assert "no names of its 59 columns" in message
    if convert(message):
        assert Path("secom-named.csv").read_text().splitlines()[0] == ",".join(f"c{i}" for i in range(1, 60))


@pytest.mark.parametrize("annotated", [True, False])
def test_influxdb_has_a_row_per_field(annotated: bool) -> None:
    text = ""
    for number, (machine, field) in enumerate((machine, field) for machine in "AB" for field in SENSORS):
        text += HEAD if number % 3 == 0 and (annotated or not text) else ""
        for i in range(30):
            time = f"2026-01-01T00:00:00Z,2026-02-01T00:00:00Z,{at(i).replace(' ', 'T')}Z"
            text += f",,{number},{time},{i + 0.5},{field},{machine}\n"
    Path("plant.csv").write_text(text if annotated else re.sub("(?m)^#.*\n", "", text), encoding="utf-8")
    message = refused("plant.csv")
    assert ("annotated CSV of InfluxDB" if annotated else "a row per sensor and time") in message
    if convert(message):
        wide = Path("plant-wide.csv").read_text(encoding="utf-8").splitlines()
        assert {*wide[0].split(",")} == {"_time", "machine", *SENSORS}
        assert len(wide) == 61


# -- folders -----------------------------------------------------------------------------------------------------------


def test_partitions_are_one_table() -> None:
    for month in ("01", "02"):
        for machine in "AB":
            table(Path(f"plant/year=2026/month={month}/machine={machine}/part-0.csv"), start=100 * int(month))
    message = refused("plant")
    assert "folders such as 'year=2026' are partitions of one table" in message
    assert 'drop_columns(["year", "month"])' in message
    assert convert(message)
    park = draft(Path("plant.parquet"), Path("x.toml"), ["data.sort=true"]).park
    assert sorted(park.names) == ["A", "B"]
    check(Path("plant"), {"device": "column"})  # the folders are stated to be none


def test_a_file_per_moment_is_no_device() -> None:
    x = np.random.default_rng(0).normal(size=(12, 50, 3))
    for number, snapshot in enumerate(x):
        Path("test 2").mkdir(exist_ok=True)
        np.savetxt(f"test 2/2004.02.12.10.{number:02}.39", snapshot, delimiter="\t")
    message = refused("test 2")
    assert "12 files are named by moments (2004.02.12.10.00.39, …): recordings of one device, and no devices" in message
    assert 'pandas.read_csv(file, sep="\\t", header=None)' in message
    assert "fedfloor new 'test 2.csv' --set data.time_format=%Y.%m.%d.%H.%M.%S" in message
    if convert(message):
        head, first, *_ = csv.reader(Path("test 2.csv").read_text(encoding="utf-8").splitlines())
        assert head[:2] == ["time", "deviation 0"]
        assert first[0] == "2004.02.12.10.00.39"
        assert float(first[1]) == pytest.approx(x[0, :, 0].std(ddof=1))


def test_tables_of_moments_are_recordings_in_a_devices_folder() -> None:
    for day in range(1, 5):
        table(Path(f"plant/2026-01-0{day}.csv"), start=100 * day)
        table(Path(f"days/2026-01-0{day}.csv"), head="machine,time,a,b,label", start=100 * day)
    message = refused("plant")
    assert "data.time_format" not in message  # such dates are read
    refused("plant", device="file")
    check(Path("days"), {})  # a column names the device
    shutil.move("plant", "plant-1")
    for device in "AB":
        shutil.copytree("plant-1", f"plant/{device}")
    assert own.load(Path("plant"), Reading(), 0).owned.names == ("A", "B")
    own.load(Path("plant-1"), Reading(), 0, "A")  # all files are of one device


def mvtec(root: Path) -> None:
    for n in range(8):
        picture(root / "train" / "good" / f"{n}.png", n)
        picture(root / "test" / "good" / f"{n}.png", 20 + n)
        picture(root / "test" / "broken" / f"{n}.png", 40 + n)
        picture(root / "ground_truth" / "broken" / f"{n}_mask.png", 60 + n)


def test_parts_of_devices_are_no_devices() -> None:
    for category in ("bottle", "cable"):
        mvtec(Path("mvtec", category))
    Path("mvtec/license.txt").write_text("as is", encoding="utf-8")
    message = refused("mvtec")
    assert "'train' and 'test' in bottle are parts for training and testing and no devices" in message
    assert "All samples of 'train' have the label 'good'" in message
    assert "Left out: 'ground_truth'" in message
    assert convert(message)
    data = own.load(Path("mvtec-parts"), Reading(), 0)
    assert (data.owned.names, data.classes) == (("bottle", "cable"), ("broken", "good"))
    assert len(data.y) + len(data.y_test) == 48  # no mask


def test_a_detector_of_pictures_keeps_the_parts_and_trains_on_the_good_ones() -> None:
    for category in ("bottle", "cable"):
        mvtec(Path("mvtec", category))
    message = refused("mvtec", task={"kind": "reconstruction"})
    assert "fedfloor new mvtec-parts --set data.task=reconstruction" in message
    assert convert(message)
    data = own.load(Path("mvtec-parts"), Reading(task=Reconstruction()), 0)
    assert (data.owned.names, data.classes) == (("bottle", "cable"), ("normal", "anomaly"))
    assert (len(data.y), len(data.y_test)) == (16, 32)  # no mask
    assert (int(data.y.sum()), int(data.y_test.sum())) == (0, 16)
    with refusals.refused("data.task"):
        own.load(Path("mvtec-parts"), Reading(task="regression"), 0)


def test_parts_beside_a_third_one_are_no_devices() -> None:
    for part in ("Train", "val", "Test"):
        for label in ("cat", "dog"):
            for n in range(9):
                picture(Path("pets", part, label, f"{n}.png"), n)
    message = refused("pets", layout="device/label/file")  # whatever is stated
    assert "Left out: 'val'" in message
    assert "--set data.layout=label/file" in message
    assert convert(message)
    data = own.load(Path("pets-parts"), Reading(layout="label/file"), 0)
    assert (len(data.y), len(data.y_test)) == (18, 18)


def test_parts_for_training_and_validation_are_no_devices() -> None:
    for part in ("train", "val"):
        for label in ("cat", "dog"):
            for n in range(9):
                picture(Path("pets", part, label, f"{n}.png"), n)
    assert "'train' and 'val' in it are parts for training and testing" in refused("pets")
    with refusals.refused("conversion", ConversionError):
        own.load(Path("pets"), Reading(layout="device/label/file"), 0)


def test_parts_alone_come_split() -> None:
    for part in ("train", "test"):
        park_of(Path("photos", part))
    check(Path("photos"), {})
    Path("photos/README.md").write_text("pictures", encoding="utf-8")
    message = refused("photos")
    assert convert(message)
    assert len(own.load(Path("photos-parts"), Reading(), 0).y_test) == 20


def test_what_is_made_of_the_working_folder_lies_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("train", "test", "ground_truth"):
        Path("bottle", part).mkdir(parents=True)
    assert '"bottle-parts/{part}"' in refused("bottle")
    monkeypatch.chdir("bottle")
    assert '"../bottle-parts/{part}"' in refused(".")


def test_test_samples_are_looked_at_too() -> None:
    table(Path("plant.csv"), head="device,time,sensor_id,value,label")
    cells = [("A", i, sensor, i + sensor, "ok" if i % 2 else "bad") for i in range(40) for sensor in (1, 2, 3)]
    rows("test.csv", [("device", "time", "sensor_id", "value", "label"), *cells])
    with refusals.refused("conversion", ConversionError):
        own.load(Path("plant.csv"), Reading(test="test.csv"), 0)


# -- cells -------------------------------------------------------------------------------------------------------------

ROWS = [("AB"[i % 2], i, i * 0.5, "ok" if i // 2 % 2 else "bad") for i in range(40)]
NAMES = ("machine", "time", "temp", "label")


@pytest.mark.parametrize("index", [False, True])
def test_a_header_without_a_name_for_the_index(index: bool) -> None:
    message = refused(rows("short.csv", [NAMES, *((at(n) if index else n, *row) for n, row in enumerate(ROWS))]))
    assert "the header has 4 names, but the rows have 5 cells: the first cell is an unnamed index" in message
    first = "time" if index else "index"
    assert f'data.header=["{first}", "machine", "time", "temp", "label"]' in message
    if convert(message):
        assert Path("short-named.csv").read_text(encoding="utf-8").startswith(f"{first},machine,time,temp,label\n")
    if not index:
        words = ["data.skip=1", f'data.header=["{first}", "machine", "time", "temp", "label"]']
        assert draft(Path("short.csv"), Path("x.toml"), words).park.names == ("A", "B")


def test_tables_of_r_are_read_by_their_blanks() -> None:
    quoted = [" ".join(f'"{cell}"' if isinstance(cell, str) else str(cell) for cell in row) for row in (NAMES, *ROWS)]
    Path("r.txt").write_text("\n".join(quoted) + "\n", encoding="utf-8")
    assert draft(Path("r.txt"), Path("x.toml"), []).park.names == ("A", "B")
    numbered = [quoted[0], *(f'"{n}" {row}' for n, row in enumerate(quoted[1:], start=1))]
    Path("r.txt").write_text("\n".join(numbered) + "\n", encoding="utf-8")
    message = refused("r.txt")
    assert r'sep=r"\s+"' in message
    convert(message)


def test_longer_rows_of_other_kinds_are_not_taken_for_an_index() -> None:
    for name, cells in {
        "trailing.csv": [NAMES, *((*row, "") for row in ROWS)],
        "title.csv": [("Report", "of", "plant", "7"), ("n", *NAMES), *((n, *row) for n, row in enumerate(ROWS))],
        "comment.csv": [NAMES, *((*row, "checked") for row in ROWS)],
    }.items():
        check(rows(name, cells), {})
    with refusals.refused("conversion", ConversionError):
        check(rows("index.csv", [NAMES, *((n, *row) for n, row in enumerate(ROWS))]), {})


@pytest.mark.parametrize(("cell", "packed"), [("NA", "csv"), ("", "csv"), ("", "parquet")])
def test_rows_without_a_label_are_left_out(cell: str, packed: str) -> None:
    cells = [(*row[:-1], cell) if n % 7 == 3 else row for n, row in enumerate(ROWS)]
    path = rows("plant.csv", [NAMES, *cells])
    if packed == "parquet":
        path = Path("plant.parquet")
        columns = dict(zip(NAMES, map(list, zip(*cells, strict=True)), strict=True))
        columns["label"] = [text or None for text in columns["label"]]
        parquet.write_table(pa.table(columns), path)
    with refusals.refused("conversion", ConversionError) as caught:
        draft(path, Path("x.toml"), [])
    if convert(str(caught.value)):
        data = draft(path.with_stem("plant-labelled"), Path("x.toml"), []).park.dataset
        assert len(data.y) + len(data.y_test) == 34


def test_texts_beside_a_label_in_folders_of_factories() -> None:
    for place in ("x/a", "x/b"):
        rows(f"plant/{place}/1.csv", [("shift", *NAMES[1:]), *(("early", *row[1:]) for row in ROWS)])
    assert draft(Path("plant"), Path("x.toml"), []).park.names == ("a", "b")


# -- commands ----------------------------------------------------------------------------------------------------------


def test_every_command_has_the_message(command: Command) -> None:
    (command.folder / "x.json").write_text("[]")
    (command.folder / "own.toml").write_text(
        'name = "own"\nrounds = 1\n[data]\npath = "x.json"\n[method]\nname = "fedavg"\n'
    )
    for words in (("run", "own.toml", "--ranks", "1"), ("compare", "own.toml", "--ranks", "1"), ("new", "x.json")):
        command.refused(command(*words), "x.json: JSON, which is not read. To convert it:", "pyarrow.Table.from_pylist")
    command.refused(
        command("run", "x.json"), "holds data and is not an experiment file. fedfloor new x.json writes one"
    )
