"""Lines hold one thing: two values are assigned in one statement only where they are swapped, or a short pair."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("src", "benchmarks", "papers", "agent") for path in (ROOT / folder).rglob("*.py"))
LONGEST = 72  # characters of a pair


def packed(tree: ast.AST) -> Iterator[str]:
    """Yield each assignment of several values to several targets that is neither a swap nor a short pair.

    A swap reads one of its targets.
    """
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)):
            continue
        if not isinstance(node.targets[0], ast.Tuple):
            continue
        targets = {ast.unparse(target) for target in node.targets[0].elts}
        reads = {ast.unparse(each) for value in node.value.elts for each in ast.walk(value)}
        pair = len(targets) == 2 and len(ast.unparse(node)) <= LONGEST
        starred = any(isinstance(each, ast.Starred) for each in node.value.elts)
        if not (targets & reads or pair or starred):
            yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("a, b = b, a", 0),
        ("low, high = 0, 1", 0),
        ("a, b, c = 1, 2, 3", 1),
        ("first_of_all_devices, last_of_all_devices = devices[0].number, devices[-1].number", 1),
    ],
)
def test_what_is_packed(line: str, found: int) -> None:
    assert len(list(packed(ast.parse(line)))) == found


def test_no_line_is_packed() -> None:
    found = {str(path.relative_to(ROOT)): list(packed(ast.parse(path.read_text(encoding="utf-8")))) for path in FILES}
    assert {path: lines for path, lines in found.items() if lines} == {}
