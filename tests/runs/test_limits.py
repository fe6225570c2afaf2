"""When a run stops before its last round: an accuracy, or a budget of time, bytes or energy."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from commands import Command, lines
from fedfloor.cli.options import limits, within
from fedfloor.report.table import Budget
from fedfloor.runs import checks, ledger
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Limits

PRICE = {"seconds": 0.1, "joules": 2.0, "bytes": {"device_edge_up": 30, "edge_cloud_up": 10}}


def priced(*rounds: dict[str, Any]) -> list[Line]:
    """The ledger lines of rounds with these prices."""
    found: list[Line] = []
    for number, price in enumerate(rounds, start=1):
        found.append(ledger.line(number, None, (), "x", 1.0, {}, price, found[-1] if found else None))
    return found


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network on which every round costs PRICE."""
    make: Callable[..., Line] = ledger.line

    def line(*given: Any) -> Line:
        return make(*given[:6], PRICE, given[7])

    monkeypatch.setattr(ledger, "line", line)
    monkeypatch.setattr(checks, "is_priced", lambda _: True)


# -- the ledger's sums -------------------------------------------------------------------------------------------------


def test_a_line_carries_what_all_rounds_up_to_it_cost() -> None:
    first, second = priced(PRICE, PRICE | {"seconds": 0.2, "bytes": {"device_edge_down": 7}, "retries": 3})
    assert first.priced == PRICE | {"total": {"seconds": 0.1, "joules": 2.0, "bytes": 40}}
    assert second.priced is not None
    assert second.priced["total"] == {"seconds": 0.1 + 0.2, "joules": 4.0, "bytes": 47}
    assert (second.priced["seconds"], second.priced["retries"]) == (0.2, 3)
    assert ledger.line(1, None, (), "x", 1.0, {}).priced is None


def test_the_sums_survive_the_file_to_the_bit() -> None:
    last = priced(*[PRICE] * 7)[-1]
    assert last.priced is not None
    assert json.loads(json.dumps(last.priced)) == last.priced


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "reached"),
    [
        (Limits(seconds=0.5), False),
        (Limits(seconds=0.4), True),  # just used up
        (Limits(bytes=161), False),
        (Limits(bytes=160), True),
        (Limits(joules=7.9), True),
        (Limits(accuracy=0.6, seconds=1), False),
        (Limits(accuracy=0.5, seconds=1), True),
        (Limits(accuracy=0.9, bytes=100), True),
        (Limits(), False),
    ],
    ids=str,
)
def test_the_first_limit_that_is_reached_ends_a_run(given: Limits, reached: bool) -> None:
    line = replace(ledger.line(1, None, (), "x", 1.0, {}), accuracy=0.5)
    assert given.reached(line, {"seconds": 0.4, "bytes": 160, "joules": 8.0}) is reached


def test_a_round_without_evaluation_or_price_reaches_nothing() -> None:
    assert not Limits(accuracy=0.1, seconds=1).reached(ledger.line(1, None, (), "x", 1.0, {}), None)


def test_until_is_read() -> None:
    assert limits(3, "accuracy=0.8, seconds=3600,bytes=1e9,joules=500") == Limits(3, 0.8, 3600.0, 1e9, 500.0)
    assert limits(None, None) == Limits()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seconds", "--until seconds: give a number, such as seconds=3600."),
        ("accuracy=x", "--until accuracy=x: give a number, such as accuracy=0.8."),
        ("accuracy=0.8;seconds=1", "--until accuracy=0.8;seconds=1: give a number"),
        ("byte=3", "unknown --until 'byte'. Did you mean 'bytes'?"),
        ("rounds=3", "--until rounds=3: --stop-after N stops after N rounds."),
        ("seconds=1,seconds=2", "--until seconds=1,seconds=2: seconds is given twice. Give each key once."),
        ("accuracy=0.8,", "unknown --until ''."),
        ("seconds=0", "until seconds (--until) = 0.0: must be a number above 0, such as 3600."),
        ("joules=-1", "until joules (--until) = -1.0: must be"),
        ("bytes=nan", "until bytes (--until) = nan: must be"),
        ("bytes=inf", "until bytes (--until) = inf: must be"),
        ("accuracy=1.5", "until accuracy (--until) = 1.5: must be a share"),
    ],
)
def test_until_refuses(command: Command, text: str, message: str) -> None:
    command.refused(command.run("--until", text), message)


