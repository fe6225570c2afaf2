"""Limits on HTTP connections in number, time and unread bytes, so that clients cannot exhaust the server."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0  # longest time for a request and its answer
STREAM_S = 3600.0  # longest stream of events; browsers reconnect
UNREAD_S = 10.0  # longest pause of a reading client
CLOSING_S = 2.0  # longest wait for a client to read the end of an answer
MOST_REQUESTS = 256  # most connections without a stream
MOST_STREAMS = 128


class BoundedProtocol(H11Protocol):
    """A connection for a single request; if there are too many, the oldest is closed for the newest."""

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
