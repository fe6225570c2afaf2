"""Local times of recordings: which of two equal hours each row is in, at the end of summer time."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from fedfloor.data.files import own, sheet
from fedfloor.data.files.clocks import universal
from fedfloor.data.reading import Columns, LastSplit, Reading, TimeSplit
from fedfloor.inference import inputs

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 10, 24, 22, tzinfo=UTC)  # 00:00 in Berlin; clocks go back from 03:00 to 02:00 after three hours
ZONED = Reading(columns=Columns(run="run"), zone="Europe/Berlin", split=TimeSplit(0.2))

Recordings = list[tuple[str, list[int]]]  # name → minutes of its rows after the start


def recordings(many: int = 40, rows: int = 6) -> Recordings:
    """Return recordings of a row per minute, one after the other with pauses, of which none crosses the change."""
    return [(f"r{run}", [10 * run + row for row in range(rows)]) for run in range(many)]


def text(minutes: int) -> str:
    return f"{(START + timedelta(minutes=minutes)).astimezone(BERLIN):%Y-%m-%d %H:%M:%S}"


def write(path: Path, each: Recordings, devices: Iterable[str] = ("a", "b")) -> Path:
    """Write a table whose sensor is the number of minutes, so that rows can be recognised."""
    lines = ["device,run,time,x,label"]
    lines += [
        f"{device},{run},{text(minutes)},{minutes},{'odd' if minutes % 2 else 'even'}"
        for device in devices
        for run, rows in each
        for minutes in rows
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def converted(each: Recordings) -> tuple[list[float], list[bool]]:
    """Return the minutes after the start of a device's rows, as they are read, and which of them are uncertain."""
    walls = [datetime.fromisoformat(f"{text(minutes)}+00:00").timestamp() for _, rows in each for minutes in rows]
    runs = np.repeat(np.arange(len(each)), [len(rows) for _, rows in each])
    times, unsure = universal(np.array(walls), np.zeros(len(walls), np.int32), runs, "Europe/Berlin")
    return ((times - START.timestamp()) / 60).tolist(), unsure.tolist()


def minutes_of(each: Recordings) -> list[int]:
    return [minutes for _, rows in each for minutes in rows]


EXACT: dict[str, Recordings] = {
    "one after the other": recordings(),
    "pauses over the change": [("a", [170, 171]), ("b", [205, 206]), ("c", [290, 291])],
    "a recording crosses the change": [("a", [100, 101]), ("b", [178, 179, 180, 181]), ("c", [230])],
    "begins in the second hour": [("a", [*range(200, 260)])],
    "ends in the first hour": [("a", [*range(60, 150)])],
    "two recordings in turn": [(f"{row % 2}", [row]) for row in range(100, 300)],
}


@pytest.mark.parametrize("each", EXACT.values(), ids=EXACT)
def test_the_order_of_recordings_tells_equal_hours_apart(each: Recordings) -> None:
    times, unsure = converted(each)
    assert times == minutes_of(each)
    assert not any(unsure)


@pytest.mark.parametrize(
    "each",
    [
        [("a", [130, 131]), ("b", [150, 151])],
        sorted(recordings(), key=lambda one: int(one[0][1:]) % 7),
        [("a", [*range(60, 180), *range(240, 250)])],
    ],
    ids=["nothing else", "sorted by something else", "an hour is lacking"],
)
def test_what_the_order_does_not_show_is_uncertain(each: Recordings) -> None:
    times, unsure = converted(each)
    true = minutes_of(each)
    assert any(unsure)
    wrong = [row for row, (found, minutes) in enumerate(zip(times, true, strict=True)) if found != minutes]
    assert all(unsure[row] for row in wrong)
    assert all(abs(times[row] - true[row]) == 60 for row in wrong)


@pytest.mark.parametrize("folder", [False, True], ids=["a table", "a file per recording"])
def test_no_row_for_training_is_later_than_one_for_testing(tmp_path: Path, folder: bool) -> None:
    path = tmp_path / "plant.csv"
    reading = ZONED
    if folder:
        for device in ("a", "b"):
            (tmp_path / "plant" / device).mkdir(parents=True)
            for run, rows in recordings():
                write(tmp_path / "plant" / device / f"{run}.csv", [(run, rows)], (device,))
        path = tmp_path / "plant"
        columns = Columns(ignore=("run",))
        reading = Reading(columns=columns, layout="device/file", zone="Europe/Berlin", split=TimeSplit(0.2))
    else:
        write(path, recordings())
    data = own.load(path, reading, 0)
    train = data.take(np.arange(len(data.y)), 0).ravel()
    test = data.take_test(np.arange(len(data.y_test))).ravel()
    assert train.max() < test.min()
    assert len(train) + len(test) == 480


def test_an_uncertain_hour_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mixed = sorted(recordings(), key=lambda one: int(one[0][1:]) % 7)
    with caplog.at_level(logging.WARNING):
        own.load(write(tmp_path / "plant.csv", mixed), ZONED, 0)
    assert "occurs twice in Europe/Berlin" in caplog.text
    assert "144 such rows" in caplog.text  # two hours of six recordings with six rows, of two devices
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        own.load(write(tmp_path / "ordered.csv", recordings()), ZONED, 0)
    assert "twice" not in caplog.text


@pytest.mark.parametrize(("zone", "time"), [("Europe/Berlin", "2026-10-24T22:01:00Z"), (None, "2026-10-25T00:01:00")])
def test_universal_times_are_marked_beside_predictions(tmp_path: Path, zone: str | None, time: str) -> None:
    reading = Reading(columns=Columns(run="run"), zone=zone)
    found = sheet.read(write(tmp_path / "plant.csv", recordings()), reading, ())
    assert inputs._times(found, np.array([1])) == [time]


def test_recordings_that_go_back_an_hour_without_a_zone_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reading = Reading(columns=Columns(run="run"), split=LastSplit(rows=20))
    with caplog.at_level(logging.WARNING):
        own.load(write(tmp_path / "plant.csv", recordings()), reading, 0)
    assert "recordings go back an hour" in caplog.text
    assert "--set data.zone=Europe/Berlin" in caplog.text


def local(minutes: Iterable[int]) -> np.ndarray:
    times = [(START + timedelta(minutes=each)).astimezone(BERLIN).replace(tzinfo=UTC) for each in minutes]
    return np.array([each.timestamp() for each in times])


@pytest.mark.parametrize(
    "times",
    [
        np.sort(local(range(0, 480, 15))),  # sorted by local time: 02:00, 02:00, 02:15, 02:15, …
        np.repeat(local(range(0, 480, 60)), 3),  # three rows an hour
        local(range(420, -60, -60)),  # from the last to the first
    ],
    ids=["sorted", "repeated", "descending"],
)
def test_an_order_that_is_no_course_of_a_clock_is_uncertain(times: np.ndarray) -> None:
    device = np.zeros(len(times), np.int32)
    _, unsure = universal(times, device, device, "Europe/Berlin")
    hour = (times % 86_400) // 3600
    assert unsure.tolist() == (hour == 2).tolist()


def test_an_hourly_course_is_certain() -> None:
    minutes = range(0, 480, 60)
    device = np.zeros(len(minutes), np.int32)
    times, unsure = universal(local(minutes), device, device, "Europe/Berlin")
    assert not unsure.any()
    assert times.tolist() == [(START + timedelta(minutes=each)).timestamp() for each in minutes]
