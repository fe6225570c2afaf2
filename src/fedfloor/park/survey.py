"""Surveys: statistics of all devices' rows by questions to each device, whose answers are a few numbers to sum.

Two normalisations use them: by medians and quartiles, which are robust against outliers, and by operating regimes, as
a machine's settings change its sensors' values more than wear or faults.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError, nearest, require
from fedfloor.data.dataset import Values
from fedfloor.park.statistics import SMALLEST, Normalised, Step, first_rows

if TYPE_CHECKING:
    from fedfloor.park.park import Park

log = logging.getLogger(__name__)
Floats = NDArray[np.float64]
CHUNK = 1 << 16  # rows processed at a time
NUMBER_BYTES = 8  # counts, sums and positions are sent in double precision
REVEALS = {
    "sums": "the number of values of each sensor on a device, and their sum",
    "spread": "the sum of squared distances of each sensor's values from a given mean",
    "below": "the number of each sensor's values at or below given values",
    "clusters": "the number of rows nearest to each of given centres, and sums of their setting columns and squared "
                "distances",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class RowClusters:
    """Clusters of rows by the values of some columns: a row belongs to the nearest centre.

    Args:
        columns: int [d], indices of these columns among the sensors.
        mean, deviation: [d], for scaling the columns.
        centres: [k, d], scaled.
    """

    columns: NDArray[np.int64]
    mean: Floats
    deviation: Floats
    centres: Floats

    def scaled(self, x: Values) -> NDArray[np.float32]:
        """Return the scaled columns of rows [n, C, …], [n, d, …]; a missing value becomes the mean."""
        form = (1, -1, *(1,) * (x.ndim - 2))
        mean, deviation = (values.astype(np.float32).reshape(form) for values in (self.mean, self.deviation))
        s = (x[:, self.columns].astype(np.float32, copy=False) - mean) / deviation
        return np.where(np.isnan(s), np.float32(0), s)

    def nearest(self, x: Values) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the cluster of each row of [n, C, …], and its squared distance from the cluster's centre, [n, …]."""
        s = self.scaled(x)
        centres = self.centres.astype(np.float32)
        best = np.zeros((len(s), *s.shape[2:]), np.int64)
        least = np.full(best.shape, np.inf, np.float32)
        for number, centre in enumerate(centres):
            distance = np.zeros(best.shape, np.float32)
            for i, value in enumerate(centre):
                distance = distance + (s[:, i] - value) ** 2
            nearer = distance < least  # the first one in a tie
            best = np.where(nearer, number, best)
            least = np.where(nearer, distance, least)
        return best, least


