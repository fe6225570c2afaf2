"""The grouping solvers: at random, Astraea's mediators, ICG of HFedMS, our exchanges; and all of them by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from fedfloor.errors import require, unknown
from fedfloor.solvers.grouping.problem import GroupingProblem, canonical, check, shares, value
from fedfloor.solvers.solution import Floats, Integers, Solution, solved


def random_groups(problem: GroupingProblem, seed: int) -> Integers:
    """Return M groups of L devices [M, L], every grouping as likely as any other."""
    order = np.random.default_rng(seed).permutation(problem.devices)
    return canonical(order[: problem.groups * problem.size].reshape(problem.groups, problem.size))


def random(problem: GroupingProblem, *, seed: int = 0) -> Solution[Integers]:
    """Return groups at random, the benchmark of HFedMS's ablation (Section IV)."""
    began = time.perf_counter()
    choice = random_groups(problem, seed)
    return solved(value(problem, choice), 0.0, choice, time.perf_counter() - began)


def astraea(problem: GroupingProblem) -> Solution[Integers]:
    """Return the groups of greedy mediators, which take the devices that bring their classes nearest to equal shares.

    A mediator takes, of the devices that are left, k = argmin D_KL(norm(V_m + V_k) ‖ U), with V_m the counts it holds
    and U the uniform distribution over the classes, until it has L of them; then the next one opens. Of equal devices
    it takes the first; one without samples last, as long as it holds none. Duan, Liu, Chen, Tan, Ren, Qiao, Liang,
    "Astraea: Self-balancing Federated Learning for Improving Classification Accuracy of Mobile Deep Learning
    Applications", ICCD 2019, arXiv 1907.01132, Algorithm 3; without its further mediator for the devices left over.
    """
    from fedfloor.solvers.grouping import kernels

    began = time.perf_counter()
    choice = np.empty((problem.groups, problem.size), np.int64)
    kernels.mediators(problem.counts, choice)
    choice = canonical(choice)
    return solved(value(problem, choice), 0.0, choice, time.perf_counter() - began)


Distance = Literal["squared", "euclidean"]
DISTANCES = ("squared", "euclidean")
ITERATIONS = 300
TOLERANCE = 1e-4  # times the mean variance of a class: centroids that move less in all, squared, have converged


def icg(problem: GroupingProblem, *, distance: Distance = "squared", seed: int = 0) -> Solution[Integers]:
    """Return one device of each of L equally large clusters of similar devices to every group (inter-cluster grouping).

    L·⌊K/L⌋ devices at random; k-means with clusters of ⌊K/L⌋, in turn
    y ← argmin Σ_k Σ_l y_l^k·½‖V_k − C_l‖² subject to Σ_k y_l^k = ⌊K/L⌋ and Σ_l y_l^k = 1, a minimum-cost flow, and
    C_l ← the mean of its devices, until the centroids converge; then group m takes a device of each cluster at random,
    without replacement. Members of a cluster beyond M are left out. HFedMS, arXiv 2211.03300, Algorithm 3.

    Start (greedy k-means++), at most 300 iterations and the tolerance 10⁻⁴ are the reference code's, which the paper
    leaves open. Its costs are distances that are not squared: ``euclidean``; the assignment with the least sum of
    squares is then kept, as that sum need not fall. V are the counts as they are, not shares.

    ``distance``: ``squared``: as Eq. 7; ``euclidean``: as the reference code.
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
    """Return the cluster of each point [n, F], of L clusters, which divides n: balanced k-means."""
    from fedfloor.solvers.grouping import kernels

    n = len(points)
    size = n // how_many
    points = points - points.mean(0)  # less to lose where squares are subtracted
    squares = (points * points).sum(1)
    tolerance = TOLERANCE * squares.mean() / points.shape[1]
    centroids = points[kmeans_plus_plus(points, squares, how_many, rng)]
    price, label, best = np.zeros(how_many), np.zeros(n, np.int64), np.zeros(n, np.int64)
    least = np.inf
    for _ in range(ITERATIONS):
        apart = squares[:, None] - 2 * points @ centroids.T + (centroids * centroids).sum(1)
        cost = apart / 2 if distance == "squared" else np.sqrt(np.maximum(apart, 0))
        kernels.assign(cost, price, size, label)
        inertia = float(np.take_along_axis(apart, label[:, None], 1).sum())
        if inertia < least:
            least, best = inertia, label.copy()
        means = points[np.argsort(label, kind="stable")].reshape(how_many, size, -1).mean(1)
        moved = float(((means - centroids) ** 2).sum())
        centroids = means
        if moved <= tolerance:
            break
    return best


def kmeans_plus_plus(points: Floats, squares: Floats, how_many: int, rng: np.random.Generator) -> Integers:
    """Return the points that the centroids start from: k-means++ with 2 + ⌊ln L⌋ candidates for each.

    Every candidate is drawn by its squared distance to the nearest centroid; the one that leaves the least sum of them
    is taken. Arthur, Vassilvitskii, SODA 2007.
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


