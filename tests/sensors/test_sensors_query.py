"""A query to a database that grows, repeated for the rows that are new."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_sensors_folder import BEGIN, sensing, times

from fedfloor.data import query
from fedfloor.data.files import buffer
from fedfloor.sensors import sense
from fedfloor.sensors.settings import read
from parks import until
from refusals import refused

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install 'fedfloor[sql]'")

SOURCE = """
[source]
kind = "query"
url = "sqlite:///{base}"
query = "SELECT at AS time, heat, load, state FROM readings WHERE at > :since ORDER BY at"
start = {start}
every_s = 0.1
[labels]
address = "state"
[tags]
heat = "heat"
{more}
"""


def source(folder: Path, start: str = "0", more: str = 'load = "load"') -> Path:
    path = folder / "source.toml"
    path.write_text(SOURCE.format(base=folder / "plant.db", start=start, more=more))
    return path


def add(folder: Path, first: int, end: int, *, as_text: bool = False) -> None:
    with sqlite3.connect(folder / "plant.db") as base:
        base.execute("CREATE TABLE IF NOT EXISTS readings (at, heat, load, state)")
        moments = [f"2026-09-21T14:{t // 60:02}:{t % 60:02}" if as_text else BEGIN + t for t in range(first, end)]
        base.executemany(
            "INSERT INTO readings VALUES (?, ?, 2, 'ok')", [(at, float(i)) for i, at in enumerate(moments)]
        )


def test_rows_are_read_once_as_they_come_and_those_of_while_it_was_away(tmp_path: Path) -> None:
    into = tmp_path / "b.sqlite"
    add(tmp_path, 0, 10)
    with sensing(source(tmp_path), into):
        assert until(lambda: times(into) == [*range(10)])
        add(tmp_path, 10, 20)
        assert until(lambda: times(into) == [*range(20)])
    add(tmp_path, 20, 30)
    with sensing(source(tmp_path), into) as end:
        assert until(lambda: times(into) == [*range(30)])
        assert end()["read"] == 10  # the others are not read again
    got = buffer.read(into)
    assert got.columns == ("heat", "load")
    assert got.x[11].tolist() == [1.0, 2.0]
    assert {*got.label} == {"ok"}


def test_a_table_that_vanishes_for_a_while_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    into = tmp_path / "b.sqlite"
    add(tmp_path, 0, 5)
    with sensing(source(tmp_path), into):
        assert until(lambda: times(into) == [*range(5)])
        with sqlite3.connect(tmp_path / "plant.db") as base:
            base.execute("ALTER TABLE readings RENAME TO hidden")
        assert until(lambda: "no such table" in caplog.text)
        with sqlite3.connect(tmp_path / "plant.db") as base:
            base.execute("ALTER TABLE hidden RENAME TO readings")
        add(tmp_path, 5, 9)
        assert until(lambda: times(into) == [*range(9)])


def test_times_may_be_texts_and_the_first_one_is_the_start(tmp_path: Path) -> None:
    into = tmp_path / "b.sqlite"
    add(tmp_path, 0, 5, as_text=True)
    with sensing(source(tmp_path, '"2026-09-21T14:00:01"'), into):
        assert until(lambda: len(times(into)) == 3)
        add(tmp_path, 5, 7, as_text=True)
        assert until(lambda: len(times(into)) == 5)


def test_columns_that_are_not_there_are_named(tmp_path: Path) -> None:
    add(tmp_path, 0, 5)
    with refused("source.query"):
        sense.check(read(source(tmp_path, more='other = "loads"')), 5)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (":since", "0", "source.query"),
        ("start = 0", 'start = "soon"', "source.start"),
        ("every_s = 0.1", "every_s = 0", "source.every_s"),
        ("start = 0", "", "missing-setting"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, old: str, new: str, told: str) -> None:
    path = source(tmp_path)
    path.write_text(path.read_text().replace(old, new))
    with refused(told):
        read(path)


def test_flux_gets_a_time_in_rfc_3339(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []

    @contextmanager
    def influx(_: Any, text: str) -> Iterator[Iterator[query.Record]]:
        texts.append(text)
        yield iter(())

    monkeypatch.setattr(query, "_influx", influx)
    where = query.address("influxdb+http://host:8086/plant")
    with query.answer(where, "range(start: :since)", "2026-03-01T06:30:00") as records:
        assert list(records) == []
    assert texts == ["range(start: 2026-03-01T06:30:00+00:00)"]
    with refused("no-time"), query.answer(where, "range(start: :since)", 7):
        pass
