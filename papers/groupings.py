"""Groupings compared by how far groups' classes are apart (CPD), on batches of one size; nothing is trained."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor import __version__
from fedfloor.base.chance import generator
from fedfloor.data import sources
from fedfloor.data.dataset import Dataset
from fedfloor.park.partition import Dirichlet
from fedfloor.report.groups import half_width
from fedfloor.report.numbers import interval
from fedfloor.solvers.grouping.solve import GroupingProblem, median, singletons, solve, verify
from papers import documents
from papers.allocation import wanted

POPULATIONS = 20
Row = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """A way to form groups.

    Args:
        label: its name in the table.
        solver: its name among the grouping solvers; empty where every device is alone.
        paper: its median over that of devices alone, and over that of the benchmark, in the paper.
    """

    label: str
    solver: str = ""
    paper: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True)
class Point:
    """How many groups, and whose batches.

    Args:
        groups: M.
        alpha: the characters of all owners are dealt by a Dirichlet draw for every class; None: owners keep theirs.
    """

    groups: int
    alpha: float | None = None

    @property
    def key(self) -> str:
        """Its name; ``--only`` looks in it."""
        return f"M = {self.groups}, {self.held}"

    @property
    def held(self) -> str:
        """Whose characters a device holds."""
        return "writers" if self.alpha is None else f"Dirichlet, α = {self.alpha:g}"


@dataclass(frozen=True)
class Groupings:
    """A published comparison of groupings, on FEMNIST.

    Args:
        name: as it is typed.
        title: what it shows.
        source: paper and number of the figure.
        devices: K.
        batch: n, samples of each device's batch.
        points: where they are compared.
        ways: row by row, the first with every device alone; the solver ``random`` is the benchmark.
        notes: what the paper does not say and was chosen here.
    """

    name: str
    title: str
    source: str
    devices: int
    batch: int
    points: tuple[Point, ...]
    ways: tuple[Way, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """A comparison as it was asked for.

    Args:
        of: which.
        points: those that were asked for.
        seeds: as they were typed.
        populations: their seeds.
        scale: share of 20 populations.
    """

    of: Groupings
    points: tuple[Point, ...]
    seeds: tuple[int, ...]
    populations: tuple[int, ...]
    scale: float

    @property
    def work(self) -> int:
        """Groupings of all populations."""
        return len(self.points) * len(self.populations) * len(self.of.ways)


def asked(of: Groupings, only: str, scale: float, seeds: Sequence[int]) -> Asked:
    """Return what is to be done for a comparison.

    Args:
        of: which.
        only: a text that the keys of the wanted points hold; empty for all.
        scale: share of 20 populations, in (0, 1].
        seeds: seed s stands for the populations 20s … 20s + 19.

    Raises:
        SettingError: no point is meant, a seed is none or given twice, or the scale is out of range.
    """
    points = wanted(of.name, of.points, only, scale, seeds, "populations")
    many = max(1, round(scale * POPULATIONS))
    return Asked(of, points, tuple(seeds), tuple(POPULATIONS * s + i for s in seeds for i in range(many)), scale)


def rows(what: Asked, step: Callable[[int], None] = lambda _: None) -> list[Row]:
    """Return a comparison: a row of JSON scalars per point and way.

    Args:
        what: the comparison as it was asked for.
        step: called with the number of groupings done.

    Raises:
        SettingError: the data are not there.
    """
    data = sources.load("femnist")
    K = what.of.devices
    classes = len(data.classes)
    found = []
    done = 0
    for point in what.points:
        problems = []
        for seed in what.populations:
            labels = by_owner(data) if point.alpha is None else dealt(data, point.alpha, K, seed)
            drawn = drawn_counts(K, labels, generator(seed, "grouping", K), what.of.batch, classes)
            problems.append(GroupingProblem(drawn.T.astype(np.float64), point.groups))
        medians: dict[str, list[float]] = {}
        for way in what.of.ways:
            medians[way.solver] = here = []
            for seed, problem in zip(what.populations, problems, strict=True):
                here.append(_median(problem, way, seed))
                done += 1
                step(done)
        found += [_row(point, way, medians, problems[0].size) for way in what.of.ways]
    return found


def _median(problem: GroupingProblem, way: Way, seed: int) -> float:
    if not way.solver:
        return median(problem, singletons(problem))
    solution = solve(way.solver, problem, seed=seed)
    verify(problem, solution)
    return median(problem, solution.choice)


def _row(point: Point, way: Way, medians: dict[str, list[float]], size: int) -> Row:
    here = medians[way.solver]
    row = {"groups": point.groups, "held": point.held, "grouping": way.label}
    row |= {"size": size if way.solver else 1, "populations": len(here), "cpd": statistics.fmean(here), "cpds": here}
    for name, other, paper in zip(("devices", "benchmark"), ("", "random"), way.paper, strict=True):
        ratios = [mine / theirs for mine, theirs in zip(here, medians[other], strict=True)]
        row |= {f"to_{name}": statistics.fmean(ratios), f"to_{name}_half_width": half_width(ratios)}
        row |= {f"paper_to_{name}": paper}
    return row


# -- for people --------------------------------------------------------------------------------------------------------


def heading(what: Asked) -> str:
    """Return what a comparison is, and of how much it was made."""
    full = "" if what.scale == 1 else f" (scale {what.scale:g}; in full {POPULATIONS} a seed)"
    return f"{what.of.source}: {what.of.title}, {len(what.populations)} populations of {what.of.devices} devices{full}"


def about(what: Asked) -> dict[str, Any]:
    """Return what a document says beside the rows."""
    return {
        "table": what.of.name, "source": what.of.source, "scale": what.scale, "seeds": list(what.seeds),
        "notes": list(what.of.notes), "fedfloor": __version__,
    }  # fmt: skip


def shown(found: Sequence[Row]) -> list[dict[str, str]]:
    """Return the rows as people read them, with the paper's figures in brackets."""
    table = []
    for row in found:
        words = {"characters": row["held"], "M": str(row["groups"]), "L": str(row["size"]), "grouping": row["grouping"]}
        words["median CPD"] = f"{row['cpd']:.2e}"
        for name in ("devices", "benchmark"):
            paper = row[f"paper_to_{name}"]
            said = interval(row[f"to_{name}"], row[f"to_{name}_half_width"], 3)
            words[f"to {name}"] = said if paper is None else f"{said} ({paper:g})"
        table.append(words)
    return table


