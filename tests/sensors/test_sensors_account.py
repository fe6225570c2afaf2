"""Every value that a source sends arrives in the rows, or is named as missing or left out, once.

Made streams of messages, with faults, run through each source's reader and the recorder into a buffer. A model in this
file says for each message what must become of its values.
"""

from __future__ import annotations

import json
import math
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refusals
from commands import Command
from fedfloor.base.errors import SettingError
from fedfloor.data.files import buffer
from fedfloor.sensors import sense
from fedfloor.sensors.buffer import writing
from fedfloor.sensors.events import Event, Inbox, Missing, Refusal, Signal, Update
from fedfloor.sensors.folder import FolderSource
from fedfloor.sensors.mqtt import Broker, MessageReader, MqttSource
from fedfloor.sensors.opcua import OpcUaSource, Session
from fedfloor.sensors.sense import Recorder
from fedfloor.sensors.settings import SenseSettings
from fedfloor.sensors.sparkplug import NodeState
from parks import needs_mosquitto, until
from plant_sources import BEGIN, field, metric, open_broker, payload

NAMES = ("a", "b")
NAN = math.nan
Status = dict[str, Any]
Table = dict[float, list[float]]


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:  # hypothesis gives a test one tmp_path for all examples
        yield Path(name)


def recorded(
    events: Iterable[Event], into: Path, names: Sequence[str] = NAMES, tags: dict[str, str] | None = None, **more: Any
) -> tuple[Table, Status]:
    """The rows of a buffer, time after BEGIN → values, and the status, after all events."""
    tags = tags if tags is not None else {name: name for name in names}
    what = SenseSettings(MqttSource(Broker("host")), tags=tags, **more)
    with writing(into, names, 1.0, 1e5, 60.0) as ring:
        recorder = Recorder(what, ring, names)
        for event in events:
            recorder.take(event)
        recorder.take(Signal.IDLE)
        recorder.flush(end=True)
        status = recorder.status(end=True)
    try:
        rows = buffer.read(into)
    except SettingError:
        return {}, status
    return dict(zip((rows.time - BEGIN).tolist(), rows.x.tolist(), strict=True)), status


def agree(got: Table, wanted: Table) -> None:
    assert [*got] == [*wanted]
    np.testing.assert_array_equal(np.array([*got.values()]), np.array([*wanted.values()]))


def balanced(status: Status, values: int) -> None:
    """The account has as many values as were sent, each once."""
    assert status["values"] == values
    assert status["numbers"] + status["labels"] + sum(status["missing"].values()) == values


# -- what a value becomes ----------------------------------------------------------------------------------------------

VALUES = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True),
    st.booleans(),
    st.none(),
    st.sampled_from(["hot", "", [1.0], {"x": 1}, 1e300, 2**40 + 1]),
)


def becomes(value: object) -> tuple[float, str]:
    """A value's number, and the reason if it is missing."""
    if value is None:
        return NAN, "null"
    if isinstance(value, str | list | dict):
        return NAN, {str: "text", list: "list", dict: "object"}[type(value)]
    assert isinstance(value, bool | int | float)
    if math.isnan(value):
        return NAN, "NaN"
    return (float(value), "") if abs(value) <= float(np.finfo(np.float32).max) else (NAN, "beyond 32 bits")


class Model:
    """The rows and the account that a stream of messages must lead to, with a row at the time of each message."""

    def __init__(self) -> None:
        self.held = dict.fromkeys(NAMES, NAN)
        self.rows = Table()
        self.missing = Counter[str]()
        self.values = 0

    def take(self, at: float, values: dict[str, object], *, row: bool = True) -> None:
        for name, value in values.items():
            self.values += 1
            self.held[name], reason = becomes(value)
            self.missing[reason] += bool(reason)
        if row and values:
            self.rows[at] = [*self.held.values()]

    def check(self, got: Table, status: Status) -> None:
        agree(got, self.rows)
        balanced(status, self.values)
        assert Counter(status["missing"]) == +self.missing


