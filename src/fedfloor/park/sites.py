"""What a device states of its rows when all devices are asked before training: counts and sums, and no row.

Over several devices these are added: counts, sums and sums of squares exactly, quantiles with a stated error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unicodedata import category

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import ranges
from fedfloor.base.ranges import RefusedError
from fedfloor.data.dataset import Values
from fedfloor.data.files.apart import ApartTable
from fedfloor.data.files.encode import sorted_numbers
from fedfloor.data.files.layout import MOST_CODES
from fedfloor.data.pace import PERIODS
from fedfloor.data.ranges import mark_of
from fedfloor.park.statistics import device_sums
from fedfloor.park.summaries import FEW, Summaries

Floats = NDArray[np.float64]
FLOOR = 100  # values of a sensor from which its minimum, maximum and histogram leave a device
BINS = 32  # of a histogram, which two more bins for values beyond it complete
REACH = math.sqrt(0.95 / 0.05)  # deviations from the mean within which the quantiles 0.05 and 0.95 are, by Cantelli
SHARES = (0.05, 0.5, 0.95)
FEWEST = 20  # values of a sensor from which their sums leave a device, and rows from which the counts of classes do
SENSORS = 2000  # sensors of a device, at most
DRAWN = 500  # sensors of a device up to which histograms leave it, as messages have a largest size
CLASSES = 1000  # classes of a device, at most
ROLES = ("time", "label", "run", "id")  # of columns; the devices' own is no fact
LONGEST = 200  # characters of a name
TOLD = 500  # characters of a problem
LARGEST = 1e38
COUNT = 1 << 40
DATES = (-62_135_596_800.0, 253_402_300_799.0)  # s since 1970 of the years 1 to 9999


@dataclass(frozen=True)
class RowClock:
    """The times of a device's rows, in s.

    Args:
        first, last: times of the first and the last row, if these are :data:`FLOOR` or more rows; otherwise NaN.
        step: the median of the steps of time; NaN of a single row.
        gaps: number of steps above :data:`~fedfloor.data.pace.PERIODS` median steps.
        longest: the longest step.
        dated: whether times are dates, in s since 1970.
        zoned: whether these state a time zone.
    """

    first: float
    last: float
    step: float
    gaps: int
    longest: float
    dated: bool
    zoned: bool

    @classmethod
    def of(cls, time: Floats, parts: Sequence[int], *, dated: bool, zoned: bool) -> RowClock:
        """Return the clock of times in recordings that begin at ``parts``."""
        steps = np.concatenate([np.diff(part) for part in np.split(time, parts)])
        ahead = steps[steps > 0]
        step = float(np.median(ahead)) if len(ahead) else math.nan
        first, last = (float(time.min()), float(time.max())) if len(time) >= FLOOR else (math.nan, math.nan)
        gaps = int((ahead > PERIODS * step).sum())
        return cls(first, last, step, gaps, float(ahead.max()) if len(ahead) else math.nan, dated, zoned)


@dataclass(frozen=True, eq=False)
class SiteFacts:
    """What a device states of its rows.

    Args:
        name, factory: the device and its factory, "" without one.
        rows: number of rows.
        sensors: the names of its C sensors, in the order of its columns.
        sums: float64 [3, C], number n, sum S and Σ (v − S/n)² of each sensor's known values.
        levels: float64 [C], the number of different values, at most :data:`~fedfloor.park.summaries.FEW` + 1.
        ends: float64 [2, C], minimum and maximum; NaN of fewer than :data:`FLOOR` values.
        bins: float64 [C, BINS + 2], values in bins over mean ± :data:`REACH` deviations, and below and above; zeros of
            fewer than :data:`FLOOR` values.
        roles: the columns that are no sensors, role → name.
        units: sensor → unit, where the table states it.
        classes: label → number of rows; empty without labels.
        clock: None without times.
        copies: rows that equal an earlier one.
        decimal: the decimal mark of its tables.
        problems: what cannot be read, as sentences.
        offset: the device's clock minus that of who asks, in s; None where they are the same, or it is unknown.
    """

    name: str
    factory: str = ""
    rows: int = 0
    sensors: tuple[str, ...] = ()
    sums: Floats = field(default_factory=lambda: np.zeros((3, 0)))
    levels: Floats = field(default_factory=lambda: np.zeros(0))
    ends: Floats = field(default_factory=lambda: np.zeros((2, 0)))
    bins: Floats = field(default_factory=lambda: np.zeros((0, BINS + 2)))
    roles: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)
    clock: RowClock | None = None
    copies: int = 0
    decimal: str = "."
    problems: tuple[str, ...] = ()
    offset: float | None = None

    @classmethod
    def of_rows(cls, name: str, sensors: Sequence[str], x: Values, **more: Any) -> SiteFacts:
        """Return the facts of rows [R, C], and other facts in ``more``."""
        sums = np.array(device_sums(x))
        enough = sums[0] >= FLOOR
        levels = [min(len(np.unique(column[~np.isnan(column)])), FEW + 1) for column in x.T]
        ends = np.full((2, x.shape[1]), np.nan)
        bins = np.zeros((x.shape[1], BINS + 2))
        mean, deviation = moments(sums)
        for c in np.flatnonzero(enough).tolist():
            known = x[~np.isnan(x[:, c]), c].astype(np.float64)
            ends[:, c] = known.min(), known.max()
            below = np.searchsorted(np.sort(known), edges(mean[c], deviation[c]), side="right")
            bins[c] = np.diff([0, *below, len(known)])
        return cls(name, rows=len(x), sensors=(*sensors,), sums=sums, levels=np.array(levels, np.float64), ends=ends,
                   bins=bins, **more)  # fmt: skip

    @property
    def missing(self) -> Floats:
        """float64 [C], the share of missing values."""
        return np.asarray(1 - self.sums[0] / max(1, self.rows))

    def renamed(self, names: Mapping[str, str]) -> SiteFacts:
        """Return the facts with other names of sensors."""
        return replace(self, sensors=tuple(names.get(name, name) for name in self.sensors))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object, the inverse of :func:`read`; numbers have seven digits, sums all of them.

        What few rows would give away is left out.
        """
        few = self.sums[0] < FEWEST
        sums = np.where(few & (self.sums[0] > 0), np.nan, self.sums[1:])
        bins = self.bins if len(self.sensors) <= DRAWN else 0 * self.bins
        clock = None if self.clock is None else {key: _number(value) for key, value in vars(self.clock).items()}
        return {
            "rows": self.rows, "sensors": list(self.sensors),
            "sums": [self.sums[0].astype(int).tolist(), *([_maybe(v) for v in row] for row in sums.tolist())],
            "levels": np.where(few, 0, self.levels).astype(int).tolist(),
            "ends": [list(map(_number, row)) for row in self.ends.tolist()],
            "bins": bins.astype(int).tolist(), "roles": dict(self.roles), "units": dict(self.units),
            "classes": dict(self.classes) if self.rows >= FEWEST else {}, "clock": clock,
            "copies": self.copies, "decimal": self.decimal,
            "problems": [text[:TOLD] for text in self.problems],
        }  # fmt: skip


