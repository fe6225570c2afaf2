"""CPD, the class probability distance by which HFedMS judges groupings."""

from __future__ import annotations

import math

import numpy as np

from fedfloor.errors import require
from fedfloor.solvers.grouping.problem import Floats, Integers, Problem, shares


def cpd(p: Floats, bandwidth: float | None = None) -> Floats:
    """Return CPD(m, m′) = MMD²(p_m, p_m′) of all pairs m < m′ [M(M − 1)/2], in the order of rows.

    MMD² = E k(x, x′) − 2 E k(x, y) + E k(y, y′) with classes x, x′ ~ p_m and y, y′ ~ p_m′, one-hot, and
    k(x, y) = exp(−‖x − y‖²/(2σ²)). Two different classes are √2 apart whichever they are, so all of it is
    (1 − e^{−1/σ²})·‖p_m − p_m′‖²: σ scales every distance alike, and ratios do not depend on it. HFedMS,
    arXiv 2211.03300, Section IV; σ and what the kernel is applied to are not said there.

    Args:
        p: class shares [M, F].
        bandwidth: σ > 0; default: √2, the median distance of two classes.

    Raises:
        SettingError: bandwidth is not above 0, or p not [M, F].

    >>> cpd(np.array([[1.0, 0.0], [0.5, 0.5]]), bandwidth=1.0)  # (1 − 1/e)·1/2
    array([0.31606028])
    """
    from scipy.spatial.distance import pdist

    sigma = math.sqrt(2) if bandwidth is None else bandwidth
    require(0 < sigma < math.inf, "bandwidth", bandwidth, "above 0")
    require(p.ndim == 2, "shape of p", p.shape, "(M, F)")
    return np.asarray(-math.expm1(-1 / sigma**2) * pdist(p, "sqeuclidean"))


def median(problem: Problem, choice: Integers) -> float:
    """Return the median CPD of two groups; 0 where there is only one.

    Args:
        problem: whose counts the groups' class shares are of.
        choice: [M, L], the devices of each group.

    >>> round(median(Problem(np.array([[4.0, 0], [2, 2]]), 2), np.array([[0], [1]])), 6)  # (1 − 1/√e)·1/2
    0.196735
    """
    between = cpd(shares(problem, choice))
    return float(np.median(between)) if between.size else 0.0


def each_alone(problem: Problem) -> Integers:
    """Return every device as a group of its own [K, 1], as in FedAvg.

    Args:
        problem: whose devices.
    """
    return np.arange(problem.devices)[:, None]
