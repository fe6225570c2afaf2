"""Compiled kernels of the grouping: exchanges between groups, Astraea's greedy choice, and balanced assignment.

**Assignment** of points to clusters of equal size at the least cost is a flow whose dual has one price per cluster.
With any prices, each point in its cheapest cluster is the best assignment for the resulting sizes. Points then move
along shortest paths from clusters with too many points to clusters with too few, and the prices follow (successive
shortest paths: Ahuja, Magnanti, Orlin, "Network Flows", 1993, section 9.7). Costs are not rounded to whole numbers,
unlike in OR-Tools' flows, which the k-means of HFedMS's reference code uses.
"""

from __future__ import annotations

import numpy as np

from fedfloor.solvers.solution import Floats, Integers, compiled


@compiled
def squared_deviation(square: float, total: float, along: float, centre: float) -> float:
    """Return ‖S/n − c‖² from ‖S‖², n, S·c and ‖c‖²; ‖c‖² if n is 0."""
    return square / (total * total) - 2.0 * along / total + centre if total > 0.0 else centre


@compiled
def products_with_sum(G: Floats, ids: Integers, group: Integers) -> Floats:
    """Return S·V_k for each device k of ``ids``, where S is the sum of a group's counts; ``G``: all V_k·V_k′."""
    products = np.zeros(len(ids))
    for p in range(len(ids)):
        for q in range(len(group)):
            products[p] += G[ids[p], group[q]]
    return products


@compiled
def swap(
    G: Floats, a: Integers, b: Integers, ids: Integers, Sa: Floats, Sb: Floats, x: int, y: int
) -> None:  # fmt: skip
    """Exchange devices a[x] and b[y] of two groups, and renew ``Sa``, ``Sb``: S·V_k of the devices ``ids``, a and b."""
    A = len(a)
    i = a[x]
    j = b[y]
    a[x] = j
    b[y] = i
    ids[x] = j
    ids[A + y] = i
    Sa[x], Sa[A + y] = Sa[A + y], Sa[x]
    Sb[x], Sb[A + y] = Sb[A + y], Sb[x]
    for p in range(len(ids)):
        step = G[ids[p], j] - G[ids[p], i]
        Sa[p] += step
        Sb[p] -= step


@compiled
def exchange_between(
    G: Floats, total: Floats, along: Floats, centre: float, gain: float, a: Integers, b: Integers, reserve: bool
) -> int:
    """Make best exchanges between two groups while each lowers Σ‖p_m − c‖² by more than ``gain``; return their number.

    With S the sum of a group's counts, device j in place of i changes ‖S‖² by 2(S·V_j − S·V_i) + ‖V_j − V_i‖².
    ``G``: V_k·V_k′ of all devices. ``total``, ``along``: ΣV_k and V_k·c of each device. ``centre``: ‖c‖². ``a``, ``b``:
    the groups' devices, rows of G, changed in place. ``reserve``: whether b are the devices in no group.
    """
    A = len(a)
    B = len(b)
    ids = np.concatenate((a, b))
    Sa = products_with_sum(G, ids, a)
    Sb = products_with_sum(G, ids, b)
    Qa = Sa[:A].sum()
    Qb = Sb[A:].sum()
    na = total[a].sum()
    nb = total[b].sum()
    ra = along[a].sum()
    rb = along[b].sum()
    for made in range(A + B):  # ends in spite of rounding errors
        # the pair whose exchange leaves the least
        before = squared_deviation(Qa, na, ra, centre) + (0.0 if reserve else squared_deviation(Qb, nb, rb, centre))
        least = before - gain
        x = -1
        y = -1
        for p in range(A):
            i = a[p]
            for q in range(B):
                j = b[q]
                apart = G[i, i] + G[j, j] - 2.0 * G[i, j]
                more = total[j] - total[i]
                turn = along[j] - along[i]
                after = squared_deviation(Qa + 2.0 * (Sa[A + q] - Sa[p]) + apart, na + more, ra + turn, centre)
                if not reserve:
                    after += squared_deviation(Qb + 2.0 * (Sb[p] - Sb[A + q]) + apart, nb - more, rb - turn, centre)
                if after < least:
                    least = after
                    x = p
                    y = q
        if x < 0:
            return made
        # the two devices change places
        i = a[x]
        j = b[y]
        apart = G[i, i] + G[j, j] - 2.0 * G[i, j]
        Qa += 2.0 * (Sa[A + y] - Sa[x]) + apart
        Qb += 2.0 * (Sb[x] - Sb[A + y]) + apart
        na = na + total[j] - total[i]
        nb = nb - total[j] + total[i]
        ra = ra + along[j] - along[i]
        rb = rb - along[j] + along[i]
        swap(G, a, b, ids, Sa, Sb, x, y)
    return A + B


