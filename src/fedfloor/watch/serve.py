"""The web server of the page: its address, its TLS and password, limits on connections, its process during a run."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedfloor.base import regular
from fedfloor.base.errors import RunError, SettingError
from fedfloor.watch.app import HEADER_BYTES, Access, application
from fedfloor.watch.several import WatchedRuns
from fedfloor.watch.state import Watched

HERE = "127.0.0.1"
PORT = 8700
HANDSHAKE_S = 5.0
PASSWORD_CHARS = 12
NICE = 10  # low priority during a run
REQUEST_S = 10.0  # longest time for a request and its answer
STREAM_S = 3600.0  # longest stream of events; browsers reconnect
UNREAD_S = 10.0  # longest pause of a reading client
CLOSING_S = 2.0  # longest wait for a client to read the end of an answer
MOST_REQUESTS = 256  # most connections without a stream
MOST_STREAMS = 128
MOST_HANDSHAKES = 256
RETRY_S = 0.1  # pause after a connection that could not be accepted


@dataclass(frozen=True)
class PageListener:
    """The address of the page: host and port and, for other machines, the files of certificate, key and password."""

    host: str = HERE
    port: int = PORT
    cert: Path | None = None
    key: Path | None = None
    password: Path | None = None
    names: tuple[str, ...] = ()

    def address(self, sock: socket.socket) -> str:
        """Return the page's URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.cert else ''}://{host}:{sock.getsockname()[1]}/"

    def check(self) -> None:
        """Check all settings before a port is opened.

        Raises:
            SettingError: the page is reachable from other machines without TLS or a password, or a file cannot be read.
        """
        if (self.cert is None) != (self.key is None):
            raise SettingError("--cert and --key belong together: give both, or neither.")
        if not self._is_here and (self.cert is None or self.password is None):
            raise SettingError(
                f"--host {self.host} is reachable from elsewhere: give a certificate (--cert FILE --key FILE) and a "
                f"password (--password-file FILE), or leave --host out and connect by SSH (ssh -L {self.port}:{HERE}:"
                f"{self.port} THIS-MACHINE)."
            )
        self.access()
        self.tls()

    def access(self) -> Access:
        """Return the access rules of the page, with its names and its password."""
        own = {"localhost", self.host.lower(), socket.gethostname().lower(), *map(str.lower, self.names)}
        return Access(frozenset(own), None if self.password is None else _password(self.password))

    @property
    def _is_here(self) -> bool:
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return self.host == "localhost"

    def listen(self) -> socket.socket:
        """Return a listening socket.

        Raises:
            RunError: the port is in use.
            SettingError: the host is unknown or not this machine.
        """
        try:
            family, kind, proto, _, where = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            sock = socket.socket(family, kind, proto)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
            sock.listen(256)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise RunError(
                    f"port {self.port} is in use: choose another with --port, or any with --port 0."
                ) from error
            raise SettingError(f"--host {self.host}, --port {self.port}: {error.strerror or error}.") from error
        return sock

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS settings; None without a certificate.

        Raises:
            SettingError: certificate or key cannot be read, or do not match.
        """
        if self.cert is None or self.key is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_cert_chain(regular.check(self.cert), regular.check(self.key))
        except (OSError, ssl.SSLError) as error:
            raise SettingError(f"--cert {self.cert}, --key {self.key}: {error.strerror or error}.") from error
        return context


def _password(path: Path) -> str:
    try:
        password = regular.read_text(path).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"--password-file {path}: {getattr(error, 'strerror', None) or error}.") from error
    if len(password) < PASSWORD_CHARS:
        raise SettingError(
            f"--password-file {path}: holds {len(password)} characters, but needs at least {PASSWORD_CHARS}. "
            "python -c 'import secrets; print(secrets.token_urlsafe())' makes a good one."
        )
    return password


class BoundedProtocol(H11Protocol):
    """A connection for a single request, with limits in number, time and unread bytes.

    If there are too many connections, the oldest is closed for the newest.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.app_state = {**self.app_state, "connection": self}  # passed to the application as scope["state"]
        self.streams, self.since = False, self.loop.time()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection and limit its time."""
        super().connection_made(transport)
        self._abort_after("request", REQUEST_S)
        self._make_room(MOST_REQUESTS)

    def begin_stream(self) -> None:
        """Extend the time limit for a stream of events to an admitted client."""
        self.streams, self.since = True, self.loop.time()
        self._abort_after("request", STREAM_S)
        self._make_room(MOST_STREAMS)

    def _make_room(self, most: int) -> None:
        bounded = [other for other in self.connections if isinstance(other, BoundedProtocol)]
        alike = sorted((other for other in bounded if other.streams == self.streams), key=lambda other: other.since)
        for other in alike[: max(0, len(alike) - most)]:
            other.transport.abort()

    def _abort_after(self, name: str, seconds: float) -> None:
        self._cancel(name)
        self._timers[name] = self.loop.call_later(seconds, self.transport.abort)

    def _cancel(self, name: str) -> None:
        if name in self._timers:
            self._timers[name].cancel()

    def pause_writing(self) -> None:
        """Start the time limit for a client that has stopped reading."""
        super().pause_writing()
        self._abort_after("unread", UNREAD_S)

    def resume_writing(self) -> None:
        """End the time limit for a client that reads again."""
        super().resume_writing()
        self._cancel("unread")

    def on_response_complete(self) -> None:
        """Start the time limit for the client to read the end of an answer."""
        super().on_response_complete()
        self._abort_after("closing", CLOSING_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the counts."""
        super().connection_lost(exc)
        for name in self._timers:
            self._cancel(name)


