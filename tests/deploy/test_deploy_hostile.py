"""What a member of a park may say that must neither run code, end a process, fill a disk nor take what is not his."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedfloor import __version__, config
from fedfloor.base.errors import FedfloorError, RunError, SettingError
from fedfloor.base.ranges import RefusedError
from fedfloor.data.dataset import Inputs
from fedfloor.deploy import authority, broker, channel, checks, facts, joining, live, mqtt, names
from fedfloor.deploy import device as device_of
from fedfloor.deploy import message as messages
from fedfloor.deploy.channel import REPEATS, DeviceChannel, OpenRequest
from fedfloor.deploy.checks import STRANGER, MessageFilter
from fedfloor.deploy.cloud_executor import CloudExecutor
from fedfloor.deploy.device import Agent, foreign_requests
from fedfloor.deploy.flow import BURST, CHUNK, RATE_HZ, RESTART, Flow
from fedfloor.deploy.message import SHORT_HEADER, STATUS_BYTES, Message, decode, encode
from fedfloor.deploy.mqtt import MqttConnection, topic
from fedfloor.deploy.processes import LIST
from fedfloor.deploy.round_measurements import nameable, without_strangers
from fedfloor.deploy.settings import CloudEdge, CloudSettings, Deadlines, Named
from fedfloor.deploy.signing import Signer
from fedfloor.deploy.worker import NEWEST
from fedfloor.engine import ranks
from fedfloor.experiment import Experiment
from fedfloor.methods.bounds import most_batches
from fedfloor.methods.configured import ConfiguredMethod, Parts
from fedfloor.methods.fedgs import FedGS
from fedfloor.methods.hfedms import HFedMS
from fedfloor.plan.nodes import Work
from fedfloor.runs import ledger
from fedfloor.runs.parks import build_park, load_data
from live_park import NOWHERE, Broker, InMemory, Live, device_settings, experiment, member
from live_park import live as park_of
from parks import plant, until
from refusals import refused


@pytest.mark.parametrize("tick", [float("inf"), float("nan"), -1, 10**400, [], None])
def test_an_agent_outlives_whatever_it_is_asked(tmp_path: Path, tick: Any) -> None:
    """JSON as Python reads it knows Infinity, of which no whole number can be made: neither KeyError nor ValueError."""
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=1)) as park:
        agent = park.agents[0]
        asked = Message("census", "e0", session=1, number=1, about={"tick": tick, "trained": 0})
        kind, _, _ = agent.reply("e0", decode(encode(asked)))
    assert kind in ("refused", "answer", "failed")


def request(agent: Agent, edge: str, kind: str, about: Mapping[str, Any], **more: Any) -> tuple[str, Any]:
    """What a device answers to a request of an edge, and what about it."""
    said = {"device": agent.settings.device, "held": None, "trained": 0, "tick": 0, "visit": 0, **about}
    answer = agent.reply(edge, decode(encode(Message(kind, edge, session=1, number=1, about=said, **more))))
    return answer[0], answer[1].get("reason", answer[1])


@pytest.fixture(scope="module")
def small_park(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("small")
    with park_of(folder, experiment(folder, "fedavg", rounds=1, devices=4)) as park:
        yield park


@pytest.mark.parametrize(
    ("work", "wanted"),
    [
        ({"epochs": 2**31 - 1}, "work"),
        ({"steps": 2**31 - 1}, "work"),
        ({"steps": 2**63}, "header"),
        ({"epochs": 50, "batch_size": 1}, "work"),
        ({"epochs": 20, "batch_size": 10}, None),
    ],
)
def test_no_work_of_a_message_keeps_a_device_busy_for_good(small_park: Live, work: Any, wanted: str | None) -> None:
    agent = small_park.agents[0]
    began = time.monotonic()
    w = agent.worker().engine.network.flat.numpy().copy()
    settings = {"batch_size": 8, "rate": 1e-4, **work}
    got, why = request(agent, agent.settings.edge, "visit", {"work": settings}, arrays={"w": w})
    assert (got, why) == ("refused", wanted) if wanted else got == "update"
    about = {"what": "profile", "settings": settings}
    assert request(agent, agent.settings.edge, "probe", about, arrays={"w": w}) == ("refused", "question")
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "change",
    [lambda f: {"classes": f["classes"][::-1]}, lambda _: {"scale": 1e4}, lambda _: {"standard": [[1e3], [1e-3]]}],
)
def test_no_foreign_edge_relabels_or_scales_what_a_device_holds(tmp_path: Path, change: Any) -> None:
    """Reversed classes gave every sample another label, and the device's own edge had no way to notice."""
    what = experiment(tmp_path, "fedavg", rounds=1, devices=4, more="data.normalise = 'standard'")
    own = facts.of(config.read(what, []), build_park(config.read(what, [])).dataset)
    with park_of(tmp_path, what) as park:
        agent = park.agents[0]
        near, far = sorted(("e0", "e1"), key=lambda name: name != agent.settings.edge)
        first = own.to_dict()
        assert request(agent, near, "facts", {"facts": first})[0] == "answer"
        other = {**first, **change(first)}
        assert request(agent, far, "facts", {"facts": other}) == ("refused", "edge")
        if other["standard"] is None:
            assert request(agent, near, "facts", {"facts": other}) == ("refused", "facts")
        known = {**first, "standard": [[0.5], [0.25]]}
        assert request(agent, near, "facts", {"facts": known})[0] == "answer"
        assert agent._facts == replace(own, standard=((0.5,), (0.25,)))


