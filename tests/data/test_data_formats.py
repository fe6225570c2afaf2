"""Files in formats that are not read: each is refused with lines that convert it, which are run here."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pyarrow as pa
import pytest
import scipy.io
import scipy.io.wavfile
from pyarrow import csv as csv_of_arrow
from pyarrow import feather, orc, parquet

import refusals
from conversions_run import convert, refused
from fedfloor.data.files import own
from fedfloor.data.files.conversions import ConversionError, check
from fedfloor.data.reading import Reading
from fedfloor.drafting.draft import draft
from own_data import table

pytestmark = pytest.mark.usefixtures("empty_folder")

SENSORS = ("temp", "press", "vib")


TABLE = pa.table({
    "machine": ["A"] * 20 + ["B"] * 20, "time": [*range(20)] * 2, "temp": [float(i) for i in range(40)],
    "vib": [float(i % 7) for i in range(40)], "label": ["ok", "bad"] * 20,
})  # fmt: skip


def stream(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)


def arff(path: Path) -> None:
    kinds = {"machine": "{A,B}", "label": "{ok,bad}"}
    head = "".join(f"@attribute {name} {kinds.get(name, 'numeric')}\n" for name in TABLE.column_names)
    body = "".join(",".join(map(str, row.values())) + "\n" for row in TABLE.to_pylist())
    path.write_text(f"@relation plant\n{head}@data\n{body}", encoding="utf-8")


FORMATS: dict[str, Callable[[Path], object]] = {
    "x.feather": lambda path: feather.write_feather(TABLE, path),
    "file.arrow": lambda path: feather.write_feather(TABLE, path),
    "stream.arrow": stream,
    "x.orc": lambda path: orc.write_table(TABLE, path),
    "x.jsonl": lambda path: path.write_text("".join(f"{json.dumps(row)}\n" for row in TABLE.to_pylist())),
    "lines.json": lambda path: path.write_text("".join(f"{json.dumps(row)}\n" for row in TABLE.to_pylist())),
    "x.json": lambda path: path.write_text(json.dumps(TABLE.to_pylist())),
    "object.json": lambda path: path.write_text(json.dumps(TABLE.to_pydict())),
    "x.arff": arff,
}


@pytest.mark.parametrize("name", FORMATS)
def test_tables_in_other_formats(name: str) -> None:
    FORMATS[name](Path(name))
    if convert(refused(name)):
        out = next(path for path in Path().iterdir() if path.suffix in (".parquet", ".csv"))
        assert load_table(out) == TABLE.to_pylist()
        assert draft(out, Path("x.toml"), []).park.names == ("A", "B")


def load_table(path: Path) -> list[dict[str, object]]:
    return (csv_of_arrow.read_csv if path.suffix == ".csv" else parquet.read_table)(path).to_pylist()


def test_texts_of_weka_keep_their_blanks_and_commas() -> None:
    head = (
        "% made\n@RELATION 'a plant'\n@attribute 'the machine' string\n@Attribute when date 'HH:mm'\n@attribute t real"
    )
    Path("x.arff").write_text(f"{head}\n@DATA\n% none\n'press 1, north', '06:30', ?\n'it\\'s', '06:31', 2.5\n")
    assert convert(refused("x.arff"))
    assert [*csv.reader(Path("x.csv").read_text(encoding="utf-8").splitlines())] == [
        ["the machine", "when", "t"], ["press 1, north", "06:30", "?"], ["it's", "06:31", "2.5"],
    ]  # fmt: skip


def test_arrays_of_matlab_become_columns() -> None:
    x = np.random.default_rng(0).normal(size=(50, 1))
    Path("bearings/A").mkdir(parents=True)
    scipy.io.savemat("bearings/A/97.mat", {"DE_time": x, "FE_time": 2 * x, "RPM": 1797})
    message = refused("bearings/A/97.mat")
    with refusals.refused("conversion", ConversionError) as caught:
        own.load(Path("bearings"), Reading(), 0)  # in a folder, too
    assert str(caught.value) == message
    assert convert(message)
    assert parquet.read_table("97.parquet").to_pydict() == {
        "DE_time": x[:, 0].tolist(),
        "FE_time": (2 * x[:, 0]).tolist(),
    }
    Path("new.mat").write_bytes(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(512))
    assert "import h5py" in refused("new.mat")
    Path("frame.h5").write_bytes(b"\x89HDF\r\n\x1a\n".ljust(3000) + b"pandas_type")
    assert "read_hdf" in refused("frame.h5")


def test_matrices_and_structures_of_matlab_become_a_column_for_each_sensor() -> None:
    x = np.random.default_rng(0).normal(size=(50, 60))  # 50 samples, of which y has the labels
    scipy.io.savemat("m.mat", {"X": x, "y": np.arange(50) % 3, "about": {"rate": 1000.0}})
    assert convert(refused("m.mat"))
    columns = parquet.read_table("m.parquet").to_pydict()
    assert [*columns] == [*(f"X {i}" for i in range(1, 61)), "y"]
    assert columns["X 2"] == x[:, 1].tolist()
    scipy.io.savemat("s.mat", {"data": {"acc": x[:3], "rig": {"t": np.arange(60.0)}, "unit": "g"}})
    assert convert(refused("s.mat"))
    assert [*parquet.read_table("s.parquet").to_pydict().items()][1:] == [
        *((f"data.acc {i + 1}", x[i].tolist()) for i in (1, 2)), ("data.rig.t", [*range(60)]),
    ]  # fmt: skip


def test_all_files_of_a_folder_are_converted() -> None:
    x = np.arange(30.0)
    for device in "AB":
        Path("bearings", device).mkdir(parents=True)
        for number in (1, 2):
            scipy.io.savemat(f"bearings/{device}/{number}.mat", {"a": x, "label": x // 15})
    Path("bearings/A/1.mat").rename("bearings/A/1.MAT")
    with refusals.refused("conversion", ConversionError) as caught:
        own.load(Path("bearings"), Reading(), 0)
    assert convert(str(caught.value))
    assert sorted(map(str, Path("bearings-tables").rglob("*.*"))) == [
        f"bearings-tables/{device}/{number}.parquet" for device in "AB" for number in (1, 2)
    ]
    assert draft(Path("bearings-tables"), Path("x.toml"), []).park.names == ("A", "B")


@pytest.mark.parametrize("name", ["plant.db", "plant.sqlite", "no ending"])
def test_a_database_is_asked_by_a_query(name: str) -> None:
    with closing(sqlite3.connect(name)) as base, base:
        base.execute("CREATE TABLE machines (machine)")
        base.execute('CREATE TABLE "all readings" (machine, time, t, label)')
        base.executemany(
            'INSERT INTO "all readings" VALUES (?, ?, ?, ?)', [(m, i, i, i % 2) for m in "AB" for i in range(9)]
        )
    message = refused(name)
    assert "with 'machines' (0 rows), 'all readings' (18 rows)" in message
    words = shlex.split(next(line for line in message.splitlines() if line.startswith("    ")))
    assert words[:4] == ["fedfloor", "datasets", "query", f"sqlite:///{name}"]
    assert words[5:] == ["--out", f"{Path(name).stem}.parquet"]
    with closing(sqlite3.connect(name)) as base:
        assert len(base.execute(words[4]).fetchall()) == 18


def test_sound_becomes_power_in_ranges_of_frequency() -> None:
    rate = 8000
    tone = np.sin(2 * np.pi * 1100 * np.arange(2 * rate) / rate)  # in the fifth of 16 bands of 250 Hz
    Path("motors/A/hum").mkdir(parents=True)
    scipy.io.wavfile.write("motors/A/hum/1.wav", rate, np.int16(3000 * tone))
    message = refused("motors/A/hum/1.wav")
    with refusals.refused("conversion", ConversionError):
        own.load(Path("motors"), Reading(), 0)  # in a folder, too
    assert convert(message)
    table = parquet.read_table("1.parquet")
    assert (table.num_columns, table.num_rows) == (16, 1 + (2 * rate - 1024) // (1024 - 1024 // 8))
    means = [np.mean(column) for column in table.to_pydict().values()]
    assert table.column_names[int(np.argmax(means))] == "band 5"


def test_series_with_a_label_become_windows() -> None:
    rows_ = "".join(f"{n},{n + 0.5},?:{n},1,2:{'ab'[n % 2]}\n" for n in range(40))
    Path("x.ts").write_text(f"# a comment\n@problemName x\n@classLabel true a b\n@data\n{rows_}", encoding="utf-8")
    assert convert(refused("x.ts"))
    with np.load("x.npz") as arrays:
        assert arrays["x"].shape == (40, 2, 3)
        assert arrays["x"][3, 0, :2].tolist() == [3, 3.5]
        assert arrays["y"].tolist() == ["a", "b"] * 20


def test_shorter_series_end_with_missing_values() -> None:
    Path("x.ts").write_text("% a remark\n@data\n1,2,3:4:a\n5:6,7:b\n", encoding="utf-8")
    assert convert(refused("x.ts"))
    with np.load("x.npz") as arrays:
        assert np.nan_to_num(arrays["x"], nan=-1).tolist() == [[[1, 2, 3], [4, -1, -1]], [[5, -1, -1], [6, 7, -1]]]


@pytest.mark.parametrize(
    ("frequency", "times"),
    [
        ("half_hourly", ["2001-05-31T12:30", "2001-05-31T13:00", "2001-05-31T13:30"]),
        ("monthly", ["2001-05-31T12:30", "2001-06-30T12:30", "2001-07-30T12:30"]),
    ],
)
def test_series_of_the_monash_archive_have_a_row_per_time(frequency: str, times: list[str]) -> None:
    head = "# a comment\n@relation x\n@attribute series_name string\n@attribute state string\n"
    head += f"@attribute start_timestamp date\n@frequency {frequency}\n@horizon 2\n@data\n"
    rows_ = "T1:NSW:2001-05-31 12-30-00:1.5,?,3\nT2:VIC:2001-05-31 12-30-00:4\n"
    Path("x.tsf").write_text(head + rows_, encoding="utf-8")
    assert convert(refused("x.tsf"))
    table = parquet.read_table("x.parquet").to_pydict()
    assert table["series_name"] == ["T1"] * 3 + ["T2"]
    assert table["state"] == ["NSW"] * 3 + ["VIC"]
    assert table["value"][::2] == [1.5, 3]
    assert [f"{time:%Y-%m-%dT%H:%M}" for time in table["time"]] == [*times, times[0]]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x.h5", "h5py.File"),
        ("x.pkl", "read_pickle"),
        ("x.npy", "np.savez"),
        ("x.xml", "read_xml"),
        ("x.tdms", "TdmsFile"),
        ("x.mf4", "asammdf"),
    ],
)
def test_further_formats_are_named(name: str, words: str) -> None:
    Path(name).write_bytes(b"\0" * 10)
    assert words in refused(name)


def test_archives_of_several_tables() -> None:
    table(Path("A.csv"))
    for name in ("plant.zip", "plant.csv.zip"):
        with zipfile.ZipFile(name, "w") as archive:
            archive.write("A.csv", "A.csv")
            archive.write("A.csv", "B.csv")
        message = refused(name)
        assert "an archive of 2 files" in message
        assert convert(message)
        assert sorted(path.name for path in Path("plant").iterdir()) == ["A.csv", "B.csv"]
    with tarfile.open("park.tar.gz", "w:gz") as archive:
        archive.add("A.csv")
    assert convert(refused("park.tar.gz"))
    assert Path("park/A.csv").is_file()


def test_a_table_alone_in_an_archive() -> None:
    table(Path("A.csv"), head="device,time,a,b,label")
    with zipfile.ZipFile("plant.zip", "w") as archive:
        archive.write("A.csv")
    with refusals.refused("archive"):
        draft(Path("plant.zip"), Path("x.toml"), [])
    assert own.load(Path("plant.zip"), Reading(format="table"), 0).owned.names == ("?",)
    shutil.copy("plant.zip", "plant.csv.zip")
    check(Path("plant.csv.zip"), {})


def test_a_sheet_per_machine() -> None:
    book = openpyxl.Workbook()
    for machine in ("press 1", "press 2"):
        sheet = book.create_sheet(machine)
        for row in [("time", "a", "label"), *((i, i * 0.5, "ok" if i % 2 else "bad") for i in range(20))]:
            sheet.append(row)
    book.save("plant.xlsx")
    message = refused("plant.xlsx")
    assert "2 sheets (press 1, press 2). Choose one" in message
    assert convert(message)
    assert own.load(Path("plant"), Reading(device="file"), 0).owned.names == ("press 1", "press 2")
    check(Path("plant.xlsx"), {"sheet": "press 1"})


@pytest.mark.parametrize("form", [None, "table"])
def test_a_binary_file_is_no_table(form: Any) -> None:
    Path("log.bin").write_bytes(b"Obj\x01" + bytes(range(200)) * 3)
    with refusals.refused("binary-file"):
        own.load(Path("log.bin"), Reading(format=form), 0)
    table(Path("A.csv"), head="device,time,a,b,label")
    Path("wide.log").write_text(Path("A.csv").read_text(), encoding="utf-16")
    assert own.load(Path("wide.log"), Reading(format="table"), 0).owned.names == ("?",)
