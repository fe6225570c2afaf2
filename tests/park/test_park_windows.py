"""What devices hold, looked for in any order and together: window by window the stretches of their endless streams."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfloor.park.stream
from fedfloor.base.chance import generator
from fedfloor.data.made.labels import labels
from fedfloor.park.park import Park
from fedfloor.park.stream import Cycle, Fifo, Recycle, Static, Windows, _bytes, endless
from refusals import refused
from streaming import streamed

SIZES = (6, 10, 4, 9, 1)
STREAMS = [kind(n, drift) for kind in (Fifo, Recycle) for n in (1, 4, 15) for drift in (None, Cycle(0.7, 2))]
named = pytest.mark.parametrize("stream", STREAMS, ids=lambda one: f"{one.kind}-{one.window}-{one.drift is not None}")


def expected(here: Park, device: int, position: int) -> np.ndarray:
    """The sample numbers of a window, by the definition of the endless stream."""
    stream = here.stream
    indices = here.indices[device]
    assert isinstance(stream, Fifo | Recycle)
    first = position * stream.window
    return indices[endless(here.dataset.y[indices], here.seed, device, first, stream.window, stream.drift)]


def check(here: Park, device: int, tick: int, visits: int) -> None:
    window = expected(here, device, here.stream.position(tick, visits))
    census = here.census([device], tick, [visits])[0]
    assert census.tolist() == np.bincount(here.dataset.y[window], minlength=3).tolist()
    x, y = here.held(device, tick, visits)
    np.testing.assert_array_equal(x, here.dataset.take(window, device))
    np.testing.assert_array_equal(y, here.dataset.y[window])


@given(
    size=st.integers(1, 12), window=st.integers(1, 30), position=st.integers(0, 40), least=st.integers(1, 20),
    drift=st.sampled_from([None, Cycle(), Cycle(0.4, 3)]),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_windows_at_once_are_those_one_by_one_and_fill_the_passes(
    size: int, window: int, position: int, least: int, drift: Cycle | None
) -> None:
    classes = np.arange(size) % 3
    length = size * (drift.period if drift else 1)
    several = Fifo(window, drift).held(classes, 0, 2, position, least)
    one_by_one = [endless(classes, 0, 2, (position + i) * window, window, drift) for i in range(len(several))]
    np.testing.assert_array_equal(several, one_by_one)
    # the last window asked for ends in the same stretch as the last given, and the next one would not
    assert len(several) >= least
    stretch = [((position + i) * window - 1) // length for i in (least, len(several), len(several) + 1)]
    assert stretch[0] == stretch[1] < stretch[2]


@named
@pytest.mark.parametrize("small", [False, True], ids=["kept", "driven out"])
def test_any_order_of_ticks_and_visits(stream: Fifo | Recycle, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if small:
        monkeypatch.setattr(fedfloor.park.stream, "BLOCK_BYTES", 200)
        monkeypatch.setattr(fedfloor.park.stream, "KEPT_BYTES", 3000)  # two blocks or three
    here = streamed(stream, SIZES)
    for position in range(40):  # one after the other
        for device in range(5):
            check(here, device, position, position)
    rng = np.random.default_rng(0)
    for tick, visits in rng.integers(0, 60, (60, 2)).tolist():  # to and fro
        check(here, int(rng.integers(5)), tick, visits)
    for position in (7, 8, 7, 9, 8, 30, 29, 31, 0):  # as branches do, which happen at the same time
        check(here, 1, position, position)


def test_recycled_windows_wait_for_jumping_visits() -> None:
    here = streamed(Recycle(4), SIZES)
    visits = Counter[int]()
    rng = np.random.default_rng(1)
    for tick in range(80):
        every = [visits[k] for k in range(5)]
        by_hand = [np.bincount(here.dataset.y[expected(here, k, every[k])], minlength=3) for k in range(5)]
        np.testing.assert_array_equal(here.census(range(5), tick, every), by_hand)
        visits.update(rng.choice(5, 2, replace=False).tolist())
        visits[4] += 7


def test_passes_are_shuffled_for_windows_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: Counter[tuple[int, ...]] = Counter()

    def counted(seed: int, purpose: str, *place: int) -> np.random.Generator:
        drawn[place] += 1
        return generator(seed, purpose, *place)

    monkeypatch.setattr(fedfloor.park.stream, "generator", counted)
    here = streamed(Fifo(32), (200, 50))
    here.census([0], 3, [0])  # places 96 … 127: in the first pass
    assert drawn == {(0, 0): 1}
    here.census([1], 3, [0])  # of passes of 50: in the second and the third
    assert drawn == {(0, 0): 1, (1, 1): 1, (1, 2): 1}
    here.census([0], 5, [0])  # 160 … 191
    assert drawn[0, 0] == 1
    drawn.clear()
    for tick in range(6, 512):
        here.census([0, 0], tick, [0, 1])
    # Each block has twice as many windows as the last one, up to 64 KiB / 8 / (32 samples + 3 classes) = 234, so there
    # are no more than 8. Two neighbours share one pass at most, and the last one reaches 234 windows, or 38 passes,
    # too far.
    assert 82 <= len(drawn) <= 82 + 38  # 512 windows are 81.92 passes
    assert drawn.total() <= len(drawn) + 8
    drawn.clear()
    for tick in range(504, 512):  # who chose for eight ticks at once now trains: the block before is still there
        here.held(0, tick, 0)
    assert not drawn


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedfloor.park.stream, "KEPT_BYTES", 20_000)
    here = streamed(Fifo(4), (30,) * 40)
    windows = Windows(here.stream, 0, here.dataset.labels, here.indices, len(here.dataset.classes))
    for tick in range(60):
        windows.at(range(40 if tick % 20 == 0 else 5), tick, [0] * 40 if tick % 20 == 0 else [0] * 5)
        kept = windows._blocks
        assert sum(map(_bytes, kept.values())) == windows._bytes <= 20_000
        assert len(kept) > 4
        assert all(
            one.windows is None or one.windows.base is None for one in kept.values()
        )  # not views of whole passes


# -- together ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [Static(), Fifo(4), Recycle(50, Cycle())], ids=lambda one: one.kind)
@pytest.mark.parametrize("source", ["array", "glyphs"])
def test_together_is_one_after_the_other(stream: Static | Fifo | Recycle, source: str) -> None:
    here = streamed(stream, (20,) * 5)  # type: ignore[arg-type]
    if source == "glyphs":  # every device prints in its own style
        here = replace(here, dataset=labels(5, 20, seed=4))
        assert here.dataset.rendered
    for devices, visits in (((3, 0, 4, 0), (2, 5, 0, 1)), ((2,), (9,)), (range(5), [3] * 5)):
        for tick in (0, 7):
            where = [(k, stream.position(tick, seen)) for k, seen in zip(devices, visits, strict=True)]
            parts = [(k, here.indices[k] if stream.kind == "static" else expected(here, k, at)) for k, at in where]
            x, y, sizes = here.together(devices, tick, visits)
            np.testing.assert_array_equal(x, np.concatenate([here.dataset.take(part, k) for k, part in parts]))
            np.testing.assert_array_equal(y, np.concatenate([here.dataset.y[part] for _, part in parts]))
            assert (x.dtype, y.dtype, sizes.dtype) == (np.uint8, np.int64, np.int64)
            assert sizes.tolist() == [len(part) for _, part in parts]


def test_the_cloud_holds_what_all_hold_together() -> None:
    here = streamed(Recycle(4), SIZES)
    for one, other in zip(here.held(-1, 3, 2), here.together(range(5), 3, [2] * 5)[:2], strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(replace(here, stream=Static()).held(-1, 3, 2), here.pooled(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_one_number_of_visits_per_device() -> None:
    here = streamed(Fifo(4), SIZES)
    with refused("visits-and-devices"):
        here.together([0, 2], 3, [0])
    with refused("devices together"):
        here.together([], 3, [])
