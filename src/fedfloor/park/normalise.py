"""What ``[data] normalise`` names: two scalings of all samples alike, and normalisers that prepare a park."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import SettingError, unknown
from fedfloor.park.normalised import Step
from fedfloor.park.own_scale import DeviceNormaliser, tables_only
from fedfloor.park.quartiles import RobustNormaliser
from fedfloor.park.regimes import RegimeNormaliser
from fedfloor.park.survey import NUMBER_BYTES, Survey, simulated

if TYPE_CHECKING:
    from fedfloor.data.dataset import Inputs
    from fedfloor.park.park import Park

Alike = Literal["auto", "unit", "standard"]  # value = (scale·stored − mean)/std, with one mean and std for all devices
Surveyed = RobustNormaliser | RegimeNormaliser  # questions to all devices, see fedfloor.park.survey
Normaliser = DeviceNormaliser | Surveyed
Normalise = Alike | Literal["device", "robust"] | Normaliser
KINDS: dict[str, type[DeviceNormaliser | RobustNormaliser]] = {"device": DeviceNormaliser, "robust": RobustNormaliser}


def normaliser(normalise: Normalise) -> Normaliser | None:
    """Return the normaliser of a setting; None where one mean and deviation are enough.

    >>> normaliser("device"), normaliser("standard")
    (DeviceNormaliser(kind='device', rows=None), None)

    Raises:
        SettingError: no such normalisation.
    """
    if not isinstance(normalise, str):
        return normalise
    if normalise in get_args(Alike):
        return None
    if normalise not in KINDS:
        raise unknown("normalisation", normalise, [*get_args(Alike), *KINDS])
    return KINDS[normalise]()


def prepared(park: Park, normalise: Normalise) -> Park:
    """Return a park whose samples a normaliser has scaled; the same park where there is none to do so.

    Raises:
        SettingError: the normaliser does not fit the data.
    """
    part = None if park.normalised is not None else normaliser(normalise)
    if isinstance(part, Surveyed):
        tables_only(park.dataset, part.kind)
        return surveyed(park, part, simulated(park))
    return park if part is None else part.prepare(park)


def surveyed(park: Park, part: Surveyed, survey: Survey) -> Park:
    """Return a park normalised by what a survey of its devices finds.

    Raises:
        SettingError: the normaliser does not fit the data.
    """
    found = part.learn(survey, park.dataset.inputs.columns, park.seed)
    return found.prepare(park, survey.ended(part.kind, found.numbers))


def summed(normalise: Normalise, inputs: Inputs) -> bool:
    """Return whether all samples are scaled by the mean and the deviation that devices' sums come to."""
    return normalise == "standard" or (normalise == "auto" and inputs.kind != "image")


def mean_and_deviation(park: Park, normalise: Normalise) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return float64 mean [C] and standard deviation [C]: value = (scale·stored − mean) / deviation.

    ``unit``: mean 0, deviation 1. ``standard``: those of all devices' training samples, from per-device sums; see
    :func:`~fedfloor.park.statistics.standard`. ``auto``: unit for bytes, standard for sensors. Of samples that a
    normaliser has scaled: what that leaves to do.

    Raises:
        SettingError: another kind; or ``unit`` where missing values are to become their channel's mean.
    """
    channels, inputs = park.dataset.shape[0], park.dataset.inputs
    if normaliser(normalise) is not None and park.normalised is None:
        raise SettingError("this park is not normalised: fedfloor.park.normalise.prepared(park, normalise) does it.")
    if park.normalised is not None:
        return park.normalised.alike or (np.zeros(channels), np.ones(channels))
    if normalise == "unit" and inputs.missing == "mean":
        raise SettingError(
            "[data] missing = 'mean' needs the channels' means: set [data] normalise = 'standard', or leave it out."
        )
    return park.standard if summed(normalise, inputs) else (np.zeros(channels), np.ones(channels))


def steps(park: Park, normalise: Normalise) -> tuple[Step, ...]:
    """Return what every device is asked before round 1 for the normalisation, and handed of its result.

    For ``standard`` that is one question: count, sum and sum of squares of each channel.
    """
    if park.normalised is not None:
        return park.normalised.steps
    if not summed(normalise, park.dataset.inputs):
        return ()
    channels = NUMBER_BYTES * park.dataset.shape[0]
    return Step("sums", 0, 3 * channels), Step("result", 2 * channels, 0)
