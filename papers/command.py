"""The command ``reproduce``: a published table computed again, beside what the paper printed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedfloor.base.errors import SettingError
from fedfloor.cli import shared
from fedfloor.cli.options import Json, Out, Ranks, Resume

if TYPE_CHECKING:
    from papers.allocation import Study
    from papers.disclosure import Disclosure
    from papers.forgetting import Forgetting
    from papers.groupings import Groupings
    from papers.selection import Comparison
    from papers.tuned import Tuned
    from papers.work import Reproduction


WHICH = "Which; left out, they are listed. Or a paper, such as fedgs, for a page of all its tables and figures."


def reproduce(
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help=WHICH)] = None,
    scale: Annotated[float, typer.Option("--scale", metavar="S", help="Share of the paper's rounds, up to 1.")] = 1.0,
    seeds: Annotated[str, typer.Option("--seeds", metavar="0,1", help="Seeds, separated by commas.")] = "0",
    only: Annotated[str, typer.Option("--only", metavar="TEXT", help="Cells whose names hold this; * is any.")] = "",
    out: Out = None, ranks: Ranks = None, resume: Resume = False,
    so_far: Annotated[bool, typer.Option("--so-far", help="Print the existing results; run nothing.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Compute a published table again, or list the tables."""
    from fedfloor.runs.terminal import show
    from papers import allocation, catalog, disclosure, forgetting, groupings, selection, tuned, whole
    from papers.work import plan

    if table is None:
        show(catalog.costs(scale), as_json=as_json)
        return
    folder = out or Path("runs") / f"reproduce-{table}"
    if table in whole.PAPERS:
        show(whole.rows(table), as_json=as_json)
        print(f"page: {whole.save(table, folder)}", file=sys.stderr if as_json else sys.stdout)
        return
    found = catalog.find(table)
    given = shared.numbers("seeds", seeds)
    if so_far:
        tell(found, only, scale, given, folder, as_json=as_json)
        return
    if isinstance(found, allocation.Study):
        tabulate(found, allocation, only, scale, given, folder, as_json=as_json)
        return
    if isinstance(found, selection.Comparison):
        select(found, only, scale, given, folder, as_json=as_json)
        return
    if isinstance(found, groupings.Groupings):
        brackets = "; in brackets: the paper"
        tabulate(found, groupings, only, scale, given, folder, as_json=as_json, more=brackets)
        return
    if isinstance(found, disclosure.Disclosure):
        tabulate(found, disclosure, only, scale, given, folder, as_json=as_json)
        return
    if isinstance(found, tuned.Tuned):
        tabulate(found, tuned, only, scale, given, folder, as_json=as_json)
        return
    if isinstance(found, forgetting.Forgetting):
        forget(found, only, scale, given, folder, resume=resume, as_json=as_json)
        return
    what = plan(found, only, scale, given, folder)
    if not carry_out(what, shared.ranks(ranks), resume=resume, as_json=as_json):
        print(f"stopped. {shared.RESUME}", file=sys.stderr)
        raise typer.Exit(130)


def select(comparison: Comparison, only: str, scale: float, seeds: list[int], out: Path, *, as_json: bool) -> None:
    """Do a comparison of samplers, print it and write it down.

    Args:
        comparison: which.
        only, scale, seeds: as they were typed.
        out: folder for ``table.md``, ``table.json`` and the pictures.
        as_json: print JSON.

    Raises:
        SettingError: no point is meant, the scale or a seed is out of range, or the data are not there.
    """
    from fedfloor.runs.terminal import counted, show
    from papers import selection
    from papers.selection import asked

    what = asked(comparison, only, scale, seeds)
    print(f"note: {what.work} selections, slow samplers' some seconds each", file=sys.stderr)
    with counted(comparison.name, what.work) as step:
        found = selection.rows(what, step)
        course = selection.courses(what)
    selection.save(what, found, course, out, _typed(comparison.name, only, scale, seeds))
    if as_json:
        show(found, as_json=True, **selection.about(what, course))
    else:
        print(f"{selection.heading(what)}; in brackets: the paper\n")
        for point in what.points:
            here = [row for row in found if row["point"] == point.key]
            show(selection.shown(here), as_json=False, title=point.key)
            show(selection.starts(here), as_json=False, title=selection.STARTS)
        print(f"{selection.proof(found)}\ntable: {out / 'table.md'}")


def tabulate(
    of: Study | Groupings | Disclosure | Tuned, how: Any, only: str, scale: float, seeds: list[int], out: Path, *,
    as_json: bool, more: str = "",
) -> None:  # fmt: skip
    """Do a comparison whose runs leave no folders, print it and write it down.

    Args:
        of: which.
        how: the module that does it.
        only, scale, seeds: as they were typed.
        out: folder for ``table.md`` and ``table.json``.
        as_json: print JSON.
        more: what is printed after the heading.

    Raises:
        SettingError: no point is meant, the scale or a seed is out of range, or the data are not there.
    """
    from fedfloor.runs.terminal import counted, show

    what = how.asked(of, only, scale, seeds)
    with counted(of.name, what.work) as step:
        found = how.rows(what, step)
    how.save(what, found, out, _typed(of.name, only, scale, seeds))
    if as_json:
        show(found, as_json=True, **how.about(what))
    else:
        show(how.shown(found), as_json=False, title=f"{how.heading(what)}{more}")
        print(f"table: {out / 'table.md'}")


