"""The connection between cloud and edges over the cloud's broker, or from Flower's processes to the edge.

Topics and messages are as between an edge and its devices, with the cloud as the edge and edges as devices. Flower
starts a process for each message on an edge's machine, which passes it on through a socket.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing import connection as sockets
from pathlib import Path
from typing import Protocol

from fedfloor.base import regular
from fedfloor.base.errors import RunError, SettingError
from fedfloor.base.ranges import RefusedError
from fedfloor.base.strict import json_text
from fedfloor.base.version import __version__
from fedfloor.deploy import mqtt
from fedfloor.deploy.channel import REPEATS, DeviceChannel, side_by_side
from fedfloor.deploy.checks import MessageFilter, short_line
from fedfloor.deploy.message import MOST_BYTES, MOST_HEADER, Message, encode, split
from fedfloor.deploy.mqtt import Assembler, Connection, MqttConnection
from fedfloor.deploy.settings import CLOUD, CloudSettings, EdgeSettings, Named
from fedfloor.deploy.signing import signer_of

log = logging.getLogger(__name__)

# file in an edge's state: the port, and a key that only this user can read
SOCKET = "door.json"
HERE = "127.0.0.1"
WAITING = 4  # requests of the cloud, queued or running: a later request ends an earlier one


class Edges(Protocol):
    """The connection from the cloud to the edges."""

    def request(self, messages: Mapping[int, bytes], deadline_s: float, most: Mapping[int, int]) -> dict[int, bytes]:
        """Send a message to each factory's edge in parallel.

        Args:
            messages: factory → encoded message.
            most: factory → largest size of its answer in bytes.

        Returns:
            Factory → answer; edges without an answer in time are left out.
        """
        ...


class Downlink:
    """The cloud's end of the connection to the edges.

    Args:
        settings: settings of the cloud.
        link: the connection to the broker; default: made from the settings.
    """

    def __init__(self, settings: CloudSettings, link: Connection | None = None) -> None:
        self._settings = settings
        if settings.broker is None:
            raise SettingError("cloud.toml names no broker.")
        edges = {edge.factory: Named(edge.name, edge.factory) for edge in settings.edges}
        link = link or MqttConnection(CLOUD, settings.broker, settings.tls)
        self.channel = DeviceChannel(
            settings.park,
            CLOUD,
            link,
            edges,
            peer="edge",
            header=MOST_HEADER,
            signer=signer_of(settings.tls, CLOUD),
            return_s=settings.deadlines.join_s,
        )

    def __enter__(self) -> Downlink:
        """Connect, and wait for the edges up to a deadline.

        Raises:
            RunError: no edge is connected.
        """
        wait_s = self._settings.deadlines.join_s
        self.channel.start()
        if lacking := self.channel.wait_for([edge.factory for edge in self._settings.edges], wait_s):
            names = ", ".join(lacking)
            if not self.channel.connected:
                self.channel.stop()
                raise RunError(
                    f"no edge connected within {wait_s:g} s ({names}): check the broker {self._settings.broker} and "
                    "the edges' logs, then start again.",
                    key="no-edge",
                )
            log.warning("edges not connected yet: %s. The run begins without them.", names)
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self.channel.stop()

    def request(self, messages: Mapping[int, bytes], deadline_s: float, most: Mapping[int, int]) -> dict[int, bytes]:
        """Send a message to each factory's edge; return the answers received in time: factory → answer."""

        def exchange(factory: int) -> bytes | None:
            sent = split(messages[factory])
            name = self.channel.name_of(factory)
            wait_s = self.channel.waits.wait_s(name, deadline_s) if sent.header["round"] else deadline_s
            return self.channel.exchange(factory, sent.identity, "part", messages[factory], wait_s, most[factory])

        asked = [factory for factory in messages if factory in self.channel.connected]
        answers = zip(asked, side_by_side(exchange, asked), strict=True)
        return {factory: answer for factory, answer in answers if answer is not None}


