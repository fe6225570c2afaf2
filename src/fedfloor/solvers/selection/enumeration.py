"""A part of the tree of selections, settled by enumeration (compiled).

Around a continuous solution x̂ with half gradient g, for any μ and every selection x,

    ‖A x − y‖² = ‖A x̂ − y‖² + Σ 2(gᵢ − μ)(xᵢ − x̂ᵢ) + ‖A (x − x̂)‖².

The middle sum is bounded candidate by candidate: deciding one against the sign of gᵢ − μ costs a penalty. The last term
is ‖R (x − x̂)‖² with R triangular, one square for each candidate decided, as in a sphere decoder (Fincke, Pohst, Math.
Comp. 44(170), 1985; for integer quadratic programmes: Buchheim, Caprara, Lodi, Math. Program. 135, 2012). A node of the
tree costs one row of R.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedfloor.solvers.compiled import compiled
from fedfloor.solvers.selection.problem import Floats, Integers
from fedfloor.solvers.selection.relaxation import relax

Signs = NDArray[np.int8]
Table = NDArray[np.float64]
Tables = tuple[Floats, Floats, Table, Integers]
EQUAL = 1e-11  # squared values closer than this (relative) are equal
RIDGE = 1e-10  # of the mean column: makes every AᵀA positive definite; taken off again exactly
SLOPE = 1e-3  # of the largest column: where the relaxation stops
SURE = 0.2  # of the mean column: what a candidate moved all the way is taken to cost, when they are put in order
TINY = 1e-30
CLOSED = -1


@compiled
def penalties(x: Floats, g: Floats, m: int, ridge: float, penalty: Table) -> float:
    """Write what deciding 0 and 1 costs each candidate [n, 2]; return the least of the sum without penalties.

    μ lies between the m-th and the next smallest g. The ridge's part, ridge·(xᵢ − x̂ᵢ)², is taken off.
    """
    ordered = np.sort(g)
    mu = (ordered[m - 1] + ordered[m]) / 2.0
    base = 0.0
    for a in range(len(x)):
        slope = 2.0 * (g[a] - mu)
        zero = -slope * x[a] - ridge * x[a] ** 2
        one = slope * (1.0 - x[a]) - ridge * (1.0 - x[a]) ** 2
        least = min(zero, one)
        penalty[a, 0], penalty[a, 1] = zero - least, one - least
        base += least
    return base


@compiled
def arranged(x: Floats, penalty: Table, weight: float, free: Integers, twin: Integers) -> Integers:
    """Return the order of the candidates, last decided first: those are decided first that are costly to get wrong.

    Of identical columns (``twin`` names the first of them) the first is decided first.
    """
    key = np.empty(len(x))
    for a in range(len(x)):
        key[a] = max(penalty[a, 0], penalty[a, 1]) + weight * max(x[a], 1.0 - x[a]) ** 2
    order = np.argsort(key)
    following = np.zeros(len(twin), np.int64)
    for p in range(len(order) - 1, -1, -1):
        first = twin[free[order[p]]]
        a = following[first]
        while twin[free[a]] != first:
            a += 1
        order[p] = a
        following[first] = a + 1
    return order


@compiled
def factor(G: Floats, order: Integers, ridge: float) -> Floats:
    """Return the Cholesky factor of the squares left when the first candidate of the order takes up Σ (x − x̂) = 0.

    With c its index, entry (p, q) of the matrix is G_pq − G_pc − G_qc + G_cc, plus the ridge.
    """
    n, c = len(order), order[0]
    L = np.zeros((n, n))
    for p in range(1, n):
        i = order[p]
        for q in range(1, p + 1):
            j = order[q]
            total = G[i, j] - G[i, c] - G[j, c] + G[c, c] + ridge
            if p == q:
                total += ridge
            for r in range(1, q):
                total -= L[p, r] * L[q, r]
            L[p, q] = np.sqrt(max(total, ridge)) if p == q else total / L[q, q]
    return L


@compiled
def squared(columns: Floats, y: Floats, chosen: Signs) -> float:
    """Return ‖A x − y‖²; ``columns`` is Aᵀ [N, F]."""
    rest = -y
    for i in range(len(chosen)):
        if chosen[i] == 1:
            rest += columns[i]
    return float(np.sum(rest * rest))


@compiled
def previous(twin: Integers) -> Integers:
    """Return the place of the identical candidate decided just before each, −1: none; of twins in the order."""
    earlier = np.full(len(twin), -1)
    for p in range(len(twin)):
        for q in range(p + 1, len(twin)):
            if twin[q] == twin[p]:
                earlier[p] = q
                break
    return earlier


@compiled
def tempting(before: float, diagonal: float, x: float, penalty: Floats) -> int:
    """Return the value that costs less, which is tried first."""
    zero = (before - diagonal * x) ** 2 + penalty[0]
    return 1 if (before + diagonal * (1.0 - x)) ** 2 + penalty[1] < zero else 0


@compiled
def allowed(v: int, count: int, level: int, m: int, before: int, place: Integers, chosen: Signs) -> bool:
    """Return whether m ones are still possible with ``level`` to decide, and the identical one ``before`` is in too."""
    if count > m or count + level < m:
        return False
    return v == 0 or before < 0 or chosen[place[before]] == 1


@compiled
def enumerated(
    tables: Tables, m: int, base: float, budget: int,
    columns: Floats, y: Floats, place: Integers, chosen: Signs, best: Floats, found: Signs,
) -> tuple[bool, int]:  # fmt: skip
    """Go through what is left of the tree, depth first; return whether the budget did, and the nodes it took.

    Args:
        tables: factor [n, n], continuous solution [n], penalties [n, 2] and :func:`previous`, in the order.
        m, base, budget: how many to choose, bound before anything is decided, nodes.
        place, chosen: the candidate at each place of the order; [N], 1 where chosen outside this part.
        columns, y, best, found: as of :func:`settle`.
    """
    L, x, penalty, earlier = tables
    n = len(x)
    least, sums, ones = np.empty(n + 1), np.zeros((n + 1, n)), np.zeros(n + 1, np.int64)
    tried, first, level = np.zeros(n, np.int8), np.zeros(n, np.int8), n - 1
    least[n], nodes = base, 0
    while level < n and nodes <= budget:
        before = sums[level + 1, level]
        if tried[level] == 0:
            nodes += 1
            first[level] = tempting(before, L[level, level], x[level], penalty[level])
        v = first[level] ^ tried[level]
        tried[level] += 1
        step, ones[level] = v - x[level], ones[level + 1] + v
        least[level] = least[level + 1] + (before + L[level, level] * step) ** 2 + penalty[level, v]
        if least[level] >= best[0] * (1.0 - EQUAL):
            tried[level] = 2  # the other value costs more
        elif allowed(v, ones[level], level, m, earlier[level], place, chosen):
            chosen[place[level]] = v
            if level > 0:
                for q in range(level):  # not as arrays: that takes four times as long
                    sums[level, q] = sums[level + 1, q] + L[level, q] * step
                level -= 1
                tried[level] = 0
            else:
                kept(columns, y, chosen, best, found)
        while level < n and tried[level] == 2:
            level += 1
    return level == n, nodes


@compiled
def twins(columns: Floats, gram: Floats, twin: Integers) -> None:
    """Write the first candidate with the same column for each; ``columns`` is Aᵀ, ``gram`` AᵀA."""
    for i in range(len(twin)):
        twin[i] = i
        for j in range(i):
            same = gram[i, j] == gram[i, i] and gram[j, j] == gram[i, i]  # columns that differ may still pass: rounding
            if same and np.all(columns[i] == columns[j]):
                twin[i] = twin[j]
                break


@compiled
def kept(columns: Floats, y: Floats, chosen: Signs, best: Floats, found: Signs) -> float:
    """Return the squared value of a choice, which is kept if it is the best so far."""
    value = squared(columns, y, chosen)
    if value < best[0]:
        best[0] = value
        found[:] = chosen
    return value


@compiled
def continuous(inside: Floats, G: Floats, rest: Floats, m: int, x: Floats) -> Floats:
    """Write a nearly best continuous solution, make ``rest`` its A x − y, and return its half gradient.

    Args:
        inside: columns of those not decided [n, F].
        G: their Gram matrix.
        rest: what the decided ones leave, A x − y without the others [F].
        m: how many to choose.
        x: takes the solution [n].
    """
    x[:] = m / len(x)
    relax(G, x, inside @ (rest + x @ inside), SLOPE * np.max(np.diag(G)))
    rest += x @ inside
    return inside @ rest


@compiled
def settle(
    columns: Floats, gram: Floats, y: Floats, twin: Integers, fixed: Signs, k: int, budget: int,
    best: Floats, found: Signs,
) -> tuple[float, int, int]:  # fmt: skip
    """Bound a part of the tree and, if the budget does, settle it.

    Args:
        columns, gram, y: Aᵀ [N, F], AᵀA [N, N], y [F].
        twin: the first candidate with the same column [N].
        fixed: 0 or 1 where decided, −1 elsewhere [N].
        k: how many to choose in all.
        budget: nodes.
        best, found: the least squared value so far [1] and its choice [N]; improved in place.

    Returns:
        a bound on the squared values of this part; the candidate to branch on, −1: nothing better is in this part; and
        the nodes it took.
    """
    free, chosen = np.flatnonzero(fixed < 0), fixed.copy()
    n, m = len(free), k - np.sum(fixed == 1)
    if m < 0 or m > n:
        return np.inf, CLOSED, 0
    if m in (0, n):
        chosen[free] = 1 if m else 0
        return kept(columns, y, chosen, best, found), CLOSED, 0
    inside, G, rest = columns[free], gram[free][:, free].copy(), -y
    for i in np.flatnonzero(fixed == 1):
        rest += columns[i]
    x, penalty, ridge = np.empty(n), np.empty((n, 2)), RIDGE * max(np.trace(G) / n, TINY)
    g = continuous(inside, G, rest, m, x)
    base = np.sum(rest * rest) + penalties(x, g, m, ridge, penalty)
    if base >= best[0] * (1.0 - EQUAL):
        return base, CLOSED, 0
    order = arranged(x, penalty, SURE * np.trace(G) / n, free, twin)
    tables = factor(G, order, ridge), x[order], penalty[order], previous(twin[free[order]])
    done, nodes = enumerated(tables, m, base, budget, columns, y, free[order], chosen, best, found)
    return base, CLOSED if done else free[np.argmin(np.abs(x - 0.5))], nodes
