"""The commands ``live up``, ``live status`` and ``live down``: a whole park of real processes on one machine."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfloor.cli import shared
from fedfloor.cli.deploying import ABSENT
from fedfloor.cli.options import File, Json, Set
from fedfloor.errors import RunError, SettingError

if TYPE_CHECKING:
    from types import ModuleType

    from fedfloor.deploy.live import Trial
    from fedfloor.deploy.processes import Crew

LIVE = Path("runs/live")
Folder = Annotated[Path, typer.Option("--out", metavar="DIR", help="The park's folder.")]
live = typer.Typer(
    no_args_is_help=True, help="Run a whole park on this machine: cloud, edges, brokers, devices, by TLS."
)


def _module() -> ModuleType:
    try:
        from fedfloor.deploy import live as module
    except ModuleNotFoundError as absent:
        raise SettingError(f"a live park {ABSENT} ({absent.name} is missing).") from absent
    return module


@live.command()
def up(
    file: File, changes: Set = None, out: Folder = LIVE,
    factories: Annotated[
        int | None,
        typer.Option("--factories", metavar="N", help="Each with a broker and an edge. Default: the experiment's."),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option("--devices", metavar="N", help="In all. Default: the experiment's, or the data's own."),
    ] = None,
    first: Annotated[
        int | None, typer.Option("--ports", metavar="FIRST", help="The first of those in a row; default: free ones.")
    ] = None,
    stay: Annotated[bool, typer.Option("--stay", help="Leave the park up when the run is over, until live down.")]
        = False,
) -> None:  # fmt: skip
    """Start a park, train in it, show the progress; when the run is over, or at Ctrl-C, everything ends."""
    module = _module()
    trial = module.prepare(shared.experiment(file, changes), out, factories, devices, first)
    kept = stay
    try:
        with _interruptible():
            code = _train(module, trial)
    except KeyboardInterrupt:
        code, kept = 130, False
        _say("stopped")
    except BaseException:
        kept = False
        raise
    finally:
        if kept:
            _say(f"the park stays up: fedfloor live down --out {out} ends it")
        else:
            _say(f"{module.down(trial.folder)} processes ended")
    if code:
        raise typer.Exit(code)
    print(f"run: {out / 'run'}")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let a request to end (kill, or the end of a session) be what Ctrl-C is, also where SIGINT was ignored before."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = {one: signal.signal(one, stop) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _train(module: ModuleType, trial: Trial) -> int:
    from fedfloor.deploy.processes import tail

    crew: Crew = module.up(trial, _say)
    process = module.cloud(crew, trial)
    _say(f"{len(crew.members)} processes are up; the run begins")
    code: int = module.follow(crew, process, _told)
    if code:
        raise RunError(f"the run ended with exit code {code}. Last lines of {process.log}:\n{tail(Path(process.log))}")
    return code


def _told(line: dict[str, Any]) -> None:
    name, value = _headline(line)
    figure = "" if value is None else f", {name} {value:.4f}"
    lost = f", lost: {line['lost']}" if line.get("lost") else ""
    _say(f"round {line['round']}{figure}, {line.get('wall_s', 0.0):.1f} s{lost}")


def _headline(line: dict[str, Any]) -> tuple[str, float | None]:
    """Return the name and the value of the figure that a line's run is judged by."""
    return next(iter((line.get("figures") or {}).items()), ("accuracy", line.get("accuracy")))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@live.command()
def status(out: Folder = LIVE, as_json: Json = False) -> None:
    """Show who is alive, and how far the run is."""
    from fedfloor.terminal import show

    module = _module()
    rows, lines = module.status(out), module.ledger(out)
    reached: dict[str, Any] = {"round": lines[-1]["round"] if lines else 0}
    found = next((one for line in reversed(lines) if (one := _headline(line))[1] is not None), ("accuracy", None))
    reached[found[0]] = found[1]
    if as_json:
        show(rows, as_json=True, **reached)
        return
    told = [{key: value for key, value in row.items() if key not in ("log", "alive")} for row in rows]
    show(
        [one | {"state": _state(row)} for one, row in zip(told, rows, strict=True)],
        as_json=False,
    )
    print(f"round {reached['round']}" + ("" if found[1] is None else f", {found[0]} {found[1]:.4f}"))


def _state(row: dict[str, Any]) -> str:
    if row["alive"]:
        return "alive"
    return "ended" if row["kind"] == "cloud" else "dead"  # it ends with the run


@live.command()
def down(out: Folder = LIVE) -> None:
    """End every process of a park and delete its keys; the run's folder and the logs stay."""
    print(f"{_module().down(out)} processes ended")
