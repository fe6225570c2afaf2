"""The web application of the page: access control, a stream of changes, the state as JSON, and metrics."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedfloor.base.strict import json_text
from fedfloor.watch.files import Row
from fedfloor.watch.several import WatchedRuns
from fedfloor.watch.state import Watched

POLL_S = 0.25  # interval between two checks of the folder
HEADER_BYTES = 8192  # largest request
BEAT_S = 15.0  # interval between keep-alive comments to a page
BEHIND = 64  # changes that a slow page may lag behind before it receives the whole state instead
REFUSED_S = 1.0  # delay of the answer to a wrong password
DEVICE = re.compile(r"[0-9]{1,12}")  # Python reads no whole number of thousands of digits
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(:[0-9]{1,5})?")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store", "Connection": "close",
}  # fmt: skip


@dataclass(frozen=True)
class Access:
    """The access rules of the page.

    Args:
        names: host names of the server besides IP addresses; requests to other names are refused (DNS rebinding).
        password: the password of clients; None: no password.
    """

    names: frozenset[str] = frozenset({"localhost"})
    password: str | None = None

    def knows(self, hosts: list[str]) -> bool:
        """Return whether a request's ``Host`` headers name this server.

        >>> [Access().knows([host]) for host in ("127.0.0.1:80", "[::1]", "LOCALHOST:1", "evil.example", "")]
        [True, True, True, False, False]
        """
        match = HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None:
            return False
        try:
            return bool(ipaddress.ip_address(match[1].strip("[]")))
        except ValueError:
            return match[1].lower() in self.names

    def admits(self, authorization: str) -> bool:
        """Return whether a request's ``Authorization`` holds the password, as bearer token or of any user."""
        if self.password is None:
            return True
        kind, _, given = authorization.partition(" ")
        if kind.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return False
        elif kind.lower() != "bearer":
            return False
        return hmac.compare_digest(given.encode(), self.password.encode())


class PageGuard:
    """A wrapper of the application that passes admitted requests to it and adds security headers to answers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def complete(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        headers = Headers(scope=scope)
        answer = self.app
        if len(scope["raw_path"]) + sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES:
            answer = PlainTextResponse("", 431)
        elif not self.access.knows(headers.getlist("host")):
            answer = PlainTextResponse(
                "This server has another name: allow this name with fedfloor watch --name.\n", 421
            )
        elif scope["path"] != "/health" and not self.access.admits(headers.get("authorization", "")):
            await asyncio.sleep(REFUSED_S if "authorization" in headers else 0)
            login = {"WWW-Authenticate": 'Basic realm="fedfloor", charset="UTF-8"'}
            answer = PlainTextResponse("A password is required, with any user name.\n", 401, login)
        await answer(scope, receive, complete)


class Feed:
    """The state of a run for any number of readers, which share a list of the last changes."""

    def __init__(self, watched: Watched | WatchedRuns) -> None:
        self.watched = watched
        self.document = dict[str, Any]()
        self._number = 0
        self._changes = deque[bytes](maxlen=BEHIND)
        self._changed = asyncio.Condition()
        self._whole: tuple[int, bytes] = (-1, b"")

    async def poll(self) -> None:
        """Check the folder once, and wake the readers if the state has changed."""
        changes = await asyncio.to_thread(self.watched.poll)
        if changes:
            async with self._changed:
                self.document = self.watched.document
                self._number += 1
                self._changes.append(event("change", changes))
                self._changed.notify_all()

    def whole(self) -> bytes:
        """Return the whole state as an encoded event."""
        if self._whole[0] != self._number:
            self._whole = (self._number, event("state", self.document))
        return self._whole[1]

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the state, then its changes, and a comment when there are none."""
        seen = self._number
        yield b"retry: 1000\n\n" + self.whole()
        while True:
            try:
                async with asyncio.timeout(BEAT_S), self._changed:
                    await self._changed.wait_for(lambda: self._number > seen)  # noqa: B023
            except TimeoutError:
                yield b": nothing new\n\n"
                continue
            behind = self._number - seen
            seen = self._number
            yield self.whole() if behind > len(self._changes) else b"".join(list(self._changes)[-behind:])


def event(kind: str, data: Row) -> bytes:
    """Return an encoded server-sent event with JSON data."""
    text = json_text({**data, "at": round(time.time(), 2)}, separators=(",", ":"))
    return f"event: {kind}\ndata: {text}\n\n".encode()