def forget(
    of: Forgetting, only: str, scale: float, seeds: list[int], out: Path, *, resume: bool, as_json: bool
) -> None:
    """Do a figure about forgetting, print it and write it down.

    Args:
        of: which.
        only, scale, seeds: as they were typed.
        out: folder for a file per run, ``table.md``, ``table.json`` and the picture.
        resume: take the runs that are there.
        as_json: print JSON.

    Raises:
        SettingError: no cell is meant, the scale or a seed is out of range, the data are not there, or runs are there
            already and this is not a resume.
        RunError: training failed.
    """
    from fedfloor.runs.terminal import counted, show
    from papers import forgetting

    what = forgetting.asked(of, only, scale, seeds, out)
    rounds = len(forgetting.left(what)) * what.rounds
    print(f"note: {rounds} rounds in one process; runs that are done stay for --resume", file=sys.stderr)
    with counted(of.name, rounds) as step:
        found = forgetting.rows(what, forgetting.courses(of, what, resume=resume, step=step))
    forgetting.save(of, what, found, _typed(of.name, only, scale, seeds))
    if as_json:
        show(found, as_json=True, **forgetting.about(of, what))
    else:
        print(f"{forgetting.heading(of, what)}\n")
        show(forgetting.shown(of, found), as_json=False, title=forgetting.ON_BATCH)
        show(forgetting.controls(of, found), as_json=False, title=forgetting.BESIDE)
        print(f"table: {out / 'table.md'}")


def _typed(name: str, only: str, scale: float, seeds: list[int]) -> str:
    """Return the command without where it writes."""
    changed = (f" --only '{only}'" if only else "") + (f" --scale {scale:g}" if scale != 1 else "")
    return f"fedfloor reproduce {name}{changed}" + (f" --seeds {','.join(map(str, seeds))}" if seeds != [0] else "")


def tell(found: object, only: str, scale: float, seeds: list[int], out: Path, *, as_json: bool) -> None:
    """Print the table of the runs that are there, finished or not, and write it down; do none.

    Args:
        found: the table.
        only, scale, seeds: as they were typed.
        out: folder of the runs.
        as_json: print JSON.

    Raises:
        SettingError: the table is not made of runs, or none has begun.
    """
    from papers import figures
    from papers.cells import Table
    from papers.work import plan

    if not isinstance(found, Table):
        raise SettingError("--so-far: this table is not made of runs of its own. Leave it out.")
    what = replace(plan(found, only, scale, seeds, out), lacking={})  # it takes no data to look at runs
    runs = [run for cell in what.cells for run in figures.read(what, cell)]
    if not runs:
        raise SettingError(f"--so-far: no run of {found.name} has begun in {out}. Give their folder with --out.")
    ends = {run.folder: figures.DIVERGED for run in runs if run.diverged is not None}
    rows = figures.rows(what, ends)
    begun = [row for row in rows if row["note"] != figures.NOT_RUN]
    if len(begun) < len(rows):
        print(f"note: {len(rows) - len(begun)} figures of runs that have not begun are left out", file=sys.stderr)
    _print(what, begun, as_json=as_json)


def carry_out(what: Reproduction, size: int, *, resume: bool, as_json: bool) -> bool:
    """Do the runs of a table, print it and write it down; return whether all were done.

    Args:
        what: the table as it was asked for.
        size: ranks.
        resume: go on with runs that are there.
        as_json: print JSON.

    Raises:
        SettingError: a run's folder is there already and this is not a resume.
        RunError: a run failed.
    """
    from fedfloor.runs import compare
    from fedfloor.runs.orders import Limits
    from papers import figures

    work = what.planned_runs()
    skipped = len({cell.run for cell in what.cells if cell.key in what.lacking})
    print(f"note: {len(work)} runs of up to {what.rounds} rounds, {skipped} not possible here", file=sys.stderr)
    ends, whole = compare.carry_out(work, Limits(), size, shared.followed(Limits()), resume=resume, tolerant=True)
    what.out.mkdir(parents=True, exist_ok=True)  # where no cell could be run
    _print(what, figures.rows(what, ends), as_json=as_json)
    return whole


def _print(what: Reproduction, rows: list[dict[str, Any]], *, as_json: bool) -> None:
    from fedfloor.runs.terminal import show
    from papers import work

    work.save(what, rows)
    if as_json:
        show(rows, as_json=True, **work.about(what))
    else:
        shown = [row | {"by_seed": row["by_seed"] and work.written(row["by_seed"])} for row in rows]
        show(shown, as_json=False, title=work.heading(what))
        print(f"table: {what.out / 'table.md'}")
