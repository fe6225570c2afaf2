"""A figure about allocation as files: Markdown for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfloor import __version__
from fedfloor.runs.folder import write
from papers.study import DRAWS, PARKS, Asked

Row = Mapping[str, Any]
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
