"""Statistics of lives that may not be over: survival curves, and measures of predicted ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
GROUPS = 5  # of equal size by predicted risk, for the calibration
LEAST = 10  # samples for a calibration
TINY = 1e-30  # in place of an age of 0, whose logarithm is not finite


@dataclass(frozen=True, eq=False)
class SurvivalCurve:
    """The Kaplan–Meier estimate S(t) = Π_{g ≤ t} (1 − d_g/n_g) of the share of lives that last longer than t.

    Kaplan and Meier, Journal of the American Statistical Association 53 (1958) 457.

    Args:
        times: float64 [G], ascending times at which S may fall.
        at_risk: float64 [G], n, the lives observed just before each time.
        failures: float64 [G], d, the failures at each time.
    """

    times: Floats
    at_risk: Floats
    failures: Floats

    @classmethod
    def of(cls, time: Floats, failed: Flags, entry: Floats | float = 0.0) -> SurvivalCurve:
        """Return the estimate from lives: those with entry < t ≤ time are at risk at t.

        Args:
            time: [n], the age at the failure or at the end of the observation.
            failed: [n], whether the life ended.
            entry: [n], the age at which the observation began.

        >>> SurvivalCurve.of(np.array([2.0, 3.0, 3.0, 5.0]), np.array([True, True, False, True])).survival
        array([0.75, 0.5 , 0.  ])
        """
        times = np.unique(time[failed])
        begun = np.searchsorted(np.sort(np.broadcast_to(entry, time.shape)), times, "left")
        ended = np.searchsorted(np.sort(time), times, "left")
        failures = np.searchsorted(np.sort(time[failed]), times, "right")
        return cls(times, (begun - ended).astype(np.float64), np.diff(failures, prepend=0).astype(np.float64))

    @property
    def survival(self) -> Floats:
        """S at the times, [G]."""
        return np.cumprod(1 - self.failures / np.maximum(self.at_risk, 1)).astype(np.float64)

    def at(self, time: Floats | float, *, before: bool = False) -> Floats:
        """Return S at times, or just before them; 1 before the first failure."""
        place = np.searchsorted(self.times, time, "left" if before else "right")
        return np.concatenate([[1.0], self.survival])[place]

    def interval(self, level: float = 0.95) -> tuple[Floats, Floats]:
        """Return the bounds of S at the times: Greenwood's variance of log(−log S), within [0, 1].

        Kalbfleisch and Prentice, The Statistical Analysis of Failure Time Data, 2002, section 1.4.
        """
        from scipy.stats import norm

        survival = self.survival
        inside = (survival > 0) & (survival < 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            sums = np.cumsum(self.failures / (self.at_risk * (self.at_risk - self.failures)))
            logs = np.log(survival)
            width = float(norm.ppf((1 + level) / 2)) * np.sqrt(sums) / logs
            low, high = (np.where(inside, np.exp(logs * np.exp(sign * width)), survival) for sign in (-1, 1))
        return low, high

    def median(self, level: float = 0.95) -> tuple[float, float, float]:
        """Return the median life and its bounds: the first times at which S, and the bounds of S, are at most 1/2.

        A time is infinite that is not reached. Brookmeyer and Crowley, Biometrics 38 (1982) 29.
        """
        low, high = self.interval(level)

        def first(values: Floats) -> float:
            reached = np.flatnonzero(values <= 0.5 + 1e-12)
            return float(self.times[reached[0]]) if len(reached) else math.inf

        return first(self.survival), first(low), first(high)


def on_grid(time: Floats, failed: Flags, entry: Floats, grid: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Return the sums of values [n, P] over the lives at risk at each time of a grid, and over those that fail, [G, P].

    A failure between two times counts at the second, and a life whose observation ends between them is not at risk at
    the second. A failure after the last time is censored there.
    """
    many = len(grid)
    first = np.searchsorted(grid, entry, "right")
    ends = np.where(failed, np.searchsorted(grid, time, "left"), many)
    end = np.where(ends < many, ends + 1, np.searchsorted(grid, time, "right"))
    inside = first < end

    def summed(place: NDArray[np.int64], mine: Flags) -> Floats:
        sums = np.zeros((many + 1, values.shape[1]))
        np.add.at(sums, place[mine], values[mine])
        return sums

    at_risk = np.cumsum(summed(first, inside) - summed(end, inside), axis=0)[:many]
    return at_risk, summed(ends, inside & (ends < many))[:many]


def normal_tail(z: Floats) -> tuple[Floats, Floats]:
    """Return log Φ(−z) and the hazard N(z)/Φ(−z) of the standard normal distribution."""
    from scipy.special import log_ndtr

    log_tail = log_ndtr(-z)
    return log_tail, np.exp(-(z**2) / 2 - math.log(2 * math.pi) / 2 - log_tail)


