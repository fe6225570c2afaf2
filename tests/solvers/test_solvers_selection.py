"""The selection solvers: examples by hand, laws, errors."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedfloor.base.errors import RunError
from fedfloor.solvers.selection import kernels
from fedfloor.solvers.selection import solve as exact_module
from fedfloor.solvers.selection.problem import SelectionProblem, batches, check, divergence, value, verify, whole_bound
from fedfloor.solvers.selection.solve import SOLVERS, Start, brute, exact, monte_carlo, random, solve, swap
from fedfloor.solvers.solution import solved
from refusals import refused
from selections import close, femnist_like, least, scale, strange

SEEDS = st.integers(0, 2**32 - 1)
QUICK = sorted(set(SOLVERS) - {"bayesian"})


# -- the problem, by hand ----------------------------------------------------------------------------------------------


def test_values_and_divergence_by_hand() -> None:
    # 2 classes, 3 candidates with 4 samples each, b = (3, 1), P = (1/4, 3/4), L = 2: y = (8 + 4)·P − b = (0, 8)
    counts = np.array([[4.0, 0, 1], [0, 4, 3]])
    problem = batches(counts, np.array([0.25, 0.75]), 2, 4, np.array([3.0, 1.0]))
    assert problem.target.tolist() == [0, 8]
    assert value(problem, np.array([1, 2])) == pytest.approx(math.sqrt(2))  # (1, 7) − (0, 8)
    # (1, 7) + (3, 1) = (4, 8), shares (1/3, 2/3), off by 1/12 twice; and that is d/(n·L in all) = √2/12
    assert divergence(problem, np.array([1, 2])) == pytest.approx(math.sqrt(2) / 12)
    for one in ([0, 1], [0, 2], [1, 2]):
        assert value(problem, np.array(one)) == pytest.approx(12 * divergence(problem, np.array(one)))
    assert exact(problem).choice.tolist() == [1, 2]


def test_shares_that_are_not_given_are_those_of_the_target() -> None:
    problem = SelectionProblem(np.eye(2), np.array([1.0, 3.0]), 1)
    assert problem.wanted.tolist() == [0.25, 0.75]
    assert divergence(problem, np.array([1])) == pytest.approx(math.sqrt(2) / 4)
    none = SelectionProblem(np.zeros((2, 3)), np.array([1.0, 3.0]), 2)
    assert divergence(none, np.array([0, 1])) == pytest.approx(math.hypot(0.25, 0.75))  # nobody holds anything
    with refused("share"):
        divergence(SelectionProblem(np.eye(2), np.array([-1.0, 3.0]), 1), np.array([1]))


@pytest.mark.parametrize(
    ("counts", "target", "how_many", "bound"),
    [
        ([[1, 2], [2, 1]], [0.4, 3.7], 1, math.hypot(0.4, 0.7)),  # (0, 4) is one sample too many: (0, 3) is nearest
        ([[1, 2], [2, 2]], [0.4, 3.7], 1, 0.5),  # batches of 3 and 4, so of any sum: (0, 4)
        (
            [[1, 2], [3, 2]],
            [1.4, 2.4],
            1,
            math.hypot(0.4, 0.6),
        ),  # (1, 2) has 3 samples, one is missing: (1, 3) or (2, 2)
        ([[1, 2], [3, 2]], [1.6, 2.6], 1, math.hypot(0.6, 0.4)),  # (2, 3) has one too many: (1, 3) or (2, 2)
        ([[0.5, 1], [1, 1]], [0.4, 3.7], 1, 0.0),  # no whole numbers
    ],
)
def test_whole_numbers_cannot_come_nearer(counts: Any, target: Any, how_many: int, bound: float) -> None:
    problem = SelectionProblem(np.array(counts, float), np.array(target), how_many)
    got = whole_bound(problem)
    assert got == pytest.approx(bound)
    assert got <= least(problem) + 1e-12


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("how_many", [0, 1, 3, 4])
def test_every_solver_answers_a_tiny_problem(name: str, how_many: int) -> None:
    problem = SelectionProblem(np.array([[3.0, 0, 1, 2], [0, 3, 2, 1], [0, 0, 0, 0]]), np.array([2.0, 4, 1]), how_many)
    found = solve(name, problem, seed=1)
    verify(problem, found)
    assert found.value >= least(problem) - 1e-12
    if how_many in (0, 4):  # one choice only
        assert found.choice.tolist() == list(range(how_many))


# -- laws --------------------------------------------------------------------------------------------------------------


@settings(max_examples=500, deadline=None)
@given(SEEDS)
@example(4635)  # a target that is 10⁵ times the largest count: gains are rounding
def test_exact_equals_enumeration(seed: int) -> None:
    problem = strange(seed)
    found = exact(problem)
    want = least(problem)
    verify(problem, found)
    assert found.value == pytest.approx(want, **close(problem))
    assert found.status == "optimal" or found.value <= close(problem)["abs"]
    assert brute(problem).value == pytest.approx(want, rel=1e-9, abs=1e-7 * scale(problem))  # Gram: √ε


@pytest.mark.parametrize("nodes", [3, 10**6])
@settings(max_examples=150, deadline=None)
@given(seed=SEEDS)
def test_the_tree_alone_finds_the_best(nodes: int, seed: int) -> None:
    """Without the exchanges' help; and, with next to no nodes for a part, split down to its leaves."""
    problem = strange(seed, most=11)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exact_module, "ROOT", nodes)
        patched.setattr(exact_module, "PART", nodes)
        patched.setattr(exact_module, "swap", lambda p, seed: random(p, seed=seed))
        found = exact(problem)
    assert found.value == pytest.approx(least(problem), **close(problem))


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_nobody_beats_exact_and_swap_is_no_worse_than_its_start(seed: int) -> None:
    problem = strange(seed)
    best = exact(problem)
    rounding = close(problem)["abs"]
    for name in set(QUICK) - {"genetic"}:
        found = solve(name, problem, seed=seed % 7)
        verify(problem, found)
        assert best.value <= found.value * (1 + 1e-9) + rounding
        assert swap(problem, found.choice, kicks=3).value <= found.value


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_the_order_of_candidates_and_a_second_of_one_kind(seed: int) -> None:
    problem = strange(seed)
    best = exact(problem).value
    order = np.random.default_rng(seed).permutation(problem.candidates)
    turned = dataclasses.replace(problem, counts=problem.counts[:, order])
    assert exact(turned).value == pytest.approx(best, **close(problem))
    more = dataclasses.replace(problem, counts=np.hstack([problem.counts, problem.counts[:, :1]]))
    assert exact(more).value <= best * (1 + 1e-9) + close(problem)["abs"]  # one more to choose from


