"""The allocation solvers by name."""

from __future__ import annotations

import numpy as np

from fedfloor.errors import unknown
from fedfloor.solvers.allocation.problem import Allocation, Problem
from fedfloor.solvers.allocation.rafed import rafed
from fedfloor.solvers.allocation.search import search
from fedfloor.solvers.solution import Solution

SOLVERS = ("search", "rafed", "exact")


def ready(name: str, problem: Problem) -> None:
    """Load a solver's machine code, so that the next call's seconds are those of solving."""
    two = np.array([0.1, 0.1])
    tiny = Problem(two, two[:, None], 1e-9 * np.ones((2, 1)), 1e-12, 1e-3, 1, problem.reception)
    solve(name, tiny)


def solve(name: str, problem: Problem, *, seed: int = 0) -> Solution[Allocation]:
    """Return an allocation, with a bound on what any could reach.

    Args:
        name: ``search``: ours; ``rafed``: Algorithm 1 of the paper, ties broken by Σ ln t, from a random start;
            ``exact``: with a proof.
        problem: the problem.
        seed: of what is drawn.

    Raises:
        SettingError: no solver of this name.
    """
    if name == "search":
        return search(problem, seed=seed)
    if name == "rafed":
        return rafed(problem, np.random.default_rng(seed), ties="log")
    if name == "exact":
        from fedfloor.solvers.allocation.exact import exact

        return exact(problem)
    raise unknown("allocation solver", name, SOLVERS)
