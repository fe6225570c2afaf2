"""``fedfloor bench hfedms``: its figures by hand, and a small measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import calibration
from benchmarks.calibration import Case, ceiling, figures, measure, times

SMALL = Case("small", "mlp-2nn", devices=8, groups=4, share=0.5, period=3, warm=2)


def test_figures_by_hand() -> None:
    # two of four groups of two devices train: a full visit is a quarter of a full round
    row = figures(SMALL, [[2.0, 1.0, 0.5], [4.0, 1.0, 1.0], [8.0, 4.0, 1.0]])
    assert row["full_visit_ms"] == 1000.0
    assert row["calibration_to_full"] == 0.312  # of 0.375, 0.25 and 0.3125
    assert (row["first_to_full"], row["others_to_full"]) == (0.5, 0.25)


def test_the_ceiling_of_two_groups_on_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "SHARE", 0.2)  # 2 of 10 groups in the first period, 4 of 20 in the second
    # 2·36 and 4·18 visits, of which the longest rank has 72, 36, 36, 36 and 72, 36, 36, 18
    assert [ceiling(ranks, rounds=10) for ranks in (1, 2, 3, 4)] == [1.0, 2.0, 2.0, 2.667]


def test_a_small_measurement(tmp_path: Path) -> None:
    assert [len(one) for one in times(SMALL, 3, tmp_path)] == [3, 3, 3]
    said: list[str] = []
    (row,) = measure([SMALL], 1, said.append)
    assert said == ["small: 1 periods of 3 rounds"]
    assert row["parameters"] == 784 * 200 + 200 + 200 * 200 + 200 + 200 * 62 + 62
    assert all(float(row[name]) > 0 for name in ("full_visit_ms", "calibration_to_full"))  # type: ignore[arg-type]
