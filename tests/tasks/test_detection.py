"""Figures of detection against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedfloor.tasks import detection
from fedfloor.tasks.detection import Detection, nab_points, nab_score, vus_pr


def course(odd: list[int], score: list[float], alarm: list[int] | None = None, **more: object) -> Detection:
    flags = np.array(odd, np.bool_)
    raised = flags if alarm is None else np.array(alarm, np.bool_)
    recording = np.array(more.pop("recording", np.zeros(len(odd))), np.int64)
    return Detection(flags, np.array(score, np.float64), raised, recording, **more)  # type: ignore[arg-type]


def test_rates_are_counted_over_rows_and_nothing_is_adjusted() -> None:
    found = course([0, 0, 0, 0, 1, 1, 1, 1], [0.0] * 8, [1, 0, 0, 0, 1, 0, 0, 0])
    assert detection.f1(found) == pytest.approx(2 * 1 / (4 + 2))  # point-adjusted it would be 8/9
    assert detection.false_alarms(found) == 0.25
    assert detection.missed(found) == 0.75


def test_a_course_without_anomalies_has_only_false_alarms() -> None:
    found = course([0, 0], [0.0, 1.0], [0, 1])
    assert (detection.f1(found), detection.missed(found), vus_pr(found), detection.nab(found)) == (None,) * 4
    assert detection.false_alarms(found) == 0.5


def test_vus_pr_of_a_perfect_detector_by_hand() -> None:
    # ℓ = 0 and 1 have no buffer rows: area 1. ℓ = 2: rows 1 and 4 are abnormal by √(1 − 1/2), Σ y = 2 + √2, and
    # P = ½(2 + 2 + √2). First threshold: hits 2, precision 1, recall 2/P. Second: all six rows, recall 1.
    total = 2 + math.sqrt(2)
    whole = (4 + math.sqrt(2)) / 2
    area = 2 / whole + (1 - 2 / whole) * total / 6
    found = course([0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 0, 0], buffer=2)
    assert vus_pr(found) == pytest.approx((1 + 1 + area) / 3)


def test_vus_pr_without_buffers_of_equal_scores_is_the_share_of_anomalies() -> None:
    found = course([0, 1, 0, 0], [3.0] * 4, buffer=2)
    label = 1 + 2 * math.sqrt(0.5)
    expected = (0.25 + 0.25 + min(1.0, label / ((1 + label) / 2)) * label / 4) / 3
    assert vus_pr(found) == pytest.approx(expected)


def test_vus_pr_counts_anomalies_that_are_found() -> None:
    # two anomalies of one row each, one found first: recall ½ is halved once more, as one of two exists; ℓ = 0 alone
    # is checked by buffers that reach no row (ℓ = 0 and 1)
    found = course([1, 0, 0, 0, 1], [4, 3, 2, 1, 0], buffer=2)
    low, high = 0.5 * 0.5, 1.0
    without = low * 1 + (high - low) * 2 / 5
    label = np.array([1, math.sqrt(0.5), 0, math.sqrt(0.5), 1])
    hits = np.cumsum(label)
    many = (2 + label.sum()) / 2
    there = np.array([0.5, 0.5, 0.5, 1, 1])  # row 3 is in the buffer of the second
    recall = np.minimum(1, hits / many) * there
    area = float((np.diff(recall, prepend=0) * hits / np.arange(1, 6)).sum())
    assert vus_pr(found) == pytest.approx((2 * without + area) / 3)


def test_buffers_do_not_reach_into_another_recording() -> None:
    apart = course([0, 1, 0, 0], [0, 1, 2, 0], recording=[0, 0, 1, 1], buffer=2)
    joined = course([0, 1, 0, 0], [0, 1, 2, 0], buffer=2)
    assert vus_pr(joined) > vus_pr(apart)  # type: ignore[operator]


def test_nab_by_hand() -> None:
    # one change at 50, W = 10: the window is 45 … 55, and a detection at 47.5 is a quarter in
    change = np.array([50])
    quarter = 0.445 + 0.555 * math.tanh(math.pi / 4) / math.tanh(math.pi / 2)
    for at, points in ((45, 1.0), (47.5, quarter), (50, 0.445), (55, -0.11)):
        assert nab_points(np.array([at]), change, 10) == pytest.approx(points)
    assert nab_points(np.array([]), change, 10) == -1
    assert nab_points(np.array([44, 56]), change, 10) == pytest.approx(-1 - 2 * 0.11)
    assert nab_points(np.array([45, 46, 54]), change, 10) == pytest.approx(
        1
    )  # only the first counts, the others are free
    assert nab_points(np.array([3, 9]), np.array([]), 10) == pytest.approx(-0.22)


def test_nab_is_0_of_nothing_and_100_half_a_window_early() -> None:
    odd = [0] * 20 + [1] * 20 + [0] * 20  # 60 rows, two changes: windows of 3 rows
    assert detection.nab(course(odd, [0.0] * 60, [0] * 60)) == 0
    assert detection.nab(course(odd, [0.0] * 60, odd)) == pytest.approx(100 * (0.445 + 1) / 2)
    assert nab_score(2.0, 2) == 100
    assert nab_score(0.0, 0) is None
    first = [1] + [0] * 59  # begins at row 0 and ends at row 1: two detections outside, and both changes missed
    assert detection.nab(course(odd, [0.0] * 60, first)) == pytest.approx(100 * (-2 - 0.22 + 2) / 4)


def test_a_window_begins_where_the_one_before_ends() -> None:
    # W = 10, changes at 5 and 8: windows 0 … 10 and 10 … 13; a detection at 10 is in both
    changes = np.array([5, 8])
    assert nab_points(np.array([10]), changes, 10) == pytest.approx(-0.11 + 1)
    assert nab_points(np.array([11.5]), changes, 10) == pytest.approx(-1 + 0.445)  # half of the window that is left
