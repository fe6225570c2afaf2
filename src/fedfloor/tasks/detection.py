"""Metrics of anomaly detection in recordings, which are rows in the order of time, without point adjustment.

With point adjustment, a single detected row makes a whole anomaly count as detected, so that random scores seem as good
as the best detectors (Kim et al., AAAI 2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
FALSE_ALARM = 0.11  # the cost of a false alarm in NAB's standard profile; a missed change costs 1
WINDOWS = 0.1  # total length of NAB's windows as a share of a recording
BUFFER = 100  # rows around an anomaly, at most, that are partly abnormal for VUS-PR


@dataclass(frozen=True, eq=False)
class Detection:
    """Scores and alarms of recordings, each in the order of time.

    Args:
        odd: bool [n], whether a row is abnormal.
        score: float64 [n], the higher the more abnormal.
        alarm: bool [n], whether a row has an alarm.
        recording: int [n], the recording of each row; rows of a recording are adjacent.
        buffer: rows around an anomaly, at most, that are partly abnormal for VUS-PR; up to 1: :data:`BUFFER`.
    """

    odd: Flags
    score: Floats
    alarm: Flags
    recording: NDArray[np.integer]
    buffer: int = 1

    def recordings(self) -> Iterator[slice]:
        """Yield the slice of each recording's rows."""
        edges = np.flatnonzero(np.diff(self.recording)) + 1
        for first, end in zip([0, *edges.tolist()], [*edges.tolist(), len(self.odd)], strict=True):
            if end > first:
                yield slice(first, end)


def f1(detection: Detection) -> float | None:
    """Return 2·TP / (2·TP + FP + FN) over rows; None without an abnormal row."""
    right = int((detection.odd & detection.alarm).sum())
    return 2 * right / int(detection.odd.sum() + detection.alarm.sum()) if detection.odd.any() else None


def false_alarms(detection: Detection) -> float | None:
    """Return the share of normal rows with an alarm; None if no row is normal."""
    return float(detection.alarm[~detection.odd].mean()) if not detection.odd.all() else None


def missed(detection: Detection) -> float | None:
    """Return the share of abnormal rows without an alarm; None if no row is abnormal."""
    return float(1 - detection.alarm[detection.odd].mean()) if detection.odd.any() else None


def changes(flags: Flags) -> NDArray[np.int64]:
    """Return the rows in which flags differ from the preceding row.

    >>> changes(np.array([False, True, True, False])).tolist()
    [1, 3]
    """
    return np.flatnonzero(np.diff(flags.astype(np.int8))) + 1


def switched(alarm: Flags) -> NDArray[np.int64]:
    """Return the rows in which alarms begin or end, including an alarm in the first row.

    >>> switched(np.array([True, True, False])).tolist()
    [0, 2]
    """
    return np.flatnonzero(np.diff(alarm, prepend=False))


def nab_points(detected: NDArray[Any], points: NDArray[Any], window: float) -> float:
    r"""Return NAB's sum of points of a recording with the standard profile, as in SKAB's leaderboard.

    Each change c has a window from c − W/2 to c + W/2, inclusive; if two overlap, the later begins at the end of the
    earlier. The first detection in a window, at a share p of its width, gives
    0.445 − 0.555·tanh(π(p − ½))/tanh(π/2): 1 at the beginning of the window, 0.445 at the change, −0.11 at the end. A
    window without detection costs 1, a detection outside windows 0.11. This is the rule of the package tsad of SKAB's
    authors, with windows of 30 s centred on changes (github.com/waico/SKAB at c031ef6,
    notebooks/isolation_forest.ipynb). Lavin and Ahmad, IEEE ICMLA 2015, arXiv 1510.03336, use another curve, and
    cheaper false alarms shortly after a window.

    Args:
        detected: the ascending times of detected changes, in rows or seconds.
        points: the ascending times of true changes.
        window: W, in the same unit.

    >>> round(nab_points(np.array([5, 10, 40]), np.array([10]), window=10), 3)  # the second detection is not counted
    0.89
    """
    total = 0.0
    begin = -math.inf
    outside = np.ones(len(detected), np.bool_)
    for point in points.tolist():
        begin, end = max(begin, point - window / 2), point + window / 2
        inside = (detected >= begin) & (detected <= end)
        outside &= ~inside
        if inside.any():
            share = (float(detected[inside][0]) - begin) / (end - begin)
            half = (1 + FALSE_ALARM) / 2
            total += 1 - half - half * math.tanh(math.pi * (share - 0.5)) / math.tanh(math.pi / 2)
        else:
            total -= 1
        begin = end
    return total - FALSE_ALARM * float(outside.sum())


