"""The command line: its commands, and the display of errors."""

from __future__ import annotations

import errno
import io
import sys
from typing import Annotated, Any

import typer
import typer.core

from fedfloor import __version__
from fedfloor.base.errors import FedfloorError, shown
from fedfloor.base.outside import blamed
from fedfloor.cli import benchmarking, catalog, costs, deploying, look, predicting, releasing, train
from fedfloor.cli.examples import epilog
from fedfloor.cli.groups import CommandGroup, PanelGroup, PathCommand
from fedfloor.runs.terminal import log_to_stderr, open_closed_streams, say

typer.core.HAS_RICH = False  # help is plain text, without escapes for Rich

PARK = {
    "provision": deploying.provision,
    "cloud": deploying.cloud,
    "edge": deploying.edge,
    "device": deploying.device,
    "ask": deploying.ask,
    "sense": deploying.sense,
    "schedule": releasing.schedule,
    "live": {
        "up": deploying.up,
        "demo": deploying.demo,
        "status": deploying.status,
        "measure": deploying.measure,
        "down": deploying.down,
    },
    "audit": releasing.audit,
}
MODEL = {
    "release": releasing.release,
    "promote": releasing.promote,
    "rollback": releasing.rollback,
    "list": releasing.releases,
    "alarms": releasing.alarms,
}
LIST = {
    "methods": catalog.methods,
    "parts": catalog.parts,
    "models": catalog.models,
    "links": costs.links,
    "datasets": catalog.datasets,
    "experiments": catalog.experiments,
    "tables": benchmarking.tables,
}
DATASETS = {
    "get": catalog.get,
    "query": catalog.query,
    "label": catalog.label,
    "matrices": catalog.matrices,
}
PANELS: dict[str, dict[str, Any]] = {
    "Start": {
        "demo": train.demo,
        "new": train.new,
        "ask": look.ask,
        "run": train.run,
    },
    "Compare": {
        "compare": train.compare,
        "sweep": train.sweep,
        "benchmark": benchmarking.benchmark,
        "price": costs.price,
        "allocate": costs.allocate,
        "draw": look.draw,
    },
    "Results": {
        "report": look.report,
        "watch": look.watch,
        "track": look.track,
        "predict": predicting.predict,
        "export": predicting.export,
    },
    "Real machines": {
        "park": PARK,
        "model": MODEL,
    },
    "Catalogue": {
        "list": LIST,
        "datasets": DATASETS,
        "check": {"method": look.method},
        "reproduce": benchmarking.reproduce,
        "bench": benchmarking.bench,
    },
}
ABOUT = {  # groups
    "park": "Provision and run a park of real machines, or a trial of one.",
    "park live": "Run a whole park on this machine, over TLS.",
    "model": "Release models to devices, roll them back, read their alarms.",
    "list": "List methods, parts, models, links, data sets, experiments.",
    "datasets": "Download a data set, query a database, label a table.",
    "check": "Check your own method.",
}
SOURCES = ("reproduce", "bench")  # commands of the source tree
HELP = {"help_option_names": ["-h", "--help"]}


class _Root(PanelGroup):
    panels = PANELS


def _group(name: str, commands: dict[str, Any], **more: Any) -> typer.Typer:
    made = typer.Typer(
        help=ABOUT.get(name), cls=CommandGroup, rich_markup_mode=None, pretty_exceptions_enable=False, **more
    )
    made.callback()(lambda: None)  # also a group of one command has its name
    _add(made, commands, f"{name} ")
    return made


def _add(to: typer.Typer, commands: dict[str, Any], before: str = "") -> None:
    for name, command in commands.items():
        path = before + name
        if isinstance(command, dict):
            to.add_typer(_group(path, command), name=name)
        elif name in SOURCES:
            to.command(name, context_settings=benchmarking.HANDED_ON, hidden=not benchmarking.in_sources(name))(command)
        else:
            to.command(name, cls=PathCommand, epilog=epilog(path))(command)


app = typer.Typer(
    cls=_Root, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=HELP,
    help="Federated learning on the factory floor: one model from many machines' data.",
)  # fmt: skip


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        say(f"fedfloor {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        say(context.get_help())


for _commands in PANELS.values():
    _add(app, _commands)


def main() -> None:
    """Run the command line; errors that a user can correct are shown without a traceback."""
    open_closed_streams()
    log_to_stderr()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a character missing in the terminal must not end a command
    try:
        app()
    except FedfloorError as error:
        say(f"error: {error}", aside=True)
        sys.exit(error.exit_code)
    except MemoryError as error:
        say(f"error: out of memory ({error}). Use fewer devices, or fewer samples per device.", aside=True)
        sys.exit(1)
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            say(f"error: {shown(error.filename, 60)}: a longer name than the file system has. Shorten it.", aside=True)
            sys.exit(2)
        own = blamed(error)
        if own is None:
            raise
        say(f"error: {own}", aside=True)
        sys.exit(own.exit_code)
