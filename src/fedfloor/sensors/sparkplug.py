"""Sparkplug B over MQTT: births, aliases, sequence numbers, rebirth requests, stored values.

Eclipse Sparkplug Specification 3.0.0; section 6.4 has the payload's schema. Only numbers, booleans and texts are read,
and of the properties the quality; data sets and templates are missing values.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from fedfloor.base.errors import SettingError, require, shown
from fedfloor.sensors.events import Event, Inbox, Missing, Refusal, Signal, Update
from fedfloor.sensors.mqtt import TOPIC, Broker, connected

if TYPE_CHECKING:
    from fedfloor.base.mqtt_client import BoundedClient

log = logging.getLogger(__name__)

ROOT = "spBv1.0"
REBIRTH = "Node Control/Rebirth"
REBIRTH_S = 5.0  # between two requests for a birth
MOST_METRICS = 10_000
BITS = {1: 8, 2: 16, 3: 32, 4: 64}  # datatype → bits; signed integers are sent as unsigned ones
FIELDS = {  # of a metric: (number, protobuf type)
    "name": (1, "STRING"), "alias": (2, "UINT64"), "timestamp": (3, "UINT64"), "datatype": (4, "UINT32"),
    "is_historical": (5, "BOOL"), "is_null": (7, "BOOL"), "int_value": (10, "UINT32"), "long_value": (11, "UINT64"),
    "float_value": (12, "FLOAT"), "double_value": (13, "DOUBLE"), "boolean_value": (14, "BOOL"),
    "string_value": (15, "STRING"),
}  # fmt: skip
# a property, and its range of usable values, as in OPC: 0 is bad, 500 stale
QUALITY = "Quality"
GOOD = (64, 255)
VALUES = [name for name in FIELDS if name.endswith("_value")]


@dataclass(frozen=True)
class SparkplugSource:
    """An edge node and its devices; an address is ``METRIC`` for the node, or ``DEVICE#METRIC``.

    Args:
        broker: the broker to which the node publishes.
        group: the node's group.
        node: the node's name.
    """

    broker: Broker
    group: str
    node: str
    kind: Literal["sparkplug"] = "sparkplug"

    def __post_init__(self) -> None:
        for key in ("group", "node"):
            name = getattr(self, key)
            fits = bool(TOPIC.fullmatch(name)) and "/" not in name
            require(fits, f"source.{key}", name, "a name without the characters /, + and #")

    def events(
        self, addresses: Sequence[str], stop: threading.Event, position: str | None  # noqa: ARG002
    ) -> Iterator[Event]:  # fmt: skip
        """Yield an update for each time in each message."""
        inbox = Inbox(stop)
        state = NodeState({*addresses})
        command = f"{ROOT}/{self.group}/NCMD/{self.node}"
        topics = [f"{ROOT}/{self.group}/+/{self.node}", f"{ROOT}/{self.group}/+/{self.node}/+"]
        clients: list[BoundedClient] = []

        def take(topic: str, payload: bytes, retained: bool) -> Iterator[Event]:
            if retained:
                yield Refusal("retained message", topic, f"{shown(topic)}: Sparkplug has none, its values may be old.")
                return
            _, _, kind, _, *device = topic.split("/")
            yield from state.take(kind, device[0] if device else "", payload)
            ask()

        def ask(*joined: BoundedClient) -> None:
            clients.extend(joined)
            if clients and state.wants_birth(time.monotonic()):
                clients[0].publish(command, rebirth(), qos=0)

        def quiet() -> Signal:
            ask()
            return Signal.ALIVE if state.alive else Signal.IDLE

        def lost() -> None:  # the broker does not keep the node's messages for this client
            state.alive = False
            state.lacking = True
            state.requested = float("-inf")
            inbox.put(Signal.LOST)

        with connected(self.broker, topics, inbox, take, ask, lost):
            yield from inbox.events(quiet)


@dataclass
class NodeState:
    """The state of a node, as announced by its births.

    Args:
        wanted: the addresses to report; if empty, all.
    """

    wanted: set[str]
    alive: bool = False
    seq: int = -1
    birth: int | None = None  # bdSeq of the last birth
    names: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)  # device, alias → metric, datatype
    types: dict[tuple[str, str], int] = field(default_factory=dict)  # device, metric → datatype
    lacking: bool = True  # whether a birth is to be requested
    requested: float = float("-inf")

    def wants_birth(self, now: float) -> bool:
        """Return whether to request a birth now, at most once in ``REBIRTH_S``."""
        if not self.lacking or now - self.requested < REBIRTH_S:
            return False
        self.requested = now
        return True

    def take(self, kind: str, device: str, payload: bytes) -> Iterator[Event]:
        """Process a message of a kind (``NBIRTH``, ``DDATA``, …); yield its updates."""
        if kind not in ("NBIRTH", "DBIRTH", "NDATA", "DDATA", "NDEATH", "DDEATH"):
            return
        message = payload_type().FromString(payload)
        if len(message.metrics) > MOST_METRICS:
            raise SettingError(f"{len(message.metrics):,} metrics, more than {MOST_METRICS:,}")
        if kind == "NDEATH":
            number = next((int(m.long_value or m.int_value) for m in message.metrics if m.name == "bdSeq"), None)
            if self.alive and (number is None or number == self.birth):  # otherwise the death of an earlier connection
                self.alive = False
                self.lacking = True
                yield Signal.LOST
            return
        if kind == "NBIRTH":
            self.names.clear()
            self.types.clear()
            self.birth = next((int(m.long_value or m.int_value) for m in message.metrics if m.name == "bdSeq"), None)
            self.lacking = False
            self.seq = int(message.seq)
            self.alive = True
        elif not self._follows(int(message.seq)) or not self.alive:
            self.lacking = True
            if self.alive:
                yield Refusal("gap in sequence numbers", "", f"messages were lost before number {self.seq}")
        if kind == "DDEATH":
            died = Missing("death of the device")
            gone = {address: died for address in self.wanted if address.startswith(f"{device}#")}
            yield Update(message.timestamp / 1e3, gone)
            return
        yield from self._updates(message, device, born=kind.endswith("BIRTH"))

    def _follows(self, seq: int) -> bool:
        follows = seq == (self.seq + 1) % 256
        self.seq = seq
        return follows

    def _updates(self, message: Any, device: str, *, born: bool) -> Iterator[Event]:
        others = set[str]()
        nameless = 0
        times: dict[tuple[int, bool], dict[str, object]] = {}
        for metric in message.metrics:
            name = metric.name
            datatype = metric.datatype
            if born and name:
                if metric.HasField("alias"):
                    self.names[device, metric.alias] = name, datatype
                self.types[device, name] = datatype
            elif not name:
                name, datatype = self.names.get((device, metric.alias), ("", 0))
                if not name:  # its birth was not received
                    self.lacking = True
                    nameless += 1
                    continue
            address = f"{device}#{name}" if device else name
            if address in self.wanted or not (self.wanted or name == "bdSeq" or name.startswith("Node Control/")):
                key = metric.timestamp or message.timestamp, bool(metric.is_historical)
                times.setdefault(key, {})[address] = _value(metric, datatype or self.types.get((device, name), 0))
            elif born:
                others.add(address)
        if nameless:
            yield Refusal("alias without a birth", device, f"{nameless} of {len(message.metrics)} metrics", nameless)
        for (moment, stored), values in sorted(times.items()):
            yield Update(moment / 1e3, values, stored=stored, initial=born and not stored, others=others)
        if others and not times:
            yield Update(message.timestamp / 1e3, {}, others=others)


def _value(metric: Any, datatype: int) -> object:
    """Return the value of a metric; :class:`Missing` if its quality is bad, or its type is not supported."""
    for name, entry in zip(metric.properties.keys, metric.properties.values, strict=False):
        quality = int(entry.int_value or entry.long_value)
        if name == QUALITY and not GOOD[0] <= quality <= GOOD[1]:
            return Missing(f"quality {quality}" if quality in (0, 500) else "bad quality")
    name = next((name for name in VALUES if metric.HasField(name)), None)
    if metric.is_null:
        return None
    if name is None:
        return Missing("type without numbers and texts")
    value = getattr(metric, name)
    bits = BITS.get(datatype)
    if bits is None or name not in ("int_value", "long_value"):
        return value
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def rebirth() -> bytes:
    """Return the payload that requests a birth."""
    message = payload_type()(timestamp=int(time.time() * 1e3))
    message.metrics.add(name=REBIRTH, datatype=11, boolean_value=True)
    data: bytes = message.SerializeToString()
    return data


@cache
def payload_type() -> Any:
    """Return the protobuf class of a Sparkplug B payload."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise SettingError("Sparkplug sources need protobuf: pip install 'fedfloor[sensors]'.") from error
    file = descriptor_pb2.FileDescriptorProto(name="fedfloor_sparkplug.proto", package="fedfloor", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto

    def add(kind: Any, name: str, number: int, typed: str, *, many: bool = False) -> None:
        label = kinds.LABEL_REPEATED if many else kinds.LABEL_OPTIONAL
        scalar = typed.isupper()
        new = kind.field.add(
            name=name, number=number, label=label, type=getattr(kinds, f"TYPE_{typed if scalar else 'MESSAGE'}")
        )
        if not scalar:
            new.type_name = f".fedfloor.{typed}"

    metric = file.message_type.add(name="Metric")
    payload = file.message_type.add(name="Payload")
    entry = file.message_type.add(name="Property")
    entries = file.message_type.add(name="Properties")
    for name, (number, typed) in FIELDS.items():
        add(metric, name, number, typed)
    add(metric, "properties", 9, "Properties")
    add(entries, "keys", 1, "STRING", many=True)
    add(entries, "values", 2, "Property", many=True)
    add(entry, "int_value", 3, "UINT32")
    add(entry, "long_value", 4, "UINT64")
    add(payload, "timestamp", 1, "UINT64")
    add(payload, "metrics", 2, "Metric", many=True)
    add(payload, "seq", 3, "UINT64")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fedfloor.Payload"))
