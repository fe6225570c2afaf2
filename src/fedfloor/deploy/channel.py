"""The requesting end of a channel: an edge's to its devices, or the cloud's to its edges."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fedfloor.base.ranges import RefusedError
from fedfloor.base.version import __version__
from fedfloor.deploy import mqtt
from fedfloor.deploy.checks import MessageFilter, printable, timely
from fedfloor.deploy.flow import RESTART, Flow
from fedfloor.deploy.message import MOST_BYTES, SHORT_HEADER, STATUS_BYTES, Arrays, Message, decode, encode, split
from fedfloor.deploy.mqtt import Assembler, Connection
from fedfloor.deploy.settings import Named
from fedfloor.deploy.waits import Waits

if TYPE_CHECKING:
    from fedfloor.deploy.signing import Signer

log = logging.getLogger(__name__)
T = TypeVar("T")

RETURN_S = 60.0
REPEATED = 1000  # the most duplicate answers that are expected
REPEATS = 8  # the most repetitions of a request, as a device that keeps reconnecting would be sent the model each time
ENVELOPE = 1 << 16  # bytes of an answer beyond its header and the values of its arrays
VECTOR_BYTES = 1 << 26  # the most bytes of the answer to a probe, as the edge does not have the number of features


@dataclass(frozen=True)
class Gone:
    """A marker that ends the wait for the answer of a disconnected device, or of one for which nobody waits longer."""

    why: str
    released: bool = False


@dataclass
class OpenRequest:
    """A request whose answer is still awaited.

    Args:
        device: name of the receiver.
        payload: the encoded request.
        most: largest size of the answer in bytes.
        repeats: number of times the request was sent again.
        sent: the time at which it was first sent, by the monotonic clock in s.
        ended: whether its device is gone, so that the wait for the answer ends.
        answer: the encoded answer, or the reason why there is none.
    """

    device: str
    payload: bytes
    most: int
    repeats: int = 0
    sent: float = field(default_factory=time.monotonic)
    ended: bool = False
    answer: queue.SimpleQueue[bytes | Gone] = field(default_factory=queue.SimpleQueue)


class DeviceChannel:
    """A channel for requests to devices, or to the edges of a cloud, and their answers.

    Args:
        park: the park's name.
        name: the sender of the requests: an edge, or the cloud.
        link: its connection.
        devices: the receivers: number → device.
        flow: the limit on messages of each device.
        cut: called with the name of a device that is cut off.
        joined: called with the number of a device that was (re)started.
        peer: the word for a receiver in logs.
        signer: the signer of the requests.
        header: the most bytes of an answer's header.
        return_s: the time in s in which devices must return after the end of the connection to the broker.
    """

    def __init__(
        self, park: str, name: str, link: Connection, devices: Mapping[int, Named],
        flow: Flow | None = None, cut: Callable[[str], None] = lambda _: None,
        joined: Callable[[int], None] = lambda _: None, peer: str = "device", header: int = SHORT_HEADER,
        signer: Signer | None = None, return_s: float = RETURN_S,
    ) -> None:  # fmt: skip
        self.park = park
        self.name = name
        self.filter = MessageFilter(header=header, signer=signer)
        self._peer = peer
        self._assembler = Assembler()
        self.devices = dict(devices)
        self._numbers = {named.name: k for k, named in devices.items()}
        self.connected: dict[int, Mapping[str, Any]] = {}  # device → the ``about`` of its hello message
        self.moved: Counter[str] = Counter()  # bytes sent up and down
        self.waits = Waits()
        self.lost: dict[str, str] = {}  # device → the reason why its last request has no answer
        self._link = link
        self._session = time.time_ns()
        self._number = 0
        self._sessions: dict[int, int] = {}
        self._open: dict[str, OpenRequest] = {}
        self.flow = flow or Flow()
        self._cut: set[str] = set()  # devices that are cut off
        self._on_cut = cut
        self._on_joined = joined
        self._repeated: Counter[tuple[str, str]] = Counter()  # answers that nobody awaits, by device and identity
        self._abandoned = ""
        # number of connections to the broker that have ended
        self._return_s = return_s
        self._losses = 0
        self._awaited: dict[int, int] = {}  # device that has not returned → the number of the ended connection
        self._leaving: dict[int, Callable[[], None]] = {}  # device → its removal, until the broker has answered
        self._timers: list[threading.Timer] = []
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def start(self) -> None:
        """Connect to the broker and subscribe to all devices' topics."""
        topics = [topic for name in self._numbers for topic in self.topics(name)]
        self._link.start(topics, self.receive, self.repeat_open, self.await_return)

    def topics(self, name: str) -> list[str]:
        """Return the topics that a device writes to."""
        return [mqtt.topic(self.park, "out", name, self.name), mqtt.topic(self.park, "status", name)]

    def stop(self) -> None:
        """End the waits for all answers, and disconnect from the broker."""
        self.abandon(f"{self.name} stops")
        self._link.stop()
        for timer in self._timers:
            timer.cancel()

    def present(self) -> list[int]:
        """Return the devices that are connected, without those whose return is awaited."""
        with self._lock:
            return sorted(self.connected.keys() - self._awaited.keys())

    def wait_for(self, devices: Collection[int], deadline_s: float) -> list[str]:
        """Wait until these devices are connected; return the names of those that are not when the deadline in s passes.

        Others that are connected do not count: an edge whose rounds cross factories also sees devices of other edges.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.connected.keys() >= set(devices), deadline_s)
            return [self.name_of(device) for device in devices if device not in self.connected]

    def session(self, device: int) -> int | None:
        """Return the start time of a connected device in ns; None for an absent device."""
        return self._sessions.get(device) if device in self.connected else None

    def abandon(self, why: str) -> None:
        """Drop all open and later requests until :meth:`resume`."""
        self._abandoned = why
        for request in list(self._open.values()):
            request.answer.put(Gone(why))

    def release(self, device: int, why: str) -> None:
        """End the waits for a device's answers, which are ignored if they come."""
        name = self.name_of(device)
        for identity, request in self.open_requests(name).items():
            self._expect_again(name, identity)
            request.answer.put(Gone(why, released=True))

    def resume(self) -> None:
        """Accept requests again after :meth:`abandon`."""
        self._abandoned = ""

    def request(
        self, device: int, kind: str, deadline_s: float, *, run: str, number: int, about: Mapping[str, Any],
        arrays: Arrays | None = None, scope: str = "all", back: int = 0,
    ) -> Message | None:  # fmt: skip
        """Send a request to a device; return its answer, or None if none arrives in time or it is refused.

        Args:
            about, arrays, scope: as of :class:`~fedfloor.deploy.message.Message`.
            back: bytes of the returned model, if a codec compresses the model that is sent.
        """
        name = self.name_of(device)
        wait_s = self.waits.wait_s(name, deadline_s) if number else deadline_s  # before round 1, no visit can be lost
        with self._lock:
            self._number += 1
            message = Message(
                kind, self.name, run, number, self._session, self._number, scope, receiver=name,
                about={**about, "to": self._sessions.get(device), "wait_s": wait_s}, arrays=arrays or {},
            )  # fmt: skip
        payload = encode(message, self.filter.signer)
        (most, few) = answer_size(kind, arrays or {}, back)
        received = self.exchange(device, message.identity, kind, payload, wait_s, most)
        if received is None:
            return None
        try:
            answer = decode(received, most, self.filter.header, few)
        except RefusedError as error:
            self.filter.refuse(self.devices[device].name, error)
            self.lost[self.devices[device].name] = str(error)
            return None
        with self._lock:
            self.moved["down"] += len(payload)
            self.moved["up"] += len(received)
        return answer

    def exchange(
        self, device: int, identity: str, kind: str, payload: bytes, deadline_s: float, most: int
    ) -> bytes | None:
        """Send an encoded request; return its encoded answer with sender, order and header checked, else None.

        Args:
            identity, kind: of the request.
            most: largest size of the answer in bytes.
        """
        name = self.name_of(device)
        if self._abandoned:
            self.lost[name] = self._abandoned
            return None
        if not name or device not in self.connected:
            self.log_absent(name or device, kind)
            return None
        request = OpenRequest(name, payload, most)
        self.flow.expect(name, most)
        self._open[identity] = request
        try:
            if self._abandoned or device not in self.connected:  # it disconnected before the request was registered
                self.log_absent(name, kind)
                return None
            self._link.publish(mqtt.topic(self.park, "in", self.name, name), payload)
            answer = request.answer.get(timeout=max(0.0, deadline_s))
        except queue.Empty:
            log.warning("%s %s did not answer in time: its %s is lost.", self._peer, name, kind)
            self.filter.refused[name, "late"] += 1
            if device not in self._awaited:
                self.waits.expired(name, deadline_s)
            self.lost[name] = f"it did not answer within {deadline_s:.4g} s"
            return None
        finally:
            del self._open[identity]
        if isinstance(answer, Gone):
            text = "%s %s: %s, and its %s is lost." if answer.released else "%s %s is gone (%s): its %s is lost."
            log.log(logging.INFO if answer.released else logging.WARNING, text, self._peer, name, answer.why, kind)
            self.lost[name] = answer.why
            return None
        self.waits.answered(name, time.monotonic() - request.sent)
        return answer

    def name_of(self, device: int) -> str:
        """Return a device's name; "" if the device is not listed."""
        return self.devices[device].name if device in self.devices else ""

    def open_requests(self, name: str) -> dict[str, OpenRequest]:
        """Return a device's open requests: identity → request."""
        return {identity: request for identity, request in list(self._open.items()) if request.device == name}

    def log_absent(self, device: str | int, kind: str) -> None:
        """Log that a request is lost because its receiver is not connected."""
        self.lost[str(device)] = "it is not connected"
        log.warning("%s %s is not connected: its %s is lost.", self._peer, device, kind)

    # -- incoming messages, in the connection's thread ---------------------------------------------------------------

    def repeat_open(self) -> None:
        """Repeat the open requests after a reconnection; devices serve no request twice."""
        for identity, request in list(self._open.items()):
            self.repeat(identity, request)

    def repeat(self, identity: str, request: OpenRequest) -> None:
        """Send a request again, and expect up to two answers."""
        request.repeats += 1
        if request.repeats > REPEATS:
            return
        self._expect_again(request.device, identity)
        self.flow.expect(request.device, request.most)
        self._link.publish(mqtt.topic(self.park, "in", self.name, request.device), request.payload)

    def _expect_again(self, name: str, identity: str) -> None:
        """Expect one more answer to a request, for which nobody waits; the oldest of many are forgotten."""
        while len(self._repeated) >= REPEATED:
            del self._repeated[next(iter(self._repeated))]
        self._repeated[name, identity] += 1

    def receive(self, topic: str, payload: bytes) -> None:
        """Pass an incoming message to the handler of its topic, if its sender is known and within its rate limit."""
        kind, names = mqtt.topic_parts(topic)
        name = names[0] if names else ""
        if name not in self._numbers or topic not in self.topics(name):
            return
        if name in self._cut:  # the message was already in transit
            self.filter.refused[name, "flood"] += 1
        elif not self.flow.admits(name, len(payload)):
            self.cut_off(name)
        elif kind == "status":
            self.receive_status(name, payload)
        else:
            self.receive_answer(name, topic, payload)

    def cut_off(self, name: str) -> None:
        """Ignore further messages of a device that floods the channel; other devices are served as before."""
        self._cut.add(name)
        self._link.unsubscribe(self.topics(name))
        more = f"{self._peer} {name} is cut off: it sent far more messages than were requested."
        log.error("%s Revoke it, or restart %s to readmit it.", more, self.name)
        self.filter.refuse(name, RefusedError("flood", "it sent far more messages than were requested and is cut off."))
        self.remove(self._numbers[name], name, "it is cut off")
        self._on_cut(name)

    def receive_answer(self, name: str, topic: str, packet: bytes) -> None:
        """Pass a complete answer to the waiting thread, which decodes it."""
        payload: bytes | None = None
        try:
            room = max((waiting.most for waiting in self.open_requests(name).values()), default=0)
            payload = self._assembler.add(topic, packet, room)
            if payload is None:
                return
            header = self.filter.admit(payload, name)
            self.waits.alive(name)
            request = self._open.get(header["answers"])
            if request is None or request.device != name:
                raise RefusedError("unasked", f"it answers '{header['answers']}', which is not an open request.")
            if len(payload) > request.most:
                request.answer.put(Gone("its answer is too large"))
                raise RefusedError("oversized", f"{len(payload)} bytes; its answer may have at most {request.most}.")
        except RefusedError as error:
            if payload is None:
                self.note_late(name, packet)
            if not self.is_second_answer(name, payload, error):
                self.filter.refuse(name, error)
            return
        request.answer.put(payload)

    def note_late(self, name: str, packet: bytes) -> None:
        """Record that a device has answered late, by the first piece of an answer for which no request is open."""
        with suppress(RefusedError):
            self.filter.admit(mqtt.beginning(packet), name)
            self.waits.alive(name)

    def is_second_answer(self, name: str, payload: bytes | None, error: RefusedError) -> bool:
        """Return whether a refused message is merely the second answer to a repeated request."""
        if payload is None:  # only the size of a fragmented message is known
            return any(device == name and count > 0 for (device, _), count in self._repeated.items())
        if error.reason not in ("replayed", "unasked"):
            return False
        place = name, split(payload, header=self.filter.header).header["answers"]
        if self._repeated[place] <= 0:
            return False
        self._repeated[place] -= 1
        return True

    def receive_status(self, name: str, payload: bytes) -> None:
        """Record a device's connection or disconnection from its retained status message."""
        if not payload:
            return
        device = self._numbers[name]
        try:
            status = decode(payload, STATUS_BYTES, STATUS_BYTES, arrays=0)
            self.filter.signed(payload, name, status=True)
            if status.kind == "hello":
                self.welcome(device, name, status)
            elif status.kind == "gone" and status.session == self.session(device):
                self.receive_leave(device, printable(str(status.about.get("why", ""))))
        except RefusedError as error:
            self.filter.refuse(name, error)

    def welcome(self, device: int, name: str, hello: Message) -> None:
        """Record a device as connected, or tell it why it is refused, as its own log would not show it.

        Raises:
            RefusedError: as :meth:`register`.
        """
        try:
            self.register(device, name, hello)
        except RefusedError as error:
            about = {"to": hello.session, "reason": error.reason, "text": error.text}
            with self._lock:
                self._number += 1
                refusal = Message(
                    "refused", self.name, session=self._session, number=self._number, receiver=name, about=about
                )  # fmt: skip
            self._link.publish(mqtt.topic(self.park, "in", self.name, name), encode(refusal, self.filter.signer))
            raise

    def register(self, device: int, name: str, hello: Message) -> None:
        """Record a device as connected, and repeat its open requests unless it was restarted.

        Raises:
            RefusedError: the message is of another device, another release or an earlier session.
        """
        about = hello.about
        timely(hello.session)
        if about.get("device") != device:
            text = f"it is {self._peer} {about.get('device')}; this side lists it as {device}."
            raise RefusedError("device", f"{text} Copy the files of the same fedfloor park provision to both.")
        if about.get("version") != __version__:
            text = f"it runs fedfloor {about.get('version')}; this is {__version__}. Install the same release on both."
            raise RefusedError("release", text)
        if hello.session < self._sessions.get(device, 0):
            why = "its clock was set back: restart both; or another process has its key: revoke it, and restart"
            raise RefusedError("replayed", f"it is of an earlier session. Either {why} {self.name}.")
        with self._changed:
            new = hello.session != self._sessions.get(device)
            restarted = new and device in self._sessions
            self._sessions[device] = hello.session
            self.connected[device] = about
            self._awaited.pop(device, None)
            self._leaving.pop(device, None)
            self._changed.notify_all()
        log.info("%s %s (%d) is connected.", self._peer, name, device)
        for identity, request in self.open_requests(name).items():
            if restarted:  # its open work is lost
                self.end_wait(request, "it was restarted")
            else:
                self.repeat(identity, request)
        self.waits.alive(name)
        if restarted:
            self.flow.spend(name, RESTART)
        if new:
            self._on_joined(device)

    def receive_leave(self, device: int, why: str) -> None:
        """Remove a device once the broker has answered another packet, unless the device has returned by then.

        The last will of a device whose return is awaited is ignored: a broker keeps the wills that it published when it
        was stopped, and delivers them again after its start.
        """

        def leave() -> None:
            if self._leaving.get(device) is leave:
                del self._leaving[device]
                self.remove(device, self.name_of(device), why, left=True)

        if why != mqtt.LOST or device not in self._awaited:
            self._leaving[device] = leave
            self._link.confirm(leave)

    def await_return(self) -> None:
        """Give all devices time to return after the end of the connection to the broker; requests wait for them."""
        with self._lock:
            self._losses += 1
            self._awaited |= dict.fromkeys(self.connected, self._losses)
            self._timers = [timer for timer in self._timers if timer.is_alive()]
            self._timers.append(threading.Timer(self._return_s, self.give_up, (self._losses,)))
            self._timers[-1].daemon = True
            self._timers[-1].start()

    def give_up(self, loss: int) -> None:
        """Remove the devices that have not returned since the end of a connection."""
        why = f"it has not returned in the {self._return_s:g} s since the connection to the broker ended"
        for device in [device for device, number in list(self._awaited.items()) if number == loss]:
            self.remove(device, self.name_of(device), why)

    def remove(self, device: int, name: str, why: str, *, left: bool = False) -> None:
        """Record a device as disconnected, and end the waits for its answers.

        Args:
            left: whether the device itself has left.
        """
        with self._changed:
            self._awaited.pop(device, None)
            if self.connected.pop(device, None) is None:  # a status may arrive any number of times
                return
            self._changed.notify_all()
        log.warning("%s %s (%d) is gone: %s.", self._peer, name, device, why)
        for request in self.open_requests(name).values():
            self.end_wait(request, why, left=left)

    def end_wait(self, request: OpenRequest, why: str, *, left: bool = True) -> None:
        """End the wait for the answer of a device that is gone; what it took counts if the device itself has left."""
        if request.ended:
            return
        request.ended = True
        if left:
            self.waits.expired(request.device, time.monotonic() - request.sent)
        request.answer.put(Gone(why))


def answer_size(kind: str, sent: Arrays, back: int = 0) -> tuple[int, int]:
    """Return the largest number of bytes and of arrays in the answer to a request.

    A visit returns as many values as were sent; the answer to a probe has at most one vector, any other has no array.

    Args:
        kind: of the request.
        sent: its arrays.
        back: bytes of the returned model, if a codec compresses the model that is sent.
    """
    size = max(back, sum(array.nbytes for array in sent.values()))
    numbers, arrays = {"visit": (size, len(sent)), "probe": (max(size, VECTOR_BYTES), 1)}.get(kind, (0, 0))
    return min(SHORT_HEADER + ENVELOPE + numbers, MOST_BYTES), arrays


def side_by_side(do: Callable[[int], T], devices: Sequence[int]) -> list[T]:
    """Return the results of ``do`` for all devices in their order, called in parallel threads."""
    if len(devices) < 2:
        return [do(device) for device in devices]
    with ThreadPoolExecutor(len(devices)) as pool:
        return list(pool.map(do, devices))