def save(what: Asked, found: Sequence[Row], out: Path, command: str) -> None:
    """Write ``table.md`` and ``table.json`` into a folder, each whole or not at all.

    Raises:
        RunError: they cannot be written.
    """
    documents.save(out, about(what), found, shown(found), (f"{heading(what)}. In brackets: the paper.", command))


def by_owner(data: Dataset) -> list[NDArray[np.int64]]:
    """Return the labels of each owner's samples; of a data set without owners one list of all."""
    owner = np.zeros(len(data.y), np.int32) if data.owner is None else data.owner
    order = np.argsort(owner, kind="stable")
    labels = np.asarray(data.y)[order]
    return np.split(labels, np.flatnonzero(np.diff(owner[order])) + 1)


def dealt(data: Dataset, alpha: float, devices: int, seed: int) -> list[NDArray[np.int64]]:
    """Return the labels of each device's samples after a Dirichlet draw for every class; the seed is the draw's."""
    labels = np.asarray(data.y, np.int64)
    rng = generator(seed, "grouping, dealt", devices)
    parts = Dirichlet(alpha=alpha).split(labels, None, len(data.classes), devices, rng)
    return [labels[part] for part in parts]


def drawn_counts(
    devices: int, labels: Sequence[NDArray[np.int64]], rng: np.random.Generator, size: int, classes: int
) -> NDArray[np.int64]:
    """Return the counts of a batch of each of some owners, different ones where there are enough [F, devices]."""
    owners = rng.choice(len(labels), devices, replace=devices > len(labels))
    held = [rng.choice(labels[number], size, replace=labels[number].size < size) for number in owners]
    return np.stack([np.bincount(number, minlength=classes) for number in held], axis=1)
