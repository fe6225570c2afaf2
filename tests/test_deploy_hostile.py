"""What a member of a park may say that must neither run code, end a process, fill a disk nor take what is not his."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedfloor import __version__, config
from fedfloor.deploy import broker, gate, live, message, topics, worker
from fedfloor.deploy.asking import REPEATS
from fedfloor.deploy.flow import BURST, CHUNK, RATE_HZ, Flow
from fedfloor.deploy.gate import Gate
from fedfloor.deploy.link import Mqtt
from fedfloor.deploy.message import SHORT_HEADER, STATUS_BYTES, Message, RefusedError, decode, encode
from fedfloor.deploy.processes import LIST
from live_park import NOWHERE, experiment
from live_park import live as park_of
from parks import plant, until


def test_no_message_makes_a_device_import_what_its_experiment_does_not_name(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    asked = {"objective": "subprocess:call", "epochs": 1, "settings": {"args": f"touch {mark}", "shell": True}}
    what = config.read(experiment(tmp_path, "fedavg"), [])
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=1)) as park:
        agent = park.agents[0]
        about = {"device": 0, "held": None, "trained": 0, "work": asked, "tick": 0, "visit": 0}
        kind, told, _ = agent._done("e0", Message("visit", "e0", round=1, about=about))
    assert (kind, told["reason"]) == ("refused", "foreign code")
    assert not mark.exists()
    assert worker.modules(what) == frozenset()
    own = replace(what, method=replace(what.method, name="plant.methods:Ours"))
    assert worker.modules(own) == {"plant"}
    assert worker._work({"objective": "plant.goals:Ours", "epochs": 1}, worker.modules(own)).objective
    with pytest.raises(RefusedError, match="foreign code"):
        worker._work(asked, worker.modules(own))


@pytest.mark.parametrize("tick", [float("inf"), float("nan"), -1, 10**400, [], None])
def test_an_agent_outlives_whatever_it_is_asked(tmp_path: Path, tick: Any) -> None:
    """JSON as Python reads it knows Infinity, of which no whole number can be made: neither KeyError nor ValueError."""
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=1)) as park:
        agent = park.agents[0]
        asked = Message("census", "e0", session=1, number=1, about={"tick": tick, "trained": 0})
        kind, _, _ = agent._done("e0", decode(encode(asked)))
    assert kind in ("refused", "answer", "failed")


def test_nothing_that_is_heard_ends_a_connections_thread() -> None:
    said: list[str] = []

    def fails(*_: object) -> None:
        said.append("called")
        raise RuntimeError("a fault of ours")

    link = Mqtt("n0", NOWHERE, wait=lambda _: None)
    link._stopped.set()  # it need not connect
    link.start(["a"], fails, fails)
    client: Any = link._client
    client.on_message(client, None, SimpleNamespace(topic="a", payload=b""))
    client.on_subscribe(client, None, 1, [], None)
    assert said == ["called", "called"]


def test_a_flood_of_refusals_is_counted_whole_and_logged_in_few_short_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    door, forged = Gate(), "x\nERROR everything is lost" + "y" * 10_000
    for _ in range(1000):
        assert door.take(encode(Message("update", forged, session=1, number=1)), "n0") is None
    assert door.counts() == {"n0": {"sender": 1000}}
    lines = [one.getMessage() for one in caplog.records]
    assert len(lines) == gate.TOLD + 5  # 32, 64, 128, 256, 512
    assert all("\n" not in one and len(one) < 2 * gate.LONGEST for one in lines)


def test_down_leaves_a_folder_alone_that_is_no_parks(tmp_path: Path) -> None:
    """People keep an experiment.toml beside a folder "park"; --out . must not cost them these."""
    for name in ("park.toml", "experiment.toml", "mine.sock"):
        (tmp_path / name).write_text("mine")
    for name in ("park", "tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert live.down(tmp_path) == 0
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / LIST).write_text("[]")  # a park's folder, of which nothing was started
    assert live.down(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_device_writes_to_a_finite_number_of_topics(tmp_path: Path) -> None:
    """A broker keeps a retained message for each topic: with a wildcard one device could fill its memory."""
    park = plant(tmp_path)
    rules = broker.acl(park, park.factory[0]).split("\nuser n0\n")[1].split("\nuser ")[0].splitlines()
    wrote = {one.split()[2] for one in rules if one.startswith("topic write")}
    assert wrote == {topics.status("plant", "n0"), *(topics.outbox("plant", "n0", f) for f in ("north", "south"))}


@pytest.mark.parametrize(
    "spoilt",
    [lambda _: "words", lambda _: [], lambda one: [[*one[0][:1], [[99, *one[0][1][0][1:]]], *one[0][2:]], *one[1:]]],
)
def test_a_factory_whose_edge_shows_nonsense_sits_the_round_out(tmp_path: Path, spoilt: Any) -> None:
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=1)) as park:
        edge = next(iter(park.edges.values()))
        usual = edge._walk

        def walk(message: Message) -> Any:
            kind, about, arrays = usual(message)
            return kind, {**about, "shown": [spoilt(about["shown"][0]), *about["shown"][1:]]}, arrays

        edge._walk = walk  # type: ignore[method-assign]
        got = park.run()
    assert got[0].lost == 4


@pytest.mark.parametrize("ahead_ns", [25 * 3_600_000_000_000, 1 << 62, 10**400])
def test_a_thief_cannot_use_up_all_sessions_to_come(tmp_path: Path, ahead_ns: int) -> None:
    """With a session far in the future no later one, of the device whose key was stolen, would be new any more."""
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=2)) as park:
        about = {"device": 0, "version": __version__}
        for number, kind in enumerate(("hello", "update"), 1):
            said = encode(Message(kind, "d0", session=time.time_ns() + ahead_ns, number=number, about=about))
            park.broker.deliver(topics.status("trial", "d0"), said, False)
            for m in park.edges:
                park.broker.deliver(topics.outbox("trial", "d0", f"e{m}"), said, False)
        assert until(lambda: all(edge.line.gate.refused["d0", "future"] == 3 for edge in park.edges.values()))
        park.links[0].die()
        assert until(lambda: all(0 not in edge.line.here for edge in park.edges.values()))
        park.join(0)
        assert until(lambda: all(0 in edge.line.here for edge in park.edges.values()))
        assert [line.lost for line in park.run()] == [0, 0]


def test_a_clock_that_is_hours_wrong_is_borne_with() -> None:
    """A clock on local time, taken for universal time, is up to 14 hours ahead."""
    ahead = time.time_ns() + 14 * 3_600_000_000_000
    assert Gate().take(encode(Message("update", "n0", session=ahead, number=1)), "n0") is not None


def arrays(count: int) -> dict[str, np.ndarray]:
    return {f"a{i}": np.zeros(1, np.float32) for i in range(count)}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (Message("hello", "d0", session=1, number=1, about={"text": "x" * STATUS_BYTES}), "oversized"),
        (Message("hello", "d0", session=1, number=1, arrays=arrays(1)), "arrays"),
        (Message("hello", "d0", session=1, number=1, arrays=arrays(1000)), "oversized"),
    ],
)
def test_a_status_is_small_and_has_no_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Message, reason: str
) -> None:
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=1)) as park:
        monkeypatch.setattr(message, "load", None)  # no array is made
        park.broker.deliver(topics.status("trial", "d0"), encode(said), False)
        assert until(lambda: all(edge.line.gate.counts() == {"d0": {reason: 1}} for edge in park.edges.values()))
        monkeypatch.undo()
        assert park.run()[0].lost == 0


def test_an_answer_has_no_more_arrays_and_bytes_than_what_was_asked(tmp_path: Path) -> None:
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=3)) as park:
        usual = park.agents[0]._done

        def done(edge: str, asked: Message) -> Any:
            kind, about, sent = usual(edge, asked)
            more = {1: arrays(1), 2: {"b": np.zeros(1 << 20, np.float32)}}.get(asked.round, {})
            return kind, about, {**sent, **more}

        park.agents[0]._done = done  # type: ignore[method-assign]
        assert [line.lost for line in park.run()] == [1, 1, 0]
        (home,) = (edge for edge in park.edges.values() if edge.line.gate.counts())
        assert home.line.gate.counts() == {"d0": {"arrays": 1, "oversized": 1}}


def test_a_bucket_is_filled_by_time_and_by_requests() -> None:
    now = [0.0]
    flow = Flow(clock=lambda: now[0])

    def admitted(size: int = 0) -> int:
        return sum(flow.admits("n0", size) for _ in range(2 * BURST))

    assert admitted() == BURST
    assert flow.admits("n1", 0)  # another's bucket is full
    now[0] = 10.0
    assert admitted() == 10 * RATE_HZ
    for _ in range(20):  # as often as it is asked it may answer, however much
        flow.expect("n0", 100 * CHUNK)
        assert flow.admits("n0", 100 * CHUNK)
    assert admitted() == 0
    for _ in range(10_000):  # a device that answers nothing saves up two bursts and one answer
        flow.expect("n0", 9 * CHUNK)
    assert admitted() == 2 * BURST
    assert admitted() == 10
    now[0] = 1e6
    assert admitted(100 * CHUNK) == 3  # the third overdraws


def test_a_device_that_floods_is_cut_off_and_named_and_the_others_train_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=3)) as park:
        said = encode(Message("hello", "d3", session=1, number=1, about={"device": 3, "version": __version__}))
        for _ in range(BURST + 2):
            park.broker.deliver(topics.status("trial", "d3"), said, False)
        assert until(lambda: all(3 not in edge.line.here for edge in park.edges.values()))
        for edge in park.edges.values():  # nothing of it is listened to any more
            assert not any("d3" in topic for topic in edge.line._link.topics)  # type: ignore[attr-defined]
            assert edge.line.gate.refused["d3", "flood"] >= 1
        lines = park.run()
    assert [line.lost for line in lines] == [1, 1, 1]
    assert all(one["d3"]["flood"] >= 1 for line in lines for one in line.measured["refused"].values())  # type: ignore[index]
    assert "device d3 is cut off: it floods" in caplog.text


def test_a_hello_again_and_again_does_not_bring_the_model_each_time(tmp_path: Path) -> None:
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=1)) as park:
        (home,) = (edge for edge in park.edges.values() if 0 in {one.device for one in edge.settings.devices})
        usual, begun = park.agents[0]._done, threading.Event()

        def done(edge: str, asked: Message) -> Any:
            if asked.kind == "visit" and not begun.is_set():
                begun.set()
                for _ in range(100):
                    park.agents[0]._joined()
                assert until(lambda: next(iter(home.line._open.values())).repeats > 90 or park.agents[0]._asked.qsize())
            return usual(edge, asked)

        park.agents[0]._done = done  # type: ignore[method-assign]
        assert park.run()[0].lost == 0
        sent = [one for one in park.broker.said if one[0] == topics.inbox("trial", home.settings.name, "d0")]
    assert begun.is_set()
    assert 1 < len(sent) <= 1 + REPEATS


def test_a_long_header_is_refused_before_it_is_read(tmp_path: Path) -> None:
    long = {"text": "x" * SHORT_HEADER}
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=1)) as park:
        agent, edge = park.agents[0], next(iter(park.edges.values()))
        now = time.time_ns()
        asked = encode(Message("visit", edge.settings.name, session=now, number=1, about=long))
        said = encode(Message("update", "d0", session=now, number=1 << 30, about=long))
        park.broker.deliver(topics.inbox("trial", edge.settings.name, "d0"), asked, False)
        park.broker.deliver(topics.outbox("trial", "d0", edge.settings.name), said, False)
        assert until(lambda: agent.gate.counts() == {edge.settings.name: {"oversized": 1}})
        assert until(lambda: edge.line.gate.counts() == {"d0": {"oversized": 1}})
        assert park.run()[0].lost == 0
    assert Gate().take(asked, edge.settings.name) is not None  # cloud and edge tell each other whole plans
