"""K-Center and its pool: the plain algorithm, the bound, laws, errors."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfloor.solvers import clustering
from fedfloor.solvers.clustering import k_center, squared_distances_from
from refusals import refused

SEEDS = st.integers(0, 2**32 - 1)


def naive(v: np.ndarray, k: int, first: int) -> list[int]:
    """Greedy K-Center, every distance of every step anew."""
    centres = [first]
    while len(centres) < k:
        rest = [i for i in range(len(v)) if i not in centres]
        centres.append(max(rest, key=lambda i: (min(math.dist(v[i], v[c]) for c in centres), -i)))
    return centres


def radius(v: np.ndarray, centres: tuple[int, ...] | list[int]) -> float:
    """How far the farthest lies from its nearest centre."""
    return max(min(math.dist(x, v[c]) for c in centres) for x in v)


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_centres_are_those_of_the_plain_algorithm(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 20))
    dimension = int(rng.integers(1, 5))
    whole = rng.integers(-3, 4, (n, dimension))  # ties and equal vectors; squares and their roots order alike
    v = (whole if rng.random() < 0.5 else rng.normal(size=(n, dimension))).astype(np.float32)
    k = int(rng.integers(1, n + 1))
    first = int(rng.integers(n))
    found = k_center(v, k, rng, first=first)
    assert found.dtype == np.int64
    assert found.tolist() == naive(v, k, first)
    drawn = k_center(v, k, np.random.default_rng(seed))
    assert drawn.tolist() == naive(v, k, int(drawn[0]))
    # among some of them: as if there were no others
    among = np.flatnonzero(rng.random(n) < 0.7)
    if among.size:
        k = int(rng.integers(1, among.size + 1))
        some = k_center(v, k, rng, among=among)
        assert some.tolist() == among[naive(v[among], k, among.tolist().index(some[0]))].tolist()


@pytest.mark.parametrize(("n", "k"), [(6, 2), (8, 3), (9, 4), (10, 2)])
def test_no_centres_are_twice_as_good(n: int, k: int) -> None:
    worst = 0.0
    for seed in range(25):
        v = np.random.default_rng(seed).normal(size=(n, 2))
        best = min(radius(v, some) for some in itertools.combinations(range(n), k))
        worst = max(worst, radius(v, k_center(v, k, np.random.default_rng(seed)).tolist()) / best)
    assert 1 < worst <= 2  # above 1: greedy is not exact, so the bound has been put to a test


def test_the_first_is_drawn_evenly() -> None:
    # five rows, 1000 draws: 200 each, to 4 standard deviations of √(1000·0.2·0.8) = 12.6
    rng = np.random.default_rng(0)
    count = np.bincount([k_center(np.zeros((5, 1)), 1, rng)[0] for _ in range(1000)], minlength=5)
    assert np.abs(count - 200).max() <= 51


def test_equal_vectors_are_chosen_once_each() -> None:
    assert k_center(np.ones((4, 3), np.float32), 4, np.random.default_rng(0), first=2).tolist() == [2, 0, 1, 3]


def test_distances_do_not_cancel() -> None:
    # rows at 4096 that differ by 1, 2 and 4 times 2⁻¹¹, the spacing of 32-bit numbers there: by ‖v‖² + ‖w‖² − 2 v·w
    # the 2⁻²² apart would be lost among 3·10¹², whose spacing is 2⁻¹¹ even in 64 bits
    v = np.full((4, 200_000), 4096, np.float32)
    v[1, 7] += 2.0**-11
    v[2, 199_999] += 2.0**-10
    v[3, 8192] += 2.0**-9
    assert (squared_distances_from(v, np.arange(4), 0) * 2.0**22).tolist() == [0, 1, 4, 16]
    assert k_center(v, 4, np.random.default_rng(0), first=0).tolist() == [0, 3, 2, 1]


def test_distances_are_added_up_in_64_bits() -> None:
    v = np.random.default_rng(0).normal(size=(3, 30_000)).astype(np.float32)
    want = [math.fsum((x - y) ** 2 for x, y in zip(row.tolist(), v[1].tolist(), strict=True)) for row in v]
    np.testing.assert_allclose(squared_distances_from(v, np.arange(3), 1), want, rtol=1e-13)


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    v = np.random.default_rng(0).integers(-9, 10, (23, 57)).astype(np.float32)  # whole: sums are exact
    want = ((v - v[4]) ** 2).sum(1)
    monkeypatch.setattr(clustering, "ROWS", 4)
    monkeypatch.setattr(clustering, "COLUMNS", 10)
    assert (squared_distances_from(v, np.arange(23), 4) == want).all()
    assert (squared_distances_from(v, np.array([1, 20]), 4) == want[[1, 20]]).all()


def test_models_are_not_copied() -> None:
    v = np.random.default_rng(0).standard_normal((40, 100_000), np.float32)  # 16 MB, twice that in 64 bits
    tracemalloc.start()
    k_center(v, 5, np.random.default_rng(0), among=np.arange(1, 40))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3e6  # blocks of 8·8192·8 bytes


def next_centres(vectors: np.ndarray, left: np.ndarray, k: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """FAVOR's rounds: centres out of those left; all are back where fewer than k are left."""
    pool = left if left.size >= k else np.arange(len(vectors))
    centres = k_center(vectors, k, rng, among=pool)
    return centres, np.setdiff1d(pool, centres)


