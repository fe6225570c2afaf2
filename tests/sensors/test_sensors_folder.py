"""A growing folder of tables, the command, and a device that trains on what its sensors measured."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from commands import Command
from fedfloor.base.errors import SettingError
from fedfloor.data.files import buffer
from fedfloor.deploy.settings import DataSource
from fedfloor.sensors import folder as folders
from fedfloor.sensors import sense
from fedfloor.sensors.buffer import writing
from fedfloor.sensors.grid import Row
from fedfloor.sensors.settings import read
from live_park import experiment, live
from parks import until
from refusals import refused

SOURCE = """
{more}
[source]
kind = "folder"
path = "press"
"""
BEGIN = 1_790_000_000


def source(folder: Path, more: str = "", table: str = "") -> Path:
    (folder / "press").mkdir(exist_ok=True)
    path = folder / "source.toml"
    path.write_text(SOURCE.format(more=more) + table)
    return path


def lines(first: int, end: int) -> str:
    return "".join(
        f"{BEGIN + t},{math.sin(t / 5):.4f},{t},{'ok' if t // 20 % 2 else 'worn'}\n" for t in range(first, end)
    )


HEAD = "time,temp,load,label\n"
LOGIN = 'host = "h", user = "u", password = "x"'


@contextmanager
def sensing(path: Path, into: Path) -> Iterator[Callable[[], dict[str, object]]]:
    """Fill a buffer in a thread; yields what ends it and returns its status."""
    stop = threading.Event()
    status = dict[str, object]()
    thread = threading.Thread(
        target=lambda: status.update(sense.run(read(path), into, stop, lambda _: None)), daemon=True
    )

    def end() -> dict[str, object]:
        stop.set()
        thread.join(20)
        return status

    thread.start()
    try:
        yield end
    finally:
        end()


def times(into: Path) -> list[float]:
    try:
        return [t - BEGIN for t in buffer.read(into).time.tolist()]
    except SettingError:
        return []


def test_rows_come_as_files_grow_and_are_added_and_once_however_often_it_is_started(tmp_path: Path) -> None:
    path = source(tmp_path, table='[labels]\naddress = "label"\n')
    into = tmp_path / "b.sqlite"
    first = tmp_path / "press/a.csv"
    first.write_text(HEAD + lines(0, 10) + f"{BEGIN + 10},0.5")  # a row that is being written
    with sensing(path, into):
        assert until(lambda: times(into) == [*range(10)])
        with first.open("a") as file:
            file.write("000,10,ok\n" + lines(11, 20))
        assert until(lambda: times(into) == [*range(20)])
    (tmp_path / "press/b.csv").write_text(HEAD + lines(20, 30))
    with sensing(path, into) as end:
        assert until(lambda: times(into) == [*range(30)])
        assert end()["read"] == 10  # the others are not read again
    got = buffer.read(into)
    assert got.columns == ("temp", "load")
    assert got.x[10].tolist() == [0.5, 10]
    assert got.label[19:21] == ["worn", "ok"]


def test_parquet_and_tags_and_a_period(tmp_path: Path) -> None:
    path = source(tmp_path, "period_s = 2.0", 'files = "*.parquet"\nunit = "ms"\n[tags]\nheat = "temp"\n')
    table = {"time": [1000 * (BEGIN + t) for t in range(21)], "load": [0.0] * 21, "temp": [float(t) for t in range(21)]}
    parquet.write_table(pa.table(table), tmp_path / "press/a.parquet")
    with sensing(path, tmp_path / "b.sqlite") as end:
        assert until(lambda: times(tmp_path / "b.sqlite")[-1:] == [20])
        end()
    got = buffer.read(tmp_path / "b.sqlite")
    assert got.columns == ("heat",)
    assert got.x[:, 0].tolist() == [*range(0, 21, 2)]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ("1e999,1,ok", "beyond 32 bits"),
        ("hot,1,ok", "text"),
        ("nan,1,ok", "null"),
        (",1,ok", "null"),
        ("-1e300,1,ok", "beyond 32 bits"),
    ],
)
def test_values_that_are_no_finite_numbers_are_missing(tmp_path: Path, cells: str, reason: str) -> None:
    path = source(tmp_path, table='[tags]\ntemp = "temp"\nload = "load"\n')
    (tmp_path / "press/a.csv").write_text(f"{HEAD}{BEGIN},{cells}\n" + lines(1, 3))
    with sensing(path, tmp_path / "b.sqlite") as end:
        assert until(lambda: times(tmp_path / "b.sqlite") == [0, 1, 2])
        assert end()["missing"] == {reason: 1}
    assert np.isnan(buffer.read(tmp_path / "b.sqlite").x[0, 0])


def test_times_in_the_future_and_rows_without_a_time_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = source(tmp_path)
    later = int(time.time()) + 4000
    text = HEAD + lines(0, 2) + f"{later},1,1,ok\nsoon,1,1,ok\n-5,1,1,ok\n{BEGIN + 2},1\n" + lines(3, 4)
    (tmp_path / "press/a.csv").write_text(text)
    with sensing(path, tmp_path / "b.sqlite") as end:
        assert until(lambda: times(tmp_path / "b.sqlite") == [0, 1, 3])
        left_out = {"row without time or of another form": 2, "time before 1970": 1, "time in the future": 1}
        assert end()["left_out"] == left_out
    assert caplog.text.count("in the future") == 1


def test_labels_that_come_later_in_a_file(tmp_path: Path) -> None:
    path = source(tmp_path, table='[labels]\nfile = "labels.csv"\n[tags]\ntemp = "temp"\n')
    into = tmp_path / "b.sqlite"
    (tmp_path / "press/a.csv").write_text(HEAD + lines(0, 10))
    with sensing(path, into):
        assert until(lambda: len(times(into)) == 10)
        assert set(buffer.read(into).label) == {""}
        (tmp_path / "labels.csv").write_text(f"since,until,label\n{BEGIN},{BEGIN + 4},ok\n{BEGIN + 5},{BEGIN},x\n")
        assert until(lambda: buffer.read(into).label == ["ok"] * 5 + [""] * 5)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "source is missing"),
        ('[source]\nkind = "opcuaa"\n', "Did you mean 'opcua'"),
        ('[source]\nkind = "folder"\npath = "none"\n', "does not exist"),
        ('[source]\nkind = "folder"\npath = "press"\nfiles = "../*"\n', "a pattern of file names in the folder"),
        ('period_s = -1\n[source]\nkind = "folder"\npath = "press"\n', "period_s = -1.0: must be from 0"),
        ('[source]\nkind = "folder"\npath = "press"\n[tags]\na = "temp"\nb = "temp"\n', "an address once"),
        ('[source]\nkind = "folder"\npath = "press"\n[tags]\na = "tmep"\n', "no column 'tmep', or several"),
        ('[source]\nkind = "folder"\npath = "press"\n[labels]\ntopic = "a/b"\n', "requires source.kind = 'mqtt'"),
        ('[source]\nkind = "opcua"\nurl = "http://x"\n', "an address, such as 'opc.tcp://host:4840'"),
        ('[source]\nkind = "sparkplug"\ngroup = "a/b"\nnode = "n"\nbroker = { host = "h" }\n', "the characters"),
        ('[source]\nkind = "mqtt"\nbroker = { host = "h" }\n[tags]\na = "plant/+#x"\n', "without wildcards"),
        ('[source]\nkind = "mqtt"\nbroker = { host = "h" }\n', "neither tags nor source.topics"),
        (f'[source]\nkind = "mqtt"\ntopics = ["t"]\nbroker = {{ {LOGIN}, plain = true }}', "must be $"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named(tmp_path: Path, text: str, wanted: str) -> None:
    source(tmp_path).write_text(text)
    (tmp_path / "press/a.csv").write_text(HEAD + lines(0, 10))
    with pytest.raises(SettingError) as error:
        sense.check(read(tmp_path / "source.toml"), 1.0)
    assert wanted in str(error.value)


def test_the_command_lists_sensors_and_fills_a_buffer(command: Command) -> None:
    folder = command.folder
    path = source(folder)
    into = folder / "b.sqlite"
    (folder / "press/a.csv").write_text(HEAD + lines(0, 10))
    listed = command("park", "sense", str(path), "--check", "--json").document["rows"]
    kinds = [("temp", "number"), ("load", "number"), ("label", "text")]
    assert [(row["address"], row["kind"]) for row in listed] == kinds
    done = command("park", "sense", str(path), "--into", str(into), "--seconds", "1", "--json")
    assert done.document["rows"][0]["rows"] == 10
    assert "10 rows of 2 sensors, newest 2026-09-21" in done.err
    assert command("park", "sense", str(path), "--into", str(folder / "b.csv")).err.startswith("error: --into")


LEARN = """
data.path = '{table}'
data.window = {{ length = 8, step = 4 }}
data.stream = {{ kind = 'fifo', window = 16 }}
"""


def test_a_device_trains_on_the_newest_rows_of_its_buffer(tmp_path: Path) -> None:
    """What a device holds moves on with its sensors, and one that lags behind is lost alone."""
    table = [
        f"d{k},{BEGIN + t},{math.sin(t / 5 + k)},{k},{'ok' if t // 20 % 2 else 'worn'}"
        for k in (0, 1)
        for t in range(200)
    ]
    (tmp_path / "all.csv").write_text("\n".join(["device,time,temp,load,label", *table]) + "\n")
    what = experiment(tmp_path, "fedavg", rounds=3, devices=2, more=LEARN.format(table=tmp_path / "all.csv"))
    names = ("temp", "load")
    written = [0, 0]

    def fill(device: int, many: int) -> None:
        with writing(tmp_path / f"{device}.sqlite", names, 1.0, 1.0, 5.0) as ring:
            span = range(written[device], written[device] + many)
            ring.write(
                [
                    Row(0, BEGIN + t, np.array([math.sin(t / 5), 1], np.float32), "ok" if t % 40 < 20 else "worn")
                    for t in span
                ]
            )
            written[device] += many

    for device in (0, 1):
        fill(device, 100)
    seen: list[list[float]] = []
    with live(tmp_path, what, data=lambda k: DataSource("folder", tmp_path / f"{k}.sqlite")) as park:
        usual = park.agents[0].serve

        def attend(edge: str, payload: bytes) -> None:
            usual(edge, payload)
            if b'"visit"' in payload:
                here = park.agents[0].park
                assert here is not None
                x, y = here.held(0, len(seen), 0)
                assert len(x) == len(y) == 16
                seen.append(x[-1, 1].tolist())
                fill(0, 40)

        park.agents[0].serve = attend  # type: ignore[method-assign]
        assert [line.lost for line in park.run()] == [0, 0, 0]
    assert len(seen) == 3
    with live(tmp_path, what, data=lambda k: DataSource("folder", tmp_path / f"{k}.sqlite")) as park:
        for device in (0, 1):
            (tmp_path / f"{device}.sqlite").unlink()
            written[device] = 0
            fill(device, 20)
        with refused("holdings"):
            park.run("again")


def test_files_that_are_gone_are_forgotten_but_the_last_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A logger writes a file an hour, and another program removes it once it is read."""
    monkeypatch.setattr(folders, "GONE", 3)
    reader = folders.FolderReader(folders.FolderSource(tmp_path), (), None)

    def rows(*numbers: int) -> int:
        paths = [tmp_path / f"{number:02}.csv" for number in numbers]
        for number, path in zip(numbers, paths, strict=True):
            path.write_text(f"time,temp\n{BEGIN + 2 * number},1\n{BEGIN + 2 * number + 1},2\n")
        reader.forget({path.name for path in paths})
        events = [event for path in paths for event in reader.news(path)]
        for event in events:
            position = json.loads(event.position)  # type: ignore[union-attr, arg-type]
            assert len(position) <= 3 + len(paths)
        for path in paths:
            path.unlink()
        reader.forget(set())  # as a share that is not mounted
        return len(events)

    assert [rows(number) for number in range(10)] == [2] * 10
    assert rows(9) == 0  # it is back
    assert rows(7, 8) == 0
    assert rows(0) == 2  # forgotten, and read as a new file


def test_a_position_names_all_files_and_is_read_again(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text(f"time,temp\n{BEGIN},1\n{BEGIN + 1},2\n")
    source = folders.FolderSource(tmp_path)
    reader = folders.FolderReader(source, (), None)
    events = [event for path in sorted(tmp_path.iterdir()) for event in reader.news(path)]
    assert [[*json.loads(event.position)] for event in events] == [  # type: ignore[union-attr, arg-type]
        ["a.csv"], ["a.csv"], ["a.csv", "b.csv"], ["a.csv", "b.csv"], ["a.csv", "b.csv", "c.csv"],
        ["a.csv", "b.csv", "c.csv"],
    ]  # fmt: skip
    again = folders.FolderReader(source, (), events[2].position)  # type: ignore[union-attr]
    left = [event for path in sorted(tmp_path.iterdir()) for event in again.news(path)]
    assert [event.values for event in left] == [{"temp": 2}, {"temp": 1}, {"temp": 2}]  # type: ignore[union-attr]