def _number(value: float) -> float | int | None:
    return value if isinstance(value, int) else None if math.isnan(value) else float(f"{value:.12g}")


def _maybe(value: float) -> float | None:
    return None if math.isnan(value) else value


def edges(mean: float, deviation: float) -> Floats:
    """Return the edges [BINS + 1] of a sensor's bins."""
    return mean + REACH * max(deviation, 1e-12 * abs(mean), 1e-300) * np.linspace(-1, 1, BINS + 1)


def moments(sums: Floats) -> tuple[Floats, Floats]:
    """Return mean and deviation [C] of (n, S, D); NaN without a value."""
    known = np.where(sums[0] > 0, sums[0], np.nan)
    return sums[1] / known, np.sqrt(np.maximum(sums[2], 0) / known)


def pooled(sums: Sequence[Floats]) -> tuple[float, float, float]:
    """Return number, mean and deviation of a sensor's values at all sites from each site's (n, S, D).

    >>> pooled([np.array([2, 2, 2.0]), np.array([2, 10, 2.0])])
    (4.0, 3.0, 2.23606797749979)
    """
    known = np.array(sums).reshape(-1, 3)
    count, total, squares = known[~np.isnan(known).any(axis=1)].T  # few values have no sums
    if not count.any():
        return 0.0, math.nan, math.nan
    mean = float(total.sum() / count.sum())
    apart = total / np.maximum(count, 1) - mean
    return float(count.sum()), mean, math.sqrt(float((squares + count * apart**2).sum() / count.sum()))


def of_tables(tables: Sequence[ApartTable]) -> list[SiteFacts]:
    """Return the facts of each device, from the tables of all."""
    grouped: dict[str, list[ApartTable]] = {}
    for table in tables:
        grouped.setdefault(table.device, []).append(table)
    return [_of_device(name, mine) for name, mine in grouped.items()]