def test_no_edge_deletes_what_a_device_just_kept_nor_fills_its_disk(tmp_path: Path) -> None:
    replay = {"objective": "replay", "epochs": 1, "batch_size": 5, "scope": "classifier", "settings": {"keep": 5}}
    with park_of(tmp_path, experiment(tmp_path, "hfedms", rounds=2)) as park:
        agent = park.agents[0]
        near, far = sorted(("e0", "e1"), key=lambda name: name != agent.settings.edge)
        engine = agent.worker().engine
        folder = agent.settings.memory
        sent = {"w": engine.network.flat.numpy()[engine.network.part("classifier")].copy()}
        first = set[Path]()
        for number, edge in enumerate([near, far, near, far, *[near] * 6]):
            about = {"work": {**replay, "rate": 0.01 * (number + 1)}, "kept": [] if number < 5 else "none", "frozen": 1}
            assert request(agent, edge, "visit", about, scope="classifier", arrays=sent)[0] == "update"
            first = first or set(folder.glob("*.safetensors"))
            assert number > 1 or first <= set(folder.glob("*.safetensors"))
        assert len(list(folder.glob("*.safetensors"))) <= NEWEST + 2
        settings = {name: one for name, one in replay.items() if name not in ("settings", "scope")}
        about = {"what": "profile", "settings": settings}
        assert request(agent, near, "probe", about, arrays={"w": engine.network.flat.numpy().copy()})[0] == "refused"
        assert len(list(folder.glob("*.safetensors"))) <= NEWEST + 2


@pytest.mark.parametrize(
    ("method", "more", "wanted"),
    [
        ("fedavg", "", ()),
        ("fedsr", "", ()),
        ("fedsr", "methods.fedsr.ring_size = 4", ("facts", "visit")),
        ("ring", "", ("facts", "visit")),
        ("hfedms", "", ("facts", "visit")),
        ("live_park:Abroad", "", ("facts", "visit")),
    ],
)
def test_another_factorys_edge_requires_only_what_the_method_sends(
    tmp_path: Path, method: str, more: str, wanted: tuple[str, ...]
) -> None:
    read = config.read(experiment(tmp_path, method, rounds=1, more=more), [])
    assert foreign_requests(read, read.configured) == wanted


def test_a_device_refuses_another_factorys_edge(small_park: Live) -> None:
    agent = small_park.agents[0]
    (far,) = {"e0", "e1"} - {agent.settings.edge}
    for kind in ("visit", "probe", "census", "keep", "facts"):
        assert request(agent, far, kind, {}) == ("refused", "edge")
    assert request(agent, agent.settings.edge, "census", {}) == ("refused", "question")


def test_bad_requests_without_number_fill_no_log(small_park: Live, caplog: pytest.LogCaptureFixture) -> None:
    agent = small_park.agents[0]
    agent.worker()
    for _ in range(100):
        for kind, more in (("visit", {"scope": "x\nERROR all is lost" * 5_000}), ("census", {})):
            about = {"work": {"steps": 1}, "tick": []}
            assert request(agent, agent.settings.edge, kind, about, **more)[0] in ("refused", "failed")
    assert len(caplog.records) < 2 * (checks.TOLD + 5) + 100
    assert len(caplog.text) < 300_000
    assert "Traceback" not in caplog.text


def test_requests_that_wait_are_bounded_by_bytes_and_looked_at_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_of, "WAITING_BYTES", 100_000)
    what = experiment(tmp_path, "fedavg", rounds=1, devices=4)
    settings = device_settings(tmp_path, what, 0, 0)
    agent = Agent(settings, config.read(what, []), None, lambda will: InMemory(Broker(), will))

    def sent(number: int, to: int) -> None:
        about = {"to": to, "filling": "x" * 40_000}
        payload = encode(Message("census", "e0", session=1, number=number, about=about))
        agent.receive(mqtt.topic("trial", "in", "e0", "d0"), payload)

    for number in range(1, 6):
        sent(number, to=agent._session)
    assert agent._requests.qsize() == 2
    assert agent.filter.refused["e0", "busy"] == 3
    sent(9, to=agent._session - 1)
    agent.receive(mqtt.topic("trial", "in", "e0", "d0"), b"rubbish" * 1000)
    assert agent._requests.qsize() == 2
    assert (agent.filter.refused["e0", "stale"], agent.filter.refused["e0", "foreign"]) == (1, 1)
    serving = threading.Thread(target=agent.run, daemon=True)
    serving.start()
    assert until(lambda: not any((*agent._waiting.values(), *agent._waiting_bytes.values())))
    agent.leave()
    serving.join(30)
    assert not serving.is_alive()


@pytest.mark.parametrize("hashes", [10**6, 0, 1.5, True])
def test_a_device_computes_few_hashes(small_park: Live, hashes: Any) -> None:
    about = {"what": "hash", "settings": {"extractor": "raw", "hashes": hashes, "width": 1.0}}
    agent = small_park.agents[0]
    assert request(agent, agent.settings.edge, "probe", about) == ("refused", "header")


@pytest.mark.parametrize("method", ["fedgs", "hfedms"])
def test_the_work_of_the_experiment_is_below_the_bound(method: str) -> None:
    """What a method computes in a round of its own is never refused."""
    made = ConfiguredMethod(method, {"fedgs": FedGS, "hfedms": HFedMS}[method](), Parts())
    assert most_batches(made, 600) >= 10 * made.method.work.at(1, 1).batches(600)
    assert most_batches(ConfiguredMethod("hfedms", HFedMS(calibration_epochs=50), Parts()), 600) >= 50 * 120


def test_nothing_that_is_heard_ends_a_connections_thread() -> None:
    said: list[str] = []

    def fails(*_: object) -> None:
        said.append("called")
        raise RuntimeError("a fault of ours")

    link = MqttConnection("n0", NOWHERE, wait=lambda _: None)
    link._stopped.set()  # it need not connect
    link.start(["a"], fails, fails)
    client: Any = link._client
    client.on_message(client, None, SimpleNamespace(topic="a", payload=b"", retain=False))
    client.on_subscribe(client, None, 1, [], None)
    assert said == ["called", "called"]


