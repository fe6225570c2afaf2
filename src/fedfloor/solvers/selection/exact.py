"""The best selection, with a proof where time allows and a bound where it does not."""

from __future__ import annotations

import heapq
import itertools
import math
import time

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import require
from fedfloor.solvers.selection.problem import Floats, Integers, Problem, value, whole_bound
from fedfloor.solvers.selection.swap import swap
from fedfloor.solvers.solution import Solution, solved

ROOT, PART = 10_000_000, 50_000  # nodes within which the whole tree, or a part of it, should be settled
MANY = 1000  # candidates up to which a proof is tried: the factor takes N³/6 steps
FEW = 40  # candidates up to which the tree is settled sooner than kicks would have come nearer
Signs = NDArray[np.int8]


def exact(
    problem: Problem, time_limit_s: float = 60.0, *, nodes: int | None = None, seed: int = 0
) -> Solution[Integers]:
    """Return the best choice.

    The exchanges' choice comes first. Then the tree is enumerated below the continuous solution's bound
    (:mod:`fedfloor.solvers.selection.enumeration`); where that takes too many nodes, it is split at the candidate
    nearest to one half, each part gets a continuous solution of its own, and the part with the least bound is next.
    Whole counts cannot come nearer than whole numbers do. Of identical columns only the first ones are chosen.

    Args:
        problem: the problem.
        time_limit_s: of the proof; the answer is then ``"feasible"``, with the bound proven so far. Above 1000
            candidates there is no proof but that of whole numbers.
        nodes: of the tree, about, instead of a time: what is found then does not depend on how fast the machine is.
        seed: of the exchanges' kicks.

    Raises:
        SettingError: no time or no nodes at all.
    """
    require(time_limit_s > 0, "time_limit_s", time_limit_s, "above 0")
    require(nodes is None or nodes >= 1, "nodes", nodes, "a whole number of at least 1")
    began = time.perf_counter()
    if not 0 < problem.how_many < problem.candidates:
        known = swap(problem, seed=seed)
        return solved(known.value, known.value, known.choice, time.perf_counter() - began)
    if problem.candidates > MANY:
        return swap(problem, seed=seed)
    columns = np.ascontiguousarray(problem.counts.T)
    gram = columns @ problem.counts
    known = _first(problem, columns, gram) if problem.candidates <= FEW else swap(problem, seed=seed)
    if known.status == "optimal":
        return solved(known.value, known.bound, known.choice, time.perf_counter() - began)
    deadline = began + time_limit_s if nodes is None else math.inf
    choice, bound = _searched(problem, columns, gram, known, deadline, math.inf if nodes is None else nodes)
    found = value(problem, choice)
    if bound < found:  # no proof from the tree
        bound = max(bound, whole_bound(problem))
    return solved(found, bound, choice, time.perf_counter() - began)


def _first(problem: Problem, columns: Floats, gram: Floats) -> Solution[Integers]:
    """Return what one descent finds; ``columns`` is Aᵀ, ``gram`` AᵀA."""
    from fedfloor.solvers.selection import exchange

    choice = exchange.first(columns, gram, problem.target, problem.how_many)
    return solved(value(problem, choice), 0.0, choice, 0.0)


def _searched(
    problem: Problem, columns: Floats, gram: Floats, known: Solution[Integers], deadline: float, left: float
) -> tuple[Integers, float]:
    """Return the best choice found, and what no other lies below; ``left`` is how many nodes it may take."""
    from fedfloor.solvers.selection import enumeration

    y, twin = problem.target, np.empty(len(columns), np.int64)
    enumeration.twins(columns, gram, twin)
    best, found = np.array([known.value**2]), np.zeros(len(twin), np.int8)
    found[known.choice] = 1
    number = itertools.count()
    parts = [(0.0, next(number), np.full(len(twin), -1, np.int8))]
    most = ROOT
    while parts and best[0] * (1 - enumeration.EQUAL) > max(parts[0][0], known.bound**2):
        if left <= 0 or time.perf_counter() > deadline:
            return np.flatnonzero(found), float(np.sqrt(parts[0][0]))
        least, _, fixed = heapq.heappop(parts)
        budget = int(min(most, left))
        bound, at, taken = enumeration.settle(columns, gram, y, twin, fixed, problem.how_many, budget, best, found)
        most, left = PART, left - max(taken, 1)  # a part that is closed at once was looked at, too
        if at >= 0:
            for half in _halves(fixed, twin, int(at)):
                heapq.heappush(parts, (max(least, bound), next(number), half))
    return np.flatnonzero(found), math.inf


def _halves(fixed: Signs, twin: Integers, at: int) -> tuple[Signs, Signs]:
    """Return the part without a candidate and those identical after it, and the part with it and those before it."""
    without, with_it = fixed.copy(), fixed.copy()
    same = twin == twin[at]
    after = np.arange(len(twin)) >= at
    without[same & after & (fixed < 0)] = 0
    with_it[same & (np.arange(len(twin)) <= at) & (fixed < 0)] = 1
    return without, with_it
