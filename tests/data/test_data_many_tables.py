"""Many tables in one folder: a file per device, a folder per factory, a file per month; header-less ones; encodings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commands import Command
from fedfloor.base.errors import SettingError
from fedfloor.config import pair
from fedfloor.data.files import sheet
from fedfloor.data.files.own import load
from fedfloor.data.reading import Columns, DeviceReading, Reading, TimeSplit, Window
from fedfloor.inference import inputs
from model_files import sensors_of
from own_data import table
from refusals import refused


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLOOR_CACHE", str(tmp_path / "cache"))


FILES = Reading(device="file")


def test_each_file_is_a_device(tmp_path: Path) -> None:
    for name in ("press 10.csv", "press 2.CSV", "mill.tsv"):
        table(tmp_path / "data" / name)
    data = load(tmp_path / "data", FILES, 0)
    assert data.owned.names == ("mill", "press 2", "press 10")
    assert data.owned.factory is None
    in_folders = tmp_path / "folders"
    for name in ("press 10", "press 2", "mill"):
        table(in_folders / name / "log.csv")
    assert (load(in_folders, Reading(), 0).y == data.y).all()


def test_files_as_devices_in_folders_as_factories(tmp_path: Path) -> None:
    for name in ("north/a.csv", "north/b.csv", "south/a.csv"):
        table(tmp_path / "data" / name)
    data = load(tmp_path / "data", Reading(device="file", factory="folder"), 0)
    assert data.owned.names == ("north/a", "north/b", "south/a")
    assert data.owned.factory is not None
    assert (data.owned.factories, data.owned.factory.tolist()) == (("north", "south"), [0, 0, 1])
    with refused("place-in-folder"):
        load(tmp_path / "data", FILES, 0)
    table(tmp_path / "data" / "c.csv")
    with refused("place-in-folder"):
        load(tmp_path / "data", Reading(device="file", factory="folder"), 0)


MONTHS = Reading(device="file", factory="folder", file_name="DEVICE_*")


def test_several_files_of_a_device_by_a_part_of_their_names(tmp_path: Path) -> None:
    for name in ("north/P-1_2026-01", "north/P-1_2026-02", "north/P-2_2026-01", "south/P-9_2026-01"):
        table(tmp_path / "data" / f"{name}.csv")
    data = load(tmp_path / "data", MONTHS, 0)
    assert data.owned.names == ("P-1", "P-2", "P-9")
    assert data.owner is not None
    assert np.bincount(data.owner).tolist() == [32, 16, 16]
    assert load(tmp_path / "data", replace(MONTHS, file_name="DEVICE_20*"), 0).owned.names == data.owned.names
    with refused("name-of-file"):
        load(tmp_path / "data", replace(MONTHS, file_name="DEVICE-20*"), 0)
    for wrong in ("P_*", "DEVICE_DEVICE"):
        with refused("data.file_name"):
            replace(MONTHS, file_name=wrong)
    with refused("data.file_name"):
        Reading(file_name="DEVICE_*")


def test_new_proposes_one_device_for_the_months_of_a_machine(command: Command) -> None:
    """German forms, too: 1.500,5 has a mark between thousands, and Windows-1252 is noted once for all files."""
    for name in ("Werk Süd/P-1_2026-01", "Werk Süd/P-1_2026-02", "Werk Nord/P-2_2026-01", "Werk Nord/P-2_2026-02"):
        path = command.folder / "anlagen" / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [f"{1 + r}.{name[-2:]}.2026;1.50{r % 10},5;{2 * r},25;{r % 2}" for r in range(20)]
        path.write_bytes("\n".join(["Datum;Drehzahl;Öl;Störcode", *rows]).encode("cp1252"))
    asked = command("new", "anlagen")
    assert asked.code == 2
    form = "--set data.device=file --set data.factory=folder --set 'data.file_name=DEVICE_*'"
    assert form in asked.err
    files = ("--set", "data.device=file", "--set", "data.factory=folder")
    first = command("new", "anlagen", *files, "--out", "each.toml")
    assert "if each device has several of these files ('P-1', 'P-2'): --set 'data.file_name=DEVICE_*'" in first.err
    said = command("new", "anlagen", *files, "--set", "data.file_name=DEVICE_*")
    assert said.code == 0, said.err
    assert said.err.count("not UTF-8") == 1
    assert "'.' stands between thousands." in said.err
    drafted = (command.folder / "anlagen.toml").read_text(encoding="utf-8")
    assert 'file_name = "DEVICE_*"' in drafted
    assert 'thousands = "."' in drafted
    assert command("run", "anlagen.toml", "--set", "rounds=1", "--set", "work.batch_size=4").code == 0


def test_a_file_named_for_its_label_is_still_a_device(tmp_path: Path) -> None:
    for name in ("even", "odd"):
        path = table(tmp_path / "data" / "hall" / f"{name}.csv")
        path.write_text(path.read_text().replace("even", name).replace("odd", name))
    data = load(tmp_path / "data", Reading(device="file", factory="folder"), 0)
    assert (data.owned.names, data.owned.factories, data.classes) == (("even", "odd"), ("hall",), ("even", "odd"))


def months(root: Path, factories: bool = False) -> Path:
    """Two months of three devices, each in both files; x counts a device's rows on."""
    for month in (0, 1):
        head = "machine,plant,time,x,label\n" if factories else "machine,time,x,label\n"
        rows = [
            f"m{k},{'north,' * factories}{100 * month + t},{10 * month + t},{'ok' if t % 2 else 'worn'}\n"
            for t in range(10) for k in range(3)
        ]  # fmt: skip
        path = root / f"2026-{month + 1:02}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(head + "".join(rows))
    return root


