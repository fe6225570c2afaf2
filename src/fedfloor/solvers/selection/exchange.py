"""Exchanges on the Gram matrix G = AᵀA (compiled).

With g = G x − Aᵀy, taking i in for j changes ‖A x − y‖² by 2(gᵢ − gⱼ) + Gᵢᵢ + Gⱼⱼ − 2Gᵢⱼ: one look at a table, however
many classes there are. GBP-CS takes the i and the j that are best by gᵢ and gⱼ alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedfloor.solvers.compiled import compiled
from fedfloor.solvers.selection.problem import Floats, Integers

Flags = NDArray[np.bool_]
GAIN = 1e-11  # of the largest column's square: a smaller gain is rounding


@compiled
def greedy(columns: Floats, y: Floats, k: int, x: Flags) -> None:
    """Set the k candidates one after the other that bring the sum nearest to a growing target, y·c/k for the c-th.

    Args:
        columns: Aᵀ [N, F].
        y: target [F].
        k: how many.
        x: all False [N]; changed in place.
    """
    n, classes = columns.shape
    held, wanted, half = np.zeros(n), columns @ y, np.zeros(n)  # Aᵀ(A x), Aᵀy, half the squares
    for i in range(n):
        for f in range(classes):
            half[i] += columns[i, f] ** 2 / 2.0
    for c in range(1, k + 1):
        best, least = -1, np.inf
        for i in range(n):
            cost = held[i] + half[i] - wanted[i] * c / k
            if not x[i] and cost < least:
                best, least = i, cost
        x[best] = True
        held += columns @ columns[best]


@compiled
def exchange(G: Floats, g: Floats, inside: Integers, outside: Integers, a: int, b: int) -> None:
    """Take ``outside[b]`` in for ``inside[a]``; keeps g = G x − Aᵀy."""
    j, i = inside[a], outside[b]
    for p in range(len(g)):
        g[p] += G[i, p] - G[j, p]
    inside[a], outside[b] = i, j


@compiled
def change(G: Floats, g: Floats, i: int, j: int) -> float:
    """Return what the square changes by when i is taken in for j."""
    return float(2.0 * (g[i] - g[j]) + G[i, i] + G[j, j] - 2.0 * G[i, j])


@compiled
def descend(G: Floats, g: Floats, inside: Integers, outside: Integers, gain: float) -> float:
    """Make the best exchange for as long as one gains more than ``gain``; return the change of the square."""
    total = 0.0
    while True:
        best, a, b = -gain, -1, -1
        for p in range(len(inside)):
            j = inside[p]
            least = 2.0 * g[j] - G[j, j] + best  # what the rest of the change must lie below
            for q in range(len(outside)):
                i = outside[q]
                rest = 2.0 * (g[i] - G[j, i]) + G[i, i]
                if rest < least:
                    least, a, b = rest, p, q
            best = least + G[j, j] - 2.0 * g[j]
        if a < 0:
            return total
        total += best
        exchange(G, g, inside, outside, a, b)


@compiled
def kicked(G: Floats, g: Floats, inside: Integers, outside: Integers, kicks: Floats) -> None:
    """Descend; then, for every row of ``kicks``, make random exchanges, descend, and stay if that is no worse.

    Args:
        G, g: the Gram matrix and the half gradient [N], kept up to date.
        inside, outside: the chosen [k] and the others [N − k]; changed in place.
        kicks: [K, E, 2], in 0 … 1: which candidates the E exchanges of each kick take.
    """
    gain = GAIN * np.max(np.diag(G))
    descend(G, g, inside, outside, gain)
    kept, others, gradient = inside.copy(), outside.copy(), g.copy()
    for kick in kicks:
        total = 0.0
        for e in range(len(kick)):
            a, b = int(kick[e, 0] * len(inside)), int(kick[e, 1] * len(outside))
            total += change(G, g, outside[b], inside[a])
            exchange(G, g, inside, outside, a, b)
        total += descend(G, g, inside, outside, gain)
        if total <= 0.0:
            kept[:], others[:], gradient[:] = inside, outside, g
        else:
            inside[:], outside[:], g[:] = kept, others, gradient


@compiled
def first(columns: Floats, G: Floats, y: Floats, k: int) -> Integers:
    """Return the choice of one descent from :func:`greedy`'s, ascending.

    Args:
        columns, G, y: Aᵀ [N, F], AᵀA [N, N], target [F].
        k: how many, 1 … N − 1.
    """
    x, g = np.zeros(len(columns), np.bool_), -(columns @ y)
    greedy(columns, y, k, x)
    inside, outside = np.flatnonzero(x), np.flatnonzero(~x)
    for j in inside:
        g += G[j]
    descend(G, g, inside, outside, GAIN * np.max(np.diag(G)))
    return np.sort(inside)


@compiled
def best_pair(products: Floats, enter: Floats, leave: Floats) -> tuple[float, int, int]:
    """Return the least of enter[i] + leave[j] − 2·products[j, i], with j and i."""
    least, a, b = np.inf, -1, -1
    for j in range(len(leave)):
        low = np.inf
        for i in range(len(enter)):
            low = min(low, enter[i] - 2.0 * products[j, i])
        if low + leave[j] < least:
            least, a = low + leave[j], j
    for i in range(len(enter)):
        if enter[i] - 2.0 * products[a, i] + leave[a] == least:
            b = i
    return least, a, b
