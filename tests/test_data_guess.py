"""What a table's columns are taken for where nobody says, and what is left alone."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from commands import Command
from fedfloor.data.guess import guess, words

GERMAN = "timestamp;Machine;plant;rpm;torque;condition;operator\n" + "".join(
    f"2026-03-01T06:{minute:02}:00;M{machine};{'Linz' if machine < 2 else 'Graz'};{1500 + minute},5;{minute % 7};"
    f"{'worn' if minute % 3 else 'ok'};Anna\n"
    for minute in range(30)
    for machine in range(4)
)


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
    assert words(got, {})[0] == "'Machine' is taken for the device"
    assert words(got, {})[-2:] == ["'operator' holds no numbers and is ignored", "fractions are written with commas"]


def test_what_is_told_is_not_guessed(tmp_path: Path) -> None:
    told: dict[str, Any] = {"columns": {"device": "plant", "ignore": ["Machine"]}, "decimal": "."}
    got = guess(table(tmp_path, GERMAN), told)
    assert got["columns"]["device"] == "plant"
    assert got["columns"]["ignore"][0] == "Machine"
    assert "factory" not in got["columns"]  # 'plant' is the device now
    assert "decimal" not in got
    assert not any("taken for the device" in sentence for sentence in words(got, told))


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
    "rows",
    [
        "date,wann,{}\n2026-03-01,06:00 Uhr,{}",  # the date alone is read; hours of texts are not
        "datum,{}\n05.10.2026 06:00,{}",  # times that could not be read would end in an error
        "begin,end,{}\n2026-03-01,2026-03-02,{}",  # which one?
    ],
)
def test_times_are_taken_only_where_they_are_read_and_one(tmp_path: Path, rows: str) -> None:
    got = guess(table(tmp_path, rows.format("device,a,label", "x,1,ok")), {})
    assert got["columns"].get("time") == ("date" if "date," in rows else None)


def test_without_a_device_nothing_is_guessed_and_the_message_says_so(command: Command) -> None:
    table(command.folder, GERMAN.replace("Machine", "thing"))
    said = command("new", "line.csv")
    command.refused(said, "no column 'device'", "--set data.columns.device=NAME, and likewise label, factory and time")
    assert "note:" not in said.err
