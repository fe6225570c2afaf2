"""A reproduced table as files: Markdown for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedfloor import __version__
from fedfloor.config import method_of
from fedfloor.methods.catalog import METHODS
from fedfloor.parts.work import Cosine, Exponential, WorkSettings
from fedfloor.report.numbers import figure
from fedfloor.runs.folder import write
from papers.work import Reproduction

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
    names = list(rows[0])
    lines = [f"# {what.table.name}", "", f"{heading(what)}.", ""]
    lines += ["| " + " | ".join(name.replace("_", " ") for name in names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(_cell(row[name]) for name in names) + " |" for row in rows]
    lines += ["", f"Made by fedfloor {__version__}, seeds {', '.join(map(str, what.seeds))}. Choices:", ""]
    return "\n".join([*lines, *(f"- {note}" for note in what.table.notes)]) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
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
