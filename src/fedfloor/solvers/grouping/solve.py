"""Groups of equal size with similar class shares: HFedMS's problem, its measure, and its solvers.

Zeng, Liu, Niyato et al., "HFedMS: Heterogeneous Federated Learning with Memorable Data Semantics in Industrial
Metaverse", IEEE TCC 2023, arXiv 2211.03300, Eq. 1-6. The paper does not define the distance of two groups; here it is
the distance of their class shares. Solvers: at random, Astraea's mediators, HFedMS's ICG, exchanges; and all by name.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedfloor.base.errors import require, unknown
from fedfloor.solvers.solution import Floats, Integers, Solution, confirm, solved

ROUNDING = 1e-12  # tolerance of shares, which are at most 1
BLOCK = 1 << 22  # distances that are computed together


@dataclass(frozen=True, eq=False)
class GroupingProblem:
    """The problem: minimise 2/(M(M − 1))·Σ_{m<m′} ‖p_m − p_m′‖₂ over M disjoint groups of L devices each.

    p_m = Σ_{k∈m} V_k/Σ_{k∈m} ΣV_k are the class shares of group m; 0 if its devices hold no samples. The choice leaves
    out K − M·L devices. With one group the value is 0.

    Args:
        counts: V [K, F], the samples of each class in each device's current batch.
        groups: M, 1 … K.
        size: L, 1 … ⌊K/M⌋; default: ⌊K/M⌋.
    """

    counts: Floats
    groups: int
    size: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", np.ascontiguousarray(self.counts, dtype=np.float64))
        shape = self.counts.shape
        require(len(shape) == 2 and min(shape) > 0, "shape of counts", shape, "(K, F), both at least 1")
        bad = self.counts[~(np.isfinite(self.counts) & (self.counts >= 0))]
        require(bad.size == 0, "counts", float(bad[0]) if bad.size else None, "finite and at least 0")
        require(self.counts.max() > 0, "sum of counts", 0, "above 0: no device has a sample")
        devices = self.devices
        whole = isinstance(self.groups, int | np.integer) and 1 <= self.groups <= devices
        require(whole, "groups", self.groups, f"a whole number of 1 … {devices}, the devices")
        object.__setattr__(self, "groups", int(self.groups))
        most = devices // self.groups
        whole = isinstance(self.size, int | np.integer) and 0 <= self.size <= most
        require(whole, "size", self.size, f"a whole number of 1 … {most}, devices/groups, or left out (0) for {most}")
        object.__setattr__(self, "size", int(self.size) or most)

    @property
    def devices(self) -> int:
        """The number of devices, K."""
        return int(self.counts.shape[0])

    @property
    def left_out(self) -> int:
        """The number of devices left out, K − M·L."""
        return self.devices - self.groups * self.size


def shares(problem: GroupingProblem, choice: Integers) -> Floats:
    """Return p [M, F], the class shares of the groups [M, L]; zeros for a group without samples.

    >>> shares(GroupingProblem(np.array([[3.0, 1], [1, 3], [0, 0]]), 3), np.array([[0], [1], [2]])).tolist()
    [[0.75, 0.25], [0.25, 0.75], [0.0, 0.0]]
    """
    held = problem.counts[choice].sum(1)
    total = held.sum(1, keepdims=True)
    return np.asarray(np.divide(held, total, out=np.zeros_like(held), where=total > 0))


def value(problem: GroupingProblem, choice: Integers) -> float:
    """Return the mean of ‖p_m − p_m′‖₂ over all pairs of the groups [M, L].

    >>> value(GroupingProblem(np.array([[3.0, 1], [1, 3]]), 2), np.array([[0], [1]]))  # (0.5, −0.5)
    0.7071067811865476
    """
    from scipy.spatial.distance import cdist

    p = shares(problem, choice)
    m = len(p)
    rows = max(1, BLOCK // m)
    total = math.fsum(float(cdist(p[at : at + rows], p).sum()) for at in range(0, m, rows))
    return total / (m * (m - 1)) if m > 1 else 0.0


def canonical(choice: Integers) -> Integers:
    """Return the groups with their devices in ascending order, as :func:`check` requires."""
    return np.sort(np.asarray(choice, np.int64), axis=1)


def check(problem: GroupingProblem, choice: Integers) -> None:
    """Raise SettingError for a choice that the problem does not allow."""
    k = problem.devices
    m = problem.groups
    size = problem.size
    fits = choice.shape == (m, size) and choice.dtype == np.int64 and bool((np.diff(choice) > 0).all())
    fits = fits and int(choice.min()) >= 0 and int(choice.max()) < k and np.unique(choice).size == choice.size
    allowed = f"int64 [{m}, {size}]: in each row a group's devices, 0 … {k - 1}, ascending and without repetitions"
    require(fits, "choice", choice.tolist() if choice.size < 50 else f"of shape {choice.shape}", allowed)


def verify(problem: GroupingProblem, solution: Solution[Integers]) -> None:
    """Check a solution's choice, value and bound by plain NumPy; an error names what differs."""
    check(problem, solution.choice)
    confirm("grouping", value(problem, solution.choice), solution, ROUNDING)


