"""Rounds that end before their last visit."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from fedfloor import config
from fedfloor.errors import SettingError
from fedfloor.runs import forecast, launch, ledger
from fedfloor.runs.orders import Orders

TABLE: dict[str, Any] = {
    "name": "close",
    "rounds": 3,
    "data": {"name": "labels", "samples_per_device": 12},
    "park": {"devices": 8, "factories": 2},
    "model": {"name": "mlp-2nn"},
    "work": {"batch_size": 4, "lr": 0.05},
    "methods": {"fedavg": {"work": {"epochs": 1}}},
    "network": {
        "profile": "lte-cat-m2",
        "devices": {"seconds_per_sample": {"median": 0.5, "factor": 4.0}},
    },
}


def run(out: Path, ranks: int = 1, close: dict[str, Any] | None = None, **changes: Any) -> list[Any]:
    what = config.from_table({**TABLE, **({"round": {"close": close}} if close else {}), **changes})
    launch.start(what, Orders(out), ranks, lambda line: None, launch.build_park(what))
    return ledger.read(out / "ledger.jsonl")


def facts(lines: list[Any]) -> list[tuple[object, ...]]:
    return [(one.loss, one.plan_hash, one.priced, one.participants, one.lost, one.info) for one in lines]


def times() -> list[float]:
    """Return the seconds of each device's visit in a round that waits for all."""
    what = config.from_table(TABLE)
    (planned,) = forecast.rounds(what, launch.build_park(what), 1)
    return list(planned.price.visits)


@pytest.mark.parametrize("close", [{"first": 8}, {"deadline_s": 1e9}])
def test_a_round_that_waits_for_all_is_one_without_an_end(tmp_path: Path, close: dict[str, Any]) -> None:
    assert facts(run(tmp_path / "closed", close=close)) == facts(run(tmp_path / "open"))


@pytest.mark.parametrize("first", [1, 3, 7])
def test_the_first_results_count_and_end_the_round(tmp_path: Path, first: int) -> None:
    order = sorted(range(8), key=lambda k: times()[k])
    for line in run(tmp_path / "run", close={"first": first}):
        assert line.participants == first
        assert line.info["late"] == sorted(order[first:])
        assert line.priced["seconds"] == times()[order[first - 1]]


def test_a_deadline_ends_the_round_and_costs_no_more_than_waiting(tmp_path: Path) -> None:
    deadline = sorted(times())[4] + 1e-6
    whole, closed = run(tmp_path / "open"), run(tmp_path / "closed", close={"deadline_s": deadline})
    for line, other in zip(closed, whole, strict=True):
        assert line.participants == 5
        assert line.priced["seconds"] == deadline
        assert line.priced["joules"] <= other.priced["joules"]
        assert all(size <= other.priced["bytes"][link] for link, size in line.priced["bytes"].items())


def test_ranks_and_the_forecast_agree(tmp_path: Path) -> None:
    close, faults = {"first": 3}, {"visit": 0.3}
    one = run(tmp_path / "one", close=close, faults=faults)
    assert facts(run(tmp_path / "two", 2, close, faults=faults)) == facts(one)
    what = config.from_table({**TABLE, "round": {"close": close}, "faults": faults})
    planned = list(forecast.rounds(what, launch.build_park(what), 3))
    assert [round_.price.seconds for round_ in planned] == [line.priced["seconds"] for line in one]


def test_a_lost_result_does_not_count_among_the_first(tmp_path: Path) -> None:
    lines = run(tmp_path / "run", close={"first": 4}, faults={"visit": 0.3})
    assert sum(line.lost for line in lines) > 0
    assert all(line.participants == 4 for line in lines)


def test_a_later_round_without_a_result_leaves_the_model(tmp_path: Path) -> None:
    methods = {"fedavg": {"fraction": 0.125, "work": {"epochs": 1}}}
    lines = run(tmp_path / "run", close={"deadline_s": min(times()) * 1.5}, methods=methods, rounds=12, seed=3)
    alone = [(before, line) for before, line in itertools.pairwise(lines) if line.participants == 0]
    assert alone
    assert all(line.loss == before.loss and line.info["late"] for before, line in alone)


def test_without_a_network_the_shortest_work_comes_first(tmp_path: Path) -> None:
    (line,) = run(tmp_path / "run", close={"first": 2}, network={}, rounds=1)
    assert line.participants == 2
    assert line.info["late"] == [2, 3, 4, 5, 6, 7]  # equal work: in plan order


@pytest.mark.parametrize(
    ("close", "changes"),
    [
        ({"first": 9}, {}),
        ({"first": 0}, {}),
        ({"deadline_s": 1e-3}, {}),
        ({"deadline_s": 60.0}, {"network": {}}),
        ({"first": 2}, {"method": {"name": "fedsr"}}),
        ({"first": 2}, {"method": {"name": "hierfavg"}}),
        ({"first": 2}, {"method": {"name": "fedbuff"}}),
        ({"first": 2}, {"method": {"name": "fedavg", "travel": "secure-sum"}}),
    ],
)
def test_impossible_ends_are_refused(tmp_path: Path, close: dict[str, Any], changes: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        run(tmp_path / "run", close=close, **changes)
