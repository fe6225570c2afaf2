"""Parts of one's own that fail: the message names their file, line and function, and there is no traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from conftest import Command

RULES = """
from dataclasses import dataclass
import torch
from fedfloor.parts.mixing.mix import Mix

@dataclass(frozen=True)
class Divides(Mix):
    def weight(self, samples):
        return samples / 0

@dataclass(frozen=True)
class Shapes(Mix):
    whole = True
    def mixed(self, met):
        return torch.zeros(3) + torch.zeros(4)

@dataclass(frozen=True)
class Text(Mix):
    def weight(self, samples):
        return "heavy"

@dataclass(frozen=True)
class Negative(Mix):
    def weight(self, samples):
        return -1.0
"""


@pytest.fixture(autouse=True)
def rules(command: Command) -> Iterator[None]:
    (command.folder / "rules.py").write_text(RULES)
    yield
    sys.modules.pop("rules", None)
    sys.path[:] = [path for path in sys.path if path != str(command.folder)]


@pytest.mark.parametrize("ranks", ["1", pytest.param("2", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("Divides", 1, ["rules.py, line 9, in weight: ZeroDivisionError", "return samples / 0"]),
        ("Shapes", 1, ["rules.py, line 15, in mixed: RuntimeError"]),
        ("Text", 2, ["mixing rule Text", "'heavy'", "a finite number of at least 0"]),
        ("Negative", 2, ["mixing rule Negative", "-1.0", "a finite number of at least 0"]),
    ],
)
def test_a_rule_of_ones_own_that_fails_is_named(
    command: Command, name: str, code: int, words: list[str], ranks: str
) -> None:
    said = command("run", "tiny.toml", "--ranks", ranks, "--set", f"method.mix=rules:{name}", "--out", f"out-{name}")
    assert said.code == code
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err
