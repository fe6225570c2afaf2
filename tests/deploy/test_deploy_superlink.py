"""The fence around Flower's SuperLink: other machines reach what SuperNodes need, and nothing else."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedfloor.deploy import authority, submit, superlink
from fedfloor.deploy.settings import CloudEdge, CloudSettings, Endpoint
from fedfloor.errors import RunError
from fedfloor.runs.launch import ignore
from fedfloor.runs.orders import Limits
from parks import free_port, until

HERE, THERE = ("10.42.0.1", 9092), ("10.42.0.2", 40_000)


def answered(path: str, client: tuple[str, int] | None, kind: str = "http") -> list[Any]:
    """What comes back: "passed" where the application is reached."""
    said: list[Any] = []

    async def app(*_: Any) -> None:
        said.append("passed")

    async def send(message: Any) -> None:
        said.append(message.get("status", message["type"]))

    asyncio.run(superlink.Fence(app)({"type": kind, "path": path, "client": client, "server": HERE}, None, send))  # type: ignore[arg-type]
    return said


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/x", "/docs", "/"])
def test_other_machines_may_not_start_programs_or_register_nodes(path: str) -> None:
    assert answered(path, THERE) == [403, "http.response.body"]
    assert answered(path, None) == [403, "http.response.body"]
    assert answered(path, THERE, "websocket") == ["websocket.close"]


def test_supernodes_and_this_machine_pass() -> None:
    assert answered("/v1/fleet/activate-node", THERE) == ["passed"]
    for own in ("127.0.0.1", "::1", "::ffff:127.0.0.1", HERE[0]):
        assert answered("/v1/control/start-run", (own, 40_000)) == ["passed"]


@pytest.mark.parametrize("path", ["/v1/fleet/../control/start-run", "/v1/fleetx", "/V1/FLEET/x", "//v1/fleet/x"])
def test_paths_are_taken_literally_as_the_router_takes_them(path: str) -> None:
    literal = path.startswith("/v1/fleet/")  # no route begins so and goes elsewhere
    assert (answered(path, THERE) == ["passed"]) == literal


def test_flowers_own_server_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    uvicorn = pytest.importorskip("uvicorn")
    monkeypatch.setattr(uvicorn.Config, "__init__", uvicorn.Config.__init__)  # put back afterwards
    superlink.fence()

    async def app(*_: Any) -> None: ...

    made = uvicorn.Config(app, proxy_headers=True)
    made.load()
    inner = made.loaded_app
    assert isinstance(inner, superlink.Fence)
    assert not made.proxy_headers


def unfinished(fence: superlink.Fence, requests: int, size: int) -> list[str]:
    """How the bodies of so many requests at once end, which never become complete."""
    ends: list[str] = []

    async def request() -> None:
        sent = [{"type": "http.request", "body": bytes(size), "more_body": True}]

        async def receive() -> Any:
            return sent.pop() if sent else await asyncio.sleep(60)

        async def send(_: Any) -> None: ...

        await fence({"type": "http", "path": "/v1/fleet/x", "client": THERE, "server": HERE}, receive, send)

    async def all_of_them() -> None:
        await asyncio.gather(*(request() for _ in range(requests)))

    async def app(_: Any, receive: Any, __: Any) -> None:
        for read in range(10):
            if (await receive())["type"] == "http.disconnect":
                ends.append("late" if read else "full")
                return

    fence.app = app
    asyncio.run(all_of_them())
    return ends


def test_unfinished_bodies_hold_a_bounded_memory_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty requests of 15 MB without a certificate held 600 MB of the SuperLink's memory for good."""
    monkeypatch.setattr(superlink, "HELD_BYTES", 10_000 * superlink.SHARE)
    monkeypatch.setattr(superlink, "BODY_S", 0.5)
    fence = superlink.Fence(None)  # type: ignore[arg-type]
    ends = unfinished(fence, requests=10, size=4000)
    assert sorted(ends) == ["full"] * 8 + ["late"] * 2
    assert not fence.held


# -- bodies and TLS ----------------------------------------------------------------------------------------------------


def received(chunks: Sequence[bytes], headers: Sequence[tuple[bytes, bytes]] = ()) -> tuple[list[Any], list[Any]]:
    """What an application that reads a whole body receives, and what is answered for it."""
    events, said = [], []
    pending = [{"type": "http.request", "body": one, "more_body": True} for one in chunks]

    async def app(_: Any, receive: Any, __: Any) -> None:
        while len(events) < len(chunks) and (not events or events[-1]["type"] != "http.disconnect"):
            events.append(await receive())

    async def receive() -> Any:
        return pending.pop(0)

    async def send(message: Any) -> None:
        said.append(message.get("status"))

    scope = {"type": "http", "path": "/v1/fleet/x", "client": THERE, "server": HERE, "headers": headers}
    asyncio.run(superlink.Fence(app)(scope, receive, send))
    return events, said


