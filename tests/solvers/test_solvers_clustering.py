"""K-Means and purity: examples by hand, laws, errors."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_info, threadpool_limits

from fedfloor.solvers.clustering import Clusters, canonical, kmeans, purity
from refusals import refused

SEEDS = st.integers(0, 2**32 - 1)


# -- K-Means -----------------------------------------------------------------------------------------------------------


def check(found: Clusters, v: np.ndarray, groups: int) -> None:
    """What holds for every answer."""
    labels = found.labels
    assert labels.dtype == np.int64
    assert found.distinct == len({tuple(x) for x in v.tolist()})
    assert found.groups <= min(groups, found.distinct)
    assert bool(found.remark) == (found.groups < groups)
    assert [labels.tolist().index(g) for g in range(found.groups)] == sorted(
        labels.tolist().index(g) for g in set(labels)
    )
    assert found.sizes.tolist() == [labels.tolist().count(g) for g in range(found.groups)]
    for g in range(found.groups):
        np.testing.assert_allclose(found.centres[g], v[labels == g].mean(0), rtol=1e-12)
    apart = [math.dist(x, found.centres[g]) ** 2 for x, g in zip(v, labels, strict=True)]
    assert found.inertia == pytest.approx(math.fsum(apart), rel=1e-9, abs=1e-12)


def points(seed: int) -> tuple[np.ndarray, int]:
    """Hashes or numbers, some of them equal."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 25))
    dimension = int(rng.integers(1, 6))
    v = rng.integers(-2, 3, (n, dimension)) if rng.random() < 0.5 else rng.normal(size=(n, dimension))
    return v[rng.integers(0, n, n)].astype(np.float64), int(rng.integers(1, 12))


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_groups_of_anything(seed: int) -> None:
    v, groups = points(seed)
    found = kmeans(v, groups, seed)
    check(found, v, groups)
    assert found.groups == min(groups, found.distinct)
    equal = (v[:, None] == v).all(2)
    assert (found.labels[:, None] == found.labels)[equal].all()
    if found.distinct <= groups:
        assert found.inertia == pytest.approx(0, abs=1e-25)
    again = kmeans(v, groups, seed)
    assert (again.labels == found.labels).all()
    assert (again.centres == found.centres).all()
    order = np.random.default_rng(seed).permutation(len(v))
    moved = kmeans(v[order], groups, seed)
    assert (moved.labels == canonical(found.labels[order])).all()


@pytest.mark.parametrize("groups", [2, 5, 10])
def test_clusters_that_lie_apart_are_found_in_any_order(groups: int) -> None:
    rng = np.random.default_rng(groups)
    centres = 100 * rng.permutation(np.eye(16))[:groups]  # 141 apart; members lie about 4 around them
    kinds = np.concatenate([np.arange(groups), rng.integers(0, groups, 60)])
    v = centres[kinds] + rng.normal(size=(kinds.size, 16))
    for seed in range(4):
        order = rng.permutation(kinds.size)
        found = kmeans(v[order].astype(np.float32), groups, seed)
        check(found, v[order].astype(np.float32).astype(np.float64), groups)
        assert (found.labels == canonical(kinds[order])).all()
        assert purity(found.labels, kinds[order]) == 1


def partitions(n: int, groups: int) -> Iterator[list[int]]:
    """All ways to put n into at most K groups, each once: label i is at most 1 more than those before it."""

    def longer(labels: list[int]) -> Iterator[list[int]]:
        if len(labels) == n:
            yield labels
            return
        for g in range(min(max(labels, default=-1) + 2, groups)):
            yield from longer([*labels, g])

    return longer([])


def test_small_problems_are_solved() -> None:
    every = np.array(list(partitions(7, 3)))
    assert len(every) == 1 + 63 + 301  # S(7, 1) + S(7, 2) + S(7, 3), Stirling's numbers
    member = np.eye(3)[every]  # [partition, vector, group]
    for seed in range(15):
        v = np.random.default_rng(seed).normal(size=(7, 2))
        held = member.sum(1)
        sums = np.einsum("pvg,vd->pgd", member, v)
        # Σ‖v − c‖² = Σ‖v‖² − Σ_g ‖Σ_{v∈g} v‖²/n_g
        inertia = (v**2).sum() - np.divide((sums**2).sum(2), held, out=np.zeros(held.shape), where=held > 0).sum(1)
        found = kmeans(v, 3, seed)
        assert found.inertia == pytest.approx(inertia.min(), rel=1e-12)
        assert (found.labels == every[inertia.argmin()]).all()


