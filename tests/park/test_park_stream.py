from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfloor.base import machine
from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError
from fedfloor.park.build import build
from fedfloor.park.stream import Cycle, Fifo, Recycle, Static, Stream, batch_order
from refusals import refused


def test_static_holds_everything_always() -> None:
    stream: Stream = Static()
    assert stream.kind == "static"
    assert [stream.position(tick, visits) for tick, visits in ((0, 0), (5, 2))] == [0, 0]
    assert stream.held(np.zeros(10, int), 0, 3, 0) is None
    assert stream.holds(10) == 10


# -- windows -----------------------------------------------------------------------------------------------------------

SAME = np.zeros(5, int)


def passes(size: int, count: int, seed: int = 0, device: int = 0) -> list[np.ndarray]:
    """The reshuffled passes of a device, as the page on streams says they are drawn."""
    return [generator(seed, "stream", device, one).permutation(size) for one in range(count)]


def windows(stream: Fifo | Recycle, labels: np.ndarray, count: int, device: int = 0) -> list[list[int]]:
    return [stream.held(labels, 0, device, position)[0].tolist() for position in range(count)]


def test_what_moves_a_stream_on() -> None:
    assert [Fifo(2).position(tick, visits) for tick, visits in ((0, 0), (5, 2))] == [0, 5]
    assert [Recycle(2).position(tick, visits) for tick, visits in ((0, 0), (5, 2))] == [0, 2]
    assert (Fifo(7).holds(3), Recycle(7).holds(30)) == (7, 7)


def test_what_a_pass_leaves_is_filled_up_from_the_next_by_hand() -> None:
    # five samples in windows of two: the first pass has two windows and one sample left; with the first of the second
    # pass that makes the third window, and that pass's other four are two whole ones
    (a, b, c, d, e), (f, g, h, i, j) = passes(5, 2)
    by_hand = [[a, b], [c, d], [e, f], [g, h], [i, j]]
    assert windows(Recycle(2), SAME, 5) == by_hand
    assert windows(Fifo(2), SAME, 5) == by_hand


def test_a_window_may_be_larger_than_the_local_set() -> None:
    (first, second, third) = passes(2, 3)
    long = Recycle(5)
    assert windows(long, SAME[:2], 1) == [[*first, *second, third[0]]]
    assert windows(Fifo(1), SAME[:1], 4) == [[0]] * 4


