"""The command ``provision``: what every machine of a park needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedfloor.cli.options import Json
from fedfloor.errors import SettingError

ABSENT = "needs the packages of deployment: pip install 'fedfloor[deploy]'"
Revoke = Annotated[
    list[str] | None, typer.Option("--revoke", metavar="NAME", help="Shut this certificate's holder out; repeatable.")
]
Renew = Annotated[
    list[str] | None, typer.Option("--renew", metavar="NAME", help="Give it a new certificate now; repeatable.")
]
Check = Annotated[
    Path | None,
    typer.Option(
        "--check", metavar="DIR", help="Only look a folder over, and whether it holds all that PARK.toml names."
    ),
]


def provision(
    park: Annotated[Path | None, typer.Argument(metavar="PARK.toml", help="The park file.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder to write; default: the park's name.")]
        = None,
    revoke: Revoke = None, renew: Renew = None,
    check: Check = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Write certificates, keys and settings for every machine of a park; run again, it adds what is new."""
    try:
        from fedfloor.deploy import inspect, park_file
        from fedfloor.deploy.provision import misfits
        from fedfloor.deploy.provision import provision as write
    except ModuleNotFoundError as absent:
        raise SettingError(f"provision {ABSENT} ({absent.name} is missing).") from absent
    from fedfloor.terminal import show

    if check is not None:
        faults = inspect.faults(check)
        if park is not None:
            described = park_file.read(park)
            faults += [*inspect.unprovisioned(check, described), *misfits(described)]
        if as_json:
            show([{"fault": one} for one in faults], as_json=True)
        else:
            print("\n".join(faults) or f"{check}: nothing is wrong.")
        raise typer.Exit(1 if faults else 0)
    if park is None:
        raise SettingError("provision needs a park file: fedfloor provision PARK.toml --out DIR.")
    there = park_file.read(park)
    done = write(there, out or Path(there.name), revoke or (), renew or ())
    if as_json:
        more: dict[str, Any] = {"folder": str(done.folder), "written": done.written, "notes": done.notes}
        show(list(done.rows), as_json=True, **more)
    else:
        show([{key: value for key, value in row.items() if key != "folder"} for row in done.rows], as_json=False)
    for note in done.notes:
        print(note, file=sys.stderr)
    if not as_json:
        print(f"written: {len(done.written)} files in {done.folder}; authority/ca.key must stay with you")
