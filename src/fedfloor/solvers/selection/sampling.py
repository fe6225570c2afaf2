"""Selections at random: one, or the best of a thousand (the Random and Monte Carlo samplers of FedGS, Section VII)."""

from __future__ import annotations

import time

import numpy as np

from fedfloor.errors import require
from fedfloor.solvers.selection.problem import Integers, Problem, value, whole_bound
from fedfloor.solvers.solution import Solution, solved

DRAWS = 1000


def random(problem: Problem, *, seed: int = 0) -> Solution[Integers]:
    """Return L candidates, every set as likely as any other.

    Args:
        problem: the problem.
        seed: of the draw.
    """
    began = time.perf_counter()
    choice = np.sort(np.random.default_rng(seed).permutation(problem.candidates)[: problem.how_many])
    return solved(value(problem, choice), whole_bound(problem), choice, time.perf_counter() - began)


def monte_carlo(problem: Problem, *, draws: int = DRAWS, seed: int = 0) -> Solution[Integers]:
    """Return the best of many random choices.

    Args:
        problem: the problem.
        draws: 1000 in the paper.
        seed: of the draws.

    Raises:
        SettingError: no draw at all.
    """
    require(draws >= 1, "draws", draws, "a whole number of at least 1")
    began = time.perf_counter()
    rng = np.random.default_rng(seed)
    best, choice = np.inf, np.empty(0, np.int64)
    for _ in range(draws):
        drawn = rng.permutation(problem.candidates)[: problem.how_many]
        rest = problem.counts[:, drawn].sum(1) - problem.target
        length = rest @ rest
        if length < best:
            best, choice = length, drawn
    choice = np.sort(choice)
    return solved(value(problem, choice), whole_bound(problem), choice, time.perf_counter() - began)