def _of_device(name: str, tables: Sequence[ApartTable]) -> SiteFacts:
    problems = tuple(dict.fromkeys(text for table in tables for text in table.problems))
    factory = tables[0].factory
    sheets = [table.sheet for table in tables if table.sheet is not None]
    if not sheets:
        return SiteFacts(name, factory, problems=problems)
    sensors = [*dict.fromkeys(column for sheet in sheets for column in sheet.columns)]
    x = np.full((sum(len(sheet.line) for sheet in sheets), len(sensors)), np.nan, np.float32)
    ends = np.cumsum([len(sheet.line) for sheet in sheets])
    for end, sheet in zip(ends.tolist(), sheets, strict=True):
        x[end - len(sheet.line) : end, [sensors.index(column) for column in sheet.columns]] = sheet.x
    for c, sensor in enumerate(sensors):
        if (found := mark_of(x[:, c])) is not None:
            x[x[:, c] == np.float32(found[0]), c] = np.nan
            text = f"--set 'data.missing_texts=[\"{found[0]:g}\"]'"
            problems += (f"sensor '{sensor}' is {found[0]:g} in {found[1]:,} rows, as for missing values: {text}.",)
    timed = [sheet for sheet in sheets if sheet.time is not None]
    clock = None
    if timed:
        times = [np.asarray(sheet.time) for sheet in timed]
        parts = [*np.cumsum([len(time) for time in times])[:-1].tolist()]
        zoned = timed[0].dated and not timed[0].local
        clock = RowClock.of(np.concatenate(times), parts, dated=timed[0].dated, zoned=zoned)
    classes = Counter(text for sheet in sheets for text in sheet.text.get("label", ()) if text)
    numbers = sorted_numbers(classes)
    measured = numbers is not None and (len(numbers) > MOST_CODES or any(number % 1 for number in numbers))
    return SiteFacts.of_rows(
        name, sensors, x, factory=factory,
        classes={} if measured or len(classes) > CLASSES else dict(classes), clock=clock,
        copies=sum(int(sheet.copies().sum()) for sheet in timed), problems=problems, decimal=tables[0].decimal,
        roles=tables[0].roles,
        units={sensor: unit for table in tables for sensor, unit in table.units.items() if sensor in sensors},
    )  # fmt: skip


def read(value: object, name: str, factory: str = "", offset: float | None = None) -> SiteFacts:
    """Return the facts that a device sent as JSON, checked.

    Raises:
        RefusedError: the value is malformed or out of range.
    """
    body = ranges.table(value, 20, "what it states")
    rows = ranges.whole(body.get("rows"), 0, COUNT, "its number of rows")
    sensors = _names(body.get("sensors"), SENSORS, "its sensors")
    many = len(sensors)
    sums = [ranges.rows(row, many, "its sums") for row in ranges.rows(body.get("sums"), 3, "its sums")]
    count = [ranges.whole(n, 0, rows, "a count of its values") for n in sums[0]]
    for n, total, squares in zip(count, *sums[1:], strict=True):
        if n >= FEWEST or not n or total is not None or squares is not None:  # few values have none
            ranges.number(total, -LARGEST * n, LARGEST * n, "a sum")
            ranges.number(squares, 0, LARGEST * LARGEST * n, "a sum of squares")
    levels = [
        ranges.whole(v, 0, FEW + 1, "a number of values") for v in ranges.rows(body.get("levels"), many, "levels")
    ]
    ends = [ranges.rows(row, many, "its ends") for row in ranges.rows(body.get("ends"), 2, "its ends")]
    bins = ranges.rows(body.get("bins"), many, "its histograms")
    for row, n in zip(bins, count, strict=True):
        ranges.counts(row, BINS + 2, n, noun="histogram")
    classes = ranges.table(body.get("classes"), CLASSES, "its classes")
    _names([*classes], CLASSES, "its classes")
    ranges.counts([*classes.values()], len(classes), rows, least=1, noun="labels")
    roles = ranges.table(body.get("roles"), len(ROLES), "its columns")
    units = ranges.table(body.get("units"), many, "its units")
    _names([*roles.values(), *units.values()], many + len(ROLES), "its columns and units", once=False)
    if not {*units} <= {*sensors} or not {*roles} <= {*ROLES}:
        raise RefusedError("range", "it states units or roles of columns that it does not have.")
    problems = _names(body.get("problems"), 100, "its problems", TOLD)
    copies = ranges.whole(body.get("copies"), 0, rows, "its number of copies")
    if body.get("decimal") not in (".", ","):
        raise RefusedError("range", "its decimal mark is neither a point nor a comma.")
    return SiteFacts(
        name, factory, rows, sensors, np.array(sums, np.float64), np.array(levels, np.float64),
        np.array([list(map(_end, row)) for row in ends]), np.array(bins, np.float64).reshape(many, BINS + 2), roles,
        units, classes, _clock(body.get("clock")), copies, body["decimal"], problems, offset,
    )  # fmt: skip


