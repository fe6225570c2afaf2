"""Commands for real machines: provisioning, the processes of a park, sensors, a whole park on one machine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from multiprocessing import Pipe, Process
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfloor.base.errors import RunError, SettingError
from fedfloor.base.strict import printable
from fedfloor.cli import shared
from fedfloor.cli.look import watched
from fedfloor.cli.options import File, Json, Resume, Set, Stop
from fedfloor.cli.shared import note, termination
from fedfloor.runs.terminal import losses, progress, say, show

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from types import ModuleType

    from fedfloor.base.names import Names
    from fedfloor.deploy.live import TrialPark
    from fedfloor.deploy.processes import Crew
    from fedfloor.deploy.settings import DeviceSettings, EdgeSettings, Tls


Revoke = Annotated[
    list[str] | None, typer.Option("--revoke", metavar="NAME", help="Revoke this machine's certificate; repeatable.")
]
Renew = Annotated[
    list[str] | None, typer.Option("--renew", metavar="NAME", help="Renew this machine's certificate now; repeatable.")
]
Check = Annotated[
    Path | None,
    typer.Option(
        "--check", metavar="DIR", help="Only check a provisioned folder, and its machines if PARK.toml is given."
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
    """Write certificates, keys and settings for every machine.

    Repeated calls add new machines.
    """
    with shared.needing("provision", "deploy"):
        from fedfloor.deploy import park_file
        from fedfloor.deploy import provision as provisioning

    if check is not None:
        faults = provisioning.faults(check)
        if park is not None:
            described = park_file.read(park)
            faults += [*provisioning.unprovisioned(check, described), *provisioning.misfits(described)]
            try:
                for text in provisioning.compare_sizes(described):
                    note(text)
            except SettingError as error:
                faults.append(str(error))
        if as_json:
            show([{"fault": one} for one in faults], as_json=True)
        else:
            say("\n".join(faults) or f"{check}: no faults.")
        raise typer.Exit(1 if faults else 0)
    if park is None:
        raise SettingError("provision needs a park file: fedfloor park provision PARK.toml --out DIR.")
    there = park_file.read(park)
    done = provisioning.provision(there, out or Path(there.name), revoke or (), renew or ())
    shown = [{key: value for key, value in row.items() if key != "folder"} for row in done.rows]
    after = [f"written: {len(done.written)} files in {done.folder}; keep authority/ca.key secret"]
    about: dict[str, Any] = {"folder": str(done.folder), "written": done.written, "notes": done.notes}
    show(list(done.rows) if as_json else shown, as_json=as_json, after=after, **about)
    for text in done.notes:
        note(text)


Config = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The settings that fedfloor park provision wrote.")]


def _certified(settings: DeviceSettings | EdgeSettings) -> None:
    """Check a certificate, because brokers refuse a connection without a reason.

    A separate process does this, as it loads 14 MB that an idle agent does not need. It ends by itself, also if this
    one is killed meanwhile.
    """
    if settings.tls is None:
        return
    found, finds = Pipe(duplex=False)
    process = Process(target=_check, args=(settings.tls, settings.name, finds))
    process.start()
    finds.close()
    error = found.recv()
    process.join()
    if error is not None:
        raise error


def _check(tls: Tls, name: str, finds: Connection) -> None:
    """Check a certificate and send the error, or None."""
    from fedfloor.deploy.authority import check

    error: Exception | None = None
    try:
        check(tls, name)
    except Exception as raised:
        error = raised
    finds.send(error)


LEAVE_S = 5.0  # wait for the request under way when a device's agent is ended


def device(
    config: Config,
    leave_crew: Annotated[
        bool,
        typer.Option(
            "--leave-crew",
            help="Only forget with which devices this one is in secure sums (travel.secure-sum.together), as one of "
            "them is gone for ever.",
        ),
    ] = False,
) -> None:
    """Run a device's agent.

    It registers with its edge, trains on request and uses released models.
    """
    from fedfloor.deploy import device as agents
    from fedfloor.deploy.settings import DeviceSettings, read
    from fedfloor.rollout import training

    settings = read(DeviceSettings, config)
    if leave_crew:
        note(left_crew(settings.state))
        return
    _certified(settings)
    agent = agents.of(settings, link=training.with_releases(settings, lambda: agent.labelled()))
    ended = termination()
    done = threading.Event()

    def leave() -> None:
        ended.wait()
        agent.leave()
        if not done.wait(LEAVE_S):  # a function of the user's may sleep as long as it wants
            note(f"the request under way was given up, as it did not end within {LEAVE_S:g} s")
            agent.farewell()
            os._exit(0)

    threading.Thread(target=leave, daemon=True).start()
    agent.run()
    done.set()


def left_crew(state: Path) -> str:
    """Let a device forget its crew; return a sentence on what that gives away."""
    from fedfloor.deploy import record
    from fedfloor.deploy.revealed_sums import RevealedSums

    known = (state / record.REVEALED).is_file()
    names = RevealedSums(record.of_device(state)).leave_crew() if known else ""
    if not names:
        return f"{state} has no crew: this device has been in no secure sum with travel.secure-sum.together = true."
    return (
        f"its crew ({names}) is forgotten. Let all others of it that are left do the same, between runs. Sums from "
        "before and after then differ by the devices that are gone, and those in their place: where the models are "
        "alike, by about their updates. The next sum puts devices without a crew into new ones of three or more."
    )


def edge(config: Config) -> None:
    """Run the edge of a factory, with its devices' part of each round."""
    from fedfloor.deploy import edge as edges
    from fedfloor.deploy.settings import EdgeSettings, read

    settings = read(EdgeSettings, config)
    _certified(settings)
    edges.serve(edges.of(settings), termination().wait)