@pytest.mark.parametrize("seed", range(3))
def test_at_the_papers_size(seed: int) -> None:
    problem = femnist_like(seed)
    best = exact(problem)
    every = brute(problem)
    assert best.status == every.status == "optimal"
    assert best.value == pytest.approx(every.value, rel=1e-9)
    values = {name: solve(name, problem).value for name in QUICK}
    assert best.value <= values["swap"] <= values["gbpcs"]
    assert values["monte-carlo"] < values["random"]
    assert values["genetic"] < values["random"]


def test_the_same_seed_gives_the_same_choice() -> None:
    problem = femnist_like(5, 20, 6)
    for name in QUICK:
        assert solve(name, problem, seed=3).choice.tolist() == solve(name, problem, seed=3).choice.tolist()
    assert {tuple(random(problem, seed=seed).choice) for seed in range(9)} != {tuple(random(problem).choice)}


def test_candidates_that_are_all_alike_are_one() -> None:
    # C(60, 16) = 1.5·10¹⁴ choices, all of them equal
    problem = SelectionProblem(np.tile(np.array([[1.5], [2.0]]), 60), np.array([30.0, 30.0]), 16)
    found = exact(problem, 20.0)
    assert found.status == "optimal"
    assert found.value == pytest.approx(math.hypot(24 - 30, 32 - 30))


def test_a_time_limit_leaves_a_bound() -> None:
    problem = femnist_like(1, 120, 40, classes=30)
    found = exact(problem, 0.5)
    verify(problem, found)
    assert found.status == "feasible"
    assert 0 <= found.bound < found.value
    assert found.seconds < 20