def nab_score(points: float, many: int) -> float | None:
    """Return 100·(points − null)/(perfect − null), null −1 and perfect 1 per change; 0: no detections."""
    return 100 * (points + many) / (2 * many) if many else None


def nab(detection: Detection) -> float | None:
    """Return NAB's score over the recordings, for changes of labels, detected by changes of alarms.

    The windows of a recording have a tenth of its rows in total.
    """
    sums = 0.0
    many = 0
    for part in detection.recordings():
        points = changes(detection.odd[part])
        window = max(1.0, WINDOWS * (part.stop - part.start) / max(1, len(points)))
        sums = sums + nab_points(switched(detection.alarm[part]), points, window)
        many = many + len(points)
    return nab_score(sums, many)


def vus_pr(detection: Detection) -> float | None:
    r"""Return the volume under the surface of precision and recall over thresholds and buffers ℓ = 0 … L.

    With a buffer ℓ, a row at a distance of d ≤ ℓ/2 rows from an anomaly has the label y = √(1 − d/ℓ). For alarms a of a
    threshold, the precision is P = Σ y·a/Σ a, and the recall R is min(1, Σ y·a / ½(Σ y₀ + Σ y)), with labels y₀ without
    buffers, times the share of anomalies with an alarm in them or their buffer. The area is Σ (R_t − R_{t−1})·P_t over
    the distinct scores from the highest, and the volume is the mean of the areas. Paparrizos et al., PVLDB 15 (2022)
    2774.

    Returns:
        The volume, 0 to 1; None without an anomaly.

    >>> odd = np.array([0, 0, 1, 1, 0, 0], bool)
    >>> vus_pr(Detection(odd, odd.astype(float), odd, np.zeros(6, int), buffer=2)) > 0.8
    True
    """
    if not detection.odd.any():
        return None
    most = detection.buffer if detection.buffer > 1 else BUFFER
    order = np.argsort(-detection.score, kind="stable")
    last = np.append(np.flatnonzero(np.diff(detection.score[order])), len(order) - 1)  # of equal scores
    starts, ends, bounds = _segments(detection)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    plain = detection.odd.astype(np.float64)
    areas = []
    for buffer in range(most + 1):
        label = plain.copy()
        reach = buffer // 2
        for start, end, (low, high) in zip(starts, ends, bounds, strict=True):
            after = np.arange(end, min(end + reach, high))
            before = np.arange(max(start - reach, low), start)
            rows = np.concatenate([before, after])
            away = np.concatenate([start - before, after - end + 1])
            label[rows] = np.maximum(label[rows], np.sqrt(1 - away / max(1, buffer)))
        first = np.sort([
            place[max(start - reach, low) : min(end + reach, high)].min()
            for start, end, (low, high) in zip(starts, ends, bounds, strict=True)
        ])  # fmt: skip
        hits = np.cumsum(label[order])[last]
        detected_share = np.searchsorted(first, last, "right") / len(first)
        recall = np.minimum(1.0, hits / ((plain.sum() + label.sum()) / 2)) * detected_share
        areas.append(float((np.diff(recall, prepend=0.0) * hits / (last + 1)).sum()))
    return float(np.mean(areas))


def _segments(detection: Detection) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Return the first rows and the ends of all anomalies, and the bounds of their recordings."""
    starts = list[int]()
    ends = list[int]()
    bounds = list[tuple[int, int]]()
    for part in detection.recordings():
        flags = np.concatenate([[False], detection.odd[part], [False]])
        edges = changes(flags) - 1
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            starts.append(part.start + start)
            ends.append(part.start + end)
            bounds.append((part.start, part.stop))
    return starts, ends, bounds
