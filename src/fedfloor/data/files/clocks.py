"""Clocks of devices: time zones, and causes of times that do not ascend."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError, nearest
from fedfloor.data.files.times import Moments, TimeError

log = logging.getLogger(__name__)

Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]

ZONES = ("Europe/Berlin", "Europe/London", "Europe/Athens", "America/New_York", "Australia/Sydney", "America/Santiago")
HOUR = 3600
ALONG = 14 * HOUR  # seconds: zones are no further apart than a day, and mostly less
QUARTER = 900  # seconds; offsets from UTC change on quarters of an hour
DOUBLED = 3 * HOUR  # seconds: rows of a repeated hour are no further apart
HOLE = 3  # usual steps of a hole between rows, from which an hour may be missing there
RESET = 366 * 86_400  # seconds of a jump of a clock that was reset, at least
FAR = 1000  # usual steps of such a jump, at least
BETWEEN = 10  # alternations per step back from which sorting would mix the rows of two courses of a clock


def check_zone(name: str | None) -> None:
    """Refuse a ``[data] zone`` that is no name of a time zone."""
    if name is not None:
        _zone(name)


@lru_cache
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        near = nearest(name, ZONES)
        raise SettingError(
            f"data.zone is '{name}': must be a name of the IANA time zones, such as 'Europe/Berlin' or 'UTC'.{near}"
        ) from error


def universal(
    local: Moments, device: NDArray[np.integer], recording: NDArray[np.integer], name: str
) -> tuple[Moments, Mask]:
    """Return the universal times of local ones, in seconds since 1970, and a mask of rows that may be an hour earlier.

    Of an hour that occurs twice, at the end of summer time, the rows of a device from the one on whose time does not
    exceed that of the row before it are in the second one. Without such a row, the second hour begins where an hour can
    be missing: before or after a recording, or at a hole. If it can be missing at several places, or the order of rows
    does not show one, the mask has these rows, and they count as early ones where that is possible.

    The order of recordings counts if a device's recordings ascend in time elsewhere; otherwise each has its own order.

    Args:
        local: float64 [T], as if they were in UTC.
        device: integers [T], the device of each row, whose rows are in order.
        recording: integers [T], the recording of each row; a recording has a single device.
        name: the name of the time zone.

    Raises:
        TimeError: a time does not exist, because summer time begins.

    >>> twice = np.array([25.0, 26.0, 26.5, 26.0, 26.5, 27.0]) * 3600 + 1792800000  # 25 Oct 2026
    >>> device, runs = np.zeros(6, np.int32), np.array([0, 1, 1, 2, 2, 2])
    >>> times, unsure = universal(twice, device, runs, "Europe/Berlin")
    >>> (times / 3600 % 24).tolist(), unsure.any()
    ([23.0, 0.0, 0.5, 1.0, 1.5, 2.0], np.False_)
    """
    first, second = _offsets(local, name)
    doubled = first > second
    later = np.zeros(len(local), np.bool_)
    unsure = np.zeros(len(local), np.bool_)
    if not doubled.any():
        return local - first, unsure
    group = _ordered_groups(local, device, recording, doubled)
    for whose in np.unique(group[doubled]).tolist():
        rows = np.flatnonzero(group == whose)
        for hour in _hours(local, rows, doubled):
            later[rows[hour]], unsure[rows[hour]] = _second(local[rows], recording[rows], hour)
    return local - np.where(later, second, first), unsure


def _offsets(local: Moments, name: str) -> tuple[Moments, Moments]:
    """Return the offset of each local time from UTC in seconds, if it is the first and if it is the second such time.

    Raises:
        TimeError: a time does not exist, because summer time begins.
    """
    zone = _zone(name)
    quarters, place = np.unique(np.floor(local / QUARTER), return_inverse=True)
    walls = [datetime.fromtimestamp(quarter * QUARTER, UTC).replace(tzinfo=zone) for quarter in quarters.tolist()]
    offsets = [[wall.replace(fold=fold).utcoffset() for wall in walls] for fold in (0, 1)]
    first, second = (
        np.array([0.0 if each is None else each.total_seconds() for each in part])[place.ravel()] for part in offsets
    )
    if (first < second).any():
        row = int((first < second).argmax())
        wall = np.datetime64(int(local[row]), "s")
        raise TimeError(row, f"{wall} does not exist in {name}, where summer time begins. Choose another data.zone.")
    return first, second


def _ordered_groups(
    local: Moments, device: NDArray[np.integer], recording: NDArray[np.integer], doubled: Mask
) -> NDArray[np.int64]:
    """Return the rows whose order counts together, [T]: a device's, or a recording's where recordings do not ascend."""
    order = np.argsort(device, kind="stable")
    same = np.diff(device[order]) == 0
    other = np.diff(recording[order]) != 0
    within = doubled[order][1:] & doubled[order][:-1]
    back = same & other & ~within & (np.diff(local[order]) < 0)
    disordered = np.isin(device, device[order][1:][back])
    return np.where(disordered, recording.astype(np.int64) + int(device.max()) + 1, device)


def _hours(local: Moments, rows: Indices, doubled: Mask) -> list[Indices]:
    """Return the places within ``rows`` of each hour that occurs twice, for example of each year."""
    places = np.flatnonzero(doubled[rows])
    ascending = places[np.argsort(local[rows[places]], kind="stable")]
    ends = np.flatnonzero(np.diff(local[rows[ascending]]) > DOUBLED) + 1
    return [np.sort(part) for part in np.split(ascending, ends) if len(part)]


def _second(time: Moments, recording: NDArray[np.integer], hour: Indices) -> tuple[Mask, Mask]:
    """Return which rows of an hour that occurs twice are in the second one, and which of them may be in either.

    Args:
        time: float64 [T], the local times of a device, in order.
        recording: integers [T].
        hour: places of the rows of this hour among the T.
    """
    many = len(hour)
    place = np.arange(many)
    steps = np.diff(time[hour])
    ahead = np.diff(time)
    usual = float(np.median(ahead[ahead > 0])) if (ahead > 0).any() else np.inf
    other = np.diff(recording[hour]) != 0
    back = np.flatnonzero(steps < 0) + 1
    if not len(back) and usual >= QUARTER:
        back = np.flatnonzero((steps == 0) & ~other) + 1  # several of them are no course of a clock
    if len(ahead) and np.median(ahead) < 0:  # rows in descending order
        return np.zeros(many, np.bool_), np.ones(many, np.bool_)
    whole = hour[-1] - hour[0] + 1 == many  # no other rows between those of the hour
    if len(back):
        begin = back[steps[back - 1].argmin()]
        return place >= begin, np.full(many, len(back) > 1 or not whole)
    joints = np.diff(hour) > 1  # which do not count as adjacent
    holes = [0] if hour[0] == 0 or _parted(time, recording, hour[0], usual) else []
    holes += (np.flatnonzero(other | joints | (steps > HOLE * usual)) + 1).tolist()
    holes += [many] if hour[-1] == len(time) - 1 or _parted(time, recording, hour[-1] + 1, usual) else []
    begin = holes[-1] if holes else many
    unsure = (place >= holes[0]) & (place < begin) if holes else np.ones(many, np.bool_)
    return place >= begin, unsure | (not whole)


def _parted(time: Moments, recording: NDArray[np.integer], row: int, usual: float) -> bool:
    """Return whether an hour can be missing before a row: it begins a recording, or follows a hole."""
    return bool(recording[row] != recording[row - 1] or time[row] - time[row - 1] > HOLE * usual)


def zone_of(local: Moments, recording: NDArray[np.integer]) -> str | None:
    """Return a zone of :data:`ZONES` in which times ascend that do not in UTC; None if there is none."""
    for name in ZONES:
        try:
            time, _ = universal(local, recording, recording, name)
        except TimeError:
            continue
        if _ascends(time, recording):
            return name
    return None


def zone_of_recordings(local: Moments, device: NDArray[np.integer]) -> str | None:
    """Return a zone in which the rows of devices ascend through all recordings, if they do not in UTC."""
    return None if _ascends(local, device) else zone_of(local, device)


def summer(time: Moments, recording: NDArray[np.integer]) -> tuple[int, str] | None:
    """Return a row before which a clock goes forward an hour, and a zone where summer time begins then; or None.

    A row before the jump would follow one usual step after the row before it, without the hour.
    """
    order = np.argsort(recording, kind="stable")
    steps, usual = _steps(time[order], recording[order])
    jumps = np.flatnonzero(np.abs(steps - usual - HOUR) < usual / 2) if 0 < usual < HOUR else np.empty(0, np.int64)
    for name in ZONES if len(jumps) else ():
        for jump in jumps.tolist():
            absent = float(np.floor(time[order[jump]] / QUARTER) + 1) * QUARTER
            wall = datetime.fromtimestamp(absent, UTC).replace(tzinfo=_zone(name))
            early = wall.replace(fold=0).utcoffset()
            late = wall.replace(fold=1).utcoffset()
            if early is not None and late is not None and early < late:
                return int(order[jump + 1]), name
    return None


def shift(ends: NDArray[np.float64], steps: NDArray[np.float64], k: int) -> float:
    """Return by how many s, in whole quarters of an hour, both ends of a device's rows are off all others'; or 0.

    Args:
        ends: first and last time of each device, [K, 2].
        steps: usual step of each device, [K].

    >>> ends = np.array([[0, 9e4], [30, 9e4], [3600, 93600.0]])
    >>> shift(ends, np.full(3, 60.0), 2), shift(ends, np.full(3, 60.0), 0)
    (3600.0, 0.0)
    """
    near, away, tight = _away(ends, steps, k)
    found = QUARTER * round(float(away.mean()) / QUARTER)
    even = tight and float(np.abs(away - found).max()) <= near
    return float(found) if even and 2 * near < abs(found) <= ALONG else 0.0


def forward(ends: NDArray[np.float64], steps: NDArray[np.float64], longest: NDArray[np.float64], k: int) -> float:
    """Return by how many s only the last time of a device is off, as it alone went forward an hour, or did not; or 0.

    Args:
        ends, steps: those of :func:`shift`.
        longest: longest step of each device, [K].

    >>> ends = np.array([[0, 9e4], [0, 9e4], [0, 93600.0]])
    >>> forward(ends, np.full(3, 60.0), np.array([60.0, 60, 3660]), 2)
    3600.0
    >>> forward(ends, np.full(3, 60.0), np.array([60.0, 60, 60]), 2)  # an hour of rows more
    0.0
    """
    near, away, tight = _away(ends, steps, k)
    jumps = np.abs(longest - steps - HOUR) < steps / 2
    alone = bool((np.delete(jumps, k) != jumps[k]).all())
    off = HOUR if jumps[k] else -HOUR
    hourly = abs(away[0]) <= near and abs(away[1] - off) <= near
    return float(off) if tight and alone and hourly and 2 * near < HOUR else 0.0


def _away(
    ends: NDArray[np.float64], steps: NDArray[np.float64], k: int
) -> tuple[float, NDArray[np.float64], bool]:  # fmt: skip
    """Return how near times are alike, in s; how far both ends of a device are from the others', and if these agree."""
    others = np.delete(ends, k, axis=0)
    near = 2 * float(np.fmax.reduce(steps, initial=0.0)) + 1
    if not len(others):
        return near, np.zeros(2), False
    return near, ends[k] - np.median(others, axis=0), bool((np.ptp(others, axis=0) <= near).all())