# -- JSON over MQTT ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Message:
    """A message with the fields in it; ``fault`` is what the network or the sender does to it."""

    values: dict[str, object]
    fault: str = ""


MESSAGES = st.lists(
    st.builds(
        Message,
        st.dictionaries(st.sampled_from(NAMES), VALUES),
        st.sampled_from(["", "", "", "repeated", "no time", "retained", "retained again", "no JSON", "cut", "large"]),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=60)
@given(MESSAGES)
def test_each_value_of_messages_in_json_arrives_or_is_named_once(messages: list[Message]) -> None:
    reader = MessageReader(MqttSource(Broker("host")), {"plant": ["#a", "#b"]})
    model = Model()
    left_out = Counter[str]()
    events = list[Event]()
    last: bytes | None = None
    for number, message in enumerate(messages):
        body = json.dumps({**message.values, "time": BEGIN + number}).encode()
        if message.fault == "no time":
            body = json.dumps(message.values).encode()
            left_out["no time"] += bool(message.values)
        elif message.fault in ("no JSON", "cut"):
            body = b"{]" if message.fault == "no JSON" else body[:-1]
            left_out["no JSON"] += 1
        elif message.fault == "retained again" and last is not None:  # as at a reconnection
            events += reader.read("plant", last, True)
            continue
        else:
            model.take(number, message.values)
            last = body if message.values else last
        events += reader.read("plant", body, message.fault == "retained" and message.values != {})
        if message.fault == "repeated":  # as quality of service 1 may
            events += reader.read("plant", body, False)
    # of a message without fields, nothing is there to be left out
    events = [event for event in events if isinstance(event, Refusal) or (isinstance(event, Update) and event.values)]
    sent = sum(len(event.values) for event in events if isinstance(event, Update) and not math.isnan(event.time))
    with folder() as where:
        got, status = recorded(events, where / "b.sqlite", tags={"a": "plant#a", "b": "plant#b"})
    agree(got, model.rows)
    balanced(status, sent)
    assert status["left_out"] == dict(+left_out)
    again = sent - model.values
    assert status.get("repeated", 0) + status.get("late", 0) == again


def test_a_field_that_a_message_lacks_holds_and_a_null_does_not(tmp_path: Path) -> None:
    reader = MessageReader(MqttSource(Broker("host")), {"plant": ["#a", "#b"]})
    bodies = [{"a": 1}, {"b": 10}, {"a": 2}, {"a": None}, {"b": 11}]
    events = [
        event
        for t, body in enumerate(bodies)
        for event in reader.read("plant", json.dumps({**body, "time": BEGIN + t}).encode(), False)
    ]
    tags = {"a": "plant#a", "b": "plant#b"}
    wanted = [[1, NAN], [1, 10], [2, 10], [NAN, 10], [NAN, 11]]
    for period_s in (0.0, 1.0):
        got, status = recorded(events, tmp_path / f"{period_s}.sqlite", tags=tags, period_s=period_s)
        agree(got, dict(enumerate(wanted)))  # type: ignore[arg-type]
        assert status["missing"] == {"null": 1}


def test_retained_messages_are_rows_once_or_held_values(tmp_path: Path) -> None:
    """With a time of its own a retained message is a row once, however often it comes; without one it is none."""
    into = tmp_path / "b.sqlite"
    tags = {"a": "own#a", "b": "bare#b"}

    def start(*live: int) -> tuple[Table, Status]:
        own = MessageReader(MqttSource(Broker("host")), {"own": ["#a"], "bare": ["#b"]})
        events: list[Event] = [
            *own.read("own", json.dumps({"a": 7, "time": BEGIN}).encode(), True),
            *own.read("bare", b'{"b": 5}', True),
        ]
        for t in live:
            events += own.read("own", json.dumps({"a": t, "time": BEGIN + t}).encode(), False)
        return recorded(events, into, tags=tags)

    agree(start()[0], {0: [7, NAN]})
    agree(start()[0], {0: [7, NAN]})
    agree(start(100)[0], {0: [7, NAN], 100: [100, 5]})
    got, status = start(200)
    agree(got, {0: [7, NAN], 100: [100, 5], 200: [200, 5]})
    assert (status["repeated"], status.get("clock went back", 0)) == (1, 0)


def test_a_retained_value_of_unknown_age_is_missing_where_ages_are_limited(tmp_path: Path) -> None:
    reader = MessageReader(MqttSource(Broker("host")), {"own": ["#a"], "bare": ["#b"]})
    events = [
        *reader.read("bare", b'{"b": 5}', True),
        *reader.read("own", json.dumps({"a": 1, "time": BEGIN}).encode(), False),
    ]
    got, _ = recorded(events, tmp_path / "b.sqlite", tags={"a": "own#a", "b": "bare#b"}, hold_s=1e9)
    agree(got, {0: [1, NAN]})


def test_names_in_messages_may_contain_points(tmp_path: Path) -> None:
    reader = MessageReader(MqttSource(Broker("host")), {"plant": ["#temp.value", "#n.a"]})
    body = json.dumps({"temp.value": 1, "n": {"a": 2}, "time": BEGIN}).encode()
    got, _ = recorded(
        reader.read("plant", body, False), tmp_path / "b.sqlite", tags={"a": "plant#temp.value", "b": "plant#n.a"}
    )
    agree(got, {0: [1, 2]})


# -- Sparkplug B -------------------------------------------------------------------------------------------------------


def with_quality(quality: int, alias: int, value: float) -> bytes:
    entry = field(1, 3) + field(3, quality)
    return metric(value, alias=alias) + field(9, field(1, "Quality") + field(2, entry))


SPARKPLUG = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from([0, 1]), st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=1),
        st.sampled_from(
            ["", "", "", "gap", "unknown alias", "bad quality", "good quality", "foreign death", "rebirth"]
        ),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=60)
