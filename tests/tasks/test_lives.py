"""Survival curves and measures of predicted ones: equal to lifelines, and to their definitions pair by pair."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfloor.tasks.lives import (
    Lives,
    SurvivalCurve,
    brier,
    calibration_groups,
    concordance,
    integrated_brier,
    log_rank,
    on_grid,
)

Some = tuple[np.ndarray, np.ndarray, np.ndarray]


def some(seed: int, many: int = 60, *, ties: bool = True, late: bool = True) -> Some:
    """Return lives, of which about half ended: time, whether it failed, entry."""
    rng = np.random.default_rng(seed)
    time = 10 * rng.weibull(1.5, many)
    time = np.ceil(time) if ties else time
    failed = rng.random(many) < 0.5
    failed[0] = True
    entry = np.where(rng.random(many) < 0.3, np.floor(time * rng.random(many) / 2), 0.0) * late
    return time, failed, entry


def lives(time: Any, failed: Any, forecast: Any, entry: Any = 0.0) -> Lives:
    """Return lives with one number as the curve of each."""
    one = np.ones(len(time))
    every = np.broadcast_to(np.asarray(entry, np.float64), time.shape)
    return Lives(time, failed, every, forecast[:, None], np.ones(1), one, one, 1.0)


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_the_curve_its_interval_and_median_are_those_of_lifelines(ties: bool, late: bool) -> None:
    lifelines = pytest.importorskip("lifelines")
    time, failed, entry = some(1, 200, ties=ties, late=late)
    curve = SurvivalCurve.of(time, failed, entry)
    theirs = lifelines.KaplanMeierFitter().fit(time, failed, entry=entry)
    np.testing.assert_allclose(curve.survival, theirs.survival_function_at_times(curve.times), atol=1e-12)
    low, high = curve.interval()
    np.testing.assert_allclose(np.stack([low, high], 1), theirs.confidence_interval_.loc[curve.times], atol=1e-12)
    assert curve.median()[0] == theirs.median_survival_time_


def test_the_curve_of_three_lives_by_hand() -> None:
    # at 2 one of three fails, at 5 the only one left: 2/3, then 0; the life censored at 3 is no longer at risk
    curve = SurvivalCurve.of(np.array([2.0, 3.0, 5.0]), np.array([True, False, True]))
    np.testing.assert_allclose(curve.survival, [2 / 3, 0])
    np.testing.assert_allclose(curve.at(np.array([1.9, 2.0, 4.0, 5.0])), [1, 2 / 3, 2 / 3, 0])
    assert curve.at(2.0, before=True) == 1
    assert curve.median()[0] == 5


@given(st.integers(0, 10_000), st.integers(1, 40), st.booleans())
def test_sums_on_a_grid_of_all_failures_are_the_exact_curve(seed: int, many: int, ties: bool) -> None:
    time, failed, entry = some(seed, many, ties=ties)
    curve = SurvivalCurve.of(time, failed, entry)
    at_risk, failures = on_grid(time, failed, entry, curve.times, np.ones((many, 1)))
    np.testing.assert_array_equal(at_risk[:, 0], curve.at_risk)
    np.testing.assert_array_equal(failures[:, 0], curve.failures)


def test_on_a_coarse_grid_failures_move_to_the_next_time_and_ends_of_observation_to_the_last() -> None:
    time, failed, entry = some(3, 100, ties=False)
    grid = np.arange(3.0, 60.0, 3.0)
    at_risk, failures = on_grid(time, failed, entry, grid, np.ones((100, 1)))
    moved = np.where(failed, np.ceil(time / 3), np.floor(time / 3)) * 3
    wanted = [((entry < g) & (moved >= g)).sum() for g in grid]
    np.testing.assert_array_equal(at_risk[:, 0], wanted)
    np.testing.assert_array_equal(failures[:, 0], [(failed & (moved == g)).sum() for g in grid])


def test_the_log_rank_test_is_that_of_lifelines() -> None:
    lifelines = pytest.importorskip("lifelines")
    time, failed, _ = some(4, 150)
    group = np.arange(150) % 3
    grid = np.unique(time[failed])
    sums = [on_grid(time[group == k], failed[group == k], np.zeros(50), grid, np.ones((50, 1))) for k in range(3)]
    got = log_rank(*(np.stack([each[i][:, 0] for each in sums]) for i in (0, 1)))
    theirs = lifelines.statistics.multivariate_logrank_test(time, group, failed)
    np.testing.assert_allclose([got[0], got[2]], [theirs.test_statistic, theirs.p_value], rtol=1e-9)
    assert got[1] == 2


@given(st.integers(0, 10_000), st.integers(2, 30), st.booleans(), st.booleans())
def test_concordance_is_that_of_all_pairs(seed: int, many: int, ties: bool, late: bool) -> None:
    time, failed, entry = some(seed, many, ties=ties, late=late)
    forecast = np.random.default_rng(seed).normal(size=many).round(1)
    right, known = 0.0, 0
    for i in np.flatnonzero(failed):
        for j in range(many):
            if (time[j] > time[i] or (time[j] == time[i] and not failed[j])) and entry[j] < time[i]:
                known += 1
                right += float(forecast[j] > forecast[i]) + float(forecast[j] == forecast[i]) / 2
    got = concordance(lives(time, failed, forecast, entry))
    assert got == (pytest.approx(right / known) if known else None)
    if not late and known:
        lifelines = pytest.importorskip("lifelines")
        assert got == pytest.approx(lifelines.utils.concordance_index(time, forecast, failed))


def test_the_brier_score_without_censoring_is_the_mean_square() -> None:
    rng = np.random.default_rng(5)
    time = rng.uniform(1, 10, 50)
    grid = np.array([2.0, 5.0, 8.0])
    curves = np.sort(rng.random((50, 3)))[:, ::-1]
    one = np.ones(50)
    every = Lives(time, one > 0, 0 * one, curves, grid, one, one, 1.0)
    _, got = brier(every)
    np.testing.assert_allclose(got, ((curves - (time[:, None] > grid)) ** 2).mean(axis=0))
    trapezoids = (got[0] + got[1]) / 2 * 3 + (got[1] + got[2]) / 2 * 3
    assert integrated_brier(every) == pytest.approx(trapezoids / 6)


def test_weights_correct_the_brier_score_for_censoring() -> None:
    # lives censored at random: the weighted score estimates that of all lives, which the plain share of pairs does not
    rng = np.random.default_rng(6)
    many = 20_000
    life = rng.exponential(10, many)
    ends = rng.exponential(15, many)
    time = np.minimum(life, ends)
    one = np.ones(many)
    grid = np.array([5.0, 10.0])
    curves = np.tile(np.exp(-grid / 10), (many, 1))
    _, got = brier(Lives(time, life <= ends, 0 * one, curves, grid, one, one, 1.0))
    true = np.exp(-grid / 10)
    np.testing.assert_allclose(got, true * (1 - true), atol=0.005)


def test_calibration_compares_groups_with_their_observed_chance() -> None:
    one = np.ones(20)
    time = np.where(np.arange(20) < 10, 0.5, 5.0)  # the first ten fail within the horizon of 1
    ahead = np.where(np.arange(20) < 10, 0.2, 0.9)
    groups = calibration_groups(Lives(time, one > 0, 0 * one, one[:, None], one[:1], one, ahead, 1.0))
    assert [(len(rows), predicted, observed) for rows, predicted, observed in groups] == [
        (5, pytest.approx(0.1), 0.0), (5, pytest.approx(0.1), 0.0),
        (5, pytest.approx(0.8), 1.0), (5, pytest.approx(0.8), 1.0),
    ]  # fmt: skip


def test_an_unreached_median_is_infinite_and_described_as_none() -> None:
    time = np.array([1.0, 2, 2, 2])
    every = lives(time, np.array([True, False, False, False]), time)
    assert SurvivalCurve.of(every.time, every.failed).median()[0] == math.inf
    assert every.described()["median"][0] is None
