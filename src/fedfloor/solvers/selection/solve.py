"""The selection solvers by name: those of FedGS (arXiv 2202.01512, Section VII), exchanges, and branch and bound."""

from __future__ import annotations

import heapq
import itertools
import math
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError, require, unknown
from fedfloor.solvers.selection.problem import SelectionProblem, check, divergence, value, whole_bound
from fedfloor.solvers.solution import Floats, Integers, Solution, solved

PaperStart = Literal["mpinv", "zero", "random"]
Trace = list[Integers]


def gbpcs(
    problem: SelectionProblem, init: PaperStart = "mpinv", *, seed: int = 0, trace: Trace | None = None
) -> Solution[Integers]:
    """Return the choice after exchanges of the two candidates with the steepest opposite gradients, while d falls.

    FedGS's Algorithm 2. With g = Aᵀ(A x − y), i = argmin of g over x = 0 and j = argmax of g over x = 1: set xᵢ = 1, xⱼ
    = 0, if d(x) = ‖A x − y‖₂ becomes smaller; otherwise stop at the previous x. Ties: the first candidate.

    ``init``: ``mpinv``: the L largest entries of A⁺y (Eq. 14); ``zero``: L warm-up steps; ``random``: any L. ``trace``:
    a list that receives every intermediate choice, warm-up included, for :func:`curve`.

    >>> from fedfloor.solvers.selection.problem import SelectionProblem
    >>> gbpcs(SelectionProblem(np.array([[4.0, 0, 2], [0, 4, 2]]), np.array([5.0, 3]), 2)).choice
    array([0, 2])
    """
    began = time.perf_counter()
    x = initial_exchange(problem, init, seed=seed, trace=trace)
    A = problem.counts
    y = problem.target
    rest = A[:, x].sum(1) - y
    best = rest @ rest
    while 0 < problem.how_many < problem.candidates:
        g = rest @ A
        i = int(np.where(x, np.inf, g).argmin())
        j = int(np.where(x, g, -np.inf).argmax())
        moved = rest + A[:, i] - A[:, j]
        length = moved @ moved
        if not length < best:
            break
        rest = moved
        best = length
        x[i] = True
        x[j] = False
        if trace is not None:
            trace.append(np.flatnonzero(x))
    choice = np.flatnonzero(x)
    return solved(value(problem, choice), whole_bound(problem), choice, time.perf_counter() - began)


def initial_exchange(
    problem: SelectionProblem, init: PaperStart, *, seed: int = 0, trace: Trace | None = None
) -> np.ndarray:
    """Return the start of :func:`gbpcs` as x, bool [N]."""
    if init not in get_args(PaperStart):
        raise unknown("start of GBP-CS", init, get_args(PaperStart))
    n, k = problem.candidates, problem.how_many
    x = np.zeros(n, np.bool_)
    if init == "zero":
        return _warmed_up(problem, x, trace)
    if init == "mpinv":
        z = np.linalg.pinv(problem.counts, rcond=max(problem.counts.shape) * np.finfo(float).eps) @ problem.target
        x[np.argsort(-z, kind="stable")[:k]] = True
    else:
        x[np.random.default_rng(seed).permutation(n)[:k]] = True
    if trace is not None:
        trace.append(np.flatnonzero(x))
    return x


def _warmed_up(problem: SelectionProblem, x: np.ndarray, trace: Trace | None) -> np.ndarray:
    """Return x after L times setting the zero with the smallest gradient to one, towards a growing target.

    With n = Σ y/L samples per batch and c ones: y_c = (n·c + Σ b)·P − b, which is y at the end; y·c/L if P is unknown.
    """
    A = problem.counts
    k = problem.how_many
    if k == 0:
        return x
    y = problem.target
    b = problem.already
    held = np.zeros(y.shape)
    for c in range(k):
        known = problem.share is not None
        target = (y.sum() * c / k + b.sum()) * problem.share - b if known else y * c / k
        g = (held - target) @ A
        i = int(np.where(x, np.inf, g).argmin())
        x[i] = True
        held += A[:, i]
        if trace is not None:
            trace.append(np.flatnonzero(x))
    return x


def curve(problem: SelectionProblem, trace: Trace) -> Floats:
    """Return the class divergence (Eq. 6) of every choice of a trace, as in the paper's Fig. 3."""
    return np.array([divergence(problem, choice) for choice in trace])


Chromosomes = NDArray[np.bool_]
TOURNAMENT = 3


