"""``fedfloor reproduce`` with comparisons of samplers: what it prints, writes and refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from test_reproduce_samplers import TINY

from commands import Command
from papers import catalog, selection


@pytest.fixture
def tiny(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command line, with a comparison that takes no time."""
    monkeypatch.setitem(catalog.COMPARISONS, TINY.name, TINY)  # type: ignore[call-overload]
    return command


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: row[key] for key in row if key != "seconds"} for row in rows]


def test_the_command_prints_and_writes_the_comparison(tiny: Command) -> None:
    words = ("reproduce", TINY.name, "--scale", "0.01", "--only", "one", "--seeds", "0,1")
    said = tiny(*words, "--out", "here", "--json")
    document = said.document
    files = {"table.md", "table.json", "tiny-samplers-starts.svg", "tiny-samplers-time.svg"}
    assert said.new == {"here", *(f"here/{file}" for file in files)}
    assert (document["selections"], document["seeds"], document["notes"]) == (2, [0, 1], ["this was chosen"])
    assert {row["point"] for row in document["rows"]} == {"one"}
    text = (tiny.folder / "here" / "table.md").read_text()
    assert "fedfloor reproduce tiny-samplers --only 'one' --scale 0.01 --seeds 0,1\n" in text
    assert re.search(r"\| random \| 4 \| 0\.\d{4} \(0\.060\) .* \(100\.0\) \| [\d.]+ µs \(2 ms\) \| – \|", text)
    assert re.search(r"\| by magic \| 0 \| – .*needs no_such_module", text)
    assert re.search(r"\| zero \| 0\.\d{4} \(0\.033\) \| [\d.]+ \(1\) \| 0\.\d{4} \(0\.030, 0\.029\) \|", text)
    assert "The optimum is proven in all 4 selections." in text
    assert all(f"]({file})" in text for file in files if file.endswith("svg"))
    assert "- this was chosen" in text
    assert untimed(tiny(*words, "--json").document["rows"]) == untimed(document["rows"])
    printed = tiny(*words).out
    assert "Starts of GBP-CS" in printed
    assert "proven in all 4 selections" in printed


def test_places_are_by_where_starts_end() -> None:
    def row(start: str | None, mean: float, ends: float, text: float) -> dict[str, Any]:
        return {"start": start, "mean": mean, "paper_ends": ends, "paper_ends_text": text, "begins": 0.05, "swaps": 1,
                "paper_begins": 0.04, "paper_swaps": 2, "above_pct": 12.0}  # fmt: skip

    found = selection.starts([row(None, 0, 0, 0), row("mpinv", 0.04, 0.03, 0.031), row("zero", 0.03, 0.031, 0.03)])
    assert [(one["start"], one["place"]) for one in found] == [("mpinv", "2 (1, 2)"), ("zero", "1 (2, 1)")]
    assert found[0]["begins at"] == "0.0500 (0.040)"


def test_the_list_says_how_much_it_is(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDFLOOR_DATA", str(tmp_path))
    row = next(row for row in command("reproduce", "--scale", "0.5", "--json").document["rows"]
               if row["table"] == "fedgs-samplers")  # fmt: skip
    assert (row["runs"], row["rounds"], row["not_possible_here"]) == (300, 0, 300)  # three parks of 100


def test_without_the_data(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDFLOOR_DATA", str(tmp_path))
    command.refused(command("reproduce", "fedgs-samplers"), "data set 'femnist': looked in", "which does not exist")
    command.refused(
        command("reproduce", "fedgs-sampler"), "unknown table 'fedgs-sampler'. Did you mean 'fedgs-samplers'"
    )
    command.refused(command("reproduce", "fedgs-samplers", "--scale", "2"), "--scale = 2.0: must be a share of the sel")
