"""All subsets of one size (compiled): the sum of squares grows by one entry for each candidate that is added."""

from __future__ import annotations

import numpy as np

from fedfloor.solvers.compiled import compiled
from fedfloor.solvers.selection.problem import Floats, Integers


@compiled
def best_subset(G: Floats, c: Floats, k: int, choice: Integers) -> None:
    """Write the subset with the least xᵀG x − 2cᵀx.

    Adding i to a set adds Gᵢᵢ − 2cᵢ + 2 Σ Gᵢⱼ over those in it; a row of these is kept for every size, and of the last
    candidate only the least entry of the row is looked for.

    Args:
        G: AᵀA [N, N].
        c: Aᵀy [N].
        k: size, 1 … N.
        choice: takes the subset [k].
    """
    n = len(c)
    added, sums, at = np.empty((k, n)), np.zeros(k), np.zeros(k, np.int64)
    for i in range(n):
        added[0, i] = G[i, i] - 2.0 * c[i]
    best, level = np.inf, 0
    while level >= 0:
        i = at[level]
        if level == k - 1:
            low = added[level, i]
            for j in range(i + 1, n):
                low = min(low, added[level, j])
            if sums[level] + low < best:
                best = sums[level] + low
                while added[level, at[level]] != low:
                    at[level] += 1
                choice[:] = at
        elif i <= n - k + level:
            sums[level + 1] = sums[level] + added[level, i]
            for j in range(i + 1, n):
                added[level + 1, j] = added[level, j] + 2.0 * G[i, j]
            level += 1
            at[level] = i + 1
            continue
        level -= 1
        if level >= 0:
            at[level] += 1
