"""The processes of a park of real machines, each started with its own file: cloud, edge, device."""

from __future__ import annotations

import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedfloor.cli.options import Resume, Stop

if TYPE_CHECKING:
    from fedfloor.deploy.settings import DeviceSettings, EdgeSettings, Tls

Config = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Its settings, as fedfloor provision writes them.")]


def _until_told() -> threading.Event:
    """Return what is set when the process is asked to end."""
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    return told


def _certified(settings: DeviceSettings | EdgeSettings) -> None:
    """Say what is wrong with a certificate before a broker refuses it without a word.

    In a process of its own: what reads certificates takes 14 MB, and whoever idles is to be small.
    """
    if settings.tls is not None:
        with ProcessPoolExecutor(1) as alone:
            alone.submit(_check, settings.tls, settings.name).result()


def _check(tls: Tls, name: str) -> None:
    from fedfloor.deploy.authority import check

    check(tls, name)


def device(config: Config) -> None:
    """Be a device's agent: say that it is there, and train when its edge asks."""
    from fedfloor.deploy import device as agents
    from fedfloor.deploy.settings import DeviceSettings, read

    settings = read(DeviceSettings, config)
    _certified(settings)
    agent, told = agents.of(settings), _until_told()

    def leave() -> None:
        told.wait()
        agent.leave()

    threading.Thread(target=leave, daemon=True).start()
    agent.run()


def edge(config: Config) -> None:
    """Be a factory's edge: walk its part of each round with its devices."""
    from fedfloor.deploy import edge as edges
    from fedfloor.deploy.settings import EdgeSettings, read

    settings = read(EdgeSettings, config)
    _certified(settings)
    made, told = edges.of(settings), _until_told()
    edges.serve(made, told.wait)


def cloud(config: Config, resume: Resume = False, stop_after: Stop = None) -> None:
    """Train one experiment on a park of real machines."""
    from fedfloor.cli import budgets
    from fedfloor.config import read as read_experiment
    from fedfloor.deploy import cloud as clouds
    from fedfloor.deploy import submit
    from fedfloor.deploy.settings import CloudSettings, read
    from fedfloor.terminal import progress

    settings = read(CloudSettings, config)
    what, limits = read_experiment(settings.experiment, []), budgets.limits(stop_after, None)
    with progress(what.name, min(what.rounds, limits.stop_after or what.rounds)) as follow:
        if settings.superlink is None:
            why = clouds.run(settings, resume=resume, limits=limits, report=follow)
        else:
            why = submit.run(settings, config, resume=resume, limits=limits, report=follow)
    print(f"{why}. Report: fedfloor report {settings.out}", file=sys.stderr)
    if why == "interrupted":
        raise typer.Exit(130)
