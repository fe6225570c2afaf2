"""Normalisation by medians and quartiles of all devices, which a few wild values do not move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedfloor.errors import require
from fedfloor.park.normalised import Normalised, Step
from fedfloor.park.statistics import SMALLEST
from fedfloor.park.survey import Floats, Question, Survey, usable

if TYPE_CHECKING:
    from fedfloor.park.park import Park

BINS = 16
NORMAL = 1.3489795003921634  # distance of the quartiles of a normal distribution with deviation 1
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
        """How many numbers these are."""
        return 2 * len(self.median)

    def told(self) -> dict[str, Any]:
        """Return them as JSON."""
        return {"median": self.median.tolist(), "scale": self.scale.tolist()}

    @classmethod
    def read(cls, told: Mapping[str, Any], channels: int) -> Quartiles:
        """Return quartiles as :meth:`told` has them.

        Raises:
            KeyError, TypeError, ValueError: they are something else.
        """
        median, scale = (np.array(told[key], np.float64) for key in ("median", "scale"))
        if not median.shape == scale.shape == (channels,) or not usable(median, scale) or scale.min() < SMALLEST:
            raise ValueError("quartiles of another shape, or scales that are not above 0")
        return cls(median, scale)

    def prepare(self, park: Park, steps: tuple[Step, ...] = ()) -> Park:
        """Return a park whose samples the network's own scaling brings to this centre and scale."""
        alike = (self.median, self.scale)
        return replace(park, normalised=Normalised({}, lambda x, device: x, dict, alike, steps))  # noqa: ARG005


@dataclass(frozen=True)
class RobustNormaliser:
    r"""All devices by the median and the quartiles of their training rows: value = (x − median)/((Q3 − Q1)/1.349).

    Quantile q is the smallest value that at least q of all numbers are at or below. By Cantelli's inequality the
    quartiles lie within mean ± √3·deviation, which two questions find; each round then cuts that range into 16 bins,
    asks every device for the counts at their edges, and goes on in the bin that the quantile lies in. After R rounds
    the middle of the bin is off by at most √3·deviation/16^R: 3·10⁻⁵ deviations for R = 4. Where the quartiles are no
    farther apart than the bin is wide, most values are equal, and the deviation takes their place (1 if that is 0).

    Reference: Cantelli, "Sui confini della probabilità", 1928.

    Args:
        rounds: R.
    """

    kind: Literal["robust"] = "robust"
    rounds: int = 4

    def __post_init__(self) -> None:
        require(1 <= self.rounds <= 12, "data.normalise.rounds", self.rounds, "a whole number from 1 to 12")

    def fit(self, survey: Survey) -> tuple[Floats, Floats]:
        """Return the median and the scale of each channel [C]."""
        count, mean, deviation = (one[0] for one in survey.moments())
        reach = np.sqrt(3) * np.nan_to_num(deviation) * (1 + 1e-9)
        low = np.repeat((np.nan_to_num(mean) - reach)[:, None], len(SHARES), axis=1)  # [C, 3]
        width = np.repeat(2 * reach[:, None], len(SHARES), axis=1)
        for _ in range(self.rounds):
            edges = low[:, :, None] + width[:, :, None] * np.arange(1, BINS) / BINS
            below = survey.ask(Question("below", edges.reshape(len(low), -1))).reshape(edges.shape)
            bin_of = (below < (np.array(SHARES) * count[:, None])[:, :, None]).sum(axis=2)
            low, width = low + width * bin_of / BINS, width / BINS
        first, median, third = np.moveaxis(low + width / 2, 1, 0)
        apart, error = third - first, width[:, 0]
        spread = np.where(apart > error, apart / NORMAL, np.nan_to_num(deviation))
        return median, np.where(spread > 0, spread, 1.0)

    @property
    def asks(self) -> tuple[str, ...]:
        """The kinds of its questions."""
        return ("sums", "spread", "below")

    @property
    def questions(self) -> int:
        """The greatest number of questions that each device is asked."""
        return 2 + self.rounds

    def largest(self, sensors: int) -> int:
        """Return how many numbers a question about so many sensors holds at most."""
        return len(SHARES) * (BINS - 1) * sensors

    def learn(self, survey: Survey, sensors: tuple[str, ...], seed: int) -> Quartiles:  # noqa: ARG002
        """Return the quartiles, as every normaliser by questions does."""
        return Quartiles(*self.fit(survey))

    def read(self, told: Mapping[str, Any], channels: int) -> Quartiles:
        """Return quartiles from JSON, as :meth:`Quartiles.read` does."""
        return Quartiles.read(told, channels)