def log_rank(at_risk: Floats, failures: Floats) -> tuple[float, int, float]:
    """Return χ² = Uᵀ V⁻ U, its degrees of freedom and its p-value: the log-rank test that K groups have equal lives.

    U_k = Σ_g d_kg − n_kg d_g/n_g and V_kl = Σ_g (n_kg/n_g)(1{k = l} − n_lg/n_g) d_g (n_g − d_g)/(n_g − 1).
    Mantel, Cancer Chemotherapy Reports 50 (1966) 163.

    Args:
        at_risk, failures: [K, G], the sums of each group at common times.
    """
    from scipy.stats import chi2

    kept = at_risk.sum(axis=1) > 0
    n_k = at_risk[kept]
    n = n_k.sum(axis=0)
    d = failures.sum(axis=0)
    share = n_k / np.maximum(n, 1)
    away = (failures[kept] - share * d).sum(axis=1)
    weight = d * (n - d) / np.maximum(n - 1, 1)
    spread = np.diag((share * weight).sum(axis=1)) - (share * weight) @ share.T
    freedom = max(int(np.linalg.matrix_rank(spread)), 0)
    value = float(away @ np.linalg.pinv(spread, hermitian=True) @ away)
    return value, freedom, float(chi2.sf(value, freedom)) if freedom else 1.0


@dataclass(frozen=True, eq=False)
class Lives:
    """Observed lives beside predicted survival curves.

    Args:
        time: float64 [n], the age at the failure or at the end of the observation.
        failed: bool [n], whether the life ended.
        entry: float64 [n], the age at which the observation began.
        survival: float64 [n, J], the predicted S at the times of the grid.
        grid: float64 [J], ascending.
        at_entry, ahead: float64 [n], the predicted S at the entry, and at the horizon ``within`` after it.
        within: the horizon.
        unit: the unit of times.
        steps: whether the predicted curves are steps.
    """

    time: Floats
    failed: Flags
    entry: Floats
    survival: Floats
    grid: Floats
    at_entry: Floats
    ahead: Floats
    within: float
    unit: str = ""
    steps: bool = False

    @cached_property
    def expected(self) -> Floats:
        """The predicted mean life up to the last time of the grid, [n]."""
        steps = np.diff(self.grid, prepend=0.0)
        before = np.concatenate([np.ones((len(self.survival), 1)), self.survival[:, :-1]], axis=1)
        return ((before + self.survival) / 2 * steps).sum(axis=1)  # type: ignore[no-any-return]

    @cached_property
    def chance(self) -> Floats:
        """The predicted chance to fail within the horizon after the entry, [n]."""
        return 1 - self.ahead / np.maximum(self.at_entry, 1e-12)

    def described(self) -> dict[str, Any]:
        """Return the curves and the calibration as JSON.

        Returns:
            ``unit``, ``within``, ``samples`` and ``failures``; ``grid``, and at its times the mean ``predicted`` curve
            and the ``observed`` one with the bounds ``low`` and ``high`` of 95 %; ``groups`` of samples of equal size
            by their predicted chance to fail within the horizon, beside the observed one; the observed ``median`` life
            with its bounds of 95 %.
        """
        curve = SurvivalCurve.of(self.time, self.failed, self.entry)
        low, high = curve.interval()
        place = np.searchsorted(curve.times, self.grid, "right")

        def at_grid(values: Floats) -> list[float]:
            return [float(value) for value in np.concatenate([[1.0], values])[place].round(5)]

        groups = [{"samples": len(rows), "predicted": p, "observed": o} for rows, p, o in calibration_groups(self)]
        return {
            "unit": self.unit, "within": self.within, "steps": self.steps,
            "samples": len(self.time), "failures": int(self.failed.sum()),
            "grid": self.grid.tolist(), "predicted": self.survival.mean(axis=0).round(5).tolist(),
            "observed": at_grid(curve.survival), "low": at_grid(low), "high": at_grid(high), "groups": groups,
            "median": [value if math.isfinite(value) else None for value in curve.median()],
        }  # fmt: skip


def concordance(lives: Lives) -> float | None:
    """Return Harrell's C: of the pairs whose order is known, the share where the longer life has the longer forecast.

    A pair is known if the first fails at t while the other, observed at t, lasts longer; it counts ½ where forecasts
    are equal. None without such a pair. Harrell et al., JAMA 247 (1982) 2543.

    >>> time, curves = np.array([1.0, 2, 3]), np.array([[0.1], [0.2], [0.3]])
    >>> lives = Lives(time, np.array([True, False, True]), 0 * time, curves, np.ones(1), time, time, within=1.0)
    >>> concordance(lives)
    1.0
    """
    both = np.unique(np.concatenate([lives.time, lives.entry]), return_inverse=True)[1].reshape(2, -1)
    own = 2 * both[0][lives.failed]
    forecast = np.unique(lives.expected.round(9), return_inverse=True)[1]
    # of two at the same time, the one that does not fail lasts longer
    later = _pairs(own, forecast[lives.failed], 2 * both[0] + ~lives.failed, forecast)
    absent = _pairs(own, forecast[lives.failed], 2 * both[1] + 1, forecast)  # not yet observed
    right, equal, every = (more - less for more, less in zip(later, absent, strict=True))
    return (right + equal / 2) / every if every else None


