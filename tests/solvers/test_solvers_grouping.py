"""The grouping solvers: examples by hand, laws, errors."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from fedfloor.base.errors import RunError
from fedfloor.solvers.grouping import kernels
from fedfloor.solvers.grouping import solve as exchange_module
from fedfloor.solvers.grouping.kernels import assign, exchange_between
from fedfloor.solvers.grouping.solve import (
    DISTANCES,
    SOLVERS,
    Distance,
    GroupingProblem,
    astraea,
    check,
    clusters,
    cpd,
    exchange,
    icg,
    random,
    shares,
    solve,
    value,
    verify,
)
from fedfloor.solvers.solution import solved
from groupings import femnist_like, groupings, least, strange
from refusals import refused

SEEDS = st.integers(0, 2**32 - 1)


# -- the problem, by hand ----------------------------------------------------------------------------------------------


def test_values_by_hand() -> None:
    # shares of the groups: (4, 4)/8, (2, 6)/8, (9, 3)/12 = (1/2, 1/2), (1/4, 3/4), (3/4, 1/4)
    counts = np.array([[4.0, 0], [0, 4], [1, 3], [1, 3], [9, 0], [0, 3], [7, 7]])
    problem = GroupingProblem(counts, 3)
    choice = np.array([[0, 1], [2, 3], [4, 5]])
    assert (problem.size, problem.left_out) == (2, 1)
    assert shares(problem, choice).tolist() == [[0.5, 0.5], [0.25, 0.75], [0.75, 0.25]]
    r = math.sqrt(2)  # pairs are (1/4, −1/4), (1/4, −1/4) and (1/2, −1/2) apart
    assert value(problem, choice) == pytest.approx((r / 4 + r / 4 + r / 2) / 3)
    assert value(GroupingProblem(counts, 1), np.array([range(7)])) == 0  # no pair


def test_many_groups_are_compared_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = femnist_like(0, 40, 20)
    choice = random(problem).choice
    whole = value(problem, choice)
    monkeypatch.setattr("fedfloor.solvers.grouping.solve.BLOCK", 3 * 20)  # seven blocks, the last with two rows
    assert value(problem, choice) == pytest.approx(whole, rel=1e-14)


@pytest.mark.parametrize(
    ("groups", "size", "each"),
    [  # K = 368 (facts of HFedMS): L = ⌊K/M⌋, clusters of ⌊K/L⌋
        (10, 36, 10), (20, 18, 20), (30, 12, 30), (40, 9, 40), (50, 7, 52), (60, 6, 61), (70, 5, 73), (80, 4, 92),
        (90, 4, 92), (100, 3, 122),
    ],
)  # fmt: skip
def test_sizes_as_the_growth_function_goes(groups: int, size: int, each: int) -> None:
    problem = femnist_like(1, groups=groups, classes=10)
    assert (problem.size, problem.left_out) == (size, 368 - groups * size)
    label = clusters(problem.counts[: size * each], size, "squared", np.random.default_rng(0))
    assert np.bincount(label).tolist() == [each] * size
    for name in SOLVERS:
        found = solve(name, problem)
        verify(problem, found)
        assert found.choice.size == groups * size  # 300 of 368 for M = 100


@pytest.mark.parametrize("distance", DISTANCES)
def test_clusters_do_not_hang_on_the_order_of_summation(distance: Distance) -> None:
    """Sums over the classes in another order are what another processor's products are; equal costs abound here."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        points = rng.multinomial(50, rng.dirichlet(np.full(62, 2.0)), 120).astype(np.float64)
        label = clusters(points, 12, distance, np.random.default_rng(seed))
        for _ in range(3):
            shuffled = np.ascontiguousarray(points[:, rng.permutation(62)])
            assert np.array_equal(clusters(shuffled, 12, distance, np.random.default_rng(seed)), label), seed


def plain_starts(points: np.ndarray, how_many: int, rng: np.random.Generator) -> list[int]:
    """Return the starts of k-means++ with distances between points, and sums, one after the other."""

    def apart(k: int) -> np.ndarray:
        return ((points - points[k]) ** 2).sum(1)

    chosen = [int(rng.integers(len(points)))]
    for _ in range(how_many - 1):
        near = np.min([apart(k) for k in chosen], axis=0)
        up = np.cumsum(near)
        draws = rng.random(2 + int(math.log(how_many))) * up[-1]
        candidates = [min(int((up <= draw).sum()), len(points) - 1) for draw in draws]
        chosen.append(min(candidates, key=lambda k: np.minimum(near, apart(k)).sum()))
    return chosen


