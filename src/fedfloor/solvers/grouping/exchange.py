"""Our grouping: groups meet two by two and exchange devices, from any start."""

from __future__ import annotations

import time

import numpy as np

from fedfloor.errors import require
from fedfloor.solvers.grouping.problem import Integers, Problem, canonical, check, shares, value
from fedfloor.solvers.grouping.sampling import drawn
from fedfloor.solvers.solution import Solution, solved

ROUNDS, LONG = 20, 300
TURNS = 4  # so often the centre is looked up
TRIED = 20_000  # exchanges: a problem that is through with fewer starts again,
STARTS = 32  # as often at most
TABLE = 2048  # devices up to which the products of all are kept: 32 MiB
GAIN = 1e-12  # of squared shares: a smaller one is rounding


def exchange(
    problem: Problem, start: Integers | None = None, *, rounds: int = ROUNDS, seed: int = 0
) -> Solution[Integers]:
    """Exchange devices between groups, and with those left out, while that lowers Σ‖p_m − c‖²; no worse than the start.

    In a round the groups meet two by two, as drawn; two that meet make the best of all their exchanges until none
    gains. Those left out are cut into further groups that may have any classes. c is the mean of the p_m, looked up
    after every quarter of the rounds; with it the sum is Σ_{m<m′} ‖p_m − p_m′‖²/M, whose terms the value is the mean of
    the roots of. Small problems start again, up to 32 times, and the best value stays. How much is tried depends on
    the sizes alone, so that equal seeds give equal groups.

    Args:
        problem: the problem.
        start: groups [M, L] to improve; default: drawn at random.
        rounds: how many; 300 give some 5-10 % less than 20.
        seed: of the starts and the meetings.

    Raises:
        SettingError: rounds below 0, or a start that the problem does not allow.
    """
    require(rounds >= 0, "rounds", rounds, "a whole number of at least 0")
    began = time.perf_counter()
    rng = np.random.default_rng((seed, 1))
    if start is None:
        begun = drawn(problem, seed)
        tried = rounds * problem.devices * problem.size // 2
        starts = min(STARTS, max(1, TRIED // max(1, tried)))
    else:
        check(problem, start)
        begun, starts = start, 1
    found, choice = value(problem, begun), begun
    for number in range(starts):
        if number:
            begun = drawn(problem, int(rng.integers(2**32)))
        other = met(problem, begun, rounds, rng)
        reached = value(problem, other)
        if reached < found:
            found, choice = reached, other
    return solved(found, 0.0, choice, time.perf_counter() - began)


def met(problem: Problem, start: Integers, rounds: int, rng: np.random.Generator) -> Integers:
    """Return the groups after some rounds of meetings [M, L].

    Args:
        problem: the problem.
        start: groups [M, L].
        rounds: how many.
        rng: of who meets whom.
    """
    from fedfloor.solvers.grouping import kernels

    V, M, K, L = problem.counts, problem.groups, problem.devices, problem.size
    rows = -(-K // L)
    slots = np.full((rows, L), -1)
    out = np.ones(K, np.bool_)
    out[start] = False
    slots.reshape(-1)[:K] = np.concatenate([start.ravel(), np.flatnonzero(out)])
    order = rng.permuted(np.tile(np.arange(rows), (rounds, 1)), axis=1)
    G = V @ V.T if K <= TABLE else np.empty((0, 0))
    total = V.sum(1)
    for turn in np.array_split(order, TURNS):
        c = shares(problem, slots[:M]).mean(0)
        kernels.meetings(V, G, total, V @ c, float(c @ c), GAIN, slots, K - (rows - 1) * L, M, turn)
    return canonical(slots[:M])