def test_many_topics_take_several_packets_and_join_once(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = list[str]()
    sizes = list[int]()
    link = MqttConnection("n0", NOWHERE, wait=lambda _: None)
    link._stopped.set()
    client: Any = link._client

    def subscribe(topics: list[Any]) -> tuple[int, int]:
        sizes.append(len(topics))
        return 0, len(sizes)

    monkeypatch.setattr(client, "subscribe", subscribe)
    link.start([f"t{i}" for i in range(2500)], lambda *_: None, lambda: joined.append("joined"))
    client.on_connect(client, None, None, SimpleNamespace(is_failure=False), None)
    for number in (1, 2, 3):
        assert joined == []
        client.on_subscribe(client, None, number, [], None)
    assert (joined, sizes) == (["joined"], [1000, 1000, 500])


def test_a_flood_of_refusals_is_counted_whole_and_logged_in_few_short_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    door = MessageFilter()
    forged = "x\nERROR everything is lost" + "y" * 10_000
    for _ in range(1000):
        assert door.take(encode(Message("update", forged, session=1, number=1)), "n0") is None
    assert door.counts() == {"n0": {"sender": 1000}}
    lines = [one.getMessage() for one in caplog.records]
    assert len(lines) == checks.TOLD + 5  # 32, 64, 128, 256, 512
    assert all("\n" not in one and len(one) < 2 * checks.LOG_CHARS for one in lines)


def test_a_device_that_is_gone_again_and_again_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    link = SimpleNamespace(confirm=lambda do: do())
    line: Any = DeviceChannel("p", "e", link, {0: Named("d0", 0)}, flow=Flow(count().__next__))  # type: ignore[arg-type]
    session = time.time_ns()
    topic = mqtt.topic("p", "status", "d0")
    about = {"device": 0, "version": __version__}
    line.receive(topic, encode(Message("hello", "d0", session=session, number=1, about=about)))
    assert list(line.connected) == [0]
    gone = encode(Message("gone", "d0", session=session, number=2, about={"why": "\U000e0001" * 300}))
    for _ in range(500):
        line.receive(topic, gone)
    lines = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "device d0 (0) is gone: \\U000e0001" in lines[0]
    assert len(lines[0]) < checks.LOG_CHARS + 50  # escaping makes texts longer
    assert not line.connected


def test_answers_that_nobody_awaits_are_remembered_up_to_a_number() -> None:
    """A run that does not wait releases visits as long as it lasts."""
    line: Any = DeviceChannel("p", "e", SimpleNamespace(), {0: Named("d0", 0)})  # type: ignore[arg-type]
    for number in range(3 * channel.REPEATED):
        line._open = {f"visit {number}": channel.OpenRequest("d0", b"", 1)}
        line.release(0, "the cloud no longer waits for it")
    assert len(line._repeated) == channel.REPEATED
    assert ("d0", f"visit {number}") in line._repeated


def test_a_request_to_a_device_that_leaves_while_it_is_written_is_lost_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing ends a request that is opened after its device has left: it lasted to its deadline."""
    link = SimpleNamespace(confirm=lambda do: do(), publish=lambda *_: None)
    line: Any = DeviceChannel("p", "e", link, {0: Named("d0", 0)})  # type: ignore[arg-type]
    line.connected[0] = {}

    def leaving(message: Message, *_: object) -> bytes:
        line.remove(0, "d0", "it is cut off")
        return encode(message)

    monkeypatch.setattr(channel, "encode", leaving)
    began = time.monotonic()
    assert line.request(0, "visit", 20.0, run="r", number=1, about={}) is None
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("letter", ["x", "\n", "\U000e0001"])
def test_a_text_of_others_is_cut_after_it_is_escaped(letter: str) -> None:
    assert len(checks.printable(letter * 10_000)) == checks.LOG_CHARS + len(" …")
    assert checks.printable("x" * checks.LOG_CHARS) == "x" * checks.LOG_CHARS


def test_down_leaves_a_folder_alone_that_is_no_parks(tmp_path: Path) -> None:
    """People keep an experiment.toml beside a folder "park"; --out . must not cost them these."""
    for name in ("park.toml", "experiment.toml"):
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
    assert wrote == {
        mqtt.topic("plant", "status", "n0"),
        *(mqtt.topic("plant", "out", "n0", f) for f in ("north", "south")),
        *(topic("plant", kind, "n0") for kind in ("serving", "predictions", "alarms")),
    }


@pytest.mark.parametrize(
    "spoilt",
    [lambda _: "words", lambda _: [], lambda one: [[*one[0][:1], [[99, *one[0][1][0][1:]]], *one[0][2:]], *one[1:]]],
)
def test_a_factory_whose_edge_shows_nonsense_sits_the_round_out(tmp_path: Path, spoilt: Any) -> None:
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=1)) as park:
        edge = next(iter(park.edges.values()))
        usual = edge.walk

        def walk(message: Message) -> Any:
            kind, about, arrays = usual(message)
            return kind, {**about, "shown": [spoilt(about["shown"][0]), *about["shown"][1:]]}, arrays

        edge.walk = walk  # type: ignore[method-assign]
        got = park.run()
    assert got[0].lost == 4


@pytest.mark.parametrize("ahead_ns", [25 * 3_600_000_000_000, 1 << 62, 10**400])
def test_a_thief_cannot_use_up_all_sessions_to_come(tmp_path: Path, ahead_ns: int) -> None:
    """With a session far in the future no later one, of the device whose key was stolen, would be new any more."""
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=2)) as park:
        about = {"device": 0, "version": __version__}
        for number, kind in enumerate(("hello", "update"), 1):
            said = encode(Message(kind, "d0", session=time.time_ns() + ahead_ns, number=number, about=about))
            park.broker.deliver(mqtt.topic("trial", "status", "d0"), said, False)
            for m in park.edges:
                park.broker.deliver(mqtt.topic("trial", "out", "d0", f"e{m}"), said, False)
        assert until(lambda: all(edge.channel.filter.refused["d0", "future"] == 3 for edge in park.edges.values()))
        park.links[0].die()
        assert until(lambda: all(0 not in edge.channel.connected for edge in park.edges.values()))
        park.join(0)
        assert until(lambda: all(0 in edge.channel.connected for edge in park.edges.values()))
        assert [line.lost for line in park.run()] == [0, 0]


def test_a_clock_that_is_hours_wrong_is_borne_with() -> None:
    """A clock on local time, taken for universal time, is up to 14 hours ahead."""
    ahead = time.time_ns() + 14 * 3_600_000_000_000
    assert MessageFilter().take(encode(Message("update", "n0", session=ahead, number=1)), "n0") is not None


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
        monkeypatch.setattr(messages, "load", None)  # no array is made
        park.broker.deliver(mqtt.topic("trial", "status", "d0"), encode(said), False)
        assert until(lambda: all(edge.channel.filter.counts() == {"d0": {reason: 1}} for edge in park.edges.values()))
        monkeypatch.undo()
        assert park.run()[0].lost == 0


def test_an_answer_has_no_more_arrays_and_bytes_than_what_was_asked(tmp_path: Path) -> None:
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=3)) as park:
        usual = park.agents[0].reply

        def done(edge: str, asked: Message) -> Any:
            kind, about, sent = usual(edge, asked)
            more = {1: arrays(1), 2: {"b": np.zeros(1 << 20, np.float32)}}.get(asked.round, {})
            return kind, about, {**sent, **more}

        park.agents[0].reply = done  # type: ignore[method-assign]
        assert [line.lost for line in park.run()] == [1, 1, 0]
        (home,) = (edge for edge in park.edges.values() if edge.channel.filter.counts())
        assert home.channel.filter.counts() == {"d0": {"arrays": 1, "oversized": 1}}


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


def test_a_device_takes_requests_from_the_edges_of_its_settings_alone(tmp_path: Path) -> None:
    """A member's key and a broker that delivers anything make no edge, also where rounds cross factories."""
    crossing = "methods.fedsr = { laps = 1, ring_size = 4 }"
    ca = authority.found("trial", authority.now())
    what = experiment(tmp_path, "fedsr", rounds=1, devices=4, more=crossing)
    with park_of(tmp_path, what, ca=ca) as park:
        agent = park.agents[0]
        (far,) = {"e0", "e1"} - {agent.settings.edge}
        for number, name in enumerate(("d3", "bridge-e0", "cloud", "alarms", far)):
            signer = Signer(member(tmp_path / "stolen", ca, name), name)
            about = {"to": agent._session, "device": 0, "tick": 0, "trained": 0}
            asked = Message("visit", name, "run", 1, 1, number, about=about, receiver="d0")
            agent.receive(topic("trial", "in", name, "d0"), encode(asked, signer))
            counted = (STRANGER, "edge") if name != far else (far, "header")
            before = number if name != far else 0
            assert until(lambda: agent.filter.refused[counted] == before + 1)  # noqa: B023


def test_an_answer_is_sent_again_a_few_times_only(tmp_path: Path) -> None:
    """The header of a signed request suffices for a repetition, so that one kilobyte fetched an answer of any size."""
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=1, devices=2)) as park:
        agent = park.agents[0]
        edge = agent.settings.edge
        before = len(park.broker.said)
        asked = encode(Message("census", edge, "run", 1, 1, 1, about={"to": agent._session}, receiver="d0"))
        for _ in range(50):
            agent.serve(edge, asked)
        sent = [where for where, _ in park.broker.said[before:] if "/out/d0/" in where]
    assert len(sent) == 1 + REPEATS


