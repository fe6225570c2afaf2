"""Figures about allocation: schemes compared in parks that are drawn; nothing is trained."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from fedfloor import __version__
from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError, nearest, require
from fedfloor.network import cell
from fedfloor.network.profile import NetworkSettings
from fedfloor.report.groups import half_width
from fedfloor.runs.folder import write
from fedfloor.solvers.allocation.problem import AllocationProblem, lower_bound
from papers.cells import holds
from papers.schemes import Drawn

PARKS = 5
DRAWS = 5
BOUND = "lower bound"
HUGE = 1e100  # beyond, squares do not fit into numbers, and an interval says nothing
Row = dict[str, Any]
Scheme = Callable[[AllocationProblem, np.random.Generator], Drawn]


@dataclass(frozen=True)
class Point:
    """Where schemes are compared.

    Args:
        key: its name; ``--only`` looks in it.
        devices: in each park.
        radio: what differs from profile ``rafed``.
    """

    key: str
    devices: int = 40
    radio: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """A scheme, with each setting of it that is tried.

    Args:
        label: its name.
        tried: setting → scheme; of several, the one with the smallest median is shown.
        paper: by how many per cent RaFed is below it in the paper, where it says so.
        role: ``rafed`` and ``ours`` are what the others are compared with.
        random: whether it draws; else a park is done once.
    """

    label: str
    tried: Mapping[str, Scheme]
    paper: float | None = None
    role: str = ""
    random: bool = True


@dataclass(frozen=True)
class Study:
    """A published figure about allocation.

    Args:
        name: as it is typed.
        title: what it shows.
        source: paper and number of the figure.
        points: where schemes are compared.
        contenders: those of a point.
        notes: what the paper does not say and was chosen here.
    """

    name: str
    title: str
    source: str
    points: tuple[Point, ...]
    contenders: Callable[[Point], tuple[Contender, ...]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """A figure as it was asked for.

    Args:
        study: which.
        points: those that were asked for.
        parks: seeds of the parks.
        draws: of every scheme that draws, in each park.
        scale: share of the paper's parks and draws.
    """

    study: Study
    points: tuple[Point, ...]
    parks: tuple[int, ...]
    draws: int
    scale: float

    @property
    def work(self) -> int:
        """Points, whose parks are done one after the other."""
        return len(self.points)


@dataclass(frozen=True)
class Found:
    """What a contender came to at a point.

    Args:
        label, paper, role: the contender's.
        knob: the setting that is shown.
        seconds, active: float64 [parks, draws].
    """

    label: str
    paper: float | None
    role: str
    knob: str
    seconds: np.ndarray
    active: np.ndarray


def asked(study: Study, only: str, scale: float, seeds: Sequence[int]) -> Asked:
    """Return what is to be done for a figure.

    Args:
        study: which.
        only: a text that the keys of the wanted points hold; empty for all.
        scale: share of 5 parks and of 5 draws in each, in (0, 1].
        seeds: seed s stands for the parks 5s … 5s + 4.

    Raises:
        SettingError: no point is meant, a seed is none or given twice, or the scale is out of range.
    """
    points = wanted(study.name, study.points, only, scale, seeds, "parks and draws")
    many = max(1, round(scale * PARKS))
    parks = tuple(PARKS * s + i for s in seeds for i in range(many))
    return Asked(study, points, parks, max(1, round(scale * DRAWS)), scale)


class Keyed(Protocol):
    """A point of a figure; ``--only`` looks in its key."""

    @property
    def key(self) -> str:
        """Its name."""
        ...


Some = TypeVar("Some", bound=Keyed)


def wanted(
    figure: str, points: Sequence[Some], only: str, scale: float, seeds: Sequence[int], of: str
) -> tuple[Some, ...]:
    """Return the points of a figure whose keys hold a text.

    Args:
        figure: its name.
        points: all of them.
        only: the text; empty for all.
        scale, seeds: checked, too.
        of: what the scale is a share of.

    Raises:
        SettingError: no point is meant, a seed is none or given twice, or the scale is out of range.
    """
    require(0 < scale <= 1, "--scale", scale, f"a share of the {of}, above 0 and at most 1, such as 0.2")
    require(all(s >= 0 for s in seeds), "--seeds", list(seeds), "whole numbers of at least 0")
    require(len(set(seeds)) == len(seeds), "--seeds", list(seeds), "different numbers")
    found = tuple(point for point in points if holds(only, point.key))
    if not found:
        keys = [point.key for point in points]
        raise SettingError(
            f"--only {only}: no point of {figure} has this in its name.{nearest(only, keys)} Names: {'; '.join(keys)}."
        )
    return found


def rows(what: Asked, step: Callable[[int], None] = lambda _: None) -> list[Row]:
    """Return a figure: a row of JSON scalars per point and contender, and one for the lower bound.

    Args:
        what: the figure as it was asked for.
        step: called with the number of points done.
    """
    found = []
    for number, point in enumerate(what.points, start=1):
        problems = [problem(point, park) for park in what.parks]
        done = [compete(one, problems, what) for one in what.study.contenders(point)]
        found += [_row(point, problems, one, done) for one in done]
        bounds = np.array([[lower_bound(one)] for one in problems])
        found.append(_row(point, problems, Found(BOUND, None, "", "", bounds, np.full((1, 1), np.nan)), done))
        step(number)
    return found


def problem(point: Point, park: int) -> AllocationProblem:
    """Return the problem of a park at a point; its devices are those of ``devices = …`` and this seed."""
    settings = NetworkSettings(profile=cell.PROFILE, radio=dict(point.radio) or None)
    return cell.place_devices(cell.CellSettings(f"park {park}", point.devices, park, network=settings)).problem()


def compete(one: Contender, problems: Sequence[AllocationProblem], what: Asked) -> Found:
    """Return what a contender comes to in every park and draw, at its best setting."""
    draws = what.draws if one.random else 1
    best: Found | None = None
    for knob, scheme in one.tried.items():
        got = [list(_drawn(scheme, p, park, f"{one.label} {knob}", draws))
               for p, park in zip(problems, what.parks, strict=True)]  # fmt: skip
        seconds = np.array([[draw.seconds for draw in park] for park in got])
        active = np.array([[draw.active for draw in park] for park in got], np.float64)
        here = Found(one.label, one.paper, one.role, knob, seconds, active)
        if best is None or np.median(seconds) < np.median(best.seconds):
            best = here
    if best is None:
        raise SettingError(f"scheme '{one.label}' has no setting to try.")
    return best


def _drawn(scheme: Scheme, problem: AllocationProblem, park: int, purpose: str, draws: int) -> Iterator[Drawn]:
    with np.errstate(over="ignore"):
        for i in range(draws):
            yield scheme(problem, generator(park, f"reproduce {purpose}", i))


def _row(point: Point, problems: Sequence[AllocationProblem], one: Found, all_of_them: Sequence[Found]) -> Row:
    base = {found.role: found for found in all_of_them if found.role}
    seconds = _over_parks(one.seconds.mean(axis=1))
    takes = _over_parks(one.active.mean(axis=1))
    lower = {role: lower_by(base[role], one) if role in base and one.label not in (base[role].label, BOUND)
             else (None, None) for role in ("rafed", "ours")}  # fmt: skip
    return {
        "point": point.key, "devices": point.devices, "channels": problems[0].channels, "scheme": one.label,
        "setting": one.knob or None, "median_s": _finite(float(np.median(one.seconds))), "mean_s": seconds[0],
        "mean_s_half_width": seconds[1], "active": takes[0], "active_half_width": takes[1],
        "rafed_lower_pct": lower["rafed"][0], "rafed_lower_half_width": lower["rafed"][1],
        "ours_lower_pct": lower["ours"][0], "ours_lower_half_width": lower["ours"][1], "paper_pct": one.paper,
        "note": None if np.isfinite(one.seconds).all() else _beyond(one.seconds),
        "parks_s": [_finite(value) for value in np.median(one.seconds, axis=1).tolist()],
        "parks_active": [_finite(value) for value in one.active.mean(axis=1).tolist()],
    }  # fmt: skip


def lower_by(base: Found, other: Found) -> tuple[float | None, float | None]:
    """Return by how many per cent one is below another: mean over parks of 1 − ratio of medians, and its half width."""
    with np.errstate(invalid="ignore"):
        ratio = np.median(base.seconds, axis=1) / np.median(other.seconds, axis=1)
    return _over_parks(100 * (1 - ratio))


def _over_parks(values: np.ndarray) -> tuple[float | None, float | None]:
    if not np.isfinite(values).all():
        return None, None
    mean = float(values.mean())
    return mean, None if abs(mean) > HUGE else half_width(values.tolist())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _beyond(seconds: np.ndarray) -> str:
    lost = int((~np.isfinite(seconds)).sum())
    return f"{lost} of {seconds.size} beyond 1e308 s"


LARGE = 1e5  # from here on a latency's order is all that is of interest
PAIRS = {
    "median s": ("median_s", None), "mean s": ("mean_s", "mean_s_half_width"),
    "active": ("active", "active_half_width"), "RaFed lower by %": ("rafed_lower_pct", "rafed_lower_half_width"),
    "ours lower by %": ("ours_lower_pct", "ours_lower_half_width"), "paper %": ("paper_pct", None),
}  # fmt: skip
WORDS = {"point": "point", "scheme": "scheme", "setting": "setting", "note": "note"}


def heading(what: Asked) -> str:
    """Return what a figure is, and of how much it was made."""
    of = f"{len(what.parks)} parks, {what.draws} draws in each"
    full = "" if what.scale == 1 else f" (scale {what.scale:g}; in full {PARKS} parks, {DRAWS} draws)"
    return f"{what.study.source}: {what.study.title}, {of}{full}"


def about(what: Asked) -> dict[str, Any]:
    """Return what a document says beside the rows."""
    return {
        "table": what.study.name, "source": what.study.source, "scale": what.scale, "parks": list(what.parks),
        "draws": what.draws, "notes": list(what.study.notes), "fedfloor": __version__,
    }  # fmt: skip


def shown(rows: Sequence[Row]) -> list[dict[str, str | None]]:
    """Return the rows as people read them: means with their half widths, and no column that is empty everywhere."""
    made = [{words: row[key] for words, key in WORDS.items() if key != "note"}
            | {words: pair(row[value], row[half] if half else None) for words, (value, half) in PAIRS.items()}
            | {"note": row["note"]} for row in rows]  # fmt: skip
    return [{key: value for key, value in row.items() if any(one[key] for one in made)} for row in made]


def pair(value: float | None, half: float | None) -> str | None:
    """Write a number with its half width.

    >>> pair(4.126, 0.5), pair(3.2e18, 1e18), pair(12.0, 0.0), pair(None, None)
    ('4.13 ± 0.50', '3e+18', '12.00', None)
    """
    if value is None:
        return None
    if abs(value) >= LARGE:
        return f"{value:.0e}"
    return f"{value:.2f}{f' ± {half:.2f}' if half and half < LARGE else ''}".replace("-", "−")


def markdown(what: Asked, rows: Sequence[Row], command: str) -> str:
    """Return a figure as Markdown: the command that makes it, the table, the choices that were made."""
    table = shown(rows)
    names = list(table[0])
    lines = [f"# {what.study.name}", "", f"{heading(what)}.", "", "```bash", command, "```", ""]
    lines += ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(row[name] or "–" for name in names) + " |" for row in table]
    lines += [
        "",
        f"Made by fedfloor {__version__}. ± is the half width of a 95 % interval over the parks. Choices:",
        "",
    ]
    return "\n".join([*lines, *(f"- {note}" for note in what.study.notes)]) + "\n"


def save(what: Asked, rows: Sequence[Row], out: Path, command: str) -> None:
    """Write ``table.md`` and ``table.json`` into a folder, each whole or not at all.

    Raises:
        RunError: they cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    write(out / "table.md", markdown(what, rows, command))
    document = {"rows": [dict(row) for row in rows], **about(what)}
    write(out / "table.json", json.dumps(document, indent=2, ensure_ascii=False) + "\n")