def plain_clusters(points: np.ndarray, how_many: int, distance: Distance, rng: np.random.Generator) -> np.ndarray:
    """Return balanced k-means of Algorithm 3 from distances to means: the labels with the least sum of squares."""
    size = len(points) // how_many
    centres = points[plain_starts(points, how_many, rng)]
    price = np.zeros(how_many)
    label = np.zeros(len(points), np.int64)
    found = []
    for _ in range(300):
        apart = ((points[:, None] - centres) ** 2).sum(2)
        cost = size**2 * apart if distance == "squared" else size * np.sqrt(apart)
        assign(cost, price, size, label)
        found.append((apart[np.arange(len(points)), label].sum(), label.copy()))
        held = np.array([points[label == number].mean(0) for number in range(how_many)])
        moved = ((held - centres) ** 2).sum()
        centres = held
        if moved <= 1e-4 * points.var(axis=0).mean():
            break
    return min(found, key=lambda pair: pair[0])[1]


@pytest.mark.parametrize("distance", DISTANCES)
def test_clusters_are_those_of_plain_distances_to_means(distance: Distance) -> None:
    """Sizes of 4, so that means of whole numbers, and costs from them, are exact."""
    for seed in range(30):
        points = np.random.default_rng(seed).integers(0, 40, (24, 3)).astype(np.float64)
        found = clusters(points, 6, distance, np.random.default_rng(seed))
        assert np.array_equal(found, plain_clusters(points, 6, distance, np.random.default_rng(seed))), seed


@pytest.mark.parametrize(("far", "rounds"), [(140, 2), (145, 1)])
def test_clusters_end_when_centroids_move_by_a_ten_thousandth_of_the_variance(far: int, rounds: int) -> None:
    """Means of 0 and 1, and of those two farther, move by 1/2 each: 0.5 in squares, against 10⁻⁴ times the variance.

    That is (70.5² + 69.5²)/2 = 4900.25 with 140 and 141, and (73² + 72²)/2 = 5256.5 with 145 and 146.
    """
    points = np.array([[0.0], [1.0], [far], [far + 1.0]])
    calls = []
    usual = kernels.assign

    def counted(*given: Any) -> None:
        calls.append(1)
        usual(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "assign", counted)
        found = clusters(points, 2, "squared", np.random.default_rng(0))
    assert found[0] == found[1] != found[2] == found[3]
    assert len(calls) == rounds


def test_icg_gives_every_group_one_of_each_kind() -> None:
    # three kinds of five devices, a sample or two apart; with one of each kind no two groups can differ by more
    kinds = np.array([[90, 0, 0], [0, 90, 0], [0, 0, 90]])
    noise = np.random.default_rng(0).integers(0, 3, (15, 3))
    problem = GroupingProblem(np.repeat(kinds, 5, 0) + noise, 5)
    for distance in DISTANCES:
        for seed in range(5):
            found = icg(problem, distance=distance, seed=seed)
            assert (found.choice // 5 == [0, 1, 2]).all()
    assert random(problem).value > 5 * found.value


def test_astraea_by_hand() -> None:
    # alone, (3, 1) and (1, 3) are nearest to equal shares; the first opens, and the other makes it (4, 4)
    counts = np.array([[0.0, 0], [4, 0], [0, 4], [3, 1], [1, 3]])
    assert astraea(GroupingProblem(counts, 2)).choice.tolist() == [[3, 4], [1, 2]]
    # (0, 0) does not open; (4, 0) does, as good as (0, 4), which then makes it (4, 4)
    assert astraea(GroupingProblem(counts[:3], 1, 2)).choice.tolist() == [[1, 2]]
    # (9, 1) opens, nearer than (4, 0); (0, 0) leaves it as it is, (4, 0) would make it (13, 1)
    assert astraea(GroupingProblem(np.array([[0.0, 0], [9, 1], [4, 0]]), 1, 2)).choice.tolist() == [[0, 1]]


def test_cpd_is_the_kernels_discrepancy() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), 3)
    sigma = 0.8
    K = np.where(np.eye(4) > 0, 1.0, math.exp(-2 / (2 * sigma**2)))  # two one-hot vectors: ‖x − y‖² = 2
    want = [p[a] @ K @ p[a] - 2 * p[a] @ K @ p[b] + p[b] @ K @ p[b] for a, b in ((0, 1), (0, 2), (1, 2))]
    np.testing.assert_allclose(cpd(p, sigma), want, rtol=1e-12)
    # two devices with one class each, by σ = √2: 1 − 2·0 + 1 without, 2 − 2e^{−1/2} with the kernel
    assert cpd(np.eye(2)).tolist() == [pytest.approx(2 - 2 * math.exp(-1 / 2))]
    with refused("bandwidth"):
        cpd(p, 0)
    with refused("shape of p"):
        cpd(p[0])


