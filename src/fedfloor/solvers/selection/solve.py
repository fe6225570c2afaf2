"""fedfloor's selection solvers, by exchanges and by branch and bound, and every selection solver by name."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import require, unknown
from fedfloor.solvers.selection.problem import SelectionProblem, check, value, whole_bound
from fedfloor.solvers.selection.published import bayesian, brute, gbpcs, genetic, initial_exchange, monte_carlo, random
from fedfloor.solvers.solution import Floats, Integers, Solution, solved

Flags = NDArray[np.bool_]
Start = Literal["greedy", "mpinv", "zero", "random"]
STARTS = ("greedy", "mpinv", "zero", "random")
KICKS = 60
STRENGTH = 3  # random exchanges of a kick
GRAM = 2048  # candidates up to which the whole Gram matrix is kept: 32 MiB
BLOCK = 1 << 23  # entries of it that are looked at together where it is not


def swap(
    problem: SelectionProblem, start: Start | Integers = "greedy", *, kicks: int = KICKS, seed: int = 0
) -> Solution[Integers]:
    """Exchange the pair that lowers ‖A x − y‖ most, until none does; never worse than the start.

    Then kicks: three random exchanges, and down again; the result stays if it is no worse (iterated local search:
    Lourenço, Martin, Stützle, 2003). Above 2048 candidates only one descent, with the entries of the Gram matrix
    computed as they are needed.

    ``start``: ``greedy``: one candidate after the other towards a growing target; those of GBP-CS; or a choice.
    """
    require(kicks >= 0, "kicks", kicks, "a whole number of at least 0")
    began = time.perf_counter()
    x = initial(problem, start, seed)
    first = choice = np.flatnonzero(x)
    if 0 < choice.size < x.size:
        choice = _small(problem, x, kicks, seed) if x.size <= GRAM else _large(problem, x)
    reached, before = value(problem, choice), value(problem, first)
    if before < reached:  # by rounding
        choice, reached = first, before
    return solved(reached, whole_bound(problem), choice, time.perf_counter() - began)


def initial(problem: SelectionProblem, start: Start | Integers, seed: int) -> Flags:
    """Return the start as x, bool [N]."""
    x = np.zeros(problem.candidates, np.bool_)
    if not isinstance(start, str):
        check(problem, start)
        x[start] = True
        return x
    if start not in STARTS:
        raise unknown("start", start, STARTS)
    if start != "greedy":
        return initial_exchange(problem, start, seed=seed)
    from fedfloor.solvers.selection import kernels

    kernels.greedy(np.ascontiguousarray(problem.counts.T), problem.target, problem.how_many, x)
    return x


def _small(problem: SelectionProblem, x: Flags, kicks: int, seed: int) -> Integers:
    from fedfloor.solvers.selection import kernels

    A = problem.counts
    inside, outside = np.flatnonzero(x), np.flatnonzero(~x)
    draws = np.random.default_rng(seed).random((kicks, STRENGTH, 2))
    kernels.iterated_descent(A.T @ A, (A[:, inside].sum(1) - problem.target) @ A, inside, outside, draws)
    return np.sort(inside)


def _large(problem: SelectionProblem, x: Flags) -> Integers:
    from fedfloor.solvers.selection import kernels

    A = problem.counts
    squares = (A * A).sum(0)
    inside, outside = np.flatnonzero(x), np.flatnonzero(~x)
    while True:
        g = (A[:, inside].sum(1) - problem.target) @ A
        enter, leave = 2 * g[outside] + squares[outside], squares[inside] - 2 * g[inside]
        change, a, b = _best_exchange(A[:, inside].T, A[:, outside], enter, leave)
        if change >= -max(kernels.GAIN * squares.max(), kernels.ROUNDING * np.abs(g).max()):
            return np.sort(inside)
        inside[a], outside[b] = outside[b], inside[a]


def _best_exchange(chosen: Floats, others: Floats, enter: Floats, leave: Floats) -> tuple[float, int, int]:
    """Return the largest gain, as a change, and the pair that leaves and enters; by blocks of the Gram matrix."""
    from fedfloor.solvers.selection import kernels

    rows = max(1, BLOCK // others.shape[1])
    best = (np.inf, -1, -1)
    for at in range(0, len(leave), rows):
        part = slice(at, at + rows)
        change, a, b = kernels.best_pair(chosen[part] @ others, enter, leave[part])
        if change < best[0]:
            best = (change, at + a, b)
    return best


ROOT, PART = 10_000_000, 50_000  # nodes within which the whole tree, or a part of it, should be settled
MANY = 1000  # candidates up to which a proof is tried: the factor takes N³/6 steps
FEW = 40  # candidates up to which the tree is settled sooner than kicks would have come nearer
Signs = NDArray[np.int8]


def exact(
    problem: SelectionProblem, time_limit_s: float = 60.0, *, nodes: int | None = None, seed: int = 0
) -> Solution[Integers]:
    """Return the best choice, with a proof where time allows and a bound where it does not.

    The choice of :func:`swap` is the first incumbent. Then the tree is enumerated below the continuous solution's bound
    (:mod:`fedfloor.solvers.selection.kernels`); where that takes too many nodes, it is split at the candidate nearest
    to one half, each part gets a continuous solution of its own, and the part with the least bound is next. Whole
    counts cannot come nearer than whole numbers do. Of identical columns only the first ones are chosen.

    ``time_limit_s``: of the proof; after it the status is ``"feasible"``, with the bound proven so far. Above 1000
    candidates there is no proof but that of whole numbers. ``nodes``: of the tree, about, instead of a time: the result
    then does not depend on the speed of the machine.
    """
    require(time_limit_s > 0, "time_limit_s", time_limit_s, "above 0")
    require(nodes is None or nodes >= 1, "nodes", nodes, "a whole number of at least 1")
    began = time.perf_counter()
    if not 0 < problem.how_many < problem.candidates:
        known = swap(problem, seed=seed)
        return solved(known.value, known.value, known.choice, time.perf_counter() - began)
    if problem.candidates > MANY:
        return swap(problem, seed=seed)
    from fedfloor.solvers.selection import kernels

    columns = np.ascontiguousarray(problem.counts.T)
    gram = columns @ problem.counts
    if problem.candidates <= FEW:
        choice = kernels.descended(columns, gram, problem.target, problem.how_many)
        known = solved(value(problem, choice), 0.0, choice, 0.0)
    else:
        known = swap(problem, seed=seed)
    if known.status == "optimal":
        return solved(known.value, known.bound, known.choice, time.perf_counter() - began)
    deadline = began + time_limit_s if nodes is None else math.inf
    choice, bound = _branch_and_bound(problem, columns, gram, known, deadline, math.inf if nodes is None else nodes)
    least = value(problem, choice)
    if bound < least:  # no proof from the tree
        bound = max(bound, whole_bound(problem))
    return solved(least, bound, choice, time.perf_counter() - began)


def _branch_and_bound(
    problem: SelectionProblem, columns: Floats, gram: Floats, known: Solution[Integers], deadline: float, left: float
) -> tuple[Integers, float]:
    """Return the best choice and a bound on all others; ``left`` is the number of nodes it may take."""
    from fedfloor.solvers.selection import kernels

    y, twin = problem.target, np.empty(len(columns), np.int64)
    kernels.twins(columns, gram, twin)
    best, incumbent = np.array([known.value**2]), np.zeros(len(twin), np.int8)
    incumbent[known.choice] = 1
    number = itertools.count()
    parts = [(0.0, next(number), np.full(len(twin), -1, np.int8))]
    most = ROOT
    while parts and best[0] * (1 - kernels.EQUAL) > max(parts[0][0], known.bound**2):
        if left <= 0 or time.perf_counter() > deadline:
            return np.flatnonzero(incumbent), float(np.sqrt(parts[0][0]))
        least, _, fixed = heapq.heappop(parts)
        budget = int(min(most, left))
        bound, at, taken = kernels.settle_subtree(
            columns, gram, y, twin, fixed, problem.how_many, budget, best, incumbent
        )
        most, left = PART, left - max(taken, 1)  # a part that is closed at once counts as one node
        if at >= 0:
            for half in _branches(fixed, twin, int(at)):
                heapq.heappush(parts, (max(least, bound), next(number), half))
    return np.flatnonzero(incumbent), math.inf


def _branches(fixed: Signs, twin: Integers, at: int) -> tuple[Signs, Signs]:
    without, with_it = fixed.copy(), fixed.copy()
    same = twin == twin[at]
    after = np.arange(len(twin)) >= at
    without[same & after & (fixed < 0)] = 0
    with_it[same & (np.arange(len(twin)) <= at) & (fixed < 0)] = 1
    return without, with_it


Solver = Callable[[SelectionProblem, int], Solution[Integers]]
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


def solve(name: str, problem: SelectionProblem, *, seed: int = 0) -> Solution[Integers]:
    """Return a choice of L candidates, ascending, with a bound on the value of any.

    ``name``: ``swap``, ours; ``exact``, with a proof; ``gbpcs``, ``gbpcs-zero``, ``gbpcs-random``, the paper's, by
    start; the samplers it compares with: ``random``, ``monte-carlo``, ``genetic``, ``bayesian``, ``brute``.
    """
    if name not in SOLVERS:
        raise unknown("selection solver", name, SOLVERS)
    require(0 <= seed < 2**32, "seed", seed, "a whole number of at least 0 and below 2^32")
    return SOLVERS[name](problem, seed)
