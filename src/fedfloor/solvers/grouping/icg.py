"""ICG, inter-cluster grouping: clusters of devices that are alike, and one device of each to every group."""

from __future__ import annotations

import time
from typing import Literal

import numpy as np

from fedfloor.errors import unknown
from fedfloor.solvers.grouping.problem import Floats, Integers, Problem, canonical, value
from fedfloor.solvers.solution import Solution, solved

Distance = Literal["squared", "euclidean"]
DISTANCES = ("squared", "euclidean")
ITERATIONS = 300
TOLERANCE = 1e-4  # times the mean variance of a class: centroids that move less in all, squared, have converged


def icg(problem: Problem, *, distance: Distance = "squared", seed: int = 0) -> Solution[Integers]:
    """Return one device of each of L equally large clusters to every group.

    L·⌊K/L⌋ devices at random; k-means with clusters of ⌊K/L⌋, in turn
    y ← argmin Σ_k Σ_l y_l^k·½‖V_k − C_l‖² subject to Σ_k y_l^k = ⌊K/L⌋ and Σ_l y_l^k = 1, a minimum-cost flow, and
    C_l ← the mean of its devices, until the centroids converge; then group m takes a device of each cluster at random,
    without replacement. What clusters hold beyond M is left out. HFedMS, arXiv 2211.03300, Algorithm 3.

    Start (greedy k-means++), at most 300 iterations and the tolerance 10⁻⁴ are the reference code's, which the paper
    leaves open. Its costs are distances that are not squared: ``euclidean``; the assignment with the least sum of
    squares is then kept, as that sum need not fall. V are the counts as they are, not shares.

    Args:
        problem: the problem.
        distance: ``squared``: as Eq. 7; ``euclidean``: as the reference code.
        seed: of the devices, the start and the draw.

    Raises:
        SettingError: no such distance.
    """
    if distance not in DISTANCES:
        raise unknown("distance", distance, DISTANCES)
    began = time.perf_counter()
    rng = np.random.default_rng(seed)
    L = problem.size
    each = problem.devices // L
    devices = rng.permutation(problem.devices)[: L * each]
    label = clusters(problem.counts[devices], L, distance, rng)
    order = np.argsort(label, kind="stable").reshape(L, each)
    picked = rng.permuted(order, axis=1)[:, : problem.groups]
    choice = canonical(devices[picked].T)
    return solved(value(problem, choice), 0.0, choice, time.perf_counter() - began)


def clusters(points: Floats, how_many: int, distance: Distance, rng: np.random.Generator) -> Integers:
    """Return the cluster of each point [n]: balanced k-means.

    Args:
        points: [n, F].
        how_many: L, which divides n.
        distance: as :func:`icg`'s.
        rng: of the start.
    """
    from fedfloor.solvers.grouping import transport

    n = len(points)
    size = n // how_many
    points = points - points.mean(0)  # less to lose where squares are subtracted
    squares = (points * points).sum(1)
    tolerance = TOLERANCE * squares.mean() / points.shape[1]
    centroids = points[spread_out(points, squares, how_many, rng)]
    price, label, best = np.zeros(how_many), np.zeros(n, np.int64), np.zeros(n, np.int64)
    least = np.inf
    for _ in range(ITERATIONS):
        apart = squares[:, None] - 2 * points @ centroids.T + (centroids * centroids).sum(1)
        cost = apart / 2 if distance == "squared" else np.sqrt(np.maximum(apart, 0))
        transport.assign(cost, price, size, label)
        inertia = float(np.take_along_axis(apart, label[:, None], 1).sum())
        if inertia < least:
            least, best = inertia, label.copy()
        means = points[np.argsort(label, kind="stable")].reshape(how_many, size, -1).mean(1)
        moved = float(((means - centroids) ** 2).sum())
        centroids = means
        if moved <= tolerance:
            break
    return best


def spread_out(points: Floats, squares: Floats, how_many: int, rng: np.random.Generator) -> Integers:
    """Return the points that the centroids start from: k-means++ with 2 + ⌊ln L⌋ candidates for each.

    Every candidate is drawn by its squared distance to the nearest that there is; the one that leaves the least sum of
    them is taken. Arthur, Vassilvitskii, SODA 2007.

    Args:
        points: [n, F].
        squares: ‖point‖² [n].
        how_many: L.
        rng: of the draws.
    """
    chosen = np.empty(how_many, np.int64)
    chosen[0] = rng.integers(len(points))
    near = np.full(len(points), np.inf)
    candidates = chosen[:1]
    for l in range(how_many):  # noqa: E741
        if l:
            up = np.cumsum(near)
            draws = rng.random(2 + int(np.log(how_many))) * up[-1]
            candidates = np.minimum(np.searchsorted(up, draws, side="right"), len(points) - 1)
        apart = squares[:, None] - 2 * points @ points[candidates].T + squares[candidates]
        apart = np.minimum(near[:, None], np.maximum(apart, 0))
        best = int(np.argmin(apart.sum(0)))
        chosen[l], near = candidates[best], apart[:, best]
    return chosen
