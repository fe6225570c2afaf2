"""Samplers of FedGS compared on the censuses of a park: how near they come to the wanted class shares; no training."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfloor import config
from fedfloor.chance import generator
from fedfloor.runs.parks import build_park
from fedfloor.solvers.selection.problem import SelectionProblem, batches, divergence, verify
from fedfloor.solvers.selection.published import Start, Trace, curve, gbpcs
from fedfloor.solvers.selection.solve import solve
from fedfloor.solvers.solution import Solution
from papers.samplers import STATED, Asked, Point, Sampler

GIVEN, CHOSEN = 2, 8  # devices of a factory that are drawn beforehand, and those that a sampler chooses
COMPILED = ("swap", "exact", "brute")  # at the first call
Row = dict[str, Any]


def problems(point: Point, seed: int, many: int) -> Iterator[SelectionProblem]:
    """Yield selections one after the other: every factory at tick 0, every factory at tick 1, …

    Args:
        point: the park's description.
        seed: of the park, and of the devices drawn beforehand.
        many: how many.

    Raises:
        SettingError: the park's data are not there.
    """
    park = build_park(config.from_table({"seed": seed, "data": point.data, "park": point.park}))
    for i in range(many):
        tick, factory = divmod(i, park.factories)
        members = park.members(factory)
        counts = park.census(members, tick, [0] * len(members)).T.astype(np.float64)
        order = generator(seed, "drawn beforehand", tick, factory).permutation(len(members))
        given, rest = np.sort(order[:GIVEN]), np.sort(order[GIVEN:])
        chosen, batch = min(CHOSEN, len(rest)), float(counts[:, 0].sum())
        yield batches(counts[:, rest], park.distribution, chosen, batch, counts[:, given].sum(1))


def rows(what: Asked, step: Callable[[int], None] = lambda _: None) -> list[Row]:
    """Return a comparison: a row of JSON scalars per point and sampler.

    Args:
        what: the comparison as it was asked for.
        step: called with the number of selections done.

    Raises:
        SettingError: the data are not there.
    """
    found, done = [], 0
    for point in what.points:
        parks = [list(problems(point, seed, what.selections)) for seed in what.seeds]
        best = [[solve("exact", one).value for one in park] for park in parks]
        for sampler in what.comparison.samplers:
            if sampler.lacking():
                found.append(_row(point, sampler, what, [], note=sampler.lacking()))
                continue
            if sampler.solver in COMPILED:
                _compile(sampler.solver)
            made: list[Made] = []
            for seed, park, least in zip(what.seeds, parks, best, strict=True):
                for i in range(what.made(sampler)):
                    made.append(_made(sampler, park[i], least[i], drawn(sampler, seed, i)))
                    done += 1
                    step(done)
            found.append(_row(point, sampler, what, made))
    return found


def drawn(sampler: Sampler, seed: int, number: int) -> int:
    """Return the seed of a sampler's own draws for a park's selection."""
    return int(generator(seed, f"reproduce {sampler.label}", number).integers(2**32))


@dataclass(frozen=True)
class Made:
    """A selection that was made: its divergence, what d is above the least as a share of it, and how that came."""

    divergence: float
    above: float
    seconds: float
    proven: bool
    begins: float | None = None
    swaps: int | None = None


def _made(sampler: Sampler, problem: SelectionProblem, least: float, seed: int) -> Made:
    seconds, solution = timed(sampler.solver, problem, seed)
    above = 0.0 if solution.value <= least else (solution.value / least - 1 if least > 0 else math.inf)
    begins, swaps = (None, None) if sampler.init is None else descent(problem, sampler.init, seed)
    off = divergence(problem, solution.choice)
    return Made(off, above, seconds, solution.status == "optimal", begins, swaps)


def timed(solver: str, problem: SelectionProblem, seed: int) -> tuple[float, Solution[Any]]:
    """Return the processor's seconds, whatever else a machine does, and what was selected, recomputed."""
    began = time.process_time()
    solution = solve(solver, problem, seed=seed)
    seconds = time.process_time() - began
    verify(problem, solution)
    return seconds, solution


def _compile(solver: str) -> None:
    """Have a solver compiled by a problem that takes no time; halves, for whole numbers are bounded without a tree."""
    solve(solver, SelectionProblem(np.eye(6) + 0.5, np.full(6, 0.7), 3))


def descent(problem: SelectionProblem, init: Start, seed: int) -> tuple[float, int]:
    """Return the divergence that GBP-CS's exchanges begin with, after a warm-up, and how many are made."""
    trace: Trace = []
    gbpcs(problem, init, seed=seed, trace=trace)
    first = problem.how_many - 1 if init == "zero" else 0
    return float(curve(problem, trace[first : first + 1])[0]), len(trace) - 1 - first


def _row(point: Point, sampler: Sampler, what: Asked, made: list[Made], note: str | None = None) -> Row:
    paper, begun = sampler.paper, sampler.begun
    optimum = next((one.paper for one in what.comparison.samplers if one.solver == "brute"), None)
    off = [one.divergence for one in made]
    stated = {name: getattr(paper, name, None) for name in STATED}
    begins, swaps = ([getattr(one, name) for one in made] for name in ("begins", "swaps"))
    return {
        "point": point.key, "sampler": sampler.label, "start": sampler.init, "selections": len(made),
        "mean": _mean(off), "median": statistics.median(off) if off else None,
        "std": statistics.pstdev(off) if off else None, "min": min(off, default=None), "max": max(off, default=None),
        "above_pct": _mean([100 * one.above for one in made]), "proven": sum(one.proven for one in made),
        "seconds": statistics.median(one.seconds for one in made) if made else None,
        "begins": _mean(begins) if sampler.init else None, "swaps": _mean(swaps) if sampler.init else None,
        **{f"paper_{name}": value for name, value in stated.items()},
        "paper_above_pct": 100 * (paper.mean / optimum.mean - 1) if paper and optimum else None,
        "paper_seconds": paper.seconds if paper else None, "paper_begins": begun.begins if begun else None,
        "paper_swaps": begun.swaps if begun else None, "paper_ends": begun.ends if begun else None,
        "paper_ends_text": begun.said if begun else None, "note": note,
    }  # fmt: skip


def _mean(values: Sequence[Any]) -> float | None:
    mean = statistics.fmean(values) if values else math.inf
    return mean if math.isfinite(mean) else None
