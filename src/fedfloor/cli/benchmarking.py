"""The command ``benchmark``, and ``bench`` and ``reproduce`` for the source tree."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfloor.base.errors import SettingError
from fedfloor.cli import shared
from fedfloor.cli.examples import epilog
from fedfloor.cli.options import Json, Ranks
from fedfloor.runs.terminal import say, show

if TYPE_CHECKING:
    from fedfloor.experiment import Experiment
    from fedfloor.runs.ledger import Line


def benchmark(
    chosen: Annotated[
        list[str] | None, typer.Argument(metavar="PROTOCOL", help="Protocols by name; default: all.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option("--methods", metavar="A,B", help="Comma-separated methods; default: the benchmark's."),
    ] = None,
    more: Annotated[
        list[str] | None, typer.Option("--add", metavar="M", help="Additional method, such as mine:Method; repeatable.")
    ] = None,
    data: Annotated[
        list[Path] | None, typer.Option("--data", metavar="FILE", help="An experiment file as an additional protocol.")
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", metavar="0,1,2", help="Seeds, separated by commas.")] = "0,1,2",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the runs.")] = Path("runs/benchmark"),
    ranks: Ranks = None,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Also write the results as Markdown.")
    ] = None,
    so_far: Annotated[bool, typer.Option("--so-far", help="Print the existing results; run nothing.")] = False,
    check: Annotated[
        int | None, typer.Option("--rerun", metavar="N", help="Run N recorded results again and compare.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the protocols.")] = False,
    as_json: Json = False,
) -> None:
    """Run methods and references on frozen protocols.

    The same command continues a stopped run.
    """
    from fedfloor.api import benchmark as bench

    if listed:
        rows = [{"protocol": name, "rounds": each.rounds, "model": each.model.name,
                 "judged by": each.evaluate.figure.name} for name, each in bench.read([]).items()]  # fmt: skip
        show(rows, as_json=as_json)
        return
    given = bench.read(chosen or [], data or [])
    file = out / bench.RESULTS
    size = shared.ranks(ranks)
    if check is not None:
        _check(file, given, check, size, as_json=as_json)
        return
    names = [*(bench.METHODS if methods is None else map(str.strip, methods.split(","))), *(more or [])]
    if so_far:
        document = bench.results(file)
        whole = True
    else:
        document, whole = bench.run(given, names, shared.numbers("seeds", seeds), out, size, _progress)
    _show(document, given, file, page, as_json=as_json)
    if not whole:
        say("stopped. The same command continues.", aside=True)
        raise typer.Exit(130)


def _show(
    document: Mapping[str, Any], given: Mapping[str, Experiment], file: Path, page: Path | None, *, as_json: bool
) -> None:
    from fedfloor.api import benchmark as bench
    from fedfloor.runs.folder import write

    if page is not None:
        write(page, bench.page(document))
    shown = [name for name in document["protocols"] if name in given]
    rows = [{"protocol": name, **row} for name in shown for row in bench.table(document, name)]
    show(rows, as_json=as_json, after=[f"results: {file}"], results=str(file))


def _check(file: Path, given: Mapping[str, Experiment], many: int, ranks: int, *, as_json: bool) -> None:
    """Run ``many`` recorded results again; exit with 1 if one differs. The choice depends only on ``many``."""
    from fedfloor.api import benchmark as bench

    if many < 1:
        raise SettingError(f"--rerun {many}: must be the number of results to run again, at least 1.")
    document = bench.results(file)
    rows = bench.check(document, given, many, len(document["records"]), ranks)
    show(rows, as_json=as_json)
    if not all(row["agrees"] for row in rows):
        raise typer.Exit(1)


def _progress(label: str, line: Line) -> None:
    name, value = line.headline
    if value is not None:
        say(f"{label}: round {line.round}, {name} {value:.4f}", aside=True)


ROOT = Path(__file__).parents[3]
FOLDERS = {"bench": "benchmarks", "reproduce": "papers"}
HANDED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def bench(context: typer.Context) -> None:
    """Time rounds, loading, pricing and solvers (source tree only)."""
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
    """Compute a published table again (source tree only)."""
    _call("reproduce", papers or ROOT / "papers", context.args)


def tables(as_json: Json = False) -> None:
    """List the published tables that can be computed again (source tree only)."""
    _call("reproduce", ROOT / "papers", ["--json"] if as_json else [])


def in_sources(command: str) -> bool:
    """Return whether the folder of a command of the source tree exists beside the package."""
    return (ROOT / FOLDERS[command] / "command.py").is_file()


def _call(command: str, folder: Path, arguments: list[str]) -> None:
    """Run the module ``command`` in a folder of the source tree, by its function ``command``.

    Raises:
        SettingError: the folder does not exist.
    """
    name = FOLDERS[command]
    if folder.resolve().name != name or not (folder / "command.py").is_file():
        how = ", or name its folder with --papers DIR." if command == "reproduce" else "."
        raise SettingError(
            f"fedfloor {command} needs the folder {name}/ of fedfloor's source tree, which is not in the package, and "
            f"{folder} is not that folder. Install fedfloor in a clone of the sources (pip install --editable .){how}"
        )
    sys.path.insert(0, str(folder.resolve().parent))
    wrapper = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
    module = import_module("benchmarks.command") if command == "bench" else import_module("papers.command")
    wrapper.command(epilog=epilog(command))(getattr(module, command))
    typer.main.get_command(wrapper)(arguments, prog_name=f"fedfloor {command}")
