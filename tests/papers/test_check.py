"""Printed rows recomputed by their command, and compared."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from fedfloor.base.errors import RunError
from papers import catalog, check
from papers.cells import Table, holds
from papers.claims import ROOT, cell
from papers.verdicts import parsed

COMMAND = "fedfloor reproduce rafed-fig8 --only 'γ = 1, 10 ' --scale 0.2"


def entry(file: str, command: str = COMMAND) -> dict[str, Any]:
    row = "γ = 1, 10 devices | lower bound"
    return {"command": command, "file": file, "cells": [{"row": row, "column": "mean s"}]}


def test_ten_rows_or_more_of_several_papers_stand_where_they_should() -> None:
    found = check.entries()
    assert sum(len(one["cells"]) for one in found) >= 10
    assert len({Path(one["file"]).stem for one in found}) >= 4
    for one in found:
        words = shlex.split(one["command"])
        table = catalog.find(words[2])
        only = words[words.index("--only") + 1]
        keys = [part.key for part in (table.cells if isinstance(table, Table) else table.points)]  # type: ignore[union-attr]
        assert any(holds(only, key) for key in keys), one["command"]
        for place in one["cells"]:
            parsed(cell(one["file"], place["row"], place["column"], place.get("under", "")))


def test_a_row_is_equal_to_what_its_command_makes_or_said_to_be_another(tmp_path: Path) -> None:
    (first,) = check.check(entry("results/rafed-parks.md") | {"cells": [
        {"row": "γ = 1, 10 devices | lower bound", "column": "mean s", "under": "Fig. 8", "here": {"under": ""}}
    ]}, tmp_path / "first")  # fmt: skip
    assert not first.equal, "one park is not fifty"
    page = tmp_path / "first" / "table.md"
    assert next(check.check(entry(str(page)), tmp_path / "second")).equal
    page.write_text(page.read_text().replace(first.now, "1.00"))
    (other,) = check.check(entry(str(page)), tmp_path / "third")
    assert (other.printed, other.now, other.equal) == ("1.00", first.now, False)


def test_digits_that_are_not_printed_do_not_count() -> None:
    assert check.Checked("", "4.50", "4.5").equal
    assert check.Checked("", "1,560", "1560").equal
    assert not check.Checked("", "4.5", "4.6").equal


def test_a_command_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="rafed-fig9: ended with 2: error: unknown table"):
        next(check.check(entry("results/rafed-parks.md", "fedfloor reproduce rafed-fig9"), tmp_path))
    assert ROOT.joinpath("papers").is_dir()
