"""Tables as files for people and for programs; ``python -m papers.documents`` writes results' pages from theirs."""

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
    lines += [table(list(people[0]), [list(row.values()) for row in people])]
    seeds = ", ".join(map(str, about["seeds"]))
    lines += ["", f"Made by fedfloor {about['fedfloor']}, seeds {seeds}. Choices:", ""]
    out.mkdir(parents=True, exist_ok=True)
    write(out / "table.md", "\n".join([*lines, *(f"- {note}" for note in about["notes"])]) + "\n")
    document = {"rows": [dict(row) for row in rows], **about}
    write(out / "table.json", json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown.

    >>> table(["a", "b"], [["1", "2"]])
    '| a | b |\\n|---|---|\\n| 1 | 2 |'
    """
    head, *body = ["| " + " | ".join(line) + " |" for line in (columns, *rows)]
    return "\n".join([head, "|" + "---|" * len(columns), *body])


def pages(results: Path) -> dict[str, str]:
    """Return the pages that are kept as blocks, paragraphs and tables, in a folder's JSON files: name → Markdown."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))}
    return {
        name: "\n\n".join(one if isinstance(one, str) else table(**one) for one in document["blocks"]) + "\n"
        for name, document in found.items()
        if isinstance(document, dict) and "blocks" in document
    }


if __name__ == "__main__":
    here = Path(__file__).parents[1] / "results"
    for page, text in pages(here).items():
        write(here / f"{page}.md", text)
