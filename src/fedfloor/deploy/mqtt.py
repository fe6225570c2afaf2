"""The connection of a process to its MQTT broker, which reconnects after a failure, and the topics of a park."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fedfloor.base.errors import SettingError
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy.settings import Endpoint, Tls

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessageInfo

    from fedfloor.base.mqtt_client import BoundedClient

ROOT = "fedfloor"
RETAINED = ("status", "release", "model", "serving")  # topics whose retained message a new subscriber receives


def topic(park: str, kind: str, *names: str | int) -> str:
    """Return a topic of a park, of one of these kinds, with the names in it:

    - ``in/EDGE/DEVICE`` and ``out/DEVICE/EDGE``: an edge's requests to a device, and its answers;
    - ``status/DEVICE``: a device's retained status, and its last will;
    - ``release/DEVICE`` and ``model/SHA256/PIECE``: releases of models;
    - ``serving``, ``predictions`` and ``alarms/DEVICE``: reports, answers and alarms of a released model.

    A name "+" stands for all names.

    >>> topic("trial", "in", "north", "press-1")
    'fedfloor/trial/in/north/press-1'
    """
    return "/".join((ROOT, park, kind, *map(str, names)))


def topic_parts(topic: str) -> tuple[str, tuple[str, ...]]:
    """Return the purpose of a topic and the names in it; the purpose is "" for a foreign topic.

    >>> topic_parts("fedfloor/trial/out/press-1/north")
    ('out', ('press-1', 'north'))
    """
    root, *rest = topic.split("/")
    return (rest[1], tuple(rest[2:])) if root == ROOT and len(rest) > 1 else ("", ())


PACKET_BYTES = 1 << 18  # largest packet: longer messages are split, so that a broker's limit can be low
ENVELOPE = 1 << 16  # bytes of topic and header in addition to a payload
PIECE = struct.Struct(">4s8sQQ")  # magic, id of the transmission, offset of the piece, size of the message
PIECE_MAGIC = b"FEDP"


def pieces(payload: bytes) -> Iterator[bytes]:
    """Yield a message as packets of less than :data:`PACKET_BYTES`; a short message is one packet, unchanged."""
    if len(payload) < PACKET_BYTES:
        yield payload
        return
    transmission = os.urandom(8)
    view = memoryview(payload)
    room = PACKET_BYTES - PIECE.size - 1
    for start in range(0, len(payload), room):
        yield PIECE.pack(PIECE_MAGIC, transmission, start, len(payload)) + view[start : start + room]


def beginning(packet: bytes) -> bytes:
    """Return what a packet holds of the beginning of a message; nothing of a later piece."""
    if packet[: len(PIECE_MAGIC)] != PIECE_MAGIC or len(packet) <= PIECE.size:
        return packet
    return packet[PIECE.size :] if PIECE.unpack_from(packet)[2] == 0 else b""


@dataclass
class PartialMessage:
    """A message whose first pieces have arrived."""

    transmission: bytes
    size: int
    data: bytearray = field(default_factory=bytearray)
    began: float = field(default_factory=time.monotonic)


class Assembler:
    """A buffer that joins the pieces of messages, one incomplete message per topic, as each topic has one writer.

    A message with a lost piece is dropped; its request is repeated after the next connection.

    Args:
        room: limit on the bytes of all incomplete messages, beyond which the oldest are dropped; default: no limit.

    Attributes:
        took_s: the time from the first to the last piece of the last complete message, s.

    >>> assembler, sent = Assembler(), bytes(1_000_000)
    >>> [one for one in (assembler.add("t", packet, 1 << 20) for packet in pieces(sent)) if one] == [sent]
    True
    """

    def __init__(self, room: float = math.inf) -> None:
        self._room = room
        self.took_s = 0.0
        self._partial = dict[str, PartialMessage]()

    def add(self, topic: str, packet: bytes, most: int) -> bytes | None:
        """Return the message that a packet completes, or None.

        Args:
            most: largest size of a split message in bytes.

        Raises:
            RefusedError: the message is larger, or longer than its first piece states.
        """
        if packet[: len(PIECE_MAGIC)] != PIECE_MAGIC:
            self.took_s = 0.0
            return packet
        if len(packet) <= PIECE.size:
            raise RefusedError("truncated", f"{len(packet)} bytes are too few for a piece of a message.")
        _, transmission, start, size = PIECE.unpack_from(packet)
        known = self._partial.get(topic)
        if start == 0 and (known is None or known.transmission != transmission):
            self._partial.pop(topic, None)
            if size > most:
                raise RefusedError("oversized", f"{size} bytes in pieces; at most {most} are accepted.")
            known = self._partial[topic] = PartialMessage(transmission, size)
        if known is None or (known.transmission, known.size, len(known.data)) != (transmission, size, start):
            return None  # an earlier piece was lost, or this one arrived twice
        if start + len(packet) - PIECE.size > size:
            del self._partial[topic]
            raise RefusedError("oversized", f"its pieces have more than the {size} bytes that its first piece states.")
        known.data += memoryview(packet)[PIECE.size :]
        if len(known.data) < size:
            self._make_room()
            return None
        del self._partial[topic]
        self.took_s = time.monotonic() - known.began
        return bytes(known.data)

    def _make_room(self) -> None:
        while sum(max(len(one.data), PACKET_BYTES) for one in self._partial.values()) > self._room:
            del self._partial[next(iter(self._partial))]


log = logging.getLogger(__name__)

KEEP_ALIVE_S = 30  # the broker publishes a silent device's last will after 1.5 times that; TCP retries for 0.6 · 2^n s
LONGEST_WAIT_S = 30.0
TOPICS = 1000  # largest packet of subscriptions, as brokers limit it
STEADY_S = 5.0  # a connection that ends sooner has failed
SHORT = 3  # so many failures in a row are logged
# why a process is gone: by its last will, by its own goodbye
LOST = "lost"
LEFT = "left"
KEPT = 4  # requests or answers on a topic that the broker need not have acknowledged, whatever their length
MOST_KEPT = 64  # more of them, while they are short
MOST_KEPT_BYTES = 1 << 24  # older ones have expired
CONFIRMATION = f"{ROOT}/confirmation"  # a topic without subscribers
Receive = Callable[[str, bytes], None]


def nothing() -> None:
    """Do nothing."""


class Connection(Protocol):
    """A connection to a broker."""

    def start(
        self, topics: Sequence[str], receive: Receive, connected: Callable[[], None], lost: Callable[[], None] = nothing
    ) -> None:
        """Connect in a thread of its own, and reconnect after each failure.

        Args:
            topics: the subscribed topics.
            receive: called with topic and payload of each packet, one after the other; see :class:`Assembler`.
            connected: called after each connection and its subscriptions.
            lost: called after the end of each connection, unless :meth:`stop` ended it.
        """
        ...

    def confirm(self, do: Callable[[], None]) -> None:
        """Call ``do`` once the broker has answered a packet sent now; never if the connection ends before.

        A broker that is stopped publishes the last wills of all its clients, and reads no more packets. What ``do``
        does therefore only happens if a message came from a broker that continues to run.
        """
        ...

    def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe to more topics, also after the next connection."""
        ...

    def unsubscribe(self, topics: Sequence[str]) -> None:
        """Unsubscribe from topics, also after the next connection."""
        ...

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish a message; without a connection, after the next one is made."""
        ...

    def stop(self) -> None:
        """Publish the remaining messages, and disconnect without a last will."""
        ...


def pause_s(attempt: int) -> float:
    """Return the wait before the n-th attempt in a row, in s, which doubles up to :data:`LONGEST_WAIT_S`.

    >>> [pause_s(n) for n in (0, 1, 2, 20)]
    [0.2, 0.4, 0.8, 30.0]
    """
    return min(LONGEST_WAIT_S, 0.2 * 2.0 ** min(attempt, 30))


class MqttConnection:
    """A connection to a broker by MQTT 5 that delivers every message at least once.

    Args:
        name: the client's name, equal to its certificate's.
        broker: address of the broker.
        tls: certificates; None: the connection is not encrypted.
        will: topic and payload that the broker publishes, retained, if this process ends without :meth:`stop`.
        wait: sleeps for a time in s, but returns early after :meth:`stop`.

    Attributes:
        unacknowledged: messages that the broker has not acknowledged yet.
        forbidden: messages that the broker's access list does not allow.
    """

    def __init__(
        self, name: str, broker: Endpoint, tls: Tls | None = None, will: tuple[str, bytes] | None = None,
        wait: Callable[[float], object] | None = None,
    ) -> None:  # fmt: skip
        self._broker = broker
        self._stopped = threading.Event()
        self._wait = wait or self._stopped.wait
        self._client = _make_client(name, tls, will)
        self._tls = tls
        # the cause of the last failure
        self._alert = ""
        self._name = name
        self._lost: Callable[[], None] = nothing
        self._thread = threading.Thread(target=self.stay_connected, name=f"link of {name}", daemon=True)
        self.connections = self.unacknowledged = self.forbidden = 0
        self._counting = threading.Lock()
        self._added: set[int] = set()  # ids of subscriptions made after the connection
        self._confirming: dict[int, Callable[[], None]] = {}  # id of a packet → what its answer allows
        self._topics: tuple[str, ...] = ()
        self._saying = threading.Lock()  # keeps the pieces of a message together
        self._sent: dict[
            str, deque[tuple[int, list[MQTTMessageInfo]]]
        ] = {}  # topic → length and pieces of its last messages

    @property
    def connected(self) -> bool:
        """Whether the process is connected."""
        return self._client.is_connected()

    def start(
        self, topics: Sequence[str], receive: Receive, connected: Callable[[], None], lost: Callable[[], None] = nothing
    ) -> None:
        """Connect and stay connected."""

        def on_connect(client: Client, _data: object, _flags: object, reason: Any, _properties: object) -> None:
            if reason.is_failure:
                log.error(
                    "%s refused the connection: %s. Check the certificate and the broker's access list.",
                    self._broker,
                    reason,
                )
                return
            self.connections += 1
            subscriptions = [(topic, subscribe_options(topic)) for topic in self._topics]
            parts = [subscriptions[i : i + TOPICS] for i in range(0, len(subscriptions), TOPICS)]
            numbers = [client.subscribe(part)[1] or 0 for part in parts]
            self._added |= {*numbers[:-1]}
            if not subscriptions:
                call_handler(connected)

        self._topics = tuple(topics)
        self._lost = lost
        self._client.on_connect = on_connect
        self._client.on_log = self.note_alert
        self._client.on_publish = self._acknowledged
        self._client.on_subscribe = lambda _client, _data, number, *_: self._subscribed(number, connected)
        self._client.on_unsubscribe = lambda _client, _data, number, *_: self._confirmed(number)
        self._client.listen(lambda topic, payload, _: call_handler(lambda: receive(topic, payload)))
        self._thread.start()

    def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe to more topics."""
        self._topics = tuple(dict.fromkeys((*self._topics, *topics)))
        self._added.add(self._client.subscribe([(topic, subscribe_options(topic)) for topic in topics])[1] or 0)

    def _subscribed(self, number: int, joined: Callable[[], None]) -> None:
        if number not in self._added:
            call_handler(joined)
        self._added.discard(number)

    def unsubscribe(self, topics: Sequence[str]) -> None:
        """Unsubscribe from topics."""
        self._topics = tuple(one for one in self._topics if one not in topics)
        self._client.unsubscribe(list(topics))

    def confirm(self, do: Callable[[], None]) -> None:
        """Call ``do`` after the broker's answer; for a handler, which this connection's thread calls."""
        number = self._client.unsubscribe(CONFIRMATION)[1]
        if number is not None:
            self._confirming[number] = do

    def _confirmed(self, number: int) -> None:
        if (do := self._confirming.pop(number, None)) is not None:
            call_handler(do)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish; a request or an answer that the broker does not acknowledge is dropped after the next few."""
        with self._saying:
            sent = []
            for packet in pieces(payload):
                with self._counting:
                    self.unacknowledged += 1
                sent.append(self._client.publish(topic, packet, qos=1, retain=retain))
            if topic_parts(topic)[0] in ("in", "out"):
                self._forget_before(topic, len(payload), sent)

    def _forget_before(self, topic: str, length: int, sent: list[MQTTMessageInfo]) -> None:
        messages = self._sent.setdefault(topic, deque())
        messages.append((length, sent))
        while len(messages) > MOST_KEPT or (
            len(messages) > KEPT and sum(length for length, _ in messages) > MOST_KEPT_BYTES
        ):
            dropped = self._client.forget(messages.popleft()[1])
            with self._counting:
                self.unacknowledged -= dropped

    def _acknowledged(self, _client: Client, _data: object, _number: int, reason: Any, _properties: object) -> None:
        with self._counting:
            self.unacknowledged -= 1
            self.forbidden += bool(reason.is_failure)

    def stop(self) -> None:
        """Publish the remaining messages, and disconnect."""
        until = time.monotonic() + 2.0
        while self._client.want_write() and time.monotonic() < until:
            time.sleep(0.01)
        self._stopped.set()
        self._client.disconnect()
        self._thread.join(timeout=5.0)

    def note_alert(self, _client: Client, _data: object, _level: int, text: str) -> None:
        """Store a TLS alert, as in TLS 1.3 a broker refuses a certificate only after the handshake."""
        if "[SSL" in text:
            self._alert = text[text.index("[SSL") :]

    def reason(self) -> str:
        """Return the reason of a missing connection as text."""
        if "[SSL" not in self._alert:
            return f"broker {self._broker} cannot be reached: {self._alert}."
        from fedfloor.deploy.authority import refusal

        return refusal(self._alert, str(self._broker), self._tls.cert if self._tls else None)

    def stay_connected(self) -> None:
        """Reconnect after each failure until :meth:`stop`."""
        client = self._client
        limits = self._client.limits()
        attempt = 0
        told = ""
        short = 0
        while not self._stopped.is_set():
            before = self.connections
            began = time.monotonic()
            self._alert = "it closed the connection"
            try:
                client.connect(self._broker.host, self._broker.port, KEEP_ALIVE_S, clean_start=True, properties=limits)
                while client.loop(1.0) == 0:  # unlike loop_forever, loop wakes up for an outgoing message
                    pass
            except Exception as error:  # malformed packets must not end this thread
                self._alert = str(error)
            self._confirming.clear()
            if self.connections > before and not self._stopped.is_set():
                call_handler(self._lost)
            if self.connections > before and time.monotonic() - began >= STEADY_S:
                attempt = 0
                told = ""
                short = 0
            elif self.connections > before and not client.violation:
                short += 1
                if short == SHORT:
                    log.error(  # a broker keeps one connection per name
                        "%s: broker %s ended %d connections as soon as they were made. If two devices have this name, "
                        "give each a certificate of its own; if only one has it, its key was copied: revoke it.",
                        self._name, self._broker, SHORT,
                    )  # fmt: skip
            elif not self._stopped.is_set() and told != self._alert:
                told = self._alert
                log.warning("%s It is retried until it succeeds.", self.reason())
            if not self._stopped.is_set():
                self._wait(pause_s(attempt))
                attempt += 1


def call_handler(do: Callable[[], object]) -> None:
    """Call a handler and log its errors, which must not end the connection's thread."""
    try:
        do()
    except Exception:
        log.exception("handling a message failed")


