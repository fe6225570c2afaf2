"""The continuous relaxation of a selection (compiled): shares of candidates instead of candidates.

min ‖A x − y‖² over 0 ≤ x ≤ 1, Σ x = m. A step moves weight between two candidates, the way that gains most for the one
with the smallest gradient (Fan, Chen, Lin, JMLR 6, 2005: second-order working sets). Any x will do for a valid bound,
so it may stop early.
"""

from __future__ import annotations

from fedfloor.solvers.compiled import compiled
from fedfloor.solvers.selection.problem import Floats

STEPS = 30  # at most, times the candidates
TINY = 1e-12


@compiled
def relax(G: Floats, x: Floats, g: Floats, gap: float) -> int:
    """Improve x in place until no exchange has a slope above ``gap``; return the steps taken.

    Args:
        G: AᵀA [n, n].
        x: where to start, feasible [n].
        g: half the gradient there, Aᵀ(A x − y) [n]; kept up to date.
        gap: largest difference of half gradients that is left alone.
    """
    n = len(x)
    for step in range(STEPS * n):
        i = -1
        for a in range(n):
            if x[a] < 1.0 - TINY and (i < 0 or g[a] < g[i]):
                i = a
        j, most, steepest = -1, 0.0, 0.0
        for a in range(n):
            slope = g[a] - g[i]
            if x[a] > TINY and slope > 0.0:
                steepest = max(steepest, slope)
                gain = slope * slope / max(G[i, i] + G[a, a] - 2.0 * G[i, a], TINY)
                if gain > most:
                    j, most = a, gain
        if j < 0 or steepest <= gap:
            return step
        move = min((g[j] - g[i]) / max(G[i, i] + G[j, j] - 2.0 * G[i, j], TINY), 1.0 - x[i], x[j])
        x[i] += move
        x[j] -= move
        for a in range(n):
            g[a] += move * (G[i, a] - G[j, a])
    return STEPS * n