# -- laws --------------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_every_solver_answers_any_problem(seed: int) -> None:
    problem = strange(seed)
    for name in SOLVERS:
        found = solve(name, problem, seed=seed)
        verify(problem, found)
        assert found.value >= 0
        assert exchange(problem, found.choice, seed=seed).value <= found.value


@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_the_assignment_is_the_cheapest(seed: int) -> None:
    """Against the assignment problem with every cluster as often as it has places, from any prices."""
    rng = np.random.default_rng(seed)
    L = int(rng.integers(1, 7))
    size = int(rng.integers(1, 9))
    cost = rng.random((L * size, L)) if rng.random() < 0.5 else rng.integers(0, 4, (L * size, L)).astype(float)
    price = rng.normal(size=L) * rng.integers(0, 3)
    label = np.empty(L * size, np.int64)
    assign(cost, price, size, label)
    assert np.bincount(label, minlength=L).tolist() == [size] * L
    wide = np.repeat(cost, size, axis=1)
    got = np.take_along_axis(cost, label[:, None], 1)[:, 0]
    assert got.sum() == pytest.approx(wide[linear_sum_assignment(wide)].sum(), abs=1e-9)
    # and the prices prove it: nobody has a cheaper cluster
    assert (got + price[label] <= (cost + price).min(1) + 1e-9).all()


def test_the_assignment_at_the_papers_size() -> None:
    rng = np.random.default_rng(0)
    points = femnist_like(0).counts[:364]
    cost = ((points[:, None] - points[rng.permutation(364)[:7]]) ** 2).sum(2) / 2
    label = np.empty(364, np.int64)
    assign(cost, np.zeros(7), 52, label)
    wide = np.repeat(cost, 52, axis=1)
    assert np.take_along_axis(cost, label[:, None], 1).sum() == wide[linear_sum_assignment(wide)].sum()  # halves


def steepest(x: np.ndarray, c: np.ndarray, a: list[int], b: list[int], reserve: bool) -> tuple[list[int], list[int]]:
    """The best exchange for as long as one gains, everything computed anew."""

    def off(one: list[int], other: list[int]) -> float:
        groups = [one] if reserve else [one, other]
        return sum(float(((x[g].sum(0) / x[g].sum() - c) ** 2).sum()) for g in groups)

    while True:
        tried = []
        for p in range(len(a)):
            for q in range(len(b)):
                one, other = [*a], [*b]
                one[p], other[q] = b[q], a[p]
                tried.append((off(one, other), one, other))
        best = min(tried, key=lambda t: t[0])
        if best[0] >= off(a, b) - 1e-12:
            return a, b
        _, a, b = best


@pytest.mark.parametrize("reserve", [False, True])
@settings(max_examples=60, deadline=None)
@given(seed=SEEDS)
def test_two_groups_that_meet_make_the_best_exchanges(reserve: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 7))
    rest = int(rng.integers(1, 7))
    classes = int(rng.integers(2, 6))
    x = rng.random((size + rest, classes)) * rng.random((size + rest, 1))  # fractions: no ties
    c = rng.dirichlet(np.ones(classes))
    ids = rng.permutation(size + rest)
    a, b = ids[:size].copy(), ids[size:].copy()
    made = exchange_between(x @ x.T, x.sum(1), x @ c, float(c @ c), 1e-12, a, b, reserve)
    want = steepest(x, c, ids[:size].tolist(), ids[size:].tolist(), reserve)
    parts = [{frozenset(one), frozenset(other)} for one, other in (want, (a.tolist(), b.tolist()))]
    assert parts[0] == parts[1]  # two and two: to exchange the one pair or the other is the same
    assert (made == 0) == (np.concatenate([a, b]) == ids).all()


def test_all_groupings_are_enumerated_once() -> None:
    # K!/(L!^M·M!·(K − M·L)!) = 7!/(3!²·2!·1!) = 70
    every = [tuple(map(tuple, one)) for one in groupings(tuple(range(7)), 2, 3)]
    assert len(every) == len(set(every)) == 70


@pytest.mark.parametrize(("devices", "groups", "classes"), [(8, 2, 6), (8, 4, 6), (9, 3, 6), (9, 2, 10), (7, 3, 5)])
def test_tiny_problems_are_all_but_solved(devices: int, groups: int, classes: int) -> None:
    gaps = []
    for seed in range(12):
        problem = femnist_like(seed, devices, groups, classes)
        gaps.append(exchange(problem).value / least(problem) - 1)
    assert min(gaps) >= -1e-12
    assert np.mean(gaps) < 0.02  # squares are not distances, and 32 starts not all


