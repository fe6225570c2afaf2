"""SKAB: recordings of a test bench, from two small subsets in the published format and from the published one."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedfloor.base.checking import checked
from fedfloor.data import sources
from fedfloor.data.dataset import Dataset
from fedfloor.data.published import skab
from fedfloor.data.published.skab import LABELS, SENSORS, Skab
from fedfloor.data.reading import Reading, TimeSplit, Window
from fedfloor.experiment import Experiment
from fedfloor.runs.parks import build_park
from refusals import refused

READING = Reading(task=skab.TASK)


def written(number: int, rows: int, odd: range | None) -> str:
    """Return a recording: a sensor's value is 100·recording + row + its own tenth; ``odd`` None: without labels."""
    lines = [";".join(("datetime", *SENSORS, *(LABELS if odd is not None else ())))]
    for row in range(rows):
        values = [f"{100 * number + row + at / 10}" for at in range(8)]
        flags = [] if odd is None else [f"{float(row in odd)}", f"{float(row == odd.start)}"]
        lines.append(";".join([f"2020-03-09 10:{row // 60:02d}:{row % 60:02d}", *values, *flags]))
    return "\n".join(lines) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Recordings 2 and 10 with an anomaly, one of them packed, and one without labels."""
    place = tmp_path / "skab"
    (place / "valve1").mkdir(parents=True)
    (place / "anomaly-free").mkdir()
    (place / "valve1" / "10.csv").write_text(written(10, 30, range(20, 25)))
    (place / "valve1" / "2.csv.gz").write_bytes(gzip.compress(written(2, 25, range(8, 12)).encode()))
    (place / "anomaly-free" / "anomaly-free.csv").write_text(written(50, 40, None))
    return place


def read(folder: Path, reading: Reading = READING, **like: Any) -> Dataset:
    made = Skab(**{"subsets": ("valve1", "anomaly-free"), "rows": 10} | like)
    return sources.load("skab", root=folder.parent, reading=reading, like=made)


def test_the_first_rows_train_and_the_others_judge(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    data = read(folder)
    assert data.owned.names == ("valve1/2", "valve1/10", "anomaly-free/anomaly-free")
    assert data.owner is not None
    assert data.owner_test is not None
    assert np.bincount(data.owner).tolist() == [8, 10, 10], "two rows of recording 2 are abnormal, and left out"
    assert "2 of 30 training samples have an abnormal row by their labels, and are left out" in caplog.text
    assert np.bincount(data.owner_test).tolist() == [15, 20, 30]
    assert np.bincount(data.owner_test, data.y_test).tolist() == [2, 5, 0]
    np.testing.assert_allclose(data.take(np.array([0, 8]), -1)[:, [0, 7]], [[200, 200.7], [1000, 1000.7]], rtol=1e-6)
    assert data.inputs.columns == SENSORS
    assert len(read(folder, replace(READING, task=replace(skab.TASK, abnormal="used"))).y) == 30


def test_windows_lie_on_one_side_of_the_split(folder: Path) -> None:
    data = read(folder, replace(READING, window=Window(4, 1)))
    x = data.take(np.arange(len(data.y)), -1)
    test = data.take_test(np.arange(len(data.y_test)))
    assert (x[:, 0] % 100 < 10).all()
    assert (test[:, 0] % 100 >= 10).all()
    assert (np.diff(test[:, 0], axis=1) == 1).all()
    assert len(test) == 15 + 20 + 30 - 3 * 3


def test_the_task_is_reconstruction_unless_another_is_named() -> None:
    what = checked(Experiment, {"data": {"name": "skab"}}, "")
    assert what.data.task == skab.TASK
    assert type(what.data.partition).__name__ == "Natural"
    assert checked(Experiment, {"data": {"name": "skab", "task": "classification"}}, "").data.task == "classification"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text.replace(";Pressure", ""), "published-file"),
        (lambda text: text.replace("1003.1", "much"), "published-file"),
        (lambda text: text.replace("1003.1", "nan"), "published-file"),
        (lambda text: text.replace("2020-03-09 10:00:03", "today at four"), "published-file"),
        (lambda text: text.replace("2020-03-09 10:00:03", "NaT"), "published-file"),
        (lambda text: text.replace(";1.0;1.0", ";2.0;1.0"), "published-file"),
        (lambda text: text.split("\n")[0], "published-file"),
        (lambda text: text[:-6], "published-file"),
    ],
)
def test_damaged_files_are_named(folder: Path, spoil: Any, message: str) -> None:
    file = folder / "valve1" / "10.csv"
    file.write_text(spoil(file.read_text()))
    with refused(message):
        read(folder)


def test_missing_files_and_odd_settings_are_named(folder: Path, tmp_path: Path) -> None:
    with refused("published-file-missing"):
        read(folder, subsets=("valve2",))
    with refused("published-file-missing"):
        sources.load("skab", root=tmp_path / "nowhere", reading=READING)
    with refused("data.split"):
        read(folder, replace(READING, split=TimeSplit()))
    with refused("data.skab.rows"):
        read(folder, rows=25)
    with refused("data.skab.subsets"):
        Skab(subsets=("valve3",))
    with refused("data.skab.rows"):
        Skab(rows=0)
    assert sources.looked_in(["skab"], root=folder.parent)[0]["found"] is True
    assert sources.looked_in(["skab"], root=tmp_path / "nowhere")[0]["found"] is False


def test_the_published_recordings(data_root: Path) -> None:
    if not (data_root / "skab").is_dir():
        pytest.skip("FEDFLOOR_DATA holds no skab")
    park = build_park(checked(Experiment, {"data": {"name": "skab"}}, ""))
    assert park.sizes.tolist() == [360] * 16, "the last tenth of the 400 sets the threshold"
    assert len(park.dataset.y) == 16 * 400
    data = park.dataset
    lines = (data_root / "skab" / "valve1" / "15.csv").read_text().splitlines()[401:]
    mine = data.owner_test == 15
    assert data.y_test[mine].tolist() == [int(float(line.split(";")[9])) for line in lines]
    assert data.classes == ("normal", "anomaly")
    assert not data.y.any()
