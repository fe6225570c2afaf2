"""Marks in numbers: of decimals or between thousands, also in targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedfloor.data.files.encode import binned, check_no_measure, numbers
from fedfloor.data.files.marks import grouped
from fedfloor.data.files.sheet import read
from fedfloor.data.reading import Reading
from refusals import refused

COUNTS = ["895", "2,054", "12,117", "77", "640", "1,003"]
LARGE = ["2,054", "12,117", "1,003"]


def parsed(texts: list[str], decimal: str = "") -> NDArray[np.float32]:
    return numbers(texts, "row {}".format, decimal)


def test_targets_that_count_thousands_are_no_fractions() -> None:
    """2,054 beside 895 is 2054: a target of 2.054 would make an error of thousands look like one of units."""
    with refused("grouped-numbers"):
        parsed(COUNTS, ",")
    with refused("grouped-numbers"):
        binned(COUNTS, [1000], ["few", "many"], "row {}".format)


def test_targets_with_another_mark_than_the_tables_decimals_count_thousands() -> None:
    with refused("grouped-numbers"):
        parsed(LARGE, ".")
    assert parsed(LARGE, ",").ravel().tolist() == pytest.approx([2.054, 12.117, 1.003])
    assert parsed(["2,05", "12,1", "1,003"], ".").ravel().tolist() == pytest.approx([2.05, 12.1, 1.003])


def test_measures_with_both_marks_are_no_classes() -> None:
    with refused("grouped-numbers"):
        check_no_measure([f"1,{number}.5" for number in range(100, 300)], "line.csv", Reading())


@pytest.mark.parametrize(("thousands", "decimal", "cell"), [(",", ".", "2,054.5"), (".", ",", "2.054,5")])
def test_the_mark_between_thousands_holds_for_labels(tmp_path: Path, thousands: Any, decimal: Any, cell: str) -> None:
    path = tmp_path / "line.csv"
    path.write_text(f"device;a;label\nx;1{decimal}5;{cell}\n")
    sheet = read(path, Reading(thousands=thousands, decimal=decimal), ("device", "label"))
    assert parsed(sheet.text["label"]).item() == 2054.5


@pytest.mark.parametrize(
    "cells",
    [
        ["895", "2.054", "12.11", "77", "640", "1.003"],  # fractions of another length
        ["0.895", "2.054", "3.117", "77", "640", "12"],  # a number below 1 needs no mark of thousands
        ["1895", "2.054", "12.117", "77", "640", "1.003"],  # a larger number without one
        ["2.054", "12.117", "1.003", "0", "0"],  # whole numbers are rare
    ],
)
def test_fractions_are_not_taken_for_thousands(cells: list[str]) -> None:
    assert grouped(cells, ".") is None


def test_texts_that_hardly_recur_are_no_classes() -> None:
    """A measure with a unit, a date or a remark in each row made hundreds of classes of a sample each."""
    with refused("no-classes"):
        check_no_measure([f"{number}.5 mm" for number in range(200)], "line.csv", Reading())
    check_no_measure([f"part {number % 60}" for number in range(240)], "line.csv", Reading())
    check_no_measure([f"part {number}" for number in range(50)], "line.csv", Reading())
