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
        Path | None, typer.Option("--alarms", metavar="DIR", help="Folder of recorded alarms; default: that of --park.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Check the reasons once, carry out a run if one holds, and end.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the state of each reason, without a run.")
    ] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Start a run whenever a reason in [schedule] holds, until Ctrl-C."""
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
