"""What ``[data] normalise`` names: two scalings of all samples alike, and normalisers that prepare a park."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from fedfloor.errors import unknown
from fedfloor.park.own_scale import DeviceNormaliser
from fedfloor.park.quartiles import RobustNormaliser
from fedfloor.park.regimes import RegimeNormaliser

if TYPE_CHECKING:
    from fedfloor.park.park import Park

Alike = Literal["auto", "unit", "standard"]  # value = (scale·stored − mean)/std, with one mean and std for all devices
Normaliser = DeviceNormaliser | RobustNormaliser | RegimeNormaliser
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
    return park if part is None else part.prepare(park)