def cpd(p: Floats, bandwidth: float | None = None) -> Floats:
    """Return CPD(m, m′) = MMD²(p_m, p_m′) of all pairs m < m′ [M(M − 1)/2], in the order of rows.

    MMD² = E k(x, x′) − 2 E k(x, y) + E k(y, y′) with classes x, x′ ~ p_m and y, y′ ~ p_m′, one-hot, and k(x, y) =
    exp(−‖x − y‖²/(2σ²)). Any two classes have the distance √2, so the result is (1 − e^{−1/σ²})·‖p_m − p_m′‖²: σ scales
    every distance equally, and ratios do not depend on it. HFedMS, arXiv 2211.03300, Section IV, which gives neither σ
    nor the kernel's argument.

    ``p``: class shares [M, F]. ``bandwidth``: σ > 0; default: √2, the median distance of two classes.

    >>> cpd(np.array([[1.0, 0.0], [0.5, 0.5]]), bandwidth=1.0)  # (1 − 1/e)·1/2
    array([0.31606028])
    """
    from scipy.spatial.distance import pdist

    sigma = math.sqrt(2) if bandwidth is None else bandwidth
    require(0 < sigma < math.inf, "bandwidth", bandwidth, "above 0")
    require(p.ndim == 2, "shape of p", p.shape, "(M, F)")
    return np.asarray(-math.expm1(-1 / sigma**2) * pdist(p, "sqeuclidean"))


def median(problem: GroupingProblem, choice: Integers) -> float:
    """Return the median CPD over all pairs of the groups [M, L]; 0 with one group.

    >>> round(median(GroupingProblem(np.array([[4.0, 0], [2, 2]]), 2), np.array([[0], [1]])), 6)  # (1 − 1/√e)·1/2
    0.196735
    """
    distances = cpd(shares(problem, choice))
    return float(np.median(distances)) if distances.size else 0.0


def singletons(problem: GroupingProblem) -> Integers:
    """Return the groups [K, 1] of one device each, as in FedAvg."""
    return np.arange(problem.devices)[:, None]


def random_groups(problem: GroupingProblem, seed: int) -> Integers:
    """Return M random groups of L devices [M, L], all groupings with equal probability."""
    order = np.random.default_rng(seed).permutation(problem.devices)
    return canonical(order[: problem.groups * problem.size].reshape(problem.groups, problem.size))


def random(problem: GroupingProblem, *, seed: int = 0) -> Solution[Integers]:
    """Return groups at random, the benchmark of HFedMS's ablation (Section IV)."""
    began = time.perf_counter()
    choice = random_groups(problem, seed)
    return solved(value(problem, choice), 0.0, choice, time.perf_counter() - began)


def astraea(problem: GroupingProblem) -> Solution[Integers]:
    """Return the groups of greedy mediators, which take devices that bring their class shares nearest to equality.

    A mediator takes from the remaining devices k = argmin D_KL(norm(V_m + V_k) ‖ U), with its counts V_m and the
    uniform distribution U over the classes, until it has L devices; then the next mediator begins. Among equal devices
    it takes the first; an empty mediator takes devices without samples last. Duan, Liu, Chen, Tan, Ren, Qiao, Liang,
    "Astraea: Self-balancing Federated Learning for Improving Classification Accuracy of Mobile Deep Learning
    Applications", ICCD 2019, arXiv 1907.01132, Algorithm 3; without the paper's further mediator for the remaining
    devices.
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
TOLERANCE = 1e-4  # times the mean variance of a class: centroids have converged if their squared moves sum to less


def icg(problem: GroupingProblem, *, distance: Distance = "squared", seed: int = 0) -> Solution[Integers]:
    """Return groups with one device from each of L equally large clusters of similar devices (inter-cluster grouping).

    Take L·⌊K/L⌋ devices at random, and cluster them by k-means with clusters of ⌊K/L⌋: alternate
    y ← argmin Σ_k Σ_l y_l^k·½‖V_k − C_l‖² subject to Σ_k y_l^k = ⌊K/L⌋ and Σ_l y_l^k = 1, a minimum-cost flow, and
    C_l ← the mean of its devices, until the centroids converge. Group m then takes a random device of each cluster,
    without replacement; members of a cluster beyond M are left out. HFedMS, arXiv 2211.03300, Algorithm 3.

    The start (greedy k-means++), at most 300 iterations and the tolerance 10⁻⁴ follow the reference code, as the paper
    does not give them. The code's costs are distances without squares: ``euclidean``. The assignment with the least sum
    of squares is then kept, as that sum may rise. V are counts, not shares.

    ``distance``: ``squared``, as in Eq. 7; ``euclidean``, as in the reference code.
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
    """Return the cluster of each point [n, F] by balanced k-means with ``how_many`` clusters, which must divide n.

    With s points in a cluster and S_l their sum, s²·‖V_k − C_l‖² = s²·‖V_k‖² − 2s·V_k·S_l + ‖S_l‖². Counts are whole
    numbers, and so are these costs: below 2⁵³ they are exact in any order of summation, so that equal costs are equal
    on every machine.
    """
    from fedfloor.solvers.grouping import kernels

    n = len(points)
    size = n // how_many
    squares = (points * points).sum(1)
    total = points.sum(0)
    variance = float(n * squares.sum() - (total * total).sum()) / n**2
    tolerance = TOLERANCE * size**2 * variance / points.shape[1]
    sums = size * points[kmeans_plus_plus(points, squares, how_many, rng)]
    price = np.zeros(how_many)
    label = np.zeros(n, np.int64)
    best = np.zeros(n, np.int64)
    least = np.inf
    for _ in range(ITERATIONS):
        apart = size**2 * squares[:, None] - 2 * size * (points @ sums.T) + (sums * sums).sum(1)
        cost = apart if distance == "squared" else np.sqrt(np.maximum(apart, 0))
        kernels.assign(cost, price, size, label)
        inertia = float(np.take_along_axis(apart, label[:, None], 1).sum())
        if inertia < least:
            least = inertia
            best = label.copy()
        held = points[np.argsort(label, kind="stable")].reshape(how_many, size, -1).sum(1)
        moved = float(((held - sums) ** 2).sum())
        sums = held
        if moved <= tolerance:
            break
    return best


