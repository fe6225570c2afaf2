"""Super nodes: devices whose next mini-batches together look like the classes of all.

Li, Qi, Wang, Sun, Li, Chen, "Data Heterogeneity-Robust Federated Learning via Group Client Selection in Industrial IoT"
(FedGS), IEEE IoT-J 9(18), 2022, arXiv 2202.01512.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import SettingError, unknown
from fedfloor.plan.nodes import Select, Work

if TYPE_CHECKING:
    from fedfloor.solvers.selection.problem import Problem

NODES = 200_000  # of the search tree of ``exact``: some ten milliseconds; hardly ever needed with 40 devices a factory
Floats = NDArray[np.float64]


def chosen(
    node: Select, census: np.ndarray, held: np.ndarray, rng: np.random.Generator, known: Iterable[str] = ()
) -> list[int]:
    """Return the devices of a super node, ascending: some at random, then the best company for them.

    A candidate that reports no samples at all has nothing to train on and is left out; where fewer than ``how_many``
    others remain, they are the super node.

    Args:
        node: its policy is the name of a solver of :mod:`fedfloor.solvers.selection`.
        census: class counts that each candidate reports of what it holds, [candidates, F].
        held: samples that each candidate holds, [candidates].
        rng: where chance comes from.
        known: policies that are none of the solvers, for the error.

    Raises:
        SettingError: no such solver; ``share`` has not one entry per class; nobody has samples.
    """
    from fedfloor.solvers.selection.solve import SOLVERS

    if node.policy not in SOLVERS:
        raise unknown("selection policy", node.policy, (*known, *SOLVERS))
    if len(node.share) != census.shape[1]:
        raise SettingError(f"select share has {len(node.share)} entries: the census counts {census.shape[1]} classes.")
    some = np.flatnonzero(census.sum(1) > 0)
    if not some.size:
        raise SettingError(f"select at {node.at}: none of its {len(node.candidates)} candidates has any samples.")
    devices = np.asarray(node.candidates)[some]
    if some.size <= node.how_many:
        return sorted(devices.tolist())
    counts = trained_on(settled(census[some], held[some]), held[some], node.work)
    drawn = rng.choice(some.size, node.random, replace=False)
    left = np.ones(some.size, bool)
    left[drawn] = False
    others = np.flatnonzero(left)
    found = others[_solved(node, counts, drawn, others, int(rng.integers(2**32)))]
    return sorted(devices[np.concatenate([drawn, found])].tolist())


def settled(census: np.ndarray, held: np.ndarray) -> Floats:
    """Return float64 [N, F]: the counts nearest to those reported that are not negative and add up to what is held.

    Without noise they are the reported ones. With it they are max(c − τ, 0), τ such that Σ = held: a function of the
    report alone, so nothing more is told of the device. Duchi, Shalev-Shwartz, Singer, Chandra, "Efficient projections
    onto the ℓ1-ball for learning in high dimensions", ICML 2008.

    Args:
        census: [N, F].
        held: samples, [N], above 0.

    >>> settled(np.array([[3, 1, 0], [4, 2, 0]]), np.array([4, 4])).tolist()
    [[3.0, 1.0, 0.0], [3.0, 1.0, 0.0]]
    """
    counts = census.astype(np.float64)
    off = np.flatnonzero(counts.sum(1) != held)
    if off.size:
        largest = -np.sort(-counts[off], axis=1)
        over = largest.cumsum(1) - held[off, None]
        many = np.arange(1, census.shape[1] + 1)
        last = (largest * many > over).sum(1)
        tau = over[np.arange(off.size), last - 1] / last
        counts[off] = np.maximum(counts[off] - tau[:, None], 0.0)
    return counts


def trained_on(counts: Floats, held: np.ndarray, work: Work) -> Floats:
    """Return float64 [N, F]: samples of each class that a visit is expected to go through, a sample twice for two
    passes.

    Args:
        counts: what is held of each class, [N, F].
        held: samples, [N].
        work: what a visit does.

    >>> trained_on(np.array([[6.0, 2.0]]), np.array([8]), Work(steps=1, batch_size=4)).tolist()
    [[3.0, 1.0]]
    """
    times = {n: _used(work, n) / n for n in set(held.tolist())}
    if set(times.values()) == {1.0}:
        return counts
    scaled: Floats = counts * np.array([[times[n]] for n in held.tolist()])
    return scaled


def _used(work: Work, held: int) -> int:
    """Return how many samples a visit goes through."""
    if work.steps is None:
        return (work.epochs or 0) * held
    full, rest = divmod(work.steps, -(-held // work.batch_size))
    return full * held + min(rest * work.batch_size, held)


def _solved(
    node: Select, counts: Floats, drawn: NDArray[np.int64], others: NDArray[np.int64], seed: int
) -> NDArray[np.int64]:
    """Return which of ``others`` are chosen."""
    from fedfloor.solvers.selection.exact import exact
    from fedfloor.solvers.selection.problem import Problem
    from fedfloor.solvers.selection.solve import solve

    columns, given, share = counts.T, counts[drawn].sum(0), np.asarray(node.share)
    how_many = node.how_many - len(drawn)
    whole = counts.sum(1).mean() * how_many + given.sum()
    problem: Problem = Problem(columns[:, others], whole * share - given, how_many, share, given)
    if node.policy == "exact":  # by nodes, not by seconds: the same on every machine
        return exact(problem, nodes=NODES, seed=seed).choice
    return solve(node.policy, problem, seed=seed).choice
