"""Splits that fit the question: by recording, by class, the last rows, and a test set of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfloor.base.errors import SettingError
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import own
from fedfloor.data.reading import Columns, DeviceSplit, LastSplit, Reading, RunSplit, StratifiedSplit, Window
from fedfloor.data.split import by_class
from fedfloor.experiment import DataSettings
from fedfloor.park.build import build, hold_out
from own_data import park_of, table
from refusals import refused

RUN = Reading(columns=Columns(run="run"), split=RunSplit(test=0.25))


def press(
    path: Path, runs: int = 4, rows: int = 6, devices: tuple[str, ...] = ("a", "b"), *, turns: bool = False
) -> Path:
    """Write rows whose value is 1000·device + 100·run + row; where runs take turns, row by row."""
    lines = ["device,run,x,label"]
    for k, device in enumerate(devices):
        every = [(run, row) for run in range(runs) for row in range(rows)]
        for run, row in sorted(every, key=lambda one: one[1]) if turns else every:
            lines.append(f"{device},r{run},{1000 * k + 100 * run + row},{'odd' if row % 2 else 'even'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def values(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the first sensor's values of all training and all test samples, rows of windows one after the other."""
    x = data.take(np.arange(len(data.y)), 0)
    z = data.take_test(np.arange(len(data.y_test)))
    return x.reshape(len(x), -1).astype(int), z.reshape(len(z), -1).astype(int)


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("window", [None, Window(3, 1)])
def test_whole_runs_are_for_testing(tmp_path: Path, window: Window | None, turns: bool) -> None:
    data = own.load(press(tmp_path / "p.csv", turns=turns), replace(RUN, window=window), 0)
    train, test = ({*(one // 100).ravel().tolist()} for one in values(data))
    assert not train & test
    assert sorted(train | test) == [0, 1, 2, 3, 10, 11, 12, 13]
    assert [sum(run // 10 == device for run in test) for device in (0, 1)] == [1, 1]
    for part in values(data):  # no window crosses runs, even where they take turns in the table
        assert (np.diff(part, axis=1) == 1).all()


def test_other_seeds_draw_other_runs(tmp_path: Path) -> None:
    path = press(tmp_path / "p.csv", runs=10)
    drawn = {tuple(sorted({*(values(own.load(path, RUN, seed))[1] // 100).ravel().tolist()})) for seed in range(4)}
    assert len(drawn) > 1


def test_files_are_runs(tmp_path: Path) -> None:
    for device in ("a", "b"):
        for day in range(5):
            table(tmp_path / "d" / device / f"{day}.csv", start=100 * day)
    data = own.load(tmp_path / "d", Reading(split=RunSplit(test=0.4)), 0)
    assert data.time is not None
    trained = {(d, t // 100) for d, t in zip(data.owner.tolist(), data.time.tolist(), strict=True)}
    assert [sum(one[0] == device for one in trained) for device in (0, 1)] == [3, 3]
    assert len(data.y_test) == 2 * 2 * 20


def test_a_device_with_one_run_only_trains(tmp_path: Path) -> None:
    path = press(tmp_path / "p.csv")
    with path.open("a") as file:
        file.writelines(f"c,r0,{2000 + row},{'odd' if row % 2 else 'even'}\n" for row in range(6))
    data = own.load(path, RUN, 0)
    assert 2 in data.owner
    assert 2 not in data.owner_test


def test_runs_that_are_not_there(tmp_path: Path) -> None:
    path = press(tmp_path / "p.csv")
    with refused("data.split"):
        own.load(path, Reading(columns=Columns(ignore=("run",)), split=RunSplit()), 0)
    with refused("no-column"):
        own.load(path, Reading(columns=Columns(run="runs")), 0)
    path.write_text(path.read_text().replace("a,r1,", "a,,", 1))
    with refused("empty-cell"):
        own.load(path, RUN, 0)
    path.write_text(path.read_text().replace("a,,", "a,r1,").replace("\na,", "\n,").replace("\n,", "\na,", 1))
    with refused("empty-cell") as merged:
        own.load(path, RUN, 0)
    assert "merged" in str(merged.value)
    with refused("data.split"):
        own.load(park_of(tmp_path / "photos"), Reading(split=RunSplit()), 0)


def test_validation_holds_out_whole_runs(tmp_path: Path) -> None:
    data = own.load(press(tmp_path / "p.csv", runs=5), replace(RUN, window=Window(3, 1)), 0)
    parts = build(data).indices
    held, kept = hold_out(data, parts, 0.3, seed=1)
    x = data.take(np.concatenate(kept), 0)[:, 0] // 100
    z = held.take_test(np.arange(len(held.y_test)))[:, 0] // 100
    assert not {*x.ravel().tolist()} & {*z.ravel().tolist()}
    assert len({*z.ravel().tolist()}) == 2  # one of four training runs of each device
    single = own.load(press(tmp_path / "two.csv", runs=2), RUN, 0)
    with refused("evaluate.on"):
        hold_out(single, build(single).indices, 0.3, seed=1)


def test_a_run_that_goes_on_in_another_file_stays_whole(tmp_path: Path) -> None:
    for part in range(2):
        place = tmp_path / "d" / "a"
        place.mkdir(parents=True, exist_ok=True)
        lines = [
            f"r{run},{100 * run + 10 * part + row},{'odd' if row % 2 else 'even'}"
            for run in range(4)
            for row in range(4)
        ]
        (place / f"{part}.csv").write_text("\n".join(["run,x,label", *lines]) + "\n")
    (tmp_path / "d" / "b").mkdir()
    (tmp_path / "d" / "b" / "0.csv").write_text((tmp_path / "d" / "a" / "0.csv").read_text())
    data = own.load(tmp_path / "d", RUN, 0)
    train, test = ({*zip(owner.tolist(), (x[:, 0] // 100).tolist(), strict=True)} for owner, x in
                   zip((data.owner, data.owner_test), values(data), strict=True))  # fmt: skip
    assert not train & test


def test_each_class_of_each_device_is_held_out(tmp_path: Path) -> None:
    lines = ["device,x,label"]
    for device in "ab":
        lines += [f"{device},{i},{'ok' if i < 90 else 'crack' if i < 98 else 'burst'}" for i in range(100)]
    (tmp_path / "p.csv").write_text("\n".join([*lines, "b,7,once"]) + "\n")
    data = own.load(tmp_path / "p.csv", Reading(split=StratifiedSplit(test=0.2)), 0)
    names = np.array(data.classes)
    for device in (0, 1):
        many = dict(zip(*np.unique(names[data.y_test[data.owner_test == device]], return_counts=True), strict=True))
        assert many == {"ok": 18, "crack": 2, "burst": 1}
    assert "once" in names[data.y]  # a single sample trains
    with refused("data.split"):
        own.load(tmp_path / "p.csv", Reading(split=StratifiedSplit(), window=Window(5, 1)), 0)


def test_the_last_rows_of_devices_and_of_runs(tmp_path: Path) -> None:
    path = press(tmp_path / "p.csv")
    columns = Columns(run="run")
    data = own.load(path, Reading(columns=columns, split=LastSplit(2)), 0)
    assert values(data)[1].ravel().tolist() == [304, 305, 1304, 1305]
    data = own.load(path, Reading(columns=columns, split=LastSplit(2, of="run"), window=Window(2, 1)), 0)
    assert values(data)[1].tolist() == [
        [1000 * k + 100 * r + 4, 1000 * k + 100 * r + 5] for k in (0, 1) for r in range(4)
    ]
    assert values(data)[0].max() == 1303
    with refused("data.split"):
        own.load(path, Reading(columns=columns, split=LastSplit(2), window=Window(3)), 0)
    with refused("small"):
        own.load(path, Reading(columns=columns, split=LastSplit(24)), 0)


def test_validation_after_the_last_rows_is_the_end_of_the_rest(tmp_path: Path) -> None:
    data = own.load(press(tmp_path / "p.csv"), Reading(columns=Columns(run="run"), split=LastSplit(4)), 0)
    held, _ = hold_out(data, build(data).indices, 0.1, seed=3)
    assert held.take_test(np.arange(4)).ravel().tolist() == [300, 301, 1300, 1301]  # 20 of 24 rows train, a tenth is 2


def test_a_table_of_its_own_for_testing(tmp_path: Path) -> None:
    train = press(tmp_path / "train.csv", devices=("a", "b"))
    test = press(tmp_path / "test.csv", devices=("b", "c"))
    data = own.load(train, Reading(columns=Columns(run="run"), test=str(test)), 0)
    assert data.owned.names == ("a", "b", "c")
    assert np.unique(data.owner).tolist() == [0, 1]
    assert np.unique(data.owner_test).tolist() == [1, 2]
    assert (len(data.y), len(data.y_test)) == (48, 48)
    park = build(data)
    assert park.devices == 2
    assert park.names == ("a", "b")
    swapped = own.load(test, Reading(columns=Columns(run="run"), test=str(train)), 0)
    assert swapped.digest != data.digest
    for reading, text in (
        (Reading(test=str(train)), "the same file as \\[data\\] path"),
        (Reading(test=str(tmp_path)), "a folder. The test samples for a table must be in a table"),
        (Reading(test="nowhere.csv"), "no such file"),
        (Reading(test=str(test), split=RunSplit()), "have test samples of their own"),
    ):
        with pytest.raises(SettingError, match=text):
            own.load(train, replace(reading, columns=Columns(run="run")), 0)
    with refused("data.test"):
        DataSettings(test=str(test))


def test_a_folder_of_its_own_for_testing(tmp_path: Path) -> None:
    train = park_of(tmp_path / "one", ("p1", "p2"))
    test = park_of(tmp_path / "two", ("p2", "p9"))
    data = own.load(train, Reading(test=str(test)), 0)
    assert data.owned.names == ("p1", "p2", "p9")
    assert np.unique(data.owner_test).tolist() == [1, 2]
    for device in ("a", "b"):
        table(tmp_path / "t1" / device / "x.csv")
    table(tmp_path / "t2" / "c" / "x.csv")
    data = own.load(tmp_path / "t1", Reading(test=str(tmp_path / "t2")), 0)
    assert (np.unique(data.owner).tolist(), np.unique(data.owner_test).tolist()) == ([0, 1], [2])
    with refused("data.test"):
        own.load(train, Reading(test=str(train / "p1")), 0)


def test_new_keys_leave_old_recipes_alone() -> None:
    """What was parsed before these keys were there is found again, and has the same digest."""
    assert "run" not in Reading().recipe()
    assert "test" not in Reading().recipe()
    assert Reading(columns=Columns(run="r")).recipe() != Reading().recipe()
    assert Reading(test="a").recipe() == Reading(test="b").recipe() != Reading().recipe()


def test_recordings_shorter_than_a_window_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = ["device,run,x,label"]
    for run, rows in enumerate((3, 8, 4, 8, 2, 8)):  # one as long as a window
        lines += [f"a,r{run},{row},{'odd' if row % 2 else 'even'}" for row in range(rows)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines) + "\n")
    with caplog.at_level("INFO"):
        own.load(path, replace(RUN, window=Window(4, 1)), 0)
    assert "2 of 6 recordings are shorter than a window of 4 rows" in caplog.text
    assert "the shortest has 2 rows. To use all recordings: [data] window = { length = 2 }" in caplog.text


def test_a_device_too_short_for_a_window_names_one_that_fits(tmp_path: Path) -> None:
    path = press(tmp_path / "t.csv", runs=1, rows=20)
    with refused("small"):
        own.load(path, Reading(columns=Columns(ignore=("run",)), window=Window(6)), 0)
    assert len(own.load(path, Reading(columns=Columns(ignore=("run",)), window=Window(4, 1)), 0).y_test) == 2


BY_CLASS = Reading(columns=Columns(run="run"), split=RunSplit(by_class=True))


def labelled(path: Path, recordings: list[tuple[str, str]]) -> Path:
    """Write a table with recordings (device, labels), whose value is 100·(number of the recording) + row."""
    lines = ["device,run,x,label"]
    for number, (device, labels) in enumerate(recordings):
        lines += [f"{device},r{number},{100 * number + row},{label}" for row, label in enumerate(labels.split())]
    path.write_text("\n".join(lines) + "\n")
    return path


def held_out(path: Path, reading: Reading, seed: int) -> list[int]:
    """Return the numbers of the recordings that are for testing, none of which is divided."""
    train, test = ({*(one // 100).ravel().tolist()} for one in values(own.load(path, reading, seed)))
    assert not train & test
    return sorted(test)


@pytest.mark.parametrize("seed", range(8))
def test_recordings_of_each_class_are_for_testing(tmp_path: Path, seed: int) -> None:
    """Two devices, each with four recordings that are ok and one that failed: ⌊0.2·8⌉ = 2, and 1 of two."""
    path = labelled(tmp_path / "p.csv", [(d, "bad bad bad" if r == 4 else "ok ok ok") for d in "ab" for r in range(5)])
    drawn = held_out(path, BY_CLASS, seed)
    assert sum(number in (4, 9) for number in drawn) == 1
    assert len(drawn) == 3
    assert {number // 5 for number in drawn} == {0, 1}  # each device is tested


def test_recordings_by_class_are_drawn_by_the_seed(tmp_path: Path) -> None:
    path = labelled(tmp_path / "p.csv", [("a", "bad bad" if r < 5 else "ok ok") for r in range(15)])
    drawn = {tuple(held_out(path, BY_CLASS, seed)) for seed in range(6)}
    assert len(drawn) > 1
    assert {(sum(number < 5 for number in one), len(one)) for one in drawn} == {(1, 3)}


@pytest.mark.parametrize("seed", range(4))
def test_devices_of_each_class_are_for_testing(tmp_path: Path, seed: int) -> None:
    """Of 19 devices that failed ⌊3.8⌉ = 4, of 31 others ⌊6.2⌉ = 6."""
    path = labelled(tmp_path / "p.csv", [(f"d{k}", "bad bad" if k % 50 < 19 else "ok ok") for k in range(50)])
    reading = Reading(columns=Columns(ignore=("run",)), split=DeviceSplit(by_class=True))
    drawn = held_out(path, reading, seed)
    assert (sum(number < 19 for number in drawn), len(drawn)) == (4, 10)


def test_a_recording_belongs_to_the_class_of_which_it_has_most(tmp_path: Path) -> None:
    """Faults are a quarter of two recordings, and a stray row is in a third one; one of the two is for testing."""
    mixed = ["ok ok ok bad"] * 2 + ["ok ok ok ok"] * 8
    for seed in range(6):
        drawn = held_out(labelled(tmp_path / "p.csv", [("a", labels) for labels in mixed]), BY_CLASS, seed)
        assert (len(drawn), sum(number < 2 for number in drawn)) == (3, 1)


def test_a_class_with_one_recording_trains_and_a_device_with_one_keeps_it(tmp_path: Path) -> None:
    recordings = [("a", "ok ok"), ("a", "ok ok"), ("a", "ok ok"), ("a", "bad bad"), ("b", "ok ok")]
    for seed in range(6):
        assert held_out(labelled(tmp_path / "p.csv", recordings), BY_CLASS, seed) in ([0], [1], [2])
    few = labelled(tmp_path / "p.csv", [("a", "ok ok"), ("a", "bad bad")])
    with refused("data"):
        own.load(few, BY_CLASS, 0)
    with refused("data.split.by_class"):
        replace(BY_CLASS, task="regression")


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=2, max_size=40), st.integers(0, 9))
def test_no_class_and_no_device_loses_all_its_recordings(recordings: list[tuple[int, int]], seed: int) -> None:
    """Also: where one device has all recordings, the share of each class is exact."""
    owner, kind = (np.repeat(np.array(column), 3) for column in zip(*recordings, strict=True))
    unit = np.repeat(np.arange(len(recordings)), 3)
    one = np.bincount(kind[::3])
    wanted = np.minimum(np.maximum(1, np.round(0.3 * one)), one - 1)[one > 0]
    for whose in (owner, np.zeros_like(owner)):
        try:
            drawn = by_class(kind, unit, whose, 0.3, np.random.default_rng(seed))
        except SettingError:
            assert not ((one[kind] > 1) & (np.bincount(whose)[whose] > 3)).any()
            continue
        assert (drawn.reshape(-1, 3).sum(axis=1) % 3 == 0).all()  # recordings are whole
        assert {*kind[~drawn]} == {*kind}
        assert {*whose[~drawn]} == {*whose}
        if not whose.any():
            assert np.bincount(kind[drawn], minlength=len(one))[one > 0].tolist() == (3 * wanted).tolist()


@pytest.mark.parametrize("devices", [False, True])
def test_validation_by_class_leaves_each_class_in_training(tmp_path: Path, devices: bool) -> None:
    """Of 16 recordings or devices three failed: one is for testing, one for validation, and one trains."""
    recordings = [(f"d{k if devices else k % 2}", "bad bad" if k in (1, 2, 5) else "ok ok") for k in range(16)]
    path = labelled(tmp_path / "p.csv", recordings)
    reading = Reading(columns=Columns(ignore=("run",)), split=DeviceSplit(by_class=True)) if devices else BY_CLASS
    for seed in range(6):
        data = own.load(path, reading, seed)
        for purpose in range(3):
            park = build(data, seed=purpose, validation=0.1, whole_devices=devices)
            trained = np.concatenate(list(park.indices))
            parts = data.take(trained, 0), park.dataset.take_test(np.arange(len(park.dataset.y_test)))
            train, held = ({*(x[:, 0].astype(int) // 100).tolist()} for x in parts)
            assert not train & held
            assert [len(one & {1, 2, 5}) for one in (train, held)] == [1, 1]
            assert len(held - {1, 2, 5}) == 1  # of ten


def test_classes_with_one_recording_for_testing_are_named(tmp_path: Path) -> None:
    fifty = [("a", "bad bad" if r < 10 else "ok ok") for r in range(50)]
    path = labelled(tmp_path / "p.csv", fifty)
    random = replace(BY_CLASS, split=RunSplit())
    few = next(seed for seed in range(99) if sum(number < 10 for number in held_out(path, random, seed)) == 1)
    (said,) = own.load(path, random, few).notes
    assert said == (
        "a single recording of 'bad' is for testing, which hardly tells how well others are recognised: split = "
        "{ kind = 'run', by_class = true } draws recordings of each class."
    )
    assert own.load(path, BY_CLASS, few).notes == ()  # two of ten
    (said,) = own.load(labelled(path, fifty[8:]), BY_CLASS, 0).notes  # one of two
    assert "a single recording of 'bad' is for testing" in said
    assert "more recordings, or a larger share for testing ([data] split test), would tell more" in said
    (said,) = own.load(labelled(path, [("a", "ok bad")] * 5), random, 0).notes
    assert said.startswith("a single recording is for testing, which")
    assert own.load(labelled(path, [("a", "ok bad")] * 10), random, 0).notes == ()
