"""Windows, splits and missing values: laws that hold for any recordings."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError
from fedfloor.data.dataset import Dataset, Inputs, Owned
from fedfloor.data.reading import DeviceSplit, RandomSplit, Reading, Split, TimeSplit, Window
from fedfloor.data.series import assemble, fill
from fedfloor.data.split import Rows
from refusals import refused

Sizes = list[list[int]]
SIZES: st.SearchStrategy[Sizes] = st.lists(st.lists(st.integers(1, 25), min_size=1, max_size=3), min_size=2, max_size=6)
WINDOWS = st.tuples(st.integers(1, 6), st.integers(1, 9))


def recordings(sizes: Sizes, holes: float = 0.0) -> Rows:
    """Return recordings whose only sensor is the row's number; the class of a row is its number modulo 3."""
    devices = [device for device, mine in enumerate(sizes) for size in mine for _ in range(size)]
    lengths = [size for mine in sizes for size in mine]
    total = len(devices)
    x = np.arange(total, dtype=np.float32)[:, None]
    x[np.random.default_rng(0).random(total) < holes] = np.nan
    return Rows(
        x, np.arange(total) % 3, np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
        np.array(devices, np.int32),
    )  # fmt: skip


def cut(rows: Rows, split: Split | None, window: tuple[int, int], seed: int = 0, **more: object) -> Dataset | None:
    """Return the data set, or None where nothing is left for training or testing."""
    reading = replace(Reading(small="drop", split=split, window=Window(*window)), **more)  # type: ignore[arg-type]
    allowed = ("samples are left", "every training sample", "needs two devices")
    try:
        return assemble("t", ("a", "b", "c"), rows, reading, Inputs("table", ("v",)), Owned(), "", seed)
    except SettingError as error:
        if not any(words in str(error) for words in allowed):
            raise
        return None


def rows_of(data: Dataset, part: Literal["train", "test"]) -> NDArray[np.int64]:
    """Return int64 [windows, L], the rows of each window."""
    if part == "train":
        return data.take(np.arange(len(data.y)), 0)[:, 0].astype(np.int64)
    return data.take_test(np.arange(len(data.y_test)))[:, 0].astype(np.int64)


@settings(deadline=None, max_examples=150)
@given(SIZES, WINDOWS, st.sampled_from([TimeSplit(test=0.3), DeviceSplit(test=0.4), RandomSplit(test=0.3)]))
def test_windows_keep_to_one_recording_and_have_their_last_rows_label(
    sizes: Sizes, window: tuple[int, int], split: Split
) -> None:
    rows = recordings(sizes)
    assume(not isinstance(split, RandomSplit) or window[1] >= window[0])
    data = cut(rows, split, window)
    assume(data is not None)
    assert data is not None
    assert rows.owner is not None
    assert data.owner is not None
    train = rows_of(data, "train")
    test = rows_of(data, "test")
    for found, labels in ((train, data.y), (test, data.y_test)):
        assert (np.diff(found, axis=1) == 1).all()
        assert found.shape[1] == window[0]
        assert (rows.segment[found] == rows.segment[found[:, :1]]).all()
        assert np.array_equal(labels, rows.y[found[:, -1]])
    assert not set(train.ravel().tolist()) & set(test.ravel().tolist())
    assert np.array_equal(data.owner, rows.owner[train[:, -1]])
    if data.owner_test is not None:
        assert np.array_equal(data.owner_test, rows.owner[test[:, -1]])