def application(watched: Watched | WatchedRuns, access: Access, over: Callable[[], bool] = lambda: False) -> ASGIApp:
    """Return the web application of a watched folder.

    Args:
        over: called at every check of the folder; returns whether the process that started the page has ended.
    """
    feed = Feed(watched)
    page = {
        name: files("fedfloor.watch").joinpath(name).read_bytes() for name in ("watch.html", "watch.js", "watch.css")
    }
    page["watch.css"] = style() + page["watch.css"]

    async def look() -> None:
        while not over():
            await feed.poll()
            await asyncio.sleep(POLL_S)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await feed.poll()
        task = asyncio.create_task(look())
        yield
        task.cancel()

    def asset(name: str, kind: str) -> Callable[[Request], Response]:
        return lambda _: Response(page[name], media_type=kind)

    async def events(request: Request) -> Response:
        if "connection" in request.scope["state"]:
            request.scope["state"]["connection"].begin_stream()
        return StreamingResponse(feed.stream(), media_type="text/event-stream")

    async def state(_: Request) -> Response:
        return JSONResponse(feed.document)

    async def device(request: Request) -> Response:
        number = request.path_params["number"]
        found = await asyncio.to_thread(watched.device, int(number)) if DEVICE.fullmatch(number) else None
        return JSONResponse(found, 404 if found is None else 200)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(_: Request) -> Response:
        return Response(exposition(feed.document), media_type=CONTENT_TYPE_LATEST)

    routes = [
        Route("/", asset("watch.html", "text/html")), Route("/watch.js", asset("watch.js", "text/javascript")),
        Route("/watch.css", asset("watch.css", "text/css")), Route("/events", events), Route("/state", state),
        Route("/device/{number}", device), Route("/health", health), Route("/metrics", metrics),
    ]  # fmt: skip
    return PageGuard(Starlette(routes=routes, lifespan=lifespan), access)


def style() -> bytes:
    """Return the style sheet of reports and of drawings of plans."""
    from fedfloor.report.plan_svg import STYLE

    return files("fedfloor.report").joinpath("page.css").read_bytes() + STYLE.encode()


Values = Mapping[Any, float | None]  # values of labels → number


def exposition(document: Row) -> bytes:
    """Return the metrics of a run's state as encoded text in OpenMetrics format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Document(document))
    return bytes(generate_latest(registry))  # type: ignore[no-untyped-call]


class _Document(Collector):
    def __init__(self, document: Row) -> None:
        self._document = document

    def collect(self) -> Iterator[Metric]:
        run = self._document.get("run", {})
        rows = self._document.get
        last = (rows("rounds") or [{}])[-1]
        about = {key: str(run.get(key)) for key in ("name", "method", "seed", "data", "state")}
        yield InfoMetricFamily("fedfloor_run", "The run.", about)
        for name, words, value in (
            ("running", "Whether a process is working on the run.", float(run.get("state") == "running")),
            ("round", "Completed rounds.", run.get("round")),
            ("rounds_planned", "Scheduled rounds.", run.get("rounds")),
            ("loss", "Loss on the test data after the last round.", run.get("loss")),
            ("train_loss", "Mean loss of the visits of the last round.", run.get("train_loss")),
        ):
            yield _filled(GaugeMetricFamily(f"fedfloor_{name}", words), {(): value})
        seconds = {("predicted",): last.get("predicted_s"), ("measured",): last.get("wall_s")}
        losses = {(row["name"],): row["loss"] for row in rows("factories", ())}
        up = {(row["name"], row["kind"]): float(row["state"] in ("alive", "at work")) for row in rows("processes", ())}
        serving = rows("serving", {"kept": False})
        brokers, served = (serving["factories"], serving["devices"]) if serving["kept"] else ((), ())
        served = [row for row in served if row["state"] != "unreachable"]
        alarms, versions = ({(row["device"],): row[key] for row in served} for key in ("alarms", "version"))
        reached = {(row["factory"],): float(row["reached"]) for row in brokers}
        gauges: tuple[tuple[str, str, list[str], Values], ...] = (
            ("figure", "The headline after the last round.", ["name"], {(str(run.get("headline")),): run.get("value")}),
            (
                "round_seconds",
                "Seconds of the last round, predicted on its network and measured here.",
                ["kind"],
                seconds,
            ),
            ("factory_train_loss", "Mean loss of a factory's devices at their last visit.", ["factory"], losses),
            ("process_up", "Whether a process of the park is alive.", ["name", "kind"], up),
            ("alarms", "Drifting sensors of a device, and its model's decision on an alarm.", ["device"], alarms),
            ("model_version", "Version of the model that a device uses.", ["device"], versions),
            ("broker_connected", "Whether the process that keeps alarms reaches a factory.", ["factory"], reached),
        )
        for name, words, labels, values in gauges:
            yield _filled(GaugeMetricFamily(f"fedfloor_{name}", words, labels=labels), values)
        lost = CounterMetricFamily("fedfloor_lost_visits", "Lost visits.")
        yield _filled(lost, {(): run.get("lost", 0)})
        sent = {
            (row["link"], kind): row[f"{kind}_all"] for row in rows("links", ()) for kind in ("predicted", "measured")
        }
        yield _filled(CounterMetricFamily("fedfloor_bytes", "Bytes of all rounds.", labels=["link", "kind"]), sent)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for labels, value in values.items():
        if value is not None:
            family.add_metric(labels, value)
    return family