def test_a_body_that_states_its_size_is_refused_before_it_is_read() -> None:
    large = str(superlink.BODY_BYTES + 1).encode()
    assert received([b"x"], [(b"content-length", large)]) == ([], [413, None])
    fits = str(superlink.BODY_BYTES).encode()
    assert len(received([b"x"], [(b"content-length", fits)])[0]) == 1


@pytest.mark.parametrize("headers", [(), ((b"content-length", b"5"),), ((b"content-length", b"-1"),)])
def test_a_body_that_grows_is_cut_off_whatever_it_states(headers: Sequence[tuple[bytes, bytes]]) -> None:
    chunk = bytes(superlink.BODY_BYTES // 4)
    events, _ = received([chunk] * 8, headers)
    assert [one["type"] for one in events] == ["http.request"] * 4 + ["http.disconnect"]


def test_what_is_served_takes_tls_1_3_and_nothing_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uvicorn = pytest.importorskip("uvicorn")
    monkeypatch.setattr(uvicorn.Config, "__init__", uvicorn.Config.__init__)  # put back afterwards
    ca = authority.found("plant", authority.now())
    files = authority.issue(ca, authority.Holder("superlink", ("127.0.0.1",), client=False), 30, authority.now())
    (tmp_path / "ca.crt").write_bytes(ca.pem()[0])
    for name, text in zip(("cert", "key"), files, strict=True):
        (tmp_path / name).write_bytes(text)
    superlink.fence()

    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    port, more = free_port(), {"lifespan": "off", "log_config": None}
    tls = {"ssl_certfile": str(tmp_path / "cert"), "ssl_keyfile": str(tmp_path / "key")}
    server = uvicorn.Server(uvicorn.Config(app, port=port, **tls, **more))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert until(lambda: server.started)

        def version(most: ssl.TLSVersion) -> str | None:
            context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
            context.maximum_version = most
            with (
                socket.create_connection(("127.0.0.1", port)) as raw,
                context.wrap_socket(raw, server_hostname="127.0.0.1") as one,
            ):
                return one.version()

        assert version(ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            version(ssl.TLSVersion.TLSv1_2)
    finally:
        server.should_exit = True
        thread.join(10)


# -- the cloud's end of Flower -----------------------------------------------------------------------------------------


class FakeGrid:
    """Flower's grid with nodes that answer, or for which the SuperLink answers with an error."""

    def __init__(self, nodes: Sequence[int], dead: Sequence[int] = ()) -> None:
        self.nodes, self.dead, self.pushed = list(nodes), set(dead), dict[str, Any]()

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        start = len(self.pushed)
        self.pushed |= {str(start + i): one for i, one in enumerate(messages)}
        return list(self.pushed)[start:]

    def pull_messages(self, identities: Iterable[str]) -> list[Any]:
        return [self.answer(one) for one in sorted(identities, reverse=True)]

    def answer(self, identity: str) -> Any:
        from fedfloor.deploy.flower import content

        node = self.pushed[identity].metadata.dst_node_id
        dead = node in self.dead
        source = 1 if dead else node  # an error reply comes from the SuperLink's own number
        metadata = SimpleNamespace(src_node_id=source, reply_to_message_id=identity)
        return SimpleNamespace(
            metadata=metadata, has_error=lambda: dead, error=SimpleNamespace(reason="node unavailable"),
            content=None if dead else content(b"of %d" % node),
        )  # fmt: skip


def edges(grid: Any) -> Any:
    flower = pytest.importorskip("fedfloor.deploy.flower")
    return flower.ByGrid(grid, [CloudEdge("north", 0, node=70), CloudEdge("south", 1, node=71)])


def test_a_dead_supernode_is_a_lost_factory(monkeypatch: pytest.MonkeyPatch) -> None:
    flower = pytest.importorskip("fedfloor.deploy.flower")
    addressed = lambda frame, node, deadline_s: SimpleNamespace(metadata=SimpleNamespace(dst_node_id=node))  # noqa: E731
    monkeypatch.setattr(flower, "_message", addressed)
    assert edges(FakeGrid([70, 71], dead=[70])).ask({0: b"a", 1: b"b"}, 5.0) == {1: b"of 71"}


def test_without_a_single_node_the_run_ends_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    flower = pytest.importorskip("fedfloor.deploy.flower")
    monkeypatch.setattr(flower, "FIND_S", 0.1)
    unknown = flower.ByGrid(FakeGrid([]), [CloudEdge("north", 0)])
    with pytest.raises(RunError, match=r"no factory's SuperNode answered within 0.1 s.*flwr supernode register"):
        unknown.ask({0: b"a"}, 5.0)


@dataclass
class Nodes(FakeGrid):
    """Nodes that state their factory and answer as they like: node → the record of a message's kind."""

    answers: dict[int, Callable[[str], Any]]

    def __post_init__(self) -> None:
        FakeGrid.__init__(self, list(self.answers))

    def answer(self, identity: str) -> Any:
        asked = self.pushed[identity].metadata
        metadata = SimpleNamespace(src_node_id=asked.dst_node_id, reply_to_message_id=identity)
        content = self.answers[asked.dst_node_id](asked.message_type)
        return SimpleNamespace(metadata=metadata, has_error=lambda: False, content=content)


def stated(number: Any, frame: Any = b"honest") -> Callable[[str], Any]:
    """A node that states a factory, unless it is None, and answers with a frame: bytes, or a record of its own."""
    from flwr.app import ConfigRecord, RecordDict

    from fedfloor.deploy.flower import content

    record = RecordDict({} if number is None else {"factory": ConfigRecord({"number": number})})
    sent = content(frame) if isinstance(frame, bytes) else frame
    return lambda kind: record if kind == "query.factory" else sent


@pytest.fixture
def found_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, Callable[[str], Any]]], dict[int, bytes]]:
    """What the cloud takes of nodes whose factories it asks for."""
    flower = pytest.importorskip("fedfloor.deploy.flower")
    monkeypatch.setattr(flower, "FIND_S", 0.5)
    monkeypatch.setattr(flower, "AGAIN_S", 0.5)

    def addressed(*_: Any, dst_node_id: int, message_type: str, **__: Any) -> Any:
        return SimpleNamespace(metadata=SimpleNamespace(dst_node_id=dst_node_id, message_type=message_type))

    monkeypatch.setattr(flower, "Message", addressed)

    def ask(answers: dict[int, Callable[[str], Any]]) -> dict[int, bytes]:
        made = flower.ByGrid(Nodes(answers), [CloudEdge("north", 0), CloudEdge("south", 1)])
        return made.ask({0: b"a", 1: b"b"}, 1.0)  # type: ignore[no-any-return]

    return ask