def subscribe_options(topic: str) -> Any:
    """Return the options of a subscription, by which only statuses and released models are received as retained."""
    from paho.mqtt.subscribeoptions import SubscribeOptions

    retained = topic_parts(topic)[0] in RETAINED
    handling = SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE if retained else SubscribeOptions.RETAIN_DO_NOT_SEND
    return SubscribeOptions(qos=1, noLocal=True, retainHandling=handling)


def _make_client(name: str, tls: Tls | None, will: tuple[str, bytes] | None) -> BoundedClient:
    try:
        from fedfloor.base.mqtt_client import BoundedClient
    except ImportError as error:
        raise SettingError("real machines need paho-mqtt: pip install 'fedfloor[deploy]'.") from error
    made = BoundedClient(name, PACKET_BYTES + ENVELOPE, reconnects=False)
    made.on_socket_open = lambda _client, _data, opened: send_at_once(opened)
    # Only the link's own thread may write: two threads corrupt a TLS connection ("bad record mac").
    made.on_socket_register_write = lambda *_: None
    made.max_queued_messages_set(0)
    if tls is not None:
        made.tls_set(str(tls.ca), str(tls.cert), str(tls.key))
    if will is not None:
        made.will_set(will[0], will[1], qos=1, retain=True)
    return made


def send_at_once(opened: Any) -> None:
    """Set TCP_NODELAY, as small messages would otherwise be delayed by 40 ms each."""
    with contextlib.suppress(OSError):
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
