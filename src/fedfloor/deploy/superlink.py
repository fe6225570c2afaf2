"""Flower's SuperLink behind a fence: ``python -m fedfloor.deploy.superlink``, with ``flower-superlink``'s words.

Flower serves three interfaces on one port. Only that of SuperNodes authenticates its callers; through the others anyone
who reaches the port may register a node, or run a program at the cloud and in every factory.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_BYTES = 1 << 24  # of a request; Flower sends what is larger in chunks of 5 MiB
HELD_BYTES = 1 << 28  # of the bodies of all requests under way
SHARE = 4  # of them: one address holds at most a quarter
BODY_S = 60.0  # for a body to arrive
OPEN = "/v1/fleet/"  # what SuperNodes call; each of their messages is signed with their key


class Fence:
    """A web application of which other machines reach only what lies below :data:`OPEN`.

    Args:
        app: the application.
    """

    def __init__(self, app: App) -> None:
        self.app = app
        self.held = Counter[str]()  # bytes of bodies under way, by the address that they come from

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403, or 413 where its body is too large: before it is known whose it is."""
        if scope["type"] == "lifespan" or str(scope["path"]).startswith(OPEN) or local(scope):
            if scope["type"] == "http" and declared(scope) > BODY_BYTES:
                await _refuse(send, 413)
            else:
                await self._passed(scope, receive, send)
        elif scope["type"] == "http":
            await _refuse(send, 403)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _passed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; its body is cut off where it is late, or where all bodies together hold too much."""
        caller = str((scope.get("client") or ("",))[0])
        taken, complete, until = 0, scope["type"] != "http", time.monotonic() + BODY_S
        received = bounded(receive)

        async def receiving() -> MutableMapping[str, Any]:
            nonlocal taken, complete
            if complete:
                return await received()
            try:
                event = await asyncio.wait_for(received(), max(0.0, until - time.monotonic()))
            except TimeoutError:
                return {"type": "http.disconnect"}
            size, complete = len(event.get("body", b"")), not event.get("more_body", False)
            if self.held[caller] + size > HELD_BYTES // SHARE or self.held.total() + size > HELD_BYTES:
                return {"type": "http.disconnect"}
            taken, self.held[caller] = taken + size, self.held[caller] + size
            return event

        try:
            await self.app(scope, receiving, send)
        finally:
            self.held[caller] -= taken
            if not self.held[caller]:
                del self.held[caller]


async def _refuse(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def declared(scope: Scope) -> int:
    """Return the length of a request's body as its header states it; 0 where it states none."""
    stated = dict(scope.get("headers", ())).get(b"content-length", b"0")
    return int(stated) if stated.isdigit() else 0


def bounded(receive: Receive) -> Receive:
    """Return how a request is received: a body that grows too large, whatever its header states, counts as cut off."""
    taken = 0

    async def receiving() -> MutableMapping[str, Any]:
        nonlocal taken
        event = await receive()
        taken += len(event.get("body", b""))
        return event if taken <= BODY_BYTES else {"type": "http.disconnect"}

    return receiving


def local(scope: Scope) -> bool:
    """Return whether a request comes from this machine: from a loopback address, or from the one that it calls.

    >>> local({"client": ("10.42.0.1", 40000), "server": ("10.42.0.1", 9092)})
    True
    >>> local({"client": ("10.42.0.2", 40000), "server": ("10.42.0.1", 9092)})
    False
    """
    if not scope.get("client") or not scope.get("server"):
        return False
    try:
        caller, called = (ipaddress.ip_address(scope[one][0]) for one in ("client", "server"))
    except ValueError:
        return False
    mapped = getattr(caller, "ipv4_mapped", None)  # 127.0.0.1 as a socket of both kinds names it
    return caller == called or (mapped or caller).is_loopback


def fence() -> None:
    """Fence every application that this process serves from now on; with TLS, by TLS 1.3."""
    import uvicorn

    def newest(_: object, make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        context = make()
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return context

    made = uvicorn.Config.__init__

    def fenced(self: Any, app: Any, *args: Any, **more: Any) -> None:
        if more.get("ssl_certfile"):
            more["ssl_context_factory"] = newest
        made(self, Fence(app), *args, **{**more, "proxy_headers": False})  # a header names no other caller

    uvicorn.Config.__init__ = fenced  # type: ignore[method-assign]


def main() -> None:
    """Run the SuperLink."""
    from flwr.superlink.cli import flower_superlink

    fence()
    flower_superlink()


if __name__ == "__main__":
    main()
