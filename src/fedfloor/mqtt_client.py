"""An MQTT 5 client of paho-mqtt whose memory a hostile broker cannot fill.

paho reads packets of up to 256 MiB, keeps each message of QoS 2 until the broker releases it, and queues an
acknowledgement for every message, also where the broker reads none. A client can limit all that only by request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

log = logging.getLogger(__name__)

RECEIVED = 100  # messages that a broker may send ahead of their acknowledgements
QUEUED = 1000  # packets for a broker that reads none of them: at most 20 messages of paho's, and acknowledgements
PUBLISH, QOS_2 = 0x3, 0x4  # the type of a packet in the upper half of its first byte, and a flag in the lower half
TOPIC_CHARS = 1000  # of a message's topic


class BoundedClient(mqtt.Client):
    """A client that subscribes with QoS 1 at most, and closes the connection of a broker that breaks its limits.

    Args:
        name: the client's; "" where the broker gives it one.
        packet_bytes: the size of a packet's body, at most; checked before any of it is read.
        reconnects: whether paho's own loop connects again.

    Attributes:
        violation: the last reason for which a connection was closed; "" without any.
    """

    def __init__(self, name: str, packet_bytes: int, *, reconnects: bool) -> None:
        version = CallbackAPIVersion.VERSION2
        super().__init__(version, name, protocol=mqtt.MQTTv5, reconnect_on_failure=reconnects)
        self._packet_bytes, self.violation = packet_bytes, ""

    def limits(self, expiry_s: int = 0) -> Any:
        """Return the properties of a CONNECT packet that request the limits enforced here.

        Args:
            expiry_s: the time for which the broker keeps this client's subscriptions and messages after a connection,
                s.
        """
        properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.MaximumPacketSize = self._packet_bytes
        properties.ReceiveMaximum = RECEIVED
        properties.SessionExpiryInterval = expiry_s
        return properties

    def listen(self, heard: Callable[[str, bytes], None]) -> None:
        """Set the function that is called with topic and payload of each message; topics of no park are skipped."""

        def on_message(_client: object, _data: object, message: Any) -> None:
            with suppress(UnicodeDecodeError):
                if len(topic := message.topic) <= TOPIC_CHARS:
                    heard(topic, bytes(message.payload))

        self.on_message = on_message

    def _sock_recv(self, bufsize: int) -> bytes:
        """Read from the socket, at most ``bufsize`` bytes: one of a packet's head, or the rest of its body.

        Raises:
            ConnectionError: the packet breaks a limit; paho then closes the connection.
        """
        flaw, first = "", self._in_packet["command"]
        if bufsize > self._packet_bytes:
            flaw = f"a packet of {bufsize} bytes; at most {self._packet_bytes} are taken"
        elif first >> 4 == PUBLISH and first & QOS_2:
            flaw = "a message of QoS 2, to which nothing here subscribes"
        elif len(self._out_packet) > QUEUED:
            flaw = f"it reads none of the last {QUEUED} packets"
        if not flaw:
            return super()._sock_recv(bufsize)
        if flaw != self.violation:  # it may come again with each connection
            log.error("broker %s:%d: %s. The connection is closed.", self.host, self.port, flaw)
        self.violation = flaw
        raise ConnectionError(flaw)
