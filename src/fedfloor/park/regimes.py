"""Normalisation by operating regimes: what a machine is set to moves its sensors more than wear or faults do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedfloor.chance import generator
from fedfloor.data.dataset import Values
from fedfloor.errors import SettingError, nearest, require
from fedfloor.park.normalised import Normalised, Step
from fedfloor.park.statistics import SMALLEST
from fedfloor.park.survey import Clusters, Floats, Question, Survey, usable

if TYPE_CHECKING:
    from fedfloor.park.park import Park

log = logging.getLogger(__name__)
SETTLE = 3  # rounds of Lloyd's algorithm after each split
LEAST = 1e-9  # squared distances of all rows together, per row, below which there is nothing left to split


@dataclass(frozen=True, eq=False)
class Regimes:
    """Regimes, and how the sensors are normalised in each.

    Args:
        clusters: the regimes by their setting columns.
        mean, deviation: [k, C].
    """

    clusters: Clusters
    mean: Floats
    deviation: Floats

    def apply(self, x: Values) -> Values:
        """Return samples [n, C] or windows [n, C, L] normalised, each row by its own regime."""
        regime = self.clusters.nearest(x)[0]
        mean, deviation = (one.astype(np.float32)[regime] for one in (self.mean, self.deviation))
        if x.ndim == 3:
            mean, deviation = np.moveaxis(mean, 2, 1), np.moveaxis(deviation, 2, 1)
        values: NDArray[np.float32] = x.astype(np.float32, copy=False)
        found: NDArray[np.float32] = np.divide(values - mean, deviation, dtype=np.float32)
        return found

    def told(self) -> dict[str, Any]:
        """Return them as JSON."""
        return {
            "columns": self.clusters.columns.tolist(), "centre": self.clusters.mean.tolist(),
            "spread": self.clusters.deviation.tolist(), "regimes": self.clusters.centres.tolist(),
            "means": self.mean.tolist(), "deviations": self.deviation.tolist(),
        }  # fmt: skip

    @classmethod
    def read(cls, told: Mapping[str, Any], channels: int) -> Regimes:
        """Return regimes as :meth:`told` has them.

        Raises:
            KeyError, TypeError, ValueError: they are something else.
        """
        keys = ("centre", "spread", "regimes", "means", "deviations")
        mean, deviation, centres, means, deviations = (np.array(told[key], np.float64) for key in keys)
        columns = np.array(told["columns"], np.int64)
        k, d = centres.shape
        right = mean.shape == deviation.shape == columns.shape == (d,)
        right &= means.shape == deviations.shape == (k, channels) and min(k, d) > 0
        finite = usable(mean, deviation, centres, means, deviations)
        if not right or not finite or min(deviation.min(), deviations.min()) < SMALLEST:
            raise ValueError("regimes of another shape, or deviations that are not above 0")
        if columns.min() < 0 or columns.max() >= channels:
            raise ValueError("setting columns that the samples do not have")
        return cls(Clusters(columns, mean, deviation, centres), means, deviations)

    @property
    def numbers(self) -> int:
        """How many numbers these are."""
        c = self.clusters
        return sum(one.size for one in (c.mean, c.deviation, c.centres, self.mean, self.deviation))

    def prepare(self, park: Park, steps: tuple[Step, ...] = ()) -> Park:
        """Return a park with its samples normalised by these regimes."""
        data = park.dataset
        taken = replace(
            data,
            take=lambda indices, device: self.apply(data.take(indices, device)),
            take_test=lambda indices: self.apply(data.take_test(indices)),
        )
        about = {"kind": "regime", "regimes": self.told()}
        done = Normalised(about, lambda x, device: self.apply(x), dict, steps=steps)  # noqa: ARG005
        return replace(park, dataset=taken, normalised=done)


@dataclass(frozen=True)
class RegimeNormaliser:
    """Each row by the mean and the deviation of all devices' rows in its operating regime: (x − m_r)/s_r.

    Regimes are clusters of rows by the setting columns, on one scale, found by k-means over devices: each answers with
    counts, sums and squared distances per cluster, never rows. There is one cluster to begin with; the one with the
    largest squared distances is split at a place drawn by the seed, and three rounds of Lloyd's algorithm follow, until
    there are k; then rounds until no centre moves. Empty clusters are left out. The setting columns themselves are
    normalised by all rows. A sensor that is constant in a regime is divided by its deviation within regimes, taken over
    all of them (by 1 if that is 0, too); one without a value in a regime is normalised as in all rows.

    Lloyd, IEEE Trans. Inf. Theory 28 (1982) 129, doi:10.1109/TIT.1982.1056489; splitting as Linde, Buzo and Gray, IEEE
    Trans. Commun. 28 (1980) 84, doi:10.1109/TCOM.1980.1094577.

    Args:
        columns: the setting columns, by name.
        regimes: k.
        rounds: of Lloyd's algorithm in the end, at most.
    """

    columns: tuple[str, ...]
    regimes: int
    kind: Literal["regime"] = "regime"
    rounds: int = 20

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        require(len(self.columns) > 0, "data.normalise.columns", list(self.columns), "the names of setting columns")
        require(2 <= self.regimes <= 100, "data.normalise.regimes", self.regimes, "a whole number from 2 to 100")
        require(1 <= self.rounds <= 1000, "data.normalise.rounds", self.rounds, "a whole number from 1 to 1000")

    def places(self, sensors: tuple[str, ...]) -> NDArray[np.int64]:
        """Return the places of the setting columns among the sensors.

        Raises:
            SettingError: a column that is none of the sensors.
        """
        for name in self.columns:
            if name not in sensors:
                raise SettingError(
                    f"[data] normalise columns: '{name}' is none of the sensors.{nearest(name, sensors)} They are "
                    f"{', '.join(sensors)}."
                )
        return np.array([sensors.index(name) for name in self.columns], np.int64)

    def fit(self, survey: Survey, sensors: tuple[str, ...], seed: int) -> Regimes:
        """Return the regimes.

        Raises:
            SettingError: a column that is none of the sensors.
        """
        places = self.places(sensors)
        _, mean, deviation = (one[0] for one in survey.moments())
        known = np.where(np.nan_to_num(deviation) > 0, deviation, 1.0)
        centre = np.nan_to_num(mean)
        first = Clusters(places, centre[places], known[places], np.zeros((1, len(places))))
        clusters = self._clusters(survey, first, seed)
        count, means, deviations = survey.moments(clusters)
        within = np.sqrt(np.nansum(count * deviations**2, axis=0) / np.maximum(count.sum(axis=0), 1))
        within = np.where(within > 0, within, 1.0)
        empty = count == 0
        deviations = np.where(empty, known, np.where(np.nan_to_num(deviations) > 0, deviations, within))
        means = np.where(empty, centre, means)
        means[:, places], deviations[:, places] = centre[places], known[places]
        return Regimes(clusters, means, deviations)

    def _clusters(self, survey: Survey, clusters: Clusters, seed: int) -> Clusters:
        rng = generator(seed, "regimes")
        answer = survey.ask(Question("clusters", None, clusters))
        while len(clusters.centres) < self.regimes and answer[:, -1].sum() > LEAST * answer[:, 0].sum():
            worst = int(answer[:, -1].argmax())
            reach = np.sqrt(answer[worst, -1] / answer[worst, 0] / len(self.columns))
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
        there = answer[:, 0] > 0
        if there.sum() < self.regimes:
            log.warning("[data] normalise: the rows of %s have %d regimes; %d were asked for.",
                        ", ".join(self.columns), there.sum(), self.regimes)  # fmt: skip
        return replace(clusters, centres=clusters.centres[there])

    @property
    def asks(self) -> tuple[str, ...]:
        """The kinds of its questions."""
        return ("sums", "spread", "clusters")

    @property
    def questions(self) -> int:
        """The greatest number of questions that each device is asked."""
        return 2 + 1 + SETTLE * (self.regimes - 1) + self.rounds + 2

    def largest(self, sensors: int) -> int:
        """Return how many numbers a question about so many sensors holds at most."""
        return (2 + self.regimes) * len(self.columns) + self.regimes * sensors

    def learn(self, survey: Survey, sensors: tuple[str, ...], seed: int) -> Regimes:
        """Return the regimes, as every normaliser by questions does."""
        return self.fit(survey, sensors, seed)

    def read(self, told: Mapping[str, Any], channels: int) -> Regimes:
        """Return regimes from JSON, as :meth:`Regimes.read` does."""
        return Regimes.read(told, channels)


def _moved(survey: Survey, clusters: Clusters) -> tuple[Clusters, Floats, bool]:
    """Return clusters with each centre at the mean of its rows, the answer for these, and whether none moved."""
    answer = survey.ask(Question("clusters", None, clusters))
    many = answer[:, :1]
    centres = np.where(many > 0, answer[:, 1:-1] / np.maximum(many, 1), clusters.centres)
    still = bool(np.abs(centres - clusters.centres).max() < 1e-6)
    return replace(clusters, centres=centres), answer, still