@given(SPARKPLUG)
def test_each_value_of_sparkplug_arrives_or_is_named_once(messages: list[tuple[dict[int, float | None], str]]) -> None:
    state = NodeState({*NAMES})
    model = Model()
    left_out = Counter[str]()

    def birth(ms: int) -> bytes:
        metrics = [metric(None, name, alias, ms) for alias, name in enumerate(NAMES)]
        return payload(ms, 0, metric(1, "bdSeq", datatype=8), *metrics)

    events = [*state.take("NBIRTH", "", birth(1000 * BEGIN))]
    model.take(0, dict.fromkeys(NAMES), row=False)
    seq = 0
    for number, (values, fault) in enumerate(messages, 1):
        ms = 1000 * (BEGIN + number)
        if fault == "rebirth":
            events += state.take("NBIRTH", "", birth(ms))
            model.take(number, dict.fromkeys(NAMES), row=False)
            seq = 0
        seq = (seq + 1 + (fault == "gap")) % 256
        left_out["gap in sequence numbers"] += fault == "gap"
        metrics = [metric(value, alias=alias) for alias, value in values.items()]
        named: dict[str, object] = {NAMES[alias]: value for alias, value in values.items()}
        if fault == "unknown alias":
            metrics.append(metric(1.0, alias=9))
            left_out["alias without a birth"] += 1
        if fault.endswith("quality"):
            metrics = [with_quality(192 if fault == "good quality" else 0, alias, 1.5) for alias in values]
            named = dict.fromkeys(named, 1.5)
        if fault == "foreign death":
            assert [*state.take("NDEATH", "", payload(ms, None, metric(0, "bdSeq", datatype=8)))] == []
        events += state.take("NDATA", "", payload(ms, seq, *metrics))
        if fault == "bad quality":
            model.values += len(named)
            model.missing["quality 0"] += len(named)
            model.held |= dict.fromkeys(named, NAN)
            model.rows[number] = [*model.held.values()]
        else:
            model.take(number, named)
    with folder() as where:
        got, status = recorded(events, where / "b.sqlite")
    model.check(got, status)
    assert status["left_out"] == dict(+left_out)


