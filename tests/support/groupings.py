"""Grouping problems for tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from fedfloor.solvers.grouping.solve import GroupingProblem, value


def femnist_like(seed: int, devices: int = 368, groups: int = 52, classes: int = 62) -> GroupingProblem:
    """Batches of 50 with shares from Dirichlet(0.3)."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(classes, 2.0))
    own = [rng.dirichlet(0.3 * classes * P + 1e-3) for _ in range(devices)]
    return GroupingProblem(np.stack([rng.multinomial(50, one) for one in own]), groups)


def strange(seed: int, most: int = 30) -> GroupingProblem:
    """A small problem of any kind: equal devices, empty ones, one class, fractions, any M and L that fit."""
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(1, 7))
    devices = int(rng.integers(1, most + 1))
    counts = rng.integers(0, int(rng.integers(1, 9)) + 1, (devices, classes)).astype(np.float64)
    if rng.random() < 0.4:
        counts = counts[rng.integers(0, devices, devices)]
    if rng.random() < 0.3:
        counts[rng.random(devices) < 0.4] = 0
    if rng.random() < 0.3:
        counts = counts * 10.0 ** rng.integers(-3, 7) + rng.random(counts.shape)
    counts[0, 0] += 1
    groups = int(rng.integers(1, devices + 1))
    return GroupingProblem(counts, groups, int(rng.integers(0, devices // groups + 1)))


def groupings(devices: tuple[int, ...], groups: int, size: int) -> Iterator[list[tuple[int, ...]]]:
    """All ways to form groups; the order of the groups does not count: their lowest devices ascend."""
    if not groups:
        yield []
        return
    for at in range(len(devices) - groups * size + 1):
        rest = devices[at + 1 :]
        for others in itertools.combinations(rest, size - 1):
            left = tuple(one for one in rest if one not in others)
            for more in groupings(left, groups - 1, size):
                yield [(devices[at], *others), *more]


def least(problem: GroupingProblem) -> float:
    """The least value of all groupings, by plain enumeration."""
    every = groupings(tuple(range(problem.devices)), problem.groups, problem.size)
    return min(value(problem, np.array(one)) for one in every)
