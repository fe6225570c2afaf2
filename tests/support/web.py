"""A server on this machine, and tiny data sets to be had from it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedfloor.base.errors import SettingError
from fedfloor.data.sources import File, Published

ONE = b"one" * 50_000
TWO = b"two" * 10
CLOSED = "http://127.0.0.1:9/"  # nobody listens there


@dataclass
class Server:
    """What a server has, and what it was asked for."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)  # path → headers it adds or replaces
    moved: dict[str, str] = field(default_factory=dict)  # path → where it redirects to
    strikes: dict[str, Callable[[], None]] = field(default_factory=dict)  # path → what happens when it is asked for
    asked: list[str] = field(default_factory=list)


@contextmanager
def serve() -> Iterator[Server]:
    """Serve files on a port of this machine while the body runs."""
    has = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            has.asked.append(self.path)
            has.strikes.get(self.path, lambda: None)()
            body = has.files.get(self.path)
            if self.path in has.moved:
                self.send_response(302)
                self.send_header("Location", has.moved[self.path])
                self.end_headers()
            elif body is None:
                self.send_error(404)
            else:
                self.send_response(200)
                for name, value in ({"Content-Length": str(len(body))} | has.headers.get(self.path, {})).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        has.url = f"http://127.0.0.1:{http.server_port}/"
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield has
        http.shutdown()
        thread.join()


def published(*places: str, **contents: bytes) -> dict[str, Published]:
    """A data set ``tiny`` whose files a and b have their true checksums."""
    contents = contents or {"a": ONE, "b": TWO}
    files = [File(name, len(data), f"md5:{hashlib.md5(data).hexdigest()}") for name, data in contents.items()]
    return {"tiny": Published(tuple(files), places, "http://authors.example/tiny")}


def refuse(name: str, root: Path) -> object:
    raise SettingError("it is damaged.")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def states(rows: list[dict[str, Any]]) -> list[str]:
    return [row["state"] for row in rows]