@given(size=st.integers(1, 12), window=st.integers(1, 15), position=st.integers(0, 40), device=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_one_pass_covers_every_sample_exactly_once(size: int, window: int, position: int, device: int) -> None:
    labels = np.arange(size) % 3
    for drift in (None, Cycle(), Cycle(strength=0.4, period=2)):
        stream = Fifo(window, drift)
        length = size * (drift.period if drift else 1)
        stretch = [one for part in windows(stream, labels, 2 * length // window + 2, device) for one in part]
        for first in (0, length):  # of two passes, or two times two
            counts = np.bincount(stretch[first : first + length], minlength=size)
            assert counts.tolist() == [length // size] * size
        # a function of seed, device and position: whatever was asked before, of either stream
        again = Recycle(window, drift).held(labels, 0, device, position)[0]
        np.testing.assert_array_equal(again, Fifo(window, drift).held(labels, 0, device, position)[0])
        assert len(again) == window


def test_passes_differ_from_each_other_and_between_devices_and_seeds() -> None:
    labels = np.zeros(30, int)
    first, second = windows(Recycle(30), labels, 2)
    other = Recycle(30).held(labels, 0, 1, 0)[0].tolist()
    seeded = Recycle(30).held(labels, 1, 0, 0)[0].tolist()
    assert len({tuple(one) for one in (first, second, other, seeded)}) == 4


# -- drift -------------------------------------------------------------------------------------------------------------


def begins_with(wanted: int, classes: int) -> int:
    """A device whose classes begin with this one."""
    drawn = (int(generator(0, "drift", device).integers(classes)) for device in range(1000))
    return next(device for device, first in enumerate(drawn) if first == wanted)


def test_drift_by_hand() -> None:
    # Classes 0 and 1 in turn, s = ½: the i-th 0 stands at place 2i and, sorted, at i, so its score is 1.5·i; the i-th 1
    # at 2i + 1 and 6 + i, so 1.5·i + 3.5. In order: 0, 1.5, 3 | 3.5, 4.5, 5, 6, 6.5, 7.5, 8 | 9.5, 11 (a 1 each).
    classes = np.array([0, 1] * 6)
    order = Cycle(strength=0.5).order(classes, 0, begins_with(0, 2))
    assert order.tolist() == [0, 2, 4, 1, 6, 3, 8, 5, 10, 7, 9, 11]
    assert classes[order].tolist() == [0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 1, 1]
    # s = 1: class after class, each as it was; and a device whose first class is 1
    assert Cycle().order(classes, 0, begins_with(0, 2)).tolist() == [*range(0, 12, 2), *range(1, 12, 2)]
    assert Cycle().order(classes, 0, begins_with(1, 2)).tolist() == [*range(1, 12, 2), *range(0, 12, 2)]


def test_the_classes_are_those_that_the_device_holds() -> None:
    classes = np.array([9, 4, 7, 4, 9, 7])
    assert classes[Cycle().order(classes, 0, begins_with(1, 3))].tolist() == [7, 7, 9, 9, 4, 4]
    assert Cycle().order(np.array([5, 5]), 0, 0).tolist() == [0, 1]


def test_without_strength_there_is_no_drift_to_the_bit() -> None:
    labels = np.arange(11) % 4
    for period in (1, 3):
        assert windows(Fifo(3, Cycle(strength=0.0, period=period)), labels, 40) == windows(Fifo(3), labels, 40)
        assert windows(Fifo(3, Cycle(strength=0.5, period=period)), labels, 40) != windows(Fifo(3), labels, 40)


def test_the_class_mix_moves_round_after_round() -> None:
    # 12 samples, half of each class; with P = 2 a stretch has 24 places: four windows of one class, four of the other
    labels = np.arange(12) % 2
    device = begins_with(1, 2)
    shown = [labels[one].tolist() for one in windows(Fifo(3, Cycle(period=2)), labels, 16, device)]
    assert shown == ([[1] * 3] * 4 + [[0] * 3] * 4) * 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Fifo(0), "data.stream.window"),
        (lambda: Recycle(-1), "data.stream.window"),
        (lambda: Cycle(strength=1.5), "data.stream.drift.strength"),
        (lambda: Cycle(period=0), "data.stream.drift.period"),
    ],
)
def test_streams_that_cannot_be(make: Callable[[], object], words: str) -> None:
    with refused(words):
        make()


# -- mini-batches ------------------------------------------------------------------------------------------------------


def visited(size: int, batch_size: int, epochs: int | None, steps: int | None, seed: int = 0) -> list[list[list[int]]]:
    """Every pass as its list of mini-batches, sliced as the engine does."""
    rng = np.random.default_rng(seed)
    return [
        [order[i * batch_size : (i + 1) * batch_size].tolist() for i in range(batches)]
        for order, batches in batch_order(size, batch_size, epochs, steps, rng)
    ]


@given(size=st.integers(1, 30), batch_size=st.integers(1, 35), epochs=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_an_epoch_visits_each_sample_once(size: int, batch_size: int, epochs: int) -> None:
    passes = visited(size, batch_size, epochs, None)
    assert len(passes) == epochs
    for batches in passes:
        assert sorted(chain.from_iterable(batches)) == list(range(size))
        assert all(len(batch) == batch_size for batch in batches[:-1])


@given(size=st.integers(1, 30), batch_size=st.integers(1, 35), steps=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_steps_are_counted_over_endless_passes(size: int, batch_size: int, steps: int) -> None:
    passes = visited(size, batch_size, None, steps)
    assert sum(len(batches) for batches in passes) == steps
    assert all(batch for batches in passes for batch in batches)
    for batches in passes[:-1]:
        assert sorted(chain.from_iterable(batches)) == list(range(size))


def test_steps_of_whole_passes_are_epochs() -> None:
    assert visited(10, 4, 3, None) == visited(10, 4, None, 9)


def test_passes_are_reshuffled() -> None:
    first, second = visited(50, 50, 2, None)
    assert first != second
    assert visited(50, 50, 1, None, seed=1) != [first]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((0, 4, 1, None), "samples of a device"),
        ((3, 0, 1, None), "work.batch_size"),
        ((3, 4, 0, None), "work.epochs"),
        ((3, 4, None, 0), "work.steps"),
        ((3, 4, 1, 1), "work.epochs"),
        ((3, 4, None, None), "work.epochs"),
    ],
)
def test_errors_come_at_once_not_with_the_first_pass(numbers: tuple, words: str) -> None:
    with refused(words):
        batch_order(*numbers, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("stream", "needed"),
    [
        (Fifo(2000), 2000 * (8 + 784)),  # the number of a sample, and its bytes
        (Fifo(1, Cycle(period=200_000)), 8 * 200_000),  # the numbers of the samples of a stretch
    ],
)
def test_a_stream_whose_windows_fill_the_memory_is_refused(
    stream: Fifo, needed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "free_bytes", lambda: needed - 1)
    with pytest.raises(SettingError) as error:
        build("labels", devices=2, factories=1, samples_per_device=10, stream=stream)
    assert error.value.key == "memory"
    monkeypatch.setattr(machine, "free_bytes", lambda: needed)
    assert build("labels", devices=2, factories=1, samples_per_device=10, stream=stream).devices == 2
