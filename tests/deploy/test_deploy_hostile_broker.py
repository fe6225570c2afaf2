"""A broker that breaks the rules, byte by byte: its clients close the connection, and their memory stays bounded."""

from __future__ import annotations

import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count, cycle, islice
from pathlib import Path

import pytest
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from fedfloor.base.mqtt_client import RECEIVED, BoundedClient
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import checks, mqtt
from fedfloor.deploy.checks import MessageFilter
from fedfloor.deploy.mqtt import PACKET_BYTES, Assembler, MqttConnection, pieces
from fedfloor.deploy.settings import Endpoint
from fedfloor.sensors.events import Inbox
from fedfloor.sensors.mqtt import Broker, connected
from live_park import experiment, live
from parks import until

# bytes beyond which a client has kept what it should not
HERE = "127.0.0.1"
MEMORY = 8 << 20
HUGE = bytes([0x30, 0xFF, 0xFF, 0xFF, 0x7F])  # head of a PUBLISH packet of 268,435,455 bytes, MQTT's longest
Hostile = Iterator[bytes]


def publish(topic: bytes, payload: bytes, qos: int = 0, number: int = 1) -> bytes:
    """Return a PUBLISH packet of MQTT 5, section 3.3 of the specification."""
    body = struct.pack(">H", len(topic)) + topic + (struct.pack(">H", number) if qos else b"") + b"\0" + payload
    length = len(body)
    head = bytearray([0x30 | qos << 1])
    while True:
        head.append(length % 128 | (0x80 if length > 127 else 0))
        length //= 128
        if not length:
            return bytes(head) + body


class FakeBroker:
    """Accepts connections, confirms the first subscription, and then sends what a test makes up.

    Attributes:
        taken: bytes that the network took of it, by connection.
        connects: CONNECT packets.
    """

    def __init__(self, hostile: Callable[[], Hostile]) -> None:
        self._hostile = hostile
        self.taken = list[int]()
        self.connects = list[bytes]()
        self._server = socket.create_server((HERE, 0))
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # what it does not read is soon not taken
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._serve(self._server.accept()[0])

    def _serve(self, peer: socket.socket) -> None:
        with peer, suppress(OSError):
            self.connects.append(peer.recv(4096))
            peer.sendall(bytes([0x20, 3, 0, 0, 0]))
            number = peer.recv(4096)[2:4]
            peer.sendall(bytes([0x90, 4]) + number + bytes([0, 1]))
            self.taken.append(0)
            for some in self._hostile():
                peer.sendall(some)
                self.taken[-1] += len(some)
            while peer.recv(4096):
                pass

    def close(self) -> None:
        self._server.close()


@contextmanager
def listening(hostile: Callable[[], Hostile]) -> Iterator[tuple[FakeBroker, MqttConnection, list[str]]]:
    """A process of a park, connected to a broker that is in wrong hands."""
    broker = FakeBroker(hostile)
    heard = list[str]()
    link = MqttConnection("press-1", Endpoint(HERE, broker.port), wait=lambda _: stopped.wait(0.05))
    stopped = threading.Event()
    link.start(["a"], lambda topic, _: heard.append(topic), lambda: None)
    try:
        yield broker, link, heard
    finally:
        stopped.set()
        link.stop()
        broker.close()