@pytest.mark.parametrize("wait_s", [-1, -(10**400), nan, -inf, None, "1", True])
@pytest.mark.parametrize("text", ["x", [[[[]]]], 10**400, None])
def test_no_field_of_a_message_ends_an_agent(tmp_path: Path, wait_s: Any, text: Any) -> None:
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=1, devices=2)) as park:
        agent = park.agents[0]
        for number, kind in enumerate(("refused", "census"), 1):
            about = {"to": agent._session, "text": text, "wait_s": wait_s}
            agent.serve(agent.settings.edge, encode(
                Message(kind, agent.settings.edge, "run", 1, 1, number, about=about, receiver="d0")
            ))  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "line"), [("refused", "refuses"), ("expired", "has expired"), ("failing", "no light")]
)
def test_requests_of_an_edge_do_not_fill_a_devices_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: str, line: str
) -> None:
    def fails(_: Any) -> Any:
        raise SettingError("no light")

    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=1, devices=2)) as park:
        agent = park.agents[0]
        monkeypatch.setattr(agent, "census", fails)
        caplog.clear()
        for number in range(200):
            about = {"to": agent._session, "text": "x", "wait_s": -1 if kind == "expired" else 60}
            asked = Message("refused" if kind == "refused" else "census", "e0", "run", 1, 1, number + 1, about=about)
            agent.serve(agent.settings.edge, encode(replace(asked, sender=agent.settings.edge, receiver="d0")))
    lines = [one for one in caplog.records if line in one.getMessage()]
    assert len(lines) in (checks.TOLD, checks.TOLD + 1)  # one more if a minute passes


