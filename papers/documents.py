"""What was computed without runs as files, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfloor.runs.folder import write


def save(
    out: Path, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], people: Sequence[Mapping[str, str]],
    said: tuple[str, str],
) -> None:  # fmt: skip
    """Write ``table.md`` and ``table.json`` into a folder, each whole or not at all.

    Args:
        out: the folder.
        about: what the document says beside the rows: table, seeds, notes, fedfloor, …
        rows: as programs read them.
        people: as people do.
        said: what it is, and the command that makes it.

    Raises:
        RunError: they cannot be written.
    """
    heading, command = said
    lines = [f"# {about['table']}", "", heading, "", "```bash", command, "```", ""]
    lines += ["| " + " | ".join(people[0]) + " |", "|" + "---|" * len(people[0])]
    lines += ["| " + " | ".join(row.values()) + " |" for row in people]
    seeds = ", ".join(map(str, about["seeds"]))
    lines += ["", f"Made by fedfloor {about['fedfloor']}, seeds {seeds}. Choices:", ""]
    out.mkdir(parents=True, exist_ok=True)
    write(out / "table.md", "\n".join([*lines, *(f"- {note}" for note in about["notes"])]) + "\n")
    document = {"rows": [dict(row) for row in rows], **about}
    write(out / "table.json", json.dumps(document, indent=2, ensure_ascii=False) + "\n")
