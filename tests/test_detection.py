"""Figures of detection against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedfloor import detection
from fedfloor.detection import Detection, nab_points, nab_score, vus_pr


def course(odd: list[int], score: list[float], alarm: list[int] | None = None, **more: object) -> Detection:
    flags = np.array(odd, np.bool_)
    raised = flags if alarm is None else np.array(alarm, np.bool_)
    recording = np.array(more.pop("recording", np.zeros(len(odd))), np.int64)
    return Detection(flags, np.array(score, np.float64), raised, recording, **more)  # type: ignore[arg-type]


def s(y: float) -> float:
    return 2 / (1 + math.exp(5 * y)) - 1


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
    total, whole = 2 + math.sqrt(2), (4 + math.sqrt(2)) / 2
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
    hits, many = np.cumsum(label), (2 + label.sum()) / 2
    there = np.array([0.5, 0.5, 0.5, 1, 1])  # row 3 is in the buffer of the second
    recall = np.minimum(1, hits / many) * there
    area = float((np.diff(recall, prepend=0) * hits / np.arange(1, 6)).sum())
    assert vus_pr(found) == pytest.approx((2 * without + area) / 3)


def test_buffers_do_not_reach_into_another_recording() -> None:
    apart = course([0, 1, 0, 0], [0, 1, 2, 0], recording=[0, 0, 1, 1], buffer=2)
    joined = course([0, 1, 0, 0], [0, 1, 2, 0], buffer=2)
    assert vus_pr(joined) > vus_pr(apart)  # type: ignore[operator]


def test_nab_by_hand() -> None:
    points = np.array([10])
    found, many = nab_points(np.array([15]), points, 100, window=10)  # y = −(10 − 5)/10
    assert (found, many) == (pytest.approx(s(-0.5) / s(-1)), 1)
    assert nab_points(np.array([], np.int64), points, 100, window=10)[0] == -1
    assert nab_points(np.array([5]), points, 100, window=10)[0] == pytest.approx(-0.11 - 1)  # before any window
    late = 0.11 * s(0.1)  # row 20 is the first after the window
    assert nab_points(np.array([10, 12, 20]), points, 100, window=10)[0] == pytest.approx(1 + late)
    assert late < 0


def test_nab_is_0_of_nothing_and_100_of_all_changes() -> None:
    odd = [0] * 20 + [1] * 20 + [0] * 20
    assert detection.nab(course(odd, [0.0] * 60, [0] * 60)) == 0
    assert detection.nab(course(odd, [0.0] * 60, odd)) == pytest.approx(100)
    assert nab_score(0.0, 0) is None


def test_a_window_ends_where_the_next_begins() -> None:
    assert nab_points(np.array([5, 7]), np.array([5, 7]), 20, window=10) == (2.0, 2)
