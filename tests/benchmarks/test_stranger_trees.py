"""What the comparison of trees computes from answers."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.stranger_trees import compared, macro_f1, rmse, row
from benchmarks.strangers import CASES


def test_macro_f1_is_scikit_learns() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    for _ in range(20):
        truth = rng.integers(0, 4, 12)
        guess = rng.integers(0, 5, 12)
        wanted = metrics.f1_score(truth, guess, average="macro", zero_division=0)
        assert macro_f1(5)(truth, guess) == pytest.approx(wanted)


def test_the_bootstrap_has_the_standard_error_of_a_mean() -> None:
    rng = np.random.default_rng(1)
    truth = np.zeros(400)
    mine = rng.normal(size=400)
    other = rng.normal(size=400)
    gap, error = compared(lambda _, answers: float(answers.mean()), truth, mine, other, relative=False, seed=0)
    assert gap == pytest.approx((mine - other).mean())
    assert error == pytest.approx((mine - other).std() / 20, rel=0.1)
    assert compared(rmse, truth, mine, mine, relative=True, seed=0) == (0.0, 0.0)


def test_a_row_is_near_if_its_mean_difference_is() -> None:
    case = next(case for case in CASES if case.figure == "RMSE")
    made = {"here": 1.02, "hand": 1.0, "difference": 0.02, "error": 0.001, "train": 800}
    assert row(case, {"0": made})[-1] == "yes"
    assert row(case, {"0": made | {"difference": 0.04}})[-1] == "no"
    assert row(case, {"0": made | {"difference": 0.04, "error": 0.02}})[-1] == "within chance"
    assert row(case, {"0": made, "1": {"reason": "left out: a package"}})[-2] == "left out: a package"
