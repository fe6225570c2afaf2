"""The benchmark of selections: its problems and small rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import selection
from benchmarks.selection import Case, made_up, problem, row
from commands import Command
from papers.groupings import drawn_counts


def test_batches_are_of_32_and_the_target_completes_them() -> None:
    share = np.array([0.5, 0.25, 0.25])
    rng = np.random.default_rng(0)
    assert made_up(7, share, rng).sum(0).tolist() == [32] * 7
    # writer 0 has 40 of class 1; writer 1 only 5 of class 2, which then come more than once
    counts = drawn_counts(2, [np.full(40, 1), np.full(5, 2)], rng, 32, 62)
    assert sorted(counts[:3].T.tolist()) == [[0, 0, 32], [0, 32, 0]]
    case = Case(9, 4, ("swap",))
    made = problem(case, share, lambda devices, rng: made_up(devices, share, rng), 0)
    assert made.counts.shape == (3, 9)
    assert (made.target + made.already).tolist() == (32 * 6 * share).tolist()  # four and the two given


def test_small_rows() -> None:
    case = Case(9, 4, ("swap",))
    share = np.full(5, 0.2)
    problems = [problem(case, share, lambda devices, rng: made_up(devices, share, rng), seed) for seed in range(3)]
    best = row(case, "brute", problems, None, repeats=1)
    assert (best["proven"], best["gap_mean"]) == (3, None)
    found = row(case, "random", problems, [1.0, 1.0, 1.0], repeats=1)
    assert found["size"] == "9-4"
    assert found["mean"] >= best["mean"]  # type: ignore[operator]
    # d/(n·L) is the divergence, with all batches alike, and the gaps are from 1: mean d = gap + 1
    assert (found["gap_mean"] + 1) / (32 * 6) == pytest.approx(found["mean"], abs=1e-4)  # type: ignore[operator]


def test_the_command(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDFLOOR_DATA", str(tmp_path))
    monkeypatch.setattr(selection, "CASES", (Case(9, 4, ("gbpcs", "swap"), instances=2), Case(8, 2, ("swap",))))
    said = command("bench", "selection", "--only", "9-4", "--repeats", "1", "--json")
    rows = said.document["rows"]
    assert [one["solver"] for one in rows] == ["gbpcs", "swap"]
    assert all(one["gap_mean"] >= 0 for one in rows)