def kmeans_plus_plus(points: Floats, squares: Floats, how_many: int, rng: np.random.Generator) -> Integers:
    """Return the starting points of the centroids: k-means++ with 2 + ⌊ln L⌋ candidates for each.

    Every candidate is drawn with a probability proportional to its squared distance from the nearest centroid; the
    candidate that leaves the least sum of these distances is taken. Arthur, Vassilvitskii, SODA 2007.
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


ROUNDS = 20
LONG = 300
TURNS = 4  # number of updates of the centre
TRIED = 20_000  # exchanges: a problem that needs fewer starts again,
STARTS = 32  # at most so many times
TABLE = 2048  # most devices for which all products are stored: 32 MiB
GAIN = 1e-12  # smallest gain of squared shares: smaller gains are rounding errors


def exchange(
    problem: GroupingProblem, start: Integers | None = None, *, rounds: int = ROUNDS, seed: int = 0
) -> Solution[Integers]:
    """Return groups after exchanges of devices, also with those left out, that lower Σ‖p_m − c‖².

    The result is never worse than ``start``.

    In a round the groups form random pairs, and a pair makes its best exchanges until none gains. Devices left out form
    further groups with arbitrary classes. c is the mean of the p_m, updated after every quarter of the rounds; the sum
    then is Σ_{m<m′} ‖p_m − p_m′‖²/M, and the value is the mean of these terms' roots. Small problems are started again,
    up to 32 times, and the best value is kept. The effort depends on the sizes alone, so that equal seeds give equal
    groups.

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
        initial = start
        starts = 1
    least = value(problem, initial)
    choice = initial
    for number in range(starts):
        if number:
            initial = random_groups(problem, int(rng.integers(2**32)))
        groups = _exchange_rounds(problem, initial, rounds, rng)
        reached = value(problem, groups)
        if reached < least:
            least = reached
            choice = groups
    return solved(least, 0.0, choice, time.perf_counter() - began)


def _exchange_rounds(problem: GroupingProblem, start: Integers, rounds: int, rng: np.random.Generator) -> Integers:
    """Return the groups [M, L] after ``rounds`` rounds of exchanges."""
    from fedfloor.solvers.grouping import kernels

    V = problem.counts
    M = problem.groups
    K = problem.devices
    L = problem.size
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
WHAT: Mapping[str, str] = {
    "icg": "HFedMS's ICG: a device of each of L clusters of equal size in every group",
    "icg-euclidean": "ICG with the distance of its reference code, not squared",
    "random": "Groups at random",
    "astraea": "Astraea's mediators: greedily the device that brings a group nearest to uniform classes",
    "exchange": "Exchanges of two devices between groups (ours)",
    "exchange-long": f"The same for {LONG} rounds",
}


def solve(name: str, problem: GroupingProblem, *, seed: int = 0) -> Solution[Integers]:
    """Return M groups of L devices [M, L], ascending within a group; the order of groups has no meaning.

    ``name``: ``exchange``, exchanges of devices; ``exchange-long``, the same for 300 rounds; ``icg``, HFedMS's;
    ``icg-euclidean``, with the distance of its reference code; ``astraea``, greedy mediators; ``random``.
    """
    if name not in SOLVERS:
        raise unknown("grouping solver", name, SOLVERS)
    require(0 <= seed < 2**32, "seed", seed, "a whole number of at least 0 and below 2^32")
    return SOLVERS[name](problem, seed)
