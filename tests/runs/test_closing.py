"""Rounds that end before their last visit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedfloor
from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node, Parallel
from fedfloor.runs import forecast, launch, ledger, prepare
from fedfloor.runs.orders import Orders
from fedfloor.runs.round import Position, step, training

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


STREAM = {"name": "labels", "samples_per_device": 12, "stream": {"kind": "fifo", "window": 4}}
SUPER_NODES: dict[str, Any] = {
    "method": {"name": "fedgs"},
    "methods": {"fedgs": {"iterations": 3, "devices": 3, "random": 1}},
    "data": STREAM,
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


def test_the_ledger_has_the_times_of_results_and_the_report_draws_them(tmp_path: Path) -> None:
    """A second a sample, as many passes as epochs; the clock goes on from round to round."""
    network = {"profile": "lte-cat-m2", "devices": {"seconds_per_sample": 0.5}}
    lines = run(tmp_path / "run", close={"first": 3}, network=network)
    clock = 0.0
    for line in lines:
        assert [row[0] for row in line.arrivals] == [k for k in range(8) if k not in line.info["late"]]
        for _, version, departed, arrived, received, trained in line.arrivals:
            assert version == line.round - 1
            assert departed == clock < received
            assert trained - received == pytest.approx(0.5 * 12)
            assert trained < arrived
        clock = line.priced["total"]["seconds"]
        assert line.arrivals[-1][3] == pytest.approx(clock)
    drawn = fedfloor.write_report(tmp_path / "run").read_text()
    assert "model or result on its way" in drawn
    assert "late, in vain" in drawn


def test_without_a_network_the_clock_counts_mini_batches(tmp_path: Path) -> None:
    lines = run(tmp_path / "run", close={"first": 3}, network={})
    assert [row[2:] for line in lines for row in line.arrivals] == [
        [begin, begin + 3, begin, begin + 3] for begin in (0, 3, 6) for _ in range(3)
    ]


def test_a_deadline_ends_the_round_and_costs_no_more_than_waiting(tmp_path: Path) -> None:
    deadline = sorted(times())[4] + 1e-6
    whole = run(tmp_path / "open")
    closed = run(tmp_path / "closed", close={"deadline_s": deadline})
    for line, other in zip(closed, whole, strict=True):
        assert line.participants == 5
        assert line.priced["seconds"] == deadline
        assert line.priced["joules"] <= other.priced["joules"]
        assert all(size <= other.priced["bytes"][link] for link, size in line.priced["bytes"].items())


def test_ranks_and_the_forecast_agree(tmp_path: Path) -> None:
    close = {"first": 3}
    faults = {"visit": 0.3}
    one = run(tmp_path / "one", close=close, faults=faults)
    assert facts(run(tmp_path / "two", 2, close, faults=faults)) == facts(one)
    what = config.from_table({**TABLE, "round": {"close": close}, "faults": faults})
    planned = list(forecast.rounds(what, launch.build_park(what), 3))
    assert [round_.price.seconds for round_ in planned] == [line.priced["seconds"] for line in one]


def test_a_lost_result_does_not_count_among_the_first(tmp_path: Path) -> None:
    lines = run(tmp_path / "run", close={"first": 4}, faults={"visit": 0.3})
    assert sum(line.lost for line in lines) > 0
    assert all(line.participants == 4 for line in lines)


def test_lost_results_are_no_arrivals(tmp_path: Path) -> None:
    lines = run(tmp_path / "run", close={"first": 3}, faults={"visit": 0.6}, rounds=4)
    assert any(line.lost for line in lines)
    for line in lines:
        lost = {int(device) for device in line.lost_by or {}}
        arrived = [row[0] for row in line.arrivals or ()]
        assert set(arrived) == set(range(8)) - lost - set(line.info.get("late", ()))
        assert len(arrived) == line.participants


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
        ({"first": 3}, {"method": {"name": "hierfavg"}}),  # two edges
        ({"first": 5, "at": "edge"}, {"method": {"name": "hierfavg"}}),  # four devices each
        ({"deadline_s": 1e-3, "at": "edge"}, {"method": {"name": "hierfavg"}}),
        ({"first": 2, "at": "edge"}, {}),
        ({"first": 2, "at": "edge"}, {"method": {"name": "fedsr"}}),
        ({"first": 2}, {"method": {"name": "ifca"}}),
        ({"first": 2, "at": "device"}, {}),
        ({"first": 2, "at": "edge"}, {**SUPER_NODES, "data": {**STREAM, "stream": {"kind": "recycle", "window": 4}}}),
        ({"first": 2}, {"method": {"name": "fedbuff"}}),
        ({"first": 2}, {"method": {"name": "fedavg", "travel": "secure-sum"}}),
    ],
)
def test_impossible_ends_are_refused(tmp_path: Path, close: dict[str, Any], changes: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        run(tmp_path / "run", close=close, **changes)


# -- meetings at edges -------------------------------------------------------------------------------------------------

EDGES: dict[str, dict[str, Any]] = {
    "hierfavg": {"method": {"name": "hierfavg"}, "methods": {"hierfavg": {"edge_rounds": 3}}},
    "fedgs": SUPER_NODES,
}


def planned(close: dict[str, Any] | None = None, **changes: Any) -> list[Any]:
    what = config.from_table({**TABLE, **({"round": {"close": close}} if close else {}), **changes})
    return list(forecast.rounds(what, launch.build_park(what), what.rounds))


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("close", [{"first": 4}, {"deadline_s": 1e9}], ids=str)
def test_edges_that_wait_for_all_are_edges_without_an_end(tmp_path: Path, name: str, close: dict[str, Any]) -> None:
    close = {**close, "at": "edge"} if name == "hierfavg" or "deadline_s" in close else {"first": 3, "at": "edge"}
    assert facts(run(tmp_path / "closed", close=close, **EDGES[name])) == facts(run(tmp_path / "open", **EDGES[name]))


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("at", ["edge", "cloud"])
def test_edges_ranks_and_the_forecast_agree(tmp_path: Path, name: str, at: str) -> None:
    close = {"first": 2 if at == "edge" else 1, "at": at}
    changes = {**EDGES[name], "faults": {"visit": 0.2}}
    one = run(tmp_path / "one", close=close, **changes)
    assert facts(run(tmp_path / "two", 2, close=close, **changes)) == facts(one)
    assert facts(run(tmp_path / "three", 3, close=close, **changes)) == facts(one)
    known = planned(close, **changes)
    open_ = planned(**changes)
    asked = sum(planned_.price.seconds for planned_ in known if planned_.number == 0)
    pairs = ([planned_ for planned_ in some if planned_.number] for some in (known, open_))
    for line, mine, whole in zip(one, *pairs, strict=True):
        assert line.info["late"]
        assert mine.price.seconds < whole.price.seconds
        assert mine.price.seconds == pytest.approx(line.priced["seconds"] - asked, rel=1e-12)
        asked = 0.0
        path = mine.price.critical
        assert path.visits
        assert path.compute_s + path.transfer_s + path.wait_s == pytest.approx(mine.price.seconds, rel=1e-9)


@pytest.mark.parametrize("name", EDGES)
def test_each_edge_goes_on_with_its_first_results_and_lost_ones_do_not_count(tmp_path: Path, name: str) -> None:
    """Losses are drawn by the number of a device's visit, in which late visits do not count."""
    table = {**TABLE, **EDGES[name], "round": {"close": {"first": 2, "at": "edge"}}, "faults": {"visit": 0.4}}
    what = config.from_table(table)
    here = launch.build_park(what)
    method = what.configured
    engine, price_model = prepare.engine(what, method, here, Alone(), DeviceMemory(None))
    setup = training(method, engine, what.rounds, price_model)
    setup.close = what.round.close
    point = Position(state=prepare.first_state(engine, method, setup.view(0))[1])
    told = []
    for _ in range(what.rounds):
        point, record = step(setup, point)
        receipts = iter(record.outcome.receipts)
        meetings = [at for at in turned(record.outcome.resolved) if isinstance(at, Parallel) and at.at.kind == "edge"]
        for at in meetings:
            lost = [next(receipts).lost for _ in at.children]
            told.append((len(lost) - sum(lost), len(lost)))
        assert next(receipts, None) is None
    assert {arrived for arrived, _ in told} <= {0, 1, 2}
    assert any(arrived == 2 and all_ > 2 for arrived, all_ in told)  # a lost one came first
    assert all(arrived == 2 or all_ >= 3 for arrived, all_ in told)  # fewer only where no others were left


