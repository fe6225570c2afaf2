"""The commands ``bench`` and ``reproduce``, whose code is in fedfloor's source tree and not in the package."""

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
    """Benchmark rounds, loading, pricing and the solvers (in the source tree)."""
    _call("bench", ROOT / "benchmarks", context.args)


def reproduce(
    context: typer.Context,
    papers: Annotated[
        Path | None,
        typer.Option(
            "--papers", metavar="DIR", envvar="FEDFLOOR_PAPERS", help="The folder papers/ of the source tree."
        ),
    ] = None,
) -> None:
    """Reproduce a published table, or list the tables (in the source tree)."""
    _call("reproduce", papers or ROOT / "papers", context.args)


def _call(command: str, folder: Path, arguments: list[str]) -> None:
    """Run the function ``command`` of the module ``command`` in a folder of the source tree.

    Raises:
        SettingError: the folder is not there.
    """
    name = "benchmarks" if command == "bench" else "papers"
    if folder.resolve().name != name or not (folder / "command.py").is_file():
        how = ", or name its folder with --papers DIR." if command == "reproduce" else "."
        raise SettingError(
            f"fedfloor {command} needs the folder {name}/ of fedfloor's source tree, which is not in the package, and "
            f"{folder} is not that folder. Install fedfloor in a clone of the sources (pip install --editable .){how}"
        )
    sys.path.insert(0, str(folder.resolve().parent))
    wrapper = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
    module = import_module("benchmarks.command") if command == "bench" else import_module("papers.command")
    wrapper.command()(getattr(module, command))
    typer.main.get_command(wrapper)(arguments, prog_name=f"fedfloor {command}")
