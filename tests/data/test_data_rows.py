"""Rows that are no samples: names in several rows, and sums between machines or below a table."""

from __future__ import annotations

from pathlib import Path

import openpyxl
import pytest

from fedfloor.data.files import conversions
from fedfloor.data.files.titles import own_titles
from fedfloor.data.files.unlike_rows import named_by_rows, sums_of
from fedfloor.data.reading import Columns, DeviceReading
from refusals import refused

ROWS = [
    [f"P{m}", f"0{1 + m}.03.2026 08:{minute:02}", f"{60 + m},5", "3,2", "ok"] for m in range(4) for minute in range(20)
]
NAMES = ["pump", "time", "temp", "load", "state"]


def written(path: Path, rows: list[list[str]]) -> Path:
    path.write_text("\n".join(";".join(row) for row in rows) + "\n", "utf-8-sig")
    return path


@pytest.mark.parametrize(
    ("top", "names"),
    [
        ([["", "", "motor", "", ""], ["pump", "time", "temp", "temp 2", "state"]], None),  # one row names all columns
        ([NAMES, ["", "", "°C", "A", ""]], None),
        ([["report"], NAMES], None),
        ([NAMES, ["P0", "", "", "", "ok"]], None),  # a first sample without values
        ([["", *NAMES], ["", "P0", "01.03.2026 08:00", "", "", "ok"]], None),
        ([["pump", "time", "motor", "", "state"], ["", "", "temp", "load", ""]], NAMES),
        ([["pump", "time", "motor", "", "state"], ["", "", "temp", "load", ""], ["", "", "°C", "A", ""]], NAMES),
        ([["", "", "motor", "gear", ""], ["pump", "time", "temp", "temp", "state"]],
         ["pump", "time", "motor temp", "gear temp", "state"]),
    ],
)  # fmt: skip
def test_names_are_those_of_one_row_or_of_groups_and_the_row_below(
    tmp_path: Path, top: list[list[str]], names: list[str] | None
) -> None:
    lines = [*enumerate([*top, *ROWS[:5]], start=1)]
    found = named_by_rows([(line, [*row]) for line, row in lines])
    assert (found and found[0]) == names
    path = written(tmp_path / "a.csv", [*top, *ROWS])
    if names is None:
        conversions.check(path, {})
        return
    with refused("names-in-rows"):
        conversions.check(path, {})
    conversions.check(path, {"skip": len(top), "header": names})


def test_a_workbook_with_merged_names_is_told_the_names(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    for row in [["pump", "time", "motor", None, "state"], [None, None, "temp", "load", None], *ROWS]:
        sheet.append(row)
    sheet.merge_cells("C1:D1")
    book.save(tmp_path / "a.xlsx")
    with refused("names-in-rows"):
        conversions.check(tmp_path / "a.xlsx", {})


def test_sums_below_a_table_and_between_machines_are_refused_with_their_rows(tmp_path: Path) -> None:
    footer = ["Summe", "", "4 960,0", "256,0", ""]
    path = written(
        tmp_path / "foot.csv", [NAMES, ["", "", "°C", "A", ""], *ROWS, footer, ["Max", "", "63,5", "3,2", ""]]
    )
    with refused("sums"):
        conversions.check(path, {})
    conversions.check(path, {"skip": [2, 83, 84]})
    parts = [row for m in range(4) for row in [*ROWS[20 * m : 20 * m + 20], [f"P{m} Ergebnis", "", "1,0", "2,0", ""]]]
    with refused("sums"):
        conversions.check(written(tmp_path / "parts.csv", [NAMES, *parts]), {})
    many = [row for row in ROWS for row in [row, row, row, ["Total", "", "1,0", "2,0", ""]]]
    with refused("conversion"):
        conversions.check(written(tmp_path / "many.csv", [NAMES, *many]), {})


def test_sums_are_looked_for_in_all_tables_of_a_folder(tmp_path: Path) -> None:
    for machine in "abc":
        (tmp_path / "park" / machine).mkdir(parents=True)
        written(tmp_path / "park" / machine / "1.csv", [NAMES, *ROWS])
    conversions.check(tmp_path / "park", {})
    written(tmp_path / "park" / "b" / "2.csv", [NAMES, *ROWS, ["Summe", "", "4 960,0", "256,0", ""]])
    with refused("sums"):
        conversions.check(tmp_path / "park", {})


def test_machines_and_states_called_total_or_max_are_no_sums() -> None:
    meters = [(2 + i, [name, f"2026-03-01 08:{i:02}", "3"]) for i in range(20) for name in ("a", "b", "total")]
    assert sums_of(meters) == []
    assert sums_of([(2, ["max", "3"]), (3, ["heat total", "4"]), (4, ["min", "4"])]) == []


def test_a_model_with_names_of_two_rows_reads_a_table_with_one(tmp_path: Path) -> None:
    columns = Columns(device="pump", time="time", label="state", values=("temp", "load"))
    reading = DeviceReading(columns=columns, decimal=",", skip=(1, 2), header=tuple(NAMES))
    two = written(tmp_path / "two.csv", [["pump", "time", "motor", "", "state"], ["", "", "temp", "load", ""], *ROWS])
    assert own_titles(two, reading) == reading
    one = own_titles(written(tmp_path / "one.csv", [NAMES, *ROWS]), reading)
    assert (one.skip, one.header) == (None, None)
    bare = own_titles(written(tmp_path / "bare.csv", ROWS), reading)
    assert (bare.skip, bare.header) == (None, tuple(NAMES))