def cloud(config: Config, resume: Resume = False, stop_after: Stop = None) -> None:
    """Train one experiment on a park of real machines."""
    from fedfloor.cli import options
    from fedfloor.config import read as read_experiment
    from fedfloor.deploy import cloud as clouds
    from fedfloor.deploy.settings import CloudSettings, read

    settings = read(CloudSettings, config)
    what = read_experiment(settings.experiment, [])
    limits = options.limits(stop_after, None)
    names = clouds.machines(settings, 1 + max((edge.factory for edge in settings.edges), default=-1))
    with progress(what.name, min(what.rounds, limits.stop_after or what.rounds), names) as follow:
        why = clouds.run(settings, resume=resume, limits=limits, report=follow)
    say(f"{why}. Report: fedfloor report {settings.out}", aside=True)
    if why == "interrupted":
        raise typer.Exit(130)


def ask(config: Config, as_json: Json = False) -> None:
    """Ask the devices of a park before training whether they measure the same.

    No row leaves a device. If something does not fit together, the exit code is 1.
    """
    from fedfloor.cli.look import show_asked
    from fedfloor.deploy import cloud as clouds
    from fedfloor.deploy.settings import CloudSettings, read
    from fedfloor.deploy.uplink import Downlink
    from fedfloor.runs.folder import owned

    settings = read(CloudSettings, config)
    with owned(settings.out), Downlink(settings) as link:
        asked = clouds.asked(settings, link)
    show_asked(asked, as_json=as_json)


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
    """Read a device's sensors into a buffer on disk, until Ctrl-C.

    The buffer holds the training data of the device's agent.
    """
    from fedfloor.data.files.buffer import BUFFERS
    from fedfloor.sensors import sense as agent
    from fedfloor.sensors.settings import read

    settings = read(source)
    if check:
        rows = agent.check(settings, seconds or 10.0)
        show(rows, as_json=as_json)
        raise typer.Exit(0 if rows and not any(row["note"] for row in rows) else 1)
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
    counts = {key: status.get(key, 0) for key in EVENTS}
    counts |= {f"missing ({reason})": count for reason, count in status["missing"].items()}
    counts |= {f"left out ({reason})": count for reason, count in status["left_out"].items()}
    more = "".join(f", {count:,} {key}" for key, count in counts.items() if count)
    silent = printable(f"; no value of {', '.join(status['silent'][:10])}") if status["silent"] else ""
    shared.note(
        f"{status['rows']:,} rows of {status['columns']} sensors, newest {at}; {status['numbers']:,} numbers, "
        f"{status['labels']:,} labels{more}{silent}"
    )


EVENTS = (
    "lost",
    "late",
    "repeated",
    "stored",
    "connection lost",
    "clock went back",
)  # counted in the status of sensing
LIVE = Path("runs/live")
TRAINED = ("rounds=8", "model.name=cnn-small", "work.lr=0.1", "work.epochs=5")  # for useful predictions
Folder = Annotated[Path, typer.Option("--out", metavar="DIR", help="The park's folder to write.")]
Trial = Annotated[Path, typer.Option("--park", metavar="DIR", help="The folder that park live up wrote.")]


def _module() -> ModuleType:
    with shared.needing("a live park", "deploy"):
        from fedfloor.deploy import live as module
    return module