def _end(value: object) -> float:
    return math.nan if value is None else ranges.number(value, -LARGEST, LARGEST, "a minimum or maximum")


def _names(value: object, most: int, noun: str, longest: int = LONGEST, *, once: bool = True) -> tuple[str, ...]:
    """Return checked names; RefusedError: another value, too long a name, control characters, or a name twice."""
    names = ranges.rows(value, None, noun)
    right = all(isinstance(name, str) and len(name) <= longest and _shows(name) for name in names)
    if len(names) > most or not right or (once and len({*names}) < len(names)):
        raise RefusedError("range", f"{noun} are not at most {most} different printable texts of {longest} characters.")
    return tuple(names)


def _shows(name: str) -> bool:
    """Return whether a name has no control characters; headers of spreadsheets have blanks that do not break.

    >>> _shows(f"Temp{chr(0xA0)}°C"), _shows(f"a{chr(10)}b"), _shows(f"a{chr(0x202E)}b")
    (True, False, False)
    """
    return all(sign.isprintable() or category(sign) == "Zs" for sign in name)


def _clock(value: object) -> RowClock | None:
    if value is None:
        return None
    body = ranges.table(value, 7, "its clock")
    first, last, step, longest = (_end(body.get(key)) for key in ("first", "last", "step", "longest"))
    gaps = ranges.whole(body.get("gaps"), 0, COUNT, "its number of gaps")
    kinds = body.get("dated"), body.get("zoned")
    apart = last < first or math.isnan(first) != math.isnan(last)
    if step <= 0 or apart or not all(isinstance(kind, bool) for kind in kinds):
        raise RefusedError("range", "its clock has times that do not ascend, or no kind of times.")
    if kinds[0] and (first < DATES[0] or last > DATES[1]):
        raise RefusedError("range", "its times are no dates from the year 1 to 9999.")
    return RowClock(first, last, step, gaps, longest, body["dated"], body["zoned"])


def quantiles(sites: Sequence[SiteFacts], sensor: str) -> tuple[Floats, float] | None:
    """Return the quantiles 0.05, 0.5 and 0.95 of a sensor over sites, and the largest error; None without a histogram.

    A site's histogram states for each value the bin that it is in, and so a lowest and a highest value; the quantiles
    of all lowest and of all highest ones enclose that of the values, and their middle is returned. The n values of a
    site without a histogram are within √(n − 1) deviations from their mean. Samuelson, Journal of the American
    Statistical Association 63 (1968) 1522.
    """
    low = []
    high = []
    weight = []
    for site in sites:
        if sensor not in site.sensors:
            continue
        c = site.sensors.index(sensor)
        mean, deviation = (float(each[c]) for each in moments(site.sums))
        many = site.bins[c]
        if many.any():
            edge = edges(mean, deviation)
            least, most = site.ends[:, c]
            low.append(np.clip([least, *edge], least, most))
            high.append(np.clip([*edge, most], least, most))
            weight.append(many)
        elif (number := site.sums[0, c]) > 0 and not math.isnan(mean):
            reach = deviation * math.sqrt(number - 1)
            low.append(np.array([mean - reach]))
            high.append(np.array([mean + reach]))
            weight.append(np.array([number]))
    if all(len(many) == 1 for many in weight):
        return None
    both = np.array([_quantile(np.concatenate(side), np.concatenate(weight)) for side in (low, high)])
    return both.mean(axis=0), float(np.ptp(both, axis=0).max() / 2)


def _quantile(values: Floats, weight: Floats) -> Floats:
    order = np.argsort(values, kind="stable")
    many = np.cumsum(weight[order])
    return np.asarray(values[order][np.searchsorted(many, np.array(SHARES) * many[-1])])


def summaries(sites: Sequence[SiteFacts]) -> Summaries:
    """Return the summaries of sites over the sensors of all; one that a site lacks has no value there."""
    sensors = [*dict.fromkeys(name for site in sites for name in site.sensors)]
    sums = np.zeros((len(sites), 3, len(sensors)))
    levels = np.zeros((len(sites), len(sensors)))
    for k, site in enumerate(sites):
        places = [sensors.index(name) for name in site.sensors]
        sums[k][:, places] = site.sums
        levels[k, places] = site.levels
    factories = {name: number for number, name in enumerate(dict.fromkeys(site.factory for site in sites))}
    made = Summaries.of_sums(
        sensors, [site.name for site in sites], [factories[site.factory] for site in sites],
        [site.rows for site in sites], sums,
    )  # fmt: skip
    return replace(made, levels=levels)
