"""The command ``benchmark``: methods on frozen protocols, and a check of recorded results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedfloor.cli import shared
from fedfloor.cli.options import Json, Ranks
from fedfloor.errors import SettingError


def benchmark(
    chosen: Annotated[
        list[str] | None, typer.Argument(metavar="PROTOCOL", help="Protocols by name; default: all.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option("--methods", metavar="A,B", help="Separated by commas; default: those of the benchmark."),
    ] = None,
    more: Annotated[
        list[str] | None, typer.Option("--method", metavar="M", help="A method besides, such as mine:Method.")
    ] = None,
    data: Annotated[
        list[Path] | None, typer.Option("--data", metavar="FILE", help="An experiment file as a protocol of your own.")
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", metavar="0,1,2", help="Seeds, separated by commas.")] = "0,1,2",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the runs.")] = Path("runs/benchmark"),
    ranks: Ranks = None,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Also write the results as Markdown.")
    ] = None,
    so_far: Annotated[bool, typer.Option("--so-far", help="Run nothing: print the results that are there.")] = False,
    check: Annotated[
        int | None, typer.Option("--check", metavar="N", help="Run N recorded results again and compare.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the protocols.")] = False,
    as_json: Json = False,
) -> None:
    """Run methods on frozen protocols, beside references; stopped, it goes on with the same command."""
    from fedfloor import benchmark as bench
    from fedfloor.runs.folder import write
    from fedfloor.terminal import show

    if listed:
        rows = [
            {"protocol": name, "rounds": each.rounds, "model": each.model.name, "judged by": each.evaluate.figure.name}
            for name, each in bench.read([]).items()
        ]
        show(rows, as_json=as_json)
        return
    given = bench.read(chosen or [], data or [])
    file, size = out / bench.RESULTS, shared.ranks(ranks)
    if check is not None:
        if check < 1:
            raise SettingError(f"--check {check}: how many results to run again, at least 1.")
        rows = bench.check(bench.results(file), given, check, len(bench.results(file)["records"]), size)
        show(rows, as_json=as_json)
        if not all(row["agrees"] for row in rows):
            raise typer.Exit(1)
        return
    names = list(bench.METHODS) if methods is None else [name.strip() for name in methods.split(",")]
    names = [*names, *(more or [])]
    whole = True
    if so_far:
        document = bench.results(file)
    else:
        document = bench.run(given, names, shared.numbers("seeds", seeds), out, size, _progress)
        planned = len(names) * len(given) * len(shared.numbers("seeds", seeds))
        done = [each for each in document["records"] if each["method"] in names and each["protocol"] in given]
        whole = len(done) >= planned
    if page is not None:
        write(page, bench.page(document))
    rows = [
        {"protocol": name, **row}
        for name in document["protocols"]
        if name in given
        for row in bench.table(document, name)
    ]
    show(rows, as_json=as_json, results=str(file))
    if not as_json:
        print(f"results: {file}")
    if not whole:
        print("stopped. The same command goes on.", file=sys.stderr)
        raise typer.Exit(130)


def _progress(label: str, line: object) -> None:
    number = getattr(line, "round", 0)
    name, value = getattr(line, "headline", ("", None))
    if value is not None:
        print(f"{label}: round {number}, {name} {value:.4f}", file=sys.stderr)
