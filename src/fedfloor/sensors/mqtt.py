"""MQTT topics with messages in JSON, or with a single number."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedfloor.errors import SettingError, require, require_private
from fedfloor.sensors.events import Event, Inbox, Signal, Update, seconds, secret, warn_once

if TYPE_CHECKING:
    from fedfloor.mqtt_client import BoundedClient

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 15
EXPIRY_S = 7 * 86400  # time for which a broker keeps messages for this client
PACKET_KB, ENVELOPE = 4096, 1 << 16  # brokers send no larger messages; bytes of topic and header beside a payload
DEEPEST = 8  # nested objects in an address or in the list of --check, at most
MOST_FIELDS = 2_000  # listed of a message, at most
TOPIC = re.compile(r"[^\x00+#]{1,1000}")
FILTER = re.compile(r"(\+|[^\x00+#/]*)(/(\+|[^\x00+#/]*))*(/#)?|#")


@dataclass(frozen=True)
class Broker:
    """The settings of a connection to an MQTT broker.

    Args:
        host: the broker's name or address.
        port: by default 8883 with ``ca``, otherwise 1883.
        client: this client's name, unique for each process; the broker keeps messages for it while it is away.
        user: the user name.
        password: ``$NAME`` of the environment variable with the password.
        ca, cert, key: for TLS: the authority's certificate and, if the broker requires them, this client's certificate
            and key.
        plain: accept that the password travels without TLS.
        max_kb: the size above which messages are left out, in KiB.
    """

    host: str
    port: int | None = None
    client: str = ""
    user: str | None = None
    password: str | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    plain: bool = False
    max_kb: int = 256

    def __post_init__(self) -> None:
        require(bool(self.host), "source.broker.host", self.host, "a name or an address")
        require(self.port is None or 1 <= self.port <= 65535, "source.broker.port", self.port, "from 1 to 65535")
        require(1 <= self.max_kb <= 65536, "source.broker.max_kb", self.max_kb, "from 1 to 65,536")
        require((self.cert is None) == (self.key is None), "source.broker.cert", self.cert, "given with key")
        require(self.cert is None or self.ca is not None, "source.broker.cert", self.cert, "given with ca, for TLS")
        require(self.password is None or self.user is not None, "source.broker.user", self.user, "given with password")
        require_private(
            "source.broker.password", "Give ca, the broker's authority, for TLS; or accept it with plain = true.",
            private=self.password is None or self.ca is not None or self.plain,
        )  # fmt: skip


@dataclass(frozen=True)
class MqttSource:
    """Topics of a broker; an address is ``TOPIC#FIELD.FIELD``, or ``TOPIC`` for messages that are numbers.

    Args:
        broker: the broker of the topics.
        time: the field of a message with its time; "" for the time of its arrival.
        unit: the unit of times that are numbers.
        topics: the topics for ``--check`` without tags, such as ``plant/press-1/#``.
    """

    broker: Broker
    time: str = "time"
    unit: Literal["s", "ms", "us", "ns"] = "s"
    topics: tuple[str, ...] = ()
    kind: Literal["mqtt"] = "mqtt"

    def __post_init__(self) -> None:
        for topic in self.topics:
            require(bool(FILTER.fullmatch(topic)), "source.topics", topic, "a topic, or a filter such as 'plant/#'")

    def events(
        self, addresses: Sequence[str], stop: threading.Event, position: str | None  # noqa: ARG002
    ) -> Iterator[Event]:  # fmt: skip
        """Yield an update for each message."""
        wanted: dict[str, list[str]] = {}
        for address in addresses:
            topic, mark, field = address.partition("#")
            if not TOPIC.fullmatch(topic) or "#" in field:
                raise SettingError(
                    f"tags: '{address}' is no address: TOPIC#FIELD, or only TOPIC, without wildcards (+, #), because "
                    "a sensor is a value of a single topic."
                )
            wanted.setdefault(topic, []).append(mark + field)
        topics = [*wanted] or [*self.topics]
        if not topics:
            raise SettingError('neither tags nor source.topics are set. Set one, such as topics = ["plant/#"].')
        inbox, warned = Inbox(stop), set[str]()

        def take(topic: str, payload: bytes) -> Iterable[Event]:
            document = parsed(payload)
            if not isinstance(document, dict) and ((wanted and "" not in wanted[topic]) or document is None):
                warn_once(warned, topic, "%s: left out a message that is no JSON object: %.60r", topic, payload)
                return
            if wanted:
                values = {f"{topic}{end}": _at(document, end) for end in wanted[topic]}
            else:
                values = dict(_fields(document, topic))
            moment = time.time()
            if self.time and isinstance(document, dict) and "#" not in wanted.get(topic, ()):
                moment = seconds(document.get(self.time), self.unit) or float("nan")
            values.pop(f"{topic}#{self.time}", None)
            yield Update(moment, values)

        with connected(self.broker, topics, inbox, take):
            yield from inbox.events(lambda: Signal.IDLE)


def parsed(payload: bytes) -> object:
    """Return the content of a message in JSON; None for other messages.

    >>> parsed(b'{"a": [1, NaN]}'), parsed(b"2.5"), parsed(b"{"), parsed(b"[" * 100_000)
    ({'a': [1, nan]}, 2.5, None, None)
    """
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return None


def _at(document: object, end: str) -> object:
    """Return the value of ``#FIELD.FIELD`` in a document; the document itself for ``#`` and ""."""
    names = end[1:].split(".") if end[1:] else []
    for name in names[:DEEPEST]:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _fields(document: object, topic: str) -> Iterator[tuple[str, object]]:
    """Yield the addresses and values of the fields in a document."""
    if not isinstance(document, dict):
        yield topic, document
        return
    left = [(f"{topic}#{name}", value, 1) for name, value in document.items()]
    for address, value, depth in left:  # the list grows during the loop
        if isinstance(value, dict) and depth < DEEPEST and len(left) < MOST_FIELDS:
            left += [(f"{address}.{name}", inner, depth + 1) for name, inner in value.items()]
        elif not isinstance(value, dict | list):
            yield address, value


