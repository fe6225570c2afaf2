"""Drafts of columns that are no plain sensors: marks of missing values, booleans and durations of Parquet."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Command
from fedfloor import config
from fedfloor.data.files import own
from fedfloor.data.reading import Reading
from fedfloor.drafting import profile
from fedfloor.drafting.columns import on_single_class
from fedfloor.runs.parks import build_park


def test_marks_of_missing_values_are_noted_with_their_setting(command: Command) -> None:
    marks = ["-9999", "-999.9", "9.9E+37", "65535"]
    draw = np.random.default_rng(0)
    rows = []
    for row in range(400):
        cells = [mark if row % 50 == 7 + k else f"{draw.normal(5):.3f}" for k, mark in enumerate(marks)]
        rows.append(f"{'AB'[row % 2]},{','.join(cells)},{'ok' if row % 3 else 'worn'}")
    (command.folder / "t.csv").write_text("machine,a,b,c,d,state\n" + "\n".join(rows) + "\n")
    made = command("new", "t.csv")
    assert made.code == 0, made.err
    for sensor, mark in zip("abcd", marks, strict=True):
        note = next(line for line in made.err.splitlines() if f"'{sensor}' is {mark.lower()} in" in line)
        assert f'data.missing_texts=["{mark.lower()}"]' in note
    listed = "data.missing_texts=" + str(marks).replace("'", '"')
    again = command("new", "t.csv", "--force", "--set", listed)
    assert again.code == 0, again.err
    assert "missing_texts=" not in again.err


def test_booleans_and_durations_of_parquet(command: Command) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    many = 200
    table = pa.table({
        "machine": ["AB"[row * 2 // many] for row in range(many)],
        "time": pa.array([1_500_000 * row for row in range(many)], pa.duration("us")),
        "temp": [float(row * 7 % 13) for row in range(many)],
        "on": [row % 5 < 2 for row in range(many)],
        "state": ["ok" if row % 3 else "worn" for row in range(many)],
    })  # fmt: skip
    parquet.write_table(table, command.folder / "t.parquet")
    made = command("new", "t.parquet", "--set", "data.columns.time=time")
    assert made.code == 0, made.err
    assert "training: 0 to 268.5" in made.err


def test_the_clock_of_labview_is_no_sensor(command: Command) -> None:
    rows = [
        f"{row * 0.001:.3f},{'AB'[row * 2 // 400]},{row * 7 % 13},{'ok' if row % 3 else 'worn'}" for row in range(400)
    ]
    (command.folder / "t.csv").write_text("X_Value,machine,temp,state\n" + "\n".join(rows) + "\n")
    assert "'X_Value' is taken for the time" in command("new", "t.csv").err


ROWS = [
    f"2026-03-02 06:{row:02}:00,{m},{row * 7 % 13},{row * 5 % 11},{'ok' if row % 3 else 'worn'}"
    for m in "AB"
    for row in range(60)
]
BLOCKS = ("--set", "data.columns.device=", "--set", "park.devices=2", "--set", 'data.partition={kind="blocks"}')


def test_rows_of_separators_are_no_samples(command: Command) -> None:
    """As spreadsheets write them below a table, some shorter; and one within a table."""
    lines = ["timestamp,machine,temp,vib,state", *ROWS[:30], ",,,,", *ROWS[30:], ",,", *[",,,,"] * 40, " , , , , "]
    (command.folder / "t.csv").write_text("\n".join(lines) + "\n")
    made = command("new", "t.csv")
    assert made.code == 0, made.err
    assert "43 rows without any value, the first of which is row 32" in made.err
    assert "96 training and 24 test samples" in (command.folder / "t.toml").read_text()


@pytest.mark.parametrize("many", [120, 60_000], ids=["by rows", "by columns"])
def test_rows_of_separators_without_device_time_and_label(command: Command, many: int) -> None:
    lines = ["temp,vib,flow", *(f"{row * 7 % 13}.125,{row * 5 % 11}.25,{row % 17}.5" for row in range(many))]
    (command.folder / "t.csv").write_text("\n".join([*lines, *[",,"] * 50]) + "\n")
    made = command("new", "t.csv", "--task", "reconstruction", *BLOCKS)
    assert made.code == 0, made.err
    assert f"50 rows without any value, the first of which is row {many + 2}" in made.err
    assert f"{many * 4 // 5:,} training and {many // 5:,} test samples" in (command.folder / "t.toml").read_text()


def drafted(command: Command, header: str, rows: list[str], *words: str) -> tuple[dict[str, Any], str]:
    (command.folder / "t.csv").write_text("\n".join([header, *rows]) + "\n")
    made = command("new", "t.csv", "--force", *words)
    assert made.code == 0, made.err
    return tomllib.loads((command.folder / "t.toml").read_text())["data"], made.err


QUALITY = {"codes": ("192", "24"), "texts": ("Good", "Bad"), "hex": ("0x00000000", "0x80340000")}


@pytest.mark.parametrize("form", QUALITY)
@pytest.mark.parametrize("names", ["temp.Value,temp.Quality", "temp,temp_quality", "temp_value,temp_status"])
def test_qualities_beside_values_are_no_sensors(command: Command, form: str, names: str) -> None:
    good, bad = QUALITY[form]
    rows = [f"{row}," + f"{(0 if n % 20 == 3 else n % 7)},{bad if n % 20 == 3 else good}" for n, row in enumerate(ROWS)]
    data, notes = drafted(command, f"timestamp,machine,a,vib,state,{names}", rows)
    assert data["columns"]["ignore"] == [names.split(",")[1]]
    assert "(5 % are not good), which makes its other values missing (data.quality)," in notes
    assert data["quality"] == {names.split(",")[0]: names.split(",")[1]}


@pytest.mark.parametrize("name", ["quality", "temp_quality", "pump_status"])
def test_other_qualities_and_states_stay(command: Command, name: str) -> None:
    """Without a value beside it, or with states of a machine in place of codes."""
    rows = [f"{row},{'on' if n % 20 < 3 else 'off'},{n % 11}" for n, row in enumerate(ROWS)]
    data, notes = drafted(command, f"timestamp,machine,a,vib,state,{name},pump", rows)
    assert data["columns"]["categories"] == {name: ["off", "on"]}
    assert "states the quality" not in notes


LONG = "Attack LABLE (1:No Attack, -1:Attack)"
TWO = [f"{n % 97},{n * 7 % 13}.5,{n * 5 % 11}.25,{-1 if 200 < n < 220 else 1}" for n in range(300)]


@pytest.mark.parametrize(("name", "normal"), [(LONG, "1"), ("is_fault (0 = normal; 1 = fault)", "0")])
def test_a_label_with_a_long_name_is_no_sensor_of_an_anomaly_detection(
    command: Command, name: str, normal: str
) -> None:
    rows = [row if normal == "1" else f"{row.rsplit(',', 1)[0]},{int(row.endswith('-1'))}" for row in TWO]
    data, notes = drafted(command, f'a,temp,vib,"{name}"', rows, "--task", "reconstruction", *BLOCKS)
    assert data["columns"]["label"] == name
    assert data["task"] == {"kind": "reconstruction", "normal": normal}
    assert "3 sensors: a, temp, vib" in notes
    data, notes = drafted(command, f'a,temp,vib,"{name}"', rows, *BLOCKS)
    assert data["columns"]["label"] == name


def test_marks_of_faults_beside_a_label_are_left_out_of_an_anomaly_detection(command: Command) -> None:
    rows = [f"{row},{int(row.endswith('-1'))},{n % 5}" for n, row in enumerate(TWO)]
    data, _ = drafted(command, "a,temp,vib,label,Pump fault,fault current", rows, "--task", "reconstruction", *BLOCKS,
                      "--set", 'data.task.normal="1"')  # fmt: skip
    assert data["columns"]["ignore"] == ["Pump fault"]


def test_row_numbers_counters_and_constants(command: Command) -> None:
    rows = [f"{n + 1},{row},{1000 + 3 * n + n % 2},7" for n, row in enumerate(ROWS)]
    data, notes = drafted(command, "Row ,timestamp,machine,temp,vib,state,parts,limit", rows)
    assert data["columns"]["ignore"] == ["Row", "parts", "limit"]
    assert "'Row' counts the rows and is ignored" in notes
    assert "'parts' counts up from row to row" in notes
    assert "'limit' is 7 in every row examined" in notes


def test_a_sensor_without_a_value_in_training_is_left_out(command: Command) -> None:
    rows = [f"{row},{n % 9 if n % 60 >= 50 else ''}" for n, row in enumerate(ROWS)]
    data, notes = drafted(command, "timestamp,machine,temp,vib,state,late", rows)
    assert data["columns"]["ignore"] == ["late"]
    assert "'late' holds no value in any row examined" in notes


def test_numbers_that_are_moments_are_the_time_whatever_their_name(command: Command) -> None:
    rows = [f"{1772431200000 + 1000 * n},{row.split(',', 1)[1]}" for n, row in enumerate(ROWS)]
    data, _ = drafted(command, "erfasst,machine,temp,vib,state", rows)
    assert (data["columns"]["time"], data["time_format"]) == ("erfasst", "ms")
    rows = [f"{100 + 2 * n},{row.split(',', 1)[1]}" for n, row in enumerate(ROWS)]
    data, _ = drafted(command, "erfasst,machine,temp,vib,state", rows)
    assert "time" not in data["columns"]


def test_segments_are_recordings(command: Command) -> None:
    rows = [f"{row},{n // 30}" for n, row in enumerate(ROWS)]
    data, _ = drafted(command, "timestamp,machine,temp,vib,state,segment_id", rows)
    assert data["columns"]["run"] == "segment_id"


def test_the_ramp_of_a_clock_has_no_period(command: Command) -> None:
    """The differences of rounded multiples of 0.07 recur after ten rows, as the rounding does."""
    draw = np.random.default_rng(0)
    rows = [f"{'AB'[n // 300]},{round(n % 300 * 0.07, 1)},{draw.normal():.3f}" for n in range(600)]
    data, _ = drafted(command, "machine,way,temp", rows, "--task", "forecasting", "--set", 'data.split={kind="time"}')
    assert "season" not in data["task"]


META = ["Customer\tDummy", "Counter\t25", "Operator\tNN"]


@pytest.mark.parametrize("above", [[], META], ids=["none", "keys and values"])
@pytest.mark.parametrize("units", [[], ["\t\t°C\tmm\t"], ["s\t\t\t\t"]], ids=["none", "some", "of the time"])
def test_keys_and_values_above_a_header_and_units_below_it(
    command: Command, above: list[str], units: list[str]
) -> None:
    rows = [f"{n * 0.01:.2f}\t{row.split(',', 1)[1]}".replace(",", "\t") for n, row in enumerate(ROWS)]
    lines = [*above, "Time\tmachine\ttemp\tvib\tstate", *units, *rows]
    (command.folder / "t.txt").write_text("\n".join(lines) + "\n")
    made = command("new", "t.txt")
    assert made.code == 0, made.err
    assert "2 sensors: temp, vib" in made.err
    assert "96 training and 24 test samples" in (command.folder / "t.toml").read_text()


def test_a_single_series_without_labels_is_dealt_in_blocks(command: Command) -> None:
    """As in NAB: a shuffled deal would tear the series apart."""
    rows = [f"{row.split(',')[0]},{n % 9}" for n, row in enumerate(ROWS[:60])]
    (command.folder / "t.csv").write_text("\n".join(["timestamp,value", *rows]) + "\n")
    refused = command("new", "t.csv", "--task", "reconstruction")
    command.refused(refused, 'kind="blocks"')
    assert "dirichlet" not in refused.err


def with_texts(path: Path, columns: dict[str, list[str]]) -> None:
    """Write columns of texts beside two machines and a label, as CSV or as Parquet."""
    many = len(next(iter(columns.values())))
    every = {
        "machine": ["AB"[row * 2 // many] for row in range(many)],
        **columns,
        "state": ["ok" if row % 3 else "worn" for row in range(many)],
    }
    if path.suffix == ".parquet":
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pa.table(every), path)
        return
    rows = [",".join(row) for row in zip(*every.values(), strict=True)]
    path.write_text("\n".join([",".join(every), *rows]) + "\n")


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_texts_of_all_sensors_are_named_at_once(command: Command, name: str) -> None:
    """As historians write them among numbers: each sensor has a text of its own."""
    draw = np.random.default_rng(0)
    texts = ["Bad Input", "I/O Timeout", "No Data"]
    sensors = {
        sensor: [text if row % 40 == 3 + k else f"{draw.normal(5):.2f}" for row in range(400)]
        for k, (sensor, text) in enumerate(zip("abc", texts, strict=True))
    }
    with_texts(command.folder / name, sensors)
    refused = command("new", name)
    assert refused.code == 2
    setting = f"data.missing_texts={json.dumps(texts)}"
    assert setting in refused.err
    made = command("new", name, "--set", setting)
    assert made.code == 0, made.err
    assert tomllib.loads((command.folder / "t.toml").read_text())["data"]["missing"] == "mean"


def test_two_texts_are_a_sensor_of_0_and_1(command: Command) -> None:
    """The third text is far below the rows of which the coding was guessed: then each text is a sensor."""
    modes = [["auto", "manual"][row * 7 % 5 < 2] for row in range(400)]
    for third, coding in ((False, ["auto", "manual"]), (True, "one-hot")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(profile, "ROWS", 301)
            sensors = {
                "heat": [str(row * 7 % 13) for row in range(400)],
                "mode": [*modes[:-1], "off" if third else "auto"],
            }
            with_texts(command.folder / "t.csv", sensors)
            made = command("new", "t.csv", "--force")
        assert made.code == 0, made.err
        assert tomllib.loads((command.folder / "t.toml").read_text())["data"]["columns"]["categories"]["mode"] == coding
        assert made.err.count("'mode' holds a few texts") == 1
        assert ("0 for 'auto', 1 for 'manual'" in made.err) == (not third)


def test_commas_in_texts_of_a_parquet_file_are_decimal(command: Command) -> None:
    """Beside numbers, which have no decimal mark, also where rows are read as texts for the sake of missing ones."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    values = [row * 7 % 13 / 4 for row in range(400)]
    table = {
        "machine": ["AB"[row // 200] for row in range(400)],
        "a": [f"{value:.2f}".replace(".", ",") for value in values],
        "b": [row * 5 % 11 / 8 for row in range(400)],
        "state": ["ok" if row % 3 else "worn" for row in range(400)],
    }
    parquet.write_table(pa.table(table), command.folder / "t.parquet")
    for words in ((), ("--set", 'data.missing_texts=["No Data"]')):
        made = command("new", "t.parquet", "--force", *words)
        assert made.code == 0, made.err
        park = build_park(config.read(command.folder / "t.toml"))
        x = park.dataset.take(np.arange(len(park.dataset.y)), -1)
        assert {*np.unique(x[:, 0])} == {*values}
        assert {*np.unique(x[:, 1])} == {*table["b"]}


@pytest.mark.parametrize(
    ("labels", "named"), [("ok", "1 of 3 devices has training samples of one class only: press 3 ('ok')."), ("nok", "")]
)
def test_devices_with_one_class_are_named_where_others_have_several(labels: str, named: str, tmp_path: Path) -> None:
    """Of three machines the last one never made scrap."""
    rows = [f"press {k},{n},{n % 7},{'nok' if n % 2 and k < 3 else 'ok'}" for k in (1, 2, 3) for n in range(10)]
    (tmp_path / "t.csv").write_text("\n".join(["device,time,heat,label", *rows[:-10], *rows[-10:-5]]))
    with (tmp_path / "t.csv").open("a") as file:
        file.write("".join(f"\npress 3,{n},{n % 7},{labels}" for n in range(5, 9)) + "\npress 3,9,1,ok\n")
    notes = on_single_class(own.load(tmp_path / "t.csv", Reading(), 0))
    assert [note.partition(" Trained alone")[0] for note in notes] == [named] * bool(named)
