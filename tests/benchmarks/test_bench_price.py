"""The benchmark of pricing: its plans and its rows, not its times."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import price
from commands import Command
from fedfloor.plan import walk


def test_a_round_of_fedgs_has_5000_visits() -> None:
    # 10 factories · 50 iterations · 10 devices, each in its own factory and chosen once an iteration
    factory_of = np.arange(368) % 10
    plan = price.fedgs(factory_of)
    assert sum(walk.visits(plan).values()) == 5000
    assert walk.span(plan) == 50
    for m, branch in enumerate(walk.children(plan)):
        for turn in walk.children(branch):
            chosen = walk.devices(turn)
            assert len(chosen) == 10
            assert {int(factory_of[k]) for k in chosen} == {m}


def test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    # a clock by which pricing takes 2, 1, 9, 4 and 6 ms: the first two warm up, the median of the others is 6
    taken = iter([2e-3, 1e-3, 9e-3, 4e-3, 6e-3, 0.0, 0.0, 3e-3, 1.2e-3, 1e-3])
    said = []
    monkeypatch.setattr(price, "_timed", lambda work: (work(), next(taken))[1])
    rows = price.measure([price.Case("small", price.fedavg, 12)], 3, said.append)
    figures = {"ms": 6.0, "quickest_ms": 4.0, "us_per_visit": 500.0, "walk_us_per_visit": 100.0}
    assert rows == [{"round": "small", "visits": 12, **figures}]
    assert said == ["small"]


def test_the_command(command: Command) -> None:
    rows = command("bench", "price", "--only", "FedAvg, 100", "--repeats", "1", "--json").document["rows"]
    assert [row["visits"] for row in rows] == [100]
    assert all(row["ms"] >= row["quickest_ms"] > 0 for row in rows)
    command.refused(command("bench", "price", "--model", "lenet"), "belong to fedfloor bench methods")