@dataclass(frozen=True, eq=False)
class RowQuestion:
    """A question to every device about its rows [R, C].

    Args:
        kind: ``sums``: count and sum of the values per channel; ``spread``: Σ (x − mean)² around given means;
            ``below``: counts of the values up to each given one; ``clusters``: number of rows per cluster, sums of the
            scaled columns and of squared distances.
        about: means [k, C], or values [C, v].
        clusters: clusters with separate answers; None: one answer for all rows (k = 1).
    """

    kind: Literal["sums", "spread", "below", "clusters"]
    about: Floats | None = None
    clusters: RowClusters | None = None

    def shape(self, channels: int) -> tuple[int, ...]:
        """Return the shape of an answer for rows with ``channels`` channels."""
        k = 1 if self.clusters is None else len(self.clusters.centres)
        if self.kind == "clusters" and self.clusters is not None:
            return k, len(self.clusters.columns) + 2
        if self.kind == "below" and self.about is not None:
            return self.about.shape
        return (k, 2, channels) if self.kind == "sums" else (k, channels)

    def bounds(self, channels: int, values: int, most: float) -> tuple[Floats, Floats]:
        """Return the lower and upper bounds of an answer's numbers: counts up to ``values``, sums up to ``most``."""
        low = np.zeros(self.shape(channels))
        high = np.full(self.shape(channels), most)
        if self.kind == "below":
            high[:] = values
        elif self.kind == "sums":
            high[:, 0] = values
            low[:, 1] = -most
        elif self.kind == "clusters":
            high[:, 0] = values
            low[:, 1:-1] = -most
        return low, high

    def answer(self, rows: Values) -> Floats:
        """Return a device's answer for its rows [R, C], of :meth:`shape`."""
        total = np.zeros(self.shape(rows.shape[1]))
        for start in range(0, len(rows), CHUNK):
            total += self._answer(rows[start : start + CHUNK])
        return total

    def _answer(self, rows: Values) -> Floats:
        answer = np.zeros(self.shape(rows.shape[1]))
        x = rows.astype(np.float64)
        if self.kind == "below" and self.about is not None:
            for c, values in enumerate(self.about):
                known = np.sort(x[~np.isnan(x[:, c]), c])
                answer[c] = np.searchsorted(known, values, side="right")
            return answer
        if self.clusters is None:
            cluster = np.zeros(len(x), np.int64)
            distance = np.zeros(len(x), np.float32)
        else:
            cluster, distance = self.clusters.nearest(rows)
        for k in range(len(answer)):
            mine = cluster == k
            if self.kind == "clusters" and self.clusters is not None:
                s = self.clusters.scaled(rows[mine]).astype(np.float64)
                answer[k] = [mine.sum(), *s.sum(axis=0), distance[mine].sum(dtype=np.float64)]
            elif self.kind == "sums":
                answer[k] = (~np.isnan(x[mine])).sum(axis=0), np.nansum(x[mine], axis=0)
            elif self.about is not None:
                answer[k] = np.nansum((x[mine] - self.about[k]) ** 2, axis=0)
        return answer

    @property
    def arrays(self) -> list[Floats]:
        """The arrays of the question's numbers."""
        c = self.clusters
        arrays = (self.about, *(() if c is None else (c.mean, c.deviation, c.centres)))
        return [values for values in arrays if values is not None]

    @property
    def numbers(self) -> int:
        """The count of numbers in the question."""
        return sum(values.size for values in self.arrays)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object, the inverse of :meth:`from_dict`."""
        c = self.clusters
        return {
            "kind": self.kind,
            "about": None if self.about is None else self.about.tolist(),
            "clusters": None if c is None else {
                "columns": c.columns.tolist(), "mean": c.mean.tolist(), "deviation": c.deviation.tolist(),
                "centres": c.centres.tolist(),
            },
        }  # fmt: skip

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> RowQuestion:
        """Return a question from :meth:`to_dict`.

        Raises:
            KeyError, TypeError, ValueError: the document has another form, or numbers that cannot be used.
        """
        if document["kind"] not in ("sums", "spread", "below", "clusters"):
            raise ValueError("an unknown question")
        c = document["clusters"]
        if c is not None:
            numbers = (np.array(c[name], np.float64) for name in ("mean", "deviation", "centres"))
            c = RowClusters(np.array(c["columns"], np.int64), *numbers)
            d = c.columns.size
            right = c.mean.shape == c.deviation.shape == c.columns.shape == (d,) and c.centres.shape[1:] == (d,)
            if not right or not c.centres.size or c.deviation.min() < SMALLEST:
                raise ValueError("clusters of another shape, or deviations that are not positive")
        about = None if document["about"] is None else np.array(document["about"], np.float64)
        question = cls(document["kind"], about, c)
        if not usable(*question.arrays):
            raise ValueError("numbers that are not finite")
        return question


Ask = Callable[[RowQuestion], Floats]  # sends a question to all devices; returns the sum of their answers


@dataclass(eq=False)
class RowSurvey:
    """A survey of all devices that records its cost; ``everyone`` returns the sum of answers in device order."""

    everyone: Ask
    steps: list[Step] = field(default_factory=list, init=False)

    def ask(self, question: RowQuestion) -> Floats:
        """Return the sum of the devices' answers, and record the cost."""
        answer = self.everyone(question)
        self.steps.append(Step(question.kind, NUMBER_BYTES * question.numbers, NUMBER_BYTES * answer.size))
        return answer

    def finish(self, normaliser: str, numbers: int) -> tuple[Step, ...]:
        """Log the questions; return the steps, the last of which delivers the result's ``numbers`` to each device."""
        steps = (*self.steps, Step("result", NUMBER_BYTES * numbers, 0))
        down = sum(step.down for step in steps)
        up = sum(step.up for step in steps)
        log.info("normalise = '%s': %d questions to every device before round 1, %s bytes down and %s bytes up each; "
                 "answers are sums over a device's rows without noise.",
                 normaliser, len(self.steps), f"{down:,}", f"{up:,}")  # fmt: skip
        return steps

    def moments(self, clusters: RowClusters | None = None) -> tuple[Floats, Floats, Floats]:
        """Return count, mean and deviation [k, C] by two questions; NaN without values, 0 if constant."""
        count, total = np.moveaxis(self.ask(RowQuestion("sums", None, clusters)), 1, 0)
        mean = total / np.where(count > 0, count, np.nan)
        spread = self.ask(RowQuestion("spread", np.nan_to_num(mean), clusters))
        deviation = np.sqrt(spread / np.where(count > 0, count, np.nan))
        constant = deviation <= np.maximum(1e-14 * np.abs(mean), SMALLEST)
        return count, mean, np.where(constant, 0.0, deviation)


