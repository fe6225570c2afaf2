"""Times in the forms that plants have: German, US, EU, ISO; one form per column, nothing ambiguous taken silently."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import Command
from fedfloor.data.files import folder, sheet, table, times
from fedfloor.data.reading import Columns, Reading, TimeSplit, Window
from fedfloor.inference import inputs
from fedfloor.inference.samples import Sensors
from model_files import sensors_of
from refusals import refused

FIRST = 1768896000.0  # 2026-01-20T08:00:00Z: 20,473 days of 86,400 s and 8 h
SAME = {  # that moment and 1.5 s later, a minute later
    "German": ("20.01.2026 08:00:00", "20.01.2026 08:00:01,5", "20.01.2026 08:01"),
    "German, two digits": ("20.1.26 8:00:00", "20.1.26 8:00:01,5", "20.1.26 8:01"),
    "German, in words": ("Dienstag, 20. Januar 2026 08:00 Uhr", "20. Januar 2026 08:00:01,5", "Di 20. Jan. 2026 8:01"),
    "US": ("01/20/2026 8:00 AM", "01/20/2026 8:00:01.5 AM", "1/20/2026 8:01 am"),
    "US, in words": ("Jan 20, 2026 8:00 a.m.", "January 20 2026 8:00:01.5 AM", "Jan 20, 2026 8:01 AM"),
    "EU": ("20/01/2026 08:00", "20/01/2026 08:00:01.5", "20/01/2026 08:01"),
    "EU, hyphens": ("20-01-2026 08:00", "20-01-2026 08:00:01.5", "20-01-2026 08:01"),
    "controllers": ("2026/01/20 08:00", "2026/01/20 08:00:01.500", "2026/1/20 8:01"),
    "EU, blanks": ("20 01 2026 08:00", "20 01 2026 08:00:01.5", "20 1 2026 8:01"),
    "databases": ("20-Jan-2026 08:00", "20-JAN-2026 08:00:01.5", "20-jan-2026 08:01"),
    "ISO": ("2026-01-20T08:00:00", "2026-01-20 08:00:01,5", "2026-01-20T08:01"),
    "ISO, zones": ("2026-01-20T08:00:00Z", "2026-01-20T09:00:01.5+01:00", "2026-01-20T03:01:00-0500"),
    "ISO, a blank before the zone": ("2026-01-20 08:00 UTC", "2026-01-20 09:00:01.5 +01:00", "2026-01-20 08:01 Z"),
    "ISO, compact": ("20260120T0800", "20260120T080001.5", "20260120T0801"),
    "RFC 2822": ("Tue, 20 Jan 2026 08:00:00 GMT", "Tue, 20 Jan 2026 09:00:01.5 +0100", "20 Jan 2026 08:01:00 +0000"),
}


def written(place: Path, *cells: str, name: str = "plant.csv", device: str = "d") -> Path:
    path = place / name
    rows = "".join(f'{i},{device},{"ab"[i % 2]},"{cell}"\n' for i, cell in enumerate(cells))
    path.write_text("v,device,label,time\n" + rows)
    return path


def read(path: Path, form: str | None = None) -> list[float]:
    found = sheet.read(path, Reading(time_format=form), ("device", "label")).time
    assert found is not None
    return found.tolist()


@pytest.mark.parametrize("name", SAME)
def test_common_forms_give_the_same_moments(tmp_path: Path, name: str) -> None:
    assert read(written(tmp_path, *SAME[name])) == [FIRST, FIRST + 1.5, FIRST + 60]


@pytest.mark.parametrize(
    "cells",
    [("2021-03", "2021-12"), ("03/2021", "12/2021"), ("2021/03", "2021/12"), ("Mar 2021", "December 2021"),
     ("M\u00e4rz 2021", "Dez. 2021")],
)  # fmt: skip
def test_months_are_their_first_day(tmp_path: Path, cells: tuple[str, str]) -> None:
    assert read(written(tmp_path, *cells)) == [1614556800.0, 1638316800.0]


@pytest.mark.parametrize("cell", ["1203-05", "2021-13", "2021-00", "00/2021"])
def test_numbers_of_parts_are_no_months(tmp_path: Path, cell: str) -> None:
    with refused("no-time"):
        read(written(tmp_path, cell))


def test_midnight_and_noon_in_twelve_hours_and_dates_without_hours(tmp_path: Path) -> None:
    cells = ("1/20/2026", "1/20/2026 12:30 AM", "1/20/2026 12:30 PM", "1/20/2026 11:30 PM")
    assert (np.array(read(written(tmp_path, *cells))) - FIRST + 8 * 3600).tolist() == [0, 1800, 45000, 84600]


DATES = st.datetimes(datetime(1999, 1, 1), datetime(2068, 1, 1)).map(lambda when: when.replace(microsecond=0))


@settings(deadline=None)
@given(st.lists(DATES, min_size=1, max_size=8), st.sampled_from(["%d.%m.%Y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p",
       "%d/%m/%y %H:%M:%S", "%d %B %Y %H:%M:%S", "%Y/%m/%d %H:%M:%S"]))  # fmt: skip
def test_what_is_read_is_what_was_written_or_is_refused(moments: list[datetime], form: str) -> None:
    cells = [when.strftime(form) for when in moments]
    wanted = [when.replace(tzinfo=UTC).timestamp() for when in moments]
    found, values = times.read(cells, None, None, ".")
    given = {"%d": "day-first", "%m": "month-first"}.get(form[:2], "day-first")
    assert times.decide(values, found, given if found.orders else None)[0].tolist() == wanted
    try:
        guessed = times.decide(values, found, None)[0].tolist()
    except times.TimeError:
        return
    same_year = max(when.year for when in moments) == min(when.year for when in moments) < 2032
    same_day = form.startswith("%d/%m/%y") and len({when.day for when in moments}) == 1  # is taken for the year
    assert guessed == wanted or same_year or same_day


def test_an_ambiguous_column_asks_for_its_form(tmp_path: Path) -> None:
    path = written(tmp_path, "01/01/2026", "01/02/2026", "02/03/2026")
    with refused("no-time") as caught:
        read(path)
    assert str(caught.value) == (
        "plant.csv, row 3, column 'time': an ambiguous date, which no other row resolves: 2026-02-01 "
        "(day-first), 2026-01-02 (month-first). Choose one: --set data.time_format=day-first"
    )
    assert np.diff(read(path, "day-first")).tolist() == [31 * 86400, 29 * 86400]
    assert np.diff(read(path, "month-first")).tolist() == [86400, 32 * 86400]
    assert read(path, "%d/%m/%Y") == read(path, "day-first")
    assert read(written(tmp_path, "01/02/2026", "01/13/2026"))[0] == 20455 * 86400  # January 2: the other row decides
    assert read(written(tmp_path, "01.02.2026"))[0] == 20485 * 86400  # 1 February: with points the day is first
    assert read(written(tmp_path, "03/03/2026"))[0] == 20515 * 86400  # the same either way


def test_years_of_two_digits(tmp_path: Path) -> None:
    assert read(written(tmp_path, "20/01/26", "21/01/26"))[0] == FIRST - 8 * 3600  # 26 stays, 20 does not
    assert read(written(tmp_path, "26/01/20", "26/01/21"))[0] == FIRST - 8 * 3600
    assert read(written(tmp_path, "31/12/68", "31/12/69")) == [3124137600, -86400]  # as POSIX has it
    months = [f"01/{month:02}/{year}" for year in (20, 21) for month in range(1, 13)]
    with refused("no-time"):  # the first number stays, but would be a year in which times run backwards
        read(written(tmp_path, *months))
    assert read(written(tmp_path, *months), "day-first")[12] == 1609459200.0
    with refused("no-time"):  # the same from the other end
        read(written(tmp_path, *["/".join(month.split("/")[::-1]) for month in months]))
    with refused("no-time"):
        read(written(tmp_path, "26-01-20 08:00", "26-01-20 08:01"))
    with refused("no-time"):
        read(written(tmp_path, "01/02/03"))


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (("20.01.2026 08:00", "2026-01-20 08:01"), "row 3, .*: '2026-01-20 08:01' belongs to dates such as 2026-"),
        (("20.01.2026 08:00", "20.01.26 08:01"), "belongs to dates such as 20.01.26 without"),
        (("1/20/2026 8:00 AM", "1/20/2026 14:00"), "to dates such as 20/01/2026 without a time zone, AM or PM"),
        (("20.01.2026 08:00", "20.01.2026 08:00Z"), "with a time zone, but the first row to dates such as"),
        (("20/01/2026", "02/03/2026", "01/20/2026"), "row 4, column 'time': not in the same order"),
        (("20.01.2026", "7"), "row 3, column 'time': '7' belongs to numbers, but the first row to dates such as"),
        (("20.01.2026", "31.02.2026"), "row 3, column 'time': '31.02.2026' is no time. .* time_format"),
        (("20.01.2026 24:10",), "'20.01.2026 24:10' is no time"),
        (("1/20/2026 13:00 PM",), "'1/20/2026 13:00 PM' is no time"),
        (("20.01.2026 08",), "is no time"),
        (("20. Brumaire 2026",), "is no time"),
        (("20.01.2026 08:00 CET",), "is no time"),
        (("08:00",), "is no time.*For another format set"),
    ],
)  # fmt: skip
def test_mixed_and_unreadable_times_are_refused_by_row(tmp_path: Path, cells: tuple[str, ...], told: str) -> None:
    with refused("no-time"):
        read(written(tmp_path, *cells))


def test_numbers_in_another_unit(tmp_path: Path) -> None:
    for unit, factor in times.EPOCHS.items():
        path = written(tmp_path, *(f"{int((FIRST + step) * factor)}" for step in (0, 1.5 if factor > 1 else 2)))
        assert read(path, unit) == pytest.approx([FIRST, FIRST + (1.5 if factor > 1 else 2)], abs=1e-6)
        assert read(path) == [float(line.split('"')[1]) for line in path.read_text().splitlines()[1:]]  # as they are
    with refused("no-time"):
        read(written(tmp_path, "2026-01-20"), "ms")
    with refused("no-time"):
        read(written(tmp_path, "1768896000"), "day-first")


def test_a_form_of_ones_own(tmp_path: Path) -> None:
    assert read(written(tmp_path, "20260120080000"), "%Y%m%d%H%M%S") == [FIRST]
    assert read(written(tmp_path, "08:00:30", "08:01:00"), "%H:%M:%S") == [28830, 28860]
    assert read(written(tmp_path, "20.01.26 8h00 +0100"), "%d.%m.%y %Hh%M %z") == [FIRST - 3600]
    with refused("no-time"):
        read(written(tmp_path, "20.01.26", "20.01.2026"), "%d.%m.%y")
    for wrong in ("noon", "%Q", "%", "%d %", ""):
        with refused("data.time_format"):
            Reading(time_format=wrong)


def test_files_of_a_data_set_decide_together(tmp_path: Path) -> None:
    for device, cells in (
        ("a", ("01/02/2026", "02/02/2026", "03/02/2026")),
        ("b", ("13/02/2026", "14/02/2026", "15/02/2026")),
    ):
        (tmp_path / "data" / device).mkdir(parents=True)
        written(tmp_path / "data" / device, *cells, name="may.csv", device=device)
    found = folder.load(tmp_path / "data", Reading(split=TimeSplit(test=0.4)), 0)
    assert found.inputs.dialect == {"time_format": "day-first"}
    assert found.time is not None
    assert found.time.tolist() == [day * 86400 for day in (20485, 20486, 20497, 20498)]
    written(tmp_path / "data" / "b", "2026-02-13", "2026-02-14", name="may.csv", device="b")
    with refused("forms-of-times"):  # fmt: skip
        folder.load(tmp_path / "data", Reading(), 0)
    written(tmp_path / "data" / "b", "03/02/2026", "04/02/2026", name="may.csv", device="b")
    with refused("no-time"):
        folder.load(tmp_path / "data", Reading(), 0)


def test_the_recipe_of_other_data_is_as_it_was() -> None:
    assert "time_format" not in Reading().recipe()
    assert "time_format" in Reading(time_format="ms").recipe()


def test_a_model_reads_times_as_in_training(tmp_path: Path) -> None:
    cells = [f"{day:02}/02/2026" for day in range(1, 20)]
    trained = table.load(written(tmp_path, *cells), Reading(window=Window(3)), 0)
    sensors = sensors_of(trained.inputs.describe())
    assert sensors is not None
    assert sensors.dialect == {"time_format": "day-first"}
    later = written(tmp_path, "01/03/2026", "02/03/2026", "01/04/2026", name="later.csv")  # ambiguous by itself
    assert len(inputs.table(later, sensors, ("a", "b")).x) == 1
    with refused("times"):
        inputs.table(written(tmp_path, "01/03/2026", "01/05/2026", "02/04/2026"), sensors, ("a", "b"))
    single = Sensors(("v",), names=Columns().roles())
    assert len(inputs.table(written(tmp_path, "noon", "later"), single, ("a", "b")).x) == 2  # times are not needed
    plain = table.load(written(tmp_path, *(str(i) for i in range(10))), Reading(), 0)
    assert "dialect" not in plain.inputs.describe()


def test_new_run_and_predict_with_german_and_us_dates(command: Command) -> None:
    start = datetime(2026, 1, 1, 22)
    for form, name in (("%d.%m.%Y %H:%M", "german"), ("%m/%d/%Y %I:%M %p", "us")):
        rows = [
            f"{(start + timedelta(minutes=30 * i)).strftime(form)},m{k},{i % 7}.5,{'ok' if i % 3 else 'worn'}"
            for i in range(20) for k in range(3)
        ]  # fmt: skip
        (command.folder / f"{name}.csv").write_text("Zeitpunkt,machine,a,state\n" + "\n".join(rows) + "\n")
    assert command("new", "german.csv").code == 0
    assert (
        "taken for the time"
        in (command.folder / "german.toml").read_text() + command("new", "german.csv", "--force").err
    )
    command.refused(command("new", "us.csv"), "--set data.time_format=day-first")
    assert (
        command("new", "us.csv", "--set", "data.time_format=month-first", "--set", "data.window={length=2}").code == 0
    )
    assert 'time_format = "month-first"' in (command.folder / "us.toml").read_text()
    assert command("run", "us.toml", "--ranks", "1", "--stop-after", "1").code == 0
    assert command("predict", "runs/us", "us.csv").code == 0
