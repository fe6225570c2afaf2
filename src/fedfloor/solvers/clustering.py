"""Clustering of devices: K-Means, purity, hashing (FLDG), and K-Center (FAVOR)."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import chance
from fedfloor.base.errors import SettingError, require
from fedfloor.solvers.solution import Floats, Integers

STARTS = 10
LARGEST = 1e100  # greatest number: sums of squares of larger numbers may be infinite


@dataclass(frozen=True, eq=False)
class Clusters:
    """A partition of vectors; group 0 has the first vector, group 1 the first vector outside of group 0, and so on.

    Args:
        labels: [n], the group of each vector.
        sizes: [G], the number of vectors in each group.
        centres: [G, D], the means of the groups.
        inertia: Σ_i ‖v_i − c_{label i}‖².
        wanted: K, the requested number of groups; G is smaller if fewer vectors differ.
        distinct: the number of different vectors.
    """

    labels: Integers
    sizes: Integers
    centres: Floats
    inertia: float
    wanted: int
    distinct: int

    @property
    def groups(self) -> int:
        """The number of groups, G."""
        return self.sizes.size

    @property
    def remark(self) -> str:
        """The reason for fewer groups than requested; "" if all were formed."""
        if self.groups == self.wanted:
            return ""
        if self.distinct == 1:
            why = "all vectors are equal"
        elif self.distinct < self.wanted:
            why = f"only {self.distinct} vectors differ"
        else:
            why = "the others differ only by rounding errors"
        return f"{self.groups} of {self.wanted} groups formed: {why}"


def kmeans(vectors: NDArray[np.number], groups: int, seed: int) -> Clusters:
    """Return min(K, different vectors) groups with the least Σ_i min_g ‖v_i − c_g‖², the best of 10 starts.

    Lloyd's iterations from k-means++ (Lloyd, IEEE Trans. Inf. Theory 28(2), 1982; Arthur, Vassilvitskii, SODA 2007), by
    scikit-learn. Equal vectors are merged into one with a weight: they are in the same group, and the partition depends
    neither on the order of the vectors nor on the number of cores.

    ``vectors``: [n, D]. ``groups``: K ≥ 1.

    >>> clusters = kmeans(np.array([[9.0], [0], [8], [1], [9]]), 2, seed=0)
    >>> clusters.labels.tolist(), clusters.sizes.tolist()
    ([0, 1, 0, 1, 0], [3, 2])
    >>> kmeans(np.zeros((5, 2)), 2, seed=0).remark
    '1 of 2 groups formed: all vectors are equal'
    """
    v = np.asarray(vectors, np.float64)
    require(v.ndim == 2 and min(v.shape) > 0, "shape of vectors", v.shape, "(n, D), both at least 1")
    bad = v[~(np.abs(v) <= LARGEST)]
    require(bad.size == 0, "vectors", float(bad[0]) if bad.size else None, f"finite and of size {LARGEST:g} at most")
    require(groups >= 1, "groups", groups, "a whole number of at least 1")
    different, which, weight = np.unique(v, axis=0, return_inverse=True, return_counts=True)
    which = which.reshape(-1)  # only NumPy 2.0 returns it with a second axis
    many = len(different) > groups
    raw = _lloyd(different, weight, groups, seed) if many else np.arange(len(different))
    labels = canonical(raw[which])
    sizes = np.bincount(labels)
    centres = np.stack([v[labels == g].mean(0) for g in range(sizes.size)])
    inertia = float(((v - centres[labels]) ** 2).sum())
    return Clusters(labels, sizes, centres, inertia, int(groups), len(different))


def _lloyd(points: Floats, weight: Integers, groups: int, seed: int) -> Integers:
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    start = int(chance.generator(seed, "k-means").integers(1 << 32))
    solver = KMeans(groups, n_init=STARTS, random_state=start, algorithm="lloyd")
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # points that differ by rounding: see the remark
        return np.asarray(solver.fit(points, sample_weight=weight).labels_, np.int64)


def canonical(labels: Integers) -> Integers:
    """Return the labels [n] renumbered by the first member of each group, so that equal partitions have equal labels.

    >>> canonical(np.array([7, 2, 7, 0])).tolist()
    [0, 1, 0, 2]
    """
    _, first, which = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[which], np.int64)


def purity(groups: Integers, kinds: Integers) -> float:
    """Return the purity Σ_g max_c n_{gc}/n, the share of members that have the most frequent kind of their group.

    It rises with the number of groups: with groups of one member it is 1. Manning, Raghavan, Schütze, "Introduction to
    Information Retrieval", 2008, Section 16.3.

    ``groups``: [n], the group of each member. ``kinds``: [n], the kind of each member, such as its most frequent label.

    >>> purity(np.array([0, 0, 0, 1, 1]), np.array([7, 7, 3, 3, 3]))  # (2 + 2)/5
    0.8
    """
    groups = np.asarray(groups)
    kinds = np.asarray(kinds)
    require(groups.ndim == 1 and groups.size > 0, "shape of groups", groups.shape, "(n,), with at least one member")
    require(groups.shape == kinds.shape, "shape of kinds", kinds.shape, f"{groups.shape}, that of groups")
    pairs, count = np.unique(np.stack([groups, kinds]), axis=1, return_counts=True)
    _, start = np.unique(pairs[0], return_index=True)  # pairs are sorted by group
    return float(np.maximum.reduceat(count, start).sum() / groups.size)


SAME = 1e-12  # relative rounding error of a quotient of two logarithms
WIDEST_HASH = 2.0**63  # hashes from here on do not fit into 64 bits


@dataclass(frozen=True, eq=False)
class HashFunctions:
    """p-stable locality-sensitive hashes F_i(v) = ⌊(a_i·v + b_i)/r⌋, i = 1 … h: near vectors often have equal hashes.

    Datar, Immorlica, Indyk, Mirrokni, "Locality-sensitive hashing scheme based on p-stable distributions", SCG 2004.

    Args:
        a: [h, D], each number from N(0, 1).
        b: [h], each from U[0, r).
        r: the width of a window, in units of v.
    """

    a: Floats
    b: Floats
    r: float


def hash_functions(dimension: int, h: int, width: float, seed: int) -> HashFunctions:
    """Return h hash functions of vectors [D]; equal arguments give equal functions, so devices need only the seed.

    A smaller family is the beginning of a larger one, and another width keeps the directions.

    >>> few, many = hash_functions(4, 2, 3.0, seed=0), hash_functions(4, 5, 3.0, seed=0)
    >>> bool((few.a == many.a[:2]).all() and (few.b == many.b[:2]).all())
    True
    """
    require(dimension >= 1, "dimension", dimension, "a whole number of at least 1")
    require(h >= 1, "h", h, "a whole number of at least 1: the number of hash functions")
    require(0 < width < math.inf, "width", width, "above 0 and finite")
    a = chance.generator(seed, "lsh directions").standard_normal((h, dimension))
    b = chance.generator(seed, "lsh offsets").random(h) * width
    return HashFunctions(a, b, float(width))


def hash_vectors(functions: HashFunctions, v: NDArray[np.floating]) -> Integers:
    """Return F_i(v) [n, h] of the vectors v [n, D]; a hash does not depend on the other rows.

    >>> functions = HashFunctions(np.array([[1.0, 2.0]]), np.array([0.5]), 3.0)
    >>> hash_vectors(functions, np.array([[1.0, 1.0], [1.0, 0.7], [-1.0, 0.0]])).tolist()  # 3.5/3, 2.9/3, −0.5/3
    [[1], [0], [-1]]
    """
    h, dimension = functions.a.shape
    v = np.asarray(v)
    require(v.ndim == 2 and v.shape[1] == dimension, "shape of v", v.shape, f"(n, {dimension})")
    hashes = np.empty((len(v), h))
    with np.errstate(over="ignore", invalid="ignore"):  # refused below
        for row, vector in enumerate(v):
            # No matrix product: its order of additions depends on the library, the processor and the other rows, and
            # # two devices with the same vector could get different hashes at the edge of a window.
            hashes[row] = np.floor(((functions.a * vector).sum(1) + functions.b) / functions.r)
    bad = hashes[~(np.abs(hashes) < WIDEST_HASH)]
    require(bad.size == 0, "hash", float(bad[0]) if bad.size else None, "finite and of 64 bits: v is not, or too large")
    return hashes.astype(np.int64)


def fewest_functions(groups: int, width: float) -> int:
    """Return ⌈log_r K⌉, the least number of hash functions that FLDG-L needs for K groups.

    The paper counts r values per function. In fact their number depends on the spread of the vectors, of which r is
    only the unit: a smaller r gives more windows in the same spread.

    ``groups``: K ≥ 1.

    >>> fewest_functions(10, 3.0), fewest_functions(50, 3.0), fewest_functions(9, 3.0)
    (3, 4, 2)
    """
    require(groups >= 1, "groups", groups, "a whole number of at least 1")
    allowed = "above 1 and finite: the bound assumes r values per function, and a single value separates nothing"
    require(1 < width < math.inf, "width", width, allowed)
    h = math.log(groups) / math.log(width)
    return round(h) if math.isclose(h, round(h), rel_tol=SAME) else math.ceil(h)


ROWS, COLUMNS = 8, 8192  # size of a block, whose differences, 512 KiB, stay in the processor's cache


def k_center(
    vectors: NDArray[np.floating], k: int, rng: np.random.Generator, *, first: int | None = None,
    among: Integers | None = None, known: bool = False,
) -> Integers:  # fmt: skip
    """Return k different rows in order of selection: c_{j+1} = argmax_i min_{c ∈ {c_1 … c_j}} ‖v_i − v_c‖₂.

    Among equally distant rows the first. The optimal max_i min_c ‖v_i − v_c‖₂ is at least half of the result's.
    Gonzalez, "Clustering to minimize the maximum intercluster distance", Theoretical Computer Science 38, 1985; as
    FAVOR's baseline: Wang, Kaplan, Niu, Li, IEEE INFOCOM 2020.

    ``vectors``: [n, P]; little further memory is needed. ``first``: the first row; random by default. ``among``: the
    rows to select from, ascending; default: all. ``known``: whether ``vectors`` are :func:`squared_distances` of
    vectors.

    >>> line = np.array([[0.0], [1.0], [5.0], [9.0]], np.float32)
    >>> k_center(line, 3, np.random.default_rng(0), first=1).tolist()  # 9 is 8 away from 1; then 5 is 4 away from both
    [1, 3, 2]
    """
    require(vectors.ndim == 2, "shape of vectors", vectors.shape, "(n, P)")
    rows = np.arange(len(vectors)) if among is None else np.asarray(among, np.int64)
    require(1 <= k <= rows.size, "k", k, f"a whole number of 1 … {rows.size}, the vectors to choose among")
    at = int(rng.integers(rows.size)) if first is None else int(np.searchsorted(rows, first))
    listed = at < rows.size and (first is None or rows[at] == first)
    require(listed, "first", first, "one of the rows to select from")
    centres = np.empty(k, np.int64)
    near = np.full(rows.size, np.inf)
    for j in range(k):
        centres[j] = rows[at]
        apart = vectors[centres[j], rows] if known else squared_distances_from(vectors, rows, centres[j])
        near = np.minimum(near, apart)
        near[at] = -1  # not again, even if all others are equal to a centre
        at = int(near.argmax())
    return centres


def squared_distances_from(vectors: NDArray[np.floating], rows: Integers, centre: int) -> Floats:
    """Return ‖v_i − v_c‖² of the rows, by differences in 64 bits: no cancellation, and distance 0 for equal vectors.

    >>> squared_distances_from(np.array([[0.0, 0], [3, 4], [1, 0]]), np.array([1, 2]), 0).tolist()
    [25.0, 1.0]
    """
    total = np.zeros(rows.size)
    with np.errstate(over="ignore", invalid="ignore"):  # refused below, with the row's number
        for left in range(0, vectors.shape[1], COLUMNS):
            columns = slice(left, left + COLUMNS)
            c = vectors[centre, columns].astype(np.float64)
            for top in range(0, rows.size, ROWS):
                apart = vectors[rows[top : top + ROWS], columns] - c
                apart *= apart
                total[top : top + ROWS] += apart.sum(1)
    bad = rows[~np.isfinite(total)]
    if bad.size:
        raise SettingError(
            f"vectors: rows {centre} and {bad[0]} have no finite distance; leave out vectors with numbers that are "
            "not finite, or scale all of them down."
        )
    return total


def squared_distances(vectors: NDArray[np.floating]) -> Floats:
    """Return ‖v_i − v_j‖² [n, n] of all pairs of the vectors [n, P].

    >>> squared_distances(np.array([[0.0, 0], [3, 4]])).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    out = np.zeros((len(vectors), len(vectors)))
    for i in range(len(vectors) - 1):
        rows = np.arange(i + 1, len(vectors))
        out[i, rows] = out[rows, i] = squared_distances_from(vectors, rows, i)
    return out
