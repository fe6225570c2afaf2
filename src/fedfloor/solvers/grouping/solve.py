"""The grouping solvers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedfloor.errors import require, unknown
from fedfloor.solvers.grouping.astraea import astraea
from fedfloor.solvers.grouping.exchange import LONG, exchange
from fedfloor.solvers.grouping.icg import icg
from fedfloor.solvers.grouping.problem import Integers, Problem
from fedfloor.solvers.grouping.sampling import random
from fedfloor.solvers.solution import Solution

Solver = Callable[[Problem, int], Solution[Integers]]
SOLVERS: Mapping[str, Solver] = {
    "icg": lambda problem, seed: icg(problem, seed=seed),
    "icg-euclidean": lambda problem, seed: icg(problem, distance="euclidean", seed=seed),
    "random": lambda problem, seed: random(problem, seed=seed),
    "astraea": lambda problem, seed: astraea(problem),  # noqa: ARG005
    "exchange": lambda problem, seed: exchange(problem, seed=seed),
    "exchange-long": lambda problem, seed: exchange(problem, rounds=LONG, seed=seed),
}


def solve(name: str, problem: Problem, *, seed: int = 0) -> Solution[Integers]:
    """Return M groups of L devices [M, L], those of a group in ascending order; the order of groups says nothing.

    Args:
        name: ``exchange``: ours; ``exchange-long``: the same for 300 rounds; ``icg``: the paper's; ``icg-euclidean``:
            with the distance of its reference code; ``astraea``: greedy mediators; ``random``.
        problem: the problem.
        seed: of what is drawn.

    Raises:
        SettingError: no solver of this name, or a seed that is not a whole number of 0 … 2³² − 1.
    """
    if name not in SOLVERS:
        raise unknown("grouping solver", name, SOLVERS)
    require(0 <= seed < 2**32, "seed", seed, "a whole number of at least 0 and below 2^32")
    return SOLVERS[name](problem, seed)
