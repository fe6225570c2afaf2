"""A table of one's own on the command line: two commands from the file to a model, and every mistake is found."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from commands import Command
from fedfloor.base.errors import SettingError
from fedfloor.data import cache
from fedfloor.data.files import table
from fedfloor.data.files.encode import natural_order
from fedfloor.data.reading import Columns, DraftReading, Problem, Reading
from fedfloor.park.build import build
from refusals import refused
from tables import HEADER, SENSORS, Lines, Mistake, everywhere, load, plant, put, text, without


def rename(column: str, name: str) -> Mistake:
    return put(1, column, name)


def swap(one: int, other: int) -> Mistake:
    def mistake(rows: Lines) -> None:
        rows[one - 1], rows[other - 1] = rows[other - 1], rows[one - 1]

    return mistake


def only(*keep: int) -> Mistake:
    """Leave press 3 with the rows of these times."""
    return lambda rows: rows.__setitem__(
        slice(1, None), [row for row in rows[1:] if row[0] != "press 3" or int(row[2]) in keep]
    )


def ids(rows: Lines) -> None:
    for number, row in enumerate(rows):
        row.append("id" if number == 0 else f"n{min(number, 70)}")


def dates(form: str, odd: str, row: int = 20) -> Mistake:
    def mistake(rows: Lines) -> None:
        for cells in rows[1:]:
            cells[2] = form.format(int(cells[2]))
        rows[row - 1][2] = odd

    return mistake


MISTAKES: dict[str, tuple[Mistake, tuple[str, ...]]] = {
    "a column is missing": (
        without("label"),
        ("row 1 (the header): no column 'label'", "--set data.columns.label=NAME"),
    ),
    "no column for the device": (rename("device", "devise"), ("row 1 (the header)", "Did you mean 'devise'?")),
    "text in a number": (put(7, "flow", "broken"), ("row 7, column 'flow': 'broken' is not a number", "ignore")),
    "a decimal comma": (
        put(7, "flow", '"1,5"'),
        ("row 7, column 'flow': '1,5'", "not a number with the decimal mark '.', as"),
    ),
    "digits in groups": (put(7, "flow", "1_000"), ("row 7, column 'flow': '1_000' is not a number",)),
    "infinite": (put(9, "speed", "-inf"), ("row 9, column 'speed': '-inf' is not a finite number",)),
    "too large": (put(9, "speed", "1e39"), ("row 9, column 'speed': '1e39' is not a finite number",)),
    "one class only": (everywhere("label", "good"), ("row 2, column 'label': 'good'", "a single class")),
    "a device with one row": (only(4), ("row 17, column 'device': device 'press 3' has 1 row,", "small")),
    "a device with two rows": (only(4, 5), ("row 17, column 'device': device 'press 3' has 2 rows", "small")),
    "duplicate ids": (
        ids,
        ("row 72, column 'id': 'n70' is already the id in plant.csv, row 71", "data.columns.run=id"),
    ),
    "times out of order": (swap(6, 10), ("row 10, column 'time'", "row 6", "'press 0'", "sort = true")),
    "a time twice": (
        put(10, "time", "1"),
        ("row 10, column 'time': device 'press 0' has this time in row 6", "data.columns.time="),
    ),
    "days only": (everywhere("time", "2026-03-01"), ("row 6, column 'time'", "coarser", "data.columns.time=")),
    "no time": (put(10, "time", "noon"), ("row 10, column 'time': 'noon' is no time", "2026-03-01T06:30:00")),
    "an empty time": (
        put(10, "time", ""),
        ("row 10, column 'time': '' is no time", "such as a sum: --set 'data.skip=[10]'"),
    ),
    "an infinite time": (put(10, "time", "inf"), ("row 10, column 'time': 'inf' is no time",)),
    "a date of another land": (put(10, "time", "01.03.2026 06:30"), ("row 10, column 'time': '01.03.2026 06:30'",)),
    "a date among numbers": (put(10, "time", "2026-03-01"), ("row 10, column 'time': '2026-03-01'", "numbers")),
    "a zone now and then": (
        dates("2026-03-01T06:{:02}", "2026-03-01T06:04+01:00"),
        ("row 20, column 'time': '2026-03-01T06:04+01:00'", "without a time zone"),
    ),
    "an empty device": (put(5, "device", " "), ("row 5, column 'device': empty. Every row needs a device",)),
    "an empty factory": (put(5, "factory", ""), ("row 5, column 'factory': empty. Every row needs a factory",)),
    "an empty label": (put(5, "label", ""), ("row 5, column 'label': empty. Every row needs a label",)),
    "a label that is none": (put(5, "label", "NaN"), ("row 5, column 'label': 'NaN' is no label",)),
    "a device in two factories": (
        put(14, "factory", "hall 1"),
        ("row 14, column 'factory': device 'press 0'", "'hall 1' here, but in 'hall 0' in row 2"),
    ),
    "a short row": (lambda rows: rows[4].pop(), ("row 5, column 'label': 9 cells, but the header has 10",)),
    "a long row": (lambda rows: rows[4].append("x"), ("row 5: 11 cells, but the header has 10", "quotes")),
    "a name twice": (rename("flow", "temp"), ("row 1 (the header): column 4: the name 'temp' is given twice",)),
    "no sensors": (
        lambda rows: [row.__setitem__(slice(3, 9), []) for row in rows],
        ("row 1 (the header): no sensors, only device, factory, time, label",),
    ),
    "a quotation mark": (put(8, "device", '"press 2'), ("row 8: not a complete row", "quotation mark")),
    "header only": (lambda rows: rows.__delitem__(slice(1, None)), ("a header, but no rows below it",)),
    "empty": (lambda rows: rows.clear(), ("row 1: empty. A table must begin with a row of its columns' names",)),
    "a blank first line": (lambda rows: rows.insert(0, [""]), ("row 1: empty",)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_answered_with_file_row_and_column(command: Command, name: str) -> None:
    mistake, messages = MISTAKES[name]
    (command.folder / "plant.csv").write_text(text(plant(mistake)))
    command.refused(command("new", "plant.csv"), "plant.csv", *messages)
    (command.folder / "tiny.toml").write_text('rounds = 1\n[data]\npath = "plant.csv"\n[model]\nname = "mlp-sensor"\n')
    command.refused(command.run(), "plant.csv", *messages)


BYTES: dict[str, tuple[Callable[[bytes], bytes], tuple[str, ...]]] = {
    "no letter in any encoding": (
        lambda raw: raw.replace(b"press 3,hall 1,7,", b"B\x81rste,hall 1,7,"),
        ("row 33, column 1: 'B\N{REPLACEMENT CHARACTER}rste' is not UTF-8", "Save the table as CSV in UTF-8"),
    ),
    "half of UTF-16": (lambda raw: raw.decode().encode("utf-16")[:-1], ("not text in utf-16", "data.encoding")),
    "binary": (lambda raw: raw.replace(b"press", b"\xff\x00\x01"), ("is not UTF-8",)),
    "cut-off gzip": (lambda raw: gzip.compress(raw)[:-20], ("not a complete table",)),
}


def test_a_column_in_capitals_is_suggested(command: Command) -> None:
    rows = plant()
    rename("label", "LABEL")(rows)
    (command.folder / "plant.csv").write_text(text(rows))
    (command.folder / "plant.toml").write_text('[data]\npath = "plant.csv"\n')
    command.refused(command("run", "plant.toml"), "no column 'label'. Did you mean 'LABEL'?")


@pytest.mark.parametrize("name", BYTES)
def test_what_is_no_text_is_answered_too(command: Command, name: str) -> None:
    spoil, messages = BYTES[name]
    (command.folder / "plant.csv").write_bytes(spoil(text(plant()).encode()))
    command.refused(command("new", "plant.csv"), "plant.csv", *messages)


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        (
            'data.columns={values=["temp","flaw"]}',
            ("row 1", "no column 'flaw'", "Did you mean 'flow'?", "columns.values"),
        ),
        ('data.columns={ignore=["leval"]}', ("no column 'leval'", "Did you mean 'level'?", "columns.ignore")),
        ('data.columns={factory="works"}', ("no column 'works'", "columns.factory=NAME")),
        ('data.columns={values=["device"]}', ("data.columns = 'device'", "unique names")),
        ('data.classes=["good","torn"]', ("row 6, column 'label': 'worn'", "Did you mean 'torn'?")),
        ("data.window={length=7}", ("row 2, column 'device'", "3 training and 0 test windows of 7 rows", "3 more")),
        ("data.window={length=31}", ("0 training and 0 test windows",)),
        ("data.window={length=0}", ("data.window.length = 0",)),
        ('data.split={kind="random",test=0.01}', ("row 2, column 'device'", "30 training and 0 test rows")),
        ('data.split={kind="random",test=1}', ("data.split.test = 1", "below 1")),
        ('data.decimal=","', ("row 2, column 'temp'", "--set 'data.decimal=.'")),
    ],
)
def test_settings_that_do_not_fit_the_table(command: Command, change: str, messages: tuple[str, ...]) -> None:
    (command.folder / "plant.csv").write_text(text(plant()))
    command.refused(command("new", "plant.csv", "--set", change), *messages)


def test_overlapping_windows_are_not_split_at_random(command: Command) -> None:
    (command.folder / "plant.csv").write_text(text(plant()))
    words = ("--set", "data.window={length=4,step=2}", "--set", 'data.split={kind="random"}')
    command.refused(command("new", "plant.csv", *words), "they overlap")


def test_training_samples_of_one_class_are_refused(command: Command) -> None:
    rows = plant(everywhere("label", "good"))
    for row in rows[-8:]:
        row[-1] = "worn"
    (command.folder / "plant.csv").write_text(text(rows))
    by_time = command("new", "plant.csv", "--set", 'data.split={kind="time"}')
    command.refused(by_time, "plant.csv: every training sample is 'good'", "split")
    drafted = command("new", "plant.csv")
    assert "because by time the training rows have one class" in drafted.err


def test_sensors_factories_and_order(tmp_path: Path) -> None:
    data = load(tmp_path, plant())
    park = build(data)
    assert (park.devices, park.factories, park.factory_names) == (4, 2, ("hall 0", "hall 1"))
    assert park.factory_of.tolist() == [0, 1, 0, 1]
    assert park.names == ("press 0", "press 1", "press 2", "press 3")
    assert park.sizes.tolist() == [24] * 4
    assert len(data.y_test) == 24
    mine = [row for row in plant()[1:] if row[0] == "press 2"]
    assert np.array_equal(park.samples(2)[0], np.array([row[3:9] for row in mine[:24]], np.float32))
    assert data.time is not None
    assert data.time[park.indices[2]].tolist() == list(range(24))
    assert data.inputs.columns == SENSORS
    assert data.classes == ("good", "worn")


def test_rows_are_put_in_order_where_asked(tmp_path: Path) -> None:
    rows = plant()
    mixed = [rows[0], *(rows[1 + i] for i in np.random.default_rng(1).permutation(len(rows) - 1))]
    with refused("times"):
        load(tmp_path, mixed)
    one = load(tmp_path, rows)
    other = load(tmp_path, mixed, Reading(sort=True))
    every = np.arange(len(one.y))
    assert np.array_equal(one.take(every, 0), other.take(every, 0))
    assert np.array_equal(one.y, other.y)


def test_without_time_or_factory(tmp_path: Path) -> None:
    park = build(load(tmp_path, plant(lambda rows: (without("time")(rows), [row.pop(1) for row in rows]))))
    assert (park.factories, park.dataset.time, park.factory_names) == (1, None, ())
    assert park.sizes.tolist() == [24] * 4


def test_a_column_may_be_no_role(tmp_path: Path) -> None:
    data = load(tmp_path, plant(rename("flow", "id")), Reading(columns=Columns(id="")))
    assert "id" in data.inputs.columns
    with refused("repeated-id"):
        load(tmp_path, plant(lambda rows: (rename("flow", "id")(rows), put(3, "flow", rows[1][5])(rows))))


def test_names_are_ordered_as_people_count() -> None:
    assert natural_order(["m10", "m9", "m09", "1²", "2", "m" + 5000 * "9"]) == [
        "1²", "2", "m09", "m9", "m10", "m" + 5000 * "9"
    ]  # fmt: skip


def told(folder: Path, rows: list[list[str]]) -> list[Problem]:
    """Return the problems that a draft is told of a table."""
    reading = DraftReading()
    with pytest.raises(SettingError):
        load(folder, rows, reading)
    return reading.told


def test_holes_are_refused_unless_something_is_said(tmp_path: Path) -> None:
    holes = plant(lambda rows: (put(9, "speed", "")(rows), put(17, "temp", " n/a ")(rows)))
    with refused("missing"):
        load(tmp_path, holes)
    (problem,) = told(tmp_path, holes)
    assert (problem.kind, problem.count, problem.carried) == ("missing", 2, True)
    previous = load(tmp_path, holes, Reading(missing="previous"))
    mine = [row for row in plant()[1:] if row[0] == "press 3"]
    assert previous.take(np.array([72 + 1]), 0)[0, 3] == np.float32(mine[0][6])
    drop = load(tmp_path, holes, Reading(missing="drop"))
    assert len(drop.y) == len(previous.y) - 2
    mean = load(tmp_path, holes, Reading(missing="mean"))
    assert int(np.isnan(mean.take(np.arange(len(mean.y)), 0)).sum()) == 2


def test_a_recording_without_any_value_cannot_be_carried_on(tmp_path: Path) -> None:
    rows = plant()
    for row in rows[1:]:
        if row[0] == "press 1":
            row[HEADER.index("flow")] = ""
    assert [problem.carried for problem in told(tmp_path, rows)] == [True]
    flow = [load(tmp_path, rows, Reading(missing=missing)) for missing in ("previous", "mean")]
    holes = [np.isnan(data.take(np.arange(96), 0)) for data in flow]
    assert holes[0].sum() == 24
    assert np.array_equal(*holes)


def test_no_value_is_filled_from_the_future_or_across_a_hole(tmp_path: Path) -> None:
    """A sensor that is fitted late has no value before, at the end of the training rows neither."""
    lines = ["device,time,temp,vib,label"]
    for device in "ab":
        for row in range(20):
            time = row + 100 * (row >= 10)
            late = row if row in (16, 18) else ""
            lines.append(f"{device},{time},{'' if row in (5, 10, 11) else row},{late},{'ok' if row % 2 else 'worn'}")
    (tmp_path / "late.csv").write_text("\n".join(lines) + "\n")
    data = table.load(tmp_path / "late.csv", Reading(missing="previous", gap_s=5.0), 0)
    temp, vib = data.take(np.arange(16), 0).T
    np.testing.assert_array_equal(temp, [*range(5), 4, *range(6, 10), np.nan, np.nan, *range(12, 16)])
    assert np.isnan(vib).all()
    np.testing.assert_array_equal(data.take_test(np.arange(4))[:, 1], [16, 16, 18, 18])


def test_small_devices_are_left_out_where_asked(tmp_path: Path) -> None:
    park = build(load(tmp_path, plant(only(4, 5)), Reading(small="drop")))
    assert park.names == ("press 0", "press 1", "press 2")
    assert (park.factories, park.factory_of.tolist()) == (2, [0, 1, 0])
    rows = [row for row in plant() if row[0] != "press 1"]  # hall 1 has but a small device
    assert build(load(tmp_path, only(4, 5)(rows) or rows, Reading(small="drop"))).factory_names == ("hall 0",)


def test_parsed_once_and_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedfloor.experiment import DataSettings

    monkeypatch.setenv("FEDFLOOR_CACHE", str(tmp_path / "cache"))
    first = load(tmp_path, plant(), DataSettings(path="a/plant.csv"))
    monkeypatch.setattr(table, "scan", None)  # nothing is parsed any more
    settings = DataSettings(path="b/plant.csv", normalise="unit", samples_per_device=3, small="drop")
    again = load(tmp_path, plant(), settings)
    assert again.digest == first.digest
    assert cache.cache_root() == tmp_path / "cache"
    with pytest.raises(TypeError):
        load(tmp_path, plant(put(2, "temp", "9.5")), settings)


def test_recordings_of_a_device_follow_their_times(tmp_path: Path) -> None:
    """The file that comes first by name holds what was measured last: that is for testing."""
    from fedfloor.data.files.sheet import read

    rows = plant()
    later = [rows[0], *([*row[:2], str(100 + int(row[2])), *row[3:]] for row in rows[1:])]
    paths = [tmp_path / name for name in ("a.csv", "b.csv")]
    for path, content in zip(paths, (later, rows), strict=True):
        path.write_text(text(content))

    def both(writer: cache.Writer) -> dict[str, object]:
        sheets = [read(path, Reading(), ("device", "label")) for path in paths]
        device, label = ([word for sheet in sheets for word in sheet.text[role]] for role in ("device", "label"))
        return dict(table.write(writer, sheets, device, None, label, Reading()))

    entry = cache.remember("test of two files", paths, both)
    data = table.of_entry("both", entry, Reading(), 0)
    assert data.time is not None
    assert data.owner is not None
    mine = data.time[data.owner == 1]
    assert mine.tolist() == [*range(30), *range(100, 118)]


def test_a_silent_sensor_is_refused(tmp_path: Path) -> None:
    with refused("empty"):
        load(tmp_path, plant(everywhere("level", "NA")), Reading(missing="mean"))
