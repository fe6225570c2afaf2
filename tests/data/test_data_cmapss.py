"""C-MAPSS: engines that run to failure, from a small written set in the published format and from the published one."""

from __future__ import annotations

import gzip
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedfloor.base.checking import checked
from fedfloor.base.errors import SettingError
from fedfloor.data import sources
from fedfloor.data.dataset import Dataset
from fedfloor.data.published import cmapss
from fedfloor.data.published.cmapss import COLUMNS, Cmapss
from fedfloor.data.reading import Reading, TimeSplit, Window
from fedfloor.experiment import Experiment
from fedfloor.runs.parks import build_park
from fedfloor.tasks.regression import Regression
from refusals import refused

LENGTHS = {"FD001": ((9, 4, 7), (5, 2, 6)), "FD003": ((6, 8), (3, 4))}  # cycles of engines: training, testing
AFTER = {"FD001": (3, 200, 0), "FD003": (130, 1)}
WINDOW = Window(4, 1)
LIFE = Reading(window=WINDOW, task=Regression(cap=125.0, bins=2))


def written(subset: str, number: int, test: int) -> str:
    """Return a file: TRA and all sensors from P2 on are constant, those before are subset, part, engine, cycle."""
    rows = []
    for engine, cycles in enumerate(LENGTHS[subset][test], 1):
        for cycle in range(1, cycles + 1):
            values = [0.1 * cycle, 0.2, 100, number + 1, test, engine, cycle, *[5.0] * 17]
            rows.append(f"{engine} {cycle} {' '.join(f'{one:g}' for one in values)}  ")  # two blanks, as published
    return "\n".join(rows) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two subsets, one of them packed."""
    place = tmp_path / "cmapss"
    place.mkdir()
    for number, subset in enumerate(LENGTHS):
        for test, part in enumerate(("train", "test")):
            text = written(subset, number, test)
            if number:
                (place / f"{part}_{subset}.txt").write_text(text)
            else:
                (place / f"{part}_{subset}.txt.gz").write_bytes(gzip.compress(text.encode()))
        (place / f"RUL_{subset}.txt").write_text("".join(f"{left} \n" for left in AFTER[subset]))
    return place


def read(folder: Path, reading: Reading = LIFE, **like: Any) -> Dataset:
    return sources.load(
        "cmapss", root=folder.parent, reading=reading,
        like=Cmapss(**{"subsets": ("FD001", "FD003"), "engines": 2, "sensors": "all"} | like),
    )  # fmt: skip


def test_training_windows_are_all_and_test_windows_the_last_ones(folder: Path) -> None:
    data = read(folder)
    assert data.shape == (24, 4)
    assert len(data.y) == 6 + 1 + 4 + 3 + 5
    assert len(data.y_test) == 3 + 2
    x = data.take(np.arange(len(data.y)), 0)
    test = data.take_test(np.arange(len(data.y_test)))
    at = {name: COLUMNS.index(name) for name in ("T2", "T24", "T30", "T50")}
    subset, part, engine, cycle = (x[:, at[name]] for name in at)
    assert (part == 0).all()
    assert (np.ptp(subset + 10 * engine, axis=1) == 0).all(), "no window crosses engines"
    whose = zip(subset[:, 0].astype(int), engine[:, 0].astype(int), strict=True)
    length = [LENGTHS[("FD001", "FD003")[s - 1]][0][e - 1] for s, e in whose]
    assert data.target is not None
    assert np.array_equal(data.target[:, 0], length - cycle[:, -1]), "the last row is the failure: no cycle is left"
    assert (test[:, at["T24"]] == 1).all()
    assert data.target_test is not None
    assert data.target_test[:, 0].tolist() == [3, 200, 0, 130, 1], "after the last row of each, uncapped"
    assert test[:, at["T50"]].tolist() == [[2, 3, 4, 5], [1, 1, 1, 2], [3, 4, 5, 6], [1, 1, 2, 3], [1, 2, 3, 4]]


def test_short_engines_are_padded_and_counted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        data = read(folder, replace(LIFE, window=Window(7, 1)))
    assert "3 engines for training" not in caplog.text
    assert "2 engines for training and 5 engines for testing have fewer than the 7 rows of a window" in caplog.text
    assert (len(data.y), len(data.y_test)) == (3 + 1 + 1 + 1 + 2, 5), "none is dropped"
    cycle = COLUMNS.index("T50")
    assert data.take(np.array([3]), 0)[0, cycle].tolist() == [1, 1, 1, 1, 2, 3, 4]
    assert data.target is not None
    assert data.target[3, 0] == 0


def test_engines_are_dealt_to_devices_of_factories(folder: Path) -> None:
    data = read(folder)
    assert data.owned.names == ("FD001 engines 1-2", "FD001 engine 3", "FD003 engines 1-2")
    assert data.owned.factories == ("FD001", "FD003")
    assert data.owned.factory is not None
    assert data.owned.factory.tolist() == [0, 0, 1]
    assert data.owner is not None
    assert data.owner_test is not None
    assert np.bincount(data.owner).tolist() == [7, 4, 8]
    assert data.owner_test.tolist() == [0, 0, 1, 2, 2]
    alone = read(folder, engines=1)
    assert alone.owned.names[1] == "FD001 engine 2"
    assert alone.owner_test is not None
    assert alone.owner_test.tolist() == [0, 1, 2, 3, 4]


def test_sensors_are_those_that_vary_or_named(folder: Path) -> None:
    assert read(folder, sensors="varying").inputs.columns == ("altitude", "T2", "T30", "T50")
    assert read(folder, sensors="varying", subsets=("FD003",)).inputs.columns == ("altitude", "T30", "T50")
    assert read(folder, sensors=("T50", "T2")).inputs.columns == ("T50", "T2")
    with refused("data.cmapss.sensors"):
        read(folder, sensors=("P15", "P30"))


def test_classes_of_life_and_forecasts(folder: Path) -> None:
    classes = read(folder, Reading(window=WINDOW, bins=(2, 100)))
    assert classes.classes == ("<2", "2-100", ">=100")
    assert classes.y_test.tolist() == [1, 2, 0, 2, 0]
    assert classes.target is None
    ahead = read(folder, checked(Reading, {
        "window": {"length": 3, "step": 1}, "task": {"kind": "forecasting", "horizon": 2, "sensors": ["T50"]},
    }, ""))  # fmt: skip
    assert ahead.target_test is not None
    assert ahead.target_test.tolist() == [[4, 5], [1, 2], [5, 6], [2, 3], [3, 4]]
    with refused("cmapss-labels"):
        read(folder, Reading(window=WINDOW, task="classification"))


def experiment(folder: Path, **more: Any) -> Experiment:
    data = {"name": "cmapss", "root": str(folder.parent), "window": {"length": 4, "step": 1}}
    own = {"cmapss": {"subsets": ["FD001", "FD003"], "engines": 2}}
    return checked(Experiment, {"data": data | own | more.pop("data", {})} | more, "")


def test_the_task_is_remaining_life_unless_another_is_named(folder: Path) -> None:
    made = experiment(folder)
    assert made.data.task == cmapss.TASK
    assert made.evaluate.headline == "RMSE"
    assert isinstance(task := read(folder).task, Regression)
    assert (task.names, task.unit, task.cap) == (("remaining life",), "cycles", 125.0)
    assert experiment(folder, data={"bins": [2]}).data.asked.kind == "classification"
    with refused("data"):
        checked(Experiment, {"data": {"name": "tep", "cmapss": {"engines": 5}}}, "")


def test_devices_of_one_engine_are_held_out_whole(folder: Path) -> None:
    one = {"cmapss": {"subsets": ["FD001", "FD003"], "engines": 1}}
    park = build_park(experiment(folder, data=one, evaluate={"on": "both", "validation": 0.4}))
    assert park.devices == 3, "two of the five neither train nor test"
    assert park.validating is not None
    assert park.test_samples == 5
    assert park.validating.test_samples + int(park.sizes.sum()) == 19


def test_held_out_engines_are_whole(folder: Path) -> None:
    park = build_park(experiment(folder, evaluate={"on": "validation", "validation": 0.5}))
    data = park.dataset
    column = park.dataset.inputs.columns.index("T30")
    assert (park.devices, park.factories, park.factory_names) == (3, 2, ("FD001", "FD003"))
    held = data.take_test(np.arange(len(data.y_test)))[:, :, -1]
    subset = data.inputs.columns.index("T2")
    gone = {(s, e) for s, e in held[:, [subset, column]].tolist()}
    assert len(gone) == 2, "one of each device that has two"
    kept = np.concatenate([park.samples(k)[0] for k in range(3)])[:, :, -1]
    assert not gone & {(s, e) for s, e in kept[:, [subset, column]].tolist()}


@pytest.mark.parametrize(
    ("file", "spoil", "message"),
    [
        ("train_FD003.txt", lambda text: text.replace(" ", "", 1), "not a matrix of numbers"),
        ("train_FD003.txt", lambda _: "1 2 3\n", "3 columns instead of 26"),
        ("test_FD003.txt", lambda text: text.replace("1 2 ", "1 7 ", 1), "row 2 is cycle 7 of engine 1"),
        ("test_FD003.txt", lambda text: "2" + text[1:], "row 1 is cycle 1 of engine 2"),
        ("RUL_FD003.txt", lambda _: "1\n", "1 rows, but test_FD003.txt has 2 engines"),
        ("RUL_FD003.txt", lambda _: "4\n-1\n", "row 2: -1 remaining cycles"),
        ("RUL_FD003.txt", lambda _: "", "not a matrix of numbers"),
    ],
)
def test_damaged_files_are_named(folder: Path, file: str, spoil: Any, message: str) -> None:
    (folder / file).write_text(spoil((folder / file).read_text()))
    with pytest.raises(SettingError, match=message) as error:
        read(folder)
    assert file in str(error.value)


def test_missing_files_and_odd_settings_are_named(folder: Path, tmp_path: Path) -> None:
    with refused("published-file-missing"):
        read(folder, subsets=("FD001", "FD002"))
    with refused("published-file-missing"):
        sources.load("cmapss", root=tmp_path / "nowhere", reading=LIFE)
    with refused("data.split"):
        read(folder, replace(LIFE, split=TimeSplit()))
    with refused("data.cmapss.subsets"):
        Cmapss(subsets=("FD005",))
    with refused("data.cmapss.engines"):
        Cmapss(engines=0)
    with refused("data.cmapss.sensors"):
        Cmapss(sensors=("t50",))
    assert sources.looked_in(["cmapss"], root=folder.parent)[0]["found"] is True
    for one in ("RUL_FD001.txt", "RUL_FD003.txt"):
        (folder / one).unlink()
    row = sources.looked_in(["cmapss"], root=folder.parent)[0]
    assert row["found"] is False
    assert "RUL_FD001.txt" in str(row["how"])


def test_the_published_engines(data_root: Path) -> None:
    if not (data_root / "cmapss").is_dir():
        pytest.skip("FEDFLOOR_DATA holds no cmapss")
    like = Cmapss(subsets=("FD001", "FD003"), engines=50)
    reading = Reading(window=Window(30, 1), task=cmapss.TASK)
    data = sources.load("cmapss", root=data_root, reading=reading, like=like)
    assert (len(data.y), len(data.y_test)) == (20631 + 24720 - 200 * 29, 200)
    assert len(data.owned.names) == 4
    assert data.target_test is not None
    above = data.target_test[:, 0] > 125
    assert (int(above[:100].sum()), int(above[100:].sum())) == (11, 15)
    assert set(COLUMNS) - set(data.inputs.columns) == {"TRA", "T2", "P2", "farB", "Nf_dmd", "PCNfR_dmd"}
    last = [np.loadtxt(data_root / "cmapss" / f"test_{one}.txt.gz") for one in like.subsets]
    expected = np.concatenate([one[np.flatnonzero(np.diff(one[:, 0], append=0))] for one in last])
    columns = [2 + COLUMNS.index(one) for one in data.inputs.columns]
    assert np.array_equal(data.take_test(np.arange(200))[:, :, -1], expected[:, columns].astype(np.float32))


def test_six_regimes_are_normalised_apart_unless_told() -> None:
    def normalise(**data: Any) -> Any:
        return checked(Experiment, {"data": {"name": "cmapss", **data}}, "").data.normalise

    by_regime = normalise(cmapss={"subsets": ["FD001", "FD004"]})
    assert (by_regime.kind, by_regime.columns, by_regime.regimes) == ("regime", cmapss.SETTINGS, 6)
    assert normalise(cmapss={"subsets": ["FD002"]}, normalise="standard") == "standard"
    assert normalise(cmapss={"subsets": ["FD002"], "sensors": ["T24", "T30"]}) == "auto"
    assert normalise() == "auto"
