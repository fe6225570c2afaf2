"""K-Means: groups of devices whose vectors lie close together."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfloor import chance
from fedfloor.errors import require

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
STARTS = 10
LARGEST = 1e100  # sums of squares of what is larger may no longer be finite


@dataclass(frozen=True, eq=False)
class Clusters:
    """A partition; group 0 has the first vector, group 1 the first one that is not in group 0, and so on.

    Args:
        labels: [n], the group of each vector.
        sizes: [G], vectors of each group.
        centres: [G, D], the means of the groups.
        inertia: Σ_i ‖v_i − c_{label i}‖².
        wanted: K; G is less where fewer vectors differ.
        distinct: how many vectors differ.
    """

    labels: Integers
    sizes: Integers
    centres: Floats
    inertia: float
    wanted: int
    distinct: int

    @property
    def groups(self) -> int:
        """G."""
        return self.sizes.size

    @property
    def remark(self) -> str:
        """Why there are fewer groups than wanted; empty where there are not."""
        if self.groups == self.wanted:
            return ""
        if self.distinct == 1:
            why = "all vectors are equal"
        elif self.distinct < self.wanted:
            why = f"only {self.distinct} vectors differ"
        else:
            why = "the others differ by no more than rounding"
        return f"{self.wanted} groups wanted, {self.groups} formed: {why}"


def kmeans(vectors: NDArray[np.number], groups: int, seed: int) -> Clusters:
    """Return min(K, different vectors) groups, the best of 10 starts: Σ_i min_g ‖v_i − c_g‖² is sought to be least.

    Lloyd's iterations from k-means++ (Lloyd, IEEE Trans. Inf. Theory 28(2), 1982; Arthur, Vassilvitskii, SODA 2007), by
    scikit-learn. Equal vectors go in as one with its weight: they share a group, and the partition does not depend on
    the order of the vectors. Nor does it on the number of cores.

    Args:
        vectors: [n, D].
        groups: K ≥ 1.
        seed: of the starts.

    Raises:
        SettingError: no vector, numbers that are not finite, or no group wanted.

    >>> found = kmeans(np.array([[9.0], [0], [8], [1], [9]]), 2, seed=0)
    >>> found.labels.tolist(), found.sizes.tolist()
    ([0, 1, 0, 1, 0], [3, 2])
    >>> kmeans(np.zeros((5, 2)), 2, seed=0).remark
    '2 groups wanted, 1 formed: all vectors are equal'
    """
    v = np.asarray(vectors, np.float64)
    require(v.ndim == 2 and min(v.shape) > 0, "shape of vectors", v.shape, "(n, D), with a vector and a number in it")
    bad = v[~(np.abs(v) <= LARGEST)]
    require(bad.size == 0, "vectors", float(bad[0]) if bad.size else None, f"finite and of size {LARGEST:g} at most")
    require(groups >= 1, "groups", groups, "a whole number of at least 1")
    different, which, weight = np.unique(v, axis=0, return_inverse=True, return_counts=True)
    which = which.reshape(-1)  # NumPy 2.0 alone gives it a second axis
    many = len(different) > groups
    raw = _lloyd(different, weight, groups, seed) if many else np.arange(len(different))
    labels = canonical(raw[which])
    sizes = np.bincount(labels)
    centres = np.stack([v[labels == g].mean(0) for g in range(sizes.size)])
    inertia = float(((v - centres[labels]) ** 2).sum())
    return Clusters(labels, sizes, centres, inertia, int(groups), len(different))


def _lloyd(points: Floats, weight: Integers, groups: int, seed: int) -> Integers:
    """Return a label for each point."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    start = int(chance.generator(seed, "k-means").integers(1 << 32))
    solver = KMeans(groups, n_init=STARTS, random_state=start, algorithm="lloyd")
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # points that differ by rounding only: there is a remark
        return np.asarray(solver.fit(points, sample_weight=weight).labels_, np.int64)


def canonical(labels: Integers) -> Integers:
    """Return the labels renumbered by the first member of each group, so that equal partitions have equal labels.

    Args:
        labels: [n].

    >>> canonical(np.array([7, 2, 7, 0])).tolist()
    [0, 1, 0, 2]
    """
    _, first, which = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[which], np.int64)
