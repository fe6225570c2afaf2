"""The benchmark of FedGS rounds: its park, its figures on made-up times, and one small measurement."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import made, super_node
from benchmarks.super_node import Case, figures
from commands import Command
from fedfloor.engine.team import Alone

SMALL = Case("small", "logistic", 3, 2, 24, (1, 4, 4))


def test_figures_are_medians_of_ratios() -> None:
    # 6 steps; bare/one: 1, 0.5, 2 → 1. Two bare loops at once do two rounds, the team one: 0.5·(4/2, 6/4, 8/2) → 1;
    # choosing/one: 1/6, 1/12, 1/3; bare/unfused in the first turn: 1/2
    times = {
        "bare": [6.0, 6.0, 6.0], "one": [6.0, 12.0, 3.0], "choosing": [1.0, 1.0, 1.0], "bares": [4.0, 6.0, 8.0],
        "team": [2.0, 4.0, 2.0], "unfused": [12.0, 0.0, 0.0],
    }  # fmt: skip
    assert figures(SMALL, 2, times) == {
        "case": "small", "bare_step_ms": 1000.0, "fedgs_step_ms": 1000.0, "ranks_1": 1.0, "per_core_2": 1.0,
        "unfused": 0.5, "choosing_ms": 166.667, "choosing_share": 0.1667,
    }  # fmt: skip


def test_cases_take_steps_of_ten_devices() -> None:
    assert [case.iterations * case.factories for case in super_node.CASES] == [500, 20, 2]
    for case in super_node.CASES:
        assert case.devices // case.factories > super_node.CHOSEN  # there is something to choose


def test_devices_of_a_skewed_park_have_classes_of_their_own() -> None:
    even, skewed = (made.park((1, 2, 2), 10, 20, 100, 2, skew).counts().max(1) for skew in (None, 0.1))
    # the largest share of Dirichlet(0.1) of ten classes is above a half on average, of even ones about 0.17
    assert even.mean() < 30 < 50 < skewed.mean()


def test_the_first_turn_warms_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "timed", lambda _, work: work())
    assert made.in_turn(Alone(), {"a": float, "b": lambda number: -number}, 2) == {"a": [1.0, 2.0], "b": [-1, -2]}


def test_choosing_alone_chooses_what_a_round_does(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = super_node._Rounds(SMALL, Alone())
    found = []
    choose = super_node.selection.selected

    def noted(*given: object) -> list[int]:
        found.append(choose(*given))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(super_node.selection, "selected", noted)
    rounds.work("one", 1)
    rounds.choose(1)
    assert len(found) == 12
    assert found[:6] == found[6:]


def test_the_command(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(super_node, "CASES", (SMALL, Case("other", "logistic", 1, 1, 12)))
    (row,) = command("bench", "fedgs", "--only", "small", "--repeats", "1", "--ranks", "2", "--json").document["rows"]
    assert row["case"] == "small"
    assert min(row["ranks_1"], row["per_core_2"], row["unfused"]) > 0
    assert 0 < row["choosing_share"] < np.inf
