"""Commands that release models to the devices of a park, show alarms of devices, and start training automatically."""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfloor.base.errors import SettingError, unknown
from fedfloor.base.strict import json_text
from fedfloor.cli import shared
from fedfloor.cli.options import Json, OwnCode
from fedfloor.runs.terminal import say, show

if TYPE_CHECKING:
    from fedfloor.deploy.settings import AlarmSettings
    from fedfloor.rollout.registry import Registry

Park = Annotated[Path, typer.Option("--park", metavar="DIR", help="The folder that fedfloor park provision wrote.")]
To = Annotated[
    list[str] | None, typer.Option("--to", metavar="NAME", help="A factory or a device; repeatable; default: all.")
]
Wait = Annotated[float, typer.Option("--wait", metavar="S", min=0.0, help="Seconds to wait for reports of devices.")]
WAIT_S = 30.0


def _read(park: Path) -> Registry:
    with shared.needing("releasing models", "deploy,onnx"):
        from fedfloor.rollout import registry
    return registry.read(park)


def release(
    what: Annotated[str, typer.Argument(metavar="RUN|VERSION", help="A run's folder, or the number of a version.")],
    park: Park, to: To = None,
    canary: Annotated[
        list[str] | None, typer.Option("--canary", metavar="DEVICE", help="Release to this device first; repeatable.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Release even if not better than the version in use, or not judged.")
    ] = False,
    own: OwnCode = False, wait: Wait = WAIT_S, as_json: Json = False,
) -> None:  # fmt: skip
    """Release a trained model to devices.

    They check its signature and switch to it.
    """
    from fedfloor.rollout import registry

    known = before = _read(park)
    number = int(what) if what.isdecimal() else 0
    rows = list[dict[str, Any]]()
    if not number:
        known, number = registry.register(known, Path(what), own=own)
        if not force:
            rows = _passed(known, number, to or (), wait, as_json=as_json)
    made = registry.release(known, number, to or (), canary or ())
    _deliver(made, before, wait, as_json=as_json, judged=rows)


def _passed(known: Registry, number: int, to: Sequence[str], wait_s: float, *, as_json: bool) -> list[dict[str, Any]]:
    """Let devices evaluate a version, or ask the user if they cannot; return the devices' rows.

    Raises:
        SettingError: the version is not better than the version in use, or not approved.
    """
    from fedfloor.rollout import gate

    verdict = gate.verdict(known, number, to, wait_s)
    if verdict.rows and not as_json:
        show(verdict.rows, as_json=False, title="evaluated on devices")
    way = f"Release it with --force, or by its number, {number}."
    if verdict.better is None and sys.stdin.isatty() and not as_json:
        name, value = known.versions[number].run.get("headline") or ("", None)
        figure = "no metric" if value is None else f"{name} {value:.4f} on the cloud's test samples"
        if not typer.confirm(f"{verdict.why}. Version {number} has {figure}. Release it?"):
            raise SettingError(f"not released. {way}", key="no-release")
    elif not verdict.better:
        raise SettingError(f"{verdict.why}: not released. {way}", key="no-release")
    return [*verdict.rows]


def promote(
    park: Park,
    version: Annotated[int | None, typer.Argument(metavar="[VERSION]", help="The version to promote.")] = None,
    wait: Wait = WAIT_S, as_json: Json = False,
) -> None:  # fmt: skip
    """Release the canaries' version to the remaining devices."""
    from fedfloor.rollout import registry

    before = _read(park)
    _deliver(registry.promote(before, version), before, wait, as_json=as_json)


def rollback(park: Park, to: To = None, wait: Wait = WAIT_S, as_json: Json = False) -> None:
    """Switch devices back to the version that they used before."""
    from fedfloor.rollout import registry

    before = _read(park)
    _deliver(registry.rollback(before, to or ()), before, wait, as_json=as_json)


def _deliver(now: Registry, before: Registry, wait_s: float, *, as_json: bool, **more: Any) -> None:
    """Send the versions of the journal's last entry, and show the devices' reports."""
    _show(now, list(now.entries[-1].about["devices"]), wait_s, before, as_json=as_json, **more)