@pytest.mark.parametrize("method", ["fedavg", "fedsr"])
def test_a_flood_of_hellos_is_cut_off_also_where_rounds_cross_factories(tmp_path: Path, method: str) -> None:
    """An edge that crosses factories queries each new session, and expects an answer larger than the hello."""
    crossing = "methods.fedsr = { laps = 1, ring_size = 4 }" * (method == "fedsr")
    with park_of(tmp_path, experiment(tmp_path, method, rounds=1, devices=4, more=crossing)) as park:
        (edge,) = (edge for edge in park.edges.values() if 0 in edge.own)
        assert edge.crosses == (method == "fedsr")
        edge.joining.facts = facts.of(edge.experiment, load_data(edge.experiment))
        for _ in range(BURST // 2):
            about = {"device": 0, "version": __version__}
            hello = Message("hello", "d0", session=time.time_ns(), number=1, about=about)
            edge.channel.receive(topic("trial", "status", "d0"), encode(hello))
        assert edge.channel.filter.refused["d0", "flood"]
        assert 0 not in edge.channel.connected


def test_a_device_that_restarts_every_few_seconds_is_no_flood() -> None:
    now = [0.0]
    flow = Flow(clock=lambda: now[0])
    for _ in range(1000):
        assert flow.admits("d0", 500)
        flow.spend("d0", RESTART)
        now[0] += 3.0


def test_an_edge_states_failures_of_the_devices_that_it_visits() -> None:
    edges = (CloudEdge("e0", 0, (Named("d0", 0),)), CloudEdge("e1", 1, (Named("d1", 1),)))
    failure = checks.Failure("visit", "RunError", "why")
    stated = checks.Measured(0.0, 0.0, {}, frozenset(), {}, {"d0": failure, "d1": failure}, 1, {"d1": 5})
    for crosses, failed, against, flaws in ((False, {"d0"}, set(), 1), (True, {"d0", "d1"}, {"d1"}, 0)):
        kept = without_strangers(stated, nameable(edges, crosses=crosses).get(0))
        assert (set(kept.failed), set(kept.against), len(kept.flaws)) == (failed, against, flaws)
    assert nameable((CloudEdge("e0", 0),), crosses=False) == {}
    assert without_strangers(stated, None) == stated


def test_a_device_that_floods_is_cut_off_and_named_and_the_others_train_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=3)) as park:
        said = encode(Message("hello", "d3", session=1, number=1, about={"device": 3, "version": __version__}))
        for _ in range(BURST + 2):
            park.broker.deliver(mqtt.topic("trial", "status", "d3"), said, False)
        assert until(lambda: all(3 not in edge.channel.connected for edge in park.edges.values()))
        for edge in park.edges.values():  # nothing of it is listened to any more
            assert not any("d3" in topic for topic in edge.channel._link.topics)  # type: ignore[attr-defined]
            assert edge.channel.filter.refused["d3", "flood"] >= 1
        lines = park.run()
    assert [line.lost for line in lines] == [1, 1, 1]
    assert all(one["d3"]["flood"] >= 1 for line in lines for one in line.measured["refused"].values())  # type: ignore[index]
    assert "device d3 is cut off: it sent far more messages" in caplog.text


def test_an_edge_does_not_raise_the_limit_by_claiming_more_steps() -> None:
    """The length that is allowed grows with rate · steps, which the cloud computes itself."""
    work = Work(epochs=2, batch_size=5, rate=0.1)  # 2 · 10/5 steps
    known = checks.Known(0, (0, 0), (0, 0), samples=10, work=work, trained=0, bytes=8)
    row = [0, 0, 0, 4, 10, 1.0, 0.9, 0.5, 8, False, None, 0.0]
    assert checks.receipt([*row, [0.1 * 4, 3.0], ""], known).update == (0.1 * 4, 3.0)
    for effort in (1e9, 1e300, 0.0, -1.0, 0.1 * 5, nan, "0.4", None, True):
        with refused("receipt", RefusedError):
            checks.receipt([*row, [effort, 3.0], ""], known)


def test_an_answer_is_admitted_as_often_as_it_was_asked_for() -> None:
    """A large model's answer costs more than a full bucket; a device on a bad line sends it again when asked again."""
    flow = Flow(clock=lambda: 0.0)
    link = SimpleNamespace(publish=lambda *_: None)
    line = DeviceChannel("trial", "e0", link, {0: Named("d0", 0)}, flow=flow)  # type: ignore[arg-type]
    request = OpenRequest("d0", b"", most=100 * CHUNK)
    flow.expect("d0", request.most)
    for _ in range(REPEATS):
        line.repeat("1-1", request)
        assert flow.admits("d0", 100 * CHUNK)
    assert flow.admits("d0", 100 * CHUNK)  # to the request itself
    line.repeat("1-1", request)  # once too often: nothing more is expected
    assert sum(flow.admits("d0", 100 * CHUNK) for _ in range(REPEATS)) <= 1 + BURST // 100


def test_a_hello_again_and_again_does_not_bring_the_model_each_time(tmp_path: Path) -> None:
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=1)) as park:
        (home,) = (edge for edge in park.edges.values() if 0 in {one.device for one in edge.settings.devices})
        usual = park.agents[0].reply
        begun = threading.Event()

        def done(edge: str, asked: Message) -> Any:
            if asked.kind == "visit" and not begun.is_set():
                begun.set()
                for _ in range(100):
                    park.agents[0].announce()
                waiting = home.channel._open
                queued = park.agents[0]._requests
                assert until(lambda: next(iter(waiting.values())).repeats > 90 or queued.qsize())
            return usual(edge, asked)

        park.agents[0].reply = done  # type: ignore[method-assign]
        assert park.run()[0].lost == 0
        sent = [one for one in park.broker.said if one[0] == mqtt.topic("trial", "in", home.settings.name, "d0")]
    assert begun.is_set()
    assert 1 < len(sent) <= 1 + REPEATS


def test_a_long_header_is_refused_before_it_is_read(tmp_path: Path) -> None:
    long = {"text": "x" * SHORT_HEADER}
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=1)) as park:
        agent = park.agents[0]
        edge = next(iter(park.edges.values()))
        now = time.time_ns()
        asked = encode(Message("visit", edge.settings.name, session=now, number=1, about=long))
        said = encode(Message("update", "d0", session=now, number=1 << 30, about=long))
        park.broker.deliver(mqtt.topic("trial", "in", edge.settings.name, "d0"), asked, False)
        park.broker.deliver(mqtt.topic("trial", "out", "d0", edge.settings.name), said, False)
        assert until(lambda: agent.filter.counts() == {edge.settings.name: {"oversized": 1}})
        assert until(lambda: edge.channel.filter.counts() == {"d0": {"oversized": 1}})
        assert park.run()[0].lost == 0
    assert MessageFilter().take(asked, edge.settings.name) is not None  # cloud and edge tell each other whole plans