@pytest.mark.parametrize("groups", [10, 52, 100])
def test_at_the_papers_size(groups: int) -> None:
    for seed in range(3):
        problem = femnist_like(seed, groups=groups)
        found = {name: solve(name, problem, seed=seed).value for name in SOLVERS}
        assert found["exchange-long"] < found["exchange"] < 0.85 * found["icg"]
        assert found["icg"] < found["random"]


def test_the_products_need_not_all_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = femnist_like(2, 60, 8)  # whole counts: every product is exact, whichever way it is computed
    assert problem.left_out == 4
    whole = exchange(problem)
    monkeypatch.setattr(exchange_module, "TABLE", 10)
    assert exchange(problem).choice.tolist() == whole.choice.tolist()


def test_the_same_seed_gives_the_same_groups() -> None:
    problem = femnist_like(5, 60, 8)
    for name in SOLVERS:
        assert solve(name, problem, seed=3).choice.tolist() == solve(name, problem, seed=3).choice.tolist()
    for name in ("random", "icg", "exchange"):
        assert len({solve(name, problem, seed=seed).choice.tobytes() for seed in range(5)}) == 5


def test_devices_that_are_all_alike_make_groups_that_are() -> None:
    problem = GroupingProblem(np.tile([3.0, 0, 7], (23, 1)), 4)
    for name in SOLVERS:
        found = solve(name, problem)
        assert (found.value, found.status) == (0, "optimal")


def test_who_is_left_out_is_chosen() -> None:
    # 4 alike and one that is not: the best two groups of two leave it out
    problem = GroupingProblem(np.array([[5.0, 5], [5, 5], [0, 9], [5, 5], [5, 5]]), 2)
    assert all(exchange(problem, seed=seed).value == 0 for seed in range(10))


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"groups": 7}, "groups"),
        ({"groups": 0}, "groups"),
        ({"groups": 2.0}, "groups"),
        ({"size": 4}, "size"),
        ({"size": -1}, "size"),
        ({"counts": np.zeros((6, 3))}, "sum of counts"),
        ({"counts": -np.ones((6, 3))}, "counts"),
        ({"counts": np.full((6, 3), np.nan)}, "counts"),
        ({"counts": np.ones(6)}, "shape of counts"),
        ({"counts": np.empty((0, 3))}, "shape of counts"),
    ],
)
def test_problems_that_cannot_be(change: dict[str, Any], said: str) -> None:
    with refused(said):
        GroupingProblem(**{"counts": np.ones((6, 3)), "groups": 2, **change})


def test_calls_that_cannot_be() -> None:
    problem = GroupingProblem(np.eye(4), 2)
    with refused("unknown grouping solver"):
        solve("exchang", problem)
    with refused("seed"):
        solve("icg", problem, seed=-1)
    with refused("unknown distance"):
        icg(problem, distance="square")  # type: ignore[arg-type]
    with refused("rounds"):
        exchange(problem, rounds=-1)
    with refused("choice"):
        exchange(problem, np.array([[0, 1], [1, 2]]))


@pytest.mark.parametrize(
    "choice", [[[0, 1]], [[0, 1], [2, 4]], [[1, 0], [2, 3]], [[0, 1], [1, 2]], [[-1, 0], [1, 2]], [[0], [1]]]
)
def test_choices_that_are_none(choice: list[list[int]]) -> None:
    with refused("choice"):
        check(GroupingProblem(np.eye(4), 2), np.array(choice, np.int64))


def test_wrong_values_and_bounds_are_found_out() -> None:
    # (1/2, 1/2, 0, 0) and (0, 0, 1/2, 1/2) are 1 apart
    problem = GroupingProblem(np.eye(4), 2)
    choice = np.array([[0, 1], [2, 3]])
    verify(problem, solved(1.0, 0.0, choice, 0.0))
    with refused("solution", RunError):
        verify(problem, solved(0.9, 0.0, choice, 0.0))
    with refused("solution", RunError):
        verify(problem, dataclasses.replace(solved(1.0, 0.0, choice, 0.0), bound=1.1))


def test_numba_is_not_imported_before_it_is_needed() -> None:
    program = "import sys, fedfloor.solvers.grouping.solve; print({'numba', 'ortools', 'sklearn'} & set(sys.modules))"
    got = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert got.stdout == "set()\n", got.stderr
