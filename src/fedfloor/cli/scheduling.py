"""The command that starts training automatically."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedfloor.cli import shared
from fedfloor.cli.options import Json


def schedule(
    config: Annotated[Path, typer.Argument(metavar="CLOUD.toml", help="The cloud's settings, with a [schedule].")],
    park: Annotated[
        Path | None,
        typer.Option("--park", metavar="DIR", help="The folder that fedfloor provision wrote, with the authority."),
    ] = None,
    alarms: Annotated[
        Path | None, typer.Option("--alarms", metavar="DIR", help="Where alarms are kept; default: that of --park.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Check once, start a run where a reason holds, and end after it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the state of each reason; start and write nothing.")
    ] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Wait for the reasons in [schedule], and start a run for each, until Ctrl-C."""
    with shared.needing("a schedule", "deploy,onnx"):
        from fedfloor.rollout.schedule import Scheduler
    from fedfloor.terminal import show

    made = Scheduler(config, park, alarms, shared.note)
    if dry_run:
        show(made.look(), as_json=as_json)
        return
    code = made.run(shared.termination(), once=once)
    if as_json:
        show(made.lines, as_json=True)
    if code:
        raise typer.Exit(code)