def sums_of_each(answers: Sequence[tuple[RowQuestion, Floats]], regimes: Regimes | None = None) -> Floats | None:
    """Return n, S = Σ v and D = Σ (v − S/n)² of each device's values [K, 3, C]; None if they were not asked for.

    With the sum Q = Σ (v − a)² around a given a, and regimes r with mean m_r and deviation s_r: S is the sum over r of
    (S_r − n_r·m_r)/s_r, and D + S²/n that of (Q_r + (a_r − m_r)·(2·S_r − n_r·(a_r + m_r)))/s_r².

    Args:
        answers: questions with the answers of K devices, [K, …] each.
        regimes: those by which values are normalised; None: values as they are stored.
    """
    known = {
        question.kind: (question, each)
        for question, each in answers
        if (question.clusters is None) == (regimes is None)
    }
    if not {"sums", "spread"} <= known.keys():
        return None
    count, total = np.moveaxis(known["sums"][1], 2, 0)
    question, squares = known["spread"]
    around = question.arrays[0]
    middle = around if regimes is None else regimes.mean
    width = np.ones_like(around) if regimes is None else regimes.deviation
    moved = (total - count * middle) / width
    squares = (squares + (around - middle) * (2 * total - count * (around + middle))) / width**2
    n = count.sum(axis=1)
    apart = squares.sum(axis=1) - moved.sum(axis=1) ** 2 / np.maximum(n, 1)
    return np.stack([n, (total if regimes is None else moved).sum(axis=1), np.maximum(apart, 0.0)], axis=1)


def usable(*values: Floats) -> bool:
    """Return whether numbers are finite in single precision, the type of normalised samples."""
    with np.errstate(over="ignore"):
        return all(bool(np.isfinite(v.astype(np.float32)).all()) for v in values)


def rows_of(park: Park, device: int) -> Values:
    """Return the rows [R, C] of a device's training samples, each once."""
    mine = park.indices[device]
    first = park.dataset.first
    return first_rows(park.samples(device)[0], None if first is None else first[mine], None)


def added(answers: Iterable[Floats]) -> Floats:
    """Return the sum of answers in their order, equal to the bit in simulations and on real devices."""
    return reduce(np.add, answers)


def simulated_survey(park: Park) -> RowSurvey:
    """Return a survey of a park with all samples in this process."""
    held = [rows_of(park, device) for device in range(park.devices)]
    return RowSurvey(lambda question: added(question.answer(rows) for rows in held))


BINS = 16
NORMAL = 1.3489795003921634  # distance between the quartiles of a normal distribution with deviation 1
SHARES = (0.25, 0.5, 0.75)


