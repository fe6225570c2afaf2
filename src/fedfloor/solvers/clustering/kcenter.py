"""Greedy K-Center: vectors that lie far apart, chosen one after the other, and a pool they are taken from."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import SettingError, require

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
ROWS, COLUMNS = 8, 8192  # of a block: its differences, 512 KiB, stay in the processor's cache


def chosen(
    vectors: NDArray[np.floating],
    k: int,
    rng: np.random.Generator,
    *,
    first: int | None = None,
    among: Integers | None = None,
    known: bool = False,
) -> Integers:
    """Return k different rows in the order they are chosen: c_{j+1} = argmax_i min_{c ∈ {c_1 … c_j}} ‖v_i − v_c‖₂.

    Of equally far ones the first. No k centres leave max_i min_c ‖v_i − v_c‖₂ less than half as large. Gonzalez,
    "Clustering to minimize the maximum intercluster distance", Theoretical Computer Science 38, 1985.

    Args:
        vectors: [n, P]; beside them little memory is needed.
        k: how many centres.
        rng: of the first one.
        first: the first one, if it is not to be drawn.
        among: rows that can be chosen, ascending; default: all.
        known: ``vectors`` are :func:`squares` of vectors.

    Raises:
        SettingError: not k rows to choose among, ``first`` not one of them, or vectors that are not finite.

    >>> line = np.array([[0.0], [1.0], [5.0], [9.0]], np.float32)
    >>> chosen(line, 3, np.random.default_rng(0), first=1).tolist()  # 9 is 8 away from 1; then 5 is 4 away from both
    [1, 3, 2]
    """
    require(vectors.ndim == 2, "shape of vectors", vectors.shape, "(n, P)")
    rows = np.arange(len(vectors)) if among is None else np.asarray(among, np.int64)
    require(1 <= k <= rows.size, "k", k, f"a whole number of 1 … {rows.size}, the vectors to choose among")
    at = int(rng.integers(rows.size)) if first is None else int(np.searchsorted(rows, first))
    found = at < rows.size and (first is None or rows[at] == first)
    require(found, "first", first, "one of the rows that can be chosen")
    centres = np.empty(k, np.int64)
    near = np.full(rows.size, np.inf)
    for j in range(k):
        centres[j] = rows[at]
        near = np.minimum(near, vectors[centres[j], rows] if known else squared(vectors, rows, centres[j]))
        near[at] = -1  # not again, even where all others lie on a centre
        at = int(near.argmax())
    return centres


def squared(vectors: NDArray[np.floating], rows: Integers, centre: int) -> Floats:
    """Return ‖v_i − v_c‖² of the rows, by differences in 64 bits: nothing cancels, and equal vectors are 0 apart.

    Args:
        vectors: [n, P].
        rows: whose distances are wanted.
        centre: c, a row.

    Raises:
        SettingError: the vectors are not finite.

    >>> squared(np.array([[0.0, 0], [3, 4], [1, 0]]), np.array([1, 2]), 0).tolist()
    [25.0, 1.0]
    """
    total = np.zeros(rows.size)
    with np.errstate(over="ignore", invalid="ignore"):  # said below, with the row
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
            f"vectors: rows {centre} and {bad[0]} are no finite distance apart; leave out what holds numbers that are "
            "not finite, or scale all of them down."
        )
    return total


def squares(vectors: NDArray[np.floating]) -> Floats:
    """Return ‖v_i − v_j‖² of all pairs, [n, n].

    Args:
        vectors: [n, P].

    Raises:
        SettingError: the vectors are not finite.

    >>> squares(np.array([[0.0, 0], [3, 4]])).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    found = np.zeros((len(vectors), len(vectors)))
    for i in range(len(vectors) - 1):
        rows = np.arange(i + 1, len(vectors))
        found[i, rows] = found[rows, i] = squared(vectors, rows, i)
    return found


def refilled(left: Integers, n: int, k: int) -> Integers:
    """Return who can be chosen: those who are left; all n where these are fewer than k.

    Args:
        left: rows that are left, ascending.
        n: how many rows there are.
        k: how many will be chosen.

    >>> refilled(np.array([2, 5]), 6, 2).tolist(), refilled(np.array([5]), 6, 2).tolist()
    ([2, 5], [0, 1, 2, 3, 4, 5])
    """
    return left if left.size >= k else np.arange(n)


def taken(vectors: NDArray[np.floating], left: Integers, k: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
    """Return k rows that lie far apart, and who is left without them: ⌊n/k⌋ rounds make a pass, then all are back.

    What n mod k leaves over, those who lie nearest to the others, misses its pass. Wang, Kaplan, Niu, Li, "Optimizing
    Federated Learning on Non-IID Data with Reinforcement Learning" (FAVOR), IEEE INFOCOM 2020, whose K-Center baseline
    this is.

    Args:
        vectors: [n, P].
        left: rows that are left, ascending; all are put back where these are fewer than k.
        k: how many are chosen.
        rng: of the first one.

    Raises:
        SettingError: as :func:`chosen`.

    >>> line = np.array([[0.0], [1.0], [5.0], [9.0]])
    >>> one, left = taken(line, np.array([1, 2, 3]), 2, np.random.default_rng(0))
    >>> sorted({*one.tolist(), *left.tolist()}), left.size
    ([1, 2, 3], 1)
    """
    pool = refilled(left, len(vectors), k)
    centres = chosen(vectors, k, rng, among=pool)
    return centres, np.setdiff1d(pool, centres)