ROUNDS, LONG = 20, 300
TURNS = 4  # so often the centre is looked up
TRIED = 20_000  # exchanges: a problem that is through with fewer starts again,
STARTS = 32  # as often at most
TABLE = 2048  # devices up to which the products of all are kept: 32 MiB
GAIN = 1e-12  # of squared shares: a smaller one is rounding


def exchange(
    problem: GroupingProblem, start: Integers | None = None, *, rounds: int = ROUNDS, seed: int = 0
) -> Solution[Integers]:
    """Exchange devices between groups, and with those left out, while that lowers Σ‖p_m − c‖²; no worse than the start.

    In a round the groups pair up at random; a pair makes the best of all its exchanges until none gains. Those left out
    are cut into further groups that may have any classes. c is the mean of the p_m, updated after every quarter of the
    rounds; with it the sum is Σ_{m<m′} ‖p_m − p_m′‖²/M, whose terms the value is the mean of the roots of. Small
    problems start again, up to 32 times, and the best value stays. The effort depends on the sizes alone, so that equal
    seeds give equal groups.

    ``start``: groups [M, L] to improve; default: drawn at random.
    """
    require(rounds >= 0, "rounds", rounds, "a whole number of at least 0")
    began = time.perf_counter()
    rng = np.random.default_rng((seed, 1))
    if start is None:
        initial = random_groups(problem, seed)
        tried = rounds * problem.devices * problem.size // 2
        starts = min(STARTS, max(1, TRIED // max(1, tried)))
    else:
        check(problem, start)
        initial, starts = start, 1
    least, choice = value(problem, initial), initial
    for number in range(starts):
        if number:
            initial = random_groups(problem, int(rng.integers(2**32)))
        groups = _exchange_rounds(problem, initial, rounds, rng)
        reached = value(problem, groups)
        if reached < least:
            least, choice = reached, groups
    return solved(least, 0.0, choice, time.perf_counter() - began)


def _exchange_rounds(problem: GroupingProblem, start: Integers, rounds: int, rng: np.random.Generator) -> Integers:
    """Return the groups [M, L] after some rounds of exchanges."""
    from fedfloor.solvers.grouping import kernels

    V, M, K, L = problem.counts, problem.groups, problem.devices, problem.size
    rows = -(-K // L)
    slots = np.full((rows, L), -1)
    left_out = np.ones(K, np.bool_)
    left_out[start] = False
    slots.reshape(-1)[:K] = np.concatenate([start.ravel(), np.flatnonzero(left_out)])
    order = rng.permuted(np.tile(np.arange(rows), (rounds, 1)), axis=1)
    G = V @ V.T if K <= TABLE else np.empty((0, 0))
    total = V.sum(1)
    for turn in np.array_split(order, TURNS):
        c = shares(problem, slots[:M]).mean(0)
        kernels.exchange_rounds(V, G, total, V @ c, float(c @ c), GAIN, slots, K - (rows - 1) * L, M, turn)
    return canonical(slots[:M])


Solver = Callable[[GroupingProblem, int], Solution[Integers]]
SOLVERS: Mapping[str, Solver] = {
    "icg": lambda problem, seed: icg(problem, seed=seed),
    "icg-euclidean": lambda problem, seed: icg(problem, distance="euclidean", seed=seed),
    "random": lambda problem, seed: random(problem, seed=seed),
    "astraea": lambda problem, seed: astraea(problem),  # noqa: ARG005
    "exchange": lambda problem, seed: exchange(problem, seed=seed),
    "exchange-long": lambda problem, seed: exchange(problem, rounds=LONG, seed=seed),
}


def solve(name: str, problem: GroupingProblem, *, seed: int = 0) -> Solution[Integers]:
    """Return M groups of L devices [M, L], those of a group in ascending order; the order of groups has no meaning.

    ``name``: ``exchange``, ours; ``exchange-long``, the same for 300 rounds; ``icg``, the paper's; ``icg-euclidean``,
    with the distance of its reference code; ``astraea``, greedy mediators; ``random``.
    """
    if name not in SOLVERS:
        raise unknown("grouping solver", name, SOLVERS)
    require(0 <= seed < 2**32, "seed", seed, "a whole number of at least 0 and below 2^32")
    return SOLVERS[name](problem, seed)