@compiled
def exchange_rounds(
    x: Floats, G: Floats, total: Floats, along: Floats, centre: float, gain: float,
    slots: Integers, short: int, groups: int, order: Integers,
) -> int:  # fmt: skip
    """Exchange devices between pairs of groups; return the number of exchanges.

    ``x``: counts [K, F]. ``G``: X Xᵀ [K, K]; empty: the products are computed for each pair. ``total``, ``along``,
    ``centre``, ``gain``: as in :func:`exchange_between`, for all devices. ``slots``: the devices of the groups,
    followed by the devices left out in rows of the same length [P, L]; changed in place. ``short``: the devices in the
    last row. ``groups``: M, the number of rows that are groups. ``order``: [rounds, P], a permutation of the rows per
    round: the first row is paired with the second, the third with the fourth.
    """
    P, L = slots.shape
    made = 0
    for turn in range(len(order)):
        for at in range(P // 2):
            first = order[turn, 2 * at]
            second = order[turn, 2 * at + 1]
            first, second = min(first, second), max(first, second)
            if first >= groups:
                continue
            a, b = slots[first], slots[second, : (short if second == P - 1 else L)]
            if len(G):
                made += exchange_between(G, total, along, centre, gain, a, b, second >= groups)
                continue
            ids = np.concatenate((a, b))
            near = np.arange(L)
            far = np.arange(L, len(ids))
            own = x[ids]
            made += exchange_between(own @ own.T, total[ids], along[ids], centre, gain, near, far, second >= groups)
            a[:], b[:] = ids[near], ids[far]
    return made


@compiled
def mediators(counts: Floats, choice: Integers) -> None:
    """Fill the groups ``choice`` [M, L] one after the other, each time with the device that lowers Σ p ln p most."""
    K, F = counts.shape
    left = np.ones(K, np.bool_)
    total = counts.sum(1)
    for m in range(len(choice)):
        held = np.zeros(F)
        n = 0.0
        for place in range(choice.shape[1]):
            best = -1
            least = np.inf
            for k in range(K):
                if not left[k]:
                    continue
                whole = n + total[k]
                score = np.inf
                if whole > 0.0:
                    score = -np.log(whole)
                    for f in range(F):
                        v = held[f] + counts[k, f]
                        if v > 0.0:
                            score += v / whole * np.log(v)
                if best < 0 or score < least:
                    best = k
                    least = score
            choice[m, place] = best
            left[best] = False
            held += counts[best]
            n += total[best]


@compiled
def cheapest_clusters(cost: Floats, price: Floats, label: Integers) -> Integers:
    """Assign every point to the cluster with the least cost plus price, in ``label`` [n]; return the sizes [L]."""
    held = np.zeros(len(price), np.int64)
    for i in range(len(cost)):
        a = 0
        for b in range(1, len(price)):
            if cost[i, b] + price[b] < cost[i, a] + price[a]:
                a = b
        label[i] = a
        held[a] += 1
    return held


@compiled
def excess(held: Integers, size: int) -> int:
    """Return the number of points that have to move to other clusters."""
    return int(np.maximum(held - size, 0).sum())


@compiled
def update_moves(cost: Floats, move: Floats, cheapest_member: Integers, i: int, a: int, p: int) -> None:
    """Record point i, the p-th point of cluster a, for every cluster to which its move is the cheapest."""
    for b in range(cost.shape[1]):
        if b != a and cost[i, b] - cost[i, a] < move[a, b]:
            move[a, b] = cost[i, b] - cost[i, a]
            cheapest_member[a, b] = p


@compiled
def shortest_path(move: Floats, price: Floats, held: Integers, size: int, before: Integers) -> int:
    """Find the shortest path from a cluster above ``size`` to a cluster below; return its end, and update the prices.

    ``move``: [L, L], the least cost of moving a point from one cluster to another. ``price``: [L]; changed. ``held``:
    the number of points in each cluster [L], which should be ``size``. ``before``: [L], changed: the predecessor of
    each cluster on its path; −1: the start of a path.
    """
    L = len(price)
    far = np.full(L, np.inf)
    done = np.zeros(L, np.bool_)
    for a in range(L):
        before[a] = -1
        if held[a] > size:
            far[a] = 0.0
    while True:
        a = -1
        for b in range(L):
            if not done[b] and far[b] < np.inf and (a < 0 or far[b] < far[a]):
                a = b
        done[a] = True
        if held[a] < size:
            break
        for b in range(L):
            if not done[b]:
                way = far[a] + max(0.0, move[a, b] + price[b] - price[a])
                if way < far[b]:
                    far[b] = way
                    before[b] = a
    for b in range(L):
        price[b] -= min(far[b], far[a])
    return a


@compiled
def assign(cost: Floats, price: Floats, size: int, label: Integers) -> None:
    """Assign every point to a cluster, ``size`` points to each, with the least sum of costs.

    ``cost``: [L·size, L]. ``price``: [L], the prices of the previous call, or zeros; changed. ``label``: the cluster of
    each point [L·size]; overwritten.
    """
    n, L = cost.shape
    held = cheapest_clusters(cost, price, label)
    plain = np.zeros(L)
    if excess(held, size) > excess(cheapest_clusters(cost, plain, label), size):  # the prices are out of date
        price[:] = 0.0
    held = cheapest_clusters(cost, price, label)
    members = np.empty((L, n), np.int64)
    place = np.zeros(L, np.int64)
    for i in range(n):
        members[label[i], place[label[i]]] = i
        place[label[i]] += 1
    move = np.full((L, L), np.inf)
    cheapest_member = np.full((L, L), -1, np.int64)
    for a in range(L):
        for p in range(held[a]):
            update_moves(cost, move, cheapest_member, members[a, p], a, p)
    before = np.empty(L, np.int64)
    while held.max() > size:
        b = shortest_path(move, price, held, size, before)
        while before[b] >= 0:
            a = before[b]
            move_point(cost, members, held, move, cheapest_member, label, a, b)
            b = a


@compiled
def move_point(
    cost: Floats, members: Integers, held: Integers, move: Floats, cheapest_member: Integers, label: Integers, a: int,
    b: int,
) -> None:  # fmt: skip
    """Move the point with the least cost from cluster a to b, and update the tables of least costs."""
    p = cheapest_member[a, b]
    i = members[a, p]
    last = held[a] - 1
    members[a, p] = members[a, last]  # the last point of the list takes its place
    held[a] = last
    for d in range(len(held)):
        if d == a:
            continue
        if cheapest_member[a, d] == p:
            move[a, d] = np.inf
            cheapest_member[a, d] = -1
            for q in range(last):
                other = members[a, q]
                if cost[other, d] - cost[other, a] < move[a, d]:
                    move[a, d] = cost[other, d] - cost[other, a]
                    cheapest_member[a, d] = q
        elif cheapest_member[a, d] == last:
            cheapest_member[a, d] = p
    members[b, held[b]] = i
    label[i] = b
    update_moves(cost, move, cheapest_member, i, b, held[b])
    held[b] += 1
