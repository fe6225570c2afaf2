"""How alike groups of devices are and how long forming them takes: ICG, what it is compared with, and exchanges.

As in HFedMS (arXiv 2211.03300): batches of 50 from 368 devices that hold FEMNIST writers, and as many groups as its
growth function asks for at the beginning and in the end, and as its time was measured with. Without FEMNIST, classes
and devices are drawn from Dirichlet distributions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.selection import Deal, census
from fedfloor.base.chance import generator
from fedfloor.solvers.grouping.solve import SOLVERS, GroupingProblem, median, singletons, solve, verify
from fedfloor.solvers.solution import Integers, Solution

Row = dict[str, object]
BATCH = 50
QUICK_S = 0.1  # a solver that takes longer is timed once on each population
REFERENCE = "icg"
PAIRS = 2048  # devices up to which each is compared with each


@dataclass(frozen=True)
class Case:
    """One size.

    Args:
        devices: K.
        groups: M.
        solvers: which.
        populations: how many problems.
    """

    devices: int
    groups: int
    solvers: tuple[str, ...]
    populations: int = 20

    def name(self, solver: str) -> str:
        """K, M and the solver, such as ``368-52 icg``."""
        return f"{self.devices}-{self.groups} {solver}"


CASES = (
    *(Case(368, groups, tuple(SOLVERS)) for groups in (10, 52, 100)),
    Case(100_000, 1_000, ("icg", "random", "exchange"), populations=1),
)


def measure(only: str, repeats: int, said: Callable[[str], None]) -> list[Row]:
    """Measure the cases whose name holds a text and return a row for each.

    Args:
        only: the text.
        repeats: groupings of each population that are timed, of solvers that take less than 0.1 s.
        said: told what is being measured.
    """
    wanted = [(case, solver) for case in CASES for solver in case.solvers if only in case.name(solver)]
    if not wanted:
        return []
    _, deal = census(said, BATCH)
    rows: list[Row] = []
    reference: dict[Case, list[float]] = {}
    for case, solver in wanted:
        said(case.name(solver))
        problems = [problem(case, deal, seed) for seed in range(case.populations)]
        if case not in reference:
            reference[case] = [solve(REFERENCE, one, seed=seed).value for seed, one in enumerate(problems)]
        rows.append(row(case, solver, problems, reference[case], repeats))
    return rows


def problem(case: Case, deal: Deal, seed: int) -> GroupingProblem:
    """Return one problem of a size.

    Args:
        case: the size.
        deal: draws the batches.
        seed: of the draw.
    """
    counts = deal(case.devices, generator(seed, "grouping", case.devices))
    return GroupingProblem(counts.T.astype(np.float64), case.groups)


def row(case: Case, solver: str, problems: list[GroupingProblem], reference: list[float], repeats: int) -> Row:
    """Return one solver's row; it has compiled before.

    Args:
        case: the size.
        solver: its name.
        problems: its populations.
        reference: ICG's value in each.
        repeats: as :func:`measure`'s.
    """
    solve(solver, GroupingProblem(np.eye(4), 2))
    times = []
    found = []
    for seed, one in enumerate(problems):
        seconds, solution = _timed(one, solver, seed)
        if seconds < QUICK_S:
            seconds = statistics.median(_timed(one, solver, seed)[0] for _ in range(repeats))
        times.append(seconds)
        found.append(solution)
    apart = [median(one, solution.choice) for one, solution in zip(problems, found, strict=True)]
    alone = None
    if case.devices <= PAIRS:
        alone = statistics.mean(median(one, singletons(one)) for one in problems)
    ratios = [solution.value / least for solution, least in zip(found, reference, strict=True) if least > 0]
    return {
        "size": f"{case.devices}-{case.groups}",
        "solver": solver,
        "ms": round(1e3 * statistics.median(times), 3),
        "ms_max": round(1e3 * max(times), 3),
        "distance": round(statistics.mean(one.value for one in found), 5),
        "to_icg": round(statistics.mean(ratios), 4) if ratios else None,
        "to_icg_max": round(max(ratios), 4) if ratios else None,
        "cpd_median": round(statistics.mean(apart), 6),
        "cpd_to_devices": round(statistics.mean(apart) / alone, 4) if alone else None,
        "left_out": problems[0].left_out,
    }


def _timed(problem: GroupingProblem, solver: str, seed: int) -> tuple[float, Solution[Integers]]:
    began = time.perf_counter()
    solution = solve(solver, problem, seed=seed)
    seconds = time.perf_counter() - began
    verify(problem, solution)
    return seconds, solution