# -- OPC UA, at the seam of subscriptions ------------------------------------------------------------------------------


def notify(session: Session, node: str, value: object, at: float, status: int = 0) -> None:
    """What asyncua calls for each value of a subscription."""
    from asyncua import ua

    data = SimpleNamespace(
        StatusCode=ua.StatusCode(status),
        SourceTimestamp=datetime.fromtimestamp(at, UTC),
        ServerTimestamp=None,
        Value=None if value is None else SimpleNamespace(Value=value),
    )
    notification = SimpleNamespace(monitored_item=SimpleNamespace(Value=data))
    session.datachange_notification(SimpleNamespace(nodeid=ua.NodeId.from_string(node)), value, notification)


class Server:
    """A server of OPC UA for :class:`Session`, in memory."""

    def __init__(self, *namespaces: str, lacks: Sequence[str] = ()) -> None:
        self.namespaces = ["http://opcfoundation.org/UA/", *namespaces]
        self.lacks = {*lacks}
        self.nodes = SimpleNamespace(objects=self)

    async def get_namespace_array(self) -> list[str]:
        return self.namespaces

    def get_node(self, name: str) -> Any:
        from asyncua import ua

        return SimpleNamespace(nodeid=ua.NodeId.from_string(name))

    async def get_children(self, _: object) -> list[Any]:
        return []

    async def create_subscription(self, *_: object) -> Any:
        from asyncua import ua

        async def subscribe(nodes: list[Any], **_: object) -> list[Any]:
            unknown = ua.StatusCode(ua.StatusCodes.BadNodeIdUnknown)
            return [unknown if node.nodeid.to_string() in self.lacks else 1 for node in nodes]

        return SimpleNamespace(subscribe_data_change=subscribe)


def session(addresses: Sequence[str], server: Server) -> Session:
    import asyncio

    made = Session(OpcUaSource("opc.tcp://host"), tuple(addresses), Inbox(threading.Event()), {})
    asyncio.run(made._subscribe(server))
    return made


def sent(made: Session) -> list[Event]:
    events = list[Event]()
    while not made.inbox.queue.empty():
        event = made.inbox.queue.get()
        assert not isinstance(event, BaseException)
        events.append(event)
    return events


OPCUA_VALUES = st.one_of(st.integers(0, 2**64 - 1), st.floats(allow_nan=True), st.booleans(), st.none(), st.just([1.0]))
BAD = 0x808C0000  # BadSensorFailure
STATUS = [0, 0, 0x40900000, 0x400, BAD]  # good, uncertain, good with information bits


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES), OPCUA_VALUES, st.sampled_from([0, 0, 0x40900000, 0x400, BAD])), max_size=30
    )
)
def test_each_value_of_opc_ua_arrives_or_is_named_once(values: list[tuple[str, object, int]]) -> None:
    pytest.importorskip("asyncua", reason="asyncua is not installed: pip install 'fedfloor[opcua]'")
    from asyncua import ua

    nodes = {"a": "ns=2;s=Press.a", "b": "ns=2;i=1234"}
    made = session([nodes["a"], "ns=02;i=1234"], Server())
    model = Model()
    for name in NAMES:  # a subscription begins with the present values
        notify(made, nodes[name], 0.0, BEGIN)
        model.take(0, {name: 0.0}, row=False)
    bad = f"status {ua.StatusCode(BAD).name}"
    for number, (name, value, status) in enumerate(values, 1):
        notify(made, nodes[name], value, BEGIN + number, status)
        if status == BAD:
            model.values += 1
            model.missing[bad] += 1
            model.held[name] = NAN
            model.rows[number] = [*model.held.values()]
        else:
            model.take(number, {name: value})
    with folder() as where:
        got, account = recorded(sent(made), where / "b.sqlite", tags={"a": nodes["a"], "b": "ns=02;i=1234"})
    model.check(got, account)


