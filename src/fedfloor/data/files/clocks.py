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
QUARTER = 900  # seconds; offsets from UTC change on quarters of an hour
DOUBLED = 3 * 3600  # seconds: rows of a repeated hour are no further apart
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


def universal(local: Moments, recording: NDArray[np.integer], name: str) -> Moments:
    """Return the universal times of local ones, in seconds since 1970.

    An hour that occurs twice, at the end of summer time, is the second one from the row on whose time does not exceed
    that of the row before it in its recording.

    Args:
        local: float64 [T], as if they were in UTC.
        recording: integers [T], the recording of each row, whose rows are in order.
        name: the name of the time zone.

    Raises:
        TimeError: a time does not exist, because summer time begins.

    >>> twice = np.array([25.0, 26.0, 26.5, 26.0, 26.5, 27.0]) * 3600 + 1792800000  # 25 Oct 2026
    >>> (universal(twice, np.zeros(6, np.int32), "Europe/Berlin") / 3600 % 24).tolist()
    [23.0, 0.0, 0.5, 1.0, 1.5, 2.0]
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
    order = np.argsort(recording, kind="stable")
    twice = (first > second)[order]
    time = local[order]
    follows = np.concatenate([[False], twice[1:] & twice[:-1] & (np.diff(recording[order]) == 0)])
    follows[1:] &= np.abs(np.diff(time)) < DOUBLED
    back = np.cumsum(follows & (np.diff(time, prepend=np.inf) <= 0))
    begun = np.maximum.accumulate(np.where(follows, 0, back))  # steps back before the repeated hours began
    later = np.empty(len(local), np.bool_)
    later[order] = twice & (back > begun)
    return local - np.where(later, second, first)


def zone_of(local: Moments, recording: NDArray[np.integer]) -> str | None:
    """Return a zone of :data:`ZONES` in which times ascend that do not in UTC; None if there is none."""
    for name in ZONES:
        try:
            time = universal(local, recording, name)
        except TimeError:
            continue
        if _ascends(time, recording):
            return name
    return None


def summer(time: Moments, recording: NDArray[np.integer]) -> tuple[int, str] | None:
    """Return a row before which a clock goes forward an hour, and a zone where summer time begins then; or None.

    A row before the jump would follow one usual step after the row before it, without the hour.
    """
    order = np.argsort(recording, kind="stable")
    steps, usual = _steps(time[order], recording[order])
    jumps = np.flatnonzero(np.abs(steps - usual - 3600) < usual / 2) if 0 < usual < 3600 else np.empty(0, np.int64)
    for name in ZONES if len(jumps) else ():
        for jump in jumps.tolist():
            absent = float(np.floor(time[order[jump]] / QUARTER) + 1) * QUARTER
            wall = datetime.fromtimestamp(absent, UTC).replace(tzinfo=_zone(name))
            early = wall.replace(fold=0).utcoffset()
            late = wall.replace(fold=1).utcoffset()
            if early is not None and late is not None and early < late:
                return int(order[jump + 1]), name
    return None


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
