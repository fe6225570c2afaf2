"""MQTT topics with messages in JSON, or with a single number."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedfloor.base.errors import SettingError, first_line, require, require_private, shown
from fedfloor.sensors.events import Event, Inbox, Missing, Refusal, Signal, Update, seconds, secret

if TYPE_CHECKING:
    from fedfloor.base.mqtt_client import BoundedClient

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 15
EXPIRY_S = 7 * 86400  # time for which a broker keeps messages for this client
PACKET_KB = 4096  # brokers send no larger messages
ENVELOPE = 1 << 16  # bytes of topic and header beside a payload
DEEPEST = 8  # nested objects in an address or in the list of --check, at most
MOST_FIELDS = 2_000  # listed of a message, at most
TOPIC = re.compile(r"[^\x00+#]{1,1000}")
ABSENT = object()  # the value of a field that a message lacks
FILTER = re.compile(r"(\+|[^\x00+#/]*)(/(\+|[^\x00+#/]*))*(/#)?|#")
Take = Callable[[str, bytes, bool], Iterable[Event]]  # topic, payload, retained → events


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
            "source.broker.password",
            "Give ca, the broker's authority, for TLS; or accept it with plain = true.",
            private=self.password is None or self.ca is not None or self.plain,
        )


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
        """Yield an update for each message, or its refusal."""
        wanted: dict[str, list[str]] = {}
        for address in addresses:
            topic, mark, field = address.partition("#")
            if not TOPIC.fullmatch(topic) or "#" in field:
                raise SettingError(
                    f"tags: '{address}' is not an address: TOPIC#FIELD, or only TOPIC, without wildcards (+, #), "
                    "because a sensor is a value of a single topic."
                )
            wanted.setdefault(topic, []).append(mark + field)
        topics = [*wanted] or [*self.topics]
        if not topics:
            raise SettingError(
                'neither tags nor source.topics are set. Set one, such as topics = ["plant/#"].', key="source.topics"
            )
        inbox = Inbox(stop)
        reader = MessageReader(self, wanted)
        dated = bool(self.time) and any("#" in end for ends in wanted.values() for end in ends)
        with connected(self.broker, topics, inbox, reader.read, keep=dated):
            yield from inbox.events(lambda: Signal.IDLE)


class MessageReader:
    """A reader of messages in JSON, or of numbers.

    Args:
        source: its settings.
        wanted: topic → the fields of sensors, ``#FIELD.FIELD``, ``#`` for a whole object or "" for a number; if empty,
            all fields of all topics.
    """

    def __init__(self, source: MqttSource, wanted: Mapping[str, Sequence[str]]) -> None:
        self._source = source
        self._wanted = wanted
        self._silent = {f"{topic}{end}" for topic, ends in wanted.items() for end in ends}

    def read(self, topic: str, payload: bytes, retained: bool) -> Iterator[Event]:
        """Yield the update of a message, or its refusal.

        A field that the message lacks is unchanged; a field that is null is missing. A retained message without a time
        of its own has an unknown one.
        """
        ends = self._wanted.get(topic)
        if ends is None and self._wanted:
            yield Refusal("topic without a subscription", topic, shown(topic))
            return
        document = parsed(payload)
        if isinstance(document, Missing):
            yield Refusal(document.reason, topic, f"{shown(topic)}: {payload[:60]!r}")
            return
        # messages of labels have times of their own
        own = f"{topic}#{self._source.time}"
        spans = "#" in (ends or ())
        fields = dict(_fields(document, topic)) if ends is None or (self._silent and not spans) else {}
        values = fields if ends is None else dict(_wanted(document, topic, ends))
        self._silent -= values.keys()
        others = () if ends is None else fields.keys() - values.keys() - {own}
        if ends is not None and not values and not isinstance(document, dict):
            yield Refusal("no JSON object", topic, f"{shown(topic)}: {payload[:60]!r}")
            return
        moment = math.nan if retained else time.time()
        if self._source.time and isinstance(document, dict) and not spans:
            own_time = seconds(_at(document, self._source.time.split(".")), self._source.unit)
            moment = math.nan if own_time is None else own_time
        values = {address: value for address, value in values.items() if address != own}
        yield Update(moment, values, repeated=retained, others=others)


def parsed(payload: bytes) -> object:
    """Return the content of a message in JSON; :class:`Missing` for other messages.

    >>> parsed(b'{"a": [1, NaN]}'), parsed(b"2.5"), parsed(b"null")
    ({'a': [1, nan]}, 2.5, None)
    >>> parsed(b"{"), parsed(b"[" * 100_000), parsed(b"")
    (Missing(reason='no JSON'), Missing(reason='no JSON'), Missing(reason='empty message'))
    """
    try:
        return json.loads(payload) if payload else Missing("empty message")
    except (ValueError, RecursionError):
        return Missing("no JSON")


def _wanted(document: object, topic: str, ends: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Yield the addresses and values of the fields that occur in a document."""
    for end in ends:
        value = document if end in ("", "#") else _at(document, end[1:].split("."))
        if value is not ABSENT:
            yield f"{topic}{end}", value


