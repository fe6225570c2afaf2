"""A table of normal operation without labels, tested on another one whose labels serve evaluation alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedfloor.data.files import own
from fedfloor.data.reading import Columns, Reading
from fedfloor.drafting.columns import headline
from refusals import refused

NORMAL = "".join(f"{device},{n},{n % 3}\n" for device in "ab" for n in range(6))


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    (tmp_path / "normal.csv").write_text(f"device,time,heat\n{NORMAL}")
    (tmp_path / "faults.csv").write_text("device,time,heat,fault\na,90,1,ok\na,91,7,leak\nb,90,8,jam\n")
    return Reading(columns=Columns(label="fault"), task="reconstruction", test=str(tmp_path / "faults.csv"))


def test_rows_without_the_column_are_normal_and_others_have_their_label(tmp_path: Path, reading: Reading) -> None:
    data = own.load(tmp_path / "normal.csv", reading, 0)
    assert data.classes == ("normal", "anomaly")
    assert (data.y.tolist(), data.y_test.tolist()) == ([0] * 12, [0, 1, 1])
    assert headline({}, data).settings == {}


def test_a_table_to_test_on_needs_the_labels_and_a_classification_both(tmp_path: Path, reading: Reading) -> None:
    (tmp_path / "faults.csv").write_text("device,time,heat\na,90,1\n")
    with refused("no-column"):
        own.load(tmp_path / "normal.csv", reading, 0)
    (tmp_path / "faults.csv").write_text("device,time,heat,fault\na,90,1,ok\n")
    with refused("no-column"):
        own.load(tmp_path / "normal.csv", replace(reading, task=None), 0)


def test_without_a_normal_row_to_test_on_the_missed_ones_are_the_headline(tmp_path: Path, reading: Reading) -> None:
    (tmp_path / "faults.csv").write_text("device,time,heat,fault\na,91,7,leak\nb,90,8,jam\n")
    proposal = headline({}, own.load(tmp_path / "normal.csv", reading, 0))
    assert proposal.settings == {"evaluate.headline": "missed"}
    assert "each test sample is an anomaly" in proposal.notes[0]