@pytest.mark.parametrize("seed", range(20))
def test_the_greedy_start_comes_nearest_to_a_growing_target(seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = rng.random((9, 3))
    target = 4 * rng.random(3)
    x = np.zeros(9, np.bool_)
    kernels.greedy(columns, target, 4, x)
    chosen: list[int] = []
    for c in range(1, 5):
        left = [i for i in range(9) if i not in chosen]
        away = [((columns[[*chosen, i]].sum(0) - target * c / 4) ** 2).sum() for i in left]
        chosen.append(left[int(np.argmin(away))])
    assert np.flatnonzero(x).tolist() == sorted(chosen)


@pytest.mark.parametrize("start", ["greedy", "random"])
@pytest.mark.parametrize("seed", range(4))
def test_many_candidates_take_the_gram_matrix_in_blocks(
    start: Start, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exchanges are the same with the whole matrix, with blocks of 7 of 40 rows, the last of 6, and of 1."""
    problem = femnist_like(seed, 60, 20)
    whole = swap(problem, start, kicks=0).choice.tolist()
    monkeypatch.setattr(exact_module, "GRAM", 10)
    for rows in (7, 1):
        monkeypatch.setattr(exact_module, "BLOCK", rows * 40)
        assert swap(problem, start).choice.tolist() == whole


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"how_many": 4}, "how_many"),
        ({"how_many": -1}, "how_many"),
        ({"how_many": 1.5}, "how_many"),
        ({"counts": np.ones(3)}, "shape of counts"),
        ({"counts": np.empty((2, 0))}, "shape of counts"),
        ({"counts": -np.ones((2, 3))}, "counts"),
        ({"counts": np.full((2, 3), np.nan)}, "counts"),
        ({"target": np.ones(3)}, "shape of target"),
        ({"target": np.array([1.0, np.inf])}, "target"),
        ({"share": np.array([0.5, 0.6])}, "sum of share"),
        ({"share": np.array([-0.5, 1.5])}, "share"),
        ({"given": np.ones(1)}, "shape of given"),
    ],
)
def test_problems_that_cannot_be(change: dict[str, Any], said: str) -> None:
    with refused(said):
        SelectionProblem(**{"counts": np.ones((2, 3)), "target": np.ones(2), "how_many": 2, **change})


def test_calls_that_cannot_be() -> None:
    problem = SelectionProblem(np.eye(3), np.ones(3), 2)
    with refused("unknown selection solver"):
        solve("exat", problem)
    with refused("seed"):
        solve("swap", problem, seed=-1)
    with refused("unknown start"):
        swap(problem, "gredy")  # type: ignore[arg-type]
    with refused("kicks"):
        swap(problem, kicks=-1)
    with refused("choice"):
        swap(problem, np.array([1, 1]))
    with refused("time_limit_s"):
        exact(problem, 0)
    with refused("nodes"):
        exact(problem, nodes=0)
    with refused("draws"):
        monte_carlo(problem, draws=0)
    with refused("batch_size"):
        batches(np.eye(2), np.array([0.5, 0.5]), 1, 0)
    with refused("enumeration"):
        brute(femnist_like(0, 60, 16))


@pytest.mark.parametrize("choice", [[0], [0, 3], [1, 0], [1, 1], [-1, 0]])
def test_choices_that_are_none(choice: list[int]) -> None:
    with refused("choice"):
        check(SelectionProblem(np.eye(3), np.ones(3), 2), np.array(choice, np.int64))


def test_wrong_values_and_bounds_are_found_out() -> None:
    problem = SelectionProblem(np.eye(3), np.ones(3), 2)
    choice = np.array([0, 1])
    verify(problem, solved(1.0, 0.5, choice, 0.0))
    with refused("solution", RunError):
        verify(problem, solved(0.9, 0.5, choice, 0.0))
    with refused("solution", RunError):
        verify(problem, dataclasses.replace(solved(1.0, 0.5, choice, 0.0), bound=1.1))


def test_numba_is_not_imported_before_it_is_needed() -> None:
    program = (
        "import sys, fedfloor.solvers.selection.solve; print({'numba', 'bayes_opt', 'sklearn'} & set(sys.modules))"
    )
    got = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert got.stdout == "set()\n", got.stderr