def _pairs(
    own: NDArray[np.int64], value: NDArray[np.int64], other: NDArray[np.int64], others: NDArray[np.int64]
) -> tuple[int, int, int]:
    """Return the numbers of pairs with other > own: with others > value, with equal values, and of all.

    Values are whole numbers. For each bit, the larger values differ first in this bit from those that are smaller.
    """
    order = np.lexsort((np.repeat([0, 1], [len(own), len(other)]), -np.concatenate([own, other])))
    number = np.concatenate([value, others])[order]
    counts = (order >= len(own)).astype(np.int64)

    def before(key: NDArray[np.int64], counted: NDArray[np.int64], asked: Flags) -> int:
        """Return the sum over the asked places of the counted ones before them with the same key."""
        group = np.argsort(key, kind="stable")
        total = np.cumsum(counted[group])
        first = np.diff(key[group], prepend=-1) != 0
        base = (total - counted[group])[first][np.cumsum(first) - 1]
        return int((total - base)[asked[group]].sum())

    mine = counts == 0
    larger = 0
    for bit in range(int(number.max(initial=0)).bit_length()):
        high = (number >> bit & 1).astype(np.bool_)
        larger += before(number >> (bit + 1), counts * high, mine & ~high)
    return larger, before(number, counts, mine), before(np.zeros_like(number), counts, mine)


def brier(lives: Lives) -> tuple[Floats, Floats]:
    """Return times [J′] and the Brier score at each, weighted by the inverse probability of not being censored.

    B(t) = 1/n Σ_i S_i(t)² 1{T_i ≤ t, failed}/G(T_i−) + (1 − S_i(t))² 1{T_i > t}/G(t), over the n lives observed at t or
    ended before it, with S given survival until the entry, and G the Kaplan–Meier estimate of the censoring.
    Graf et al., Statistics in Medicine 18 (1999) 2529.
    """
    censoring = SurvivalCurve.of(
        np.where(lives.failed, lives.time, np.nextafter(lives.time, np.inf)), ~lives.failed, lives.entry
    )
    at_end = censoring.at(lives.time, before=True)
    grid = lives.grid
    at_time = censoring.at(grid)
    known = (at_time > 0) & (grid < lives.time.max(initial=0.0))
    predicted = np.clip(lives.survival / np.maximum(lives.at_entry[:, None], 1e-12), 0, 1)
    over = lives.failed[:, None] & (lives.time[:, None] <= grid)
    lasts = lives.time[:, None] > grid
    began = lives.entry[:, None] < grid
    with np.errstate(divide="ignore", invalid="ignore"):
        lost = np.where(over, predicted**2 / at_end[:, None], 0.0) + np.where(
            lasts, (1 - predicted) ** 2 / at_time, 0.0
        )
        score = (lost * began).sum(axis=0) / began.sum(axis=0)
    known &= np.isfinite(score)
    return grid[known], score[known]


def integrated_brier(lives: Lives) -> float | None:
    """Return the mean of the Brier score over the grid's times, by the trapezoidal rule; None without such a time."""
    times, scores = brier(lives)
    if len(times) < 2:
        return float(scores[0]) if len(times) else None
    return float((np.diff(times) * (scores[1:] + scores[:-1]) / 2).sum() / (times[-1] - times[0]))


def calibration_groups(lives: Lives) -> Sequence[tuple[NDArray[np.int64], float, float]]:
    """Return groups of equal size by the chance to fail within the horizon: rows, mean predicted, observed."""
    if len(lives.time) < LEAST:
        return []
    left = lives.time - lives.entry
    found = []
    for rows in np.array_split(np.argsort(lives.chance, kind="stable"), min(GROUPS, len(left) // (LEAST // 2))):
        curve = SurvivalCurve.of(left[rows], lives.failed[rows])
        found.append((rows, float(lives.chance[rows].mean()), float(1 - curve.at(lives.within))))
    return found


def calibration_error(lives: Lives) -> float | None:
    """Return the mean over groups of |predicted − observed| chance to fail within the horizon; None for few lives."""
    groups = calibration_groups(lives)
    total = sum(len(rows) for rows, *_ in groups)
    return sum(len(rows) * abs(p - o) for rows, p, o in groups) / total if groups else None