MACHINE = Columns(device="machine")


def test_a_table_per_month_of_several_devices(tmp_path: Path) -> None:
    data = load(months(tmp_path / "data"), Reading(columns=MACHINE, window=Window(3)), 0)
    assert data.owned.names == ("m0", "m1", "m2")
    assert data.time is not None
    assert (
        data.time.tolist() == [2, 5, 8, 102, 105] * 3
    )  # no window crosses files; the last fifth of each is for testing
    whole = tmp_path / "whole.csv"
    first, second = (path.read_text() for path in sorted((tmp_path / "data").iterdir()))
    whole.write_text(first + second.split("\n", 1)[1])
    one = load(whole, Reading(columns=MACHINE), 0)
    many = load(tmp_path / "data", Reading(columns=MACHINE), 0)
    rows = np.arange(len(one.y))
    assert np.array_equal(one.take(rows, 0), many.take(rows, 0))
    assert np.array_equal(one.owner, many.owner)


def test_a_month_that_comes_twice_under_two_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = months(tmp_path / "data")
    once = load(root, Reading(columns=MACHINE), 0)
    assert not caplog.messages
    for name in ("2026-01.csv", "2026-02.csv"):  # dates: 100 minutes of January, 10 of which are in February's table
        text = (root / name).read_text().splitlines()
        dated = [line.split(",") for line in text[1:]]
        rows = [",".join([m, f"2026-01-01 {int(t) // 60:02}:{int(t) % 60:02}", *rest]) for m, t, *rest in dated]
        (root / name).write_text("\n".join([text[0], *rows]) + "\n")
    first, second = (root / name for name in ("2026-01.csv", "2026-02.csv"))
    second.write_text(second.read_text() + "".join(f"{line}\n" for line in first.read_text().splitlines()[-6:]))
    lines = second.read_text().splitlines()
    second.write_text("\n".join([lines[0], *sorted(lines[1:], key=lambda line: line.split(",")[1])]) + "\n")
    load(root, Reading(columns=MACHINE), 0)
    assert "2026-02.csv: 6 of its 36 rows are also in an earlier table" in caplog.text
    assert "count twice: --set data.copies=drop" in caplog.text
    dropped = load(root, Reading(columns=MACHINE, copies="drop"), 0)
    assert len(dropped.y) == len(once.y)


