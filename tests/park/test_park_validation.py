"""The validation split: who gives how many samples, and that the test data stay out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfloor
from commands import lines
from fedfloor.data.dataset import Dataset, Indices, SamplePool, pooled
from fedfloor.data.files import own
from fedfloor.data.made.labels import labels
from fedfloor.data.reading import Reading, TimeSplit, Window
from fedfloor.experiment import DataSettings, EvaluateSettings, Experiment, ModelSettings, ParkSettings
from fedfloor.park import build as parks
from fedfloor.park import build as validation
from fedfloor.park.described import device_accuracy
from fedfloor.park.park import Park
from fedfloor.park.partition import Iid, Natural
from fedfloor.runs import parks as made
from refusals import refused


class Poison:
    """Test data that nobody may look at."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"the test data were touched: {name}")

    def __len__(self) -> int:
        raise AssertionError("the test data were counted")

    def __getitem__(self, key: object) -> object:
        raise AssertionError("the test data were read")

    def __call__(self, indices: object) -> object:
        raise AssertionError("test samples were taken")


def poisoned(data: Dataset) -> Dataset:
    return replace(data, y_test=Poison(), owner_test=Poison(), take_test=Poison())  # type: ignore[arg-type]


def numbered(sizes: list[int], *, owners: bool = False) -> tuple[Dataset, list[Indices]]:
    """A data set whose sample i shows i in its pixels, dealt in a scrambled order to devices of these sizes."""
    n = sum(sizes)
    x = np.arange(4 * n, dtype=np.uint32).view(np.uint8).reshape(n, 4, 2, 2)
    owner = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes) if owners else None
    data = pooled(
        "numbered", ("a", "b", "c"), SamplePool(x, np.arange(n) % 3, owner), SamplePool(x[:1], np.zeros(1, int)), ""
    )
    order = np.arange(n) if owners else np.random.default_rng(n).permutation(n)
    return poisoned(data), np.split(order, np.cumsum(sizes)[:-1])


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8).filter(lambda sizes: max(sizes) > 1),
    share=st.floats(0.001, 0.999),
    seed=st.integers(0, 1000),
)
def test_every_sample_is_either_kept_or_held_out(sizes: list[int], share: float, seed: int) -> None:
    data, parts = numbered(sizes)
    got, kept = validation.hold_out(data, parts, share, seed)
    x = got.take_test(np.arange(len(got.y_test)))
    held = x.reshape(len(x), 16).copy().view(np.uint32)[:, 0].astype(int) // 4  # the sample's number, from its pixels
    start = 0
    for part, rest in zip(parts, kept, strict=True):
        count = len(part) - len(rest)
        assert count == min(len(part) - 1, max(1, round(share * len(part))))
        mine = held[start : start + count]
        assert set(mine) | set(rest) == set(part)
        assert not set(mine) & set(rest)
        assert rest.tolist() == [i for i in part if i not in set(mine)]  # in the old order
        start += count
    assert start == len(held) == len(got.y_test)
    np.testing.assert_array_equal(got.y_test, data.y[held])
    again, same = validation.hold_out(data, parts, share, seed)
    np.testing.assert_array_equal(again.y_test, got.y_test)
    assert [part.tolist() for part in same] == [part.tolist() for part in kept]


def test_another_seed_and_another_device_draw_other_samples() -> None:
    data, parts = numbered([40, 40])
    _, (one, other) = validation.hold_out(data, parts, 0.5, 0)
    _, (another, _) = validation.hold_out(data, parts, 0.5, 1)
    assert one.tolist() != another.tolist()
    places = [np.flatnonzero(np.isin(part, rest)).tolist() for part, rest in zip(parts, (one, other), strict=True)]
    assert places[0] != places[1]


def test_what_a_device_holds_out_does_not_depend_on_the_others() -> None:
    data, parts = numbered([12, 30, 7])
    _, three = validation.hold_out(data, parts, 0.3, 5)
    _, two = validation.hold_out(data, parts[:2], 0.3, 5)
    assert [part.tolist() for part in three[:2]] == [part.tolist() for part in two]


@dataclass(frozen=True, eq=False)
class Timed(Dataset):
    """A data set whose samples have times."""

    time: np.ndarray | None = None