def misstated(park: Any, change: Any, device: int = 3) -> None:
    """Let a device change the receipts that it sends."""
    agent = park.agents[device]
    usual = agent.worker

    def reply(message: Message) -> Any:
        kind, about, arrays = usual().reply(message)
        if kind == "update":
            about = {**about, **change(dict(about, receipt=list(about["receipt"])))}
        return kind, about, arrays

    agent.worker = lambda: SimpleNamespace(reply=reply)


FIELDS = ("device", "visit", "tick", "steps", "samples", "loss_first", "loss_last", "accuracy", "bytes", "lost",
          "memory", "seconds")  # fmt: skip
CLAIMS = [
    ("samples", 10**12), ("samples", 10**30), ("samples", 25), ("steps", 10**6), ("steps", 0), ("steps", 10**400),
    ("loss_first", 1e7), ("loss_last", 1e308), ("loss_last", nan), ("loss_last", "0"), ("accuracy", nan),
    ("accuracy", 1.01), ("accuracy", -0.01), ("memory", "x" * 1_000_000), ("memory", "../" * 21 + "a"), ("memory", 7),
    ("bytes", 10**30), ("lost", True), ("tick", 1), ("visit", 3), ("device", 2), ("seconds", 1e9),
]  # fmt: skip


@pytest.mark.parametrize(("what", "value"), CLAIMS)
def test_a_receipt_with_a_field_out_of_its_range_is_a_lost_visit(what: str, value: Any) -> None:
    known = checks.Known(3, (0, 0), (0, 0), 24, Work(epochs=1, batch_size=10), 0)
    row: list[Any] = [3, 0, 0, 3, 24, 4.1, 3.9, 0.25, 0, False, None, 0.0]
    assert checks.receipt(list(row), known).steps == 3
    row[FIELDS.index(what)] = value
    with pytest.raises(RefusedError):
        checks.receipt(row, known)


@pytest.mark.parametrize("row", [None, {}, [], [3] * 11, [3] * 14, [[]] * 12, "x" * 12])
def test_what_is_no_receipt_is_refused(row: Any) -> None:
    known = checks.Known(3, (0, 0), (0, 0), 24, Work(epochs=1, batch_size=10), 0)
    with refused("receipt", RefusedError):
        checks.receipt(row, known)


@pytest.mark.parametrize(("method", "change"), [
    ("ida", {7: nan}), ("qffl", {6: 1e308}), ("fedavg", {4: 10**30}), ("fedavg", {10: "x" * 1_000_000}),
])  # fmt: skip
def test_a_claim_out_of_range_costs_its_device_only(tmp_path: Path, method: str, change: dict[int, Any]) -> None:
    more = "methods.ida.factors = 'accuracy'" if method == "ida" else ""
    what = experiment(tmp_path, method, rounds=1, more=more)

    def changed(about: dict[str, Any]) -> dict[str, Any]:
        return {"receipt": [change.get(place, one) for place, one in enumerate(about["receipt"])]}

    with park_of(tmp_path, what) as park:
        misstated(park, changed)
        got = park.run()
    assert got[0].lost == 1
    assert set(got[0].measured["failed"]) == {"d3"}  # type: ignore[index]


@pytest.mark.parametrize("by", [1e3, 1e5])
def test_a_claimed_loss_does_not_take_the_whole_mean_of_q_ffl(tmp_path: Path, by: float) -> None:
    with park_of(tmp_path, experiment(tmp_path, "qffl", rounds=1)) as park:
        agent = park.agents[3]
        usual = agent.worker

        def reply(message: Message) -> Any:
            kind, about, arrays = usual().reply(message)
            return kind, ({"answer": about["answer"] * by} if message.kind == "probe" else about), arrays

        agent.worker = lambda: SimpleNamespace(reply=reply)  # type: ignore[method-assign, assignment, return-value]
        got = park.run()
    assert "its answer to 'loss' is" in got[0].measured["failed"]["device 3"]  # type: ignore[index]


def test_a_diagnosis_reaches_the_log_and_the_ledger_as_one_short_printable_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = "\x1b[2J\x07[bold red]\n\u202eERROR" + "y" * 100_000
    with park_of(tmp_path, experiment(tmp_path, "fedavg", rounds=1)) as park:

        def reply(_: Message) -> Any:
            return "failed", {"error": bad, "text": bad}, {}

        park.agents[3].worker = lambda: SimpleNamespace(reply=reply)  # type: ignore[assignment, method-assign, return-value]
        got = park.run()
    text = got[0].measured["failed"]["d3"]  # type: ignore[index]
    for said in (text, *(one.getMessage() for one in caplog.records)):
        assert said.isprintable()
        assert len(said) < 1000


def test_a_device_that_claims_far_more_samples_than_others_is_named_before_the_first_round() -> None:
    what = Experiment()
    known = facts.Facts("own", ("a", "b"), (1, 2, 2), Inputs("image"), 1 / 255, sums=False)
    held = [facts.Holding(100, (50, 50), (), "0" * 64)] * 4
    facts.park(what, known, [0] * 5, [*held, replace(held[0], samples=10_000, counts=(5000, 5000))])
    for samples in (10_001, 10**9):
        with refused("claims"):
            facts.park(what, known, [0] * 5, [*held, replace(held[0], samples=samples)])
    for samples in (0, -1, 10**12, 10**30, True, 1.5, nan, None):
        with refused("header", RefusedError):
            facts.read_holding({"samples": samples, "counts": [1, 1], "sums": [], "digest": "0" * 64}, known)
    for counts in ([101, 0], [60, 60], [-1, 5]):
        with refused("claims"):
            facts.park(what, known, [0] * 5, [*held, replace(held[0], counts=tuple(counts))])
    summed = replace(known, sums=True)
    for sums in ([[10**400], [0], [0]], [[1e31], [0], [0]], [[nan], [0], [0]], [[1], [1]], [[1, 2]] * 3, "abc", None):
        with refused("header", RefusedError):
            facts.read_holding({"samples": 2, "counts": [1, 1], "sums": sums, "digest": "0" * 64}, summed)


BYTES = (Inputs("image"), (1, 2, 2))
SENSOR = (Inputs("table", ("heat",)), (1, 3))


