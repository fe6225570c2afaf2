"""The socket between an edge and the processes that Flower starts on its machine, one for each message."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from fedfloor.deploy.message import MOST_BYTES
from fedfloor.errors import RunError

NAME, HERE = "door.json", "127.0.0.1"  # file in an edge's state: the port, and a key that only this user can read


@contextmanager
def opened(state: Path, answer: Callable[[bytes], bytes]) -> Iterator[None]:
    """Answer messages of processes that have the key from an edge's state folder; nothing is unpickled."""
    key, file = os.urandom(32), state / NAME

    def serve() -> None:
        while file.exists():
            with suppress(Exception):  # a client without the key, or one that closed the connection
                threading.Thread(target=reply, args=(listening.accept(),), daemon=True).start()

    def reply(caller: Connection) -> None:
        with caller, suppress(OSError, EOFError):
            caller.send_bytes(answer(caller.recv_bytes(MOST_BYTES)))

    with Listener((HERE, 0), authkey=key) as listening:
        file.unlink(missing_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
            json.dump({"port": listening.address[1], "key": key.hex()}, written)
        threading.Thread(target=serve, daemon=True).start()
        yield
        file.unlink(missing_ok=True)


def request(state: Path, message: bytes, deadline_s: float) -> bytes:
    """Send a message to the edge of this machine; return its answer.

    Raises:
        RunError: the edge does not listen, closed the connection, or did not answer within ``deadline_s``.
    """
    try:
        place = json.loads((state / NAME).read_text())
        with Client((HERE, place["port"]), authkey=bytes.fromhex(place["key"])) as edge:
            edge.send_bytes(message)
            if edge.poll(deadline_s):
                return edge.recv_bytes(MOST_BYTES)
    except (OSError, EOFError, ValueError, KeyError, AuthenticationError) as error:
        raise RunError(f"the edge in {state}: {error}.") from error
    raise RunError(f"the edge in {state} did not answer in time.")
