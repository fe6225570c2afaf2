"""What tables of a folder state differently: units in the row below the names, and the hours of clocks."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path

import openpyxl
import pytest

from fedfloor.data.files import apart, folder
from fedfloor.data.reading import Columns, Reading
from fedfloor.park.agreement import judged
from fedfloor.park.sites import of_tables

ROWS = 120
BEGIN = datetime(2026, 3, 2, 6)


def machine(path: Path, *, units: str = ",°C,bar,", late_h: float = 0) -> None:
    """Write a table of a machine that begins some hours later than others; ``units``: the row below the names."""
    times = [BEGIN + timedelta(hours=late_h, minutes=number) for number in range(ROWS)]
    draw = random.Random(path.stem)
    rows = [f"{time},{draw.gauss(20, 1):.2f},{draw.gauss(3, 1):.2f},{draw.choice('ow')}" for time in times]
    path.write_text("\n".join(["time,temp,load,state", *([units] if units else []), *rows]), "utf-8")


def notes(root: Path, **more: object) -> list[str]:
    reading = Reading(device="file", columns=Columns(label="state"), **more)  # type: ignore[arg-type]
    return [note for note in folder.load(root, reading, 0).notes if "unit" in note or "clock" in note]


def test_units_that_differ_between_tables_are_named(tmp_path: Path) -> None:
    for number, units in enumerate([",°C,bar,", ",[°C],BAR,", ",°F,bar,", ",°C,,"], start=1):
        machine(tmp_path / f"p{number}.csv", units=units)
    (told,) = notes(tmp_path, skip=(2,))
    assert "'temp' is in different units by the row below the names: °C in p1.csv, °F in p3.csv." in told


def test_units_in_one_spelling_are_the_same_for_who_trains_and_who_asks(tmp_path: Path) -> None:
    for number, units in enumerate([",°C,bar,", ",[C],BAR,", ",c,bar,"], start=1):
        machine(tmp_path / f"p{number}.csv", units=units)
    assert notes(tmp_path, skip=(2,)) == []
    assert judged(of_tables(apart.read(tmp_path))) == []


def test_units_of_a_workbook_are_stated(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    assert book.active is not None
    for row in [["temp", "load"], ["°F", "bar"], *([20 + number % 7, 3.5] for number in range(ROWS))]:
        book.active.append(row)
    book.save(tmp_path / "press.xlsx")
    (site,) = of_tables(apart.read(tmp_path / "press.xlsx"))
    assert dict(site.units) == {"temp": "°F", "load": "bar"}


@pytest.mark.parametrize("late_h", [1, -2, 0.5])
def test_a_clock_off_by_hours_is_named_in_the_same_words_by_who_trains_and_who_asks(
    tmp_path: Path, late_h: float
) -> None:
    for number in range(4):
        machine(tmp_path / f"p{number}.csv", units="", late_h=late_h * (number == 2))
    (told,) = notes(tmp_path)
    way = "after" if late_h > 0 else "before"
    assert f"the rows of 'p2' begin and end {abs(late_h):g} h {way} those of all others" in told
    (found,) = judged(of_tables(apart.read(tmp_path)))
    assert found.sentence == told


def test_machines_that_begin_at_times_of_their_own_are_not_named(tmp_path: Path) -> None:
    for number in range(4):
        machine(tmp_path / f"p{number}.csv", units="", late_h=number * 1.3)
    assert notes(tmp_path) == []
