"""GBP-CS step by step, and the samplers that the paper compares it with."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfloor.base.errors import SettingError
from fedfloor.solvers.selection.problem import SelectionProblem, batches, divergence, value, verify
from fedfloor.solvers.selection.solve import (
    Trace,
    bayesian,
    cross,
    curve,
    gbpcs,
    genetic,
    initial_exchange,
    monte_carlo,
    mutate,
    random,
    solve,
    swap,
)
from refusals import refused
from selections import femnist_like

SEEDS = st.integers(0, 2**32 - 1)
FOUR = SelectionProblem(np.array([[4.0, 0, 2, 3], [0, 4, 2, 1]]), np.array([5.0, 3]), 2)


# -- GBP-CS ------------------------------------------------------------------------------------------------------------


def test_from_the_pseudo_inverse_by_hand() -> None:
    # A Aᵀ = (29 7; 7 21), determinant 560; (A Aᵀ)⁻¹ y = (21·5 − 7·3, −7·5 + 29·3)/560 = (0.15, 0.0929);
    # z = Aᵀ of it = (0.6, 0.371, 0.486, 0.543): candidates 0 and 3 start, A x − y = (2, −2), g = (8, −8, 0, 4).
    # In for out: the least g of 1 and 2 is at 1, the largest of 0 and 3 at 0. Then A x − y = (−2, 2): no smaller, stop.
    trace: Trace = []
    found = gbpcs(FOUR, trace=trace)
    assert found.choice.tolist() == [0, 3]
    assert found.value == pytest.approx(math.sqrt(8))
    assert [one.tolist() for one in trace] == [[0, 3]]
    # the best exchange is another, of 0 for 2: (5, 3) exactly
    assert swap(FOUR, found.choice, kicks=0).choice.tolist() == [2, 3]
    assert swap(FOUR, found.choice, kicks=0).value == 0


def test_from_zero_by_hand() -> None:
    # Nothing chosen, target 0: g = 0, the first. Then half the target: (4, 0) − (2.5, 1.5) = (1.5, −1.5),
    # g = (6, −6, 0, 3): candidate 1. A x − y = (−1, 1), g = (−4, 4, 0, −2): 3 for 1 would be (2, −2): stop.
    trace: Trace = []
    found = gbpcs(FOUR, "zero", trace=trace)
    assert [one.tolist() for one in trace] == [[0], [0, 1]]
    assert found.value == pytest.approx(math.sqrt(2))


def test_the_warm_up_scales_the_target_with_what_is_there() -> None:
    # b = (3, 1), P = (1/4, 3/4), batches of 4. None chosen: 4·P − b = (−2, 2), g = Aᵀ(2, −2) = (8, −8, −4): 1 comes in.
    # One: 8·P − b = (−1, 5), A x − that = (1, −1), g = (4, ·, −2): candidate 2. A x − y = (1, −1), g = (4, −4, −2);
    # in comes 0 with 4, out goes 2 with −2: (4, −4) is longer, stop.
    counts = np.array([[4.0, 0, 1], [0, 4, 3]])
    trace: Trace = []
    found = gbpcs(batches(counts, np.array([0.25, 0.75]), 2, 4, np.array([3.0, 1.0])), "zero", trace=trace)
    assert [one.tolist() for one in trace] == [[1], [1, 2]]
    assert found.choice.tolist() == [1, 2]
    # Without P: at first the target is 0, so the first; then (4, 0) − (0, 4): 1; (4, −4), g = (16, −16, −8): 2 for 0
    trace.clear()
    gbpcs(SelectionProblem(counts, np.array([0.0, 8.0]), 2), "zero", trace=trace)
    assert [one.tolist() for one in trace] == [[0], [0, 1], [1, 2]]


def test_the_curve_is_of_divergences() -> None:
    problem = femnist_like(0)
    trace = Trace()
    found = gbpcs(problem, "zero", trace=trace)
    points = curve(problem, trace)
    assert [one.size for one in trace[:8]] == list(range(1, 9))
    assert points[-1] == pytest.approx(divergence(problem, found.choice))
    assert points[-1] == pytest.approx(found.value / 320)  # n·L = 32·10
    assert (np.diff(points[7:]) < 0).all()  # exchanges only ever improve


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from(["mpinv", "zero", "random"]))
def test_it_stops_where_the_steepest_exchange_does_not_help(seed: int, init: str) -> None:
    problem = femnist_like(seed, 12, 4, classes=8)
    found = gbpcs(problem, init, seed=seed)  # type: ignore[arg-type]
    verify(problem, found)
    x = np.zeros(12, np.bool_)
    x[found.choice] = True
    g = problem.counts.T @ (problem.counts @ x - problem.target)
    i = np.where(x, np.inf, g).argmin()
    j = np.where(x, g, -np.inf).argmax()
    x[i] = True
    x[j] = False
    assert value(problem, np.flatnonzero(x)) >= found.value * (1 - 1e-12)
    begun = initial_exchange(problem, init, seed=seed)  # type: ignore[arg-type]
    assert found.value <= value(problem, np.flatnonzero(begun)) * (1 + 1e-12)


def test_random_starts_follow_the_seed_and_unknown_ones_are_refused() -> None:
    starts = {tuple(np.flatnonzero(initial_exchange(femnist_like(0), "random", seed=seed))) for seed in range(20)}
    assert len(starts) == 20
    assert {len(one) for one in starts} == {8}
    with refused("unknown start of GBP-CS"):
        gbpcs(FOUR, "mpiv")  # type: ignore[arg-type]


# -- the samplers ------------------------------------------------------------------------------------------------------


def test_random_choices_are_all_as_likely() -> None:
    counted = dict.fromkeys(itertools.combinations(range(4), 2), 0)
    for seed in range(1200):
        counted[tuple(random(FOUR, seed=seed).choice.tolist())] += 1  # type: ignore[index]
    # 6 pairs, 200 each; χ² with 5 degrees of freedom exceeds 25.7 once in 10,000
    assert sum((n - 200) ** 2 / 200 for n in counted.values()) < 25.7


def test_the_best_of_many_draws() -> None:
    assert monte_carlo(FOUR, draws=200).choice.tolist() == [2, 3]  # missed with (5/6)^200
    assert monte_carlo(FOUR, draws=1, seed=3).choice.tolist() == random(FOUR, seed=3).choice.tolist()


def test_two_differing_genes_change_sides() -> None:
    # they differ in genes 1 and 3 only: those are the two ends, and the pair changes places
    parents = np.array([[1, 1, 0, 0, 1], [1, 0, 0, 1, 1]], np.bool_)
    assert cross(parents, np.random.default_rng(0)).tolist() == parents[::-1].tolist()
    same = np.array([[1, 0, 1], [1, 0, 1]], np.bool_)
    assert cross(same, np.random.default_rng(0)).tolist() == same.tolist()


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_children_hold_their_parents_genes_in_one_piece(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parents = rng.random((6, 9)) < 0.5
    children = cross(parents, rng)
    for a in range(0, 6, 2):
        differ = np.flatnonzero(parents[a] != parents[a + 1])
        taken = children[a, differ] != parents[a, differ]
        assert (children[a] ^ children[a + 1]).tolist() == (parents[a] ^ parents[a + 1]).tolist()
        assert np.abs(np.diff(np.r_[0, taken.astype(int), 0])).sum() in (0, 2)  # one run
        assert taken.sum() >= min(2, differ.size)


@pytest.mark.parametrize(("ones", "changed"), [(3, 2), (5, 2), (1, 2), (0, 3)])
def test_a_mutation_exchanges_or_repairs(ones: int, changed: int) -> None:
    for seed in range(20):
        chromosome = np.arange(8) < ones
        before = chromosome.copy()
        mutate(chromosome, 3, np.random.default_rng(seed))
        assert chromosome.sum() == 3
        assert (chromosome ^ before).sum() == changed


def test_genetic_settings() -> None:
    assert genetic(FOUR).choice.tolist() == [2, 3]
    assert genetic(femnist_like(0)).value < monte_carlo(femnist_like(0), draws=100).value
    for word, wrong in (("population", 3), ("generations", 0), ("mutation", 1.5)):
        with pytest.raises(SettingError, match=f"{word} = {wrong}"):
            genetic(FOUR, **{word: wrong})  # type: ignore[arg-type]


def test_bayesian_takes_one_of_each_interval() -> None:
    pytest.importorskip("bayes_opt")
    problem = femnist_like(0, 11, 3)  # intervals 0 … 2, 3 … 6, 7 … 10
    found = bayesian(problem, points=4, iterations=2, seed=1)
    verify(problem, found)
    assert np.digitize(found.choice, [3, 7]).tolist() == [0, 1, 2]
    assert found.choice.tolist() == bayesian(problem, points=4, iterations=2, seed=1).choice.tolist()
    assert bayesian(femnist_like(0, 3, 0), points=1).choice.size == 0
    with refused("points"):
        bayesian(problem, points=0)


def test_bayesian_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bayes_opt", None)
    with refused("samplers-package"):
        solve("bayesian", FOUR)
