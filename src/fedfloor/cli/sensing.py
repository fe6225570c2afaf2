"""The command that reads a device's sensors."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from fedfloor.cli import shared
from fedfloor.cli.options import Json
from fedfloor.errors import SettingError


def sense(
    source: Annotated[Path, typer.Argument(metavar="SOURCE.toml", help="Description of the source and its sensors.")],
    into: Annotated[
        Path | None, typer.Option("--into", metavar="FILE.sqlite", help="The ring buffer for the rows.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Connect once, and list the sensors and their values.")]
        = False,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=0.1, help="Seconds until the end; --check waits 10 s by default."),
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Read a device's sensors into a ring buffer on disk, the agent's training data, until Ctrl-C."""
    from fedfloor.data.files.buffer import BUFFERS
    from fedfloor.sensors import sense as agent
    from fedfloor.sensors.settings import read
    from fedfloor.terminal import show

    settings = read(source)
    if check:
        rows = agent.check(settings, seconds or 10.0)
        show(rows, as_json=as_json)
        raise typer.Exit(0 if rows and all(row["kind"] != "no value" for row in rows) else 1)
    if into is None or not into.name.endswith(BUFFERS):
        raise SettingError(f"--into {into or ''}: give the buffer's file, with the ending {' or '.join(BUFFERS)}.")
    stop = shared.termination()
    if seconds is not None:
        timer = threading.Timer(seconds, stop.set)
        timer.daemon = True
        timer.start()
    status = agent.run(settings, into, stop, _report)
    _report(status)
    if as_json:
        show([status], as_json=True)


def _report(status: dict[str, Any]) -> None:
    newest = status["newest"]
    at = "none" if newest is None else datetime.fromtimestamp(newest, UTC).isoformat(" ", "seconds")
    known = ("rows", "columns", "newest", "read", "alive")
    more = "".join(f", {key}: {count:,}" for key, count in status.items() if key not in known and count)
    shared.note(f"{status['rows']:,} rows of {status['columns']} sensors, newest {at}{more}")
