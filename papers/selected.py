"""A comparison of samplers as files: Markdown for people, JSON for programs, and its pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfloor import __version__
from fedfloor.runs.folder import write
from papers.courses import Courses
from papers.samplers import SELECTIONS, STATED, Asked

Row = Mapping[str, Any]
Shown = dict[str, str | None]
Written = Callable[[float], str]
FOUR, THREE, ONE = "{:.4f}".format, "{:.3f}".format, "{:.1f}".format
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
