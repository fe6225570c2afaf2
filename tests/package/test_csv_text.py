"""CSV for spreadsheets: no cell is executed, numbers stay numbers, and everything else is read back unchanged."""

from __future__ import annotations

import ast
import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedfloor
from fedfloor.base.strict import FORMULA, csv_text

ROOT = Path(fedfloor.__file__).parent


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize(
    "cell",
    ["=1+1", "@SUM(A1)", "=HYPERLINK('http://e')", "-2+3+cmd|' /C calc'!A0", "+A1", "\t=1", "\r=1", "\n=1", "＝1+1"],
)
def test_a_formula_becomes_a_text(cell: str) -> None:
    assert read(csv_text([[cell]])) == [[f"'{cell}"]]


@pytest.mark.parametrize("cell", ["-", "+", "-1", "+1.5e3", "-inf", "lathe-1", "a=b", "'=1", "", " x"])
def test_numbers_signs_and_names_are_unchanged(cell: str) -> None:
    assert read(csv_text([["x", cell]])) == [["x", cell]]


@given(st.lists(st.lists(st.one_of(st.text(), st.floats(), st.integers(), st.none()), min_size=1), min_size=1))
def test_no_cell_is_executed_and_every_cell_is_kept(rows: list[list[object]]) -> None:
    out = read(csv_text([["first", *row] for row in rows]))
    for row, cells in zip(rows, out, strict=True):
        for value, cell in zip(row, cells[1:], strict=True):
            text = "" if value is None else str(value)
            assert cell in (text, f"'{text}")
            if len(cell) > 1 and cell.startswith(FORMULA):
                float(cell)  # a number


def test_tables_for_people_have_one_writer() -> None:
    """Remedy: ``csv_text``. ``data/events.py`` copies the user's own table, which is read again."""
    calls = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("csv.writer", "csv.DictWriter")
    }
    assert calls == {"base/strict.py", "data/events.py"}
