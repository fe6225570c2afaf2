"""Groups of devices by their classes or by what they answer, and the hashes that answers can be."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedfloor.errors import require
from fedfloor.machine import require_memory

log = logging.getLogger(__name__)


def formed(
    solver: str, devices: Sequence[int], counts: np.ndarray | None, groups: int, rng: np.random.Generator, size: int = 0
) -> list[list[int]]:
    """Return M groups of L devices each, in random order within a group; the other devices are in none.

    ``solver``: how they are formed, a name of :data:`fedfloor.solvers.grouping.solve.SOLVERS`. ``counts``: V [K, F],
    samples of each class that they hold; None where they are unknown: all are alike. ``size``: L; left out, ⌊K/M⌋.

    >>> formed("random", (4, 7, 9), None, 2, np.random.default_rng(0))
    [[9], [4]]
    """
    from fedfloor.solvers.grouping.problem import GroupingProblem
    from fedfloor.solvers.grouping.solve import solve

    numbers = np.asarray(devices)
    problem = GroupingProblem(np.ones((len(numbers), 1)) if counts is None else counts, groups, size)
    choice = solve(solver, problem, seed=int(rng.integers(2**32))).choice
    return [numbers[rng.permutation(row)].tolist() for row in choice]


def clustered(answers: Mapping[int, Mapping[str, Any]], question: str, groups: int, seed: int) -> list[list[int]]:
    """Return the groups that K-Means makes of devices' answers: ascending, in the order of their first devices.

    ``answers``: device → question → vector [D].

    >>> clustered({4: {"hash": [1, 1]}, 7: {"hash": [9, 9]}, 8: {"hash": [1, 2]}}, "hash", 2, seed=0)
    [[4, 8], [7]]
    """
    from fedfloor.solvers.clustering import kmeans

    known = sorted(k for k in answers if question in answers[k])
    require(groups <= len(known), "groups", groups, f"at most {len(known)}, the number of devices")
    clusters = kmeans(np.array([np.asarray(answers[k][question], np.float64) for k in known]), groups, seed)
    if clusters.remark:
        log.warning("%s.", clusters.remark)
    return [[known[i] for i in np.flatnonzero(clusters.labels == g).tolist()] for g in range(clusters.groups)]


def merged(vectors: Mapping[int, np.ndarray], distance: float, groups: int | None = None) -> list[list[int]]:
    """Return groups of devices, merged pair by pair while their mean cosine distance is at most ``distance``.

    ``vectors``: device → vector [D]; one of zeros is at distance 1 from all others. ``distance``: in [0, 2].

    >>> merged({4: np.array([1.0, 0.1]), 7: np.array([-1.0, 0.0]), 8: np.array([1.0, 0.0])}, 1.0)
    [[4, 8], [7]]
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    known = sorted(vectors)
    require(groups is None or groups <= len(known), "groups", groups, f"at most {len(known)}, the number of devices")
    if len(known) < 2:
        return [known]
    rows = np.array([vectors[k] / max(np.linalg.norm(vectors[k]), np.finfo(np.float64).tiny) for k in known])
    apart = np.clip(1 - rows @ rows.T, 0, 2)[np.triu_indices(len(known), 1)]
    tree = linkage(apart, "average")
    labels = fcluster(tree, distance, "distance") if groups is None else fcluster(tree, groups, "maxclust")
    clusters = [
        [k for k, label in zip(known, labels, strict=True) if label == cluster] for cluster in np.unique(labels)
    ]
    return sorted(clusters)


def drifted(before: np.ndarray, now: np.ndarray) -> float:
    """Return how far class shares have moved: the mean over devices of ½ Σ_c |p_c − q_c|, from 0 to 1.

    ``before``: class counts [K, F].

    >>> drifted(np.array([[2, 2], [4, 0]]), np.array([[4, 0], [1, 0]]))
    0.25
    """
    old, new = (np.divide(counts, np.maximum(1, counts.sum(1, keepdims=True))) for counts in (before, now))
    return float(np.abs(old - new).sum(1).mean() / 2)


def hashed(vector: np.ndarray, hashes: int, width: float, seed: int) -> list[int]:
    """Return h integers ⌊(a_i·v + b_i)/r⌋ of a device's mean features v [D]; a and b are the same on all devices.

    >>> len(hashed(np.zeros(4), hashes=3, width=2.0, seed=0))
    3
    """
    from fedfloor.solvers.clustering import hash_functions, hash_vectors

    require_memory(f"hashes = {hashes}", 16 * hashes * len(vector), "Set fewer hashes.")
    family = hash_functions(len(vector), hashes, width, seed)
    return [int(number) for number in hash_vectors(family, vector[None])[0]]
