"""Units in the row below the names, which may differ between the tables of a folder."""

from __future__ import annotations

from pathlib import Path

from fedfloor.data.files.tree import files_in
from fedfloor.drafting.folders import units_words


def test_units_that_differ_between_tables_are_named(tmp_path: Path) -> None:
    for number, units in enumerate(["°C;bar", "[°C];bar", "°F;bar", "°C;"], start=1):
        (tmp_path / f"p{number}.csv").write_text(f"temp;load\n{units}\n41,5;3,2\n42,5;3,1\n", "utf-8")
    told = units_words(files_in(tmp_path), {"skip": [2], "decimal": ","})
    assert len(told) == 1
    assert "'temp' is in different units by the row below the names: °C in p1.csv, °F in p3.csv." in told[0]
    assert units_words(files_in(tmp_path)[:2], {"skip": [2]}) == []
    assert units_words(files_in(tmp_path), {}) == []
