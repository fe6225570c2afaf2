from __future__ import annotations

import numpy as np

from fedfloor.data.dataset import LETTERS_AND_DIGITS, SamplePool, pooled


def test_names_of_the_62_characters() -> None:
    assert len(set(LETTERS_AND_DIGITS)) == 62
    # LEAF: 0–9 digits, 10–35 upper case, 36–61 lower case
    assert [LETTERS_AND_DIGITS[i] for i in (0, 9, 10, 35, 36, 61)] == ["0", "9", "A", "Z", "a", "z"]


def test_pooled_takes_by_number_whoever_asks() -> None:
    x = np.arange(24, dtype=np.uint8).reshape(4, 1, 2, 3)
    y = np.array([0, 1, 0, 1])
    data = pooled("tiny", ("a", "b"), SamplePool(x, y), SamplePool(x[:1], y[:1]), "digest")
    assert data.shape == (1, 2, 3)
    assert not data.rendered
    for device in (0, 9):
        np.testing.assert_array_equal(data.take(np.array([3, 0, 3]), device), x[[3, 0, 3]])
    np.testing.assert_array_equal(data.take_test(np.array([0])), x[:1])
