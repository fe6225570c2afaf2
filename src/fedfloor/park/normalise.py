"""``[data] normalise``: scalings common to all samples, by each device's own rows, or by surveys of devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import regular
from fedfloor.base.checking import parsed
from fedfloor.base.errors import SettingError, require, unknown
from fedfloor.base.names import excerpt
from fedfloor.data.dataset import Dataset, Indices, Values
from fedfloor.data.files.categories import described, scales
from fedfloor.park.statistics import Normalised, Statistics, Step, device_sums, first_rows, standard
from fedfloor.park.survey import NUMBER_BYTES, RegimeNormaliser, RobustNormaliser, simulated_survey

if TYPE_CHECKING:
    from fedfloor.data.dataset import Inputs
    from fedfloor.park.park import Park

FILE = "normalisation.json"  # file in a run's folder with the statistics of its devices
NAMED = 5  # most devices named in a message
UNMEASURED = float(np.finfo(np.float32).max)  # a deviation that scales every value to 0


@dataclass(frozen=True)
class DeviceNormaliser:
    """Normalisation by the mean m and deviation s of a device's own training rows: value = (stored − m)/s per sensor.

    The columns of categories have the same meaning, and therefore the same scale, on every device:
    :func:`~fedfloor.data.files.categories.scales`. A row counts once, in however many windows it is; missing values do
    not count; a sensor that is constant in these rows is only centred, and one without values in them becomes 0.
    A device with test samples but without training samples is normalised by its first ``rows``, never by labels.
    The statistics stay on their device.

    Args:
        rows: number of a device's first rows that are used; None: all training rows.
    """

    kind: Literal["device"] = field(default="device", kw_only=True)
    rows: int | None = None

    def __post_init__(self) -> None:
        many = self.rows
        require(many is None or many >= 2, "data.normalise.rows", many, "a whole number of at least 2")

    def prepare(self, park: Park, known: Mapping[str, Statistics] | None = None) -> Park:
        """Return the park with its samples normalised.

        Args:
            known: the statistics of devices by name that a trained model has already; those of others are measured.

        Raises:
            SettingError: the samples are pictures, the device of a test sample is unknown, or it has no training rows
                while ``rows`` is None.
        """
        tables_only(park.dataset, self.kind)
        own = _Own(park, self.rows, known or {})
        data = replace(park.dataset, take=own.take, take_test=own.take_test)
        about = {"kind": self.kind, "rows": self.rows}
        done = Normalised(about, own.apply, own.statistics, stored=park.dataset)
        return replace(park, dataset=data, normalised=done)

    def away(self) -> Normalised:
        """Return the placeholder for a normalisation that other machines apply to their own samples."""

        def refuse(*_: object) -> Any:
            raise SettingError("normalise = 'device': a device's samples are normalised on that device.")

        return Normalised({"kind": self.kind, "rows": self.rows}, refuse, dict)


@dataclass(frozen=True)
class DeviceScale:
    """The statistics of a device in :data:`FILE`."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True)
class ScaleFile:
    """The content of :data:`FILE`: the statistics of a run's devices by name."""

    devices: dict[str, DeviceScale]


def read_statistics(folder: Path, channels: int) -> dict[str, Statistics]:
    """Return the statistics of devices by name in the folder of a model; {} without a file.

    Raises:
        SettingError: the file is damaged or belongs to another model.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    advice = "Delete the file: devices are then normalised by the first rows of the files to predict."
    stored = parsed(ScaleFile, regular.read_bytes(path), str(path), "the statistics of devices", advice)
    known = {}
    for name, scale in stored.devices.items():
        mean, deviation = (np.array(values, np.float32) for values in (scale.mean, scale.deviation))
        if not (mean.shape == deviation.shape == (channels,) and np.isfinite(mean).all() and (deviation > 0).all()):
            raise SettingError(
                f"{path}: device '{name}' needs {channels} means, and standard deviations above 0. {advice}",
                key="damaged-normalisation",
            )
        known[name] = (mean, deviation)
    return known


def tables_only(data: Dataset, kind: str) -> None:
    """Raise SettingError if the samples are pictures."""
    if data.inputs.kind != "table":
        raise SettingError(
            f"[data] normalise = '{kind}' is for sensors in tables: {data.name} has pictures. Set 'unit' or 'standard'."
        )


def fixed_scales(coding: Mapping[str, Any]) -> Statistics | None:
    """Return the scales of categories, which are the last channels, from ``Inputs.coding``; None without categories."""
    categories = described(coding.get("categories", {}))
    return None if categories is None else scales(categories)


def statistics(x: Values, first: Indices | None, rows: int | None, fixed: Statistics | None = None) -> Statistics:
    """Return mean and deviation of each channel [C] over the rows of :func:`first_rows`; a deviation of 0 becomes 1.

    ``fixed`` replaces those of the last channels, if these are the same for all devices.
    """
    sums = device_sums(first_rows(x, first, rows))
    mean, deviation = standard([sums])
    measured = np.where(sums[0] > 0, deviation, UNMEASURED)
    own = mean.astype(np.float32), measured.astype(np.float32)
    if fixed is None:
        return own
    mine = len(mean) - len(fixed[0])
    both = zip(own, fixed, strict=True)
    centre, spread = (np.concatenate([values[:mine], last]) for values, last in both)
    return centre, spread


def scaled(x: Values, mean: NDArray[np.float32], deviation: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (x − mean)/deviation in single precision, of x [n, C, …] and [C], or [n, C] of each sample."""
    form = (-1, x.shape[1], *(1,) * (x.ndim - 2))
    values = x.astype(np.float32, copy=False)
    return np.divide(values - mean.reshape(form), deviation.reshape(form), dtype=np.float32)


