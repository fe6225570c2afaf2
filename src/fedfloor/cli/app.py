"""The command line: its commands, and the display of errors."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer
import typer.core

from fedfloor import __version__
from fedfloor.cli import benchmarking, catalog, costs, deploying, look, predicting, releasing, train
from fedfloor.errors import FedfloorError
from fedfloor.outside import blamed

typer.core.HAS_RICH = False  # help is plain text, without escapes for Rich
app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Federated learning on the factory floor: train one model across the devices of an industrial park.",
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"fedfloor {__version__}")
        raise typer.Exit


for _command in (
    train.new, train.run, train.compare, train.sweep, train.demo, benchmarking.benchmark, costs.price, costs.reprice,
    costs.allocate, look.draw, look.report, look.track, predicting.predict, predicting.export, catalog.methods,
    catalog.parts, catalog.models, costs.networks, deploying.provision, deploying.cloud, deploying.edge,
    deploying.device, deploying.sense, look.watch, releasing.release, releasing.promote, releasing.rollback,
    releasing.releases, releasing.audit, releasing.alarms, releasing.schedule,
):  # fmt: skip
    app.command()(_command)
app.add_typer(catalog.datasets, name="datasets")
app.add_typer(deploying.live, name="live")
app.add_typer(look.check, name="check")
app.command(context_settings=benchmarking.HANDED_ON)(benchmarking.reproduce)
app.command(context_settings=benchmarking.HANDED_ON)(benchmarking.bench)


def main() -> None:
    """Run the command line; errors that a user can correct are shown without a traceback."""
    from fedfloor.terminal import log_to_stderr, printable

    log_to_stderr()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a character missing in the terminal must not end a command
    try:
        app()
    except FedfloorError as error:
        print(printable(f"error: {error}"), file=sys.stderr)
        sys.exit(error.exit_code)
    except MemoryError as error:
        print(f"error: out of memory ({error}). Use fewer devices, or fewer samples per device.", file=sys.stderr)
        sys.exit(1)
    except (Exception, SystemExit) as error:
        own = blamed(error)
        if own is None:
            raise
        print(printable(f"error: {own}"), file=sys.stderr)
        sys.exit(own.exit_code)
