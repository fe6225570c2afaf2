"""Our selection: the best exchange on the Gram matrix, again and again, from any start."""

from __future__ import annotations

import time
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import require, unknown
from fedfloor.solvers.selection import gbpcs
from fedfloor.solvers.selection.problem import Floats, Integers, Problem, check, value, whole_bound
from fedfloor.solvers.solution import Solution, solved

Flags = NDArray[np.bool_]
Start = Literal["greedy", "mpinv", "zero", "random"]
STARTS = ("greedy", "mpinv", "zero", "random")
KICKS = 60
STRENGTH = 3  # random exchanges of a kick
GRAM = 2048  # candidates up to which the whole Gram matrix is kept: 32 MiB
BLOCK = 1 << 23  # entries of it that are looked at together where it is not


def swap(
    problem: Problem, start: Start | Integers = "greedy", *, kicks: int = KICKS, seed: int = 0
) -> Solution[Integers]:
    """Exchange the pair that lowers ‖A x − y‖ most, until none does; never worse than the start.

    Then kicks: three random exchanges, and down again; the outcome stays if it is no worse (iterated local search:
    Lourenço, Martin, Stützle, 2003). Above 2048 candidates only one descent, with the entries of the Gram matrix
    computed as they are needed.

    Args:
        problem: the problem.
        start: ``greedy``: one candidate after the other towards a growing target; those of GBP-CS; or a choice.
        kicks: how many; 0: one descent.
        seed: of kicks and of a random start.

    Raises:
        SettingError: no such start, or kicks below 0.
    """
    require(kicks >= 0, "kicks", kicks, "a whole number of at least 0")
    began = time.perf_counter()
    x = begun(problem, start, seed)
    first = choice = np.flatnonzero(x)
    if 0 < choice.size < x.size:
        choice = _small(problem, x, kicks, seed) if x.size <= GRAM else _large(problem, x)
    found, before = value(problem, choice), value(problem, first)
    if before < found:  # by rounding
        choice, found = first, before
    return solved(found, whole_bound(problem), choice, time.perf_counter() - began)


def begun(problem: Problem, start: Start | Integers, seed: int) -> Flags:
    """Return the start as x, bool [N].

    Raises:
        SettingError: no such start, or not a choice of this problem.
    """
    x = np.zeros(problem.candidates, np.bool_)
    if not isinstance(start, str):
        check(problem, start)
        x[start] = True
        return x
    if start not in STARTS:
        raise unknown("start", start, STARTS)
    if start != "greedy":
        return gbpcs.start(problem, start, seed=seed)
    from fedfloor.solvers.selection import exchange

    exchange.greedy(np.ascontiguousarray(problem.counts.T), problem.target, problem.how_many, x)
    return x


def _small(problem: Problem, x: Flags, kicks: int, seed: int) -> Integers:
    from fedfloor.solvers.selection import exchange

    A = problem.counts
    inside, outside = np.flatnonzero(x), np.flatnonzero(~x)
    draws = np.random.default_rng(seed).random((kicks, STRENGTH, 2))
    exchange.kicked(A.T @ A, (A[:, inside].sum(1) - problem.target) @ A, inside, outside, draws)
    return np.sort(inside)


def _large(problem: Problem, x: Flags) -> Integers:
    from fedfloor.solvers.selection import exchange

    A = problem.counts
    squares = (A * A).sum(0)
    inside, outside = np.flatnonzero(x), np.flatnonzero(~x)
    while True:
        g = (A[:, inside].sum(1) - problem.target) @ A
        enter, leave = 2 * g[outside] + squares[outside], squares[inside] - 2 * g[inside]
        change, a, b = _best_pair(A[:, inside].T, A[:, outside], enter, leave)
        if change >= -exchange.GAIN * squares.max():
            return np.sort(inside)
        inside[a], outside[b] = outside[b], inside[a]


def _best_pair(chosen: Floats, others: Floats, enter: Floats, leave: Floats) -> tuple[float, int, int]:
    """Return the largest gain, as a change, and who leaves and enters for it; a block of the Gram matrix at a time."""
    from fedfloor.solvers.selection import exchange

    rows = max(1, BLOCK // others.shape[1])
    best = (np.inf, -1, -1)
    for at in range(0, len(leave), rows):
        part = slice(at, at + rows)
        change, a, b = exchange.best_pair(chosen[part] @ others, enter, leave[part])
        if change < best[0]:
            best = (change, at + a, b)
    return best
