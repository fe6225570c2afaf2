"""Super nodes: who is chosen by a census, and what a census with noise is taken for."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfloor.parts.selection import selection
from fedfloor.parts.selection.selection import choose
from fedfloor.plan.nodes import Select, Work, edge
from fedfloor.solvers.selection.solve import SOLVERS
from refusals import refused

STEP = Work(steps=1, batch_size=4)
EVEN = (0.5, 0.5, 0.0)
# four of one class, four of the other, half and half; nobody has the third
CENSUS = np.array([[4, 0, 0], [4, 0, 0], [0, 4, 0], [2, 2, 0], [4, 0, 0]])
HELD = np.full(5, 4)
FIVE = Select("exact", (10, 11, 12, 13, 14), 2, STEP, edge(0), share=EVEN)


def pick(node: Select, census: np.ndarray = CENSUS, held: np.ndarray = HELD, seed: int = 0) -> list[int]:
    return choose(node, census, held, np.random.default_rng(seed))


def off(chosen: list[int], census: np.ndarray = CENSUS, share: tuple[float, ...] = EVEN) -> float:
    counts = census[[k - 10 for k in chosen]].sum(0)
    return float(np.linalg.norm(counts / counts.sum() - share))


def test_those_are_chosen_whose_batches_together_have_the_wanted_shares() -> None:
    # of two devices only one of the first class with the one of the second makes 4 : 4
    for solver in ("exact", "swap", "brute", "monte-carlo"):
        chosen = pick(replace(FIVE, policy=solver))
        assert off(chosen) == 0
        assert 12 in chosen
    assert pick(replace(FIVE, share=(1.0, 0.0, 0.0), how_many=3)) == [10, 11, 14]


def test_the_random_ones_are_made_up_for() -> None:
    # whoever is drawn from the first class needs 12; 12 needs one of the first class; 13 has no such partner
    met = set()
    for seed in range(30):
        chosen = pick(replace(FIVE, random=1), seed=seed)
        met.add(tuple(chosen))
        assert off(chosen) == 0 or 13 in chosen
    assert len(met) > 3
    drawn = [tuple(pick(replace(FIVE, random=2), seed=seed)) for seed in range(300)]
    assert set(drawn) == set(itertools.combinations(range(10, 15), 2))  # all at random: no pair is left out


@pytest.mark.parametrize("solver", [name for name in SOLVERS if name != "bayesian"])
def test_every_solver_is_a_policy(solver: str) -> None:
    chosen = pick(replace(FIVE, policy=solver, how_many=3, random=1))
    assert len(chosen) == 3
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(FIVE.candidates)


def test_whoever_reports_nothing_is_not_chosen() -> None:
    census = CENSUS.copy()
    census[[0, 2, 4]] = 0
    for seed in range(20):
        assert pick(replace(FIVE, random=1), census, seed=seed) == [11, 13]
    census[1] = 0
    assert pick(FIVE, census) == [13]  # fewer than wanted, but nobody without data
    census[3] = 0
    with refused("select"):
        pick(FIVE, census)


def test_a_class_that_nobody_has_moves_nobody() -> None:
    # what is missing of it is missing from every choice alike
    assert off(pick(replace(FIVE, share=(0.4, 0.4, 0.2))), share=(0.4, 0.4, 0.2)) == pytest.approx(
        min(off(list(pair), share=(0.4, 0.4, 0.2)) for pair in itertools.combinations(range(10, 15), 2))
    )


def test_what_cannot_be_is_refused() -> None:
    with refused("unknown selection policy"):
        pick(replace(FIVE, policy="exakt"))
    with refused("select"):
        pick(replace(FIVE, share=(0.5, 0.5)))
    with refused("select random"):
        pick(replace(FIVE, random=3))
    with refused("select"):
        pick(replace(FIVE, how_many=6))


def test_a_device_weighs_what_a_visit_goes_through() -> None:
    # 8 of 16 held: a mini-batch of 4 is expected to hold a quarter of them; two passes go through all of them twice
    counts = np.array([[12.0, 4.0], [1.0, 2.0]])
    held = np.array([16, 3])
    np.testing.assert_array_equal(selection.trained_on(counts, held, STEP), [[3, 1], [1, 2]])
    twice = selection.trained_on(counts, held, Work(epochs=2, batch_size=4))
    np.testing.assert_array_equal(twice, 2 * counts)
    # five mini-batches of at most 4: 16 and one more of 4; of three samples one mini-batch, five times
    five = selection.trained_on(counts, held, Work(steps=5, batch_size=4))
    np.testing.assert_allclose(five, [[15, 5], [5, 10]], rtol=1e-15)


@given(st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4), min_size=1, max_size=5), st.integers(1, 40))
def test_a_settled_census_is_the_nearest_one_that_can_be(rows: list[list[int]], held: int) -> None:
    census = np.array(rows)
    sizes = np.full(len(rows), held)
    counts = selection.settled(census, sizes)
    np.testing.assert_allclose(counts.sum(1), held, rtol=1e-12)
    assert counts.min() >= 0
    # the projection onto a convex set: no point of it makes an acute angle with what was cut off
    away = census - counts
    for corner in held * np.eye(4):
        assert ((away * (corner - counts)).sum(1) <= 1e-6).all()
    exact = census.sum(1) == held
    np.testing.assert_array_equal(counts[exact], census[exact])
