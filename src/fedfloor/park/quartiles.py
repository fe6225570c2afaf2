"""Normalisation by medians and quartiles of all devices, which a few wild values do not move."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedfloor.errors import require
from fedfloor.park.own_scale import Normalised, tables_only
from fedfloor.park.survey import Floats, Question, Survey, simulated

if TYPE_CHECKING:
    from fedfloor.park.park import Park

BINS = 16
NORMAL = 1.3489795003921634  # distance of the quartiles of a normal distribution with deviation 1
SHARES = (0.25, 0.5, 0.75)


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

    def prepare(self, park: Park) -> Park:
        """Return the park with the scale of its samples.

        Raises:
            SettingError: pictures.
        """
        tables_only(park.dataset, self.kind)
        survey = simulated(park)
        alike = self.fit(survey)
        survey.log(self.kind)
        return replace(park, normalised=scale_alike(alike))


def scale_alike(alike: tuple[Floats, Floats]) -> Normalised:
    """Return what stands for one centre and one scale of each sensor, which the network's own scaling applies."""
    return Normalised({}, lambda x, device: x, dict, alike)  # noqa: ARG005
