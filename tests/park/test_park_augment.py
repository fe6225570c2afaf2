"""Augmented pictures and windows by hand: what is cut out, what becomes of it, and which samples are drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfloor.base.chance import generator
from fedfloor.park.augment import TRIES, Augmented, Crops, brightened, crops, resized


def pictures(*rows: list[int]) -> np.ndarray:
    """One grey picture of these rows."""
    return np.array(rows, np.uint8)[None, None]


def crop(top: int, height: int, left: int, width: int) -> Crops:
    return Crops(*(np.array([one]) for one in (top, height, left, width)))


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


# -- what becomes of a picture -----------------------------------------------------------------------------------------


def test_a_crop_of_a_ramp_by_hand() -> None:
    # Pixel (i, j) is 40·i + 4·j. Of 4×4 the crop is rows 1 and 2, columns 0 … 2. Row i shows (i + ½)/2 − ½ of the crop,
    # −¼, ¼, ¾, 1¼, held at 0 and 1: 1, 1¼, 1¾, 2 of the picture. Column j shows (j + ½)·¾ − ½: −⅛, ⅝, 1⅜, 2⅛, held at
    # 0 and 2: 0, ⅝, 1⅜, 2. So the rows begin with 40, 50, 70, 80, and the columns add 0, 2½, 5½, 8.
    ramp = pictures(*([40 * i + 4 * j for j in range(4)] for i in range(4)))
    exact = np.array([40, 50, 70, 80])[:, None] + np.array([0, 2.5, 5.5, 8])
    got = resized(ramp, crop(top=1, height=2, left=0, width=3))[0, 0]
    # halves go to the even number: 42.5 → 42, 45.5 → 46, 52.5 → 52, 55.5 → 56, 72.5 → 72, 75.5 → 76, 82.5 → 82, …
    assert got.tolist() == [[40, 42, 46, 48], [50, 52, 56, 58], [70, 72, 76, 78], [80, 82, 86, 88]]
    assert np.abs(got - exact).max() == 0.5


def test_what_lies_outside_a_crop_is_not_seen() -> None:
    # of 0, 100, 100, 0 only the two in the middle are cut out, and the outermost places lie beyond their centres
    assert resized(pictures([0, 100, 100, 0]), crop(0, 1, 1, 2)).ravel().tolist() == [100] * 4
    assert resized(pictures([9], [50], [9]), crop(1, 1, 0, 1)).ravel().tolist() == [50] * 3


def test_brightness_by_hand() -> None:
    # 0.5: 1 → 0.5 → 0, 3 → 1.5 → 2, 5 → 2.5 → 2; 1.25: 2 → 2.5 → 2, 6 → 7.5 → 8, 204 → 255, 205 → 256.25 → 255
    got = brightened(np.concatenate([pictures([1, 3, 5, 8]), pictures([2, 6, 204, 205])]), np.array([0.5, 1.25]))
    assert got[:, 0, 0].tolist() == [[0, 2, 2, 4], [2, 8, 255, 255]]
    assert got.dtype == np.uint8


def test_factor_one_and_a_whole_crop_are_the_picture_to_the_bit() -> None:
    for shape in ((5, 1, 28, 28), (2, 3, 5, 11), (1, 1, 150, 140)):  # in single precision, and in double
        x = noise(*shape)
        whole = [np.full(shape[0], one) for one in (0, shape[2], 0, shape[3])]
        np.testing.assert_array_equal(resized(x, Crops(*whole)), x)
        np.testing.assert_array_equal(brightened(x, np.ones(shape[0])), x)
        off = Augmented(brightness=0.0, scale=(1.0, 1.0))
        np.testing.assert_array_equal(off.altered(x, 0, 1, 2), x)


@pytest.mark.parametrize("shape", [(40, 1, 28, 28), (6, 3, 32, 20), (5, 1, 500, 400)])
def test_crops_are_resized_as_pytorch_does_it(shape: tuple[int, ...]) -> None:
    x = noise(*shape)
    what = crops(shape[0], shape[2], shape[3], (0.3, 1.0), (0.5, 2.0), np.random.default_rng(1))
    got = resized(x, what)
    for one, top, height, left, width, mine in zip(x, *what, got, strict=True):
        part = torch.from_numpy(one[None, :, top : top + height, left : left + width]).double()
        theirs = torch.nn.functional.interpolate(part, shape[2:], mode="bilinear", align_corners=False)[0].numpy()
        # theirs is exact but for roundings of numbers up to 255, mine the nearest whole number; of a million pixels
        # some would not be in single precision
        assert np.abs(mine - theirs).max() <= 0.5 + 1e-9


def test_pictures_do_not_hang_on_who_is_beside_them() -> None:
    x = noise(300, 1, 20, 20)  # more than are worked on at once
    what = crops(300, 20, 20, (0.5, 1.0), (0.8, 1.2), np.random.default_rng(1))
    whole = resized(x, what)
    for i in (0, 162, 163, 164, 299):
        np.testing.assert_array_equal(resized(x[i : i + 1], Crops(*(one[i : i + 1] for one in what)))[0], whole[i])


# -- what is cut out ---------------------------------------------------------------------------------------------------


@given(
    height=st.integers(1, 40), width=st.integers(1, 40), low=st.floats(0.1, 1), seed=st.integers(0, 9),
    ratio=st.sampled_from([(0.8, 1.2), (1.0, 1.0), (0.5, 2.0)]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_crops_lie_in_the_picture(height: int, width: int, low: float, seed: int, ratio: tuple[float, float]) -> None:
    top, high, left, broad = crops(50, height, width, (low, 1.0), ratio, np.random.default_rng(seed))
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (high >= 1).all()
    assert (broad >= 1).all()
    assert (top + high <= height).all()
    assert (left + broad <= width).all()
    # the sides are rounded, by half a pixel at most; a picture that stays whole has the largest area
    assert ((high + 0.5) * (broad + 0.5) >= low * height * width * (1 - 1e-9)).all()


def test_area_and_shape_are_those_asked_for() -> None:
    # Sides of 1000 pixels, so that rounding does not matter. Of pairs (s, r), s uniform in 0.8 … 1 and ln r in ln 0.8 …
    # ln 1.2, those are kept for which s ≤ r ≤ 1/s: given s, a share of (min(ln 1.2, −ln s) − ln s) / ln 1.5.
    top, high, left, broad = crops(4000, 1000, 1000, (0.8, 1.0), (0.8, 1.2), np.random.default_rng(0))
    area = high * broad / 1e6
    ratio = broad / high
    whole = (high == 1000) & (broad == 1000)
    s = np.linspace(0.8, 1, 10001)
    share = (np.minimum(np.log(1.2), -np.log(s)) - np.log(s)) / np.log(1.5)
    kept = share.mean()
    mean = (s * share).mean() / share.mean()
    rest = (1 - kept) ** TRIES
    assert whole.mean() == pytest.approx(rest, abs=4 * (rest / 4000) ** 0.5)  # four standard errors, here and below
    assert area[~whole].mean() == pytest.approx(mean, abs=4 * 0.06 / 4000**0.5)  # a spread of 0.2 / √12 at most
    assert area.min() >= 0.799
    assert ratio.min() >= 0.799
    assert ratio.max() <= 1.202
    assert ratio.min() < 0.85
    assert ratio.max() > 1.15
    # anywhere in the picture: halfway on average, a spread of 1/√12
    free = (high < 1000) & (broad < 1000)
    for start, side in ((top, high), (left, broad)):
        where = start[free] / (1000 - side[free])
        assert where.mean() == pytest.approx(0.5, abs=4 * 0.29 / free.sum() ** 0.5)


def test_shapes_are_relative_to_the_pictures_own() -> None:
    _, high, _, broad = crops(30, 40, 80, (0.25, 0.25), (1.0, 1.0), np.random.default_rng(0))
    assert set(zip(high.tolist(), broad.tolist(), strict=True)) == {(20, 40)}


def test_what_does_not_fit_stays_whole() -> None:
    # nothing of the whole area has another shape
    got = crops(20, 100, 100, (1.0, 1.0), (0.8, 0.8), np.random.default_rng(0))
    assert [set(one.tolist()) for one in got] == [{0}, {100}, {0}, {100}]


# -- which samples -----------------------------------------------------------------------------------------------------


@given(size=st.integers(1, 30), window=st.integers(1, 40), tick=st.integers(0, 50), least=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_every_tick_draws_anew_without_replacement(size: int, window: int, tick: int, least: int) -> None:
    stream = Augmented(window)
    labels = np.zeros(size, int)
    got = stream.held(labels, 0, 3, tick, least)
    assert got.shape == (least, window)
    for i in range(least):
        np.testing.assert_array_equal(got[i], stream.held(labels, 0, 3, tick + i)[0])
        counts = np.bincount(got[i], minlength=size)
        assert (counts.min(), counts.max()) == (window // size, -(-window // size))


def test_a_window_may_stay_for_some_ticks() -> None:
    labels = np.zeros(20, int)
    stays = Augmented(window=6, every=5)
    places = [stays.position(tick=tick, visits=tick) for tick in range(11)]
    assert places == [0] * 5 + [1] * 5 + [2]
    anew = Augmented(window=6)
    for place in (0, 1):
        np.testing.assert_array_equal(stays.held(labels, 3, 4, place), anew.held(labels, 3, 4, place))


def test_another_tick_device_and_seed_are_other_draws() -> None:
    stream = Augmented(20)
    labels = np.zeros(30, int)
    places = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    assert len({tuple(stream.held(labels, *place)[0].tolist()) for place in places}) == 4
    x = noise(20, 1, 9, 7)
    assert len({stream.altered(x, *place).tobytes() for place in places}) == 4
    assert [stream.position(tick, visits) for tick, visits in ((0, 0), (5, 2))] == [0, 5]
    assert (stream.holds(3), stream.holds(300)) == (20, 20)


def test_what_is_switched_off_leaves_the_rest_as_it_is() -> None:
    x = noise(20, 1, 28, 28)
    bright = Augmented(scale=(1, 1))
    cut = Augmented(brightness=0.0)
    factors = generator(0, "augment", 3, 4).uniform(0.9, 1.1, 20)
    np.testing.assert_array_equal(bright.altered(x, 0, 3, 4), brightened(x, factors))
    both = Augmented().altered(x, 0, 3, 4)
    np.testing.assert_array_equal(both, cut.altered(bright.altered(x, 0, 3, 4), 0, 3, 4))
    assert both.shape == x.shape
    assert both.dtype == np.uint8