def _show(
    now: Registry, devices: Sequence[str], wait_s: float, before: Registry | None = None, *, as_json: bool,
    send: bool = True, **more: Any,
) -> None:  # fmt: skip
    from fedfloor.rollout.delivery import deliver

    rows = deliver(now, devices, wait_s, before, send=send)
    show(rows, as_json=as_json, **more)
    late = [row["device"] for row in rows if row["state"] in ("waiting", "fetching", "gone")]
    if late and send:
        say(f"{', '.join(late)}: no report yet; a device gets its release when it connects", aside=True)
    if shut := sorted({row["factory"] for row in rows if row["state"] == "unreachable"}):
        say(f"{', '.join(shut)}: the broker cannot be reached. To send again: fedfloor model list --send", aside=True)
    if any(row["state"] in ("refused", "unreachable") for row in rows):
        raise typer.Exit(1)


def releases(
    park: Park,
    live: Annotated[bool, typer.Option("--live", help="Query the brokers for devices' versions.")] = False,
    send: Annotated[bool, typer.Option("--send", help="Send every device its release again.")] = False,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Write the versions to MLflow's registry.")] = False,
    wait: Wait = WAIT_S, as_json: Json = False,
) -> None:  # fmt: skip
    """List a park's versions, and the version of each device."""
    known = _read(park)
    if mlflow:
        from fedfloor.rollout.mirror import mirror

        place, new = mirror(known)
        say(f"{len(new)} of {len(known.versions)} versions written to {place}, model {known.park}", aside=True)
    versions = [_version(known, number) for number in known.versions]
    more: dict[str, Any] = {"title": "devices", "versions": versions}
    if not as_json:
        show(versions, as_json=False, title="versions")
    if live or send:
        _show(known, list(known.used if send else known.devices), wait, as_json=as_json, send=send, **more)
        return
    versions_of = {device: use.version for device, use in known.used.items()}
    rows = [{"device": device, "factory": edge.name, "version": versions_of.get(device)}
            for device, edge in known.devices.items()]  # fmt: skip
    show(rows, as_json=as_json, **more)


def _version(known: Registry, number: int) -> dict[str, Any]:
    one = known.versions[number]
    name, value = one.run.get("headline") or ("", None)
    count = sum(use.version == number for use in known.used.values())
    return {"version": number, "run": one.run["folder"], "network": one.network, "round": one.run.get("round"),
            "headline": None if value is None else f"{name} {value:.4f}", "devices": count}  # fmt: skip


def audit(park: Park, as_json: Json = False) -> None:
    """List and verify the signed log of a park.

    It holds provisioning, revocations and releases.
    """
    with shared.needing("audit", "deploy,onnx"):
        from fedfloor.rollout import registry

    entries, faults = registry.audit(park)
    rows = [{"entry": one.number, "at": one.at, "by": one.by, "action": one.action, "what": registry.described(one)}
            for one in entries]  # fmt: skip
    sound = f"{park}: {len(rows)} entries, all signed by the authority and in order"
    show(rows, as_json=as_json, after=faults or [sound], faults=faults)
    if faults:
        raise typer.Exit(1)


def alarms(
    park: Annotated[
        Path,
        typer.Option(
            "--park", metavar="DIR", help="The folder that fedfloor park provision wrote, or its part 'alarms'."
        ),
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
    """List or record alarms of predicting devices.

    Devices report drift, and alarms by the models' decisions.
    """
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
        shared.note(f"no alarms were recorded here. To record them: fedfloor model alarms --park {park} --follow")


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
        say(json_text(line) if as_json else text)


def schedule(
    config: Annotated[Path, typer.Argument(metavar="CLOUD.toml", help="The cloud's settings, with a [schedule].")],
    park: Annotated[
        Path | None,
        typer.Option("--park", metavar="DIR", help="The folder that park provision wrote, with the authority."),
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
    """Start a run whenever a reason holds, until Ctrl-C.

    The reasons are those of [schedule] in the cloud's settings.
    """
    with shared.needing("a schedule", "deploy,onnx"):
        from fedfloor.rollout.schedule import Scheduler

    made = Scheduler(config, park, alarms, shared.note)
    if dry_run:
        show(made.look(), as_json=as_json)
        return
    code = made.run(shared.termination(), once=once)
    if as_json:
        show(made.lines, as_json=True)
    if code:
        raise typer.Exit(code)
