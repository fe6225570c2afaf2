"""The Bayesian sampler that FedGS's reference code compares with, by the library bayesian-optimization."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING

import numpy as np

from fedfloor.errors import SettingError, require
from fedfloor.solvers.selection.problem import Integers, Problem, value, whole_bound
from fedfloor.solvers.solution import Solution, solved

if TYPE_CHECKING:
    from bayes_opt import BayesianOptimization

POINTS, ITERATIONS = 5, 25
ABSENT = "the Bayesian sampler needs bayesian-optimization: pip install 'fedfloor[samplers]'"


def bayesian(
    problem: Problem, *, points: int = POINTS, iterations: int = ITERATIONS, seed: int = 0
) -> Solution[Integers]:
    """Maximise −d over L continuous variables, one for each of L intervals of candidates of equal size.

    Variable i, cut to a whole number, names the candidate ⌊i·N/L⌋ … ⌊(i+1)·N/L⌋ − 1, so that none comes twice. A
    Gaussian process with the library's defaults proposes what to try (Snoek, Larochelle, Adams, NeurIPS 2012).

    Args:
        problem, seed: the problem, and the library's seed.
        points, iterations: random ones first, 5 in the reference code, and proposals after them, 25.

    Raises:
        SettingError: the library is not installed, or a number out of range.
    """
    try:
        from bayes_opt import BayesianOptimization
    except ImportError as absent:
        raise SettingError(ABSENT) from absent
    require(points >= 1, "points", points, "a whole number of at least 1")
    require(iterations >= 0, "iterations", iterations, "a whole number of at least 0")
    began = time.perf_counter()
    n, k = problem.candidates, problem.how_many
    edges = [i * n // max(k, 1) for i in range(k + 1)]
    names = [f"x{i:05d}" for i in range(k)]

    def chosen(point: dict[str, float]) -> Integers:
        return np.array([min(int(point[name]), edges[i + 1] - 1) for i, name in enumerate(names)], np.int64)

    choice = np.empty(0, np.int64)
    if k:
        optimizer = BayesianOptimization(
            lambda **point: -value(problem, chosen(point)),
            {name: (edges[i], edges[i + 1]) for i, name in enumerate(names)},
            random_state=seed,
            verbose=0,
            allow_duplicate_points=True,
        )
        choice = chosen(_best(optimizer, points, iterations))
    return solved(value(problem, choice), whole_bound(problem), choice, time.perf_counter() - began)


def _best(optimizer: BayesianOptimization, points: int, iterations: int) -> dict[str, float]:
    """Run the library; its Gaussian process warns of what cut points look like, steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.maximize(init_points=points, n_iter=iterations)
    return {} if optimizer.max is None else dict(optimizer.max["params"])
