"""Drafts of tables whose clocks are numbers, are set back, stop, or run at different rates."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from commands import Command

START = np.datetime64("2026-03-02T06:00:00", "s")
MINUTE = np.timedelta64(60, "s")
FORMS = {
    "s": lambda time: f"{time.astype(int)}",
    "ms": lambda time: f"{time.astype(int)}000",
    "us": lambda time: f"{time.astype(int)}000001",
    "ns": lambda time: f"{time.astype(int)}000000001",
    "excel": lambda time: f"{time.astype(int) / 86400 + 25569:.8f}",
    "%Y%m%d%H%M%S": lambda time: f"{time.item():%Y%m%d%H%M%S}",
    "%Y%m%d%H%M": lambda time: f"{time.item():%Y%m%d%H%M}",
}


def plant(command: Command, times: list[str], *, machines: str = "AB", name: str = "t.csv") -> None:
    draw = np.random.default_rng(0)
    rows = [
        f"{time},{machine},{draw.normal():.3f},{draw.normal():.3f},{'ok' if row % 3 else 'worn'}"
        for machine in machines
        for row, time in enumerate(times)
    ]
    (command.folder / name).write_text("timestamp,machine,temp,vib,state\n" + "\n".join(rows) + "\n")


def drafted(command: Command, *words: str) -> tuple[dict[str, Any], str]:
    made = command("new", "t.csv", "--force", *words)
    assert made.code == 0, made.err
    return tomllib.loads((command.folder / "t.toml").read_text())["data"], made.err


@pytest.mark.parametrize("form", FORMS)
def test_numbers_that_are_moments_are_drafted_as_such(command: Command, form: str) -> None:
    plant(command, [FORMS[form](START + row * MINUTE) for row in range(60)])
    data, notes = drafted(command)
    assert data.get("time_format") == (None if form == "s" else form)
    assert "training: 2026-03-02 06:00:00 to 2026-03-02 06:4" in notes


def test_days_as_numbers(command: Command) -> None:
    plant(command, [f"{(START + day * 1440 * MINUTE).item():%Y%m%d}" for day in range(60)])
    data, notes = drafted(command)
    assert data["time_format"] == "%Y%m%d"
    assert "training: 2026-03-02 00:00:00 to 2026-04-1" in notes


@pytest.mark.parametrize(
    "numbers",
    [np.arange(60), np.arange(60) + 46_083, np.arange(60) * 0.25 + 46_083, np.arange(60) + 20_260_301],
    ids=["rows", "counts", "running time", "no dates"],
)
def test_other_numbers_stay_numbers(command: Command, numbers: np.ndarray[Any, Any]) -> None:
    plant(command, [f"{number:g}" if number < 1e5 else f"{number:.0f}" for number in numbers])
    data, notes = drafted(command)
    assert "time_format" not in data
    assert "training: 1" not in notes


def test_an_experiment_without_the_format_is_warned_of(command: Command) -> None:
    plant(command, [FORMS["ms"](START + row * MINUTE) for row in range(60)])
    drafted(command)
    text = (command.folder / "t.toml").read_text()
    (command.folder / "t.toml").write_text(text.replace('time_format = "ms"\n', ""))
    assert "milliseconds since 1970" in command("run", "t.toml", "--ranks", "1", "--stop-after", "1").err


def test_no_number_becomes_a_date_of_a_distant_year(command: Command) -> None:
    plant(command, [FORMS["ms"](START + row * MINUTE) for row in range(60)])
    _, notes = drafted(command, "--set", "data.time_format=s")
    assert "58136" not in notes


BERLIN = ZoneInfo("Europe/Berlin")


def local_times(start: str, rows: int = 600, minutes: int = 1) -> list[str]:
    first = datetime.fromisoformat(start).replace(tzinfo=UTC)
    moments = (first + timedelta(minutes=minutes * row) for row in range(rows))
    return [f"{moment.astimezone(BERLIN):%Y-%m-%d %H:%M:%S}" for moment in moments]


@pytest.mark.parametrize("minutes", [1, 7, 60], ids=["equal", "between", "hourly"])
def test_the_end_of_summer_time_is_named_and_its_zone_tells_the_hours_apart(command: Command, minutes: int) -> None:
    plant(command, local_times("2026-10-24 20:00", 600 // minutes * 2, minutes))
    refused = command("new", "t.csv")
    command.refused(refused, "data.zone=Europe/Berlin")
    assert "data.sort" not in refused.err
    assert "remove" not in refused.err
    data, notes = drafted(command, "--set", "data.zone=Europe/Berlin")
    assert data["zone"] == "Europe/Berlin"
    assert "training: 2026-10-24 20:00:00 to " in notes  # in UTC, two hours before the local time


def test_sorting_two_equal_hours_is_warned_of(command: Command) -> None:
    plant(command, local_times("2026-10-24 20:30", 200, 7))
    _, notes = drafted(command, "--set", "data.sort=true")
    assert "data.zone=Europe/Berlin" in notes


def test_the_beginning_of_summer_time_is_named(command: Command) -> None:
    plant(command, local_times("2026-03-28 20:00"))
    _, notes = drafted(command)
    assert "goes forward an hour" in notes
    _, notes = drafted(command, "--set", "data.zone=Europe/Berlin")
    assert "forward" not in notes


def test_a_zone_in_which_a_time_does_not_exist(command: Command) -> None:
    plant(command, [f"2026-03-29 0{hour}:{minute:02}:00" for hour in range(5) for minute in range(60)])
    command.refused(command("new", "t.csv", "--set", "data.zone=Europe/Berlin"), "does not exist in Europe/Berlin")
    command.refused(command("new", "t.csv", "--set", "data.zone=Berlin"), "data.zone is 'Berlin'")


def test_a_zone_is_not_for_numbers_or_times_with_a_zone(command: Command) -> None:
    for form in ("s", "utc"):
        each = FORMS.get(form, lambda time: f"{time}Z")
        plant(command, [each(START + row * MINUTE) for row in range(60)])
        command.refused(command("new", "t.csv", "--set", "data.zone=Europe/Berlin"), "Leave it out")


@pytest.mark.parametrize("form", ["s", "iso"])
@pytest.mark.parametrize(("first", "last", "where"), [(100, 140, "2000-01-01"), (150, 151, "2126-03-02")])
def test_a_clock_that_was_reset_is_named(command: Command, form: str, first: int, last: int, where: str) -> None:
    write = FORMS.get(form, str)
    times = [write(START + row * MINUTE) for row in range(200)]
    times[first:last] = [write(np.datetime64(where, "s") + row * MINUTE) for row in range(last - first)]
    plant(command, times)
    refused = command("new", "t.csv")
    command.refused(refused, f"row {first + 2}", "reset")
    assert f"{2 * (last - first)} such rows" in refused.err
    assert "data.sort" not in refused.err


def test_a_clock_that_begins_at_its_origin_is_warned_of(command: Command) -> None:
    origin = np.datetime64("2000-01-01", "s")
    plant(command, [str((origin if row < 40 else START) + row * MINUTE) for row in range(200)])
    assert "80 such rows" in drafted(command)[1]


def test_exact_copies_are_counted_and_dropped_on_request(command: Command) -> None:
    plant(command, [f"{START + row * MINUTE}" for row in range(100)])
    header, *rows = (command.folder / "t.csv").read_text().splitlines()
    again = [row for number, row in enumerate(rows) for _ in range(1 + (number % 25 == 3))]
    late = [*again[:50], rows[2], *again[50:]]  # a copy that arrives much later
    (command.folder / "t.csv").write_text("\n".join([header, *late]) + "\n")
    command.refused(command("new", "t.csv"), "9 rows are exact copies", "data.copies=drop")
    data, notes = drafted(command, "--set", "data.copies=drop")
    assert data["copies"] == "drop"
    assert "9 of 209 rows" in notes
    other = rows[2].split(",")
    other[2] = "99.5"
    (command.folder / "t.csv").write_text("\n".join([header, *rows[:3], ",".join(other), *rows[3:]]) + "\n")
    assert "data.copies" not in command("new", "t.csv").err


def test_sorting_is_proposed_for_late_rows_but_not_for_a_clock_that_was_set_back(command: Command) -> None:
    times = [START + row * MINUTE for row in range(200)]
    plant(command, [str(time) for time in [*times[:50], *times[60:100], *times[50:60], *times[100:]]])
    command.refused(command("new", "t.csv"), "--set data.sort=true")
    back = [*times, *(time - 90 * MINUTE + np.timedelta64(30, "s") for time in times[1:])]
    plant(command, [str(time + 60 * 24 * 120 * MINUTE) for time in back])  # in July
    refused = command("new", "t.csv")
    command.refused(refused, "set back")
    assert "data.sort" not in refused.err


def test_late_rows_are_no_clock_that_was_set_back(command: Command) -> None:
    order = np.random.default_rng(1).permutation(200)
    plant(command, [str(START + row * MINUTE) for row in order.tolist()])
    command.refused(command("new", "t.csv"), "--set data.sort=true")
    _, notes = drafted(command, "--set", "data.sort=true")
    assert "mixes" not in notes


def with_holes(command: Command, *, pauses: int = 10) -> None:
    """An hour of minutes, then a pause of 2.5 days, ``pauses`` times."""
    plant(command, [str(START + (row + 3600 * hour) * MINUTE) for hour in range(pauses) for row in range(60)])


FORECAST = ("--task", "forecasting", "--set", "data.window={length=20,step=1}")


def test_windows_do_not_cross_holes(command: Command) -> None:
    """Of each hour of 60 rows 60 − 29 windows of 20 rows with 10 rows ahead; eight of ten hours are for training."""
    with_holes(command)
    data, notes = drafted(command, *FORECAST)
    assert data["gap_s"] == 300
    assert f"{2 * 8 * 31} training and {2 * 2 * 31} test samples" in notes + (command.folder / "t.toml").read_text()
    assert "cross a hole" not in notes


def test_an_experiment_is_warned_of_windows_across_holes(command: Command) -> None:
    with_holes(command)
    drafted(command, *FORECAST)
    text = (command.folder / "t.toml").read_text()
    (command.folder / "t.toml").write_text(text.replace("gap_s = 300.0\n", ""))
    ran = command("run", "t.toml", "--ranks", "1", "--stop-after", "1")
    assert f"{2 * 8 * 29 - 2 * 29} of " in ran.err.replace(",", "") or "cross a hole of more than 300 s" in ran.err


def test_predictions_do_not_cross_holes_either(command: Command) -> None:
    with_holes(command, pauses=5)
    drafted(command, "--set", "data.window={length=20,step=20}", "--set", "method.name=fedavg", "--set", "rounds=1")
    assert command("run", "t.toml", "--ranks", "1").code == 0
    answers = command("predict", "runs/t", "t.csv", "--csv", "a.csv")
    assert answers.code == 0, answers.err
    assert len((command.folder / "a.csv").read_text().splitlines()) == 1 + 2 * 5 * 3


def test_a_gap_requires_times(command: Command) -> None:
    rows = [f"{'AB'[n % 2]},{n * 7 % 13},{'ok' if n % 3 else 'worn'}" for n in range(200)]
    (command.folder / "t.csv").write_text("\n".join(["machine,temp,state", *rows]) + "\n")
    command.refused(command("new", "t.csv", "--set", "data.gap_s=5"), "gap_s")
    command.refused(command("new", "t.csv", "--set", "data.gap_s=0"), "gap_s")


def test_devices_with_different_rates_are_noted(command: Command) -> None:
    rows = [
        f"{START + row * seconds},{name},{row * 7 % 13},{row * 5 % 11},{'ok' if row % 3 else 'worn'}"
        for name, seconds in (("A", np.timedelta64(1, "s")), ("B", np.timedelta64(10, "s")))
        for row in range(200)
    ]
    (command.folder / "t.csv").write_text("timestamp,machine,temp,vib,state\n" + "\n".join(rows) + "\n")
    window = ("--set", "data.window={length=20,step=1}", "--set", "method.name=fedavg")
    _, notes = drafted(command, *window)
    assert "'A' every 1 s, but of 'B' every 10 s" in notes
    assert "rates differ" in command("run", "t.toml", "--ranks", "1", "--stop-after", "1").err
    plant(command, [str(START + row * MINUTE) for row in range(200)])
    _, notes = drafted(command, *window)
    assert "rates differ" not in notes
    assert "holes" not in notes