@contextmanager
def connected(
    broker: Broker, topics: Sequence[str], inbox: Inbox, take: Callable[[str, bytes], Iterable[Event]],
    joined: Callable[[BoundedClient], object] = lambda client: None,  # noqa: ARG005
    lost: Callable[[], None] = lambda: None,
) -> Iterator[BoundedClient]:  # fmt: skip
    """Yield a client subscribed to topics, which reconnects whenever the connection is lost.

    Args:
        take: (topic, payload) → events for the inbox.
        joined: called after each subscription.
        lost: called after each end of a connection.
    """
    client = _client(broker)
    name = f"{broker.host}:{broker.port or (8883 if broker.ca else 1883)}"

    def on_connect(_client: object, _data: object, flags: Any, reason: Any, _properties: object) -> None:
        if reason.is_failure:
            inbox.put(SettingError(f"broker {name} refused this client: {reason}. Check user, password and cert."))
            return
        if not flags.session_present:
            inbox.put(Signal.LOST)
        client.subscribe([(topic, 1) for topic in topics])

    def on_subscribe(_client: object, _data: object, _number: int, reasons: Any, _properties: object) -> None:
        refused = [topic for topic, reason in zip(topics, reasons, strict=False) if reason.is_failure]
        if refused:
            inbox.put(
                SettingError(
                    f"broker {name} refused the subscription to {', '.join(refused)}. Check the user's permissions."
                )
            )
        else:
            joined(client)

    def failed(*_: object) -> None:
        log.warning("broker %s cannot be reached (%s). Attempts continue.", name, sys.exc_info()[1])

    client.on_connect, client.on_subscribe, client.on_connect_fail = on_connect, on_subscribe, failed
    client.listen(_reader(broker, inbox, take))
    client.on_disconnect = lambda _client, _data, _flags, _reason, _properties: lost()
    host, _, port = name.rpartition(":")
    limits = client.limits(EXPIRY_S if broker.client else 0)
    client.connect_async(host, int(port), KEEP_ALIVE_S, clean_start=not broker.client, properties=limits)
    client.loop_start()
    try:
        yield client
    finally:
        inbox.stop.set()
        client.disconnect()
        client.loop_stop()


def _reader(
    broker: Broker, inbox: Inbox, take: Callable[[str, bytes], Iterable[Event]]
) -> Callable[[str, bytes], None]:
    """Return the function that puts the events of each message into the inbox, and names once what it leaves out."""
    warned = set[str]()

    def read(topic: str, payload: bytes) -> None:
        if len(payload) > broker.max_kb * 1024:
            text = "%s: left out a message of %d bytes (broker.max_kb)."
            warn_once(warned, f"{topic} size", text, topic, len(payload))
            return
        try:
            for event in take(topic, payload):
                inbox.put(event)
        except Exception as error:  # any error of a payload must not end the connection's thread
            text = "%s: a message cannot be read (%s: %s)."
            warn_once(warned, topic, text, topic, type(error).__name__, error)

    return read


def _client(broker: Broker) -> BoundedClient:
    try:
        from fedfloor.mqtt_client import BoundedClient
    except ImportError as error:
        raise SettingError("MQTT sources need paho-mqtt: pip install 'fedfloor[sensors]'.") from error
    client = BoundedClient(broker.client, max(PACKET_KB, broker.max_kb) * 1024 + ENVELOPE, reconnects=True)
    client.reconnect_delay_set(1, 30)
    if broker.user is not None:
        password = None if broker.password is None else secret(broker.password, "source.broker.password")
        client.username_pw_set(broker.user, password)
    if broker.ca is not None:
        try:
            client.tls_set(str(broker.ca), str(broker.cert or "") or None, str(broker.key or "") or None)
        except (OSError, ValueError) as error:
            files = ", ".join(str(path) for path in (broker.ca, broker.cert, broker.key) if path is not None)
            raise SettingError(
                f"source.broker: no certificates, or not this client's key, in {files} ({error}). Check ca, cert and "
                "key; relative paths begin at the folder of the source file."
            ) from error
    return client