def test_recordings_that_begin_anew_may_have_equal_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, rows in (("a", 20), ("b", 25), ("c", 20)):
        table(tmp_path / "data" / "press" / f"{name}.csv", rows)
    table(tmp_path / "data" / "mill" / "a.csv")
    load(tmp_path / "data", Reading(), 0)
    assert [message.split(":")[0] for message in caplog.messages if "earlier table" in message] == ["press/c.csv"]


def test_folders_mean_nothing_where_the_device_is_a_column(tmp_path: Path) -> None:
    months(tmp_path / "data" / "2026" / "q1")
    data = load(tmp_path / "data", Reading(columns=MACHINE, device="column"), 0)
    assert (data.owned.names, data.owned.factories) == (("m0", "m1", "m2"), ())
    with refused("folder-and-column-differ"):
        load(tmp_path / "data", Reading(columns=MACHINE), 0)


def test_factories_of_devices_that_are_columns(tmp_path: Path) -> None:
    months(tmp_path / "column", factories=True)
    columns = Columns(device="machine", factory="plant")
    assert load(tmp_path / "column", Reading(columns=columns), 0).owned.factories == ("north",)
    for hall in ("n", "s"):
        months(tmp_path / "folder" / hall)
    data = load(tmp_path / "folder", Reading(columns=MACHINE, device="column", factory="folder"), 0)
    assert data.owned.names == ("n/m0", "n/m1", "n/m2", "s/m0", "s/m1", "s/m2")
    months(tmp_path / "mixed")
    (tmp_path / "mixed" / "2026-03.csv").write_text("machine,time,x,label,factory\nm0,900,1,ok,n\n")
    with refused("columns-differ"):
        load(tmp_path / "mixed", Reading(columns=MACHINE, device="column"), 0)
    with refused("no-column"):
        load(tmp_path / "mixed", Reading(columns=MACHINE, device="column", factory="column"), 0)


def test_sensors_in_another_order_are_read_by_the_names_that_the_refusal_lists(tmp_path: Path) -> None:
    folder = tmp_path / "years"
    folder.mkdir()
    (folder / "2024.csv").write_text("device,a,b,label\n" + "m,1,2,ok\nm,3,4,worn\n" * 3)
    (folder / "2025.csv").write_text("device,b,label,a\n" + "m,2,ok,1\nm,4,worn,3\n" * 3)
    with refused("columns-differ") as error:
        load(folder, Reading(), 0)
    key, names = pair(str(error.value).split("'")[1])
    assert (key, names) == ("data.columns.values", ["a", "b"])
    data = load(folder, Reading(columns=Columns(values=tuple(names))), 0)
    rows = data.take(np.arange(len(data.y)), 0)
    assert {*map(tuple, rows.tolist())} == {(1.0, 2.0), (3.0, 4.0)}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Reading(factory="folder"), "data.factory"),
        (lambda: Reading(device="file", layout="device/file"), "data"),
        (lambda: Reading(header=()), "data.header"),
        (lambda: Reading(thousands=",", decimal=","), "data.thousands"),
        (lambda: Reading(encoding="cp9999"), "data.encoding"),
        (lambda: Reading(encoding="zip"), "data.encoding"),
    ],
)  # fmt: skip
def test_settings_that_contradict_are_refused(make: Callable[[], Reading], told: str) -> None:
    with refused(told):
        make()


def test_a_device_column_must_agree_with_the_files_name(tmp_path: Path) -> None:
    path = table(tmp_path / "data" / "m1.csv", head="time,a,b,label,device")
    with refused("folder-and-column-differ"):
        load(tmp_path / "data", FILES, 0)
    with refused("data.device"):
        load(path, FILES, 0)


def test_a_single_devices_own_tables_are_its_own_whatever_tells_devices_in_simulation(tmp_path: Path) -> None:
    table(tmp_path / "m1" / "monday.csv")
    for path in (tmp_path / "m1", tmp_path / "m1" / "monday.csv"):
        assert len(load(path, DeviceReading(device="file"), 0, "m1").y) == 20


