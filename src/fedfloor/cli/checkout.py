"""The commands ``bench`` and ``reproduce``: their code is in fedfloor's source tree, not in the package."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from fedfloor.errors import SettingError

ROOT = Path(__file__).parents[3]
HANDED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def bench(context: typer.Context) -> None:
    """Measure how fast rounds, loading, pricing and the solvers are (in the source tree)."""
    _call("bench", ROOT / "benchmarks", context.args)


def reproduce(
    context: typer.Context,
    papers: Annotated[
        Path | None,
        typer.Option("--papers", metavar="DIR", envvar="FEDFLOOR_PAPERS", help="The folder papers/ of the sources."),
    ] = None,
) -> None:
    """Compute a published table again, or list the tables (in the source tree)."""
    _call("reproduce", papers or ROOT / "papers", context.args)


def _call(command: str, folder: Path, words: list[str]) -> None:
    """Run the function ``command`` of the module ``command`` in a folder of the source tree.

    Raises:
        SettingError: the folder is not there.
    """
    name = "benchmarks" if command == "bench" else "papers"
    if folder.resolve().name != name or not (folder / "command.py").is_file():
        how = ", or name its folder with --papers DIR." if command == "reproduce" else "."
        raise SettingError(
            f"fedfloor {command} needs the folder {name}/ of fedfloor's source tree, which the package leaves out, and "
            f"{folder} is none. Install fedfloor in a clone of the sources (pip install --editable .){how}"
        )
    sys.path.insert(0, str(folder.resolve().parent))
    one = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
    module = import_module("benchmarks.command") if command == "bench" else import_module("papers.command")
    one.command()(getattr(module, command))
    typer.main.get_command(one)(words, prog_name=f"fedfloor {command}")
