"""The command that records and lists alarms of devices."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfloor.cli import shared
from fedfloor.cli.options import Json
from fedfloor.errors import SettingError, unknown
from fedfloor.terminal import printable, show

if TYPE_CHECKING:
    from fedfloor.deploy.settings import AlarmSettings


def alarms(
    park: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder that fedfloor provision wrote, or its part 'alarms'.")
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="Record and print the devices' alarms until Ctrl-C or SIGTERM.")
    ] = False,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only alarms since 30m, 12h or 7d ago, or a date.")
    ] = None,
    device: Annotated[
        list[str] | None, typer.Option("--device", metavar="NAME", help="Only alarms of this device; repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """List or record alarms of predicting devices: drift, and alarms by the models' decisions."""
    with shared.needing("alarms", "deploy"):
        from fedfloor.deploy import authority, kept
        from fedfloor.rollout import alarms as module
    settings = kept.read(park)
    wanted = _devices(settings, device or [])
    if follow:
        if since is not None:
            raise SettingError("--since lists recorded alarms: leave it out with --follow.")
        shared.note(f"recording alarms in {settings.state} until Ctrl-C")
        module.follow(settings, shared.termination(), lambda line: _print(line, wanted, as_json=as_json))
        return
    start = None if since is None else kept.moment(since, authority.now())
    lines = [one for one in kept.lines(settings.state, start) if one["device"] in wanted]
    show(lines if as_json else [_row(one) for one in lines], as_json=as_json)
    if not (settings.state / kept.NOW).exists():
        shared.note(f"no alarms were recorded here. To record them: fedfloor alarms {park} --follow")


def _devices(settings: AlarmSettings, names: list[str]) -> set[str]:
    """Return the chosen devices: those of ``--device``, otherwise all."""
    known = {device for one in settings.factories for device in one.devices}
    for name in names:
        if name not in known:
            raise unknown("device of --device", name, known)
    return set(names) or known


def _row(line: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded line as a row of a table."""
    from fedfloor.deploy.kept import words

    at = dt.datetime.fromisoformat(line["at"]).astimezone()
    rows = "–".join(map(str, dict.fromkeys(line["rows"] or ()))) or None
    return {"at": f"{at:%Y-%m-%d %H:%M:%S}", "device": line["device"], "factory": line["factory"],
            "version": line["version"], "alarm": words(line), "file": line["file"], "rows": rows,
            "messages": line["messages"]}  # fmt: skip


def _print(line: dict[str, Any], wanted: set[str], *, as_json: bool) -> None:
    """Print a recorded line, as one line of JSON or of text."""
    if line["device"] not in wanted:
        return
    row = _row(line)
    where = "" if row["file"] is None else f" ({row['file']}, row {row['rows']})"
    text = f"{row['at']}  {row['device']}, version {row['version']}: {row['alarm']}{where}"
    with contextlib.suppress(BrokenPipeError):  # alarms are recorded even if the output is closed
        print(json.dumps(line) if as_json else printable(text), flush=True)