def test_new_run_and_predict_on_files_as_devices(command: Command) -> None:
    for name in ("north/a", "north/b", "south/c"):
        table(command.folder / "data" / f"{name}.csv")
    done = command("new", "data", "--set", "data.device=file", "--set", "data.factory=folder")
    assert done.code == 0, done.err
    assert 'device = "file"' in (command.folder / "data.toml").read_text()
    assert command("run", "data.toml", "--ranks", "1", "--stop-after", "1").code == 0
    assert command("predict", "runs/data", "data/north/a.csv").code == 0


# -- without a header, in other encodings, with marks between thousands ------------------------------------------------

NAMES = ("machine", "time", "x", "label")
HEADLESS = Reading(columns=MACHINE, header=NAMES, split=TimeSplit())


def headless(path: Path) -> Path:
    rows = [f"{k},{t},{t}.5,{'ok' if t % 2 else 'worn'}" for t in range(10) for k in range(2)]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_table_without_a_header(tmp_path: Path) -> None:
    path = headless(tmp_path / "plant.csv")
    found = sheet.read(path, HEADLESS, ("device", "label"))
    assert (found.columns, found.line.tolist()) == (("x",), list(range(1, 21)))
    named = tmp_path / "named.csv"
    named.write_text(",".join(NAMES) + "\n" + path.read_text())
    assert np.array_equal(sheet.read(named, Reading(columns=MACHINE), ("device",)).x, found.x)
    with refused("names-of-columns"):
        load(path, Reading(columns=MACHINE), 0)
    with refused("data.header"):
        load(path, Reading(columns=MACHINE, header=(*NAMES, "y")), 0)
    with refused("data.header"):
        load(path, Reading(columns=MACHINE, header=NAMES[:3]), 0)
    path.write_text(path.read_text().replace("3.5", "hot", 1))
    with refused("odd-text"):
        load(path, HEADLESS, 0)


def test_a_model_of_tables_without_headers_reads_both_kinds(tmp_path: Path) -> None:
    path = headless(tmp_path / "plant.csv")
    sensors = sensors_of(load(path, HEADLESS, 0).inputs.describe())
    assert sensors is not None
    named = tmp_path / "named.csv"
    named.write_text("x,machine\n" + "".join(f"{t}.5,{k}\n" for t in range(10) for k in range(2)))
    headless_x, named_x = (inputs.table(one, sensors, ("ok", "worn")).x for one in (path, named))
    assert np.array_equal(headless_x, named_x)


