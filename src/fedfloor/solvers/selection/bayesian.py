"""The Bayesian sampler that FedGS's reference code compares with, by the library bayesian-optimization."""

from __future__ import annotations

import time
import warnings

import numpy as np

from fedfloor.errors import SettingError, require
from fedfloor.solvers.selection.problem import Integers, Problem, value, whole_bound
from fedfloor.solvers.solution import Solution, solved

POINTS, ITERATIONS = 5, 25


def bayesian(
    problem: Problem, *, points: int = POINTS, iterations: int = ITERATIONS, seed: int = 0
) -> Solution[Integers]:
    """Maximise −d over L continuous variables, one for each of L intervals of candidates of equal size.

    Variable i, cut to a whole number, names the candidate ⌊i·N/L⌋ … ⌊(i+1)·N/L⌋ − 1, so that none comes twice. A
    Gaussian process with the library's defaults proposes what to try (Snoek, Larochelle, Adams, NeurIPS 2012).

    Args:
        problem: the problem.
        points: random ones first, 5 in the reference code.
        iterations: proposals after them, 25.
        seed: of the library.

    Raises:
        SettingError: the library is not installed, or a number out of range.
    """
    try:
        from bayes_opt import BayesianOptimization
    except ImportError as absent:
        raise SettingError(
            "the Bayesian sampler needs bayesian-optimization: pip install 'fedfloor[samplers]'"
        ) from absent
    require(points >= 1, "points", points, "a whole number of at least 1")
    require(iterations >= 0, "iterations", iterations, "a whole number of at least 0")
    began = time.perf_counter()
    n, k = problem.candidates, problem.how_many
    edges = np.arange(k + 1) * n // max(k, 1)
    names = [f"x{i:05d}" for i in range(k)]  # the library may sort them

    def chosen(point: dict[str, float]) -> Integers:
        at = np.array([point[name] for name in names], np.float64)
        return np.minimum(at.astype(np.int64), edges[1:] - 1)

    if k == 0:
        choice = np.empty(0, np.int64)
    else:
        optimizer = BayesianOptimization(
            f=lambda **point: -value(problem, chosen(point)),
            pbounds={name: (float(edges[i]), float(edges[i + 1])) for i, name in enumerate(names)},
            random_state=seed,
            verbose=0,
            allow_duplicate_points=True,
        )
        with warnings.catch_warnings():  # its Gaussian process complains about steps, which cut points look like
            warnings.simplefilter("ignore")
            optimizer.maximize(init_points=points, n_iter=iterations)
        best = optimizer.max
        choice = chosen({} if best is None else best["params"])
    return solved(value(problem, choice), whole_bound(problem), choice, time.perf_counter() - began)
