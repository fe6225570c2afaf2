"""Groups of devices by their classes or answers, hashes as answers, and the growth of the number of groups in
sequential-to-parallel training (STP): HFedMS, Zeng et al. 2023, arXiv 2211.03300.

In STP a full synchronisation every T rounds begins a period: the K devices are divided into M new groups, a share κ of
the groups is drawn, and the drawn groups train until the next synchronisation. M grows with the period's number
q = 1, 2, …, so that the chains within the groups, of ⌊K/M⌋ devices each, become shorter, and training changes from
sequential to parallel. A quotient that differs from a whole number only by rounding errors counts as that number.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.base.machine import require_memory

log = logging.getLogger(__name__)


def formed(
    solver: str, devices: Sequence[int], counts: np.ndarray | None, groups: int, rng: np.random.Generator, size: int = 0
) -> list[list[int]]:
    """Return M groups of L devices each, in random order within a group; the remaining devices are in no group.

    ``solver``: the algorithm, a name of :data:`fedfloor.solvers.grouping.solve.SOLVERS`. ``counts``: V [K, F], the
    devices' samples of each class; None: unknown, devices count as equal. ``size``: L; ⌊K/M⌋ by default.

    >>> formed("random", (4, 7, 9), None, 2, np.random.default_rng(0))
    [[9], [4]]
    """
    from fedfloor.solvers.grouping.solve import GroupingProblem, solve

    numbers = np.asarray(devices)
    problem = GroupingProblem(np.ones((len(numbers), 1)) if counts is None else counts, groups, size)
    choice = solve(solver, problem, seed=int(rng.integers(2**32))).choice
    return [numbers[rng.permutation(row)].tolist() for row in choice]


def present(groups: Sequence[Sequence[int]], devices: Sequence[int]) -> list[list[int]]:
    """Return the groups restricted to ``devices``, without those that become empty.

    >>> present([[1, 2], [3]], (1, 2))
    [[1, 2]]
    """
    may = set(devices)
    return [left for group in groups if (left := [k for k in group if k in may])]


def clustered(answers: Mapping[int, Mapping[str, Any]], question: str, groups: int, seed: int) -> list[list[int]]:
    """Return the groups of devices that K-Means forms by their answers: ascending, in the order of their first devices.

    ``answers``: device → question → vector [D].

    >>> clustered({4: {"hash": [1, 1]}, 7: {"hash": [9, 9]}, 8: {"hash": [1, 2]}}, "hash", 2, seed=0)
    [[4, 8], [7]]
    """
    from fedfloor.solvers.clustering import kmeans

    known = sorted(k for k in answers if question in answers[k])
    require(groups <= len(known), "groups", groups, f"at most {len(known)}, the number of devices")
    clusters = kmeans(np.array([np.asarray(answers[k][question], np.float64) for k in known]), groups, seed)
    if clusters.remark:
        log.warning("%s.", clusters.remark)
    return [[known[i] for i in np.flatnonzero(clusters.labels == g).tolist()] for g in range(clusters.groups)]


def merged(vectors: Mapping[int, np.ndarray], distance: float, groups: int | None = None) -> list[list[int]]:
    """Return groups of devices, merged pair by pair while their mean cosine distance is at most ``distance``.

    ``vectors``: device → vector [D]; a zero vector has the distance 1 from all others. ``distance``: in [0, 2].

    >>> merged({4: np.array([1.0, 0.1]), 7: np.array([-1.0, 0.0]), 8: np.array([1.0, 0.0])}, 1.0)
    [[4, 8], [7]]
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    known = sorted(vectors)
    require(groups is None or groups <= len(known), "groups", groups, f"at most {len(known)}, the number of devices")
    if len(known) < 2:
        return [known]
    rows = np.array([vectors[k] / max(np.linalg.norm(vectors[k]), np.finfo(np.float64).tiny) for k in known])
    apart = np.clip(1 - rows @ rows.T, 0, 2)[np.triu_indices(len(known), 1)]
    tree = linkage(apart, "average")
    labels = fcluster(tree, distance, "distance") if groups is None else fcluster(tree, groups, "maxclust")
    clusters = [
        [k for k, label in zip(known, labels, strict=True) if label == cluster] for cluster in np.unique(labels)
    ]
    return sorted(clusters)