class _Own:
    """The cached statistics of devices 0 … K − 1, then of owners with only test samples."""

    def __init__(self, park: Park, rows: int | None, known: Mapping[str, Statistics]) -> None:
        data = self.data = park.dataset
        self.rows = rows
        self.indices = park.indices
        self.fixed = fixed_scales(data.inputs.coding)
        self.group = park.test_devices.copy()  # device of each test sample
        strangers = self.group < 0
        owners = np.zeros(0, np.int64)
        if strangers.any():
            if data.owner_test is None or park.natural_owners is None:
                raise SettingError(
                    f"[data] normalise = 'device': the devices of the test samples of {data.name} are unknown. "
                    "Name the column of the device, and leave [data] partition natural; or set normalise = 'standard'."
                )
            owners, place = np.unique(data.owner_test[strangers], return_inverse=True)
            self.group[strangers] = park.devices + place
        names = data.owned.names
        self.names = list(park.names or map(str, range(park.devices)))
        self.names += [names[k] if names else str(k) for k in owners.tolist()]
        if len(owners) and rows is None:
            raise SettingError(
                f"[data] normalise = 'device': {excerpt(self.names[park.devices :], NAMED)} have test samples, but no "
                "training rows to be normalised by. Set the number of first rows by which such a device is "
                'normalised: normalise = { kind = "device", rows = 400 }.'
            )
        self.mean = np.zeros((len(self.names), data.shape[0]), np.float32)
        self.deviation = np.ones_like(self.mean)
        self.known = np.array([name in known for name in self.names], np.bool_)
        for k in np.flatnonzero(self.known).tolist():
            self.mean[k], self.deviation[k] = known[self.names[k]]

    def take(self, indices: Indices, device: int) -> Values:
        x = self.data.take(indices, device)
        return self._scaled(x, np.array([device]) if device >= 0 else self.holder[indices])

    def take_test(self, indices: Indices) -> Values:
        return self._scaled(self.data.take_test(indices), self.group[indices])

    def apply(self, x: Values, device: int) -> Values:
        return self._scaled(x, np.array([device]))

    def statistics(self) -> Mapping[str, Statistics]:
        self._fit(np.arange(len(self.names)))
        return {name: (self.mean[k], self.deviation[k]) for k, name in enumerate(self.names)}

    @cached_property
    def holder(self) -> NDArray[np.int64]:
        """int64 [N]: the device of each training sample."""
        holder = np.zeros(len(self.data.y), np.int64)
        for k, part in enumerate(self.indices):
            holder[part] = k
        return holder

    def _scaled(self, x: Values, group: NDArray[np.int64]) -> Values:
        self._fit(np.unique(group))
        return scaled(x, self.mean[group], self.deviation[group])

    def _fit(self, groups: NDArray[np.int64]) -> None:
        for k in groups[~self.known[groups]].tolist():
            trains = k < len(self.indices)
            mine = self.indices[k] if trains else np.flatnonzero(self.group == k)
            numbers = self.data.first if trains else self.data.first_test
            first = None if numbers is None else numbers[mine]
            if self.rows is not None:  # each window adds at least one row, so that more windows are never needed
                early = np.argsort(mine if first is None else first, kind="stable")[: self.rows]
                mine = mine[early]
                first = None if first is None else first[early]
            x = self.data.take(mine, k) if trains else self.data.take_test(mine)
            self.mean[k], self.deviation[k] = statistics(x, first, self.rows, self.fixed)
            self.known[k] = True


