"""The genetic sampler that FedGS compares with (arXiv 2202.01512, Section VII)."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import require
from fedfloor.solvers.selection.problem import Integers, Problem, value, whole_bound
from fedfloor.solvers.solution import Solution, solved

Chromosomes = NDArray[np.bool_]
TOURNAMENT = 3


def genetic(
    problem: Problem, *, population: int = 100, generations: int = 100, mutation: float = 0.001, seed: int = 0
) -> Solution[Integers]:
    """Return the best choice of all generations.

    A generation: tournaments of three, drawn with replacement, fill the population up; consecutive pairs exchange the
    genes between two random ones of those in which they differ; a chromosome mutates by one 0 → 1 and one 1 → 0, or is
    repaired if crossing broke its number of ones; those still broken are eliminated. Where none would be left, the
    parents stay.

    Args:
        problem: the problem.
        population: chromosomes, an even number.
        generations: 100 in the paper.
        mutation: probability for a chromosome.
        seed: of all that is drawn.

    Raises:
        SettingError: a number out of range.
    """
    require(population >= 2 and population % 2 == 0, "population", population, "an even number of at least 2")
    require(generations >= 1, "generations", generations, "a whole number of at least 1")
    require(0 <= mutation <= 1, "mutation", mutation, "within 0 … 1")
    began = time.perf_counter()
    rng = np.random.default_rng(seed)
    n, k = problem.candidates, problem.how_many
    X = np.zeros((population, n), np.bool_)
    np.put_along_axis(X, rng.random((population, n)).argsort(1)[:, :k], True, 1)
    best, kept = np.inf, X[0]
    for _ in range(generations):
        distance = np.linalg.norm(X @ problem.counts.T - problem.target, axis=1)
        first = int(distance.argmin())
        if distance[first] < best:
            best, kept = distance[first], X[first]
        drawn = rng.integers(len(X), size=(population, TOURNAMENT))
        X = _next(X[drawn[np.arange(population), distance[drawn].argmin(1)]], k, mutation, rng)
    choice = np.flatnonzero(kept)
    return solved(value(problem, choice), whole_bound(problem), choice, time.perf_counter() - began)


def _next(parents: Chromosomes, k: int, mutation: float, rng: np.random.Generator) -> Chromosomes:
    children = crossed(parents, rng)
    for one in np.flatnonzero(rng.random(len(children)) < mutation):
        mutate(children[one], k, rng)
    whole = children.sum(1) == k
    return children[whole] if whole.any() else parents


def crossed(parents: Chromosomes, rng: np.random.Generator) -> Chromosomes:
    """Return the children of consecutive pairs: what lies between two differing genes is exchanged.

    Args:
        parents: [P, N].
        rng: chooses the two genes.
    """
    left, right = parents[0::2], parents[1::2]
    keys = np.where(left != right, rng.random(left.shape), 2.0)
    ends = np.argpartition(keys, 1, axis=1)[:, :2] if keys.shape[1] > 1 else np.zeros((len(keys), 2), np.int64)
    at = np.arange(keys.shape[1])
    between = (at >= ends.min(1)[:, None]) & (at <= ends.max(1)[:, None]) & (left != right)  # equal genes stay anyway
    children = parents.copy()
    children[0::2] = np.where(between, right, left)
    children[1::2] = np.where(between, left, right)
    return children


def mutate(chromosome: Chromosomes, k: int, rng: np.random.Generator) -> None:
    """Give a chromosome k ones again, or exchange a one and a zero if it has k; in place.

    Args:
        chromosome: [N].
        k: how many ones it should have.
        rng: chooses the genes.
    """
    zeros, ones = np.flatnonzero(~chromosome), np.flatnonzero(chromosome)
    more = k - ones.size
    swapped = int(more == 0 and zeros.size > 0 and ones.size > 0)
    chromosome[rng.permutation(zeros)[: swapped + max(more, 0)]] = True
    chromosome[rng.permutation(ones)[: swapped + max(-more, 0)]] = False