def drifted(before: np.ndarray, now: np.ndarray) -> float:
    """Return the change of class shares p, q: the mean over devices of ½ Σ_c |p_c − q_c|, from 0 to 1.

    ``before``, ``now``: class counts [K, F].

    >>> drifted(np.array([[2, 2], [4, 0]]), np.array([[4, 0], [1, 0]]))
    0.25
    """
    old, new = (np.divide(counts, np.maximum(1, counts.sum(1, keepdims=True))) for counts in (before, now))
    return float(np.abs(old - new).sum(1).mean() / 2)


def hashed(vector: np.ndarray, hashes: int, width: float, seed: int) -> list[int]:
    """Return h integers ⌊(a_i·v + b_i)/r⌋ of a device's mean features v [D], with a and b the same on all devices.

    >>> len(hashed(np.zeros(4), hashes=3, width=2.0, seed=0))
    3
    """
    from fedfloor.solvers.clustering import hash_functions, hash_vectors

    require_memory(f"hashes = {hashes}", 16 * hashes * len(vector), "Set fewer hashes.")
    family = hash_functions(len(vector), hashes, width, seed)
    return [int(number) for number in hash_vectors(family, vector[None])[0]]


MOST = 1 << 53  # the greatest number that is rounded down: up to here floats represent every whole number


@dataclass(frozen=True)
class _Growth:
    """The parameters of the growth of the number of groups.

    Args:
        alpha: α ≥ 0, the rate; with α = 0 the number of groups stays β.
        beta: β ≥ 1, the number of groups of the first period, and the size of each increase.
    """

    alpha: float
    beta: int

    def __post_init__(self) -> None:
        require(0 <= self.alpha < math.inf, "growth: alpha", self.alpha, "a number of at least 0")
        whole = isinstance(self.beta, int) and self.beta >= 1
        require(whole, "growth: beta", self.beta, "a whole number of at least 1")


@dataclass(frozen=True)
class Linear(_Growth):
    """M = β·⌊α·(q − 1) + 1⌋: an increase by β groups every 1/α periods.

    The reference code (slz-ai/hfedms) has β·⌊α·q + 1⌋, which grows one period earlier.

    >>> [Linear(alpha=0.5, beta=10).groups(q) for q in (1, 2, 3)]
    [10, 10, 20]
    """

    kind: Literal["linear"] = "linear"

    def groups(self, period: int) -> int:
        """Return the number of groups M in a period (the first is 1)."""
        return self.beta * _floor(self.alpha * (_period(period) - 1) + 1)


@dataclass(frozen=True)
class Log(_Growth):
    """M = β·⌊α·ln q + 1⌋: fast at first, then ever more slowly. The paper's best setting is α = 2, β = 10.

    >>> [Log(alpha=2, beta=10).groups(q) for q in (1, 2, 3, 4, 5, 100)]
    [10, 20, 30, 30, 40, 100]
    """

    kind: Literal["log"] = "log"

    def groups(self, period: int) -> int:
        """Return the number of groups M in a period (the first is 1)."""
        return self.beta * _floor(self.alpha * math.log(_period(period)) + 1)