@pytest.mark.parametrize(
    ("inputs", "shape", "possible", "impossible"),
    [
        (*BYTES, [(400, 1000, 500), (400, 102_000, 0), (0, 0, 0)],
         [(-400, 1000, 500), (401, 0, 0), (400, 102_001, 0), (400, 1000, -50_000),
          (400, 0, 1e8), (0, 1, 0), (0, 0, 1)]),
        (*SENSOR, [(300, -1e9, 1e20), (7, 1.0, 0.0), (0, 0, 0)],
         [(-300, 0, 0), (301, 0, 0), (300, 0, -1.0), (0, 1, 0), (0, 0, 1), (300, 1e31, 0)]),
    ],
    ids=["pictures", "sensors"],
)  # fmt: skip
def test_sums_that_no_samples_have_are_refused(inputs: Inputs, shape: Any, possible: Any, impossible: Any) -> None:
    known = facts.Facts("own", ("a", "b"), shape, inputs, 1.0, sums=True)

    def held(sums: Any) -> facts.Holding:
        claim = {"samples": 100, "counts": [50, 50], "sums": [[one] for one in sums], "digest": "0" * 64}
        return facts.read_holding(claim, known)

    for sums in possible:
        assert held(sums).sums == tuple((float(one),) for one in sums)
    for sums in impossible:
        with refused("header", RefusedError):
            held(sums)


# -- forged answers of an edge ----------------------------------------------------------------------------------------

DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
FORGED: list[Any] = [
    None, True, "x", "\x1b[2J[red]\n\u202e" * 100, -1, 0, 1.5, 10**12, 10**400, -(10**400), 1e30, 1e300, 1.7e308, nan,
    inf,
    [], {}, [[]], DEEP, {"a": {"b": []}}, ["x"] * 10_000, [0] * 10_000, "x" * 1_000_000,
]  # fmt: skip
GONE = object()


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place within a JSON value; of a long list the first three entries and the last."""
    yield at
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    for key in keys if len(keys) < 6 or isinstance(value, dict) or len(keys) in (12, 14) else [*keys[:3], keys[-1]]:
        yield from places(value[key], (*at, key))


def forged(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """The value with another one in a place."""
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(at) == 1 and new is GONE:
        del copy[at[0]]
    else:
        copy[at[0]] = forged(value[at[0]], at[1:], new)
    return copy


def forgeries(true: Message) -> Iterator[tuple[str, Message]]:
    """A true answer with every field of its header, and every array, replaced."""
    for at in places(true.about):
        for new in [*FORGED, GONE] if at else [{}]:
            yield f"{at} = {str(new)[:40]}", replace(true, about=forged(true.about, at, new))
    for name, one in true.arrays.items():
        others = {k: v for k, v in true.arrays.items() if k != name}
        for by in (-1, 100, 1e6, 1e30, 3e38):
            yield f"{name} times {by}", replace(true, arrays={**others, name: (one * by).astype(one.dtype)})
        for new in (one[:-1], one[:0], one.astype(np.float64), np.zeros((2, 2), one.dtype)):
            yield f"{name} of {new.dtype} {new.shape}", replace(true, arrays={**others, name: new})
        yield f"no {name}", replace(true, arrays=others)
        yield f"{name} renamed", replace(true, arrays={**others, "99": one})
    for kind in ("failed", "refused", "lacks", "", "ready"):
        yield f"kind {kind}", replace(true, kind=kind)


@dataclass
class Replayed:
    """Edges that answer as they once did, one of them with a forgery."""

    true: dict[tuple[int, str], Message]
    forged: dict[str, Message] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(time.monotonic_ns()))

    def request(self, messages: Mapping[int, bytes], deadline_s: float, most: Mapping[int, int]) -> dict[int, bytes]:
        found = {}
        for factory, frame in messages.items():
            request = decode(frame)
            answer = self.true.get((factory, request.kind))
            answer = self.forged.get(request.kind, answer) if factory == 0 else answer
            if answer is not None:
                found[factory] = encode(replace(answer, number=next(self.numbers), answers=request.identity))
        return found


EDGES = (CloudEdge("e0", 0), CloudEdge("e1", 1))


@pytest.mark.parametrize("listed", [[0, 1, 3], [0], [0, 3]])
def test_an_edge_that_lists_other_devices_than_it_was_provisioned_with_is_refused_by_name(listed: list[int]) -> None:
    """Invented devices of any number of samples would take the weight of the mean, and move the median of samples."""
    known = facts.Facts("own", ("a", "b"), (1, 2, 2), Inputs("image"), 1 / 255, sums=False)
    one = {"samples": 10**9, "counts": [10**9, 0], "sums": [], "digest": "0" * 64}
    edges = (
        CloudEdge("e0", 0, devices=(Named("d0", 0), Named("d1", 1))),
        CloudEdge("e1", 1, devices=(Named("d2", 2),)),
    )

    def gathered(devices: list[int]) -> Message:
        held = {str(k): one for k in devices}
        return Message("gathered", "e0", about={"held": held, "devices": devices, "lacking": [], "wrong": {}})

    assert joining.wait_for_holdings(lambda: {0: gathered([1, 0]), 1: gathered([2])}, edges, known, 0.0)[0] == [0, 0, 1]
    with pytest.raises(RunError, match=r"edge e0: .*cloud.toml assign device [13] to different factories"):
        joining.wait_for_holdings(lambda: {0: gathered(listed), 1: gathered([2])}, edges, known, 0.0)


@pytest.mark.parametrize("sums", [False, True])
def test_no_forged_list_of_what_devices_hold_ends_in_anything_but_a_message_with_the_edges_name(sums: bool) -> None:
    known = facts.Facts("own", ("a", "b"), (1, 2, 2), Inputs("image"), 1 / 255, sums=sums)
    one = {"samples": 9, "counts": [4, 5], "sums": [[36.0], [9.0], [3.0]] if sums else [], "digest": "0" * 64}
    about = {"held": {"0": one, "1": one}, "devices": [0, 1], "lacking": [], "wrong": {}}
    other = {"held": {"2": one}, "devices": [2], "lacking": [], "wrong": {}}
    true = [Message("gathered", "e0", about=about), Message("gathered", "e1", about=other)]
    gathered = joining.wait_for_holdings(lambda: dict(enumerate(true)), EDGES, known, 0.0)
    assert gathered[0] == [0, 0, 1]
    tried = 0
    texts = list[str]()
    for said, message in forgeries(true[0]):
        tried += 1
        try:
            found = joining.wait_for_holdings(lambda: {0: message, 1: true[1]}, EDGES, known, 0.0)  # noqa: B023
            facts.park(Experiment(), known, *found)
        except FedfloorError as error:
            texts.append(f"{said}: {error}")
    assert tried > 300
    assert all(text.partition(": ")[2].isprintable() and len(text) < 2000 for text in texts)


@dataclass
class Inventing:
    """An edge that waits for a device and states failures of devices that it invents, with every answer others."""

    asked: int = 0

    def request(self, messages: Mapping[int, bytes], deadline_s: float, most: Mapping[int, int]) -> dict[int, bytes]:
        self.asked += 1
        failures = {f"x{self.asked}-{i}": ["visit", "RunError", "why"] for i in range(3)}
        about = {"held": {}, "devices": [0], "lacking": ["d0"], "wrong": {}, "failed": failures}
        said = Message("gathered", "", session=1, number=self.asked, about=about)
        return {
            m: encode(replace(said, sender=f"e{m}", answers=decode(frame).identity)) for m, frame in messages.items()
        }


@pytest.mark.parametrize("listed", [False, True])
def test_failures_of_invented_devices_do_not_add_up_and_do_not_count_where_devices_are_listed(
    tmp_path: Path, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "LOOK_S", 0.0)
    what = experiment(tmp_path, "fedavg", rounds=1)
    edges = (CloudEdge("e0", 0, devices=(Named("d0", 0),) * listed),)
    made = Inventing()
    settings = CloudSettings(
        "trial", what, tmp_path / "run", edges, NOWHERE, deadlines=Deadlines(join_s=0.5), samples="devices"
    )
    found = config.read(what, [])
    live_cloud = CloudExecutor(settings, made, [], names.table(found))
    with refused("holdings-missing", RunError):
        live_cloud.gather(found)
    assert made.asked > 2
    assert set(live_cloud.measured()["failed"]) == ({"e0"} if listed else {f"x{made.asked}-{i}" for i in range(3)})


FORGING = {
    "fedavg": "", "fedsr": "methods.fedsr = { laps = 2, ring_size = 2 }", "fedl": "", "qffl": "",
    "fedgs": "data.stream = { kind = 'fifo', window = 10 }\n"
    "methods.fedgs = { iterations = 2, devices = 2, random = 1, work.batch_size = 5 }",
    "krum": "method.mix = { kind = 'krum', outliers = 1 }",
    "astraea": "methods.astraea.devices = 2",
}  # fmt: skip


@pytest.mark.parametrize("method", FORGING)
def test_no_forged_answer_of_an_edge_ends_a_run_or_moves_the_model_far(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    walks: list[tuple[Any, ...]] = []
    usual = ranks.run

    def run(engine: Any, plan: Any, packet: Any, **more: Any) -> Any:
        if engine.factories is not None:
            walks.append((engine, plan, {k: v.clone() for k, v in packet.items()}, more))
        return usual(engine, plan, packet, **more)

    monkeypatch.setattr(ranks, "run", run)
    true: dict[int, dict[tuple[int, str], Message]] = {}
    name = "fedavg" if method == "krum" else method
    with park_of(tmp_path, experiment(tmp_path, name, rounds=1, more=FORGING[method])) as park:
        for m, edge in park.edges.items():

            def answer(frame: bytes, m: int = m, usual: Any = edge.answer) -> bytes:
                got = usual(frame)
                true.setdefault(len(walks), {})[m, decode(frame).kind] = decode(got)
                return bytes(got)

            edge.answer = answer  # type: ignore[method-assign]
        park.run()
    tried = 0
    harmed = list[str]()
    for number, (engine, plan, packet, more) in enumerate(walks, 1):
        cloud = engine.factories
        edges = Replayed(true.get(number, {}))
        cloud.edges._edges = edges
        before = Counter(engine.memory.visits)

        def once() -> Any:
            engine.memory.visits = Counter(before)  # noqa: B023
            outcome = usual(engine, plan, dict(packet), **more)  # noqa: B023
            told = json.dumps([ledger.to_row(ledger.line(1, None, outcome.receipts, "", 0, {})), cloud.measured()])  # noqa: B023
            assert len(told) < 20_000, "the ledger is flooded"
            assert "\x1b" not in told.encode().decode("unicode_escape"), "an escape sequence is in the ledger"
            return outcome

        wanted = once()
        assert not any(receipt.lost for receipt in wanted.receipts)
        far = max(float((wanted.packet[name] - packet[name]).norm()) for name in packet)
        for (factory, kind), message in edges.true.items():
            tries = list(forgeries(message)) if factory == 0 else []
            for said, one in tries if method == "fedavg" else tries[::5]:
                edges.forged = {kind: one}
                tried = tried + 1
                caplog.clear()
                try:
                    outcome = once()
                except FedfloorError as error:
                    harmed.append(f"{kind} {said}: ended with {error}")
                    continue
                off = max(float((outcome.packet[k] - wanted.packet[k]).norm()) for k in packet)
                if not off <= 20 * far + 1e-6:
                    harmed.append(f"{kind} {said}: moved by {off:.3g}, honest edges by {far:.3g}")
                assert "Traceback" not in caplog.text
                assert all(len(r.getMessage()) < 2000 and r.getMessage().isprintable() for r in caplog.records)
    assert not harmed, f"{len(harmed)} of {tried}: " + "\n".join(harmed[:30])
    assert tried > (1000 if method == "fedavg" else 150)