def genetic(
    problem: SelectionProblem, *, population: int = 100, generations: int = 100, mutation: float = 0.001, seed: int = 0
) -> Solution[Integers]:
    """Return the best choice of all generations of a genetic algorithm.

    A generation: tournaments of three, drawn with replacement, fill the population; consecutive pairs exchange the
    genes between two random places at which they differ; a chromosome mutates by one 0 → 1 and one 1 → 0, or is
    repaired if crossing changed its number of ones; chromosomes with a wrong number are eliminated. If none would
    remain, the parents stay. The paper has 100 generations; ``mutation`` is the probability per chromosome.
    """
    require(population >= 2 and population % 2 == 0, "population", population, "an even number of at least 2")
    require(generations >= 1, "generations", generations, "a whole number of at least 1")
    require(0 <= mutation <= 1, "mutation", mutation, "within 0 … 1")
    began = time.perf_counter()
    rng = np.random.default_rng(seed)
    n, k = problem.candidates, problem.how_many
    X = np.zeros((population, n), np.bool_)
    np.put_along_axis(X, rng.random((population, n)).argsort(1)[:, :k], True, 1)
    best = np.inf
    best_chromosome = X[0]
    for _ in range(generations):
        distance = np.linalg.norm(X @ problem.counts.T - problem.target, axis=1)
        first = int(distance.argmin())
        if distance[first] < best:
            best = distance[first]
            best_chromosome = X[first]
        drawn = rng.integers(len(X), size=(population, TOURNAMENT))
        parents = X[drawn[np.arange(population), distance[drawn].argmin(1)]]
        children = cross(parents, rng)
        for row in np.flatnonzero(rng.random(len(children)) < mutation):
            mutate(children[row], k, rng)
        whole = children.sum(1) == k
        X = children[whole] if whole.any() else parents
    choice = np.flatnonzero(best_chromosome)
    return solved(value(problem, choice), whole_bound(problem), choice, time.perf_counter() - began)


def cross(parents: Chromosomes, rng: np.random.Generator) -> Chromosomes:
    """Return the children of consecutive pairs [P, N], which exchange genes between two places where they differ."""
    left, right = parents[0::2], parents[1::2]
    keys = np.where(left != right, rng.random(left.shape), 2.0)
    ends = np.argpartition(keys, 1, axis=1)[:, :2] if keys.shape[1] > 1 else np.zeros((len(keys), 2), np.int64)
    at = np.arange(keys.shape[1])
    between = (at >= ends.min(1)[:, None]) & (at <= ends.max(1)[:, None]) & (left != right)  # equal genes do not change
    children = parents.copy()
    children[0::2] = np.where(between, right, left)
    children[1::2] = np.where(between, left, right)
    return children


def mutate(chromosome: Chromosomes, k: int, rng: np.random.Generator) -> None:
    """Repair a chromosome [N] to k ones, or swap a one and a zero if it has k; in place."""
    zeros = np.flatnonzero(~chromosome)
    ones = np.flatnonzero(chromosome)
    more = k - ones.size
    swapped = int(more == 0 and zeros.size > 0 and ones.size > 0)
    chromosome[rng.permutation(zeros)[: swapped + max(more, 0)]] = True
    chromosome[rng.permutation(ones)[: swapped + max(-more, 0)]] = False


DRAWS = 1000


def random(problem: SelectionProblem, *, seed: int = 0) -> Solution[Integers]:
    """Return L random candidates, all sets with equal probability."""
    began = time.perf_counter()
    choice = np.sort(np.random.default_rng(seed).permutation(problem.candidates)[: problem.how_many])
    return solved(value(problem, choice), whole_bound(problem), choice, time.perf_counter() - began)


def monte_carlo(problem: SelectionProblem, *, draws: int = DRAWS, seed: int = 0) -> Solution[Integers]:
    """Return the best of ``draws`` random choices, 1000 in the paper."""
    require(draws >= 1, "draws", draws, "a whole number of at least 1")
    began = time.perf_counter()
    rng = np.random.default_rng(seed)
    best = np.inf
    choice = np.empty(0, np.int64)
    for _ in range(draws):
        drawn = rng.permutation(problem.candidates)[: problem.how_many]
        rest = problem.counts[:, drawn].sum(1) - problem.target
        length = rest @ rest
        if length < best:
            best = length
            choice = drawn
    choice = np.sort(choice)
    return solved(value(problem, choice), whole_bound(problem), choice, time.perf_counter() - began)


POINTS = 5
ITERATIONS = 25
ABSENT = "the Bayesian sampler needs bayesian-optimization: pip install 'fedfloor[samplers]'"


