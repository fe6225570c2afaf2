"""Odd names: those of strangers' files do not reach the terminal as control characters, long ones are no traceback."""

from __future__ import annotations

import ast
import csv
from pathlib import Path

import pytest

import fedfloor.cli
from commands import Command

PRINTED = {"json_text"}  # texts in which control characters are escaped already
HOSTILE = ("\x1b[2Jred", "\x1b]8;;http://e\x07link", "\x9b31m", "abc\u202egpj", "a\u2028b", "two\nlines")


@pytest.mark.parametrize("path", sorted(Path(fedfloor.cli.__file__).parent.glob("*.py")), ids=lambda path: path.name)
def test_commands_print_by_say(path: Path) -> None:
    printed = [node for node in ast.walk(ast.parse(path.read_text())) if _is_print(node)]
    assert [ast.unparse(node) for node in printed if not _is_content(node)] == []


def _is_print(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"


def _is_content(node: ast.AST) -> bool:
    """Return whether a call prints a document: JSON, or the content of a file as it is."""
    assert isinstance(node, ast.Call)
    (text,) = node.args
    document = isinstance(text, ast.Call) and isinstance(text.func, ast.Name) and text.func.id in PRINTED
    return document or [keyword.arg for keyword in node.keywords] == ["end"]


def _table(path: Path) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["machine", "time", "load", "state"])
        for row in range(240):
            name = HOSTILE[row % 6]
            table.writerow([f"m{row % 3}{name}", row // 3, row * 7 % 11 + (row % 6 < 3), f"s{row % 2}{name}"])
    return path


@pytest.mark.parametrize("words", [("ask",), ("ask", "--json"), ("new", "--force")], ids=" ".join)
def test_no_name_reaches_the_terminal(words: tuple[str, ...], tmp_path: Path, command: Command) -> None:
    table = _table(tmp_path / "t.csv")
    roles = [] if words[0] == "ask" else ["--set", "data.columns.device=machine", "--set", "data.columns.label=state"]
    done = command(*words, str(table), *roles)
    printed = done.out + done.err
    assert "s0" in printed
    assert [sign for sign in printed if not (sign.isprintable() or sign == "\n")] == []


@pytest.mark.parametrize("words", [("run", "tiny.toml", "--out"), ("report",), ("new",), ("ask",)], ids=" ".join)
def test_a_path_that_is_too_long_is_no_traceback(words: tuple[str, ...], command: Command) -> None:
    said = command(*words, "x" * 300)
    assert said.code == 2
    assert "error: " in said.err
