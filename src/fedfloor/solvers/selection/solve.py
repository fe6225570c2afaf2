"""The selection solvers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedfloor.errors import require, unknown
from fedfloor.solvers.selection.bayesian import bayesian
from fedfloor.solvers.selection.brute import brute
from fedfloor.solvers.selection.exact import exact
from fedfloor.solvers.selection.gbpcs import gbpcs
from fedfloor.solvers.selection.genetic import genetic
from fedfloor.solvers.selection.problem import Integers, Problem
from fedfloor.solvers.selection.sampling import monte_carlo, random
from fedfloor.solvers.selection.swap import swap
from fedfloor.solvers.solution import Solution

Solver = Callable[[Problem, int], Solution[Integers]]
SOLVERS: Mapping[str, Solver] = {
    "gbpcs": lambda problem, seed: gbpcs(problem, "mpinv", seed=seed),
    "gbpcs-zero": lambda problem, seed: gbpcs(problem, "zero", seed=seed),
    "gbpcs-random": lambda problem, seed: gbpcs(problem, "random", seed=seed),
    "random": lambda problem, seed: random(problem, seed=seed),
    "monte-carlo": lambda problem, seed: monte_carlo(problem, seed=seed),
    "genetic": lambda problem, seed: genetic(problem, seed=seed),
    "bayesian": lambda problem, seed: bayesian(problem, seed=seed),
    "brute": lambda problem, seed: brute(problem),  # noqa: ARG005
    "swap": lambda problem, seed: swap(problem, seed=seed),
    "exact": lambda problem, seed: exact(problem, seed=seed),
}


def solve(name: str, problem: Problem, *, seed: int = 0) -> Solution[Integers]:
    """Return a choice of L candidates, ascending, with a bound on what any could reach.

    Args:
        name: ``swap``: ours; ``exact``: with a proof; ``gbpcs``, ``gbpcs-zero``, ``gbpcs-random``: the paper's, by
            start; the samplers that it compares with: ``random``, ``monte-carlo``, ``genetic``, ``bayesian``,
            ``brute``.
        problem: the problem.
        seed: of what is drawn.

    Raises:
        SettingError: no solver of this name, or a seed that is not a whole number of 0 … 2³² − 1.
    """
    if name not in SOLVERS:
        raise unknown("selection solver", name, SOLVERS)
    require(0 <= seed < 2**32, "seed", seed, "a whole number of at least 0 and below 2^32")
    return SOLVERS[name](problem, seed)
