"""The ring buffer on disk: bounds, kills, a full disk, and what reads it."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fedfloor.base.errors import RunError, SettingError
from fedfloor.data.files import buffer
from fedfloor.data.reading import DeviceReading, Window
from fedfloor.sensors.buffer import FILL, OVERHEAD, Buffer, held, writing
from fedfloor.sensors.grid import Row
from fedfloor.tasks.forecasting import Forecasting
from refusals import refused

NAMES = ("temp", "load")


def rows(first: int, end: int, epoch: int = 0, label: str = "") -> list[Row]:
    return [Row(epoch, t, np.array([t, -t], np.float32), label) for t in range(first, end)]


@contextmanager
def ring(path: Path, max_mb: float = 1.0, max_age_h: float = 1.0, gap_s: float = 5.0) -> Iterator[Buffer]:
    with writing(path, NAMES, max_mb, max_age_h, gap_s) as made:
        yield made


def test_rows_come_back_as_recordings(tmp_path: Path) -> None:
    path = tmp_path / "b.sqlite"
    with ring(path) as made:
        made.write(rows(0, 10))
        made.write(rows(20, 30))  # after a gap
        made.write(rows(25, 35, epoch=1))  # the clock went back
        made.write([], [(2, 4, "worn"), (4, 4, "hot")])
    got = buffer.read(path)
    assert got.columns == NAMES
    assert got.time.tolist() == [*range(10), *range(20, 30), *range(25, 35)]
    assert np.array_equal(got.x[:, 0], got.time)
    assert got.run.tolist() == [0] * 10 + [1] * 10 + [2] * 10
    assert got.label[:6] == ["", "", "worn", "worn", "hot", ""]
    assert buffer.read(path, 3).time.tolist() == [32, 33, 34]


def test_windows_are_cut_as_of_a_table(tmp_path: Path) -> None:
    from fedfloor.data.files import own

    reading = DeviceReading(window=Window(4, 2), missing="previous")
    with ring(tmp_path / "b.sqlite") as made:
        some = rows(0, 12, label="ok")
        some[5] = Row(0, 5.0, np.array([np.nan, -5], np.float32), "ok")
        made.write(some)
    lines = [f"{t},{'' if t == 5 else t},{-t},ok" for t in range(12)]
    (tmp_path / "t.csv").write_text("\n".join(["time,temp,load,label", *lines]) + "\n")
    both = [own.load(tmp_path / name, reading, 0, "d0") for name in ("b.sqlite", "t.csv")]
    everything = np.arange(len(both[1].y))
    assert len(both[1].y) == 5
    np.testing.assert_array_equal(both[0].take(everything, 0), both[1].take(everything, 0))
    assert both[0].inputs.columns == both[1].inputs.columns
    assert both[0].classes == both[1].classes


@pytest.mark.parametrize(
    "change",
    [
        "about SET value = '[' WHERE key = 'columns'",
        "about SET value = '1' WHERE key = 'columns'",
        "about SET value = 'x' WHERE key = 'gap_s'",
        "rows SET time = 'x'",
        "rows SET time = 1e999",
        "rows SET epoch = 1e999",
        "labels SET since = 'x'",
    ],
)
def test_a_value_that_sense_does_not_write_is_named_as_damaged(tmp_path: Path, change: str) -> None:
    with ring(tmp_path / "b.sqlite") as made:
        made.write(rows(0, 1), [(2, 4, "worn")])
    with sqlite3.connect(tmp_path / "b.sqlite") as base:
        base.execute(f"UPDATE {change}")
    with refused("damaged-buffer"):
        buffer.read(tmp_path / "b.sqlite")
    if "columns" in change:
        with refused("damaged-buffer"):
            held(tmp_path / "b.sqlite")


def test_rows_without_a_label_are_left_out_where_labels_are_needed(tmp_path: Path) -> None:
    with ring(tmp_path / "b.sqlite") as made:
        made.write(rows(0, 20), [(4, 7, "ok"), (12, 19, "worn")])
    got = buffer.load(tmp_path / "b.sqlite", DeviceReading(window=Window(4)), 0)
    assert (len(got.y), got.classes) == (3, ("ok", "worn"))  # no window crosses the rows between
    free = buffer.load(tmp_path / "b.sqlite", DeviceReading(window=Window(4), task="reconstruction"), 0)
    assert len(free.y) == 3  # rows 0 to 11: those with an anomaly are left out


def test_the_newest_samples_need_no_more_rows_than_they_have(tmp_path: Path) -> None:
    path = tmp_path / "b.sqlite"
    reading = DeviceReading(window=Window(4, 2), task=Forecasting(horizon=1))
    with ring(path) as made:
        made.write([*rows(0, 100), *rows(200, 206)])
    got = buffer.newest(path, reading, 0, 6)
    assert len(got.y) >= 6
    assert got.take(np.array([len(got.y) - 1]), 0)[0, 0, -1] == 203  # the last window, with the row ahead of it
    with refused("few-samples"):
        buffer.newest(path, reading, 0, 1000)


def test_size_and_age_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "b.sqlite"
    most = int(0.2e6 / FILL / (16 + OVERHEAD))
    with ring(path, max_mb=0.2, max_age_h=10) as made:
        for first in range(0, 20_000, 500):
            made.write(rows(first, first + 500))
        assert made.rows == most
    assert path.stat().st_size <= 0.2e6
    assert buffer.read(path).time.tolist() == [*range(20_000 - most, 20_000)]
    with ring(tmp_path / "age.sqlite", max_age_h=0.1) as made:
        made.write(rows(0, 1000))
    assert buffer.read(tmp_path / "age.sqlite").time[0] == 999 - 360


def test_a_row_comes_once(tmp_path: Path) -> None:
    with ring(tmp_path / "b.sqlite") as made:
        made.write(rows(0, 10), position="x")
        made.write(rows(5, 12))
        made.write(rows(7, 8))
        assert (made.rows, made.newest) == (12, (0, 11.0))
    assert held(tmp_path / "b.sqlite") == (NAMES, "x")


def test_a_full_disk_loses_no_row_that_fits_into_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "b.sqlite"
    with ring(path, max_age_h=10) as made:
        (pages,) = made._base.execute("PRAGMA page_count").fetchone()
        made._base.execute(f"PRAGMA max_page_count = {pages + 2}")  # SQLite then answers as on a full disk
        for first in range(0, 5000, 100):
            made.write(rows(first, first + 100))
        assert made.rows < 5000
        assert "Free disk space" in caplog.text
        made._base.execute("PRAGMA max_page_count = 100000")
        made.write(rows(5000, 5001))
        assert (made.rows, made.lost) == (5001, 0)
    assert buffer.read(path).time.tolist() == [*range(5001)]
    assert caplog.text.count("cannot be written") == 1


KILLED = """
import sys
from pathlib import Path
import numpy as np
from fedfloor.sensors.buffer import writing
from fedfloor.sensors.grid import Row
with writing(Path(sys.argv[1]), ("a",), 1.0, 100.0, 5.0) as ring:
    for t in range(10**9):
        ring.write([Row(0, t, np.array([t], np.float32))])
        print(t, flush=True)
