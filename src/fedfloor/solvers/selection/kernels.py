"""Compiled kernels of the selection: exchanges, enumeration of subsets, and branch and bound.

**Exchanges on the Gram matrix** G = AᵀA. With g = G x − Aᵀy, replacing j by i changes ‖A x − y‖² by 2(gᵢ − gⱼ) + Gᵢᵢ +
Gⱼⱼ − 2Gᵢⱼ: one look-up, whatever the number of classes. GBP-CS takes the best i and j by gᵢ and gⱼ alone.

**Branch and bound.** Around a continuous solution x̂ with half gradient g, for any μ and every selection x,

    ‖A x − y‖² = ‖A x̂ − y‖² + Σ 2(gᵢ − μ)(xᵢ − x̂ᵢ) + ‖A (x − x̂)‖².

The middle sum is bounded candidate by candidate: a decision against the sign of gᵢ − μ costs a penalty. The last term
is ‖R (x − x̂)‖² with a triangular R, one square per decided candidate, as in a sphere decoder (Fincke, Pohst, Math.
Comp. 44(170), 1985; for integer quadratic programmes: Buchheim, Caprara, Lodi, Math. Program. 135, 2012). A node of the
tree costs one row of R.

Shapes: ``columns`` is Aᵀ [N, F], ``G`` or ``gram`` AᵀA [N, N], ``y`` the target [F]; N candidates, F classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedfloor.solvers.solution import Floats, Integers, compiled

Flags = NDArray[np.bool_]
GAIN = 1e-11  # share of the largest column's square: smaller gains are rounding errors
ROUNDING = 8 * 2.0**-52  # share of the largest |g|: the same, if the target is far from all sums


@compiled
def greedy(columns: Floats, y: Floats, k: int, x: Flags) -> None:
    """Set k candidates in x [N], each time the one that brings the sum nearest to the growing target y·c/k."""
    n, classes = columns.shape
    # Aᵀ(A x), Aᵀy, half the squares
    held = np.zeros(n)
    wanted = columns @ y
    half = np.zeros(n)
    for i in range(n):
        for f in range(classes):
            half[i] += columns[i, f] ** 2 / 2.0
    for c in range(1, k + 1):
        best = -1
        least = np.inf
        for i in range(n):
            cost = held[i] + half[i] - wanted[i] * c / k
            if not x[i] and cost < least:
                best = i
                least = cost
        x[best] = True
        held += columns @ columns[best]


@compiled
def exchange(G: Floats, g: Floats, inside: Integers, outside: Integers, a: int, b: int) -> None:
    """Replace ``inside[a]`` by ``outside[b]`` and update g = G x − Aᵀy."""
    j, i = inside[a], outside[b]
    for p in range(len(g)):
        g[p] += G[i, p] - G[j, p]
    inside[a] = i
    outside[b] = j


@compiled
def change(G: Floats, g: Floats, i: int, j: int) -> float:
    """Return the change of the square when j is replaced by i."""
    return float(2.0 * (g[i] - g[j]) + G[i, i] + G[j, j] - 2.0 * G[i, j])


@compiled
def descend(G: Floats, g: Floats, inside: Integers, outside: Integers, gain: float) -> float:
    """Make best exchanges while each gains more than ``gain``; return the change of the square."""
    total = 0.0
    gain = max(gain, ROUNDING * np.max(np.abs(g)))
    for _ in range(1000 * len(g)):  # an end, whatever rounding does
        best = -gain
        a = -1
        b = -1
        for p in range(len(inside)):
            j = inside[p]
            least = 2.0 * g[j] - G[j, j] + best  # upper bound of the remaining change
            for q in range(len(outside)):
                i = outside[q]
                rest = 2.0 * (g[i] - G[j, i]) + G[i, i]
                if rest < least:
                    least = rest
                    a = p
                    b = q
            best = least + G[j, j] - 2.0 * g[j]
        if a < 0:
            return total
        total += best
        exchange(G, g, inside, outside, a, b)
    return total


@compiled
def iterated_descent(G: Floats, g: Floats, inside: Integers, outside: Integers, kicks: Floats) -> None:
    """Descend; per row of ``kicks`` [K, E, 2] in 0 … 1 make E random exchanges, descend, and keep no worse result."""
    gain = GAIN * np.max(np.diag(G))
    descend(G, g, inside, outside, gain)
    kept = inside.copy()
    others = outside.copy()
    gradient = g.copy()
    for kick in kicks:
        total = 0.0
        for e in range(len(kick)):
            a, b = int(kick[e, 0] * len(inside)), int(kick[e, 1] * len(outside))
            total += change(G, g, outside[b], inside[a])
            exchange(G, g, inside, outside, a, b)
        total += descend(G, g, inside, outside, gain)
        if total <= 0.0:
            kept[:] = inside
            others[:] = outside
            gradient[:] = g
        else:
            inside[:] = kept
            outside[:] = others
            g[:] = gradient


@compiled
def descended(columns: Floats, G: Floats, y: Floats, k: int) -> Integers:
    """Return the choice after a descent from the choice of :func:`greedy`, ascending."""
    x = np.zeros(len(columns), np.bool_)
    g = -(columns @ y)
    greedy(columns, y, k, x)
    inside = np.flatnonzero(x)
    outside = np.flatnonzero(~x)
    for j in inside:
        g += G[j]
    descend(G, g, inside, outside, GAIN * np.max(np.diag(G)))
    return np.sort(inside)


@compiled
def best_pair(products: Floats, enter: Floats, leave: Floats) -> tuple[float, int, int]:
    """Return the least enter[i] + leave[j] − 2·products[j, i], with j and i."""
    least = np.inf
    a = -1
    b = -1
    for j in range(len(leave)):
        low = np.inf
        for i in range(len(enter)):
            low = min(low, enter[i] - 2.0 * products[j, i])
        if low + leave[j] < least:
            least = low + leave[j]
            a = j
    for i in range(len(enter)):
        if enter[i] - 2.0 * products[a, i] + leave[a] == least:
            b = i
    return least, a, b


@compiled
def best_subset(G: Floats, c: Floats, k: int, choice: Integers) -> None:
    """Write into ``choice`` [k] the subset with the least xᵀG x − 2cᵀx, c = Aᵀy.

    Adding i to a set adds Gᵢᵢ − 2cᵢ + 2 Σ Gᵢⱼ over its members. A row of these sums is stored for every size, and the
    last candidate only needs the least entry of its row.
    """
    n = len(c)
    added = np.empty((k, n))
    sums = np.zeros(k)
    at = np.zeros(k, np.int64)
    for i in range(n):
        added[0, i] = G[i, i] - 2.0 * c[i]
    best = np.inf
    level = 0
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


STEPS = 30  # greatest number of steps, times the candidates
FLAT = 1e-12  # smaller shares and curvatures count as 0


@compiled
def relax(G: Floats, x: Floats, g: Floats, gap: float) -> int:
    """Solve min ‖A x − y‖², 0 ≤ x ≤ 1, Σ x = m in place until no exchange has a slope above ``gap``; return the steps.

    ``g`` is half the gradient. A step moves weight between two candidates: the one with the smallest gradient, and its
    best partner (second-order working sets: Fan, Chen, Lin, JMLR 6, 2005). Every x gives a valid bound, so that an
    early end is allowed.
    """
    n = len(x)
    for step in range(STEPS * n):
        i = -1
        for a in range(n):
            if x[a] < 1.0 - FLAT and (i < 0 or g[a] < g[i]):
                i = a
        j = -1
        most = 0.0
        steepest = 0.0
        for a in range(n):
            slope = g[a] - g[i]
            if x[a] > FLAT and slope > 0.0:
                steepest = max(steepest, slope)
                gain = slope * slope / max(G[i, i] + G[a, a] - 2.0 * G[i, a], FLAT)
                if gain > most:
                    j = a
                    most = gain
        if j < 0 or steepest <= gap:
            return step
        move = min((g[j] - g[i]) / max(G[i, i] + G[j, j] - 2.0 * G[i, j], FLAT), 1.0 - x[i], x[j])
        x[i] += move
        x[j] -= move
        for a in range(n):
            g[a] += move * (G[i, a] - G[j, a])
    return STEPS * n


Signs = NDArray[np.int8]
Table = NDArray[np.float64]
Tables = tuple[Floats, Floats, Table, Integers]
EQUAL = 1e-11  # squared values with a smaller relative difference are equal
RIDGE = 1e-10  # share of the mean column: makes every AᵀA positive definite, and is subtracted again exactly
SLOPE = 1e-3  # share of the largest column at which the relaxation stops
SURE = 0.2  # share of the mean column: the assumed cost of a candidate's full move, for the branching order
TINY = 1e-30
CLOSED = -1


@compiled
def decision_penalties(x: Floats, g: Floats, m: int, ridge: float, penalty: Table) -> float:
    """Write the penalties of the decisions 0 and 1 [n, 2]; return the least sum without penalties.

    μ is between the m-th and the next smallest g. The ridge's part, ridge·(xᵢ − x̂ᵢ)², is subtracted.
    """
    ordered = np.sort(g)
    mu = (ordered[m - 1] + ordered[m]) / 2.0
    base = 0.0
    for a in range(len(x)):
        slope = 2.0 * (g[a] - mu)
        skip_cost = -slope * x[a] - ridge * x[a] ** 2
        take_cost = slope * (1.0 - x[a]) - ridge * (1.0 - x[a]) ** 2
        least = min(skip_cost, take_cost)
        penalty[a, 0] = skip_cost - least
        penalty[a, 1] = take_cost - least
        base += least
    return base


@compiled
def branching_order(x: Floats, penalty: Table, weight: float, free: Integers, twin: Integers) -> Integers:
    """Return the candidates, last decided first: those with the most expensive wrong decision are decided first.

    Among identical columns (``twin`` gives the first of them) the first is decided first.
    """
    key = np.empty(len(x))
    for a in range(len(x)):
        key[a] = max(penalty[a, 0], penalty[a, 1]) + weight * max(x[a], 1.0 - x[a]) ** 2
    order = np.argsort(key)
    following = np.zeros(len(twin), np.int64)
    for p in range(len(order) - 1, -1, -1):
        representative = twin[free[order[p]]]
        a = following[representative]
        while twin[free[a]] != representative:
            a += 1
        order[p] = a
        following[representative] = a + 1
    return order


@compiled
def factor(G: Floats, order: Integers, ridge: float) -> Floats:
    """Return the Cholesky factor of the remaining squares if the first candidate of the order balances Σ (x − x̂) = 0.

    With c its index, entry (p, q) of the matrix is G_pq − G_pc − G_qc + G_cc, plus the ridge.
    """
    n = len(order)
    c = order[0]
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
def previous_twin(twin: Integers) -> Integers:
    """Return for each place of the order the place of the identical candidate decided just before; −1: none."""
    earlier = np.full(len(twin), -1)
    for p in range(len(twin)):
        for q in range(p + 1, len(twin)):
            if twin[q] == twin[p]:
                earlier[p] = q
                break
    return earlier


@compiled
def feasible(v: int, count: int, level: int, m: int, before: int, place: Integers, chosen: Signs) -> bool:
    """Return whether m ones are possible with ``level`` candidates left, and an identical ``before`` is chosen, too."""
    if count > m or count + level < m:
        return False
    return v == 0 or before < 0 or chosen[place[before]] == 1


@compiled
def enumerate_subtree(
    tables: Tables, m: int, base: float, budget: int,
    columns: Floats, y: Floats, place: Integers, chosen: Signs, best: Floats, incumbent: Signs,
) -> tuple[bool, int]:  # fmt: skip
    """Enumerate the rest of the tree, depth first; return whether the budget was enough, and the visited nodes.

    ``tables`` holds factor [n, n], continuous solution [n], penalties [n, 2] and :func:`previous_twin`, in the order;
    ``place`` holds the candidate at each place; ``chosen`` [N] is 1 for candidates chosen outside this subtree.
    """
    L, x, penalty, earlier = tables
    n = len(x)
    least = np.empty(n + 1)
    sums = np.zeros((n + 1, n))
    ones = np.zeros(n + 1, np.int64)
    tried = np.zeros(n, np.int8)
    preferred = np.zeros(n, np.int8)
    level = n - 1
    least[n] = base
    nodes = 0
    while level < n and nodes <= budget:
        before = sums[level + 1, level]
        if tried[level] == 0:
            nodes += 1
            zero = (before - L[level, level] * x[level]) ** 2 + penalty[level, 0]  # the smaller cost is first
            preferred[level] = (before + L[level, level] * (1.0 - x[level])) ** 2 + penalty[level, 1] < zero
        v = preferred[level] ^ tried[level]
        tried[level] += 1
        step = v - x[level]
        ones[level] = ones[level + 1] + v
        least[level] = least[level + 1] + (before + L[level, level] * step) ** 2 + penalty[level, v]
        if least[level] >= best[0] * (1.0 - EQUAL):
            tried[level] = 2  # the other value costs more
        elif feasible(v, ones[level], level, m, earlier[level], place, chosen):
            chosen[place[level]] = v
            if level > 0:
                for q in range(level):  # loops, as array operations take four times as long
                    sums[level, q] = sums[level + 1, q] + L[level, q] * step
                level -= 1
                tried[level] = 0
            else:
                keep_best(columns, y, chosen, best, incumbent)
        while level < n and tried[level] == 2:
            level += 1
    return level == n, nodes


@compiled
def twins(columns: Floats, gram: Floats, twin: Integers) -> None:
    """Write for each candidate the first candidate with the same column."""
    for i in range(len(twin)):
        twin[i] = i
        for j in range(i):
            same = gram[i, j] == gram[i, i] and gram[j, j] == gram[i, i]  # others may pass by rounding
            if same and np.all(columns[i] == columns[j]):
                twin[i] = twin[j]
                break


@compiled
def keep_best(columns: Floats, y: Floats, chosen: Signs, best: Floats, incumbent: Signs) -> float:
    """Return ‖A x − y‖² of a choice, and store the choice if it is the best so far."""
    rest = -y
    for i in range(len(chosen)):
        if chosen[i] == 1:
            rest += columns[i]
    value = float(np.sum(rest * rest))
    if value < best[0]:
        best[0] = value
        incumbent[:] = chosen
    return value


@compiled
def settle_subtree(
    columns: Floats, gram: Floats, y: Floats, twin: Integers, fixed: Signs, k: int, budget: int,
    best: Floats, incumbent: Signs,
) -> tuple[float, int, int]:  # fmt: skip
    """Bound a subtree and, if the budget is enough, search it completely.

    ``fixed`` [N] is 0 or 1 for decided candidates, else −1; k is the total number to choose. ``best`` [1] and
    ``incumbent`` [N] are improved in place. Return a bound on the squared values of the subtree; the candidate to
    branch on, −1 if the subtree has nothing better; and the number of visited nodes.
    """
    free = np.flatnonzero(fixed < 0)
    chosen = fixed.copy()
    n, m = len(free), k - np.sum(fixed == 1)
    if m < 0 or m > n:
        return np.inf, CLOSED, 0
    if m in (0, n):
        chosen[free] = 1 if m else 0
        return keep_best(columns, y, chosen, best, incumbent), CLOSED, 0
    inside = columns[free]
    G = gram[free][:, free].copy()
    rest = -y
    for i in np.flatnonzero(fixed == 1):
        rest += columns[i]
    x = np.empty(n)
    penalty = np.empty((n, 2))
    ridge = RIDGE * max(np.trace(G) / n, TINY)
    x[:] = m / n
    relax(G, x, inside @ (rest + x @ inside), SLOPE * np.max(np.diag(G)))
    rest += x @ inside
    g = inside @ rest
    base = np.sum(rest * rest) + decision_penalties(x, g, m, ridge, penalty)
    if base >= best[0] * (1.0 - EQUAL):
        return base, CLOSED, 0
    order = branching_order(x, penalty, SURE * np.trace(G) / n, free, twin)
    tables = factor(G, order, ridge), x[order], penalty[order], previous_twin(twin[free[order]])
    done, nodes = enumerate_subtree(tables, m, base, budget, columns, y, free[order], chosen, best, incumbent)
    return base, CLOSED if done else free[np.argmin(np.abs(x - 0.5))], nodes