class Uplink:
    """An edge's end of the connection, which serves each request once; a repeated request gets the same answer.

    Args:
        settings: settings of the edge.
        answer: called with each request, in a thread of its own; returns the answer.
        session: start time of the edge, ns.
        link: makes the connection from its last will; default: from the settings.
    """

    def __init__(
        self, settings: EdgeSettings, answer: Callable[[bytes], bytes], session: int,
        link: Callable[[tuple[str, bytes]], Connection] | None = None,
    ) -> None:  # fmt: skip
        if settings.cloud is None:
            raise SettingError(f"edge {settings.name}: its settings name no broker of the cloud: provision it again.")
        self._settings = settings
        self._answer = answer
        self._session = session
        self._filter = MessageFilter(signer=signer_of(settings.tls, settings.name))
        self._assembler = Assembler()
        self._lock = threading.Lock()
        self._status = mqtt.topic(settings.park, "status", settings.name)
        self._inbox = mqtt.topic(settings.park, "in", CLOUD, settings.name)
        will = self._status, self._state("gone", why=mqtt.LOST)
        self._link = link(will) if link else MqttConnection(settings.name, settings.cloud, settings.tls, will)
        self._under_way = set[str]()  # identities of requests
        self._last = "", b""  # identity and answer of the last answered request
        self._repeats = 0  # times that this answer was sent again

    def __enter__(self) -> Uplink:
        """Connect to the cloud's broker."""
        self._link.start([self._inbox], self.receive, self.announce)
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self._link.publish(self._status, self._state("gone", why=mqtt.LEFT), retain=True)
        self._link.stop()

    def announce(self) -> None:
        """Publish the edge's status message after each connection."""
        hello = self._state("hello", device=self._settings.factory, version=__version__)
        self._link.publish(self._status, hello, retain=True)

    def _state(self, kind: str, **about: object) -> bytes:
        return encode(Message(kind, self._settings.name, session=self._session, about=about), self._filter.signer)

    def receive(self, topic: str, packet: bytes) -> None:
        """Handle a packet from the cloud; serve the request when it is complete."""
        if topic != self._inbox:
            return
        try:
            request = self._assembler.add(topic, packet, MOST_BYTES)
            if request is None:
                return
            parts = self._filter.signed(request, CLOUD)
            if parts.header["kind"] == "refused":
                why = short_line(parts.header["about"].get("text"))
                self._filter.log(logging.ERROR, CLOUD, f"the cloud refuses this edge: {why}")
            else:
                self.take(parts.identity, request)
        except RefusedError as error:
            self._filter.refuse(CLOUD, error)

    def take(self, name: str, request: bytes) -> None:
        """Serve a request in a thread of its own; a request repeated after a lost connection is not served twice."""
        with self._lock:
            if name in self._under_way:
                return
            known, answer = self._last
            if name != known:
                if len(self._under_way) >= WAITING:
                    raise RefusedError("busy", f"{WAITING} requests are queued already.")
                self._under_way.add(name)
                threading.Thread(target=self._serve, args=(name, request), daemon=True).start()
                return
            self._repeats += 1
            if self._repeats > REPEATS:
                return
        self._send(answer)

    def _serve(self, name: str, request: bytes) -> None:
        try:
            answer = self._answer(request)
            with self._lock:
                self._last = (name, answer)
                self._repeats = 0
        finally:  # or later requests would find too many under way
            with self._lock:
                self._under_way.discard(name)
        self._send(answer)

    def _send(self, answer: bytes) -> None:
        self._link.publish(mqtt.topic(self._settings.park, "out", self._settings.name, CLOUD), answer)


@contextmanager
def socket_opened(state: Path, answer: Callable[[bytes], bytes]) -> Iterator[None]:
    """Answer messages of processes that have the key from an edge's state folder; nothing is unpickled."""
    key = os.urandom(32)
    file = state / SOCKET

    def serve() -> None:
        while file.exists():
            with suppress(Exception):  # a client without the key, or one that closed the connection
                threading.Thread(target=reply, args=(listening.accept(),), daemon=True).start()

    def reply(caller: sockets.Connection) -> None:
        with caller, suppress(OSError, EOFError):
            caller.send_bytes(answer(caller.recv_bytes(MOST_BYTES)))

    with sockets.Listener((HERE, 0), authkey=key) as listening:
        file.unlink(missing_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
            written.write(json_text({"port": listening.address[1], "key": key.hex()}))
        threading.Thread(target=serve, daemon=True).start()
        yield
        file.unlink(missing_ok=True)


def socket_request(state: Path, message: bytes, deadline_s: float) -> bytes:
    """Send a message to the edge of this machine; return its answer.

    Raises:
        RunError: the edge does not listen, closed the connection, or did not answer within ``deadline_s``.
    """
    try:
        place = json.loads(regular.read_text(state / SOCKET))
        with sockets.Client((HERE, place["port"]), authkey=bytes.fromhex(place["key"])) as edge:
            edge.send_bytes(message)
            if edge.poll(deadline_s):
                return edge.recv_bytes(MOST_BYTES)
    except (OSError, EOFError, ValueError, KeyError, AuthenticationError) as error:
        raise RunError(f"the edge in {state}: {error}.", key="edge") from error
    raise RunError(f"the edge in {state} did not answer in time.", key="edge")