def endless(packet: bytes, head: bytes = b"") -> Callable[[], Hostile]:
    """A head and then a packet again and again, 256 MB of it."""

    def sent() -> Hostile:
        many = packet * max(1, (1 << 16) // len(packet))
        yield head
        yield from islice(cycle([many]), (1 << 28) // len(many))

    return sent


def numbered(qos: int) -> Callable[[], Hostile]:
    """Messages of 8 KiB that are never released."""
    return lambda: (publish(b"a", bytes(8192), qos, 1 + i % 65_535) for i in range(32_768))


BROKEN = {
    "268435455 bytes": endless(bytes(1 << 16), HUGE),
    "327681 bytes": lambda: iter([publish(b"a", bytes(PACKET_BYTES + (1 << 16) - 3))]),
    "QoS 2": numbered(2),
    "did not read the last 1000": endless(publish(b"a", b"", 1)),  # each of 6 bytes costs the client a queued packet
    "not read the last 1000": endless(bytes([0xC0, 0])),  # PINGREQ
}


@pytest.mark.parametrize("flaw", BROKEN)
def test_a_broker_that_breaks_a_limit_loses_the_connection(
    flaw: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def little(opened: socket.socket) -> None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # else the machine takes 2 MB of acknowledgements

    monkeypatch.setattr(mqtt, "send_at_once", little)
    tracemalloc.start()
    try:
        with listening(BROKEN[flaw]) as (broker, link, _):
            assert until(lambda: len(broker.connects) >= 3, 60)  # closed each time, and tried again
            peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY
    assert flaw in link._client.violation
    lines = [one.getMessage() for one in caplog.records if "The connection is closed." in one.getMessage()]
    assert len(lines) == 1
    assert flaw in lines[0]
    assert f"broker {HERE}:{broker.port}" in lines[0]
    assert "two devices have this name" not in caplog.text
    assert max(broker.taken) < 1 << 24  # what the machine's own buffers took


def test_a_broker_that_acknowledges_nothing_does_not_fill_the_memory() -> None:
    """Every request that expires would stay in the client, a model for each device and round."""
    with listening(lambda: iter(())) as (broker, link, _):
        assert until(lambda: link.connected)
        tracemalloc.start()
        for _ in range(60):
            link.publish("fedfloor/p/in/north/press-1", bytes(1 << 23))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # besides those kept: the message, its pieces, what of them is in flight, and MEMORY; without a limit it is 60
        assert peak < MEMORY + (mqtt.KEPT + 4) * (1 << 23)
        sent = mqtt.KEPT * len(list(pieces(bytes(1 << 23))))
        assert sent <= link.unacknowledged <= sent + 20  # those in flight stay
        assert broker.connects


def test_messages_that_are_sent_or_acknowledged_are_not_dropped() -> None:
    taken: list[bytes] = []

    def send(*given: object, **_: object) -> MQTTErrorCode:
        taken.append(given[2])  # type: ignore[arg-type]
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    client = BoundedClient("n", 1 << 20, reconnects=False)
    client._send_publish = send  # type: ignore[method-assign]
    sent = [client.publish("t", str(number), qos=1) for number in range(30)]
    assert [int(one) for one in taken] == list(range(20))  # as many as may be in flight
    assert client.forget(sent) == 10
    assert client.forget(sent) == 0
    client._do_on_publish(sent[0].mid, ReasonCode(PacketTypes.PUBACK), Properties(PacketTypes.PUBACK))
    for number in range(2):
        client._last_mid = sent[25 + number].mid - 1
        client.publish("t", "with a number that is used again", qos=1)
    assert len(client._out_messages) == 21  # one in flight, one behind it
    assert client.forget(sent) == 0


def test_limits_are_requested_of_the_broker_too() -> None:
    with listening(lambda: iter([])) as (broker, _, _):
        assert until(lambda: bool(broker.connects), 10)
    assert b"\x27" + struct.pack(">I", PACKET_BYTES + (1 << 16)) in broker.connects[0]  # maximum packet size
    assert b"\x21" + struct.pack(">H", RECEIVED) in broker.connects[0]  # receive maximum


def test_messages_with_topics_of_no_park_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    def sent() -> Hostile:
        for topic in (b"a" * 65_535, b"\xff\xfe", b"b" * 1001, b"a" * 1000):
            yield publish(topic, b"x")

    with listening(sent) as (_, _, heard):
        assert until(lambda: heard == ["a" * 1000], 10)
    assert caplog.text == ""


def test_pieces_on_endless_topics_take_no_more_than_their_room() -> None:
    assembler = Assembler(8 * PACKET_BYTES)
    room = 1 << 20
    tracemalloc.start()
    try:
        for i in range(200):
            first, second, *_ = pieces(bytes(room))
            assert assembler.add(f"in/{i}/press-1", first, room) is None
            assert assembler.add(f"in/{i}/press-1", second, room) is None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * 8 * PACKET_BYTES + 3 * room
    sent = bytes(room)
    assert [one for one in (assembler.add("in/e/press-1", piece, room) for piece in pieces(sent)) if one] == [sent]


def test_a_sensors_broker_is_held_to_the_same_limits(caplog: pytest.LogCaptureFixture) -> None:
    tracemalloc.start()
    broker = FakeBroker(lambda: BROKEN[("268435455 bytes", "QoS 2")[next(turns) % 2]]())
    inbox = None
    turns = count()
    inbox = Inbox(threading.Event())
    try:
        with connected(Broker(HERE, broker.port), ["a"], inbox, lambda *_: []) as client:
            client.reconnect_delay_set(1, 1)
            assert until(lambda: len(broker.connects) >= 3, 30)
            peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        broker.close()
    assert peak < MEMORY
    assert "QoS 2" in caplog.text
    assert "268435455 bytes" in caplog.text


def test_senders_that_a_broker_makes_up_fill_neither_memory_nor_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with live(tmp_path, experiment(tmp_path, "fedavg", devices=2)) as park:
        agent = park.agents[0]
        caplog.clear()
        for n in range(20_000):
            agent.receive(mqtt.topic("trial", "in", f"e{n + 9}\nERROR all is lost", "d0"), b"x")
        assert agent.filter.counts() == {checks.STRANGER: {"edge": 20_000}}
    said = [record.getMessage() for record in caplog.records]
    assert len(said) < 40
    assert all("\n" not in line for line in said)


def test_senders_and_reasons_are_counted_up_to_a_limit() -> None:
    made = MessageFilter()
    for n in range(2 * checks.MOST_COUNTED):
        made.refuse(f"d{n}", RefusedError("form", "x"))
    assert len(made.refused) == checks.MOST_COUNTED + 1
    assert made.refused.total() == 2 * checks.MOST_COUNTED
    assert made.refused[checks.STRANGER, "form"] == checks.MOST_COUNTED
    made.refuse("d0", RefusedError("form", "x"))
    assert made.refused["d0", "form"] == 2
