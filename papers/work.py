"""The runs that a table takes: which cells were asked for, which can be done here; the table as files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfloor import __version__
from fedfloor.base.errors import SettingError, nearest
from fedfloor.data.sources import looked_in
from fedfloor.experiment import Experiment
from fedfloor.methods.catalog import METHODS
from fedfloor.methods.chosen import method_of
from fedfloor.parts.work import Cosine, Exponential, WorkSettings
from fedfloor.report.numbers import figure
from fedfloor.runs.compare import PlannedRun, each_once
from fedfloor.runs.folder import write
from fedfloor.runs.orders import Limits
from papers.cells import Cell, Table, holds


@dataclass(frozen=True)
class Reproduction:
    """A table as it was asked for.

    Args:
        table: which.
        cells: those that were asked for.
        lacking: cell's key → why it cannot be run here.
        scale: share of the paper's rounds.
        rounds: of each run's schedule.
        seeds: of each cell.
        out: holds a folder per run.
    """

    table: Table
    cells: tuple[Cell, ...]
    lacking: Mapping[str, str]
    scale: float
    rounds: int
    seeds: tuple[int, ...]
    out: Path

    def folder(self, cell: Cell, seed: int) -> Path:
        """Return where a run of a cell lies."""
        return self.out / f"{cell.run}-seed{seed}"

    def planned_runs(self) -> list[PlannedRun]:
        """Return the runs seed by seed, those in the same park one after the other; a shared run is there once."""
        runs = {cell.run: cell for cell in self.cells if cell.key not in self.lacking}
        planned = []
        for seed in self.seeds:
            parks: dict[str, list[PlannedRun]] = {}
            for cell in runs.values():
                what = self.table.experiment(cell, self.rounds, seed)
                limits = Limits(accuracy=cell.target) if cell.target is not None else None
                run = PlannedRun(f"{cell.run} seed {seed}", what, self.folder(cell, seed), limits)
                parks.setdefault(_park(what), []).append(run)
            planned += [run for runs_of_park in parks.values() for run in runs_of_park]
        return planned


def _park(what: Experiment) -> str:
    return repr((what.data, what.park))


def plan(table: Table, only: str, scale: float, seeds: Sequence[int], out: Path) -> Reproduction:
    """Return what is to be done for a table.

    Args:
        table: which.
        only: a cell's key, or what the keys or the runs' names of the wanted cells hold; empty for all.
        scale: share of the paper's rounds, in (0, 1].
        seeds: each cell is run with each of them.
        out: holds a folder per run.

    Raises:
        SettingError: no cell is meant, a seed is none or given twice, or the scale is out of range.
    """
    each_once("seeds", seeds)
    named = tuple(cell for cell in table.cells if cell.key == only)
    cells = named or tuple(cell for cell in table.cells if holds(only, cell.key, cell.run))
    if not cells:
        first = table.cells[0].key
        raise SettingError(
            f"--only {only}: no cell of {table.name} has this in its name."
            f"{nearest(only, _words(table.cells))} Names are such as {first}, all {len(table.cells)} made of: "
            f"{', '.join(sorted(_parts(table.cells)))}."
        )
    what = Reproduction(table, cells, lacking(cells), scale, table.scaled(scale), tuple(seeds), out)
    what.planned_runs()  # refuses what is not a seed before anything is trained
    return what


def _parts(cells: Iterable[Cell]) -> set[str]:
    return {part for cell in cells for part in cell.key.split("/")}


def _words(cells: Sequence[Cell]) -> set[str]:
    return _parts(cells) | {cell.key for cell in cells}


def lacking(cells: Iterable[Cell]) -> dict[str, str]:
    """Return why cells cannot be run here: their keys → the reason; the others are left out."""
    cells = tuple(cells)
    there = {name: looked_in([name])[0] for name in dict.fromkeys(cell.data for cell in cells)}
    found = {}
    for cell in cells:
        if cell.method not in METHODS:
            found[cell.key] = f"method '{cell.method}': not in this version"
        elif not there[cell.data]["found"]:
            found[cell.key] = f"data set '{cell.data}' is not here: fedfloor datasets get {cell.data}"
    return found


Row = Mapping[str, Any]


def heading(what: Reproduction) -> str:
    """Return what a table is and, where it is scaled, that it is."""
    title = f"{what.table.source}: {what.table.title}, {what.rounds} rounds"
    if what.rounds == what.table.rounds:
        return title
    ends = f"the learning rate runs to its end in {what.rounds} rounds, and " if scheduled(what) else ""
    return (
        f"{title} instead of the paper's {what.table.rounds} (scale {what.scale:g}): {ends}the paper's figures are "
        f"those of {what.table.rounds}"
    )


def scheduled(what: Reproduction) -> bool:
    """Return whether the learning rate of a cell changes in the course of its rounds."""
    known = (what.table.experiment(cell, what.rounds) for cell in what.cells if cell.method in METHODS)
    return any(isinstance(getattr(method_of(one), "work", WorkSettings()).lr, Cosine | Exponential) for one in known)


def about(what: Reproduction) -> dict[str, Any]:
    """Return what a document says beside the rows."""
    table = what.table
    return {
        "table": table.name, "source": table.source, "scale": what.scale, "rounds": what.rounds,
        "paper_rounds": table.rounds, "seeds": list(what.seeds), "notes": list(table.notes), "fedfloor": __version__,
    }  # fmt: skip


def markdown(what: Reproduction, rows: Sequence[Row]) -> str:
    """Return a table as Markdown, with the choices that were made."""
    names = [name for name in rows[0] if name != "by_seed" or any(row[name] for row in rows)]
    lines = [f"# {what.table.name}", "", f"{heading(what)}.", ""]
    lines += ["| " + " | ".join(name.replace("_", " ") for name in names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(written(row[name]) for name in names) + " |" for row in rows]
    lines += ["", f"Made by fedfloor {__version__}, seeds {', '.join(map(str, what.seeds))}. Choices:", ""]
    return "\n".join([*lines, *(f"- {note}" for note in what.table.notes)]) + "\n"


def written(value: Any) -> str:
    """Return a value as the table has it."""
    if isinstance(value, list):
        return ", ".join(map(written, value))
    if isinstance(value, float):
        return figure(value, 4 if abs(value) < 10 else 1)
    return "–" if value is None else str(value).replace("|", "\\|")


def save(what: Reproduction, rows: Sequence[Row]) -> None:
    """Write ``table.md`` and ``table.json`` into the table's folder, each whole or not at all.

    Raises:
        RunError: they cannot be written.
    """
    document = {"rows": [dict(row) for row in rows], **about(what)}
    write(what.out / "table.md", markdown(what, rows))
    write(what.out / "table.json", json.dumps(document, indent=2, ensure_ascii=False) + "\n")
