"""What is to be run for a table: which cells were asked for, which of them can be, and the runs these take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedfloor.data.sources import looked_in
from fedfloor.errors import SettingError, nearest
from fedfloor.experiment import Experiment
from fedfloor.methods.catalog import METHODS
from fedfloor.runs.compare import Task, each_once
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

    def tasks(self) -> list[Task]:
        """Return the runs seed by seed, those in the same park one after the other; a shared run is there once."""
        runs = {cell.run: cell for cell in self.cells if cell.key not in self.lacking}
        found = []
        for seed in self.seeds:
            parks: dict[str, list[Task]] = {}
            for cell in runs.values():
                what = self.table.experiment(cell, self.rounds, seed)
                limits = Limits(accuracy=cell.target) if cell.target is not None else None
                task = Task(f"{cell.run} seed {seed}", what, self.folder(cell, seed), limits)
                parks.setdefault(_park(what), []).append(task)
            found += [task for tasks in parks.values() for task in tasks]
        return found


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
    what.tasks()  # refuses what is no seed before anything is trained
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
