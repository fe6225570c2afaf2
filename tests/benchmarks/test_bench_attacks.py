"""Attacks beside defences: the page is that of the cells, a cell that is there is not run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import attacks

RESULTS = Path(__file__).parents[2] / "results"


def test_the_published_cells_are_those_that_there_are() -> None:
    assert set(json.loads((RESULTS / "robust.json").read_text(encoding="utf-8"))) <= {c.key for c in attacks.cells()}


def test_an_interval_needs_all_seeds() -> None:
    assert attacks.interval([0.5, 0.6], 100, 1) == "–"
    assert attacks.interval([0.5, 0.5, None], 100, 1) == "1 of 3 diverged"
    assert attacks.interval([1.0, 2.0, 3.0], 1, 2) == "2.00 ± 2.48"  # 4.303·1/√3
    assert attacks.interval([2.0, 3.0, 5000.0], 1, 2) == "2 to 5,000"


def test_cells_that_are_there_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = attacks.Cell("IID", 20, "none", "mean", 0)
    second = attacks.Cell("IID", 20, "none", "mean", 1)
    runs: list[attacks.Cell] = []

    def measure(cell: attacks.Cell) -> attacks.Table:
        runs.append(cell)
        return {"figure": 1.0, "backdoor": None}

    monkeypatch.setattr(attacks, "cells", lambda: iter([first, second]))
    monkeypatch.setattr(attacks, "measure", measure)
    (tmp_path / "robust.json").write_text(json.dumps({first.key: {}}))
    for _ in range(2):
        attacks.train(tmp_path / "robust.json", 60.0)
    assert runs == [second]