def shifted(name: str, off: float) -> str:
    """Return a sentence on a device of which :func:`shift` found that its clock is off by some s."""
    way = "after" if off > 0 else "before"
    return (
        f"the rows of '{name}' begin and end {abs(off) / HOUR:g} h {way} those of all others, as by a clock in another "
        "time zone or without summer time. Correct its times, or write their zone; where all are local times of one "
        "zone: --set data.zone=NAME."
    )


def reset(time: Moments, recording: NDArray[np.integer]) -> Indices:
    """Return the rows of a recording whose clock is more than a year away from most rows', by jumps of the clock."""
    order = np.argsort(recording, kind="stable")
    steps, usual = _steps(time[order], recording[order])
    jumps = np.isfinite(steps) & (np.abs(steps) > max(RESET, FAR * usual))
    if not jumps.any():
        return np.empty(0, np.int64)
    same = np.concatenate([[0], np.cumsum(jumps | np.isinf(steps))])  # pieces between jumps
    away = np.zeros(len(time), np.bool_)
    for whose in np.unique(recording[order][1:][jumps]).tolist():
        mine = np.flatnonzero(recording[order] == whose)
        pieces, many = np.unique(same[mine], return_counts=True)
        middle = np.median(time[order[mine[same[mine] == pieces[many.argmax()]]]])
        away[order[mine]] = np.abs(time[order[mine]] - middle) > RESET
    return np.flatnonzero(away)


