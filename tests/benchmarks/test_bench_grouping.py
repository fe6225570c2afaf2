"""The benchmark of groupings: its problems and small rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import grouping
from benchmarks.grouping import Case, problem, row
from benchmarks.selection import census, made_up
from commands import Command
from fedfloor.solvers.grouping.solve import GroupingProblem
from papers.groupings import drawn_counts


def test_batches_are_of_50(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDFLOOR_DATA", str(tmp_path))
    _, deal = census(lambda text: None, grouping.BATCH)
    made = problem(Case(9, 4, ()), deal, 0)
    assert made.counts.shape == (9, 62)
    assert made.counts.sum(1).tolist() == [50] * 9
    rng = np.random.default_rng(0)
    # writer 0 has 60 of class 1: 50 of them; writer 1 only 5 of class 2, which then come more than once
    counts = drawn_counts(2, [np.full(60, 1), np.full(5, 2)], rng, 50, 62)
    assert sorted(counts[:3].T.tolist()) == [[0, 0, 50], [0, 50, 0]]
    assert made_up(3, np.full(4, 0.25), rng, 50).sum(0).tolist() == [50] * 3


def test_a_row_by_hand() -> None:
    # two groups of one, (1, 0) and (0, 1): √2 apart, and their CPD is that of the devices
    problems = [GroupingProblem(np.array([[5.0, 0], [0, 5]]), 2)] * 2
    found = row(Case(2, 2, ()), "random", problems, [2.0, 4.0], repeats=1)
    assert (found["size"], found["left_out"], found["cpd_to_devices"]) == ("2-2", 0, 1)
    assert found["distance"] == pytest.approx(2**0.5, abs=1e-5)
    assert found["to_icg"] == pytest.approx(2**0.5 * (1 / 2 + 1 / 4) / 2, abs=1e-4)
    assert found["to_icg_max"] == pytest.approx(2**0.5 / 2, abs=1e-4)


def test_the_command(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDFLOOR_DATA", str(tmp_path))
    cases = (Case(30, 4, ("icg", "exchange"), populations=2), Case(30, 7, ("icg",)))
    monkeypatch.setattr(grouping, "CASES", cases)
    rows = command("bench", "grouping", "--only", "30-4", "--repeats", "1", "--json").document["rows"]
    assert [(one["solver"], one["left_out"]) for one in rows] == [("icg", 2), ("exchange", 2)]
    assert rows[0]["to_icg"] == 1 > rows[1]["to_icg"]