@dataclass(frozen=True, eq=False)
class Quartiles:
    """Centre and scale of each sensor.

    Args:
        median, scale: [C].
    """

    median: Floats
    scale: Floats

    @property
    def numbers(self) -> int:
        """The count of numbers in the result."""
        return 2 * len(self.median)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object, the inverse of :meth:`from_dict`."""
        return {"median": self.median.tolist(), "scale": self.scale.tolist()}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], channels: int) -> Quartiles:
        """Return the inverse of :meth:`to_dict`.

        Raises:
            KeyError, TypeError, ValueError: the document has another form or other channels, or its numbers are not
                finite.
        """
        median, scale = (np.array(document[key], np.float64) for key in ("median", "scale"))
        if not median.shape == scale.shape == (channels,) or not usable(median, scale) or scale.min() < SMALLEST:
            raise ValueError("quartiles of another shape, or scales that are not positive")
        return cls(median, scale)

    def prepare(self, park: Park, steps: tuple[Step, ...] = ()) -> Park:
        """Return a park whose network scales samples by this centre and scale."""
        alike = (self.median, self.scale)
        return replace(park, normalised=Normalised({}, lambda x, device: x, dict, alike, steps))  # noqa: ARG005


@dataclass(frozen=True)
class RobustNormaliser:
    """Normalisation by the median and quartiles of all devices' training rows: value = (x − median)/((Q3 − Q1)/1.349).

    Quantile q is the smallest value with at least a share q of all values at or below it. By Cantelli's inequality the
    quartiles are within mean ± √3·deviation, known after two questions; each round divides that range into 16 bins,
    obtains the counts at their edges from every device, and continues in the bin of the quantile. After R rounds the
    error of the bin's middle is at most √3·deviation/16^R: 3·10⁻⁵ deviations for R = 4. If the quartiles' distance
    is at most a bin's width, most values are equal, and the deviation replaces it (1 if that is 0).

    Reference: Cantelli, "Sui confini della probabilità", 1928.

    Args:
        rounds: R.
    """

    kind: Literal["robust"] = field(default="robust", kw_only=True)
    rounds: int = 4

    def __post_init__(self) -> None:
        require(1 <= self.rounds <= 12, "data.normalise.rounds", self.rounds, "a whole number from 1 to 12")

    def learn(self, survey: RowSurvey, sensors: tuple[str, ...], seed: int) -> Quartiles:  # noqa: ARG002
        """Return the median and the scale of each channel [C], from questions to the survey's devices."""
        count, mean, deviation = (values[0] for values in survey.moments())
        reach = np.sqrt(3) * np.nan_to_num(deviation) * (1 + 1e-9)
        low = np.repeat((np.nan_to_num(mean) - reach)[:, None], len(SHARES), axis=1)  # [C, 3]
        width = np.repeat(2 * reach[:, None], len(SHARES), axis=1)
        for _ in range(self.rounds):
            edges = low[:, :, None] + width[:, :, None] * np.arange(1, BINS) / BINS
            below = survey.ask(RowQuestion("below", edges.reshape(len(low), -1))).reshape(edges.shape)
            bin_of = (below < (np.array(SHARES) * count[:, None])[:, :, None]).sum(axis=2)
            low = low + width * bin_of / BINS
            width = width / BINS
        first, median, third = np.moveaxis(low + width / 2, 1, 0)
        apart = third - first
        error = width[:, 0]
        spread = np.where(apart > error, apart / NORMAL, np.nan_to_num(deviation))
        return Quartiles(median, np.where(spread > 0, spread, 1.0))

    asks: ClassVar = ("sums", "spread", "below")  # kinds of its questions
    from_dict = staticmethod(Quartiles.from_dict)

    @property
    def questions(self) -> int:
        """The largest number of questions to each device."""
        return 2 + self.rounds

    def largest(self, sensors: int) -> int:
        """Return the largest count of numbers in a question on so many sensors."""
        return len(SHARES) * (BINS - 1) * sensors


SETTLE = 3  # rounds of Lloyd's algorithm after each split
LEAST = 1e-9  # mean squared distance of the rows below which clusters are not split further


