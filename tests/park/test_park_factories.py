from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfloor.park.partition import assign
from refusals import refused


@given(factories=st.integers(1, 12), extra=st.integers(0, 60), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_equal_shares_differ_by_at_most_one(factories: int, extra: int, seed: int) -> None:
    devices = factories + extra
    factory_of = assign(devices, factories, "equal", np.random.default_rng(seed))
    assert factory_of.dtype == np.int32
    sizes = np.bincount(factory_of, minlength=factories)
    assert sizes.sum() == devices
    assert sizes.max() - sizes.min() <= 1


@given(factories=st.integers(1, 8), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_random_leaves_no_factory_empty(factories: int, seed: int) -> None:
    factory_of = assign(3 * factories, factories, "random", np.random.default_rng(seed))
    assert sorted(set(factory_of.tolist())) == list(range(factories))
    assert factory_of.dtype == np.int32


def test_random_is_uniform() -> None:
    # 20,000 devices, 4 factories: each has 5,000 ± 4 standard deviations of √(20,000 · ¼ · ¾) ≈ 61
    sizes = np.bincount(assign(20_000, 4, "random", np.random.default_rng(0)))
    np.testing.assert_allclose(sizes, 5000, atol=245)


@pytest.mark.parametrize(
    ("devices", "factories", "how", "words"),
    [
        (3, 4, "equal", "park.factories"),
        (3, 4, "random", "park.factories"),
        (3, 0, "equal", "park.factories"),
        (3, 2, (0, 1), "park.assignment"),
        (3, 2, (0, 0, 0), "park.assignment"),
        (3, 2, (0, 1, 2), "park.assignment"),
        (40, 40, "random", "park.assignment"),  # chance 40!/40^40 ≈ 7e-17 per draw
        (4, 2, "equel", "unknown assignment of devices to factories"),
    ],
)
def test_impossible_assignments_are_refused(devices: int, factories: int, how, words: str) -> None:
    with refused(words):
        assign(devices, factories, how, np.random.default_rng(0))


def test_a_real_floor_says_where_each_device_stands() -> None:
    factory_of = assign(4, 2, (1, 0, 0, 1), np.random.default_rng(0))
    assert factory_of.dtype == np.int32
    assert factory_of.tolist() == [1, 0, 0, 1]
