"""The fence around Flower's SuperLink: other machines reach what SuperNodes need, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fedfloor.deploy import superlink

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
