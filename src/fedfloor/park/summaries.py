"""Summaries of devices' rows: counts, means, deviations and relations of their sensors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Values
from fedfloor.park.local import spread
from fedfloor.park.park import Park
from fedfloor.park.statistics import device_sums, first_rows

FILE = "sensors.json"  # file in a run's folder with the summaries of its devices
# summarised at most; rows of each device
DEVICES = 1000
ROWS = 20_000
SENSORS = 500
NUMBERS = 20_000  # devices times sensors summarised, at most
RELATED = 60  # sensors whose correlations are computed, at most
OUTSIDE = 0.005  # share of a device's values below ``low``, and above ``high``, at most
PARTS = 10  # of a device's rows, whose means show how far levels wander without a cause
FEW = 10  # different values of a sensor, up to which it may well be constant on a device
AGREE = 4  # devices on which a relation holds, at least
# correlation of two sensors that are related: the median of devices, and the least
HOLDS = 0.7
WEAK = 0.5
Floats = NDArray[np.float64]
LIMITS = ("least", "low", "high", "most", "wander")
TABLES = ("count", "mean", "deviation", "levels", *LIMITS)


@dataclass(frozen=True, eq=False)
class Relations:
    """Correlations of the sensors of K devices.

    Args:
        each: float64 [K, C, C]; NaN where a sensor is constant on a device.
    """

    each: Floats

    @cached_property
    def middle(self) -> Floats:
        """float64 [C, C]: the medians over devices; NaN with a constant sensor on any device."""
        return np.asarray(np.median(self.each, axis=0))

    @cached_property
    def _lowest(self) -> Floats:
        """float64 [2, C, C]: the two lowest correlations over devices, in the direction of the median."""
        signed = np.sign(self.middle) * self.each
        return np.asarray(np.sort(signed, axis=0)[[0, min(1, len(signed) - 1)]])

    def without(self, own: Floats | None = None) -> NDArray[np.int8]:
        """Return the sign of each relation [C, C] on all devices but the one with these correlations; 0 for none.

        Two sensors are related if their correlation has the same sign on all these devices: 0.7 in the median, 0.5 at
        least.
        """
        sign = np.sign(self.middle)
        least = self._lowest[0]
        with np.errstate(invalid="ignore"):
            least = least if own is None else np.where(sign * own == least, self._lowest[1], least)
            holds = (np.abs(self.middle) >= HOLDS) & (least >= WEAK)
        np.fill_diagonal(holds, val=False)
        return np.where(holds, np.nan_to_num(sign), 0).astype(np.int8)


@dataclass(frozen=True, eq=False)
class Summaries:
    """Statistics of the rows of K devices.

    Args:
        sensors: names of the C sensors.
        names: the names of the K devices.
        factory: int64 [K], their factories.
        rows: float64 [K], their numbers of rows.
        count, mean, deviation: float64 [K, C], of the known values of each sensor; NaN for a sensor without values.
        levels: float64 [K, C], the number of different values, at most :data:`FEW` + 1; None: unknown.
        relations: the correlations of the sensors; None: unknown.
        related: int8 [C, C], the sign of the relations that hold on all devices; 0: no relation; None: unknown.
        least, low, high, most: float64 [K, C], the smallest value, the bounds of all but :data:`OUTSIDE` of the values
            on either side, and the largest value; NaN for a sensor without values; None: unknown.
        wander: float64 [K, C], the deviation of the means of :data:`PARTS` consecutive parts of the rows; likewise.
        trained: float64 [K], the number of the rows that ``rows`` were chosen from; None: all of them.
    """

    sensors: tuple[str, ...]
    names: tuple[str, ...]
    factory: NDArray[np.int64]
    rows: Floats
    count: Floats
    mean: Floats
    deviation: Floats
    levels: Floats | None = None
    relations: Relations | None = None
    related: NDArray[np.int8] | None = None
    least: Floats | None = None
    low: Floats | None = None
    high: Floats | None = None
    most: Floats | None = None
    wander: Floats | None = None
    trained: Floats | None = None

    @classmethod
    def of_sums(
        cls, sensors: Sequence[str], names: Sequence[str], factory: Sequence[int], rows: Sequence[float], sums: Floats
    ) -> Summaries:
        """Return summaries from (n, S, D) of each device [K, 3, C], as :func:`device_sums` computes them."""
        count, total, squares = np.moveaxis(np.asarray(sums, np.float64), 1, 0)
        known = np.where(count > 0, count, np.nan)
        return cls(
            (*sensors,), (*names,), np.array(factory, np.int64), np.array(rows, np.float64), count, total / known,
            np.sqrt(squares / known),
        )  # fmt: skip

    @classmethod
    def of_rows(
        cls, sensors: Sequence[str], names: Sequence[str], factory: Sequence[int], rows: Iterable[Values]
    ) -> Summaries:
        """Return summaries of the rows [R, C] of each device, R at least 1."""
        many = []
        sums = []
        levels = []
        bounds = []
        correlations = []
        for x in rows:
            many.append(len(x))
            sums.append(device_sums(x))
            ordered = [np.sort(column[~np.isnan(column)]) for column in x.T]
            levels.append([min(len(column[:1]) + int((np.diff(column) > 0).sum()), FEW + 1) for column in ordered])
            bounds.append([(*_bounds(column), far) for column, far in zip(ordered, _wander(x), strict=True)])
            if len(sensors) <= RELATED:
                correlations.append(_correlation(x))
        relations = Relations(np.array(correlations)) if correlations else None
        related = relations.without() if relations is not None and len(many) >= AGREE else None
        made = cls.of_sums(sensors, names, factory, many, np.array(sums))
        limits = dict(zip(LIMITS, np.moveaxis(np.array(bounds, np.float64), 2, 0), strict=True))
        return replace(made, levels=np.array(levels, np.float64), relations=relations, related=related, **limits)

    def to_dict(self) -> dict[str, Any]:
        """Return the summaries as JSON, numbers with seven digits, and pairs of related sensors."""
        tables = {name: _digits(getattr(self, name)) for name in TABLES}
        return {
            "sensors": list(self.sensors), "devices": list(self.names), "factory": self.factory.tolist(),
            "rows": self.rows.tolist(), "trained": None if self.trained is None else self.trained.tolist(), **tables,
            "related": None if self.related is None else
            [[i, j, int(self.related[i, j])] for i, j in np.argwhere(self.related).tolist()],
        }  # fmt: skip

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Summaries:
        """Return the inverse of :meth:`to_dict`.

        Raises:
            KeyError, TypeError, ValueError: the document has another form.
        """
        sensors = tuple(map(str, document["sensors"]))
        names = tuple(map(str, document["devices"]))
        form = (len(names), len(sensors))
        factory = np.array(document["factory"], np.int64)
        rows = np.array(document["rows"], np.float64)
        trained = None if document.get("trained") is None else np.array(document["trained"], np.float64)
        tables = {name: document.get(name) if name in LIMITS else document[name] for name in TABLES}  # added later
        made = {name: None if table is None else np.array(table, np.float64) for name, table in tables.items()}
        one = {part.shape for part in (factory, rows, trained) if part is not None}
        if one != {form[:1]} or {part.shape for part in made.values() if part is not None} != {form}:
            raise ValueError("tables of another shape")
        if not names or not sensors or made["mean"] is None or made["deviation"] is None or made["count"] is None:
            raise ValueError("no device, no sensor, or no statistics")
        related = None if document["related"] is None else np.zeros((len(sensors),) * 2, np.int8)
        for i, j, sign in document["related"] or ():
            if related is None or not (0 <= i < len(sensors) and 0 <= j < len(sensors) and sign in (-1, 1)):
                raise ValueError("a relation of other sensors")
            related[i, j] = sign
        return cls(
            sensors, names, factory, rows, made["count"], made["mean"], made["deviation"], made["levels"], None,
            related, made["least"], made["low"], made["high"], made["most"], made["wander"], trained,
        )  # fmt: skip

    def hull(self, deviations: float) -> tuple[Floats, Floats]:
        """Return the least mean − k·deviation and the largest mean + k·deviation of each sensor over devices, [C] each.

        By Chebyshev's inequality at most 1/k² of the values of each of the devices are outside. A constant sensor
        counts with a deviation of 1, as in its normalisation; a sensor without values has NaN.
        """
        wide = deviations * np.where(self.deviation > 0, self.deviation, 1.0)
        return np.fmin.reduce(self.mean - wide), np.fmax.reduce(self.mean + wide)


def _bounds(ordered: Values) -> tuple[float, float, float, float]:
    """Return the smallest value, the bounds of all but a few on either side, and the largest value; NaN of none."""
    if not len(ordered):
        return (math.nan,) * 4
    few = int(OUTSIDE * len(ordered))
    return float(ordered[0]), float(ordered[few]), float(ordered[-1 - few]), float(ordered[-1])


def _wander(x: Values) -> Floats:
    """Return the deviation of the means of consecutive parts of rows [C]; NaN for fewer than two rows in each."""
    if len(x) < 2 * PARTS:
        return np.full(x.shape[1], np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a part without values
        means = np.array([np.nanmean(part, axis=0) for part in np.array_split(np.asarray(x, np.float64), PARTS)])
        return np.asarray(np.nanstd(means, axis=0, ddof=1))


def _digits(table: Floats | None) -> list[list[float | None]] | None:
    """Return a table as JSON: numbers with seven digits, null for NaN."""
    return (
        None if table is None else [[None if np.isnan(v) else float(f"{v:.7g}") for v in row] for row in table.tolist()]
    )


def _correlation(x: Values) -> Floats:
    """Return the correlations of sensors [C, C] over rows without missing values; NaN for constant sensors."""
    whole = x[~np.isnan(x).any(axis=1)].astype(np.float64)
    if len(whole) < 3:
        return np.full((x.shape[1], x.shape[1]), np.nan)
    centred = whole - whole.mean(axis=0)
    norm = np.sqrt((centred**2).sum(axis=0))
    norm = np.where(norm > 1e-7 * np.sqrt(len(whole)) * np.abs(whole).max(axis=0), norm, np.nan)
    return np.asarray((centred / norm).T @ (centred / norm))


def summarised(park: Park) -> Summaries | None:
    """Return the summaries of a park's devices from their training rows; None where there are none.

    Of real machines they are made from the sums that the normalisation needs, of which there are none with ``device``;
    nor are there any of pictures and generated data. Samples normalised by operating regime are
    summarised as normalised, others as stored. Up to 1,000 devices (fewer of many sensors) and 20,000 rows of each
    count, evenly spread.
    """
    data = park.dataset
    sensors = park.dataset.inputs.columns
    if data.inputs.kind != "table" or not 1 <= len(sensors) == data.shape[0] <= SENSORS:
        return None
    devices = spread(park.devices, min(DEVICES, NUMBERS // len(sensors)))
    names = [park.display_names.site("device", k) for k in devices.tolist()]
    factory = park.factory_of[devices].tolist()
    if park.remote is not None:
        if park.remote.sums is None:
            return None
        sums = park.remote.sums[devices]  # of all values in windows, or of each row once: rows are those of a sensor
        return Summaries.of_sums(sensors, names, factory, sums[:, 0].max(axis=1).tolist(), sums)
    if data.made is not None or data.rendered:
        return None
    source = data if park.normalised is not None and park.normalised.about.get("kind") == "regime" else park.stored

    def rows_of(device: int) -> Values:
        mine = park.indices[device]
        mine = mine[spread(len(mine), max(1, ROWS // math.prod(data.shape[1:])))]
        return first_rows(source.take(mine, device), None if source.first is None else source.first[mine], None)

    made = Summaries.of_rows(sensors, names, factory, map(rows_of, devices.tolist()))
    per_sample = [len(park.indices[k]) for k in devices.tolist()]
    return replace(made, trained=np.maximum(made.rows, per_sample))