@dataclass(frozen=True)
class Exp(_Growth):
    """M = β·⌊(1 + α)^(q − 1)⌋: slow at first, then ever faster.

    The paper prints β·⌊(1 + α)^q − 1⌋, a misprint: with α < 1 it yields no group in period 1. In the reading used here
    the first period has β groups, as with the other growths. The reference code has β·⌊α^q⌋, with another α.

    >>> [Exp(alpha=0.5, beta=10).groups(q) for q in (1, 2, 3, 4)]
    [10, 10, 20, 30]
    """

    kind: Literal["exponential"] = "exponential"

    def groups(self, period: int) -> int:
        """Return the number of groups M in a period (the first is 1)."""
        turns = _period(period) - 1
        if turns * math.log1p(self.alpha) > math.log(MOST):  # the power itself may be too large for a float
            return self.beta * MOST
        return self.beta * _floor((1 + self.alpha) ** turns)


Growth = Linear | Log | Exp


def groups_of(growth: Growth, period: int, devices: int) -> int:
    """Return M = min(K, f(q)), at most one group per device; K groups of one device are FedAvg.

    The paper does not define growth beyond K; the reference code limits it in the same way.

    ``period``: q, from 1. ``devices``: K ≥ 1.

    >>> groups_of(Log(alpha=2, beta=10), 13, devices=368), groups_of(Log(alpha=2, beta=10), 13, devices=50)
    (60, 50)
    """
    require(devices >= 1, "devices", devices, "a whole number of at least 1")
    return min(devices, growth.groups(period))


def chosen_groups(share: float, groups: int) -> int:
    """Return the number of groups that train in a period, ⌊κ·M⌋.

    ``share``: κ, in (0, 1]. ``groups``: M ≥ 1.

    >>> chosen_groups(0.3, 10), chosen_groups(0.29, 100)
    (3, 29)
    """
    require(0 < share <= 1, "share of the groups chosen", share, "above 0 and at most 1")
    require(groups >= 1, "groups", groups, "a whole number of at least 1")
    chosen = math.floor(share * groups + 1e-9)  # 0.29·100 is 28.999999999999996
    if chosen == 0:
        least = math.ceil(1e4 / groups) / 1e4
        raise SettingError(
            f"share of the groups chosen = {share!r} of {groups} groups is less than one group: no device would train. "
            f"Set at least {least:g}, or form more groups, at most one per device.",
            key="share-of-groups",
        )
    return chosen


def period_of(round_number: int, every: int) -> int:
    """Return q = ⌈r/T⌉, the number of the period that contains a round, from 1.

    ``round_number``: r, from 1. ``every``: T ≥ 1, rounds of a period.

    >>> [period_of(r, every=5) for r in (1, 5, 6, 500)]
    [1, 1, 2, 100]
    """
    _rounds(round_number, every)
    return -(-round_number // every)


def is_full(round_number: int, every: int) -> bool:
    """Return whether a round is a full synchronisation, which begins a period: r = 1, T + 1, 2T + 1, ….

    The reference code counts rounds from 1, too; R rounds contain ⌈R/T⌉ synchronisations, as in the paper's Eq. (20).
    The paper's text has r mod T = 0, the same rounds counted from 0. With T = 1 every round is a synchronisation:
    HFedMS-S.

    ``round_number``: r, from 1. ``every``: T ≥ 1, rounds of a period.

    >>> [r for r in range(1, 12) if is_full(r, every=5)]
    [1, 6, 11]
    """
    _rounds(round_number, every)
    return (round_number - 1) % every == 0


def _floor(value: float) -> int:
    """Return ⌊value⌋ of a number of at least 1, rounded up if it is within 10⁻¹² (relative) of the next whole number.

    In floats 0.58·50 is 28.999999999999996, and ln 8 · (1/ln 2), which equals 3, is 2.9999999999999996.
    """
    return math.floor(min(value * (1 + 1e-12), MOST))


def _period(period: int) -> int:
    require(period >= 1, "period", period, "a whole number of at least 1")
    return period


def _rounds(round_number: int, every: int) -> None:
    require(round_number >= 1, "round", round_number, "a whole number of at least 1")
    require(every >= 1, "rounds from one full synchronisation to the next", every, "a whole number of at least 1")
