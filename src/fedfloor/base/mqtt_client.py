"""An MQTT 5 client, based on paho-mqtt, with bounded memory even with a hostile broker.

paho reads packets of up to 256 MiB, keeps each message of QoS 2 until the broker releases it, and queues an
acknowledgement for every message, even if the broker reads none. By itself it can only request limits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MessageState
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

log = logging.getLogger(__name__)

RECEIVED = 100  # messages that a broker may send ahead of their acknowledgements
QUEUED = 1000  # packets unread by the broker, at most: up to 20 messages, and acknowledgements
# the type of a packet in the upper half of its first byte, and a flag in the lower half
PUBLISH = 0x3
QOS_2 = 0x4
TOPIC_CHARS = 1000  # characters of a topic, at most


class BoundedClient(mqtt.Client):
    """A client that subscribes with QoS 1 at most, and disconnects from a broker that exceeds its limits.

    Args:
        name: the client's name; "" for a name given by the broker.
        packet_bytes: the maximum size of a packet's body, checked before it is read.
        reconnects: whether paho's loop reconnects.

    Attributes:
        violation: the reason for the last closed connection; "" if there was none.
    """

    def __init__(self, name: str, packet_bytes: int, *, reconnects: bool) -> None:
        version = CallbackAPIVersion.VERSION2
        super().__init__(version, name, protocol=mqtt.MQTTv5, reconnect_on_failure=reconnects)
        self._packet_bytes = packet_bytes
        self.violation = ""

    def limits(self, expiry_s: int = 0) -> Any:
        """Return the properties of a CONNECT packet that request the limits enforced here.

        Args:
            expiry_s: the time, in s, for which the broker keeps this client's subscriptions and messages after a
                connection.
        """
        properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.MaximumPacketSize = self._packet_bytes
        properties.ReceiveMaximum = RECEIVED
        properties.SessionExpiryInterval = expiry_s
        return properties

    def listen(self, heard: Callable[[str, bytes, bool], None]) -> None:
        """Set the function called with each message's topic, payload, and whether the broker had retained it.

        Messages with too long topics are skipped.
        """

        def on_message(_client: object, _data: object, message: Any) -> None:
            with suppress(UnicodeDecodeError):
                if len(topic := message.topic) <= TOPIC_CHARS:
                    heard(topic, bytes(message.payload), bool(message.retain))

        self.on_message = on_message

    def forget(self, sent: Iterable[mqtt.MQTTMessageInfo]) -> int:
        """Drop messages that wait for the broker's acknowledgement of others; return their number.

        paho keeps any number of them, but sends only 20 ahead of their acknowledgements.

        Args:
            sent: what ``publish`` returned for them; those that are sent or acknowledged are passed over.
        """
        dropped = 0
        with self._out_message_mutex:
            for info in sent:
                message = self._out_messages.get(info.mid)
                known = message is not None and message.info is info  # numbers are used again
                if message is not None and known and message.state != MessageState.MQTT_MS_WAIT_FOR_PUBACK:
                    del self._out_messages[info.mid]
                    dropped += 1
        return dropped

    def _sock_recv(self, bufsize: int) -> bytes:
        """Read at most ``bufsize`` bytes from the socket: a byte of a packet's head, or the rest of its body.

        Raises:
            ConnectionError: the packet exceeds a limit; paho then closes the connection.
        """
        flaw = ""
        first = self._in_packet["command"]
        if bufsize > self._packet_bytes:
            flaw = f"a packet of {bufsize} bytes, more than {self._packet_bytes}"
        elif first >> 4 == PUBLISH and first & QOS_2:
            flaw = "a message of QoS 2, which was not subscribed"
        elif len(self._out_packet) > QUEUED:
            flaw = f"it did not read the last {QUEUED} packets"
        if not flaw:
            return super()._sock_recv(bufsize)
        if flaw != self.violation:  # it may recur with each connection
            log.error("broker %s:%d: %s. The connection is closed.", self.host, self.port, flaw)
        self.violation = flaw
        raise ConnectionError(flaw)
