"""The command that serves a run's page."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedfloor.cli import shared
from fedfloor.errors import SettingError

if TYPE_CHECKING:
    from types import ModuleType


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder, or a park's.")],
    alarms: Annotated[
        Path | None, typer.Option("--alarms", metavar="DIR", help="The park's folder, whose devices' alarms are shown.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; beyond 127.0.0.1, with TLS and password.")]
        = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0: any free port.")] = 8700,
    cert: Annotated[Path | None, typer.Option("--cert", metavar="FILE", help="TLS certificate (PEM).")] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="The certificate's key (PEM).")] = None,
    password: Annotated[
        Path | None, typer.Option("--password-file", metavar="FILE", help="File with the password of the page.")
    ] = None,
    names: Annotated[
        list[str] | None, typer.Option("--name", metavar="NAME", help="A host name used by browsers; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as one JSON document instead.")]
        = False,
    handed: Annotated[int | None, typer.Option("--socket", hidden=True)] = None,
    parent: Annotated[int | None, typer.Option("--parent", hidden=True)] = None,
) -> None:  # fmt: skip
    """Serve a page that shows a run while it trains: metrics, plan, devices, costs, losses, logs and alarms."""
    from fedfloor.terminal import show
    from fedfloor.watch.state import Watched

    watched = Watched(folder, waiting=handed is not None, alarms=alarms)
    if as_json:
        watched.poll()
        document = dict(watched.document)
        show(document.pop("rounds"), as_json=True, **document)
        return
    module = _module()
    place = module.PageListener(host, port, cert, key, password, tuple(names or ()))
    place.check()
    sock = place.listen() if handed is None else socket.socket(fileno=handed)
    if handed is None:
        shared.note(f"{place.address(sock)} shows {folder} until Ctrl-C")
    module.serve(watched, sock, place, parent)


def _module() -> ModuleType:
    with shared.needing("watch", "watch", "its packages"):
        from fedfloor.watch import serve as module
    return module


@contextmanager
def watched(folder: Path, *, watch: bool, stay: bool) -> Iterator[None]:
    """Serve a run's page while the body runs, if ``watch``; with ``stay`` also afterwards, until Ctrl-C."""
    if stay and not watch:
        raise SettingError("--stay requires --watch. Give both, or leave --stay out.")
    if not watch:
        yield
        return
    with _module().serving(folder) as (url, _):
        shared.note(f"watch: {url}")
        yield
        if stay:
            shared.note(f"the run is over; {url} is served until Ctrl-C")
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
