"""Points into clusters of equal size at the least cost: a flow from every point to the clusters (compiled).

The dual has one price per cluster. With any prices, each point in its cheapest cluster is the best assignment for the
sizes that result; then points move along shortest paths from clusters that have too many to those that have too few,
and the prices follow (successive shortest paths: Ahuja, Magnanti, Orlin, "Network Flows", 1993, section 9.7). Costs are
not rounded to whole numbers, as OR-Tools' flows would have them, on which k-means of HFedMS's reference code stands.
"""

from __future__ import annotations

import numpy as np

from fedfloor.solvers.compiled import compiled
from fedfloor.solvers.grouping.problem import Floats, Integers


@compiled
def cheapest(cost: Floats, members: Integers, held: Integers, a: int, b: int) -> tuple[float, int]:
    """Return the least cost of moving a member of cluster a to b, and the member's place in a's list."""
    least, at = np.inf, -1
    for p in range(held[a]):
        i = members[a, p]
        if cost[i, b] - cost[i, a] < least:
            least, at = cost[i, b] - cost[i, a], p
    return least, at


@compiled
def cheapest_of_all(cost: Floats, price: Floats, label: Integers) -> Integers:
    """Give every point the cluster with the least cost and price, in ``label`` [n]; return how many each holds [L]."""
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
    """Return how many points have to move to other clusters."""
    return int(np.maximum(held - size, 0).sum())


@compiled
def offered(cost: Floats, move: Floats, who: Integers, i: int, a: int, p: int) -> None:
    """Keep point i, the p-th of cluster a, wherever it is the one that costs least to move."""
    for b in range(cost.shape[1]):
        if b != a and cost[i, b] - cost[i, a] < move[a, b]:
            move[a, b], who[a, b] = cost[i, b] - cost[i, a], p


@compiled
def nearest(move: Floats, price: Floats, held: Integers, size: int, before: Integers) -> int:
    """Find the shortest path from any cluster above ``size`` to one below; return its end, with prices brought up.

    Args:
        move: [L, L], least cost of moving a point from one cluster to another.
        price: [L]; changed.
        held: points in each cluster [L].
        size: that each should hold.
        before: [L], changed: where a path to a cluster comes from; −1: it starts there.
    """
    L = len(price)
    far, done = np.full(L, np.inf), np.zeros(L, np.bool_)
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
                    far[b], before[b] = way, a
    for b in range(L):
        price[b] -= min(far[b], far[a])
    return a


@compiled
def assign(cost: Floats, price: Floats, size: int, label: Integers) -> None:
    """Give every point a cluster, ``size`` points to each, with the least sum of costs.

    Args:
        cost: [L·size, L].
        price: [L], of the last time or zeros; changed.
        size: points of a cluster.
        label: the cluster of each point [L·size]; overwritten.
    """
    n, L = cost.shape
    held, plain = cheapest_of_all(cost, price, label), np.zeros(L)
    if excess(held, size) > excess(cheapest_of_all(cost, plain, label), size):  # the prices are out of date
        price[:] = 0.0
    held = cheapest_of_all(cost, price, label)
    members, place = np.empty((L, n), np.int64), np.zeros(L, np.int64)
    for i in range(n):
        members[label[i], place[label[i]]] = i
        place[label[i]] += 1
    move, who = np.full((L, L), np.inf), np.full((L, L), -1, np.int64)
    for a in range(L):
        for p in range(held[a]):
            offered(cost, move, who, members[a, p], a, p)
    before = np.empty(L, np.int64)
    while held.max() > size:
        b = nearest(move, price, held, size, before)
        while before[b] >= 0:
            a = before[b]
            shift(cost, members, held, move, who, label, a, b)
            b = a


@compiled
def shift(
    cost: Floats, members: Integers, held: Integers, move: Floats, who: Integers, label: Integers, a: int, b: int
) -> None:
    """Move the point that costs least from cluster a to b, and keep the tables of least costs."""
    p = who[a, b]
    i = members[a, p]
    last = held[a] - 1
    members[a, p] = members[a, last]  # the last of the list takes its place
    held[a] = last
    for d in range(len(held)):
        if d == a:
            continue
        if who[a, d] == p:
            move[a, d], who[a, d] = cheapest(cost, members, held, a, d)
        elif who[a, d] == last:
            who[a, d] = p
    members[b, held[b]] = i
    label[i] = b
    offered(cost, move, who, i, b, held[b])
    held[b] += 1
