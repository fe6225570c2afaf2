"""The way between cloud and edges over a broker: the simulation's bits, repeated and forged requests, edges that go."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedfloor.base.errors import RunError
from fedfloor.deploy import checks, cloud, mqtt
from fedfloor.deploy.checks import MessageFilter
from fedfloor.deploy.message import Message, decode, encode
from fedfloor.deploy.settings import CLOUD, CloudSettings, Deadlines, EdgeSettings, Named
from fedfloor.deploy.uplink import Downlink, Uplink
from fedfloor.runs import ledger
from live_park import NOWHERE, Broker, InMemory, Live, experiment, figures, live, simulated
from parks import until
from refusals import refused

EDGE = EdgeSettings("trial", "e0", 0, NOWHERE, Path("e.toml"), Path(), (Named("d0", 0),), cloud=NOWHERE)


@contextmanager
def uplinks(park: Live, broker: Broker) -> Iterator[dict[int, Uplink]]:
    """Connect a park's edges to the cloud's broker."""
    made = {
        m: Uplink(edge.settings, edge.answer, edge.session, lambda will: InMemory(broker, will))
        for m, edge in park.edges.items()
    }
    with ExitStack() as stack:
        for one in made.values():
            stack.enter_context(one)
        yield made


def trained(park: Live, broker: Broker, **more: Any) -> list[ledger.Line]:
    settings = replace(park.settings(), deadlines=Deadlines(round_s=120, join_s=5))
    with Downlink(settings, InMemory(broker)) as way:
        cloud.run(settings, way, **more)
    return ledger.read(settings.out / "ledger.jsonl")


@pytest.mark.parametrize("method", ["fedavg", "fedsr", "fedgs", "hfedms", "hierfavg", "boosting"])
def test_a_park_trains_over_the_clouds_broker_to_the_simulations_bits(tmp_path: Path, method: str) -> None:
    what = experiment(tmp_path, method, rounds=2)
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park, uplinks(park, Broker()) as links:
        got = trained(park, links[0]._link.broker)  # type: ignore[attr-defined]
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()


def test_an_edge_that_is_gone_sits_the_round_out_and_comes_back(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=4)
    broker = Broker()
    with live(tmp_path, what) as park, uplinks(park, broker) as links:
        settings = replace(park.settings(), deadlines=Deadlines(round_s=120, join_s=5))
        with Downlink(settings, InMemory(broker)) as way:

            def change(line: ledger.Line) -> None:
                if line.round == 1:
                    links[1]._link.die()  # type: ignore[attr-defined]
                    assert until(lambda: set(way.channel.connected) == {0})
                if line.round == 3:
                    edge = park.edges[1]
                    Uplink(edge.settings, edge.answer, edge.session, lambda will: InMemory(broker, will)).__enter__()
                    assert until(lambda: set(way.channel.connected) == {0, 1})

            cloud.run(settings, way, report=change)
    lines = ledger.read(settings.out / "ledger.jsonl")
    assert [line.measured["absent"] for line in lines] == [[], ["e1"], ["e1"], []]  # type: ignore[index]


def test_an_edge_whose_disk_is_full_sits_rounds_out_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = experiment(tmp_path, "fedavg", rounds=8, devices=4)
    usual = checks.write_seen
    full = False

    def write(path: Path, last: dict[str, tuple[int, int]]) -> None:
        if full and path.name.startswith("e1"):
            raise OSError(errno.ENOSPC, "No space left on device")
        usual(path, last)

    def change(line: ledger.Line) -> None:
        nonlocal full
        full = 1 <= line.round < 7  # for more requests than may be under way

    monkeypatch.setattr(checks, "write_seen", write)
    broker = Broker()
    with live(tmp_path, what) as park, uplinks(park, broker):
        lines = trained(park, broker, report=change)
        assert park.edges[1].filter.counts() == {CLOUD: {"disk": 6}}
    assert [line.measured["absent"] for line in lines] == [[], *[["e1"]] * 6, []]  # type: ignore[index]


def test_the_earlier_of_two_clouds_is_told_why_it_is_refused(tmp_path: Path) -> None:
    with live(tmp_path, experiment(tmp_path, "fedavg", devices=2, factories=1)) as park:
        said = [
            decode(park.edges[0].answer(encode(Message("present", CLOUD, session=session, number=number))))
            for session, number in ((2, 1), (1, 9), (2, 1))
        ]
    assert [answer.kind for answer in said] == ["present", "refused", "refused"]
    assert "another process of cloud began later" in said[1].about["text"]
    assert "another process" not in said[2].about["text"]


def test_an_edge_that_does_not_answer_is_waited_for_shortly_in_later_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = experiment(tmp_path, "fedavg")
    with live(tmp_path, what) as park:
        way = Downlink(replace(park.settings(), deadlines=Deadlines(round_s=3600.0)), InMemory(Broker()))
    way.channel.connected[0] = {}
    waited: list[float] = []
    monkeypatch.setattr(way.channel, "exchange", lambda *given: waited.append(given[4]))
    for number in (1, 0):  # before round 1 nothing can be lost
        way.channel.waits.expired("e0", 3600.0)
        way.request({0: encode(Message("walk", CLOUD, round=number))}, 3600.0, {0: 1})
    assert waited == [360.0, 3600.0]


def test_a_run_without_edges_ends_with_their_names(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg")
    with live(tmp_path, what) as park:
        settings = replace(park.settings(), deadlines=Deadlines(join_s=0.1))
        with refused("no-edge", RunError):
            Downlink(settings, InMemory(Broker())).__enter__()


def test_flower_starts_its_own_loop(tmp_path: Path) -> None:
    settings = CloudSettings("trial", tmp_path / "e.toml", tmp_path / "run", (), transport="flower")
    with refused("transport"):
        cloud.run(settings)


@contextmanager
def answering(answer: Callable[[bytes], bytes]) -> Iterator[tuple[Broker, Uplink, list[bytes]]]:
    """An edge's uplink, and what it says to the cloud."""
    broker = Broker()
    heard = list[bytes]()
    listener = InMemory(broker)
    topic = mqtt.topic("trial", "out", "e0", CLOUD)
    listener.start([topic], lambda _topic, payload: heard.append(payload), lambda: None)
    with Uplink(EDGE, answer, 1, lambda will: InMemory(broker, will)) as link:
        yield broker, link, heard
    listener.stop()