def test_until_names_the_headline_where_its_class_is_left_out(command: Command) -> None:
    judged = ("--set", 'evaluate.headline="recall of A"')
    command.refused(
        command.run("--until", "recall=0.9", *judged),
        "--until recall=0.9: the class is missing. Write --until 'recall of A=0.9'.",
    )
    command.refused(command.run("--until", "recall=0.9"), "the class is missing. Write 'recall of CLASS'.")


def test_what_is_compared_at_a_budget_stops_there() -> None:
    stop = Limits(stop_after=9, accuracy=0.8, seconds=60)
    assert within(stop, None) is stop
    assert within(stop, Budget("seconds", 30)) == replace(stop, seconds=30)
    assert within(stop, Budget("seconds", 90)) == stop  # what was asked for stays
    assert within(stop, Budget("bytes", 1e6)) == replace(stop, bytes=1e6)
    assert within(stop, Budget("rounds", 5)) == replace(stop, stop_after=5)
    assert within(Limits(), Budget("rounds", 5)) == Limits(5)


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["run --until seconds=5", "compare --methods fedavg --at joules=5"])
def test_a_budget_needs_a_network(command: Command, words: str) -> None:
    name, *rest = words.split()
    said = command(name, "tiny.toml", "--ranks", "1", "--out", "out", *rest)
    command.refused(said, "such a budget (--until, --at) needs a network, and the experiment has none")


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize(("until", "last"), [("bytes=80", 2), ("bytes=81", 3), ("joules=1,accuracy=1", 1)])
def test_the_round_that_uses_a_budget_up_is_done_and_counted(command: Command, until: str, last: int) -> None:
    said = command.run("--until", until, "--set", "rounds=5", "--json")
    assert said.code == 0
    assert "stopped after" in said.err
    rows = lines(command.folder / "out")
    assert [row["round"] for row in rows] == list(range(1, last + 1))
    assert rows[-1]["priced"]["total"]["bytes"] == 40 * last
    (row,) = said.document["rows"]
    assert (row["bytes"], row["joules"]) == (40 * last, 2 * last)


@pytest.mark.usefixtures("network")
def test_sums_go_on_after_a_resume(command: Command) -> None:
    five = ("--set", "rounds=5")
    command("run", "tiny.toml", "--ranks", "1", "--out", "whole", *five)
    command.run("--until", "bytes=80", *five)
    again = command.run("--until", "bytes=80", "--resume", *five)  # it is reached already: no round is done
    assert "round" not in again.err.replace("of rounds", "")
    command.run("--until", "bytes=160", "--resume", *five)
    assert len(lines(command.folder / "out")) == 4
    command.run("--resume", *five)
    assert lines(command.folder / "out") == lines(command.folder / "whole")


def test_all_ranks_stop_alike(command: Command) -> None:
    there = ("run", "tiny.toml", "--set", "network.profile=lte-cat-m2", "--set", "rounds=5")
    command(*there, "--ranks", "1", "--out", "one", "--stop-after", "1")
    (first,) = lines(command.folder / "one")
    budget = 1.5 * first["priced"]["seconds"]  # rounds of FedAvg cost alike: the second uses it up
    said = command(*there, "--ranks", "2", "--out", "two", "--until", f"seconds={budget}")
    assert said.code == 0
    assert len(lines(command.folder / "two")) == 2


@pytest.mark.usefixtures("network")
def test_compare_at_a_budget(command: Command) -> None:
    words = ("compare", "tiny.toml", "--ranks", "1", "--methods", "fedavg,fedsr", "--set", "rounds=5", "--json")
    said = command(*words, "--out", "all", "--at", "bytes=100")
    # 40 bytes a round: two rounds are complete within 100, the third crosses it, is done and does not count
    assert [row["rounds"] for row in said.document["rows"]] == [3, 3]
    assert [row["in_rounds"] for row in said.document["at"]["rows"]] == [[2], [2]]
    assert [row["ended"] for row in said.document["at"]["rows"]] == [[], []]
    second = [lines(command.folder / "all" / f"{name}-seed0")[1]["accuracy"] for name in ("fedavg", "fedsr")]
    assert [row["accuracy"] for row in said.document["at"]["rows"]] == second
    assert said.document["at"]["paired"][0]["difference"] == second[0] - second[1]
    after = command("report", "all", "--at", "bytes=100", "--json")
    assert after.document["at"] == said.document["at"]
    three = command(*words, "--out", "three", "--at", "rounds=2")
    assert [row["rounds"] for row in three.document["rows"]] == [2, 2]