@dataclass(frozen=True, eq=False)
class Regimes:
    """Operating regimes, and the normalisation of the sensors in each.

    Args:
        clusters: the regimes as clusters of the setting columns.
        mean, deviation: [k, C], of each sensor in each regime.
    """

    clusters: RowClusters
    mean: Floats
    deviation: Floats

    def apply(self, x: Values) -> Values:
        """Return samples [n, C] or windows [n, C, L], with each row normalised by its regime."""
        regime = self.clusters.nearest(x)[0]
        mean, deviation = (values.astype(np.float32)[regime] for values in (self.mean, self.deviation))
        if x.ndim == 3:
            mean = np.moveaxis(mean, 2, 1)
            deviation = np.moveaxis(deviation, 2, 1)
        values: NDArray[np.float32] = x.astype(np.float32, copy=False)
        result: NDArray[np.float32] = np.divide(values - mean, deviation, dtype=np.float32)
        return result

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object, the inverse of :meth:`from_dict`."""
        return {
            "columns": self.clusters.columns.tolist(), "centre": self.clusters.mean.tolist(),
            "spread": self.clusters.deviation.tolist(), "regimes": self.clusters.centres.tolist(),
            "means": self.mean.tolist(), "deviations": self.deviation.tolist(),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], channels: int) -> Regimes:
        """Return the inverse of :meth:`to_dict`.

        Raises:
            KeyError, TypeError, ValueError: the document has another form.
        """
        keys = ("centre", "spread", "regimes", "means", "deviations")
        mean, deviation, centres, means, deviations = (np.array(document[key], np.float64) for key in keys)
        columns = np.array(document["columns"], np.int64)
        k, d = centres.shape
        right = mean.shape == deviation.shape == columns.shape == (d,)
        right &= means.shape == deviations.shape == (k, channels) and min(k, d) > 0
        finite = usable(mean, deviation, centres, means, deviations)
        if not right or not finite or min(deviation.min(), deviations.min()) < SMALLEST:
            raise ValueError("regimes of another shape, or deviations that are not positive")
        if columns.min() < 0 or columns.max() >= channels:
            raise ValueError("setting columns that the samples do not have")
        return cls(RowClusters(columns, mean, deviation, centres), means, deviations)

    @property
    def numbers(self) -> int:
        """The count of numbers in the result."""
        c = self.clusters
        return sum(values.size for values in (c.mean, c.deviation, c.centres, self.mean, self.deviation))

    def prepare(self, park: Park, steps: tuple[Step, ...] = ()) -> Park:
        """Return a park with its samples normalised by these regimes."""
        data = park.dataset
        taken = replace(
            data,
            take=lambda indices, device: self.apply(data.take(indices, device)),
            take_test=lambda indices: self.apply(data.take_test(indices)),
        )
        about = {"kind": "regime", "regimes": self.to_dict()}
        done = Normalised(about, lambda x, device: self.apply(x), dict, steps=steps, stored=data)  # noqa: ARG005
        return replace(park, dataset=taken, normalised=done)


@dataclass(frozen=True)
class RegimeNormaliser:
    """Normalisation by mean and deviation of all devices' rows in a row's operating regime: value = (x − m_r)/s_r.

    Regimes are clusters of rows by the scaled setting columns, found by k-means over devices, which answer with counts,
    sums and squared distances per cluster, never with rows. Starting with one cluster, the cluster with the largest
    squared distances is split at a position drawn by the seed, followed by three rounds of Lloyd's algorithm, until
    there are k; then rounds follow until no centre moves. Empty clusters are left out. The setting columns themselves
    are normalised over all rows. A sensor that is constant in a regime is divided by its deviation within all regimes
    (by 1 if that is also 0); a sensor without values in a regime is normalised over all rows.

    Lloyd, IEEE Trans. Inf. Theory 28 (1982) 129, doi:10.1109/TIT.1982.1056489; splitting as Linde, Buzo and Gray, IEEE
    Trans. Commun. 28 (1980) 84, doi:10.1109/TCOM.1980.1094577.

    Args:
        columns: names of the setting columns.
        regimes: k.
        rounds: largest number of final rounds of Lloyd's algorithm.
    """

    columns: tuple[str, ...]
    regimes: int
    kind: Literal["regime"] = field(default="regime", kw_only=True)
    rounds: int = 20

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        require(len(self.columns) > 0, "data.normalise.columns", list(self.columns), "the names of setting columns")
        require(2 <= self.regimes <= 100, "data.normalise.regimes", self.regimes, "a whole number from 2 to 100")
        require(1 <= self.rounds <= 1000, "data.normalise.rounds", self.rounds, "a whole number from 1 to 1000")

    def places(self, sensors: tuple[str, ...]) -> NDArray[np.int64]:
        """Return the indices of the setting columns among the sensors.

        Raises:
            SettingError: a column is not a sensor.
        """
        for name in self.columns:
            if name not in sensors:
                raise SettingError(
                    f"[data] normalise columns: '{name}' is not a sensor.{nearest(name, sensors)} They are "
                    f"{', '.join(sensors)}."
                )
        return np.array([sensors.index(name) for name in self.columns], np.int64)

    def learn(self, survey: RowSurvey, sensors: tuple[str, ...], seed: int) -> Regimes:
        """Return the regimes, from questions to the survey's devices; errors as of :meth:`places`."""
        places = self.places(sensors)
        _, mean, deviation = (values[0] for values in survey.moments())
        known = np.where(np.nan_to_num(deviation) > 0, deviation, 1.0)
        centre = np.nan_to_num(mean)
        first = RowClusters(places, centre[places], known[places], np.zeros((1, len(places))))
        clusters = self._clusters(survey, first, seed)
        count, means, deviations = survey.moments(clusters)
        within = np.sqrt(np.nansum(count * deviations**2, axis=0) / np.maximum(count.sum(axis=0), 1))
        within = np.where(within > 0, within, 1.0)
        empty = count == 0
        deviations = np.where(empty, known, np.where(np.nan_to_num(deviations) > 0, deviations, within))
        means = np.where(empty, centre, means)
        means[:, places] = centre[places]
        deviations[:, places] = known[places]
        return Regimes(clusters, means, deviations)

    def _clusters(self, survey: RowSurvey, clusters: RowClusters, seed: int) -> RowClusters:
        rng = generator(seed, "regimes")
        answer = survey.ask(RowQuestion("clusters", None, clusters))
        while len(clusters.centres) < self.regimes and answer[:, -1].sum() > LEAST * answer[:, 0].sum():
            worst = int(answer[:, -1].argmax())
            many = max(answer[worst, 0], 1.0)  # of no rows a device may state distances all the same
            reach = np.sqrt(answer[worst, -1] / many / len(self.columns))
            step = reach * rng.standard_normal(len(self.columns))
            centres = np.concatenate([clusters.centres, clusters.centres[[worst]] + step])
            centres[worst] -= step
            clusters = replace(clusters, centres=centres)
            for _ in range(SETTLE):
                clusters, answer, _ = _moved(survey, clusters)
        for _ in range(self.rounds):
            clusters, answer, still = _moved(survey, clusters)
            if still:
                break
        filled = answer[:, 0] > 0
        if filled.sum() < self.regimes:
            log.warning("[data] normalise: the rows of %s have %d regimes, fewer than regimes = %d.",
                        ", ".join(self.columns), filled.sum(), self.regimes)  # fmt: skip
        return replace(clusters, centres=clusters.centres[filled])

    asks: ClassVar = ("sums", "spread", "clusters")  # kinds of its questions
    from_dict = staticmethod(Regimes.from_dict)

    @property
    def questions(self) -> int:
        """The largest number of questions to each device."""
        return 2 + 1 + SETTLE * (self.regimes - 1) + self.rounds + 2

    def largest(self, sensors: int) -> int:
        """Return the largest count of numbers in a question on so many sensors."""
        return (2 + self.regimes) * len(self.columns) + self.regimes * sensors


def _moved(survey: RowSurvey, clusters: RowClusters) -> tuple[RowClusters, Floats, bool]:
    """Return clusters with each centre at the mean of its rows, their answer, and whether no centre moved."""
    answer = survey.ask(RowQuestion("clusters", None, clusters))
    many = answer[:, :1]
    centres = np.where(many > 0, answer[:, 1:-1] / np.maximum(many, 1), clusters.centres)
    still = bool(np.abs(centres - clusters.centres).max() < 1e-6)
    return replace(clusters, centres=centres), answer, still