def request(number: int, session: int = 5) -> bytes:
    return encode(Message("walk", CLOUD, session=session, number=number))


def test_a_repeated_request_is_done_once_and_gets_the_same_answer() -> None:
    begun = threading.Event()
    free = threading.Event()
    done = list[bytes]()

    def answer(frame: bytes) -> bytes:
        begun.set()
        free.wait(10)
        done.append(frame)
        return b"answer %d" % len(done)

    with answering(answer) as (broker, _, heard):
        topic = mqtt.topic("trial", "in", CLOUD, "e0")
        broker.deliver(topic, request(1), False)
        assert begun.wait(10)
        broker.deliver(topic, request(1), False)  # while it is done, or just after on a busy machine
        free.set()
        assert until(lambda: b"answer 1" in heard)
        before = len(heard)
        broker.deliver(topic, request(1), False)  # its answer may be lost
        assert until(lambda: len(heard) > before)
        broker.deliver(topic, request(2), False)
        assert until(lambda: heard[-1] == b"answer 2")
    assert set(heard[:-1]) == {b"answer 1"}
    assert len(done) == 2


def test_requests_without_end_start_no_threads_without_end_and_what_is_no_message_is_counted() -> None:
    free = threading.Event()
    with answering(lambda frame: b"x" if free.wait(10) else b"") as (broker, link, _):
        for number in range(1, 100):
            broker.deliver(mqtt.topic("trial", "in", CLOUD, "e0"), request(number), False)
        broker.deliver(mqtt.topic("trial", "in", CLOUD, "e0"), b"this is no message", False)
        assert until(lambda: link._filter.counts() == {CLOUD: {"busy": 95, "foreign": 1}})
        free.set()


def test_a_recorded_request_is_refused_by_an_edge_that_was_started_again(tmp_path: Path) -> None:
    """The broker is trusted with no order: the edge notes the last number in a file."""
    what = experiment(tmp_path, "fedavg", rounds=1)
    with live(tmp_path, what) as park:
        asked = list[bytes]()
        usual = park.edges[0].answer
        park.edges[0].answer = lambda frame: asked.append(frame) or usual(frame)  # type: ignore[func-returns-value, method-assign]
        park.run()
        edge = park.edges[0]
        edge.filter = MessageFilter(seen=tmp_path / "e0.seen.json")  # as a new process has it
        answer = decode(usual(asked[-1]))
    assert answer.kind == "refused"
    assert answer.answers == decode(asked[-1]).identity  # else the cloud would wait for its deadline
    assert edge.filter.counts() == {CLOUD: {"replayed": 1}}