SPELLINGS = [
    ("ns=02;i=1234", "ns=2;i=1234"),
    ("ns=0;i=2258", "i=2258"),
    ("ns=2;g=09087E75-8E5E-499B-954F-F2A9603DB28A", "ns=2;g=09087e75-8e5e-499b-954f-f2a9603db28a"),
    ("nsu=http://plant/press;s=Press.Temp", "ns=2;s=Press.Temp"),
    ("nsu=http://plant/press;s=a;b=c", "ns=2;s=a;b=c"),
]


@pytest.mark.parametrize(("address", "canonical"), SPELLINGS)
def test_a_node_is_the_same_in_every_spelling(tmp_path: Path, address: str, canonical: str) -> None:
    pytest.importorskip("asyncua", reason="asyncua is not installed: pip install 'fedfloor[opcua]'")
    made = session([address], Server("http://vendor/a", "http://plant/press"))
    for t in range(3):
        notify(made, canonical, t, BEGIN + t)
    got, status = recorded(sent(made), tmp_path / "b.sqlite", ["a"], {"a": address})
    agree(got, {1: [1], 2: [2]})
    assert status["silent"] == []


def test_a_namespace_may_move_and_an_unknown_one_is_named() -> None:
    pytest.importorskip("asyncua", reason="asyncua is not installed: pip install 'fedfloor[opcua]'")
    import asyncio

    address = "nsu=http://plant/press;s=a"
    made = session([address], Server("http://plant/press"))
    asyncio.run(made._subscribe(Server("http://vendor/a", "http://plant/press")))  # type: ignore[arg-type]
    notify(made, "ns=2;s=a", 1.0, BEGIN)
    assert [event.values for event in sent(made) if isinstance(event, Update)] == [{address: 1.0}]
    with refusals.refused("tags"):
        session(["nsu=http://plant/pres;s=a"], Server("http://plant/press"))


def test_spellings_of_one_node_are_no_two_sensors_and_other_servers_nodes_are_refused() -> None:
    pytest.importorskip("asyncua", reason="asyncua is not installed: pip install 'fedfloor[opcua]'")
    for addresses in (["ns=2;i=7", "ns=02;i=7"], ["srv=1;i=7"], ["i=7;nsu=http://x"], ["Press"]):
        with refusals.refused("tags"):
            next(iter(OpcUaSource("opc.tcp://host").events(addresses, threading.Event(), None)))


def test_values_that_a_server_dropped_are_named(tmp_path: Path) -> None:
    pytest.importorskip("asyncua", reason="asyncua is not installed: pip install 'fedfloor[opcua]'")
    made = session(["i=1"], Server())
    for t, status in enumerate([0, 0, 0x480]):
        notify(made, "i=1", t, BEGIN + t, status)
    got, account = recorded(sent(made), tmp_path / "b.sqlite", ["a"], {"a": "i=1"})
    agree(got, {1: [1], 2: [2]})
    assert account["left_out"] == {"full queue of the server": 1}


# -- a folder ----------------------------------------------------------------------------------------------------------

LINES = st.lists(
    st.tuples(
        st.tuples(*[st.one_of(st.just(""), st.just("hot"), st.integers(0, 2**60), st.floats(-1e9, 1e9))] * 2),
        st.sampled_from(["", "", "", "", "footer", "header", "long", "cells", "blank", "quote"]),
    ),
    max_size=20,
)