def bayesian(
    problem: SelectionProblem, *, points: int = POINTS, iterations: int = ITERATIONS, seed: int = 0
) -> Solution[Integers]:
    """Return the best choice of Bayesian optimisation over L variables, one per interval of N/L candidates.

    Variable i, cut to a whole number, is the candidate ⌊i·N/L⌋ … ⌊(i+1)·N/L⌋ − 1, so that none is chosen twice. A
    Gaussian process with the defaults of the library bayesian-optimization proposes the points (Snoek, Larochelle,
    Adams, NeurIPS 2012), after ``points`` random points; FedGS's reference code compares with it, with 5 and 25 points.
    """
    try:
        from bayes_opt import BayesianOptimization
    except ImportError as absent:
        raise SettingError(ABSENT, key="samplers-package") from absent
    require(points >= 1, "points", points, "a whole number of at least 1")
    require(iterations >= 0, "iterations", iterations, "a whole number of at least 0")
    began = time.perf_counter()
    n, k = problem.candidates, problem.how_many
    edges = [i * n // max(k, 1) for i in range(k + 1)]
    names = [f"x{i:05d}" for i in range(k)]

    def chosen(point: dict[str, float]) -> Integers:
        return np.array([min(int(point[name]), edges[i + 1] - 1) for i, name in enumerate(names)], np.int64)

    choice = np.empty(0, np.int64)
    if k:
        optimizer = BayesianOptimization(
            lambda **point: -value(problem, chosen(point)),
            {name: (edges[i], edges[i + 1]) for i, name in enumerate(names)},
            random_state=seed,
            verbose=0,
            allow_duplicate_points=True,
        )
        with warnings.catch_warnings():  # of its Gaussian process, which sees steps in cut variables
            warnings.simplefilter("ignore")
            optimizer.maximize(init_points=points, n_iter=iterations)
        choice = chosen({} if optimizer.max is None else dict(optimizer.max["params"]))
    return solved(value(problem, choice), whole_bound(problem), choice, time.perf_counter() - began)


MOST = 10**11  # greatest number of choices: some minutes


def brute(problem: SelectionProblem) -> Solution[Integers]:
    """Return the best of all C(N, L) choices; among equal choices the first in the order of their numbers."""
    n, k = problem.candidates, problem.how_many
    if math.comb(n, k) > MOST:
        raise SettingError(
            f"{k} of {n} candidates can be chosen in {math.comb(n, k):.1e} ways, too many to enumerate. Take "
            "'exact', which proves the same with fewer.",
            key="enumeration",
        )
    began = time.perf_counter()
    choice = np.arange(k)
    if 0 < k < n:
        from fedfloor.solvers.selection import kernels

        A = problem.counts
        y = problem.target
        kernels.best_subset(A.T @ A, y @ A, k, choice)
    least = value(problem, choice)
    return solved(least, least, choice, time.perf_counter() - began)


Flags = NDArray[np.bool_]
Start = Literal["greedy"] | PaperStart
STARTS = ("greedy", "mpinv", "zero", "random")
KICKS = 60
STRENGTH = 3  # random exchanges per kick
GRAM = 2048  # most candidates for which the whole Gram matrix is stored: 32 MiB
BLOCK = 1 << 23  # entries that are computed together otherwise


def swap(
    problem: SelectionProblem, start: Start | Integers = "greedy", *, kicks: int = KICKS, seed: int = 0
) -> Solution[Integers]:
    """Return the choice after exchanges of the pair that lowers ‖A x − y‖ most; never worse than the start.

    The descent is followed by kicks: three random exchanges and another descent, whose result is kept if it is no worse
    (iterated local search: Lourenço, Martin, Stützle, 2003). Above 2048 candidates there is only one descent, with the
    entries of the Gram matrix computed as needed.

    ``start``: ``greedy``: one candidate after the other towards a growing target; the starts of GBP-CS; or a choice.
    """
    require(kicks >= 0, "kicks", kicks, "a whole number of at least 0")
    began = time.perf_counter()
    x = initial(problem, start, seed)
    first = choice = np.flatnonzero(x)
    if 0 < choice.size < x.size:
        choice = _small(problem, x, kicks, seed) if x.size <= GRAM else _large(problem, x)
    reached = value(problem, choice)
    before = value(problem, first)
    if before < reached:  # no gain, by rounding
        choice = first
        reached = before
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
    inside = np.flatnonzero(x)
    outside = np.flatnonzero(~x)
    draws = np.random.default_rng(seed).random((kicks, STRENGTH, 2))
    kernels.iterated_descent(A.T @ A, (A[:, inside].sum(1) - problem.target) @ A, inside, outside, draws)
    return np.sort(inside)


def _large(problem: SelectionProblem, x: Flags) -> Integers:
    from fedfloor.solvers.selection import kernels

    A = problem.counts
    squares = (A * A).sum(0)
    inside = np.flatnonzero(x)
    outside = np.flatnonzero(~x)
    while True:
        g = (A[:, inside].sum(1) - problem.target) @ A
        enter = 2 * g[outside] + squares[outside]
        leave = squares[inside] - 2 * g[inside]
        change, a, b = _best_exchange(A[:, inside].T, A[:, outside], enter, leave)
        if change >= -max(kernels.GAIN * squares.max(), kernels.ROUNDING * np.abs(g).max()):
            return np.sort(inside)
        inside[a], outside[b] = outside[b], inside[a]


def _best_exchange(chosen: Floats, others: Floats, enter: Floats, leave: Floats) -> tuple[float, int, int]:
    """Return the change of the best exchange, and the leaving and entering candidate, by blocks of the Gram matrix."""
    from fedfloor.solvers.selection import kernels

    rows = max(1, BLOCK // others.shape[1])
    best = (np.inf, -1, -1)
    for at in range(0, len(leave), rows):
        part = slice(at, at + rows)
        change, a, b = kernels.best_pair(chosen[part] @ others, enter, leave[part])
        if change < best[0]:
            best = (change, at + a, b)
    return best


# greatest number of nodes for the whole tree, or for a subtree
ROOT = 10_000_000
PART = 50_000
MANY = 1000  # most candidates for which a proof is tried: the factor takes N³/6 steps
FEW = 40  # most candidates for which the tree is faster than kicks
Signs = NDArray[np.int8]


def exact(
    problem: SelectionProblem, time_limit_s: float = 60.0, *, nodes: int | None = None, seed: int = 0
) -> Solution[Integers]:
    """Return the best choice, with a proof if time allows, otherwise with a bound.

    The choice of :func:`swap` is the first incumbent. The tree is then enumerated with the continuous solution's bound
    (:mod:`fedfloor.solvers.selection.kernels`). If that takes too many nodes, it is split at the candidate nearest to
    one half, each subtree gets its own continuous solution, and the subtree with the least bound is next. For whole
    counts, :func:`~fedfloor.solvers.selection.problem.whole_bound` applies, too. Of identical columns the first ones
    are chosen.

    ``time_limit_s``: the limit of the proof; after it the status is ``"feasible"``, with the bound proven so far. Above
    1000 candidates only the bound of whole counts can prove a choice. ``nodes``: the approximate number of nodes,
    instead of a time, so that the result does not depend on the speed of the machine.
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
    """Return the best choice, and a bound on all others; ``left`` is the number of nodes to visit at most."""
    from fedfloor.solvers.selection import kernels

    y = problem.target
    twin = np.empty(len(columns), np.int64)
    kernels.twins(columns, gram, twin)
    best = np.array([known.value**2])
    incumbent = np.zeros(len(twin), np.int8)
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
        # a subtree that is closed at once counts as one node
        most = PART
        left = left - max(taken, 1)
        if at >= 0:
            for half in _branches(fixed, twin, int(at)):
                heapq.heappush(parts, (max(least, bound), next(number), half))
    return np.flatnonzero(incumbent), math.inf


def _branches(fixed: Signs, twin: Integers, at: int) -> tuple[Signs, Signs]:
    without = fixed.copy()
    with_it = fixed.copy()
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
WHAT: Mapping[str, str] = {
    "gbpcs": "FedGS's GBP-CS from the pseudo-inverse: exchanges along the gradient, of devices whose classes add up "
    "best",
    "gbpcs-zero": "GBP-CS from zero, with its warm-up",
    "gbpcs-random": "GBP-CS from random devices",
    "random": "Devices at random",
    "monte-carlo": "The best of 1000 random choices",
    "genetic": "A genetic search of 100 chromosomes and 100 generations",
    "bayesian": "Bayesian optimisation of 5 + 25 points",
    "brute": "The best of all choices, one by one",
    "swap": "Exchanges of two devices from several starts (ours)",
    "exact": "The best of all choices, with a proof (ours)",
}


def solve(name: str, problem: SelectionProblem, *, seed: int = 0) -> Solution[Integers]:
    """Return a choice of L candidates, ascending, with a bound on the value of every choice.

    ``name``: ``swap``, exchanges; ``exact``, with a proof; ``gbpcs``, ``gbpcs-zero``, ``gbpcs-random``, FedGS's, by
    start; the samplers of its comparison: ``random``, ``monte-carlo``, ``genetic``, ``bayesian``, ``brute``.
    """
    if name not in SOLVERS:
        raise unknown("selection solver", name, SOLVERS)
    require(0 <= seed < 2**32, "seed", seed, "a whole number of at least 0 and below 2^32")
    return SOLVERS[name](problem, seed)
