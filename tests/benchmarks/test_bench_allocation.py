"""The benchmark of radio allocations: its parks and one small row."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import allocation
from benchmarks.allocation import Case, park, row
from commands import Command


def test_parks_have_the_papers_settings() -> None:
    # 20 dBm at 2 and 50 m with f_c = 868 MHz: 113 and 60 dB above −120 dBm; 10 … 30 cycles/bit, 5 … 10 MB, 1 … 2 GHz
    problem = park(2000, 0)
    above = 10 * np.log10(problem.received_w[:, -1] / problem.noise_w)
    assert 60 <= above.min() < 61
    assert 110 < above.max() <= 113.1
    assert problem.received_w[0, -1] / problem.received_w[0, 0] == pytest.approx(100)
    assert problem.noise_w == pytest.approx(9.95e-16, rel=1e-3)
    assert 0.2 <= problem.compute_s.min() < 0.3
    assert 2.0 < problem.compute_s.max() <= 2.4


def test_a_small_row() -> None:
    found = row(Case(6, 0, proof_s=10.0, rafed=True), repeats=1)
    assert found["proven"] is True
    assert found["clean_bound_s"] <= found["bound_s"] <= found["exact_s"] <= found["search_s"]  # type: ignore[operator]
    assert found["exact_s"] <= found["rafed_s"]  # type: ignore[operator]


def test_the_command(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "CASES", (Case(5, 1), Case(6, 0)))
    (found,) = command("bench", "allocation", "--only", "5-", "--repeats", "1", "--json").document["rows"]
    assert (found["park"], found["rafed_s"], found["proof_s"]) == ("5-1", None, None)
    assert found["search_s"] >= found["bound_s"] > 0
