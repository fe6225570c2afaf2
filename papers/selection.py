"""Samplers compared on selections in published parks: figures, courses against steps and time, tables and pictures."""

from __future__ import annotations

import importlib.util
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedfloor import __version__, config
from fedfloor.base.chance import generator
from fedfloor.park.park import Park
from fedfloor.report.groups import half_width
from fedfloor.runs.folder import write
from fedfloor.runs.parks import build_park
from fedfloor.solvers.selection.problem import SelectionProblem, batches, divergence, verify
from fedfloor.solvers.selection.solve import (
    PaperStart,
    Trace,
    bayesian,
    curve,
    gbpcs,
    genetic,
    monte_carlo,
    solve,
    swap,
)
from fedfloor.solvers.solution import Solution
from papers.allocation import wanted

SELECTIONS = 200
STATED = ("mean", "median", "std", "min", "max")  # of divergences


@dataclass(frozen=True)
class Printed:
    """A sampler's figures in the paper: divergences (Eq. 6) of its factories, and seconds of a selection."""

    mean: float
    median: float
    std: float
    min: float
    max: float
    seconds: float


@dataclass(frozen=True)
class Begun:
    """What the paper says of a start of GBP-CS, for one selection.

    Args:
        begins, ends: divergences before the first exchange and in the end, as the plot's data have them.
        swaps: exchanges.
        said: where it ends by the paper's text.
    """

    begins: float
    swaps: int
    ends: float
    said: float


@dataclass(frozen=True)
class Sampler:
    """A sampler that takes part.

    Args:
        label: its name in the table.
        solver: its name among the selection solvers.
        paper: its figures there.
        init: the start, of GBP-CS.
        begun: what the paper says of that start.
        share: of the selections that it makes; a slow one makes fewer.
        needs: a module that must be installed.
    """

    label: str
    solver: str
    paper: Printed | None = None
    init: PaperStart | None = None
    begun: Begun | None = None
    share: float = 1.0
    needs: str = ""

    def lacking(self) -> str:
        """Return why it cannot take part here; empty if it can."""
        if not self.needs or importlib.util.find_spec(self.needs) is not None:
            return ""
        return f"skipped: needs {self.needs}: pip install 'fedfloor[samplers]'"


@dataclass(frozen=True)
class Point:
    """A park that samplers are compared in.

    Args:
        key: its name; ``--only`` looks in it.
        data, park: the tables of these names of its experiment. Devices hold windows of one size.
    """

    key: str
    data: Mapping[str, Any]
    park: Mapping[str, Any]