@settings(deadline=None, max_examples=40)
@given(LINES, st.lists(st.integers(1, 400), max_size=6))
def test_each_row_of_a_growing_file_arrives_or_is_named_once(
    lines: list[tuple[tuple[Any, Any], str]], cuts: list[int]
) -> None:
    """The file is written in pieces of any length; the reader is started anew between them."""
    model = Model()
    text = "time,a,b\n"
    left_out = 0
    for number, (cells, fault) in enumerate(lines):
        row = f"{BEGIN + number},{cells[0]},{cells[1]}"
        faults = {
            "footer": "# logger stopped",
            "header": "time,a,b",
            "long": "x" * 70_000,
            "cells": f"{row},1",
            "blank": "",
            "quote": f"{BEGIN + number},1\r2,3",
        }
        text += faults.get(fault, row) + "\n"
        left_out += fault not in ("", "blank")
        if not fault:
            named = zip(NAMES, cells, strict=True)
            model.take(number, {name: None if cell == "" else cell for name, cell in named})
    data = text.encode()
    events = list[Event]()
    position = None
    ends = sorted({*(cut for cut in np.cumsum(cuts).tolist() if cut < len(data)), len(data)})
    with folder() as where:
        (where / "files").mkdir()
        for end in ends:
            (where / "files/a.csv").write_bytes(data[:end])
            stop = threading.Event()
            for event in FolderSource(where / "files").events(NAMES, stop, position):
                if event is Signal.IDLE:
                    stop.set()
                    continue
                assert isinstance(event, Update | Refusal)
                events.append(event)
                position = event.position or position
        got, status = recorded(events, where / "b.sqlite")
    model.check(got, status)
    assert sum(status["left_out"].values()) == left_out


def read_once(source: FolderSource, position: str | None, addresses: Sequence[str] = NAMES) -> list[Event]:
    stop = threading.Event()
    events = list[Event]()
    for event in source.events(addresses, stop, position):
        if event is Signal.IDLE:
            stop.set()
        else:
            events.append(event)
    return events


def rows_of(first: int, end: int) -> str:
    return "".join(f"{BEGIN + t},{t},{-t}\n" for t in range(first, end))


@pytest.mark.parametrize(
    ("later", "new"),
    [
        (rows_of(0, 5), 0),  # unchanged
        (rows_of(0, 8), 3),  # grown
        (rows_of(0, 3), 0),  # shortened
        (rows_of(0, 2) + rows_of(5, 9), 4),  # another content, longer
        (rows_of(7, 12), 5),  # another content of the same length
    ],
)
def test_a_file_that_changes_is_read_on_or_anew_and_no_row_comes_twice(tmp_path: Path, later: str, new: int) -> None:
    (tmp_path / "files").mkdir()
    path = tmp_path / "files/a.csv"
    source = FolderSource(tmp_path / "files")
    path.write_text("time,a,b\n" + rows_of(0, 5))
    first = read_once(source, None)
    path.write_text("time,a,b\n" + later)
    second = read_once(source, getattr(first[-1], "position", None))
    before, _ = recorded(first, tmp_path / "b.sqlite")
    got, status = recorded(second, tmp_path / "b.sqlite")
    assert len(got) == len(before) + new
    assert status.get("clock went back", 0) == 0
    assert all(values == [t, -t] for t, values in got.items())


def test_a_file_that_cannot_be_read_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,a,b\n" + rows_of(0, 5))
    (tmp_path / "b.csv").write_text("time,x\n1,2\n")
    (tmp_path / "c.csv").write_text("time,a,b\n" + rows_of(5, 8) + "time,b,a\n" + rows_of(8, 9))
    (tmp_path / "d.csv").write_text("x" * 100_000)
    (tmp_path / "e.csv").write_text("time,a,b\n" + rows_of(9, 10))
    events = read_once(FolderSource(tmp_path), None)
    assert [event.time - BEGIN for event in events if isinstance(event, Update)] == [*range(8), 9]
    refused = [event.subject for event in events if isinstance(event, Refusal)]
    assert refused == ["b.csv", "c.csv", "d.csv"]


