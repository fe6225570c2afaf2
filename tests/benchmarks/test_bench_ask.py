"""Made parks that are asked before training: each fault is named, nothing else. All: ``python -m benchmarks.ask``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.ask import FAULTS, FIRST, FIRST_KIND, KINDS, LATER, NONE, OUT, outcome, page

FIFTEEN = [fault for fault in FAULTS if fault not in LATER]


@pytest.mark.parametrize("fault", [*FIFTEEN, ""])
def test_a_fault_is_named_on_its_site_and_nothing_else(fault: str) -> None:
    found = outcome(FIRST, fault, 7)
    assert found["named"] == bool(fault)
    assert found["false"] == []


def test_strongly_different_sites_without_a_fault_have_no_finding() -> None:
    for name in ("8 sites, levels far apart", "3 sites, levels far apart", "2 sites"):
        assert outcome(KINDS[name], "", 11)["false"] == [], name


def test_the_page_has_every_park_the_fifteen_named_and_no_alarm_without_a_fault() -> None:
    found = json.loads((Path(__file__).parents[2] / OUT).read_text(encoding="utf-8"))
    rows = [row for row in found["made"] if row["park"] == FIRST_KIND]
    assert {row["park"] for row in found["made"]} == {*KINDS}
    assert len(FIFTEEN) == 15
    assert all(row["named"] for row in rows if row["fault"] in FIFTEEN)
    assert not [row for row in rows if row["fault"] == NONE and row["false"]]
    assert "15 of 15" in page(found)
