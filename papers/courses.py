"""How a selection goes: divergence against steps from each start of GBP-CS, and against time for every sampler."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedfloor.solvers.selection.problem import SelectionProblem, divergence
from fedfloor.solvers.selection.published import Start, Trace, bayesian, curve, gbpcs, genetic, monte_carlo
from fedfloor.solvers.selection.solve import solve, swap
from papers.samplers import Asked
from papers.selections import drawn, problems

Pairs = tuple[tuple[float, float], ...]
Solve = Callable[..., Any]
# Stopped earlier, a sampler has drawn the same as far as it got: such points are its best so far.
EARLIER: Mapping[str, Sequence[Solve]] = {
    "monte-carlo": [partial(monte_carlo, draws=n) for n in (1, 3, 10, 30, 100, 300, 1000)],
    "genetic": [partial(genetic, generations=n) for n in (1, 3, 10, 20, 30, 50, 70, 100)],
    "bayesian": [partial(bayesian, iterations=n) for n in (0, 5, 10, 15, 20, 25)],
    "swap": [partial(swap, kicks=n) for n in (0, 5, 15, 30, 60)],
}
QUICK_S, REPEATS = 0.1, 9


@dataclass(frozen=True)
class Courses:
    """How one selection goes.

    Args:
        starts: start of GBP-CS → divergences after each step, those of the warm-up, too.
        time: sampler → (seconds, best divergence so far), …
        optimum: the least divergence.
        candidates, chosen: of the selection.
    """

    starts: Mapping[str, tuple[float, ...]]
    time: Mapping[str, Pairs]
    optimum: float
    candidates: int
    chosen: int

    def files(self, name: str) -> dict[str, str]:
        """Return the pictures' file names, and what they show."""
        of = f"of one selection, {self.chosen} of {self.candidates} devices"
        return {
            f"{name}-starts.svg": f"Class divergence against steps of GBP-CS from its three starts, {of}",
            f"{name}-time.svg": f"Class divergence against time of all samplers, {of}",
        }

    def pictures(self, name: str) -> dict[str, str]:
        """Return the pictures' file names, and the pictures as SVG."""
        from papers import pictures

        drawings = pictures.steps(self.starts, self.optimum), pictures.against_time(self.time, self.optimum)
        return dict(zip(self.files(name), drawings, strict=True))


def courses(what: Asked) -> Courses:
    """Return how the first selection goes, in the last of the points that were asked for.

    Raises:
        SettingError: the data are not there.
    """
    seed = what.seeds[0]
    problem = next(problems(what.points[-1], seed, 1))
    starts: dict[str, tuple[float, ...]] = {}
    taken: dict[str, Pairs] = {}
    for sampler in what.comparison.samplers:
        own, chance = partial(solve, sampler.solver), drawn(sampler, seed, 0)
        if sampler.init is not None:
            starts[sampler.init] = descended(problem, sampler.init, chance)
        if not sampler.lacking():
            runs = EARLIER.get(sampler.solver, [own])
            runs[0](problem, seed=chance)  # what is compiled or imported is not timed
            taken[sampler.label] = tuple(_timed(run, problem, chance) for run in runs)
    return Courses(
        starts, taken, divergence(problem, solve("exact", problem).choice), problem.candidates, problem.how_many
    )


def descended(problem: SelectionProblem, init: Start, seed: int) -> tuple[float, ...]:
    """Return the divergence after every step of GBP-CS."""
    trace: Trace = []
    gbpcs(problem, init, seed=seed, trace=trace)
    return tuple(curve(problem, trace).tolist())


def _timed(run: Solve, problem: SelectionProblem, seed: int) -> tuple[float, float]:
    """Return the processor's seconds, the median of several where it is quick, and the divergence."""
    seconds: list[float] = []
    while len(seconds) < (REPEATS if not seconds or min(seconds) < QUICK_S else 1):
        began = time.process_time()
        solution = run(problem, seed=seed)
        seconds.append(time.process_time() - began)
    return statistics.median(seconds), divergence(problem, solution.choice)