def test_equal_vectors_weigh_as_many() -> None:
    # two groups of 0, 4 and 9: {0, 4} costs 4²/2 = 8, {4, 9} 5²/2 = 12.5
    assert kmeans(np.array([[0.0], [4], [9]]), 2, 0).labels.tolist() == [0, 0, 1]
    # with 0 fifty times {0, 4} costs 50/51·16 = 15.69
    found = kmeans(np.array([[0.0]] * 50 + [[4], [9]]), 2, 0)
    assert found.labels.tolist() == [0] * 50 + [1, 1]
    assert found.centres.tolist() == [[0], [6.5]]
    assert found.inertia == 12.5


def test_fewer_vectors_than_groups_are_said() -> None:
    v = np.array([[3, 1], [0, 0], [3, 1], [2, 2]])
    found = kmeans(v, 4, 0)
    assert (found.groups, found.wanted, found.distinct) == (3, 4, 3)
    assert found.labels.tolist() == [0, 1, 0, 2]
    assert found.centres.tolist() == [[3, 1], [0, 0], [2, 2]]
    assert found.remark == "3 of 4 groups formed: only 3 vectors differ"
    assert kmeans(v, 3, 0).remark == ""
    constant = kmeans(np.full((6, 5), 0.1), 10, 0)
    assert (constant.labels.tolist(), constant.sizes.tolist()) == ([0] * 6, [6])
    assert constant.remark == "1 of 10 groups formed: all vectors are equal"
    assert kmeans(np.full((6, 5), 0.1), 1, 0).remark == ""
    assert kmeans(np.array([[0.0], [-0.0]]), 2, 0).groups == 1
    close = np.array([[1.0], [1 + 1e-200], [2e-200], [3e-200], [4e-200]])  # their squares are 0
    assert kmeans(close, 3, 0).remark == "2 of 3 groups formed: the others differ only by rounding errors"


def test_the_seed_is_of_the_starts() -> None:
    # 300 vectors without any clusters: whoever starts elsewhere ends elsewhere
    v = np.random.default_rng(0).random((300, 5))
    found = [kmeans(v, 20, seed) for seed in (0, 0, 1)]
    assert (found[0].labels == found[1].labels).all()
    assert (found[0].labels != found[2].labels).any()
    assert kmeans(v, 20, -7).groups == 20  # any whole number is a seed


def test_one_thread_whatever_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    fit = KMeans.fit

    def seen(self: KMeans, *args: object, **kwargs: object) -> KMeans:
        threads.extend(pool["num_threads"] for pool in threadpool_info())
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(KMeans, "fit", seen)
    with threadpool_limits(2):
        kmeans(np.random.default_rng(0).random((30, 2)), 3, 0)
        assert set(threads) == {1}
        assert 2 in {pool["num_threads"] for pool in threadpool_info()}  # given back


def test_bad_vectors_are_refused() -> None:
    with refused("shape of vectors"):
        kmeans(np.zeros((0, 3)), 2, 0)
    with refused("groups"):
        kmeans(np.zeros((4, 3)), 0, 0)
    for bad in (math.nan, -math.inf, 1e101):
        with refused("vectors"):
            kmeans(np.array([[0.0], [bad]]), 2, 0)


# -- purity ------------------------------------------------------------------------------------------------------------


def test_purity_by_hand() -> None:
    # Manning et al., Figure 16.4: of 17 in three groups 5, 4 and 3 are of the most frequent kind
    groups = np.repeat([5, 2, 9], [6, 6, 5])
    kinds = np.array([0] * 5 + [1] + [0] + [1] * 4 + [2] + [0] * 2 + [2] * 3)
    assert purity(groups, kinds) == 12 / 17
    assert purity(np.arange(4), np.array([3, 3, 1, 1])) == 1
    assert purity(np.zeros(4, np.int64), np.array([3, 3, 1, 0])) == 0.5


@settings(deadline=None)
@given(SEEDS)
def test_purity_of_anything(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    groups = rng.integers(0, 5, n)
    kinds = rng.integers(-2, 4, n)
    halves = rng.integers(0, 2, n)
    want = sum(max(kinds[groups == g].tolist().count(c) for c in set(kinds.tolist())) for g in set(groups.tolist())) / n
    assert purity(groups, kinds) == want
    assert np.bincount(kinds + 2).max() / n <= want <= 1
    assert purity(2 * groups + halves, kinds) >= want  # groups that are split lose nothing
    assert purity(kinds, kinds) == 1


def test_purity_of_nobody_is_refused() -> None:
    with refused("shape of groups"):
        purity(np.empty(0, np.int64), np.empty(0, np.int64))
    with refused("shape of kinds"):
        purity(np.zeros(2, np.int64), np.zeros(3, np.int64))
