"""The grouping problem of HFedMS: groups of equally many devices whose classes are mixed alike; CPD, its measure.

Zeng, Liu, Niyato et al., "HFedMS: Heterogeneous Federated Learning with Memorable Data Semantics in Industrial
Metaverse", IEEE TCC 2023, arXiv 2211.03300, Eq. 1-6. The paper leaves the distance of two groups open; here it is that
of their class shares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedfloor.errors import require
from fedfloor.solvers.solution import Floats, Integers, Solution, confirm

ROUNDING = 1e-12  # of shares, which are at most 1
BLOCK = 1 << 22  # distances that are looked at together


@dataclass(frozen=True, eq=False)
class GroupingProblem:
    """minimise 2/(M(M − 1))·Σ_{m<m′} ‖p_m − p_m′‖₂ over M disjoint groups of L devices each.

    p_m = Σ_{k∈m} V_k/Σ_{k∈m} ΣV_k are the class shares of group m; 0 where its devices hold nothing. K − M·L devices
    are left out; the choice decides which. With one group there is no distance: 0.

    Args:
        counts: V [K, F], samples of each class in each device's current batch.
        groups: M, 1 … K.
        size: L, 1 … ⌊K/M⌋; default: ⌊K/M⌋.
    """

    counts: Floats
    groups: int
    size: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", np.ascontiguousarray(self.counts, dtype=np.float64))
        shape = self.counts.shape
        require(len(shape) == 2 and min(shape) > 0, "shape of counts", shape, "(K, F), with a device and a class")
        bad = self.counts[~(np.isfinite(self.counts) & (self.counts >= 0))]
        require(bad.size == 0, "counts", float(bad[0]) if bad.size else None, "finite and at least 0")
        require(self.counts.max() > 0, "sum of counts", 0, "above 0: nobody has a sample")
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
        """K."""
        return int(self.counts.shape[0])

    @property
    def left_out(self) -> int:
        """K − M·L."""
        return self.devices - self.groups * self.size


def shares(problem: GroupingProblem, choice: Integers) -> Floats:
    """Return p [M, F], the class shares of the groups [M, L]; zeros where a group holds nothing.

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
    """Return the groups with the devices of each in ascending order, as :func:`check` requires."""
    return np.sort(np.asarray(choice, np.int64), axis=1)


def check(problem: GroupingProblem, choice: Integers) -> None:
    """Raise an error for a choice that the problem does not allow."""
    k, m, size = problem.devices, problem.groups, problem.size
    fits = choice.shape == (m, size) and choice.dtype == np.int64 and bool((np.diff(choice) > 0).all())
    fits = fits and int(choice.min()) >= 0 and int(choice.max()) < k and np.unique(choice).size == choice.size
    allowed = f"int64 [{m}, {size}]: in each row a group's devices of 0 … {k - 1}, ascending, none of them twice"
    require(fits, "choice", choice.tolist() if choice.size < 50 else f"of shape {choice.shape}", allowed)


def verify(problem: GroupingProblem, solution: Solution[Integers]) -> None:
    """Recompute a solution's value with plain NumPy."""
    check(problem, solution.choice)
    confirm("grouping", value(problem, solution.choice), solution, ROUNDING)


def cpd(p: Floats, bandwidth: float | None = None) -> Floats:
    """Return CPD(m, m′) = MMD²(p_m, p_m′) of all pairs m < m′ [M(M − 1)/2], in the order of rows.

    MMD² = E k(x, x′) − 2 E k(x, y) + E k(y, y′) with classes x, x′ ~ p_m and y, y′ ~ p_m′, one-hot, and k(x, y) =
    exp(−‖x − y‖²/(2σ²)). Any two classes are √2 apart, so the sum is (1 − e^{−1/σ²})·‖p_m − p_m′‖²: σ scales every
    distance alike, and ratios do not depend on it. HFedMS, arXiv 2211.03300, Section IV, which gives neither σ nor the
    kernel's argument.

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
    """Return the median CPD of two of the groups [M, L]; 0 with one group.

    >>> round(median(GroupingProblem(np.array([[4.0, 0], [2, 2]]), 2), np.array([[0], [1]])), 6)  # (1 − 1/√e)·1/2
    0.196735
    """
    distances = cpd(shares(problem, choice))
    return float(np.median(distances)) if distances.size else 0.0


def singletons(problem: GroupingProblem) -> Integers:
    """Return every device as a group of its own [K, 1], as in FedAvg."""
    return np.arange(problem.devices)[:, None]
