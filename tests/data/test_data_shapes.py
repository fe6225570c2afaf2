"""Tables as plants export them: titles and units, roles in several columns, matrices per sensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.data import matrices
from fedfloor.data.files import sheet
from fedfloor.data.files.preamble import preamble
from fedfloor.data.reading import Columns, Reading
from fedfloor.drafting.draft import draft
from fedfloor.runs.parks import build_park
from refusals import refused

HEAD = "Date;Time;Machine;Power;Fault"
ROWS = [f"{1 + i // 8:02}.03.2026;{i % 8:02}:30;M{i // 16};{i}.5;{i % 2}" for i in range(48)]


def titled(path: Path, above: str = "Hall 3, March\nby: J. D., 7\n\n", units: str = "dd.mm.yyyy;;;kW;\n") -> Path:
    path.write_text(f"{above}{HEAD}\n{units}" + "\n".join(ROWS) + "\n")
    return path


def test_titles_and_units_are_found_and_left_out(tmp_path: Path) -> None:
    path = titled(tmp_path / "hall.csv")
    assert preamble(path, {}) == [1, 2, 5]
    made = draft(path, tmp_path / "e.toml", [])
    assert "skip = [1, 2, 5]" in made.text
    assert 'time = "Date + Time"' in made.text
    assert made.park.devices == 3
    assert len(made.park.dataset.y) + len(made.park.dataset.y_test) == len(ROWS)


def test_a_mistake_below_titles_is_named_by_the_row_that_editors_show(tmp_path: Path) -> None:
    path = titled(tmp_path / "hall.csv")
    path.write_text(path.read_text().replace("7.5;", "seven;"))
    columns = Columns(time="Date + Time", device="Machine", label="Fault")
    with refused("odd-text"):
        sheet.read(path, Reading(skip=(1, 2, 5), columns=columns), ())


@pytest.mark.parametrize(("units", "noted"), [("dd.mm.yyyy;;;kW;\n", False), ("", True)])
def test_a_row_with_values_among_those_left_out_is_named(
    units: str, noted: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = titled(tmp_path / "hall.csv", units=units)
    columns = Columns(time="Date + Time", device="Machine", label="Fault")
    with caplog.at_level("INFO", "fedfloor"):
        read = sheet.read(path, Reading(skip=(1, 2, 5), columns=columns), ())
    assert len(read.x) == len(ROWS) - noted
    assert ("hall.csv: data.skip leaves out rows with values: 5." in caplog.text) == noted


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "\n" + "\n".join(ROWS) + "\n",
        "sep=;\n" + HEAD + "\n" + "\n".join(ROWS) + "\n",
        "1;2;3\n4;5;6\n7;8;9\n1;2;3\n",  # no names at all
        "a;b;c\n1;2;3\n1;2\n1;2;3\n1;2;3\n1;2;3\n",  # a short row
        "a;b\nx;y\nx;z\nx;y\n",  # texts everywhere
        "a;b\n\n1;2\n3;4\n",
        "",
        '"","mode","wear","load"\n"1","on","F0",2\n"2","on","F0",11\n"3","off","F1",14\n"4","on","F1",3\n',  # of R
    ],
)
def test_other_tables_have_no_preamble(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert preamble(tmp_path / "a.csv", {}) == []


def test_a_workbook_with_a_title_and_units(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in (["Hall 3"], [], HEAD.split(";"), ["", "", "", "kW"], *(row.split(";") for row in ROWS)):
        book.active.append(row)
    book.save(tmp_path / "hall.xlsx")
    assert preamble(tmp_path / "hall.xlsx", {}) == [1, 4]
    assert "skip = [1, 4]" in draft(tmp_path / "hall.xlsx", tmp_path / "e.toml", []).text


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_roles_of_several_columns(ending: str, tmp_path: Path) -> None:
    table = {
        "line": ["L1", "L1", "L2", "L2"], "machine": ["a", "b", "a", "b"], "day": ["2026-03-01T00:00:00"] * 4,
        "clock": ["06:00", "06:05", "06:10", "06:15"], "load": [1.0, 2.0, 3.0, 4.0], "heat": [1, 0, 0, 1],
        "wear": [0, 1, 0, 1],
    }  # fmt: skip
    path = tmp_path / f"flags.{ending}"
    if ending == "csv":
        cells = zip(*table.values(), strict=True)
        path.write_text("\n".join([",".join(table), *(",".join(map(str, row)) for row in cells)]) + "\n")
    else:
        parquet.write_table(pa.table(table), path)
    columns = Columns(device="line + machine", time="day+clock", label="heat + wear")
    read = sheet.read(path, Reading(columns=columns), ("device", "label"))
    assert read.columns == ("load",)
    assert read.text == {"device": ["L1 a", "L1 b", "L2 a", "L2 b"], "label": ["heat", "wear", "none", "heat + wear"]}
    assert read.time is not None
    assert np.diff(read.time).tolist() == [300.0] * 3


def test_a_column_whose_name_has_a_plus_is_one_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("device,a + b,load,a,b\nx,1,5,2,3\n")
    read = sheet.read(tmp_path / "a.csv", Reading(columns=Columns(label="a + b")), ())
    assert read.text["label"] == ["1"]


@pytest.mark.parametrize("skip", [0, [0], [-1], [], 10**9, 2**63 - 1])
def test_rows_to_skip_are_numbers_from_one(skip: Any, tmp_path: Path) -> None:
    with refused("data.skip"):
        config.from_table({"name": "a", "data": {"path": str(tmp_path), "skip": skip}})


def test_pictures_of_labels_alone_are_dealt(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for label in ("ok", "scratch"):
        (tmp_path / "pics" / label).mkdir(parents=True)
        for number in range(20):
            Image.fromarray(rng.integers(0, 255, (8, 8), np.uint8)).save(tmp_path / f"pics/{label}/{number}.png")
    table = {"name": "a", "data": {"path": str(tmp_path / "pics")}}
    with refused("place-in-folder"):
        build_park(config.from_table(table))
    table["data"] |= {"layout": "label/file", "partition": {"kind": "iid"}}  # type: ignore[operator]
    park = build_park(config.from_table({**table, "park": {"devices": 4}}))
    assert park.devices == 4
    assert park.dataset.classes == ("ok", "scratch")
    assert park.dataset.owner is None


def test_tables_of_other_endings_in_a_folder_that_has_only_these(tmp_path: Path) -> None:
    for name in ("M1.dat", "M2.dat"):
        (tmp_path / name).write_text("load,label\n" + "1.0,ok\n2.0,worn\n" * 20)
    table = {"name": "a", "data": {"path": str(tmp_path), "device": "file"}}
    assert build_park(config.from_table(table)).dataset.owned.names == ("M1", "M2")
    (tmp_path / "M3.csv").write_text("load,label\n" + "1.0,ok\n2.0,worn\n" * 20)
    with refused("foreign-file"):
        build_park(config.from_table(table))


def test_matrices_of_a_file_per_sensor(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    fast = rng.normal(size=(40, 60))
    slow = rng.normal(size=(40, 6))
    np.savetxt(tmp_path / "pressure.txt", fast)
    np.savetxt(tmp_path / "heat.txt", slow, delimiter="\t")
    np.savetxt(tmp_path / "y.txt", np.stack([np.arange(40) % 2, np.arange(40) / 7], 1))
    np.savetxt(tmp_path / "subject.txt", np.arange(40) // 10, fmt="%d")
    out = tmp_path / "rig.npz"
    device = str(tmp_path / "subject.txt")
    facts = matrices.convert([tmp_path], out, label=f"{tmp_path / 'y.txt'}:1", device=device)
    assert facts["sensors"] == {"heat": 6, "pressure": 60}
    made = draft(out, tmp_path / "e.toml", [])
    assert made.park.devices == 4
    assert made.park.dataset.inputs.columns == ("heat", "pressure")
    with np.load(out) as arrays:
        np.testing.assert_allclose(arrays["x"][:, 1], fast.reshape(40, 6, 10).mean(2), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(arrays["x"][:, 0], slow, rtol=1e-5, atol=1e-6)
        assert arrays["y"].dtype.kind == "i"
    with refused("exists"):
        matrices.convert([tmp_path], out, label=f"{tmp_path / 'y.txt'}:1")
    with refused("choice-of-column"):
        matrices.convert([tmp_path], out, label=str(tmp_path / "y.txt"), force=True)
    (tmp_path / "description.txt").write_text("60 s of a rig\n\n8 sensors\n")  # beside the matrices, as published
    (tmp_path / "times.txt").write_text('-1 "19/07/2008 11:55:00"\n' * 20 + '1 "20/07/2008 11:55:00"\n' * 20)
    matrices.convert([tmp_path / "heat.txt"], out, label=f"{tmp_path / 'times.txt'}:1", force=True)
    with np.load(out) as arrays:
        assert arrays["y"].tolist() == [-1] * 20 + [1] * 20
    (tmp_path / "times.txt").unlink()
    matrices.convert([tmp_path / "heat.txt"], tmp_path / "new.npz")  # to predict
    with np.load(tmp_path / "new.npz") as arrays:
        assert sorted(arrays) == ["sensors", "x"]
    matrices.convert([tmp_path], out, label=f"{tmp_path / 'y.txt'}:1", device=device, force=True)
    (tmp_path / "odd.txt").write_text("1 2\n")
    with refused("lengths-differ"):
        matrices.convert([tmp_path], out, label=f"{tmp_path / 'y.txt'}:1", device=device, force=True)


@pytest.mark.parametrize("text", ["", "1 nan\n", "1 1e40\n", "1 2\n3\n", "a b\n"])
def test_what_is_no_matrix_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(SettingError, match=r"a\.txt"):
        matrices.matrix(tmp_path / "a.txt")


@pytest.mark.parametrize(("names", "message"), [(["a"], "names-of-sensors"), (["a", "a"], "names-of-sensors")])
def test_names_of_sensors_in_arrays(names: list[str], message: str, tmp_path: Path) -> None:
    device = np.arange(9) % 3
    y = np.arange(9) % 2
    np.savez(tmp_path / "a.npz", x=np.ones((9, 2)), y=y, device=device, sensors=np.array(names))
    with refused(message):
        build_park(config.from_table({"name": "a", "data": {"path": str(tmp_path / "a.npz")}}))