def test_a_row_without_an_end_is_named_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedfloor.sensors import folder as module

    monkeypatch.setattr(module, "UNFINISHED_S", -1.0)
    path = tmp_path / "a.csv"
    path.write_text("time,a,b\n" + rows_of(0, 2).rstrip("\n"))
    stop = threading.Event()
    seen = list[Event]()
    for event in FolderSource(tmp_path).events(NAMES, stop, None):
        if isinstance(event, Refusal):
            path.write_text("time,a,b\n" + rows_of(0, 2))
        if event is not Signal.IDLE:
            seen.append(event)
        if len(seen) == 3:
            stop.set()
    assert [type(event) for event in seen] == [Update, Refusal, Update]


# -- large numbers, and sensors without values -------------------------------------------------------------------------


def test_large_whole_numbers_keep_their_variation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    big = 2**40
    events = [Update(BEGIN + t, {"a": big + t, "b": 2**62 + t}) for t in range(50)]
    got, _ = recorded(events, tmp_path / "b.sqlite", offsets={"b": 2**62})
    assert [*got.values()] == [[big + t, t] for t in range(50)]
    assert f"[offsets] a = {big}" in caplog.text  # a model's input is single precision
    assert "'b'" not in caplog.text


def test_a_buffer_of_an_earlier_version_is_converted(tmp_path: Path) -> None:
    import sqlite3

    into = tmp_path / "b.sqlite"
    recorded([Update(BEGIN, {"a": 1.5, "b": 2.5})], into)
    with sqlite3.connect(into) as base:
        base.execute("UPDATE rows SET x = ?", (np.array([1.5, 2.5], "<f4").tobytes(),))
        base.execute("UPDATE about SET value = 'fedfloor sensors 1' WHERE key = 'format'")
    assert buffer.read(into).x.tolist() == [[1.5, 2.5]]
    got, _ = recorded([Update(BEGIN + 1, {"a": 2.0**40 + 1})], into)
    agree(got, {0: [1.5, 2.5], 1: [2.0**40 + 1, NAN]})


def test_a_sensor_without_a_value_is_named_with_the_nearest_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = MessageReader(MqttSource(Broker("host")), {"plant": ["#a", "#tmep"]})
    body = json.dumps({"a": 1, "temp": 2, "time": BEGIN}).encode()
    _, status = recorded(
        reader.read("plant", body, False), tmp_path / "b.sqlite", tags={"a": "plant#a", "b": "plant#tmep"}
    )
    assert status["silent"] == ["b"]
    assert "Did you mean 'plant#temp'" in caplog.text


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4), st.binary(max_size=30), st.booleans())
def test_no_message_raises_an_error(document: dict[str, object], data: bytes, retained: bool) -> None:
    for wanted in ({}, {"t": ["#a.b", "#"]}, {"t": [""]}):
        reader = MessageReader(MqttSource(Broker("host")), wanted)
        for body in (json.dumps(document).encode(), data):
            for event in reader.read("t", body, retained):
                assert isinstance(event, Update | Refusal)
                if isinstance(event, Update):
                    assert not any(isinstance(value, Missing) for value in event.values.values())


# -- a query -----------------------------------------------------------------------------------------------------------


def test_rows_of_an_answer_that_are_left_out_are_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedfloor.sensors import query

    table = [(1, 1), (2, 2), (2, 22), (1.5, 15), (None, 9), (3, None), (4, Decimal(2**60 + 1)), (5, [1]), (6, b"x")]

    @contextmanager
    def answer(_: object, __: str, since: Any) -> Iterator[Iterator[dict[str, object]]]:
        later = [(t, a) for t, a in table if t is None or BEGIN + t > since]
        yield ({"time": None if t is None else BEGIN + t, "a": a} for t, a in later)

    monkeypatch.setattr(query, "answer", answer)
    source = query.QuerySource("sqlite:///plant.db", "SELECT :since", 0, every_s=0.1)
    stop = threading.Event()
    events = list[Event]()
    idle = 0
    for event in source.events(["a"], stop, None):
        events += [] if event is Signal.IDLE else [event]
        idle += event is Signal.IDLE
        if idle == 3:
            stop.set()
    got, status = recorded(events, tmp_path / "b.sqlite", ["a"], offsets={"a": 2**60})
    wanted = {1: 1 - 2**60, 2: 2 - 2**60, 3: NAN, 4: 1, 5: NAN, 6: NAN}
    agree(got, {t: [value] for t, value in wanted.items()})
    assert status["left_out"] == {"a time that is not later than the row before": 2, "no time": 1}
    assert status["missing"] == {"null": 1, "list": 1, "bytes": 1}


