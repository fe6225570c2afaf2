"""Draws sentences for an editor's reading: ``python docs/sentences.py --seed 7`` prints 50, each with its place.

They come from the pages, the help of the command line, and the messages
of errors and notes in the sources. The same seed draws the same sentences of the same text.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEAST = 5  # words of a sentence
SPLIT = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\[])")
Drawn = tuple[str, str]  # place, sentence


def sentences(text: str, place: str) -> Iterator[Drawn]:
    """Yield the sentences of a text with at least a few words."""
    for sentence in SPLIT.split(" ".join(text.split())):
        if len(sentence.split()) >= LEAST:
            yield place, sentence


def of_pages() -> Iterator[Drawn]:
    """Yield the sentences of README and docs, without code, one cell of a table after the other."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for paragraph in re.split(r"\n\s*\n|\n(?=[-|#] ?)|(?<!\\)\|", text):
            yield from sentences(paragraph.lstrip("-# "), page.name)


def of_help() -> Iterator[Drawn]:
    """Yield the sentences of the command line's help."""
    for page in sorted((ROOT / "src" / "fedfloor" / "cli").glob("*.py")):
        for node in ast.walk(ast.parse(page.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "help":
                yield from sentences(written(node.value), f"cli/{page.name}")


def of_messages() -> Iterator[Drawn]:
    """Yield the sentences of errors that are raised and of notes that are logged."""
    for page in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(page.read_text(encoding="utf-8"))):
            raised = isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
            calls = [node.exc] if raised else [node] if isinstance(node, ast.Call) else []
            for call in calls:
                name = getattr(call.func, "id", getattr(call.func, "attr", ""))
                if call.args and (name.endswith("Error") or name in ("warning", "note", "require")):
                    for argument in call.args:
                        yield from sentences(written(argument), str(page.relative_to(ROOT / "src")))


def written(node: ast.AST) -> str:
    """Return a string in the source as text, with … in the place of each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(written(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return ""


def main() -> None:
    """Print the drawn sentences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=50)
    given = parser.parse_args()
    pool = sorted({*of_pages(), *of_help(), *of_messages()})
    for place, sentence in random.Random(given.seed).sample(pool, given.number):
        print(f"{place}: {sentence}")
    print(f"{given.number} of {len(pool):,} sentences")


if __name__ == "__main__":
    main()
