"""Selection problems for tests."""

from __future__ import annotations

import itertools

import numpy as np

from fedfloor.solvers.selection.problem import SelectionProblem, batches, value


def femnist_like(seed: int, candidates: int = 33, how_many: int = 8, classes: int = 62) -> SelectionProblem:
    """Batches of 32 with shares from Dirichlet(0.3), of two devices already given."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(classes, 2.0))
    counts = np.array([rng.multinomial(32, rng.dirichlet(0.3 * classes * P + 1e-3)) for _ in range(candidates + 2)]).T
    return batches(counts[:, 2:], P, how_many, 32, counts[:, :2].sum(1))


def strange(seed: int, most: int = 13) -> SelectionProblem:
    """A small problem of any kind: duplicate columns, empty batches, one class, fractions, targets out of reach."""
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(1, 7))
    n = int(rng.integers(1, most + 1))
    counts = rng.integers(0, int(rng.integers(1, 9)) + 1, (classes, n)).astype(np.float64)
    if rng.random() < 0.4:
        counts = counts[:, rng.integers(0, n, n)]
    if rng.random() < 0.3:
        counts[:, rng.random(n) < 0.4] = 0
    if rng.random() < 0.3:
        counts *= 10.0 ** rng.integers(-3, 4)
    if rng.random() < 0.2:
        counts = counts + rng.random(counts.shape)
    how_many = int(rng.integers(0, n + 1))
    kind = rng.random()
    if kind < 0.3 and how_many:  # some choice fits exactly
        target = counts[:, rng.permutation(n)[:how_many]].sum(1)
    else:
        target = counts.mean(1) * how_many + rng.normal(size=classes) * (1 if kind < 0.8 else 100)
    return SelectionProblem(counts, target, how_many)


def least(problem: SelectionProblem) -> float:
    """The least value of all choices, by plain enumeration."""
    every = itertools.combinations(range(problem.candidates), problem.how_many)
    return min(value(problem, np.array(one, np.int64)) for one in every)


def scale(problem: SelectionProblem) -> float:
    """How large the numbers of a problem are."""
    return 1 + float(np.abs(problem.target).max()) + float(problem.counts.sum())


def close(problem: SelectionProblem) -> dict[str, float]:
    """A value is the length of a difference: rounding of what is subtracted."""
    return {"rel": 1e-9, "abs": 1e-13 * scale(problem)}