Alike = Literal["auto", "unit", "symmetric", "standard"]  # value = (scale·stored − mean)/std, with common mean and std
Surveyed = RobustNormaliser | RegimeNormaliser  # surveys of all devices, see fedfloor.park.survey
Normaliser = DeviceNormaliser | Surveyed
Normalise = Alike | Literal["device", "robust"] | Normaliser
KINDS: dict[str, type[DeviceNormaliser | RobustNormaliser]] = {"device": DeviceNormaliser, "robust": RobustNormaliser}


def normaliser(normalise: Normalise) -> Normaliser | None:
    """Return the normaliser of a setting; None if a common mean and deviation suffice.

    >>> normaliser("device"), normaliser("standard")
    (DeviceNormaliser(kind='device', rows=None), None)

    Raises:
        SettingError: the normalisation is unknown.
    """
    if not isinstance(normalise, str):
        return normalise
    if normalise in get_args(Alike):
        return None
    if normalise not in KINDS:
        raise unknown("normalisation", normalise, [*get_args(Alike), *KINDS])
    return KINDS[normalise]()


def prepared(park: Park, normalise: Normalise) -> Park:
    """Return a park with samples scaled by the setting's normaliser; the same park without a normaliser.

    The mean and deviation of ``standard`` are not applied here, but where an engine takes samples (``Samples.values``).

    Raises:
        SettingError: the normaliser does not fit the data.
    """
    part = None if park.normalised is not None else normaliser(normalise)
    if isinstance(part, Surveyed):
        tables_only(park.dataset, part.kind)
        survey = simulated_survey(park)
        scaling = part.learn(survey, park.dataset.inputs.columns, park.seed)
        return scaling.prepare(park, survey.finish(part.kind, scaling.numbers))
    return park if part is None else part.prepare(park)


def summed(normalise: Normalise, inputs: Inputs) -> bool:
    """Return whether samples are scaled by a common mean and deviation, computed from devices' sums."""
    return normalise == "standard" or (normalise == "auto" and inputs.kind != "image")


def mean_and_deviation(park: Park, normalise: Normalise) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return float64 mean [C] and standard deviation [C]: value = (scale·stored − mean) / deviation.

    ``unit``: mean 0, deviation 1. ``symmetric``: 0.5 and 0.5, so that bytes are in [−1, 1]. ``standard``: those of
    all devices' training samples, from per-device sums; see :func:`~fedfloor.park.statistics.standard`. ``auto``:
    unit for bytes, standard for sensors. For samples scaled by a normaliser: the remaining scaling.

    Raises:
        SettingError: the kind is unknown, ``unit`` is set although missing values become their channel's mean, or
            ``symmetric`` although the samples are no pictures.
    """
    channels = park.dataset.shape[0]
    inputs = park.dataset.inputs
    if normaliser(normalise) is not None and park.normalised is None:
        raise SettingError(
            "this park is not normalised: call fedfloor.park.normalise.prepared(park, normalise) first.",
            key="not-normalised",
        )
    if park.normalised is not None:
        return park.normalised.alike or (np.zeros(channels), np.ones(channels))
    if normalise == "unit" and inputs.holes:
        raise SettingError(
            f"[data] missing = '{inputs.missing}' needs the channels' means: set [data] normalise = 'standard', or "
            "leave it out."
        )
    if normalise == "symmetric":
        if inputs.kind != "image":
            raise SettingError("[data] normalise = 'symmetric' is for pictures: set 'standard', or leave it out.")
        return np.full(channels, 0.5), np.full(channels, 0.5)
    return park.standard if summed(normalise, inputs) else (np.zeros(channels), np.ones(channels))


def steps(park: Park, normalise: Normalise) -> tuple[Step, ...]:
    """Return the questions to every device before round 1 for the normalisation, and the delivery of its result.

    For ``standard`` there is one question, for count, sum and sum of squares of each channel.
    """
    if park.normalised is not None:
        return park.normalised.steps
    if not summed(normalise, park.dataset.inputs):
        return ()
    channels = NUMBER_BYTES * park.dataset.shape[0]
    return Step("sums", 0, 3 * channels), Step("result", 2 * channels, 0)