class TlsListener:
    """A TLS server in the place of asyncio's, which neither counts handshakes nor waits for a client's first byte.

    A connection without a finished handshake counts from its acceptance: the newest of more than
    :data:`MOST_HANDSHAKES` replaces the oldest. The buffers of TLS (256 KiB) are made with its first byte.
    """

    def __init__(self, sock: socket.socket, tls: ssl.SSLContext, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._sock = sock
        self._tls = tls
        self._protocol = protocol
        self._handshakes: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._loop = asyncio.get_running_loop()
        self._accepting = self._loop.create_task(self._accept())
        sock.setblocking(False)

    def close(self) -> None:
        """End to accept connections, and close those without a finished handshake."""
        for task in (self._accepting, *self._handshakes):
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait for the end of the connections without a finished handshake."""
        await asyncio.gather(self._accepting, *self._handshakes, return_exceptions=True)

    async def _accept(self) -> None:
        while True:
            try:
                client, _ = await self._loop.sock_accept(self._sock)
            except OSError:  # too many open files, or the client has gone
                await asyncio.sleep(RETRY_S)
                continue
            task = self._loop.create_task(self._handshake(client))
            self._handshakes[task] = None
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))
            if len(self._handshakes) > MOST_HANDSHAKES:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                oldest.cancel()
            await asyncio.sleep(0)  # so that the task begins before more are accepted

    async def _handshake(self, client: socket.socket) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await self._first_byte(client)
        except (TimeoutError, asyncio.CancelledError):
            client.close()
            return
        try:
            await self._loop.connect_accepted_socket(
                self._protocol, client, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_S
            )
        except (OSError, asyncio.CancelledError):
            with contextlib.suppress(OSError):  # closed already
                client.shutdown(socket.SHUT_RDWR)  # its transport, which a cancellation may leave, then closes it

    async def _first_byte(self, client: socket.socket) -> None:
        ready = asyncio.Event()
        self._loop.add_reader(client, ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_reader(client)


class _Server(uvicorn.Server):
    """A Uvicorn server with limits on TLS handshakes."""

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._tls = tls

    async def startup(self, sockets: Iterable[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        await self.lifespan.startup()

        def protocol() -> BoundedProtocol:
            return BoundedProtocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

        tls = self._tls
        loop = asyncio.get_running_loop()
        servers: list[Any] = [  # Uvicorn only closes them
            await loop.create_server(protocol, sock=sock) if tls is None else TlsListener(sock, tls, protocol)
            for sock in sockets or ()
        ]
        self.servers = servers
        self.should_exit |= self.lifespan.should_exit
        self.started = True


def serve(watched: Watched | WatchedRuns, sock: socket.socket, place: PageListener, parent: int | None = None) -> None:
    """Serve the page until Ctrl-C, SIGTERM or the end of the process ``parent``, if given."""
    if parent is not None:
        os.nice(NICE)

    def over() -> bool:
        server.should_exit |= parent is not None and os.getppid() != parent
        return server.should_exit

    app = application(watched, place.access(), over)
    config = uvicorn.Config(
        app, ws="none", loop="asyncio", log_config=None, access_log=False, server_header=False, lifespan="on",
        h11_max_incomplete_event_size=HEADER_BYTES, timeout_graceful_shutdown=1,
    )  # fmt: skip
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # requests that are no HTTP would fill a log
    server = _Server(config, place.tls())
    with contextlib.suppress(KeyboardInterrupt):
        server.run([sock])


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, int]]:
    """Serve a run's page in a separate process while the body runs; yield its URL and the process id.

    Args:
        folder: the run's folder, which need not exist yet.
    """
    place = PageListener(port=0)
    with place.listen() as sock:
        words = [str(folder.absolute()), "--socket", str(sock.fileno()), "--parent", str(os.getpid())]
        child = subprocess.Popen(
            [sys.executable, "-m", "fedfloor", "watch", *words], pass_fds=[sock.fileno()], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        url = place.address(sock)
    try:
        yield url, child.pid
    finally:
        child.terminate()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