def up(
    file: File, changes: Set = None, out: Folder = LIVE,
    factories: Annotated[
        int | None,
        typer.Option("--factories", metavar="N", help="Factories with a broker and edge; default: the experiment's."),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option("--devices", metavar="N", help="Devices of the park; default: the experiment's, or the data's."),
    ] = None,
    first: Annotated[
        int | None, typer.Option("--ports", metavar="FIRST", help="First of consecutive ports; default: free ones.")
    ] = None,
    stay: Annotated[bool, typer.Option("--stay", help="Keep the park running after the run, until live down.")]
        = False,
) -> None:  # fmt: skip
    """Start a park, train and show the progress.

    The park ends with the run, or at Ctrl-C.
    """
    module = _module()
    trial = module.prepare(shared.experiment(file, changes), out, factories, devices, first)
    kept = stay
    try:
        with _interruptible():
            code = _train(module, trial)
    except KeyboardInterrupt:
        code = 130
        kept = False
        note("stopped")
    except BaseException:
        kept = False
        raise
    finally:
        if kept:
            note(f"the park keeps running until: fedfloor park live down --park {out}")
        else:
            note(f"{module.down(trial.folder)} processes ended")
    if code:
        raise typer.Exit(code)
    say(f"run: {out / 'run'}")


def demo(out: Folder = LIVE, changes: Set = None, as_json: Json = False) -> None:
    """Train, release, detect drift, train again and roll back.

    The park consists of real processes; a model is released to a canary first, then to all.
    """
    from fedfloor.cli import demonstration as module

    experiment = shared.experiment("demo-live", [*TRAINED, *(changes or [])])
    with module.park(experiment, out) as trial, watched(trial.folder, watch=True, stay=False), _interruptible():
        tour = module.Demonstration(trial, note)
        came_out = tour.run(_module().up(trial, note), partial(_show_round, trial.names))
    show(tour.rows, as_json=as_json, title="demonstration")
    if not came_out:
        raise typer.Exit(1)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, and SIGINT even if it was ignored."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _train(module: ModuleType, trial: TrialPark) -> int:
    from fedfloor.deploy.processes import tail

    crew: Crew = module.up(trial, note)
    process = module.cloud(crew, trial)
    note(f"{len(crew.members)} processes are up; the run begins")
    code: int = module.follow(crew, process, partial(_show_round, trial.names))
    if code:
        raise RunError(f"the run ended with exit code {code}. Last lines of {process.log}:\n{tail(Path(process.log))}")
    return code


def _show_round(names: Names, line: dict[str, Any]) -> None:
    name, value = _headline(line)
    figure = "" if value is None else f", {name} {value:.4f}"
    note(f"round {line['round']}{figure}, {line.get('wall_s', 0.0):.1f} s{printable(losses(line, names))}")


def _headline(line: dict[str, Any]) -> tuple[str, float | None]:
    """Return the name and the value of the headline metric in a ledger line."""
    return next(iter((line.get("figures") or {}).items()), ("accuracy", line.get("accuracy")))


def status(park: Trial = LIVE, as_json: Json = False) -> None:
    """Show the processes of a park and the progress of its run."""
    module = _module()
    rows = module.status(park)
    lines = module.ledger(park)
    number = lines[-1]["round"] if lines else 0
    name, value = next((pair for pair in map(_headline, reversed(lines)) if pair[1] is not None), ("accuracy", None))
    shown = []
    for row in rows:
        dead = "ended" if row["kind"] == "cloud" else "dead"  # the cloud ends with the run
        state = {"state": "alive" if row["alive"] else dead}
        shown.append({key: cell for key, cell in row.items() if key not in ("log", "alive")} | state)
    after = f"round {number}" + ("" if value is None else f", {name} {value:.4f}")
    reached: dict[str, Any] = {"round": number, name: value}
    show(rows if as_json else shown, as_json=as_json, after=[after], **reached)


def measure(
    park: Annotated[
        Path,
        typer.Option("--park", metavar="DIR", help="The folder that park live up wrote, or any cloud.toml."),
    ] = LIVE,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The profile to write.")] = Path("measured.toml"),
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", help="Number of timed visits.")] = 15,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Measure a running park, and write a network for pricing.

    An experiment names the file as [network] profile = "FILE".
    """
    _module()
    from fedfloor.deploy import measure as measuring
    from fedfloor.deploy.settings import CloudSettings, read

    inside = park / "park" / "cloud" / "cloud.toml"
    settings = read(CloudSettings, inside if inside.is_file() else park)
    table = measuring.measure(settings, repeats, note)
    measuring.written(table, out)
    rows = [{"of": name, **{key: one for key, one in part.items() if key != "source"}}
            for name, part in table.items() if isinstance(part, dict)]  # fmt: skip
    show(rows, as_json=as_json, after=[f"profile: {out}"], profile=str(out))


def down(park: Trial = LIVE) -> None:
    """End every process of a park and delete its keys.

    The run folder and the logs remain.
    """
    say(f"{_module().down(park)} processes ended")
