"""How good selections are and how long they take: GBP-CS, the samplers it is compared with, exchanges, and the best.

As in FedGS (arXiv 2202.01512, Section VII): batches of 32 from devices that hold FEMNIST writers, two of which take
part anyway, and class shares of all data. Without FEMNIST, classes and devices are drawn from Dirichlet distributions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.chance import generator
from fedfloor.data import sources
from fedfloor.solvers.selection.problem import SelectionProblem, divergence, verify
from fedfloor.solvers.selection.problem import batches as wanted
from fedfloor.solvers.selection.solve import SOLVERS, solve
from fedfloor.solvers.solution import Floats, Integers, Solution
from papers.groupings import by_owner, drawn_counts

Row = dict[str, object]
Deal = Callable[[int, np.random.Generator], NDArray[np.int64]]  # how many devices → counts [F, devices]
BATCH = 32
GIVEN = 2
CLASSES = 62
SKEW = 0.3  # of the devices that are made up: Dirichlet(0.3·62·P)
COMPILED = ("swap", "exact", "brute")  # at the first call
QUICK_S = 0.1  # a solver that takes longer is timed once on each instance
PAPER = {  # ms a selection and the mean divergence of ten factories, by the plots of the reference code
    "brute": (978_778.6, 0.032), "bayesian": (7992.5, 0.047), "genetic": (997.5, 0.036), "monte-carlo": (119.7, 0.040),
    "gbpcs": (15.4, 0.036), "random": (0.1, 0.083),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One size.

    Args:
        candidates: N.
        how_many: L.
        solvers: which.
        instances: how many problems.
        proven: also look for the best, which gaps are measured from.
    """

    candidates: int
    how_many: int
    solvers: tuple[str, ...]
    instances: int = 10
    proven: bool = True

    def name(self, solver: str) -> str:
        """N, L and the solver, such as ``33-8 swap``."""
        return f"{self.candidates}-{self.how_many} {solver}"


OURS = ("gbpcs", "gbpcs-zero", "swap", "exact")
CASES = (
    Case(33, 8, tuple(SOLVERS)),
    Case(36, 18, OURS),
    Case(60, 16, OURS),
    Case(10_000, 1_000, ("gbpcs-zero", "swap"), instances=3, proven=False),
)


def measure(only: str, repeats: int, said: Callable[[str], None]) -> list[Row]:
    """Measure the cases whose name holds a text and return a row for each.

    Args:
        only: the text.
        repeats: selections of each problem that are timed, of solvers that take less than 0.1 s.
        said: told what is being measured.
    """
    wanted = [(case, solver) for case in CASES for solver in case.solvers if only in case.name(solver)]
    if not wanted:
        return []
    share, deal = census(said)
    best: dict[Case, list[float]] = {}
    rows = []
    for case, solver in wanted:
        said(case.name(solver))
        problems = [problem(case, share, deal, seed) for seed in range(case.instances)]
        if case.proven and case not in best:
            best[case] = [solve("exact", one).value for one in problems]
        rows.append(row(case, solver, problems, best.get(case), repeats))
    return rows


def census(said: Callable[[str], None], size: int = BATCH) -> tuple[Floats, Deal]:
    """Return the class shares of all devices, and what draws the next batches of some of them.

    Args:
        said: told where they are from.
        size: samples of a batch.
    """
    if not sources.looked_in(["femnist"])[0]["found"]:
        said("femnist: not there (fedfloor list datasets says where it is looked for): devices are made up")
        share = generator(0, "selection").dirichlet(np.full(CLASSES, 2.0))
        return share, lambda devices, rng: made_up(devices, share, rng, size)
    data = sources.load("femnist")
    labels = by_owner(data)
    share = np.bincount(data.y, minlength=CLASSES) / len(data.y)
    return share, lambda devices, rng: drawn_counts(devices, labels, rng, size, CLASSES)


def made_up(devices: int, share: Floats, rng: np.random.Generator, size: int = BATCH) -> NDArray[np.int64]:
    """Return the counts of a batch of each of some devices, whose shares are Dirichlet(0.3·F·P) [F, devices]."""
    own = [rng.dirichlet(SKEW * share.size * share + 1e-3) for _ in range(devices)]
    return np.stack([rng.multinomial(size, one) for one in own], axis=1)


def problem(case: Case, share: Floats, deal: Deal, seed: int) -> SelectionProblem:
    """Return one problem of a size.

    Args:
        case: the size.
        share: P.
        deal: draws the batches.
        seed: of the draw.
    """
    rng = generator(seed, "selection", case.candidates, case.how_many)
    counts = deal(case.candidates + GIVEN, rng).astype(np.float64)
    return wanted(counts[:, GIVEN:], share, case.how_many, BATCH, counts[:, :GIVEN].sum(1))


def row(case: Case, solver: str, problems: list[SelectionProblem], best: list[float] | None, repeats: int) -> Row:
    """Return one solver's row; its first selection, which may compile, is not timed where it is a quick one."""
    times = []
    found = []
    for seed, one in enumerate(problems):
        seconds, solution = _timed(one, solver, seed)
        if seconds < QUICK_S or (seed == 0 and solver in COMPILED):
            seconds = statistics.median(_timed(one, solver, seed)[0] for _ in range(repeats))
        times.append(seconds)
        found.append(solution)
    off = [divergence(one, solution.choice) for one, solution in zip(problems, found, strict=True)]
    gaps = None if best is None else [one.value / least - 1 for one, least in zip(found, best, strict=True)]
    paper = PAPER.get(solver, (None, None)) if (case.candidates, case.how_many) == (33, 8) else (None, None)
    return {
        "size": f"{case.candidates}-{case.how_many}",
        "solver": solver,
        "ms": round(1e3 * statistics.median(times), 3),
        "ms_max": round(1e3 * max(times), 3),
        "gap_mean": None if gaps is None else round(statistics.mean(gaps), 4),
        "gap_max": None if gaps is None else round(max(gaps), 4),
        "proven": sum(one.status == "optimal" for one in found),
        "mean": round(statistics.mean(off), 4),
        "median": round(statistics.median(off), 4),
        "std": round(statistics.pstdev(off), 4),
        "min": round(min(off), 4),
        "max": round(max(off), 4),
        "paper_ms": paper[0],
        "paper_mean": paper[1],
    }


def _timed(problem: SelectionProblem, solver: str, seed: int) -> tuple[float, Solution[Integers]]:
    began = time.perf_counter()
    solution = solve(solver, problem, seed=seed)
    seconds = time.perf_counter() - began
    verify(problem, solution)
    return seconds, solution