"""


def test_a_buffer_survives_kills(tmp_path: Path) -> None:
    path = tmp_path / "b.sqlite"
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(50):
            last = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
        got = buffer.read(path).time
        assert got[-1] >= last
        assert np.array_equal(got, np.arange(len(got)))


def test_one_process_writes(tmp_path: Path) -> None:
    with (
        ring(tmp_path / "b.sqlite"),
        refused("unwritable", RunError),
        ring(tmp_path / "b.sqlite"),
    ):
        pass


@pytest.mark.parametrize("kind", ["text", "database", "damaged", "empty"])
def test_other_files_are_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "b.sqlite"
    if kind == "text":
        path.write_text("time,temp\n" * 1000)
    elif kind == "database":
        with sqlite3.connect(path) as base:
            base.execute("CREATE TABLE readings (x)")
    else:
        with ring(path) as made:
            made.write(rows(0, 5 if kind == "damaged" else 0))
        with sqlite3.connect(path) as base:
            base.execute("UPDATE rows SET x = x'00'")
    with pytest.raises(SettingError, match=r"b\.sqlite: (not a buffer|damaged|no rows yet)"):
        buffer.read(path)
    if kind in ("text", "database"):
        with refused("not-a-buffer"), ring(path):
            pass


def test_a_buffer_of_other_sensors_is_left_alone(tmp_path: Path) -> None:
    with ring(tmp_path / "b.sqlite") as made:
        made.write(rows(0, 5))
    with (
        refused("buffer-differs"),
        writing(tmp_path / "b.sqlite", ("temp",), 1.0, 1.0, 1.0),
    ):
        pass
    assert len(buffer.read(tmp_path / "b.sqlite").time) == 5


def test_reading_does_not_wait_for_the_writer(tmp_path: Path) -> None:
    with ring(tmp_path / "b.sqlite") as made:
        made.write(rows(0, 5))
        made._base.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        assert len(buffer.read(tmp_path / "b.sqlite").time) == 5
        assert time.monotonic() - began < 5
        made._base.execute("ROLLBACK")
