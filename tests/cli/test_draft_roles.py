"""What a table's columns are taken for where nobody says, and what is left alone."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Command
from fedfloor.base.errors import SettingError
from fedfloor.config import pair, read
from fedfloor.data.files.marks import other_marks
from fedfloor.drafting.guess import Guess, words
from fedfloor.drafting.guess import guess as whole
from fedfloor.drafting.profile import TableProfile
from refusals import refused

GERMAN = "timestamp;Machine;plant;rpm;torque;condition;operator\n" + "".join(
    f"2026-03-01T06:{minute:02}:00;M{machine};{'Linz' if machine < 2 else 'Graz'};{1500 + minute},5;{minute % 7};"
    f"{'worn' if minute % 3 else 'ok'};Anna\n"
    for minute in range(30)
    for machine in range(4)
)


def guess(path: Path, given: dict[str, Any], *needed: Any) -> dict[str, Any]:
    return whole(TableProfile.of(path, given), given, *needed).settings


def table(folder: Path, text: str) -> Path:
    path = folder / "line.csv"
    path.write_text(text)
    return path


def test_common_names_texts_and_decimal_commas(tmp_path: Path) -> None:
    got = guess(table(tmp_path, GERMAN), {})
    assert got == {
        "columns": {
            "device": "Machine", "factory": "plant", "time": "timestamp", "label": "condition", "ignore": ["operator"],
        },
        "decimal": ",",
    }  # fmt: skip
    assert words(Guess(got), {})[0] == "'Machine' is taken for the device"
    assert words(Guess(got), {})[-2:] == [
        "'operator' holds no numbers and is ignored",
        "fractions are written with commas",
    ]


@pytest.mark.parametrize(
    ("lot", "left_out"),
    [
        (lambda row, machine: f"B{row // 20 + 7 * machine:03}", True),
        (lambda row, machine: f"{row // 20}. Schicht", True),
        (lambda row, machine: f"S{row // 20 % 2}", False),  # returns
        (lambda row, machine: ["steel", "brass", "zinc"][row // 34], False),  # no numbers: the next lot may be steel
        (lambda row, machine: f"recipe {machine}", False),  # one per machine
    ],
)
def test_lots_that_are_numbered_are_no_sensors(tmp_path: Path, lot: Callable[[int, int], str], left_out: bool) -> None:
    """A lot number of later rows never occurred in training, so a sensor for each lot would be useless there."""
    rows = [
        f"M{machine},{lot(row, machine)},{row % 7},{'ok' if row % 3 else 'nok'}\n"
        for row in range(100)
        for machine in range(3)
    ]
    got = whole(TableProfile.of(table(tmp_path, "device,lot,load,label\n" + "".join(rows)), {}), {})
    assert (got.settings["columns"].get("ignore") == ["lot"]) == left_out
    assert ("none of which returns" in got.evidence.get("lot", "")) == left_out


def test_what_is_told_is_not_guessed(tmp_path: Path) -> None:
    told: dict[str, Any] = {"columns": {"device": "plant", "ignore": ["Machine"]}, "decimal": ","}
    got = guess(table(tmp_path, GERMAN), told)
    assert got["columns"]["device"] == "plant"
    assert got["columns"]["ignore"][0] == "Machine"
    assert "factory" not in got["columns"]  # 'plant' is the device now
    assert "decimal" not in got
    assert not any("taken for the device" in sentence for sentence in words(Guess(got), told))
    with refused("no-number"):
        guess(table(tmp_path, GERMAN), told | {"decimal": "."})


@pytest.mark.parametrize(
    ("cells", "advice"),
    [
        (("5.1 bar", "5.2 bar", "4.9 bar"), "Write the numbers without 'bar'"),
        (("-12%", "13.5%", "9%"), "Write the numbers without '%'"),
        (("20 °C", "21 °C", "?"), "Write the numbers without '°C'"),
        (("20,000", "1,020", "3,000"), "if it stands between thousands: --set 'data.thousands=,'"),
        (("20.000,5", "1.020,5", "3.000,1"), "--set 'data.thousands=.' --set 'data.decimal=,'"),
        (("1'000", "2'000", "3'500"), '--set "data.thousands=\'"'),
    ],
)
def test_numbers_with_units_or_marks_are_never_ignored(tmp_path: Path, cells: tuple[str, ...], advice: str) -> None:
    text = "device;a;b;label\n" + "".join(f"x;{cell};{i}.5;ok\n" for i, cell in enumerate(cells))
    with refused("no-number"):
        guess(table(tmp_path, text), {})


def test_a_decimal_mark_that_is_set_is_believed_where_points_stand_between_thousands(tmp_path: Path) -> None:
    text = "device;a;b;label\n" + "".join(f"x;1.{375 + i};{i},5;ok\n" for i in range(9))
    with refused("no-number"):
        guess(table(tmp_path, text), {})
    assert guess(table(tmp_path, text), {"decimal": ","}) == {}
    assert guess(table(tmp_path, text), {"decimal": ",", "thousands": "."}) == {}


@pytest.mark.parametrize(("cell", "mark"), [("1 234,5", " "), ("1'234,5", "'"), ("1.234,5", ".")])
def test_the_advised_mark_between_thousands_is_the_tables(cell: str, mark: str) -> None:
    (option,) = re.findall(r"--set (\S*data.thousands=.*)", other_marks(cell, ","))
    assert pair(option[1:-1]) == ("data.thousands", mark)


def test_numbers_with_both_marks_show_the_one_between_thousands(tmp_path: Path) -> None:
    rows = "".join(f"x;{cell};{i}.5;ok\n" for i, cell in enumerate(("20,000.5", "1,020.5", "3.1")))
    got = guess(table(tmp_path, f"device;a;b;label\n{rows}"), {})
    assert got == {"thousands": ","}
    assert "',' stands between thousands" in words(Guess(got), {})


COUNTS = ("895", "2{}054", "12{}117", "77", "640", "1{}003")


@pytest.mark.parametrize("mark", [",", "."])
def test_whole_numbers_beside_three_digits_after_each_mark_count_thousands(tmp_path: Path, mark: str) -> None:
    """2.054 beside 895 is 2054, which is never read as a fraction without a word."""
    cells = [count.format(mark) for count in COUNTS]
    path = table(tmp_path, "device;a;b;label\n" + "".join(f"x;{cell};{i};ok\n" for i, cell in enumerate(cells)))
    with refused("grouped-numbers") as refusal:
        guess(path, {})
    assert f"'data.thousands={mark}'" in str(refusal)
    assert guess(path, {"thousands": mark}) == ({"decimal": ","} if mark == "." else {})
    assert guess(path, {"decimal": mark}) == {}  # what is set is believed


def test_a_target_shows_the_mark_between_thousands(tmp_path: Path) -> None:
    rows = "".join(f"x;0.{i};1,01{i}.5\n" for i in range(9))
    assert guess(table(tmp_path, f"device;a;label\n{rows}"), {})["thousands"] == ","


@pytest.mark.parametrize(
    ("cell", "advice"),
    [
        ("12\u202f345,{:02}", "--set 'data.decimal=,'"),
        ('="4.{:02}"', "Write plain numbers"),
        ("(4.{:02})", "Write plain numbers"),
        ("0x1{:02}", "Write plain numbers"),
    ],
)
def test_numbers_in_another_form_are_never_ignored(tmp_path: Path, cell: str, advice: str) -> None:
    rows = "".join(f"x;{cell.format(i)};{i}.5;ok\n" for i in range(40))
    with refused("no-number") as refusal:
        guess(table(tmp_path, f"device;a;b;label\n{rows}"), {})
    assert advice in str(refusal)


def test_units_that_differ_are_all_named(tmp_path: Path) -> None:
    """Without the units 1.2 MPa would be less than 5 bar."""
    rows = "".join(f"x;{i}.5 {('bar', 'MPa', 'psi')[i % 3]};{i}.5;ok\n" for i in range(40))
    with refused("no-number") as refusal:
        guess(table(tmp_path, f"device;a;b;label\n{rows}"), {})
    assert "several units ('bar', 'MPa', 'psi')" in str(refusal)


def test_dates_beside_the_time_are_no_categories(tmp_path: Path) -> None:
    """A sensor for each day would be useless for the days to come."""
    rows = "".join(f"x;2026-03-0{1 + i // 10};{i}.5;{('ok', 'nok')[i % 2]}\n" for i in range(40))
    path = table(tmp_path, f"device;day;b;label\n{rows}")
    assert guess(path, {"columns": {"time": ""}})["columns"]["ignore"] == ["day"]


def test_codes_are_no_numbers_with_units(tmp_path: Path) -> None:
    text = "device,a,b,label\n" + "".join(f"x,12-A{i},{i},ok\n" for i in range(30))
    assert guess(table(tmp_path, text), {})["columns"] == {"ignore": ["a"]}


@pytest.mark.parametrize(
    "text",
    [
        "device,factory,time,a,label\nx,n,1,2.5,ok\n",  # everything is called as it should be
        "device,a,label\nx,NA,ok\n",  # nothing but missing values is no text
        "device,a,label\nx,1,ok\nx,oops,ok\n",  # a number and a mistake: the mistake must be said, not ignored
        "device,a,b,label\nx,1.5,2,ok\n",
        "",
    ],
)
def test_where_there_is_nothing_to_guess(tmp_path: Path, text: str) -> None:
    assert guess(table(tmp_path, text), {}) == {}


def test_commas_beside_points_are_no_decimal_commas(tmp_path: Path) -> None:
    text = 'device;a;b;label\nx;"1,234";0.5;ok\n'
    assert "decimal" not in guess(table(tmp_path, text), {})


def test_new_and_run_on_a_table_that_names_nothing_as_the_default_does(command: Command) -> None:
    table(command.folder, GERMAN)
    said = command("new", "line.csv")
    assert said.code == 0, said.err
    assert "line.csv: 'operator' holds no numbers and is ignored." in said.err
    data = tomllib.loads((command.folder / "line.toml").read_text())["data"]
    assert (data["decimal"], data["columns"]["label"]) == (",", "condition")
    assert command("run", "line.toml", "--ranks", "1", "--stop-after", "1").code == 0


def test_german_names_and_dates_under_any_name(tmp_path: Path) -> None:
    text = "Maschine;Werk;wann;Bediener;Druck;Zustand\nM1;Nord;2026-03-01T06:00:00;Anna;3,5;ok\n"
    assert guess(table(tmp_path, text), {})["columns"] == {
        "device": "Maschine", "factory": "Werk", "time": "wann", "label": "Zustand", "ignore": ["Bediener"],
    }  # fmt: skip


@pytest.mark.parametrize(
    "name", ["Roboter", "Kompressor", "Antrieb", "Getriebe", "Schweißroboter", "Spritzgussmaschine", "Gerät", "Lüfter"]
)
def test_a_machine_is_a_device_in_german(tmp_path: Path, name: str) -> None:
    rows = "".join(f"R{1 + k % 2};Halle {1 + k % 2};{k},5;{'ok' if k % 3 else 'nok'}\n" for k in range(12))
    columns = guess(table(tmp_path, f"{name};Halle;Strom;Zustand\n{rows}"), {})["columns"]
    assert (columns["device"], columns["factory"], columns["label"]) == (name, "Halle", "Zustand")


@pytest.mark.parametrize("name", ["Maschinennummer", "Anlagen-Nr.", "Geräte-ID", "Roboter Kennung", "Getriebenummer"])
def test_a_german_number_of_a_machine_is_a_device(tmp_path: Path, name: str) -> None:
    rows = "".join(f"{1 + k // 6};{k},5;{'ok' if k % 3 else 'nok'}\n" for k in range(12))
    assert guess(table(tmp_path, f"{name};Strom;Zustand\n{rows}"), {})["columns"]["device"] == name


def test_the_state_of_a_machine_is_no_device(tmp_path: Path) -> None:
    rows = "".join(f"P{1 + k % 2};{k},5;{'ok' if k % 3 else 'nok'}\n" for k in range(12))
    columns = guess(table(tmp_path, f"Pumpe;Strom;Zustand_Pumpe\n{rows}"), {})["columns"]
    assert columns["device"] == "Pumpe"


def test_a_date_is_taken_for_the_time_beside_texts(tmp_path: Path) -> None:
    assert guess(table(tmp_path, "date,who,device,a,label\n2026-03-01,Anna,x,1,ok\n"), {})["columns"]["time"] == "date"


@pytest.mark.parametrize(
    ("head", "cells", "message"),
    [
        (
            "date,wann",
            "2026-03-01,06:00 Uhr",
            "no-time",
        ),
        ("datum", "05.13.2026 36:00", "no-time"),
        ("when", "10/5/2026 6:00 XM", "no-time"),
        ("x", "5 Oct 2026 6h", "no-time"),
        ("timestamp", "shift one", "no-time"),
        (
            "begin,end",
            "2026-03-01,2026-03-02",
            "choice-of-time",
        ),
    ],
)
def test_dates_that_are_not_read_are_refused_not_ignored(tmp_path: Path, head: str, cells: str, message: str) -> None:
    """They were taken for texts to ignore: rows lost their order, and the split was at random."""
    path = table(tmp_path, f"{head},device,a,label\n{cells},x,1,ok\n")
    with refused(message):
        guess(path, {})
    guess(path, {"columns": {"ignore": [name for name in head.split(",") if name != "date"]}})  # as the message advises


def test_new_names_the_column_of_dates_and_what_is_read(command: Command) -> None:
    table(command.folder, GERMAN.replace("2026-03-01T06:", "01.03.26 6h"))
    command.refused(
        command("new", "line.csv"), "line.csv, column 'timestamp': '01.03.26 6h00:00' looks like a date or time",
        "Times must be numbers, or dates and times such as 2026-03-01T06:30:00", "For another format set [data] time_",
    )  # fmt: skip
    assert command("new", "line.csv", "--set", "data.time_format=%d.%m.%y %Hh%M:%S", "--out", "form.toml").code == 0
    assert command("new", "line.csv", "--set", 'data.columns.ignore=["timestamp"]').code == 0


MEASURES = {
    "a fraction": (
        [f"{n % 7 / 4}" for n in range(120)],
        "'rul': 7 different numbers, with fractions such as 0.5: measured",
    ),
    "very many": (
        [str(n) for n in range(120)],
        "column 'rul': 120 different numbers, such as 0: measured values and no classes",
    ),
}


@pytest.mark.parametrize(("labels", "message"), MEASURES.values(), ids=MEASURES)
def test_a_measure_is_not_taken_for_classes(command: Command, labels: list[str], message: str) -> None:
    rows = "".join(f"m{n % 4},{n},{n % 9},{label}\n" for n, label in enumerate(labels))
    (command.folder / "wear.csv").write_text(f"device,time,a,rul\n{rows}")
    for number in range(4):
        lines = [line.partition(",")[2] for line in rows.splitlines() if line.startswith(f"m{number},")]
        (command.folder / "wear" / f"m{number}").mkdir(parents=True)
        (command.folder / "wear" / f"m{number}" / "log.csv").write_text("\n".join(["time,a,rul", *lines]) + "\n")
    for path in ("wear.csv", "wear"):
        words = ("new", path, "--set", "data.columns.label=rul", "--out", f"{path}.toml")
        command.refused(command(*words, "--task", "classification"), message, "--set data.task=regression")
        said = command(*words)
        assert "the label is a number and is predicted as a number" in said.err
        assert 'kind = "regression"' in (command.folder / f"{path}.toml").read_text()
    if "." in labels[1]:
        classes = f"data.classes={sorted(set(labels), key=float)}"
        assert command("new", "wear.csv", "--force", "--set", "data.columns.label=rul", "--set", classes).code == 0


def test_whole_numbers_written_as_fractions_are_classes(command: Command) -> None:
    rows = "".join(f"m{n % 4},{n},{n % 9},{n % 2}.0\n" for n in range(120))
    (command.folder / "valve.csv").write_text(f"device,time,a,label\n{rows}")
    assert command("new", "valve.csv").code == 0


def test_normal_operation_alone_says_what_is_possible(command: Command) -> None:
    rows = "".join(f"m{n % 4},{n},{n % 9},normal\n" for n in range(120))
    (command.folder / "calm.csv").write_text(f"device,time,a,label\n{rows}")
    command.refused(
        command("new", "calm.csv"), "the data have a single class", "labelled samples of two classes or more",
        "[data] task = 'reconstruction'",
    )  # fmt: skip
    (command.folder / "calm.csv").write_text(f"device,time,a\n{rows.replace(',normal', '')}")
    command.refused(command("new", "calm.csv"), "no column 'label'", "--set data.task=forecasting predicts")


def test_without_a_device_nothing_is_guessed_and_the_message_says_so(command: Command) -> None:
    table(command.folder, GERMAN.replace("Machine", "thing"))
    said = command("new", "line.csv")
    command.refused(said, "no column 'device'", "--set data.columns.device=NAME, and likewise label, factory and time")
    assert "note:" not in said.err


def test_columns_that_may_be_the_device_or_the_label_are_named(command: Command) -> None:
    """`new` chooses none of them: a column of few values may be a setting as well."""
    rows = "".join(f"{'AB'[i > 29]},{i},{i % 3},{i % 2},{i * 0.7:.1f}\n" for i in range(60))
    (command.folder / "rig.csv").write_text(f"rig,n,grade,valve,heat\n{rows}")
    command.refused(command("new", "rig.csv"), "It may be 'rig' (2 texts): --set data.columns.device=rig.")
    message = "It may be 'grade' (3 numbers) or 'valve' (2 numbers): --set data.columns.label=grade."
    command.refused(command("new", "rig.csv", "--set", "data.columns.device=rig"), message)
    dated = "".join(
        f"m{i % 3},1{i // 30}.01.2026,0{i % 9}:00,{i % 2},{'ok' if i % 7 else 'bad'},{i}\n" for i in range(60)
    )
    (command.folder / "dated.csv").write_text(f"machine,Tag,Uhr,valve,press state,heat\n{dated}")
    message = "It may be 'press state' (2 texts) or 'valve' (2 numbers): --set 'data.columns.label=press state'."
    command.refused(command("new", "dated.csv"), message)  # and not the date
    wide = ",".join(f"s{i}" for i in range(590))
    (command.folder / "wide.csv").write_text(f"{wide}\n{','.join(['1.5'] * 590)}\n")
    command.refused(command("new", "wide.csv"), "s39, … (550 more).")


def test_a_column_of_states_is_offered_as_the_label_and_not_as_the_device(command: Command) -> None:
    rows = "".join(f"{i},{i * 0.7:.1f},{('Normal', 'Attack')[i > 40]}\n" for i in range(60))
    (command.folder / "water.csv").write_text(f"n,level,Plant/Phase\n{rows}")
    ownerless = command("new", "water.csv")
    command.refused(ownerless, "no column 'device'")
    assert "It may be" not in ownerless.err
    (command.folder / "halle.csv").write_text(
        "Zeit;Luft;Last\n" + "".join(f"{i};{i % 20},{i % 7};{i}\n" for i in range(99))
    )
    assert "It may be" not in command("new", "halle.csv").err  # numbers with a decimal comma name no machines
    undealt = command("new", "water.csv", "--set", "data.columns.device=")
    command.refused(undealt, "It may be 'Plant/Phase' (2 texts): --set data.columns.label=Plant/Phase.")


@pytest.mark.parametrize(("first", "named"), [("", "column 1"), ("Unnamed: 0", "Unnamed: 0")])
def test_an_index_as_pandas_writes_it_is_left_out(command: Command, first: str, named: str) -> None:
    rows = "".join(f"{10 * i},p{i % 2},{i},{i % 3},{i % 5}.5\n" for i in range(60))
    (command.folder / "frame.csv").write_text(f"{first},machineID,time,Pass/Fail,heat\n{rows}")
    made = command("new", "frame.csv")
    assert made.code == 0, made
    columns = tomllib.loads((command.folder / "frame.toml").read_text())["data"]["columns"]
    assert columns == {"device": "machineID", "label": "Pass/Fail", "ignore": [named]}
    assert f"'{named}' counts the rows and is ignored" in made.err


@pytest.mark.parametrize("needed", [(), ("label",), ("device", "label")])
def test_a_first_row_of_values_is_named(tmp_path: Path, needed: tuple[str, ...]) -> None:
    path = tmp_path / "a.csv"
    path.write_text("13,616;1,167;sharp;333,887;1\n12,5;1,2;worn;333,9;2\n")
    wanted = r"a.csv, row 1: it holds values \('13,616', '1,167', 'sharp', …\), no names. Name the 5 columns: --set"
    with pytest.raises(SettingError, match=wanted):
        guess(path, {}, needed)
    assert guess(path, {"header": ["a", "b", "label", "c", "d"]}, ()) == {"decimal": ","}


def test_a_column_that_is_to_be_ignored_is_not_the_time(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("machine,Time,temp,label\na,00:00.0,1.5,ok\nb,00:01.0,2.5,worn\n")
    found = guess(path, {"columns": {"ignore": ["Time"]}})
    assert found["columns"] == {"ignore": ["Time"], "device": "machine"}


def test_values_that_fall_by_chance_are_no_names(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1772431200,P-100,54.19,3.013,ok\n1772431260,P-100,51.35,2.796,ok\n")
    with refused("no-names-of-columns"):
        guess(path, {}, ())


@pytest.mark.parametrize("names", ["400,401.5,403,text", "403,401.5,400,text", "3,1,2,device", "3,1,2,mine"])
def test_names_that_are_numbers_are_names(tmp_path: Path, names: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{names}\n1,2,3,x\n2,3,4,y\n")
    assert "header" not in guess(path, {"columns": {"label": "mine"}}, ())  # and nothing is refused


def test_a_folder_of_files_is_asked_for_device_and_label_at_once(command: Command) -> None:
    (command.folder / "cycles").mkdir()
    for k in range(4):
        rows = "\n".join(f"{t},{t % 3 + k},{t % 5}" for t in range(30))
        (command.folder / "cycles" / f"cycle_{k}.csv").write_text(f"t,pressure,torque\n{rows}\n")
    said = command("new", "cycles").err
    assert "If each file is a device: --set data.device=file." in said
    assert "No label either" in said
    assert "--set data.task=reconstruction" in said
    assert "No label either" not in command("new", "cycles", "--task", "reconstruction").err


@pytest.mark.parametrize(
    "site", ["Werk", "Standort-Nr.", "plant_id", "Fertigungslinie", "Linie", "station", "Halle", "Werksnummer"]
)
def test_a_column_of_sites_is_proposed_for_devices_before_others(site: str, command: Command) -> None:
    """A site may keep the rows of its machines, whether it is named or numbered; the material may not."""
    draw = np.random.default_rng(0)
    rows = [
        f"{('steel', 'brass')[k // 40 % 2]},{k // 100 + 1},{draw.normal():.3f},{('ok', 'worn')[k % 3 == 0]}"
        for k in range(300)
    ]
    (command.folder / "t.csv").write_text("\n".join([f"Material,{site},temp,state", *rows]) + "\n")
    said = command("new", "t.csv")
    if said.code:
        command.refused(said, f"It may be '{site}' (3 numbers)", f"--set data.columns.device={site}")
    made = command("new", "t.csv", "--force", "--set", f"data.columns.device={site}")
    assert made.code == 0, made.err
    assert "3 devices" in made.out


def test_a_proposal_to_leave_a_column_out_keeps_others_left_out(command: Command) -> None:
    """Typed for the drafted file, in which a note and a counter are left out, and the kind is a sensor."""
    draw = np.random.default_rng(0)
    rows = [
        f"m{k % 3},{k},note {k},{'ab'[k // 9 % 2]},{draw.normal():.3f},{('ok', 'worn')[int(draw.integers(2))]}"
        for k in range(240)
    ]
    (command.folder / "t.csv").write_text("machine,parts made,remark,kind,temp,state\n" + "\n".join(rows) + "\n")
    made = command("new", "t.csv")
    assert made.code == 0, made.err
    before = tomllib.loads((command.folder / "t.toml").read_text())["data"]["columns"]["ignore"]
    assert before == ["remark", "parts made"]
    option = made.err.partition("Or leave it out: --set '")[2].partition("'")[0]
    columns = read(command.folder / "t.toml", [option]).data.columns
    assert (columns.ignore, columns.categories) == (("remark", "parts made", "kind"), None)


def test_a_draft_holds_out_what_its_promise_needs_or_is_refused(command: Command) -> None:
    """0.95 needs 19 held-out samples: a tenth of 96 are 10, a fifth are 19 or more; 0.999 needs 999."""
    draw = np.random.default_rng(0)
    rows = [f"m{k % 4},{draw.normal():.3f},{draw.normal():.3f},{draw.normal(50, 9):.2f}" for k in range(120)]
    (command.folder / "t.csv").write_text("machine,a,b,wear\n" + "\n".join(rows) + "\n")
    words = ("--task", "regression", "--set", "data.columns.label=wear")
    made = command("new", "t.csv", *words, "--set", "data.task.coverage=0.95")
    assert made.code == 0, made.err
    assert tomllib.loads((command.folder / "t.toml").read_text())["evaluate"]["validation"] == 0.2
    assert "20% of the training samples are held out" in made.err
    ran = command("run", "t.toml", "--rounds", "2", "--set", "evaluate.every=1")
    assert ran.code == 0, ran.err
    again = ("new", "t.csv", "--force", *words, "--set", "data.task.coverage=0.999")
    command.refused(command(*again), "needs 999 independent held-out units", "which can promise 0.9")
    few = (*again[:-1], "data.task.coverage=0.95", "--set", "evaluate.validation=0.1")
    command.refused(command(*few), "needs 19 independent held-out units")


def test_a_misspelt_class_is_asked_about_in_place_of_advice_on_rare_classes(command: Command) -> None:
    draw = np.random.default_rng(0)
    state = ["stopped" if k % 3 == 0 else "runing" if k % 100 == 7 else "running" for k in range(600)]
    rows = [f"m{k % 3},{draw.normal():.3f},{draw.normal():.3f},{state[k]}" for k in range(600)]
    (command.folder / "t.csv").write_text("machine,a,b,state\n" + "\n".join(rows) + "\n")
    made = command("new", "t.csv")
    assert made.code == 0, made.err
    assert f"class 'runing' has {state.count('runing')} samples: did you mean 'running'?" in made.err
    assert "F1 of runing" not in made.err
