"""Groups at random: the benchmark of HFedMS's ablation (Section IV), and where exchanges begin."""

from __future__ import annotations

import time

import numpy as np

from fedfloor.solvers.grouping.problem import Integers, Problem, canonical, value
from fedfloor.solvers.solution import Solution, solved


def drawn(problem: Problem, seed: int) -> Integers:
    """Return M groups of L devices [M, L], every grouping as likely as any other."""
    order = np.random.default_rng(seed).permutation(problem.devices)
    return canonical(order[: problem.groups * problem.size].reshape(problem.groups, problem.size))


def random(problem: Problem, *, seed: int = 0) -> Solution[Integers]:
    """Return groups at random.

    Args:
        problem: the problem.
        seed: of the draw.
    """
    began = time.perf_counter()
    choice = drawn(problem, seed)
    return solved(value(problem, choice), 0.0, choice, time.perf_counter() - began)
