"""Intervals of metrics over seeds and test samples, tests of differences, and their correction for several comparisons.

A metric varies with the seed (first weights, mini-batches, devices) and with the samples that happened to be tested.
Seeds give a Student-t interval, draws of test units a bootstrap interval; both together are combined as independent
parts of the error: L = m − √((m − l_seeds)² + (m − l_tests)²) (Zou and Donner, Statistics in Medicine 27 (2008) 1693).
A difference between two models that are tested on the same n units is held against the exact test that exchanges the
models in units, which is the same for all 2^n choices of units if the models are equal (Fisher, The Design of
Experiments, 1935): no p-value is below 2/2^n, and at a level beyond that no interval is known.
Draws of samples without an error have no error either, so that a share near 0 or 1 has the interval of Clopper and
Pearson (Biometrika 26 (1934) 404): of n right samples of n, it begins at (α/2)^(1/n).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.chance import resampled
from fedfloor.base.names import count
from fedfloor.report.evaluation_records import EvaluationRecord
from fedfloor.report.groups import varied
from fedfloor.report.ledger import RecordedRun
from fedfloor.report.numbers import listed
from fedfloor.tasks.figures import ACCURACY, Figure

LEVEL = 0.95
DEFINED = 0.9  # least share of draws in which a metric must be defined
STEPS = 30  # bisections of a p-value
FEW_UNITS = 12  # up to which the models are exchanged in all sets of units
LINEAR = 0.5  # least share of the variance of draws that the units' contributions explain
FEW_ERRORS = 10  # below which the draws of a share are coarse
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Draws:
    """A metric in draws of the test units of one run or of a difference between two.

    Args:
        unit, units: the noun and the number of the units.
        values: float64 [draws], NaN where the metric is undefined.
        trials: of a share, the number of units, or of test samples of the rarest class that it judges, if these are
            fewer; 0 for other metrics.
    """

    unit: str
    units: int
    values: Floats
    trials: int = 0

    def minus(self, other: Draws | None) -> Draws | None:
        """Return the differences draw by draw; None if the draws are not of the same units."""
        if other is None or (self.unit, self.units, len(self.values)) != (other.unit, other.units, len(other.values)):
            return None
        return Draws(self.unit, self.units, self.values - other.values)


def draws(run: RecordedRun, figure: Figure, number: int) -> Draws | None:
    """Return the draws of a metric of a run's model after a round; None if only another round's are recorded."""
    final = run.evaluation
    if final is None or final.resampled is None or final.round != number or final.resampled.units < 2:
        return None
    values = np.array(final.resampled.figures.get(figure.name, ()), np.float64)
    known = int(np.isfinite(values).sum())
    sound = known >= max(1, DEFINED * len(values))
    trials = _trials(final, figure) if figure.share else 0
    return Draws(final.resampled.unit, final.resampled.units, values, trials) if sound else None


def _trials(final: EvaluationRecord, figure: Figure) -> int:
    """Return the number of units of a share, or of test samples of the rarest class that it judges, if fewer."""
    units = final.resampled.units if final.resampled else 0
    samples = [sum(row) for name, row in zip(final.classes, final.confusion, strict=True) if figure.of in ("", name)]
    return units if figure == ACCURACY else min([units, *filter(None, samples)])


@dataclass(frozen=True, eq=False)
class Estimate:
    """A metric, or a difference of metrics, with one value per seed.

    Args:
        values: one value per seed, at least one.
        tests: the draws of test units of each seed; empty if any is unknown.
        same: whether all seeds have the same test samples. If not, the spread of seeds contains that of tests; as a few
            seeds may agree by chance, the interval is at least that of their test units, drawn independently.
        paired: whether the values are differences of two models that were tested on the same units.
    """

    values: tuple[float, ...]
    tests: tuple[Draws, ...] = ()
    same: bool = True
    paired: bool = False

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return sum(self.values) / len(self.values)

    @property
    def seeded(self) -> bool:
        """Whether seeds differ by more than rounding errors."""
        return varied(self.values)

    @cached_property
    def _means(self) -> Floats | None:
        """The means over the seeds in draws of the same test units, as drawn; None without draws to be used."""
        if not self.tests or (self.seeded and not self.same):
            return None
        if len({(one.unit, one.units, len(one.values)) for one in self.tests}) > 1:
            return None
        return np.array(np.mean([one.values for one in self.tests], axis=0))

    @cached_property
    def drawn(self) -> Floats | None:
        """The ascending means over the seeds in draws of the same test units; None without draws to be used."""
        return None if self._means is None else np.sort(self._means[np.isfinite(self._means)])

    @cached_property
    def _apart(self) -> Floats | None:
        """The ascending means over the seeds in independent draws of test units of their own; None without them."""
        many = len(self.values)
        if self.same or not self.seeded or len(self.tests) < many or len({len(one.values) for one in self.tests}) > 1:
            return None
        step = len(self.tests[0].values) // many  # equal numbers of units have equal draws, in the same order
        means = np.mean([np.roll(one.values, step * place) for place, one in enumerate(self.tests)], axis=0)
        return np.sort(means[np.isfinite(means)])

    @cached_property
    def _parts(self) -> Floats | None:
        """The contributions [units] of few test units, whose mean is the difference; None if they do not explain it.

        They are the least squares of the draws, whose units are known: exact for means over units of the same size.
        """
        if self._means is None or self.tests[0].units > FEW_UNITS:
            return None
        known = np.isfinite(self._means)
        values = self._means[known]
        shares = _shares(self.tests[0].units, len(known))[known]
        parts = np.linalg.lstsq(shares, values)[0]
        if np.var(values - shares @ parts) > (1 - LINEAR) * np.var(values):
            return None
        return np.array(parts + self.mean - parts.mean())

    @property
    def over(self) -> str:
        """The sources of variation as text, such as "3 seeds and 5 test recordings"; "" without any."""
        parts = [count(len(self.values), "seed")] if self.seeded else []
        if self.drawn is not None:
            noun = f"test {self.tests[0].unit}"
            plural = noun.replace("stretch of", "stretches of") if "stretch" in noun else ""
            parts += [count(self.tests[0].units, noun, plural)]
        return listed(parts) if parts else ""

    def bounds(self, level: float = LEVEL) -> tuple[float, float] | None:
        """Return the ends of the interval at a level; None if nothing, or too few test units, show how it varies."""
        if not self.over:
            return None
        units = self.tests[0].units if self.paired and self.drawn is not None else math.inf
        if 1 - level < 2.0 ** (1 - units):
            return None
        below = above = 0.0
        if self.seeded:
            below = above = _half_width(self.values, level)
        if self.drawn is not None:
            low, high = _ends(self.drawn, level, self.tests[0].units)
            if exact := self._exact(level, self.drawn, min(draws.trials for draws in self.tests)):
                low, high = min(low, exact[0]), max(high, exact[1])
            if self.paired and self._parts is not None:
                exchanged = _exchanged(self._parts, 1 - level)
                low, high = min(low, exchanged[0]), max(high, exchanged[1])
            below = math.hypot(below, max(0.0, self.mean - low))
            above = math.hypot(above, max(0.0, high - self.mean))
        elif self._apart is not None:
            low, high = _ends(self._apart, level, sum(draws.units for draws in self.tests))
            trials = [draws.trials for draws in self.tests]
            if exact := self._exact(level, self._apart, sum(trials) if all(trials) else 0):
                low, high = min(low, exact[0]), max(high, exact[1])
            below, above = max(below, self.mean - low), max(above, high - self.mean)
        return self.mean - below, self.mean + above

    def _exact(self, level: float, drawn: Floats, n: int) -> tuple[float, float] | None:
        """Return the interval of Clopper and Pearson of a share that is 0 or 1 in all draws, or has few errors.

        Few errors count where each unit is a sample that is right or wrong.
        """
        from scipy.special import betaincinv

        if not n:
            return None
        right, wrong = (round(n * share, 6) for share in (self.mean, 1 - self.mean))
        flat = self.mean in (0, 1) and np.ptp(drawn) == 0
        single = all(one.unit == "sample" and one.trials == one.units for one in self.tests)
        if not flat and (not single or min(right, wrong) >= FEW_ERRORS):
            return None
        low = float(betaincinv(right, wrong + 1, (1 - level) / 2)) if right else 0.0
        return low, float(betaincinv(right + 1, wrong, (1 + level) / 2)) if wrong else 1.0

    @property
    def chance(self) -> float | None:
        """The p-value of a difference, two-sided: the level at which the interval ends at 0; None without one."""
        if not self.over:
            return None
        # 1 − level: with 0 inside the interval, and outside
        inside = 0.0
        outside = 1.0
        for _ in range(STEPS):
            middle = (inside + outside) / 2
            ends = self.bounds(1 - middle)
            if ends is None or ends[0] <= 0 <= ends[1]:
                inside = middle
            else:
                outside = middle
        return outside

    def describe(self) -> dict[str, Any]:
        """Return the interval as keys of a row: ``low``, ``high``, ``over``; None without an interval."""
        low, high = self.bounds() or (None, None)
        return {"low": low, "high": high, "over": self.over or None}


def _half_width(values: Sequence[float], level: float) -> float:
    """Return t(½ + level/2, n − 1) · s / √n."""
    from scipy.special import stdtrit

    n = len(values)
    return float(stdtrit(n - 1, 0.5 + level / 2) * np.std(values, ddof=1)) / math.sqrt(n)


def _ends(drawn: Floats, level: float, units: int) -> tuple[float, float]:
    """Return the ends of an interval of ascending draws of n units at a level.

    They are percentiles at Φ(√(n/(n − 1))·t(½ − level/2, n − 1)) and at one minus this share, as the usual ones are too
    narrow for few units: Hesterberg, The American Statistician 69 (2015) 371. For the mean of normal units they are
    Student's. Where the share is less than half a draw, they are at least as far away as Student's.
    """
    from scipy.special import ndtr, stdtrit

    wide = math.sqrt(units / (units - 1)) * -float(stdtrit(units - 1, 0.5 - level / 2))
    share = float(ndtr(-wide))
    low, high = (float(end) for end in np.quantile(drawn, (share, 1 - share)))
    if share * len(drawn) < 0.5:
        middle = float(drawn.mean())
        away = wide * float(drawn.std())
        low, high = min(low, middle - away), max(high, middle + away)
    return low, high


@lru_cache(maxsize=4)
def _shares(units: int, many: int) -> Floats:
    """Return the share of each unit in each of many draws, [many, units]."""
    drawn = [np.bincount(draw, minlength=units) for draw in islice(resampled(units), many)]
    return np.array(drawn, np.float64) / units


@lru_cache(maxsize=4)
def _signs(units: int) -> Floats:
    """Return +1 where two models keep their places and −1 where they are exchanged, in all ways, [2^units, units]."""
    bits = np.arange(2**units)[:, None] >> np.arange(units) & 1
    return np.array(1.0 - 2.0 * bits, np.float64)


def _exchanged(parts: Floats, chance: float) -> tuple[float, float]:
    """Return the ends of the differences δ that have a p-value above ``chance`` ≥ 2/2^n in the exact test.

    p(δ) is the share of signs s with |Σ s_u (d_u − δ)| ≥ |Σ (d_u − δ)|, for the contributions d of n units.
    """
    signs = _signs(len(parts))
    mean = float(parts.mean())
    sums = signs @ parts
    balance = signs.sum(axis=1)
    slack = 1e-9 * (float(np.abs(parts).max()) + float(np.ptp(parts)))

    def end(outside: float) -> float:
        inside = mean
        for _ in range(STEPS):
            middle = (inside + outside) / 2
            apart = abs(len(parts) * (mean - middle)) - slack
            if (np.abs(sums - middle * balance) >= apart).mean() > chance:
                inside = middle
            else:
                outside = middle
        return outside

    return end(float(parts.min())), end(float(parts.max()))


def holm(chances: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for their number by Holm's method; None for None, which do not count.

    The i-th smallest of m, counted from 0, becomes the largest of (m − j)·p_j over j ≤ i, at most 1. Holm, Scandinavian
    Journal of Statistics 6 (1979) 65.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    known = sorted((chance, place) for place, chance in enumerate(chances) if chance is not None)
    corrected: list[float | None] = [None] * len(chances)
    largest = 0.0
    for rank, (chance, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * chance))
        corrected[place] = largest
    return corrected
