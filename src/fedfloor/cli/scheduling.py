"""The command that lets training start by itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedfloor.cli.deploying import termination
from fedfloor.cli.options import Json
from fedfloor.cli.releasing import ABSENT
from fedfloor.errors import SettingError


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
        bool, typer.Option("--once", help="Look once, start a run where there is a reason, and end after it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show how far each reason is; start and write nothing.")
    ] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Wait for the reasons in [schedule], and start a run for each; until Ctrl-C."""
    try:
        from fedfloor.rollout.schedule import Scheduler
    except ModuleNotFoundError as absent:
        raise SettingError(f"a schedule {ABSENT} ({absent.name} is missing).") from absent
    from fedfloor.terminal import show

    made = Scheduler(config, park, alarms, lambda text: print(text, file=sys.stderr, flush=True))
    if dry_run:
        show(made.look(), as_json=as_json)
        return
    code = made.run(termination(), once=once)
    if as_json:
        show(made.lines, as_json=True)
    if code:
        raise typer.Exit(code)