@pytest.mark.parametrize(("n", "k"), [(100, 10), (100, 20), (12, 4), (10, 3), (11, 4), (7, 7), (9, 5), (5, 1)])
def test_a_pass_takes_n_by_k_rounds(n: int, k: int) -> None:
    rng = np.random.default_rng(n + k)
    v = rng.normal(size=(n, 3)).astype(np.float32)
    left = np.arange(n)
    for _ in range(3):
        seen: list[int] = []
        for _ in range(n // k):
            centres, left = next_centres(v, left, k, rng)
            assert centres.size == k
            seen.extend(centres.tolist())
        assert len(set(seen)) == len(seen) == k * (n // k)  # nobody twice in a pass
        assert sorted([*seen, *left.tolist()]) == list(range(n))
        assert left.size == n % k


def test_a_hundred_devices_are_through_after_ten_rounds() -> None:
    v = np.random.default_rng(0).normal(size=(100, 4))
    left = np.arange(100)
    rounds = 0
    while left.size:
        _, left = next_centres(v, left, 10, np.random.default_rng(rounds))
        rounds += 1
    assert rounds == 10


def test_the_first_round_of_a_pass_lies_farthest_apart() -> None:
    # why FLDG sees every tenth round of K-Center as the best: what is left for later lies closer together
    v = np.random.default_rng(0).normal(size=(100, 4))
    left = np.arange(100)
    apart = []
    while left.size:
        centres, left = next_centres(v, left, 10, np.random.default_rng(0))
        apart.append(min(math.dist(v[a], v[b]) for a, b in itertools.combinations(centres, 2)))
    assert apart[0] == max(apart)
    assert apart[-1] == min(apart)


def test_bad_choices_are_refused() -> None:
    rng = np.random.default_rng(0)
    v = np.zeros((4, 2), np.float32)
    with refused("k"):
        k_center(v, 5, rng)
    with refused("k"):
        k_center(v, 3, rng, among=np.array([0, 3]))
    with refused("k"):
        next_centres(v, np.arange(4), 7, rng)
    for first, among in ((4, None), (-1, None), (2, np.array([0, 3]))):
        with refused("first"):
            k_center(v, 1, rng, first=first, among=among)
    with refused("shape of vectors"):
        k_center(v[:, 0], 1, rng)
    for bad in (np.nan, np.inf):
        v[3, 1] = bad
        with refused("vectors"):
            k_center(v, 2, rng, first=0)
        assert k_center(v, 2, rng, first=0, among=np.arange(3)).tolist() == [0, 1]
