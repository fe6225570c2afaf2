from __future__ import annotations

import numpy as np
import pytest

from fedfloor.data.dataset import LETTERS_AND_DIGITS
from fedfloor.data.made.labels import FONTS, REACH, STEPS, _distance, distance_maps, labels, style
from refusals import refused


def test_owners_and_shapes() -> None:
    data = labels(devices=4, samples_per_device=25, seed=3)
    assert data.owner is not None
    assert data.owner_test is not None
    assert data.owner.tolist() == [i // 25 for i in range(100)]
    assert data.owner_test.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert data.classes == LETTERS_AND_DIGITS
    assert data.rendered
    x = data.take(np.arange(25), 0)
    assert x.shape == (25, 1, 28, 28)
    assert x.dtype == np.uint8
    assert data.take(np.arange(0), 0).shape == (0, 1, 28, 28)
    assert data.take_test(np.arange(8)).shape == (8, 1, 28, 28)


def test_many_devices_are_tested_on_the_first_hundred() -> None:
    data = labels(devices=130, samples_per_device=5, seed=0, classes=10)
    assert data.owner_test is not None
    assert data.owner_test.tolist() == list(range(100))
    assert set(data.y) <= set(range(10))
    assert data.take(np.array([0]), 10**6).shape == (1, 1, 28, 28)  # any device has a style


def test_same_seed_same_bytes_whatever_the_order() -> None:
    one, two = (labels(devices=3, samples_per_device=300, seed=7) for _ in range(2))
    assert one.digest == two.digest
    np.testing.assert_array_equal(one.y, two.y)
    chosen = np.array([5, 899, 17, 5, 310])
    whole = one.take(np.arange(900), 1)  # several chunks
    np.testing.assert_array_equal(two.take(chosen, 1), whole[chosen])
    np.testing.assert_array_equal(two.take(chosen[::-1], 1), whole[chosen[::-1]])
    tests = one.take_test(np.arange(90))
    np.testing.assert_array_equal(two.take_test(np.array([89, 0])), tests[[89, 0]])


def test_seed_device_and_sample_each_change_the_picture() -> None:
    zero = labels(2, 200, seed=0, classes=2)
    one = labels(2, 200, seed=1, classes=2)
    assert zero.digest != one.digest
    same = np.flatnonzero(zero.y == zero.y[0])[:2]  # two samples of one class
    a, b = zero.take(same, 0)
    assert not np.array_equal(a, b)
    assert not np.array_equal(zero.take(same, 0), zero.take(same, 1))  # same samples, another printer
    assert not np.array_equal(zero.take(same[:1], 0), one.take(same[:1], 0))


def test_test_pictures_are_unseen() -> None:
    data = labels(devices=1, samples_per_device=200, seed=0, classes=2)
    seen = {image.tobytes() for image in data.take(np.arange(200), 0)}
    assert not seen & {image.tobytes() for image in data.take_test(np.arange(20))}


def test_devices_are_skewed_but_not_hopelessly() -> None:
    data = labels(devices=40, samples_per_device=500, seed=0)
    shares = np.array([np.bincount(part, minlength=62) for part in data.y.reshape(40, 500)]) / 500
    effective = 1 / np.square(shares).sum(axis=1)
    # For p ~ Dir(½) on F = 62 classes E[Σp²] = 1.5/32, so about 21 effective classes (a little fewer by sampling).
    assert 15 < effective.mean() < 27


def test_pictures_use_the_grey_scale_and_keep_their_margin() -> None:
    data = labels(devices=30, samples_per_device=10, seed=0)
    for device in range(30):
        x = data.take(np.arange(10), device).astype(float)
        look = style(0, device)
        centre = x[:, 0, 6:22, 6:22]
        rim = np.concatenate([x[:, 0, 0], x[:, 0, -1]])
        spread = np.percentile(centre, 97) - np.percentile(centre, 3)
        assert spread > 40, look  # a character is there
        # light (±0.2/√2), brightness (0.06 · 2.5), noise and the odd stroke move the rim's median this far at most
        assert abs(np.median(rim) / 255 - look.paper) < 0.35, look


@pytest.mark.parametrize(
    ("numbers", "words"),
    [((0, 10, 0), "park.devices"), ((1, 0, 0), "data.samples_per_device"), ((1, 1, 0, 1), "data.classes"),
     ((1, 1, 0, 63), "data.classes")],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(numbers: tuple[int, ...], words: str) -> None:
    with refused(words):
        labels(*numbers)


@pytest.mark.parametrize("font", FONTS)
def test_every_font_has_62_different_characters_within_the_cell(font: str) -> None:
    maps = distance_maps(font, LETTERS_AND_DIGITS)
    assert maps.shape == (62, 108, 108)
    assert len({cell.tobytes() for cell in maps}) == 62  # a missing glyph would look like another missing one
    assert (maps.max(axis=(1, 2)) > 0).all()  # ink in every cell
    border = np.concatenate([maps[:, 0], maps[:, -1], maps[:, :, 0], maps[:, :, -1]])
    assert border.max() < 0  # never cut off


def test_distance_by_hand() -> None:
    mask = np.zeros((1, 9, 9), bool)
    mask[0, 4, 4] = True
    distance = _distance(mask)[0]
    rows, columns = np.mgrid[:9, :9] - 4
    np.testing.assert_allclose(distance, np.hypot(rows, columns), rtol=1e-6)


def test_distances_are_cut_off_at_the_reach() -> None:
    assert distance_maps("DejaVuSans.ttf", LETTERS_AND_DIGITS).min() == -REACH * STEPS