@pytest.mark.parametrize("number", [None, "abc", [1, 2], b"x", float("inf"), 10**6, -1])
def test_a_node_that_states_no_factory_that_is_wanted_costs_its_own_factory_only(
    found_by: Callable[..., dict[int, bytes]], number: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert found_by({100: stated(number), 200: stated(1)}) == {1: b"honest"}
    assert caplog.text.count("node 100: its factory") == 1


@pytest.mark.parametrize("case", ["nothing", "another name", "no array", "no arrays"])
def test_an_answer_without_a_frame_is_no_answer(
    found_by: Callable[..., dict[int, bytes]], case: str, caplog: pytest.LogCaptureFixture
) -> None:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    one = Array(dtype="uint8", shape=(1,), stype="x", data=b"1")
    records = {
        "nothing": {}, "another name": {"x": ArrayRecord({"frame": one})},
        "no array": {"frame": ArrayRecord({"x": one})}, "no arrays": {"frame": ConfigRecord({"frame": 1})},
    }  # fmt: skip
    assert found_by({100: stated(0, RecordDict(records[case])), 200: stated(1)}) == {1: b"honest"}
    assert "factory 0: its message holds no frame" in caplog.text


def test_a_second_node_cannot_take_a_factory(
    found_by: Callable[..., dict[int, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    """Where two state it at once, neither has it; one that comes later is refused."""
    flower = pytest.importorskip("fedfloor.deploy.flower")
    answers = {100: stated(0), 200: stated(1), 300: stated(1, b"forged")}
    assert found_by(answers) == {0: b"honest"}
    grid = Nodes({100: stated(0), 200: stated(1)})
    made = flower.ByGrid(grid, [CloudEdge("north", 0), CloudEdge("south", 1), CloudEdge("west", 2)])
    assert made.ask({0: b"a", 1: b"b"}, 1.0) == {0: b"honest", 1: b"honest"}
    grid.nodes.append(300)
    grid.answers[300] = stated(1, b"forged")
    assert made.ask({0: b"a", 1: b"b", 2: b"c"}, 1.0) == {0: b"honest", 1: b"honest"}
    assert "node 300: its factory 1 is refused" in caplog.text


def flwr(answer: Callable[[str], dict[str, Any]]) -> Any:
    def run(words: Sequence[str], **_: Any) -> Any:
        return SimpleNamespace(returncode=0, stdout=json.dumps(answer(words[1])), stderr="")

    return run


def test_a_superlink_that_forgot_the_run_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit.shutil, "which", lambda *_, **__: "flwr")
    monkeypatch.setattr(submit, "ALIVE_S", 0.0)
    known = {"run": {"success": True, "run-id": 7}, "ls": {"success": True, "runs": []}}
    monkeypatch.setattr(submit.subprocess, "run", flwr(known.__getitem__))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    cloud = CloudSettings("trial", tmp_path / "e.toml", tmp_path / "run", (), superlink=Endpoint("127.0.0.1", 1))
    with pytest.raises(RunError, match=r"the SuperLink does not know run 7 any more.*then --resume"):
        submit.run(cloud, tmp_path / "cloud.toml", resume=False, limits=Limits(), report=ignore)