def turned(node: Node) -> Iterator[Node]:
    """Yield every node, those of a repetition as often as it takes place."""
    yield node
    for child in walk.children(node):
        for _ in range(getattr(node, "times", 1)):
            yield from turned(child)


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_a_deadline_at_edges_counts_from_the_arrival_of_the_model(share: float) -> None:
    """With three turns at the edge and links without cost a round lasts three deadlines, or as long as its visits."""
    seconds = {"seconds_per_sample": {"median": 0.5, "factor": 4.0}}
    (open_,) = planned(**EDGES["hierfavg"], rounds=1, network={"devices": seconds})
    longest = max(open_.price.visits)
    close = {"deadline_s": share * longest, "at": "edge"}
    (closed,) = planned(close, **EDGES["hierfavg"], rounds=1, network={"devices": seconds})
    assert open_.price.seconds == pytest.approx(3 * longest)
    assert closed.price.seconds == pytest.approx(3 * share * longest)
    in_time = sorted(one for one in open_.price.visits if one <= share * longest)
    assert sorted(closed.price.visits) == pytest.approx(in_time)


def test_without_a_network_edges_count_mini_batches(tmp_path: Path) -> None:
    data = {"name": "labels", "partition": {"kind": "dirichlet", "alpha": 0.3, "at_least": 4}, "samples_per_device": 20}
    changes = {**EDGES["hierfavg"], "data": data, "network": {}, "rounds": 1}
    here = launch.build_park(config.from_table({**TABLE, **changes}))
    (line,) = run(tmp_path / "run", close={"first": 2, "at": "edge"}, **changes)
    batches = {k: -(-size // 4) for k, size in enumerate(here.holdings.tolist())}
    late = []
    for m in range(2):
        members = [k for k in batches if here.factory_of[k] == m]
        late += sorted(sorted(members, key=lambda k: (batches[k], k))[2:])
    assert sorted(line.info["late"]) == sorted(late * 3)
    assert len(set(batches.values())) > 1