def test_where_there_is_time_the_last_samples_are_held_out() -> None:
    data, parts = numbered([10, 1, 5])
    time = np.random.default_rng(0).permutation(16).astype(float)
    timed = Timed(**{name: value for name, value in vars(data).items() if name != "time"}, time=time)
    _, kept = validation.hold_out(timed, parts, 0.3, 0)
    for part, rest, count in zip(parts, kept, (3, 0, 2), strict=True):
        assert sorted(time[rest]) == sorted(time[part])[: len(part) - count]
        assert rest.tolist() == [i for i in part if i in set(rest)]
    _, kept = validation.hold_out(replace(timed, time=np.zeros(16)), parts, 0.3, 0)
    assert kept[0].tolist() == parts[0][:7].tolist()  # at the same time: the last ones in the device's order


# -- windows that overlap ---------------------------------------------------------------------------------------------


def windows(folder: Path, files: dict[str, int], *, times: bool, step: int, test: float = 0.2) -> Dataset:
    """Windows of 10 rows of tables whose every value occurs once: those that share a row share a value."""
    for number, (name, rows) in enumerate(files.items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        table = [f"{1000 * number + row},{row // 7 % 2}" + (f",{row}" if times else "") for row in range(rows)]
        path.write_text("\n".join(["a,label" + (",time" if times else ""), *table]))
    return own.load(folder, Reading(window=Window(10, step), split=TimeSplit(test=test)), 0)


def values(x: np.ndarray) -> set[float]:
    return set(x.ravel().tolist())


@pytest.mark.parametrize("times", [False, True])
@pytest.mark.parametrize("step", [1, 4, 10])
@pytest.mark.parametrize("partition", [Natural(), Iid()])
def test_no_window_shares_a_row_with_one_held_out(
    tmp_path: Path, times: bool, step: int, partition: Natural | Iid
) -> None:
    files = {"one/a.csv": 200, "one/b.csv": 300, "two/a.csv": 150}  # where they have times, each begins at 0
    data = windows(tmp_path, files, times=times, step=step)
    devices = None if isinstance(partition, Natural) else 3
    park = parks.build(data, partition=partition, devices=devices, validation=0.2)
    held = values(park.test()[0])
    assert park.test_samples >= 0.15 * len(data.y)
    for device in range(park.devices):
        assert not held & values(park.samples(device)[0])


def test_windows_without_times_are_held_out_at_the_end_of_every_recording(tmp_path: Path) -> None:
    data = windows(tmp_path, {"one/a.csv": 125, "one/b.csv": 250}, times=False, step=1)  # 100 and 200 rows for training
    park = parks.build(data, validation=0.1)
    assert park.test_samples == round(0.1 * (91 + 191))
    held = values(park.test()[0])
    assert {99.0, 1199.0} < held  # the last rows of both
    # the last tenth of 91 and of 191 windows begins at rows 82 and 172
    assert min(value for value in held if value < 1000) in (81, 82, 83)
    assert min(value for value in held if value > 1000) in (1171, 1172, 1173)


def test_of_a_folder_per_label_every_label_is_held_out(tmp_path: Path) -> None:
    for number, label in enumerate(("good", "worn")):  # first the one, then the other was recorded
        table = [f"{100 * number + row},{100 * number + row}" for row in range(100)]
        (tmp_path / "press" / label).mkdir(parents=True)
        (tmp_path / "press" / label / "1.csv").write_text("\n".join(["a,time", *table]))
    park = parks.build(
        own.load(tmp_path, Reading(layout="device/label/file"), 0), validation=0.1
    )  # rows 0 to 79 are for training
    assert sorted(values(park.test()[0])) == [*range(72, 80), *range(172, 180)]


def test_a_device_whose_windows_all_share_rows_gives_none(tmp_path: Path) -> None:
    data = windows(tmp_path, {"one/a.csv": 30, "two/a.csv": 200}, times=True, step=1, test=0.5)
    park = parks.build(data, validation=0.2)
    assert park.sizes[0] == 6  # windows of 15 rows
    assert park.dataset.owner_test is not None
    assert set(park.dataset.owner_test.tolist()) == {1}
    alone = windows(tmp_path / "alone", {"one/a.csv": 30}, times=True, step=1, test=0.5)
    with refused("evaluate.on"):
        parks.build(alone, validation=0.2)


def test_windows_of_one_recording_on_too_many_devices(tmp_path: Path) -> None:
    data = windows(tmp_path, {"one/a.csv": 100}, times=False, step=1)
    with refused("evaluate.on"):
        parks.build(data, partition=Iid(), devices=35, validation=0.2)


def test_rendered_samples_are_printed_by_the_device_that_holds_them() -> None:
    data = labels(3, 20, seed=4)
    parts = Iid().split(data.y, data.owner, 62, 3, np.random.default_rng(0))
    got, kept = validation.hold_out(poisoned(data), parts, 0.2, 4)
    held = [np.setdiff1d(part, rest) for part, rest in zip(parts, kept, strict=True)]
    want = np.concatenate([data.take(part, device) for device, part in enumerate(held)])
    np.testing.assert_array_equal(got.take_test(np.arange(len(want))), want)
    mixed = np.array([11, 0, 5, 4, 11, 3])
    np.testing.assert_array_equal(got.take_test(mixed), want[mixed])
    assert got.take_test(np.zeros(0, np.int64)).shape == (0, 1, 28, 28)


def test_owners_keep_their_accuracy() -> None:
    data, parts = numbered([10, 20], owners=True)
    got, kept = validation.hold_out(data, parts, 0.2, 0)
    assert got.owner_test is not None
    assert got.owner_test.tolist() == [0, 0, 1, 1, 1, 1]
    park = Park(got, tuple(kept), np.zeros(2, np.int32))
    right = np.array([True, False, True, True, True, False])
    np.testing.assert_allclose(device_accuracy(park, right, np.zeros(3)), [0.5, 0.75])
    nobody, parts = numbered([9])
    assert validation.hold_out(nobody, parts, 0.2, 0)[0].owner_test is None


def test_a_single_sample_is_kept_for_training() -> None:
    data, parts = numbered([1, 1, 2])
    got, kept = validation.hold_out(data, parts, 0.9, 0)
    assert [len(part) for part in kept] == [1, 1, 1]
    assert len(got.y_test) == 1
    data, parts = numbered([1, 1])
    with refused("evaluate.on"):
        validation.hold_out(data, parts, 0.1, 0)
    for share in (0.0, 1.0, float("nan")):
        with refused("evaluate.validation"):
            validation.hold_out(data, parts, share, 0)


# -- in a park, and in a run -------------------------------------------------------------------------------------------


def small(on: str = "validation", **evaluate: object) -> Experiment:
    return Experiment(
        rounds=2,
        data=DataSettings(samples_per_device=40, partition=Natural(), normalise="standard"),
        park=ParkSettings(devices=4, factories=2),
        model=ModelSettings("logistic"),
        evaluate=EvaluateSettings(on=on, **evaluate),  # type: ignore[arg-type]
    )


def build(load: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch, share: float | None) -> Park:
    monkeypatch.setattr(parks, "load", load)
    return parks.build("labels", devices=4, partition=Iid(), samples_per_device=40, validation=share)


def test_a_park_with_a_validation_split(monkeypatch: pytest.MonkeyPatch) -> None:
    data = labels(4, 40, seed=0)
    plain = build(lambda *a, **k: data, monkeypatch, None)
    assert plain.dataset is data
    split = build(lambda *a, **k: poisoned(data), monkeypatch, 0.25)
    assert split.sizes.tolist() == [30] * 4
    assert split.test_samples == 40
    for device in range(4):
        assert set(split.indices[device]) < set(plain.indices[device])
    assert split.factory_of.tolist() == plain.factory_of.tolist()


def test_a_whole_run_on_validation_data_never_touches_the_test_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = fedfloor.run(small(), tmp_path / "clean", ranks=1)
    load = made.load
    monkeypatch.setattr(made, "load", lambda *a, **k: poisoned(load(*a, **k)))
    for ranks in (1, 2, 3):
        got = fedfloor.run(small(), tmp_path / str(ranks), ranks=ranks)
        assert lines(got.folder) == lines(clean.folder)
        assert got.model_file.read_bytes() == clean.model_file.read_bytes()
    with pytest.raises(AssertionError, match="the test data were"):
        fedfloor.run(small("test"), tmp_path / "test", ranks=1)


def test_the_share_makes_no_difference_on_test_data(tmp_path: Path) -> None:
    one = fedfloor.run(small("test"), tmp_path / "one", ranks=1)
    other = fedfloor.run(small("test", validation=0.2), tmp_path / "other", ranks=1)
    held = fedfloor.run(small("validation", validation=0.2), tmp_path / "held", ranks=1)
    assert lines(one.folder) == lines(other.folder)
    assert lines(held.folder) != lines(one.folder)


def test_batches_that_the_held_out_samples_make_too_large(tmp_path: Path) -> None:
    data = DataSettings(samples_per_device=32, partition=Natural())
    what = replace(small(), data=data, work=replace(small().work, batch_size=32))
    with refused("work.batch_size"):
        fedfloor.run(what, tmp_path / "run", ranks=1)
    assert fedfloor.run(replace(what, data=replace(data, samples_per_device=37)), tmp_path / "fits", ranks=1).lines
