"""Tables of sensors: rows and windows as in training, whatever other columns there are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedfloor
from commands import Command, lines
from fedfloor.base.errors import SettingError
from fedfloor.data.files import own
from fedfloor.data.reading import Columns, RandomSplit, Reading, Window
from fedfloor.experiment import DataSettings, ModelSettings
from fedfloor.inference.inputs import table
from fedfloor.inference.samples import UNKNOWN, FileSamples, Sensors
from fedfloor.inference.trained import load_model
from fedfloor.parts.work import WorkSettings
from fedfloor.runs.launch import build_park
from model_files import SENSORS, WINDOWS, sensors_of, write_model
from refusals import refused

CLASSES = ("ok", "worn")
ROWS = Sensors(("temp", "torque"))
WINDOWED = Sensors(("temp", "torque"), window=(3, 2))


def read(folder: Path, text: str, sensors: Sensors) -> FileSamples:
    (folder / "a.csv").write_text(text)
    return table(folder / "a.csv", sensors, CLASSES)


def test_a_row_each_in_the_tables_order(tmp_path: Path) -> None:
    got = read(tmp_path, "note,torque,device,temp\nx,1,b,10\ny,2,a,20\nz,3,b,30\n", ROWS)
    assert got.x.tolist() == [[10, 1], [20, 2], [30, 3]]  # columns by their names, in the model's order
    assert got.places == [(2, 2), (3, 3), (4, 4)]  # the header is row 1
    assert got.devices == ["b", "a", "b"]
    assert got.y.tolist() == [UNKNOWN] * 3


EXPORT = "temp;torque;label\n{units}1;2;ok\n3;4;worn\n5;6;ok\n7;8;ok\n"
UNITS = "K;Nm;\n"


@pytest.mark.parametrize("titles", ["", "Hall 3;;\n", "Hall 3;;\nMarch;;\n", "Hall 3;;\n\nMarch;;\n"])
@pytest.mark.parametrize("units", ["", UNITS])
def test_a_tables_own_titles_and_units_are_left_out_and_no_row_with_values(
    titles: str, units: str, tmp_path: Path
) -> None:
    trained = replace(ROWS, dialect={"skip": (1, 3)})  # of tables with one title and units
    got = read(tmp_path, titles + EXPORT.format(units=units), trained)
    assert got.x.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]


@pytest.mark.parametrize(("units", "other"), [("K;Nm;\n", []), ("[k];nm;\n", []), ("", []), ("°C;;\n", ["temp"])])
def test_another_unit_than_in_training_is_named(
    units: str, other: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "plant.csv").write_text(EXPORT.format(units=UNITS) + "1;2;ok\n3;4;worn\n" * 20)
    form = Reading(columns=Columns(device=""), skip=(2,), delimiter=";", split=RandomSplit())
    inputs = own.load(tmp_path / "plant.csv", form, 0).inputs
    assert inputs.coding == {"units": {"temp": "K", "torque": "Nm"}}
    trained = replace(ROWS, dialect={"skip": (2,)}, coding=inputs.coding)
    assert len(read(tmp_path, EXPORT.format(units=units), trained).x) == 4
    told = [record.getMessage() for record in caplog.records if "its unit is" in record.getMessage()]
    assert [text.split("'")[1] for text in told] == other


def test_rows_that_were_left_out_in_training_stay_so_unless_they_hold_values(tmp_path: Path) -> None:
    text = EXPORT.format(units=UNITS).replace("5;6;ok", "broken;;")
    got = read(tmp_path, "Hall 3;;\n\n" + text, replace(ROWS, dialect={"skip": (1, 4, 7)}))
    assert got.x.tolist() == [[1, 2], [3, 4], [7, 8]]


def test_labels_as_far_as_they_are_known(tmp_path: Path) -> None:
    got = read(tmp_path, "temp;torque;label\n1;2;worn\n1;2;\n1;2;ok\n", ROWS)
    assert got.y.tolist() == [1, UNKNOWN, 0]
    assert got.devices is None


def test_labels_that_are_no_class_are_answered_and_named_but_not_scored(command: Command) -> None:
    """A label is for scoring only: a new spelling, or a class that the model does not have, keeps no row from it."""
    write_model(command.folder / "run", shape=(2,), inputs=SENSORS)
    labels = ["ok", "OK", "worn", "Worn", "Worn", "torn", "NA", ""]
    rows = "".join(f"{n},2,{label}\n" for n, label in enumerate(labels))
    (command.folder / "a.csv").write_text(f"temp,torque,label\n{rows}")
    said = command("predict", "run", "a.csv")
    assert said.code == 0, said.err
    assert "on 2 samples with a known label" in said.out
    assert "4 of 8 samples have a label that is no class of the model" in said.err
    assert "'Worn' (2, probably 'worn'), 'OK' (1, probably 'ok'), 'torn' (1)." in said.err
    known = json.loads(command("predict", "run", "a.csv", "--json").out)
    assert (known["samples"], known["labelled"]) == (8, 2)
    assert known["unscored"] == {"OK": 1, "Worn": 2, "torn": 1}


def test_spellings_of_training_are_those_of_tables_to_predict(tmp_path: Path) -> None:
    got = read(
        tmp_path, "temp,torque,label\n1,2,WORN\n1,2,ok\n", replace(ROWS, dialect={"spellings": {"WORN": "worn"}})
    )
    assert (got.y.tolist(), got.unscored) == ([1, 0], {})


def test_windows_do_not_cross_devices(tmp_path: Path) -> None:
    """Devices take turns in the file: a has 5 rows, so windows at its rows 0 and 2; b has 3, so one."""
    order = ["a", "b", "a", "a", "b", "b", "a", "a"]
    body = [f"{name},{i},{-i},{'ok' if i % 2 else 'worn'}" for i, name in enumerate(order)]
    got = read(tmp_path, "\n".join(["device,temp,torque,label", *body]), WINDOWED)
    assert got.x[:, 0].tolist() == [[0, 2, 3], [3, 6, 7], [1, 4, 5]]
    assert got.x[:, 1].tolist() == [[0, -2, -3], [-3, -6, -7], [-1, -4, -5]]
    assert got.places == [(2, 5), (5, 9), (3, 7)]
    assert got.devices == ["a", "a", "b"]
    assert got.y.tolist() == [0, 0, 0]  # of the last rows 3, 7 and 5


def test_a_device_that_is_too_short_is_left_out_and_named(tmp_path: Path) -> None:
    got = read(tmp_path, "device,temp,torque\na,1,1\na,2,2\na,3,3\nb,4,4\n", WINDOWED)
    assert got.devices == ["a"]
    assert got.left_out == ("a.csv, row 5: device 'b' has 1 rows from this row on; the model takes windows of 3.",)
    many = "".join(f"b{k},4,4\n" for k in range(8))
    assert read(tmp_path, f"device,temp,torque\na,1,1\na,2,2\na,3,3\n{many}", WINDOWED).left_out[-1] == (
        "a.csv: 3 more recordings have fewer than 3 rows."
    )
    with refused("short"):
        read(tmp_path, "temp,torque\n1,1\n2,2\n", WINDOWED)


HOLES = "device,temp,torque\na,1,5\na,,6\nb,,7\nb,3,8\n"


def test_holes_are_treated_as_in_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.testing.assert_array_equal(
        read(tmp_path, HOLES, Sensors(ROWS.columns, missing="previous")).x[:, 0], [1, 1, np.nan, 3]
    )
    assert np.isnan(read(tmp_path, HOLES, Sensors(ROWS.columns, missing="mean")).x[:, 0]).tolist() == [
        False, True, True, False,
    ]  # fmt: skip
    with caplog.at_level("INFO", logger="fedfloor"):
        got = read(tmp_path, HOLES, Sensors(ROWS.columns, missing="drop"))
    assert got.places == [(2, 2), (5, 5)]
    assert "2 of 4 samples have missing values and are left out" in caplog.text
    got = read(tmp_path, HOLES, ROWS)
    assert got.places == [(2, 2), (5, 5)]
    assert [text.split(": no value")[0] for text in got.left_out] == [
        "a.csv, row 3, column 'temp'", "a.csv, row 4, column 'temp'",
    ]  # fmt: skip
    with refused("no-sample"):
        read(tmp_path, "temp,torque\n,1\n", ROWS)


def test_gaps_are_not_filled_from_the_future(tmp_path: Path) -> None:
    filled = Sensors(ROWS.columns, missing="previous")
    with refused("times"):
        read(tmp_path, "time,temp,torque\n3,1,1\n2,,1\n1,5,1\n", filled)
    assert read(tmp_path, "time,temp,torque\n1,5,1\n2,,1\n3,1,1\n", filled).x[:, 0].tolist() == [5, 5, 1]
    assert read(tmp_path, "time,temp,torque\n3,1,1\n2,2,1\n", filled).x[:, 0].tolist() == [1, 2]  # no gap to fill
    assert read(tmp_path, "time,temp,torque\n3,1,1\n2,2,1\n", ROWS).x[:, 0].tolist() == [1, 2]


def test_other_names_and_another_decimal_mark(tmp_path: Path) -> None:
    names = {"device": "machine", "label": "state", "time": "when"}
    german = Sensors(ROWS.columns, names=names, decimal=",")
    got = read(tmp_path, "machine;temp;torque;state;device\na;1,5;2;worn;x\n", german)
    assert (got.x.tolist(), got.devices, got.y.tolist()) == ([[1.5, 2]], ["a"], [1])
    assert read(tmp_path, "temp;torque\n1,5;2\n", german).devices is None


def test_tables_are_split_as_those_of_the_training(tmp_path: Path) -> None:
    """Four commas and four semicolons: the model's decimal mark decides; a delimiter that was given is the model's."""
    names = ("a", "b", "c", "d", "label")
    (tmp_path / "train.csv").write_text("13,616;1,167;333,887;1,226;1\n12,5;1,2;333,9;1,3;2\n" * 9)
    for delimiter in (None, ";"):
        reading = Reading(
            columns=Columns(device="", time=""), header=names, decimal=",", delimiter=delimiter,  # type: ignore[arg-type]
            split=RandomSplit(),
        )  # fmt: skip
        sensors = sensors_of(own.load(tmp_path / "train.csv", reading, 0).inputs.describe())
        assert sensors is not None
        assert sensors.dialect.get("delimiter") == delimiter
        got = table(tmp_path / "train.csv", sensors, ("1", "2"))
        assert got.x[0].tolist() == np.float32([13.616, 1.167, 333.887, 1.226]).tolist()
        assert got.y[:2].tolist() == [0, 1]
        (tmp_path / "b.csv").write_text("a\tb\tc\td\n1,5\t2\t3\t4\n")
        if delimiter is None:
            assert table(tmp_path / "b.csv", sensors, ("1", "2")).x.tolist() == [[1.5, 2, 3, 4]]
            continue
        with refused("no-column"):
            table(tmp_path / "b.csv", replace(sensors, dialect={"delimiter": ";"}), ("1", "2"))


def test_a_matrix_without_a_header(tmp_path: Path) -> None:
    """As Tennessee Eastman's recordings: a column per sensor, but one of them lies on its side."""
    x = np.arange(10).reshape(5, 2)
    for name, matrix in (("a.dat", x), ("b.dat", x.T), ("c.dat.gz", x)):
        np.savetxt(tmp_path / name, matrix)
        got = table(tmp_path / name, WINDOWED, CLASSES)
        assert got.x.tolist() == [x[:3].T.tolist(), x[2:].T.tolist()]
        assert got.places == [(1, 3), (3, 5)]
    for text, message in (("1 2 3\n", "3 columns; the model takes 2: temp, torque"), ("a b\n", "not a matrix"),
                          ("", "not a matrix"), ("1 inf\n", "row 1, column 'torque': not a finite")):  # fmt: skip
        (tmp_path / "a.dat").write_text(text)
        with pytest.raises(SettingError, match=message):
            table(tmp_path / "a.dat", WINDOWED, CLASSES)