TEXT = "Gerät;Werk;x;label\n" + "".join(
    f"Säge {k};Köln;{t};{'ok' if t % 2 else 'müde'}\n" for t in range(9) for k in (0, 1)
)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16", "utf-16-be", "cp1251"])
def test_encodings(tmp_path: Path, encoding: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "plant.csv"
    content = TEXT if encoding != "cp1251" else TEXT.translate(str.maketrans("äöü", "яюэ"))
    path.write_bytes(content.encode(encoding))
    given = encoding if encoding in ("utf-16-be", "cp1251") else None
    columns = Columns(device=content.split(";")[0], factory="Werk")
    with caplog.at_level(logging.INFO):
        found = sheet.read(path, Reading(columns=columns, encoding=given), ("device", "label"))
    assert (found.text["device"][:2], {*found.text["factory"]}) == (
        [content.split("\n")[1].split(";")[0], content.split("\n")[2].split(";")[0]],
        {content.split("\n")[1].split(";")[1]},
    )
    told = "plant.csv: not UTF-8, therefore read as Windows-1252 (Latin-1), like further tables"
    assert (told in caplog.text) == (encoding in ("latin-1", "cp1252"))


def test_a_wrong_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plant.csv"
    path.write_bytes(TEXT.encode("latin-1"))
    with refused("encoding"):
        sheet.read(path, Reading(encoding="ascii"), ())


@pytest.mark.parametrize(
    ("thousands", "decimal", "cells", "wanted"),
    [
        (",", ".", ["1,234.5", "-12,345,678", "12", "0.25"], [1234.5, -12345678, 12, 0.25]),
        (".", ",", ["1.234,5", "-12.345.678", "12", "0,25"], [1234.5, -12345678, 12, 0.25]),
        ("'", ".", ["1'234.5", "1’234", "12", "-0.25"], [1234.5, 1234, 12, -0.25]),
        (" ", ",", ["1 234,5", "1\u202f234", "1\xa0234", "7"], [1234.5, 1234, 1234, 7]),
    ],
)  # fmt: skip
def test_thousands(tmp_path: Path, thousands: str, decimal: str, cells: list[str], wanted: list[float]) -> None:
    path = tmp_path / "plant.csv"
    path.write_text("device;label;x\n" + "".join(f"d;l;{cell}\n" for cell in cells))
    reading = Reading(thousands=thousands, decimal=decimal)  # type: ignore[arg-type]
    assert sheet.read(path, reading, ()).x[:, 0].tolist() == [np.float32(value) for value in wanted]
    for wrong in (f"1{thousands}23", f"1234{thousands}567", f"1{thousands}234{thousands}5"):
        path.write_text(f"device;label;x\nd;l;{wrong}\n")
        with pytest.raises(SettingError, match="row 2, column 'x'"):
            sheet.read(path, reading, ())


def test_an_experiment_is_told_of_marks_that_seem_to_count_thousands(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cells = ["1.549", "606", "2.054", "895", "12.117", "77"] * 4
    rows = [f"m{k % 2},{k},{cell},{k % 3},{'ab'[k // 2 % 2]}" for k, cell in enumerate(cells)]
    (tmp_path / "a.csv").write_text("device,time,speed,load,label\n" + "\n".join(rows) + "\n")
    load(tmp_path / "a.csv", Reading(), 0)
    assert "a.csv, column 'speed': '1.549' and the like have three digits after the mark, and '606'" in caplog.text
    assert "'load'" not in caplog.text
    caplog.clear()
    load(tmp_path / "a.csv", Reading(thousands=".", decimal=","), 0)
    assert not caplog.messages


def test_marks_between_thousands_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "plant.csv"
    path.write_text("device;label;x\nd;l;1,234\n")
    with refused("marks"):
        sheet.read(path, Reading(), ())


@pytest.mark.parametrize("task", [(), ("--task", "reconstruction")])
def test_the_tables_of_a_database_are_told_apart_and_the_next_command_works(
    command: Command, task: tuple[str, ...]
) -> None:
    folder = command.folder / "export"
    folder.mkdir()
    hours = [f"2026-03-{1 + i // 24:02d} {i % 24:02d}:00:00" for i in range(96)]
    rows = [f"{hour},{machine},{170 + i % 7},{40 + i % 5}" for machine in (1, 2, 3, 4) for i, hour in enumerate(hours)]
    (folder / "telemetry.csv").write_text("\n".join(["datetime,machineID,volt,vibration", *rows]))
    (folder / "failures.csv").write_text(
        "\n".join(["datetime,machineID,failure", *(f"{hours[60]},{machine},comp2" for machine in (1, 2, 3))])
    )
    (folder / "machines.csv").write_text("machineID,model,age\n1,a,3\n2,b,9\n3,a,1\n4,b,2\n")
    with refused("different-tables"):
        load(folder, Reading(device="column", columns=Columns(device="machineID")), 0)
    told = command("new", "export", *task)
    advice = "fedfloor datasets label export/telemetry.csv export/failures.csv --event-device machineID --kind failure"
    advice += " --within 24h --out marked.csv"
    assert told.code == 2
    assert "fedfloor new export/telemetry.csv" in told.err
    assert advice in told.err
    assert command(*advice.split()[1:]).code == 0
    assert command("new", "marked.csv").code == 0