def _at(document: object, names: Sequence[str]) -> object:
    """Return the value at a path of names, ``ABSENT`` if it does not occur; a name in a message may contain points.

    >>> _at({"a": {"b": 1}, "c.d": 2}, ["a", "b"]), _at({"a": {"b": 1}, "c.d": 2}, ["c", "d"]), _at({"a": None}, ["a"])
    (1, 2, None)
    >>> _at({"a": None}, ["a", "b"]), _at({"a": {"c": 1}}, ["a", "b"]) is ABSENT  # nothing is known below null
    (None, True)
    >>> nested = {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": 1}}}}}}}}
    >>> _at(nested, "aaaaaaaa"), _at({"a": nested}, "aaaaaaaaa") is ABSENT
    (1, True)
    """
    if not names or document is None:
        return document
    if not isinstance(document, dict) or len(names) > DEEPEST:
        return ABSENT
    for count in range(len(names), 0, -1):
        name = ".".join(names[:count])
        if name in document:
            return _at(document[name], names[count:])
    return ABSENT


def _fields(document: object, topic: str) -> Iterator[tuple[str, object]]:
    """Yield the addresses and values of the fields in a document."""
    if not isinstance(document, dict):
        yield topic, document
        return
    left = [(f"{topic}#{name}", value, 1) for name, value in document.items()]
    for address, value, depth in left:  # the list grows during the loop
        if isinstance(value, dict) and depth < DEEPEST and len(left) < MOST_FIELDS:
            left += [(f"{address}.{name}", inner, depth + 1) for name, inner in value.items()]
        elif not isinstance(value, dict):
            yield address, value


@contextmanager
def connected(
    broker: Broker, topics: Sequence[str], inbox: Inbox, take: Take,
    joined: Callable[[BoundedClient], object] = lambda client: None,  # noqa: ARG005
    lost: Callable[[], None] = lambda: None,
    *, keep: bool = True,
) -> Iterator[BoundedClient]:  # fmt: skip
    """Yield a client subscribed to topics, which reconnects whenever the connection is lost.

    Args:
        take: (topic, payload, retained) → events for the inbox.
        joined: called after each subscription.
        lost: called after each end of a connection.
        keep: whether the broker keeps messages for ``broker.client`` while it is away, which requires that they have a
            time of their own.
    """
    client = _client(broker)
    keep = keep and bool(broker.client)
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

    client.on_connect = on_connect
    client.on_subscribe = on_subscribe
    client.on_connect_fail = failed
    client.listen(_reader(broker, inbox, take))
    client.on_disconnect = lambda _client, _data, _flags, _reason, _properties: lost()
    host, _, port = name.rpartition(":")
    limits = client.limits(EXPIRY_S if keep else 0)
    client.connect_async(host, int(port), KEEP_ALIVE_S, clean_start=not keep, properties=limits)
    client.loop_start()
    try:
        yield client
    finally:
        inbox.stop.set()
        client.disconnect()
        client.loop_stop()


def _reader(broker: Broker, inbox: Inbox, take: Take) -> Callable[[str, bytes, bool], None]:
    """Return the function that puts the events of each message into the inbox."""

    def read(topic: str, payload: bytes, retained: bool) -> None:
        if len(payload) > broker.max_kb * 1024:
            text = f"{shown(topic)}: {len(payload):,} bytes, more than broker.max_kb"
            inbox.put(Refusal("message above max_kb", topic, text))
            return
        try:
            for event in take(topic, payload, retained):
                inbox.put(event)
        except Exception as error:  # any error of a payload must not end the connection's thread
            text = f"{shown(topic)}: {type(error).__name__}: {first_line(error)}"
            inbox.put(Refusal("message that cannot be read", topic, text))

    return read


def _client(broker: Broker) -> BoundedClient:
    try:
        from fedfloor.base.mqtt_client import BoundedClient
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