@dataclass(frozen=True)
class Comparison:
    """A published comparison of samplers.

    Args:
        name: as it is typed.
        title: what it shows.
        source: paper and number of the figure.
        points: where they are compared.
        samplers: row by row; the one whose solver is ``exact`` is the optimum.
        notes: what the paper does not say and was chosen here.
    """

    name: str
    title: str
    source: str
    points: tuple[Point, ...]
    samplers: tuple[Sampler, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """A comparison as it was asked for.

    Args:
        comparison: which.
        points: those that were asked for.
        seeds: of the parks, one of each.
        selections: in each park; a slow sampler makes the first of them.
        scale: share of 200 selections.
    """

    comparison: Comparison
    points: tuple[Point, ...]
    seeds: tuple[int, ...]
    selections: int
    scale: float

    def made(self, sampler: Sampler) -> int:
        """Return how many selections a sampler makes in each park."""
        return max(1, round(sampler.share * self.selections))

    @property
    def work(self) -> int:
        """Selections of all samplers in all parks."""
        there = [self.made(one) for one in self.comparison.samplers if not one.lacking()]
        return len(self.points) * len(self.seeds) * sum(there)


def asked(comparison: Comparison, only: str, scale: float, seeds: Sequence[int]) -> Asked:
    """Return what is to be done for a comparison.

    Args:
        comparison: which.
        only: a text that the keys of the wanted points hold; empty for all.
        scale: share of 200 selections in each park, in (0, 1].
        seeds: of the parks.

    Raises:
        SettingError: no point is meant, a seed is none or given twice, or the scale is out of range.
    """
    points = wanted(comparison.name, comparison.points, only, scale, seeds, "selections")
    return Asked(comparison, points, tuple(seeds), max(1, round(scale * SELECTIONS)), scale)


# devices of a factory that are drawn beforehand, and those that a sampler chooses
GIVEN = 2
CHOSEN = 8
COMPILED = ("swap", "exact", "brute")  # at the first call
Row = dict[str, Any]


def problems(point: Point, seed: int, many: int) -> Iterator[SelectionProblem]:
    """Yield selections one after the other: every factory at tick 0, every factory at tick 1, …

    Args:
        point: the park's description.
        seed: of the park, and of the devices drawn beforehand.
        many: how many.

    Raises:
        SettingError: the park's data are not there.
    """
    for one in selections(park_of(point, seed), seed, many):
        yield one.problem


def park_of(point: Point, seed: int) -> Park:
    """Return the park of a point."""
    return build_park(config.from_table({"seed": seed, "data": point.data, "park": point.park}))


class Selecting(NamedTuple):
    """A selection that is to be made: when, by numbers the devices drawn beforehand and the others, and its problem."""

    tick: int
    given: Sequence[int]
    others: Sequence[int]
    problem: SelectionProblem


def selections(park: Park, seed: int, many: int) -> Iterator[Selecting]:
    """Yield the selections of :func:`problems` with their devices."""
    for i in range(many):
        tick, factory = divmod(i, park.factories)
        members = park.members(factory)
        counts = park.census(members, tick, [0] * len(members)).T.astype(np.float64)
        order = generator(seed, "drawn beforehand", tick, factory).permutation(len(members))
        given = np.sort(order[:GIVEN])
        rest = np.sort(order[GIVEN:])
        chosen = min(CHOSEN, len(rest))
        batch = float(counts[:, 0].sum())
        problem = batches(counts[:, rest], park.distribution, chosen, batch, counts[:, given].sum(1))
        yield Selecting(tick, [members[k] for k in given], [members[k] for k in rest], problem)


def rows(what: Asked, step: Callable[[int], None] = lambda _: None) -> list[Row]:
    """Return a comparison: a row of JSON scalars per point and sampler.

    Args:
        what: the comparison as it was asked for.
        step: called with the number of selections done.

    Raises:
        SettingError: the data are not there.
    """
    found = []
    done = 0
    for point in what.points:
        parks = [list(problems(point, seed, what.selections)) for seed in what.seeds]
        best = [[solve("exact", one).value for one in park] for park in parks]
        for sampler in what.comparison.samplers:
            if sampler.lacking():
                found.append(_row(point, sampler, what, [], note=sampler.lacking()))
                continue
            if sampler.solver in COMPILED:
                _compile(sampler.solver)
            made: list[Made] = []
            for seed, park, least in zip(what.seeds, parks, best, strict=True):
                for i in range(what.made(sampler)):
                    made.append(_made(sampler, park[i], least[i], drawn(sampler, seed, i), seed))
                    done += 1
                    step(done)
            found.append(_row(point, sampler, what, made))
    return found


def drawn(sampler: Sampler, seed: int, number: int) -> int:
    """Return the seed of a sampler's own draws for a park's selection."""
    return int(generator(seed, f"reproduce {sampler.label}", number).integers(2**32))


@dataclass(frozen=True)
class Made:
    """A selection: its divergence, what d is above the least as a share of it, how that came, and its park's seed."""

    divergence: float
    above: float
    seconds: float
    proven: bool
    park: int
    begins: float | None = None
    swaps: int | None = None


def _made(sampler: Sampler, problem: SelectionProblem, least: float, seed: int, park: int) -> Made:
    seconds, solution = timed(sampler.solver, problem, seed)
    above = 0.0 if solution.value <= least else (solution.value / least - 1 if least > 0 else math.inf)
    begins, swaps = (None, None) if sampler.init is None else descent(problem, sampler.init, seed)
    off = divergence(problem, solution.choice)
    return Made(off, above, seconds, solution.status == "optimal", park, begins, swaps)


def timed(solver: str, problem: SelectionProblem, seed: int) -> tuple[float, Solution[Any]]:
    """Return the processor's seconds, whatever else a machine does, and what was selected, recomputed."""
    began = time.process_time()
    solution = solve(solver, problem, seed=seed)
    seconds = time.process_time() - began
    verify(problem, solution)
    return seconds, solution


def _compile(solver: str) -> None:
    """Have a solver compiled by a problem that takes no time; halves, for whole numbers are bounded without a tree."""
    solve(solver, SelectionProblem(np.eye(6) + 0.5, np.full(6, 0.7), 3))


def descent(problem: SelectionProblem, init: PaperStart, seed: int) -> tuple[float, int]:
    """Return the divergence that GBP-CS's exchanges begin with, after a warm-up, and how many are made."""
    trace: Trace = []
    gbpcs(problem, init, seed=seed, trace=trace)
    first = problem.how_many - 1 if init == "zero" else 0
    return float(curve(problem, trace[first : first + 1])[0]), len(trace) - 1 - first


def _row(point: Point, sampler: Sampler, what: Asked, made: list[Made], note: str | None = None) -> Row:
    paper = sampler.paper
    begun = sampler.begun
    optimum = next((one.paper for one in what.comparison.samplers if one.solver == "brute"), None)
    off = [one.divergence for one in made]
    stated = {name: getattr(paper, name, None) for name in STATED}
    begins, swaps = ([getattr(one, name) for one in made] for name in ("begins", "swaps"))
    return {
        "point": point.key, "sampler": sampler.label, "start": sampler.init, "selections": len(made),
        "mean": _mean(off), "median": statistics.median(off) if off else None,
        "std": statistics.pstdev(off) if off else None, "min": min(off, default=None), "max": max(off, default=None),
        "above_pct": _mean([100 * one.above for one in made]), "proven": sum(one.proven for one in made),
        "seconds": statistics.median(one.seconds for one in made) if made else None,
        "begins": _mean(begins) if sampler.init else None, "swaps": _mean(swaps) if sampler.init else None,
        **{f"paper_{name}": value for name, value in stated.items()},
        "paper_above_pct": 100 * (paper.mean / optimum.mean - 1) if paper and optimum else None,
        "paper_seconds": paper.seconds if paper else None, "paper_begins": begun.begins if begun else None,
        "paper_swaps": begun.swaps if begun else None, "paper_ends": begun.ends if begun else None,
        "paper_ends_text": begun.said if begun else None, "note": note,
        "parks": [[round(one.divergence, 6) for one in made if one.park == seed] for seed in what.seeds],
    }  # fmt: skip


def _mean(values: Sequence[Any]) -> float | None:
    mean = statistics.fmean(values) if values else math.inf
    return mean if math.isfinite(mean) else None


Pairs = tuple[tuple[float, float], ...]
Solve = Callable[..., Any]
# Stopped earlier, a sampler has drawn the same as far as it got: such points are its best so far.
EARLIER: Mapping[str, Sequence[Solve]] = {
    "monte-carlo": [partial(monte_carlo, draws=n) for n in (1, 3, 10, 30, 100, 300, 1000)],
    "genetic": [partial(genetic, generations=n) for n in (1, 3, 10, 20, 30, 50, 70, 100)],
    "bayesian": [partial(bayesian, iterations=n) for n in (0, 5, 10, 15, 20, 25)],
    "swap": [partial(swap, kicks=n) for n in (0, 5, 15, 30, 60)],
}
QUICK_S = 0.1
REPEATS = 9


@dataclass(frozen=True)
class Courses:
    """How one selection goes.

    Args:
        starts: start of GBP-CS → divergences after each step, those of the warm-up, too.
        time: sampler → (seconds, best divergence so far), …
        optimum: the least divergence.
        candidates, chosen: of the selection.
    """

    starts: Mapping[str, tuple[float, ...]]
    time: Mapping[str, Pairs]
    optimum: float
    candidates: int
    chosen: int

    def files(self, name: str) -> dict[str, str]:
        """Return the pictures' file names, and what they show."""
        of = f"of one selection, {self.chosen} of {self.candidates} devices"
        return {
            f"{name}-starts.svg": f"Class divergence against steps of GBP-CS from its three starts, {of}",
            f"{name}-time.svg": f"Class divergence against time of all samplers, {of}",
        }

    def pictures(self, name: str) -> dict[str, str]:
        """Return the pictures' file names, and the pictures as SVG."""
        from papers import pictures

        drawings = pictures.steps(self.starts, self.optimum), pictures.against_time(self.time, self.optimum)
        return dict(zip(self.files(name), drawings, strict=True))


def courses(what: Asked) -> Courses:
    """Return how the first selection goes, in the last of the points that were asked for.

    Raises:
        SettingError: the data are not there.
    """
    seed = what.seeds[0]
    problem = next(problems(what.points[-1], seed, 1))
    starts: dict[str, tuple[float, ...]] = {}
    taken: dict[str, Pairs] = {}
    for sampler in what.comparison.samplers:
        own = partial(solve, sampler.solver)
        chance = drawn(sampler, seed, 0)
        if sampler.init is not None:
            starts[sampler.init] = descended(problem, sampler.init, chance)
        if not sampler.lacking():
            runs = EARLIER.get(sampler.solver, [own])
            runs[0](problem, seed=chance)  # what is compiled or imported is not timed
            taken[sampler.label] = tuple(_timed(run, problem, chance) for run in runs)
    return Courses(
        starts, taken, divergence(problem, solve("exact", problem).choice), problem.candidates, problem.how_many
    )


def descended(problem: SelectionProblem, init: PaperStart, seed: int) -> tuple[float, ...]:
    """Return the divergence after every step of GBP-CS."""
    trace: Trace = []
    gbpcs(problem, init, seed=seed, trace=trace)
    return tuple(curve(problem, trace).tolist())


def _timed(run: Solve, problem: SelectionProblem, seed: int) -> tuple[float, float]:
    """Return the processor's seconds, the median of several where it is quick, and the divergence."""
    seconds: list[float] = []
    while len(seconds) < (REPEATS if not seconds or min(seconds) < QUICK_S else 1):
        began = time.process_time()
        solution = run(problem, seed=seed)
        seconds.append(time.process_time() - began)
    return statistics.median(seconds), divergence(problem, solution.choice)


Shown = dict[str, str | None]
Written = Callable[[float], str]
FOUR = "{:.4f}".format
THREE = "{:.3f}".format
ONE = "{:.1f}".format
PAIRED = "GBP-CS"
SAME = f"Divergence, selection by selection, less that of {PAIRED}; ± is half of a 95 % interval over the selections:"
STARTS = "Starts of GBP-CS; in brackets, of ends and places, first by the plot's data, then by the text:"


def heading(what: Asked) -> str:
    """Return what a comparison is, and of how much it was made."""
    parks = f", in {len(what.seeds)} parks each" if len(what.seeds) > 1 else ""
    full = "" if what.scale == 1 else f" (scale {what.scale:g}; in full {SELECTIONS})"
    many = f"{what.selections} selection{'s' * (what.selections > 1)}"
    return f"{what.comparison.source}: {what.comparison.title}, {many}{full}{parks}"


def about(what: Asked, courses: Courses) -> dict[str, Any]:
    """Return what a document says beside the rows."""
    return {
        "table": what.comparison.name, "source": what.comparison.source, "scale": what.scale,
        "seeds": list(what.seeds), "selections": what.selections, "notes": list(what.comparison.notes),
        "courses": {"starts": dict(courses.starts), "optimum": courses.optimum,
                    "time": {label: [list(pair) for pair in pairs] for label, pairs in courses.time.items()}},
        "fedfloor": __version__,
    }  # fmt: skip


def shown(rows: Sequence[Row]) -> list[Shown]:
    """Return the samplers' rows of a point as people read them, the paper's figures in brackets."""
    are: dict[str, tuple[str, Written, Written]] = {name: (name, FOUR, THREE) for name in STATED}
    are |= {"above optimum %": ("above_pct", ONE, ONE), "time": ("seconds", duration, duration)}
    found: list[Shown] = []
    for row in rows:
        figures = {words: beside(ours, row[key], theirs, row[f"paper_{key}"])
                   for words, (key, ours, theirs) in are.items()}  # fmt: skip
        many = {"sampler": row["sampler"], "selections": str(row["selections"])}
        found.append({**many, **figures, "note": row["note"]})
    return found


def paired(rows: Sequence[Row]) -> list[Shown]:
    """Return by how much samplers end above GBP-CS, selection by selection, with 95 % intervals.

    Those that made fewer selections are left out.
    """
    values = {row["sampler"]: [one for park in row["parks"] for one in park] for row in rows}
    ours = values[PAIRED]
    found: list[Shown] = []
    for sampler, others in values.items():
        if sampler != PAIRED and len(others) == len(ours) > 1:
            apart = [other - own for other, own in zip(others, ours, strict=True)]
            mean = f"{statistics.fmean(apart):.4f} ± {half_width(apart) or 0:.4f}".replace("-", "−")
            found.append({"sampler": sampler, f"minus {PAIRED}": mean})
    return found


def starts(rows: Sequence[Row]) -> list[Shown]:
    """Return the starts of GBP-CS in a point as people read them; places are by where they end."""
    found: list[Shown] = []
    same = [row for row in rows if row["start"] is not None]
    for row in same:
        keys = ("mean", "paper_ends", "paper_ends_text")
        places = [str(1 + sum(one[key] < row[key] for one in same)) for key in keys]
        found.append({
            "start": row["start"],
            "begins at": beside(FOUR, row["begins"], THREE, row["paper_begins"]),
            "exchanges": beside("{:.2f}".format, row["swaps"], "{:d}".format, row["paper_swaps"]),
            "ends at": beside(FOUR, row["mean"], THREE, row["paper_ends"], row["paper_ends_text"]),
            "above optimum %": None if row["above_pct"] is None else ONE(row["above_pct"]),
            "place": f"{places[0]} ({', '.join(places[1:])})",
        })  # fmt: skip
    return found


def beside(ours: Callable[[Any], str], value: Any, theirs: Callable[[Any], str], *paper: Any) -> str | None:
    """Write a figure with the paper's in brackets.

    >>> beside("{:.2f}".format, 1.234, "{:.1f}".format, 2.0), beside("{:.2f}".format, 1.234, "{:.1f}".format, None)
    ('1.23 (2.0)', '1.23')
    """
    if value is None:
        return None
    known = ", ".join(theirs(one) for one in paper if one is not None)
    return f"{ours(value)} ({known})" if known else ours(value)


def duration(seconds: float) -> str:
    """Write a time with at most three digits.

    >>> duration(0.0000291), duration(0.0154), duration(978.7786)
    ('29.1 µs', '15.4 ms', '979 s')
    """
    size, unit = next((pair for pair in ((1.0, "s"), (1e-3, "ms")) if seconds >= pair[0]), (1e-6, "µs"))
    return f"{seconds / size:.3g} {unit}"


def markdown(what: Asked, rows: Sequence[Row], courses: Courses, command: str) -> str:
    """Return a comparison as Markdown: the command that makes it, both tables, pictures, the choices that were made."""
    name = what.comparison.name
    lines = [f"# {name}", "", f"{heading(what)}. In brackets: the paper.", "", "```bash", command, "```", ""]
    for point in what.points:
        here = [row for row in rows if row["point"] == point.key]
        lines += [f"## {point.key}", "", *_table(shown(here)), "", f"{proof(here)} {STARTS}", ""]
        lines += [*_table(starts(here)), ""]
        if paired(here):
            lines += [SAME, "", *_table(paired(here)), ""]
    lines += [f"## One selection in {what.points[-1].key}", ""]
    lines += [f"![{words}]({file})\n" for file, words in courses.files(name).items()]
    lines += [f"Made by fedfloor {__version__}, seeds {', '.join(map(str, what.seeds))}. Choices:", ""]
    return "\n".join([*lines, *(f"- {note}" for note in what.comparison.notes)]) + "\n"


def proof(rows: Sequence[Row]) -> str:
    """Say whether the optimum is one."""
    exact = [row for row in rows if row["sampler"].startswith("exact")]
    proven, many = (sum(row[key] for row in exact) for key in ("proven", "selections"))
    return f"The optimum is proven in {'all' if proven == many else f'{proven} of'} {many} selections."


def _table(rows: Sequence[Shown]) -> list[str]:
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    cells = ["| " + " | ".join(row[name] or "–" for name in names) + " |" for row in rows]
    return ["| " + " | ".join(names) + " |", "|" + "---|" * len(names), *cells]


def save(what: Asked, rows: Sequence[Row], courses: Courses, out: Path, command: str) -> None:
    """Write ``table.md``, ``table.json`` and the pictures into a folder, each whole or not at all.

    Raises:
        RunError: they cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    for file, picture in courses.pictures(what.comparison.name).items():
        write(out / file, picture)
    write(out / "table.md", markdown(what, rows, courses, command))
    document = {"rows": [dict(row) for row in rows], **about(what, courses)}
    write(out / "table.json", json.dumps(document, indent=2, ensure_ascii=False) + "\n")
