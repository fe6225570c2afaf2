"""Values of bad quality and marks of missing values, of a folder and of messages."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import pytest

from fedfloor.base.errors import SettingError
from fedfloor.data.files import buffer
from fedfloor.sensors import sense
from fedfloor.sensors.events import Event, Missing, Signal, Update
from fedfloor.sensors.quality import judged
from fedfloor.sensors.settings import SenseSettings, read

SOURCE = """
missing_texts = ["-999.9", "9.9E+37", "Bad Input"]
[source]
kind = "folder"
path = "press"
[quality]
temp = "temp.Quality"
"""
ROWS = """time,temp,temp.Quality,load
1790000000,50.5,192,1
1790000001,51.5,24,2
1790000002,52.5,Good,-999.90
1790000003,53.5,,9.9e37
1790000004,-999.9,192,Bad Input
1790000005,55.5,216,6
"""


def settings(folder: Path, tags: str = "") -> SenseSettings:
    (folder / "source.toml").write_text(SOURCE + tags)
    (folder / "press").mkdir(exist_ok=True)
    (folder / "press" / "a.csv").write_text(ROWS)
    return read(folder / "source.toml")


@pytest.mark.parametrize("tags", ["", '[tags]\ntemp = "temp"\nload = "load"\n'])
def test_values_of_bad_quality_and_marks_are_missing_in_the_buffer(tmp_path: Path, tags: str) -> None:
    stop = threading.Event()
    timer = threading.Timer(3, stop.set)
    timer.start()
    status = sense.run(settings(tmp_path, tags), tmp_path / "b.sqlite", stop, lambda _: None)
    kept = buffer.read(tmp_path / "b.sqlite")
    assert kept.columns == ("temp", "load")
    rows = [[None if math.isnan(value) else value for value in row] for row in kept.x.tolist()]
    assert rows == [[50.5, 1], [None, 2], [52.5, None], [None, None], [None, None], [55.5, 6]]
    assert status["missing"] == {
        "quality 24": 1, "quality unknown": 1, "mark -999.9": 2, "mark 9.9e+37": 1, "mark 'Bad Input'": 1
    }  # fmt: skip


def test_a_quality_that_comes_apart_counts_for_the_last_value() -> None:
    """A message of its own may bring the quality, before or after that of the value; a lost connection ends both."""
    given = SenseSettings.__new__(SenseSettings)
    for name, value in {"tags": {"t": "a#v"}, "quality": {"t": "a#q"}, "good": ("ok",), "missing_texts": ()}.items():
        object.__setattr__(given, name, value)
    messages: list[Event] = [
        Update(0, {"a#v": 1.0}),
        Update(1, {"a#q": "ok"}),
        Update(2, {"a#v": 2.0, "b#v": 7.0}),
        Update(3, {"a#q": "stale"}),
        Update(4, {"b#v": 8.0}),
        Signal.LOST,
        Update(5, {"a#v": 3.0}),
    ]
    said = [dict(event.values) for event in judged(messages, given) if isinstance(event, Update)]
    unknown = Missing("quality unknown")
    stale = Missing("quality 'stale'")
    assert said == [
        {"a#v": unknown}, {"a#v": 1.0}, {"a#v": 2.0, "b#v": 7.0}, {"a#v": stale}, {"b#v": 8.0}, {"a#v": unknown}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('[tags]\nheat = "temp"\n', "a name in quality = 'temp': must be a name in tags"),
        ('[tags]\ntemp = "temp"\nq = "temp.Quality"\n', "quality.temp = 'temp.Quality': must be an address that is no"),
    ],
)
def test_wrong_qualities_are_named(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        settings(tmp_path, more)
