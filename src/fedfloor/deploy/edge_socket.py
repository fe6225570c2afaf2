"""The local socket between cloud and edge: frames of a length and a message, each with one answer."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from fedfloor.deploy.message import MOST_BYTES
from fedfloor.deploy.settings import CloudEdge, Endpoint
from fedfloor.errors import RunError

log = logging.getLogger(__name__)

LENGTH = struct.Struct(">Q")


def send(into: socket.socket, data: bytes) -> None:
    """Send a frame."""
    into.sendall(LENGTH.pack(len(data)))
    into.sendall(data)


def receive(of: socket.socket, most: int = MOST_BYTES, until: float | None = None) -> bytes:
    """Return the next frame, or b"" where the other side has hung up.

    Raises:
        OSError: it hung up within a frame, the frame is larger than ``most``, or it is late.
    """
    head = _exactly(of, LENGTH.size, until)
    if not head:
        return b""
    (length,) = LENGTH.unpack(head)
    if length > most:
        raise OSError(f"a frame of {length} bytes; at most {most} are taken")
    return _exactly(of, length, until)


def _exactly(of: socket.socket, count: int, until: float | None) -> bytes:
    data, at = bytearray(count), 0
    while at < count:
        if until is not None:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("the whole answer did not come in time")
            of.settimeout(left)
        got = of.recv_into(memoryview(data)[at:])
        if not got:
            if at:
                raise OSError("the other side hung up within a frame")
            return b""
        at += got
    return bytes(data)


def ask(where: Endpoint, data: bytes, deadline_s: float | None = None) -> bytes:
    """Send a frame to an edge and return its answer.

    Raises:
        OSError: the edge does not listen, hung up, or took too long.
    """
    until = None if deadline_s is None else time.monotonic() + deadline_s
    with contextlib.closing(_connected(where, deadline_s)) as to:
        send(to, data)
        answer = receive(to, until=until)
    if not answer:
        raise OSError("the edge hung up without an answer")
    return answer


def _connected(where: Endpoint, deadline_s: float | None) -> socket.socket:
    if where.socket is None:
        to = socket.create_connection((where.host, where.port), timeout=10.0)
        to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    else:
        to = socket.socket(socket.AF_UNIX)
        to.connect(str(where.socket))
    to.settimeout(deadline_s)
    return to


class EdgeSocket:
    """The socket on which an edge listens to the cloud: answers each frame.

    Args:
        where: host and port, or a Unix socket, which only this user may open.
        answer: called with each frame, for each connection in a thread of its own.

    Raises:
        RunError: the address is in use, or not this machine's.
    """

    def __init__(self, where: Endpoint, answer: Callable[[bytes], bytes]) -> None:
        self._where, self._answer = where, answer
        try:
            self._listening = _bound(where)
        except OSError as error:
            raise RunError(
                f"the door {where} cannot be opened: {error}. Is another edge running? Change [listen]."
            ) from error
        self._thread = threading.Thread(target=self._serve, name=f"door {where}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        if self._where.socket is not None:
            with contextlib.suppress(OSError):
                self._where.socket.unlink()

    def _serve(self) -> None:
        while True:
            try:
                to, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(to,), daemon=True).start()

    def _one(self, to: socket.socket) -> None:
        with contextlib.closing(to):
            try:
                while asked := receive(to):
                    send(to, self._answer(asked))
            except OSError as error:
                log.warning("the door %s: %s.", self._where, error)


def _bound(where: Endpoint) -> socket.socket:
    if where.socket is None:
        return socket.create_server((where.host, where.port))
    listening = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(FileNotFoundError):
        if not _answers(where):
            where.socket.unlink()
    before = os.umask(0o177)
    try:
        listening.bind(str(where.socket))
    finally:
        os.umask(before)
    listening.listen()
    return listening


def _answers(where: Endpoint) -> bool:
    """Return whether a process listens at a socket file; none does after a kill."""
    try:
        _connected(where, 0.2).close()
    except ConnectionRefusedError:
        return False
    return True


class Edges(Protocol):
    """The way from the cloud to the edges."""

    def ask(self, messages: Mapping[int, bytes], deadline_s: float) -> dict[int, bytes]:
        """Send a message to each factory's edge, all at the same time.

        Args:
            messages: factory → message.

        Returns:
            Factory → answer, of those that answered in time.
        """
        ...


class Direct:
    """Edges that are reached through their sockets, without Flower.

    Args:
        edges: each with a door.
    """

    def __init__(self, edges: Sequence[CloudEdge]) -> None:
        self._doors = {one.factory: one.door for one in edges if one.door is not None}

    def ask(self, messages: Mapping[int, bytes], deadline_s: float) -> dict[int, bytes]:
        """Send each message through the edge's socket."""

        def one(factory: int) -> tuple[int, bytes]:
            try:
                return factory, ask(self._doors[factory], messages[factory], deadline_s)
            except OSError as error:
                log.warning("the edge of factory %d at %s: %s.", factory, self._doors[factory], error)
                return factory, b""

        with ThreadPoolExecutor(max(1, len(messages))) as pool:
            return {factory: said for factory, said in pool.map(one, messages) if said}
