"""Some of the made faults: each is named, and nothing is without one. All: ``python -m benchmarks.faults``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fault_cases import CASES
from benchmarks.faults import NONE, OUT, judged, page

QUICK = {
    "°F at one machine": "new", "two sensors exchanged at one machine": "new",
    "milliseconds since 1970": "new", "the end of summer time": "new", "a clock that was set back": "new",
    "pauses of 2.5 days, forecast": "new", "rows of separators below a table": "new", "OPC qualities as codes": "new",
    "a label with a long name, anomalies": "new", "a row number": "new", "keys and values above the header": "new",
    "a machine that was not in training": "predict", "°F in a table to predict": "predict",
    "a plant, later rows of it": "",
    "anomalies, later rows": "",
}  # fmt: skip


@pytest.mark.parametrize("case", [case for case in CASES if case.name in QUICK], ids=lambda case: case.name)
def test_a_fault_is_named_and_nothing_else(case) -> None:  # type: ignore[no-untyped-def]
    assert judged(case).command == QUICK[case.name]


def test_the_page_has_every_case_named_and_no_false_alarm() -> None:
    assert {*QUICK} <= {case.name for case in CASES}
    rows = json.loads((Path(__file__).parents[2] / OUT).read_text(encoding="utf-8"))["rows"]
    assert [row["case"] for row in rows] == [case.name for case in CASES]
    assert all(bool(row["named by"]) == (row["kind"] != NONE) for row in rows)
    assert sum(row["kind"] != NONE for row in rows) >= 50
    assert sum(row["kind"] == NONE for row in rows) >= 8
    assert "0 of" in page({"rows": rows})