@settings(deadline=None, max_examples=150)
@given(SIZES, WINDOWS, st.sampled_from([0.1, 0.29, 0.5, 0.8]))
def test_testing_comes_after_training(sizes: Sizes, window: tuple[int, int], share: float) -> None:
    """Split by time: the windows are those that can be cut from the first rows, and from the last, of each device."""
    rows = recordings(sizes)
    (length, step) = window
    wanted: dict[str, list[int]] = {"train": [], "test": []}
    first = 0
    for mine in sizes:
        border = first + sum(mine) - int(round(share * 100) * sum(mine) // 100)
        here: dict[str, list[int]] = {"train": [], "test": []}
        for size in mine:
            for part, low, high in (
                ("train", first, min(border, first + size)), ("test", max(border, first), first + size)
            ):  # fmt: skip
                here[part] += range(low, high - length + 1, step)
            first += size
        if here["train"] and here["test"]:  # the others are left out
            wanted = {part: wanted[part] + here[part] for part in wanted}
    data = cut(rows, TimeSplit(test=share), window)
    if data is None:
        assert not wanted["train"] or len({(start + length - 1) % 3 for start in wanted["train"]}) == 1
        return
    assert rows_of(data, "train")[:, 0].tolist() == wanted["train"]
    assert rows_of(data, "test")[:, 0].tolist() == wanted["test"]


@settings(deadline=None, max_examples=60)
@given(SIZES, st.integers(1, 4), st.integers(0, 3))
def test_a_random_split_takes_its_share_of_every_device(sizes: Sizes, length: int, seed: int) -> None:
    rows = recordings(sizes)
    split = RandomSplit(test=0.3)
    data = cut(rows, split, (length, length), seed)
    assume(data is not None)
    assert data is not None
    assert data.owner is not None
    assert data.owner_test is not None
    again = cut(rows, split, (length, length), seed)
    assert again is not None
    assert np.array_equal(rows_of(again, "test"), rows_of(data, "test"))
    for device, mine in enumerate(sizes):
        windows = sum(size // length for size in mine)
        tested = 3 * windows // 10
        kept = 0 < tested < windows
        assert (data.owner == device).sum() == kept * (windows - tested)
        assert (data.owner_test == device).sum() == kept * tested


def test_random_splits_differ_with_the_seed() -> None:
    one, other = (cut(recordings([[20], [20]]), RandomSplit(), (1, 1), seed) for seed in (0, 1))
    assert one is not None
    assert other is not None
    assert not np.array_equal(rows_of(one, "test"), rows_of(other, "test"))


@settings(deadline=None, max_examples=60)
@given(SIZES, WINDOWS, st.integers(0, 3))
def test_a_split_by_device_shares_no_device(sizes: Sizes, window: tuple[int, int], seed: int) -> None:
    rows = recordings(sizes)
    data = cut(rows, DeviceSplit(test=0.4), window, seed)
    assume(data is not None)
    assert data is not None
    assert rows.owner is not None
    assert data.owner is not None
    tested = set(rows.owner[rows_of(data, "test")[:, 0]].tolist())
    trained = set(data.owner.tolist())
    large = [device for device, mine in enumerate(sizes) if max(mine) >= window[0]]
    assert data.owner_test is not None
    assert set(data.owner_test.tolist()) == tested
    assert not tested & trained
    assert tested | trained == set(large)
    assert len(tested) == min(max(1, round(0.4 * len(large))), len(large) - 1)


def test_a_device_without_a_window_is_refused_in_a_split_by_device_too() -> None:
    reading = Reading(window=Window(5), split=DeviceSplit())
    with refused("small"):
        assemble("t", ("a", "b", "c"), recordings([[20], [4], [20]]), reading, Inputs("table"), Owned(), "", 0)


@settings(deadline=None, max_examples=100)
@given(SIZES, WINDOWS)
def test_dropped_windows_are_those_with_a_hole(sizes: Sizes, window: tuple[int, int]) -> None:
    """Which windows there are does not depend on the holes: those with one are taken out of them."""
    whole = cut(recordings(sizes), TimeSplit(test=0.4), window)
    data = cut(recordings(sizes, holes=0.2), TimeSplit(test=0.4), window, missing="drop")
    assume(data is not None and whole is not None)
    assert data is not None
    assert whole is not None
    assert data.owner is not None
    assert whole.owner is not None
    assert whole.owner_test is not None
    hole = np.isnan(recordings(sizes, holes=0.2).x[:, 0])
    kept = set(data.owner.tolist())
    for part, owner in (("train", whole.owner), ("test", whole.owner_test)):
        found = rows_of(whole, part)  # type: ignore[arg-type]
        good = ~hole[found].any(axis=1) & np.isin(owner, list(kept))
        assert rows_of(data, part).tolist() == found[good].tolist()  # type: ignore[arg-type]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.lists(st.tuples(*[st.sampled_from([1.0, 2.0, 3.0, float("nan")])] * 2), min_size=1, max_size=8),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_filling_carries_the_last_value_on(pieces: list[list[tuple[float, float]]]) -> None:
    x = np.array([row for piece in pieces for row in piece], np.float32)
    segment = np.repeat(np.arange(len(pieces), dtype=np.int32), [len(piece) for piece in pieces])
    wanted = []
    for piece in pieces:
        for row in range(len(piece)):
            said = []
            for channel in range(2):
                known = [piece[i][channel] for i in range(row, -1, -1) if not np.isnan(piece[i][channel])]
                said.append(known[0] if known else np.nan)
            wanted.append(said)
    kept = x.copy()
    assert np.array_equal(fill(x, segment), np.array(wanted, np.float32), equal_nan=True)
    assert np.array_equal(x, kept, equal_nan=True)


def test_many_devices_take_no_longer_than_their_rows() -> None:
    """20,000 devices of five rows: a loop over devices that looks at all rows would take 2e9 steps, some minutes."""
    rows = recordings([[5]] * 20_000)
    for split in (TimeSplit(), RandomSplit(), DeviceSplit()):
        data = cut(rows, split, (1, 1))
        assert data is not None
        assert len(data.y) == 80_000
