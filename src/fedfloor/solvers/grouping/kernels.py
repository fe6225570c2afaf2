"""Exchanges between two groups, on the products of their devices' counts, and Astraea's greedy choice (compiled)."""

from __future__ import annotations

import numpy as np

from fedfloor.solvers.compiled import compiled
from fedfloor.solvers.grouping.problem import Floats, Integers


@compiled
def off(square: float, total: float, along: float, centre: float) -> float:
    """Return ‖S/n − c‖² from ‖S‖², n, S·c and ‖c‖²; ‖c‖² where n is 0."""
    return square / (total * total) - 2.0 * along / total + centre if total > 0.0 else centre


@compiled
def between(
    G: Floats, total: Floats, along: Floats, centre: float, gain: float, a: Integers, b: Integers, reserve: bool
) -> int:
    """Make the best exchange between two groups for as long as one gains; return how many were made.

    With S the sum of a group's counts, device j for i changes ‖S‖² by 2(S·V_j − S·V_i) + ‖V_j − V_i‖²: a few numbers
    that are kept, however many classes there are.

    Args:
        G: products of the devices' counts, V_k·V_k′.
        total, along: samples ΣV_k, and V_k·c of each device.
        centre: ‖c‖².
        gain: of Σ‖p_m − c‖²; a smaller one is rounding.
        a, b: the groups' devices, rows of G; changed in place.
        reserve: b is no group, but devices that are left out.
    """
    A, B = len(a), len(b)
    Sa, Sb = np.zeros(A + B), np.zeros(A + B)  # what a and b have in common with the devices of both
    ids = np.concatenate((a, b))
    for p in range(A + B):
        for q in range(A):
            Sa[p] += G[ids[p], a[q]]
        for q in range(B):
            Sb[p] += G[ids[p], b[q]]
    Qa, Qb = Sa[:A].sum(), Sb[A:].sum()
    na, nb, ra, rb = total[a].sum(), total[b].sum(), along[a].sum(), along[b].sum()
    for made in range(A + B):  # an end, whatever rounding does
        before = off(Qa, na, ra, centre) + (0.0 if reserve else off(Qb, nb, rb, centre))
        least, x, y = before - gain, -1, -1
        for p in range(A):
            i = a[p]
            for q in range(B):
                j = b[q]
                apart = G[i, i] + G[j, j] - 2.0 * G[i, j]
                more, turn = total[j] - total[i], along[j] - along[i]
                after = off(Qa + 2.0 * (Sa[A + q] - Sa[p]) + apart, na + more, ra + turn, centre)
                if not reserve:
                    after += off(Qb + 2.0 * (Sb[p] - Sb[A + q]) + apart, nb - more, rb - turn, centre)
                if after < least:
                    least, x, y = after, p, q
        if x < 0:
            return made
        i, j = a[x], b[y]
        apart = G[i, i] + G[j, j] - 2.0 * G[i, j]
        Qa += 2.0 * (Sa[A + y] - Sa[x]) + apart
        Qb += 2.0 * (Sb[x] - Sb[A + y]) + apart
        na, nb = na + total[j] - total[i], nb - total[j] + total[i]
        ra, rb = ra + along[j] - along[i], rb - along[j] + along[i]
        a[x], b[y] = j, i
        ids[x], ids[A + y] = j, i
        Sa[x], Sa[A + y] = Sa[A + y], Sa[x]
        Sb[x], Sb[A + y] = Sb[A + y], Sb[x]
        for p in range(A + B):
            step = G[ids[p], j] - G[ids[p], i]
            Sa[p] += step
            Sb[p] -= step
    return A + B


@compiled
def meetings(
    x: Floats,
    G: Floats,
    total: Floats,
    along: Floats,
    centre: float,
    gain: float,
    slots: Integers,
    short: int,
    groups: int,
    order: Integers,
) -> int:
    """Let groups meet two by two, and exchange; return how many exchanges were made.

    Args:
        x: counts [K, F].
        G: X Xᵀ [K, K]; empty: the products are computed for each meeting.
        total, along, centre, gain: as :func:`between`'s, of all devices.
        slots: devices of the groups and, behind them, of those left out, cut alike [P, L]; changed in place.
        short: devices in the last row.
        groups: M, the rows that are groups.
        order: [rounds, P], a permutation of rows a round: the first meets the second, the third the fourth.
    """
    P, L = slots.shape
    made = 0
    for turn in range(len(order)):
        for at in range(P // 2):
            one, other = order[turn, 2 * at], order[turn, 2 * at + 1]
            one, other = min(one, other), max(one, other)
            if one >= groups:
                continue
            a, b = slots[one], slots[other, : (short if other == P - 1 else L)]
            if len(G):
                made += between(G, total, along, centre, gain, a, b, other >= groups)
                continue
            ids = np.concatenate((a, b))
            near, far = np.arange(L), np.arange(L, len(ids))
            own = x[ids]
            made += between(own @ own.T, total[ids], along[ids], centre, gain, near, far, other >= groups)
            a[:], b[:] = ids[near], ids[far]
    return made


@compiled
def mediators(counts: Floats, choice: Integers) -> None:
    """Fill the groups one after the other with the device that brings Σ p ln p down most.

    Args:
        counts: [K, F].
        choice: [M, L]; overwritten.
    """
    K, F = counts.shape
    left = np.ones(K, np.bool_)
    total = counts.sum(1)
    for m in range(len(choice)):
        held, n = np.zeros(F), 0.0
        for place in range(choice.shape[1]):
            best, least = -1, np.inf
            for k in range(K):
                if not left[k]:
                    continue
                whole, score = n + total[k], np.inf
                if whole > 0.0:
                    score = -np.log(whole)
                    for f in range(F):
                        v = held[f] + counts[k, f]
                        if v > 0.0:
                            score += v / whole * np.log(v)
                if best < 0 or score < least:
                    best, least = k, score
            choice[m, place] = best
            left[best] = False
            held += counts[best]
            n += total[best]