def interleaves(time: Moments, recording: NDArray[np.integer]) -> bool:
    """Return whether sorting would mix the rows of two courses of a clock, such as one that was set back.

    >>> late, back = np.array([0, 1, 3, 2, 4.0]), np.concatenate([np.arange(90), np.arange(30.5, 90)])
    >>> interleaves(late, np.zeros(5, np.int32)), interleaves(back, np.zeros(150, np.int32))
    (False, True)
    """
    order = np.argsort(recording, kind="stable")
    steps, _ = _steps(time[order], recording[order])
    back = int((steps < 0).sum())
    piece = np.empty(len(time), np.int64)
    piece[order] = np.concatenate([[0], np.cumsum((steps < 0) | np.isinf(steps))])
    ordered = np.lexsort((time, recording))
    changes = (np.diff(piece[ordered]) != 0) & (np.diff(recording[ordered]) == 0)
    return back > 0 and int(changes.sum()) > BETWEEN * back


def copied(keys: Sequence[NDArray[np.generic]]) -> Mask:
    """Return a mask of the rows that are alike an earlier row in all of the columns ``keys``, each [T, …]."""
    rows = len(keys[0])
    whole = np.concatenate([np.ascontiguousarray(key).reshape(rows, -1).view(np.uint8) for key in keys], axis=1)
    whole = np.ascontiguousarray(whole)
    _, first = np.unique(whole.view(np.dtype((np.void, whole.shape[1]))).ravel(), return_index=True)
    mask = np.ones(rows, np.bool_)
    mask[first] = False
    return mask


def _steps(time: Moments, recording: NDArray[np.integer]) -> tuple[Moments, float]:
    """Return the time from each row to the next, infinite between recordings, and the median of those above 0."""
    steps = np.where(np.diff(recording) == 0, np.diff(time), np.inf)
    ahead = steps[(steps > 0) & np.isfinite(steps)]
    return steps, float(np.median(ahead)) if len(ahead) else 0.0


def _ascends(time: Moments, recording: NDArray[np.integer]) -> bool:
    order = np.argsort(recording, kind="stable")
    return bool((_steps(time[order], recording[order])[0] > 0).all())