BAD = {
    "empty": ("", "a.csv, row 1: empty."),
    "a header only": ("temp,torque\n", "a.csv: a header, but no rows below it."),
    "a missing sensor": (
        "temp,torqe\n1,2\n", "no column 'torque'. Did you mean 'torqe'? Available: temp, torqe. The model needs it."
    ),
    "a missing sensor like another one": (
        "temperature,torque\n1,2\n", "no column 'temp'. Did you mean 'temperature'? Available: temperature, torque."
    ),
    "a missing sensor, and one that is needed itself": (
        "load,torque\n1,2\n", "no column 'temp'. Available: load, torque. The model needs it."
    ),
    "a word": ("temp,torque\n1,2\n1,hot\n", "a.csv, row 3, column 'torque': 'hot' is not a number."),
    "another decimal mark": (
        "temp;torque\n1,5;2\n",
        "'1,5' is not a number. The model was trained on tables with the decimal mark '.'. To write it so: python -c",
    ),
    "too few cells": ("temp,torque\n1\n", "a.csv, row 2, column 'torque': 1 cells, but the header has 2."),
    "no text": (b"temp,torque\n\x81,2\n", "a.csv, row 2, column 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_tables(command: Command, case: str) -> None:
    content, message = BAD[case]
    write_model(command.folder / "run", shape=(2,), inputs=SENSORS)
    (command.folder / "a.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    said = command("predict", "run", "a.csv")
    command.refused(said, message)
    assert "[data]" not in said.err  # nothing that could be set now


def test_times_out_of_order(command: Command) -> None:
    write_model(command.folder / "run", shape=(2, 4), inputs=WINDOWS)
    body = "".join(f"{time},1,2\n" for time in (1, 3, 2, 4))
    (command.folder / "a.csv").write_text("time,temp,torque\n" + body)
    command.refused(command("predict", "run", "a.csv"), "a.csv, row 4: its time is not after that of row 3")


def test_windows_by_command(command: Command) -> None:
    write_model(command.folder / "run", shape=(2, 4), inputs=WINDOWS)
    body = "".join(f"{device},{i},2\n" for device in ("press 1", "press 2") for i in range(6))
    (command.folder / "a.csv").write_text("device,temp,torque\n" + body)
    said = command("predict", "run", "a.csv", "--json", "--csv", "out.csv")
    assert [(row["device"], row["rows"]) for row in said.document["rows"]] == [
        ("press 1", [2, 5]), ("press 1", [4, 7]), ("press 2", [8, 11]), ("press 2", [10, 13]),
    ]  # fmt: skip
    assert (command.folder / "out.csv").read_text().splitlines()[1].startswith("a.csv,press 1,,2,5,,,,")
    assert "2–5" in command("predict", "run", "a.csv").out


# -- from training to prediction ---------------------------------------------------------------------------------------


def factory_floor(path: Path, holes: bool) -> None:
    """Write a table: 4 devices, 40 rows each, two sensors; a worn tool runs hot."""
    rng = np.random.default_rng(0)
    text = ["device,time,temp,torque,label"]
    for device in range(4):
        for time in range(40):
            worn = (time // 8 + device) % 2
            temp = "" if holes and rng.random() < 0.03 else f"{20 + 9 * worn + rng.normal():.3f}"
            text.append(f"d{device},{time},{temp},{rng.normal(5):.3f},{CLASSES[worn]}")
    path.write_text("\n".join(text) + "\n")


@pytest.mark.parametrize("window", [None, Window(4, 2)])
@pytest.mark.parametrize("missing", ["refuse", "previous", "mean", "drop"])
def test_the_runs_own_test_samples(tmp_path: Path, missing: Any, window: Window | None) -> None:
    """The whole table, read for prediction, holds every test sample, with the probabilities of the evaluation."""
    factory_floor(tmp_path / "floor.csv", holes=missing != "refuse")
    data = DataSettings(path=str(tmp_path / "floor.csv"), missing=missing, window=window)
    work = WorkSettings(batch_size=4)
    what = fedfloor.Experiment(rounds=1, data=data, model=ModelSettings("logistic"), work=work)
    run = fedfloor.run(what, tmp_path / "run", ranks=1)
    park = build_park(what)
    x, y = park.test()
    trained = load_model(run.folder)
    probabilities = trained.predict(x)
    assert float((probabilities.argmax(1) == y).mean()) == lines(run.folder)[-1]["accuracy"]
    assert trained.sensors is not None
    read_again = table(tmp_path / "floor.csv", trained.sensors, trained.classes)
    known = {sample.tobytes(): label for sample, label in zip(read_again.x, read_again.y, strict=True)}
    assert [known[sample.tobytes()] for sample in x] == y.tolist()
    assert read_again.x.dtype == x.dtype