# -- --check, and messages that a broker retains -----------------------------------------------------------------------


class Reports:
    """A source that reports some events."""

    kind = "reports"

    def __init__(self, *events: Event) -> None:
        self._events = events

    def events(self, _: Sequence[str], stop: threading.Event, __: str | None) -> Iterator[Event]:
        yield from self._events
        while not stop.wait(0.05):
            yield Signal.IDLE


@pytest.mark.parametrize(
    ("value", "kind", "usable"),
    [
        (1.5, "number", True),
        (True, "number", True),
        (2**70, "number", True),
        (None, "null", False),
        ("hot", "text", False),
        ([1], "list", False),
        ({"b": 1}, "object", False),
        (NAN, "number", False),
        (datetime(2026, 1, 1), "time", False),
        (Missing("status Bad"), "status Bad", False),
    ],
)
def test_check_names_sensors_without_a_number(value: object, kind: str, usable: bool) -> None:
    what = SenseSettings(Reports(Update(BEGIN, {"a": value})), tags={"a": "a"})  # type: ignore[arg-type]
    (row,) = sense.check(what, 5)
    assert row["kind"] == kind
    assert (row["note"] is None) == usable
    json.dumps(row, allow_nan=False)


def test_check_suggests_an_address_for_one_that_never_occurs_and_ends(command: Command) -> None:
    events = (Update(BEGIN, {"a": 1}, others=["plant#temp", "x" * 100_000]),)
    what = SenseSettings(Reports(*events), tags={"a": "a", "b": "plant#tmep"})  # type: ignore[arg-type]
    first, second = sense.check(what, 0.5)
    assert (first["note"], second["kind"]) == (None, "no value")
    assert "Did you mean 'plant#temp'" in second["note"]
    path = command.folder / "s.toml"
    (command.folder / "files").mkdir()
    (command.folder / "files/a.csv").write_text(f"time,a,state\n{BEGIN},1,ok\n")
    for tag, code in (("a", 0), ("state", 1)):
        path.write_text(f'[source]\nkind = "folder"\npath = "files"\n[tags]\nsensor = "{tag}"\n')
        assert command("park", "sense", str(path), "--check").code == code


@needs_mosquitto
@pytest.mark.slow
def test_what_a_broker_retained_is_no_new_row(tmp_path: Path) -> None:
    from test_sensors_folder import sensing
    from test_sensors_mqtt import publisher

    path = tmp_path / "s.toml"
    with open_broker(tmp_path) as port:
        path.write_text(
            f'[source]\nkind = "mqtt"\ntime = ""\nbroker = {{ host = "127.0.0.1", port = {port} }}\n'
            '[tags]\na = "plant/a#a"\nb = "plant/b"\n'
        )
        client = publisher(port)
        for topic, body in (("plant/a", b'{"a": 99}'), ("plant/b", b"77")):
            client.publish(topic, body, qos=1, retain=True).wait_for_publish(10)
        for number in (0, 1):
            with sensing(path, tmp_path / "b.sqlite") as end:
                assert until((tmp_path / "b.sqlite").exists, 20)
                time.sleep(2)
                client.publish("plant/b", str(number), qos=1).wait_for_publish(10)
                time.sleep(1)
                status = end()
            assert status["rows"] == number + 1
    assert buffer.read(tmp_path / "b.sqlite").x.tolist() == [[99, 0], [99, 1]]
