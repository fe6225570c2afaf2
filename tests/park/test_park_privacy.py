"""Noise on censuses, by its frequencies, and what reports add up to, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedfloor.park.privacy import check_epsilon, composed, noise, noisy, shares
from fedfloor.park.stream import Fifo, Recycle
from floor import park
from refusals import refused

DRAWS = 200_000


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_noise_is_discrete_laplace(epsilon: float) -> None:
    # P(x) = (1 − q)/(1 + q)·q^|x|, variance 2q/(1 − q)²; five standard deviations of a frequency
    drawn = noise(epsilon, DRAWS, np.random.default_rng(0))
    q = math.exp(-epsilon)
    for x in range(-6, 7):
        p = (1 - q) / (1 + q) * q ** abs(x)
        assert abs(float((drawn == x).mean()) - p) <= 5 * math.sqrt(p * (1 - p) / DRAWS)
    assert float(drawn.var()) == pytest.approx(2 * q / (1 - q) ** 2, rel=0.03)  # kurtosis 6 + 1/σ² < 16: 0.9 %


def test_no_epsilon_is_no_noise() -> None:
    plain = park((6, 10, 4))
    every = range(3)
    for epsilon in (None, math.inf):
        np.testing.assert_array_equal(
            replace(plain, census_epsilon=epsilon).census(every, 4, [0] * 3), plain.counts()[list(every)]
        )
        np.testing.assert_array_equal(replace(plain, census_epsilon=epsilon).distribution, plain.distribution)
    total = plain.counts().sum(axis=0)
    np.testing.assert_allclose(plain.distribution, total / 20, rtol=1e-15)  # one division


def test_a_device_says_the_same_when_asked_twice_in_a_tick() -> None:
    here = replace(park((6, 10, 4)), census_epsilon=0.5)
    one = here.census([2, 0], 3, [0, 0])
    np.testing.assert_array_equal(one, here.census([0, 2], 3, [0, 0])[::-1])
    assert not np.array_equal(one, here.census([2, 0], 4, [0, 0]))
    noises = here.census([0, 1, 2], 3, [0] * 3) - here.counts()
    assert not np.array_equal(noises[0], noises[1])
    # with ε = 0.01 about half of the counts fall below 0: of a hundred reports some lose all three
    little = replace(here, census_epsilon=0.01)
    reports = np.concatenate([little.census([0, 1, 2], tick, [0] * 3) for tick in range(34)])
    assert (reports >= 0).all()
    assert (reports == 0).any()
    assert reports.sum(1).min() > 0
    assert (reports == 1).all(1).any()


def test_another_window_in_the_same_tick_has_noise_of_its_own() -> None:
    # With the same noise the difference of the two reports would be that of the windows, without any noise at all.
    here = replace(park((40,)), stream=Recycle(10), census_epsilon=0.01)
    true = replace(here, census_epsilon=None)
    told = here.census([0, 0], 3, [0, 1]) - true.census([0, 0], 3, [0, 1])
    assert not np.array_equal(told[0], told[1])
    still = replace(here, stream=Fifo(10))
    np.testing.assert_array_equal(*still.census([0, 0], 3, [0, 1]))


def test_a_secret_takes_the_seeds_place() -> None:
    here = replace(park((6, 10, 4)), census_epsilon=0.1)
    secrets = [1 << 200, 1 << 201]
    one, other = (replace(here, secret=secret) for secret in secrets)
    for seed in range(5):  # whoever knows the experiment computes the simulation's noise; the secret's he does not
        known = replace(here, seed=seed)
        assert not np.array_equal(one.classes(1), known.classes(1))
        np.testing.assert_array_equal(one.classes(1), replace(one, seed=seed).classes(1))
    assert not np.array_equal(one.classes(1), other.classes(1))
    assert str(secrets[0]) not in repr(one)


def test_asking_again_averages_no_secret_noise_out() -> None:
    """A device that always holds the same gives one report: the mean of new noise at each tick would be the counts."""
    here = replace(park((40,)), census_epsilon=0.1)
    ticks = range(500)
    seeded, still = ({tuple(one.census([0], t, [0])[0]) for t in ticks} for one in (here, replace(here, secret=7)))
    assert len(seeded) > 400
    assert len(still) == 1
    moving = replace(here, secret=7, stream=Fifo(10))
    np.testing.assert_array_equal(moving.census([0], 3, [0]), moving.census([0], 3, [5]))  # one tick, one report
    assert len({tuple(moving.census([0], t, [0])[0]) for t in ticks}) > 100


def test_the_noise_of_two_data_sets_has_nothing_in_common() -> None:
    counts = np.array([5, 9, 4])
    told = [noisy(row, 0.1, 0, 3, 1, 2, secret=7) - row for row in (counts, counts + np.array([1, 0, 0]))]
    assert not np.array_equal(*told)


def test_shares_of_noisy_counts() -> None:
    # ε = 1e-3: the noise of a class is a thousand times what is there; sums below 0 count as 0, shares stay shares
    counts = np.array([[5, 0, 1], [2, 2, 2]])

    def told_by(seed: int) -> np.ndarray:
        return shares(noisy(row, 1e-3, seed, -1, k, 0) for k, row in enumerate(counts))

    for seed in range(20):
        told = told_by(seed)
        assert (told >= 0).all()
        assert told.sum() == pytest.approx(1)
        assert not np.allclose(told, counts.sum(axis=0) / 12)
    assert any(not told_by(seed).all() for seed in range(20))
    assert shares(np.zeros((2, 4), int)).tolist() == [0.25] * 4


def test_composition_by_hand() -> None:
    assert composed(0.5, 6) == 3.0
    assert composed(math.inf, 0) == 0.0
    # 0.1·√(2·500·ln 10⁵) + 500·0.1·(e^0.1 − 1) = 0.1·√11512.925 + 50·0.1051709 = 10.72983 + 5.25855
    assert composed(0.1, 500, delta=1e-5) == pytest.approx(15.98838, abs=1e-5)
    assert composed(0.5, 6, delta=1e-5) == 3.0  # 0.5·√138.2 + 1.9 is more
    assert composed(2000.0, 2, delta=1e-5) == 4000.0
    with refused("delta"):
        composed(0.1, 5, delta=1)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 1e-9, math.nan])
def test_epsilons_that_cannot_be(epsilon: float) -> None:
    with refused("park.census_epsilon"):
        check_epsilon(epsilon)
