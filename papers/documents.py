"""Tables as files for people and for programs; ``python -m benchmarks.pages`` writes results' pages from theirs."""

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


def publish(path: Path, blocks: Sequence[str | Mapping[str, Any]], **more: Any) -> None:
    """Write a results' page and the JSON that it is made from, each whole or not at all.

    Args:
        path: the page, ``results/NAME.md``; the JSON stands beside it.
        blocks: paragraphs, and tables as ``{"columns": […], "rows": [[…], …]}`` of texts.
        more: what the JSON holds besides, such as figures of single runs.

    Paragraphs that were written by hand, ``remarks`` in a JSON that is there, are kept and end the page.

    Raises:
        RunError: they cannot be written.
    """
    source = path.with_suffix(".json")
    there = json.loads(source.read_text(encoding="utf-8")) if source.exists() else {}
    kept = {"remarks": there["remarks"]} if "remarks" in there else {}
    document = {"page": path.stem, **more, "blocks": list(blocks), **kept}
    path.parent.mkdir(parents=True, exist_ok=True)
    write(source, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    write(path, page(document))


def page(document: Mapping[str, Any]) -> str:
    """Return the page of a document's blocks and remarks.

    >>> page({"blocks": ["# a", {"columns": ["b"], "rows": [["1"]]}], "remarks": ["c"]})
    '# a\\n\\n| b |\\n|---|\\n| 1 |\\n\\nc\\n'
    """
    blocks = [*document["blocks"], *document.get("remarks", ())]
    return "\n\n".join(one if isinstance(one, str) else table(**one) for one in blocks) + "\n"
