"""Purity: how far the groups of a partition are of one kind each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import require

Integers = NDArray[np.int64]


def purity(groups: Integers, kinds: Integers) -> float:
    """Return Σ_g max_c n_{gc}/n, how many are of the most frequent kind of their group; 1: one kind each.

    It rises with the number of groups: where each has one member it is 1. Manning, Raghavan, Schütze, "Introduction to
    Information Retrieval", 2008, Section 16.3.

    Args:
        groups: [n], the group of each.
        kinds: [n], what each is, such as the label it has most of.

    Raises:
        SettingError: nobody there, or not as many groups as kinds.

    >>> purity(np.array([0, 0, 0, 1, 1]), np.array([7, 7, 3, 3, 3]))  # (2 + 2)/5
    0.8
    """
    groups, kinds = np.asarray(groups), np.asarray(kinds)
    require(groups.ndim == 1 and groups.size > 0, "shape of groups", groups.shape, "(n,), with somebody in a group")
    require(groups.shape == kinds.shape, "shape of kinds", kinds.shape, f"{groups.shape}, that of groups")
    pairs, count = np.unique(np.stack([groups, kinds]), axis=1, return_counts=True)
    _, start = np.unique(pairs[0], return_index=True)  # pairs are sorted by group
    return float(np.maximum.reduceat(count, start).sum() / groups.size)
