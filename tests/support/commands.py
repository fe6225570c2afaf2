"""The command line, called in this process: what it returned, said and left on disk."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import re
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TINY = """
name = "tiny"
rounds = 3
[data]
name = "labels"
samples_per_device = 40
[park]
devices = 4
factories = 2
[model]
name = "logistic"
"""


@dataclass(frozen=True)
class Said:
    """What a command came to."""

    code: int
    out: str
    err: str
    new: frozenset[str]  # what lies in the folder now and did not before

    @property
    def document(self) -> Any:
        """What ``--json`` printed: exactly one document, and nothing else on standard output."""
        return json.loads(self.out)


@dataclass(frozen=True)
class Command:
    """``command("run", "tiny.toml", …)`` calls ``fedfloor run tiny.toml …`` in a folder that holds ``tiny.toml``."""

    folder: Path
    capture: pytest.CaptureFixture[str]
    patch: pytest.MonkeyPatch

    def __call__(self, *words: str) -> Said:
        """Call a command; an error that is not meant for users comes through as it is."""
        from fedfloor import cli
        from fedfloor.cli.app import SOURCES
        from fedfloor.cli.benchmarking import in_sources

        if words[:1] and words[0] in SOURCES and not in_sources(words[0]):
            pytest.skip(f"fedfloor {words[0]} is of the source tree, and the package stands without one")
        self.patch.setattr(sys, "argv", ["fedfloor", *words])
        # Help names the program by how Python was started: as an installed script, not as "python -m pytest".
        self.patch.setattr(sys.modules["__main__"], "__package__", None, raising=False)
        self.capture.readouterr()
        before = self.content()
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Said(code, *self.capture.readouterr(), frozenset(self.content() - before))

    def run(self, *words: str) -> Said:
        """Call ``fedfloor run tiny.toml --ranks 1 --out out …``."""
        return self("run", "tiny.toml", "--ranks", "1", "--out", "out", *words)

    def set(self, *changes: str) -> Said:
        """Call :meth:`run` with ``--set`` for each change."""
        return self.run(*(word for change in changes for word in ("--set", change)))

    def refused(self, said: Said, *messages: str, code: int = 2) -> None:
        """Check that a command ended with a clear message and left nothing behind."""
        assert said.code == code, said
        assert said.out == ""
        assert re.search(r"^error: ", said.err, re.MULTILINE), said.err
        assert "Traceback" not in said.err
        for message in messages:
            assert message in said.err
        assert not said.new

    def content(self) -> set[str]:
        """What lies in the folder."""
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}

    def module(self, name: str, text: str) -> None:
        """Write a module of the user's own; each test needs a name of its own."""
        (self.folder / f"{name}.py").write_text(text)
        importlib.invalidate_caches()


def begin(folder: Path, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Work in ``folder`` until the test is over."""
    (folder / "tiny.toml").write_text(TINY)
    patch.chdir(folder)
    patch.setattr(sys, "path", list(sys.path))
    patch.setattr(sys, "dont_write_bytecode", True)
    yield Command(folder, capture, patch)


def lines(folder: Path) -> list[dict[str, Any]]:
    """A run's ledger without the one thing that is not a function of the experiment."""
    rows = [json.loads(text) for text in (folder / "ledger.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "wall_s"} for row in rows]


def idx(folder: Path, samples: int = 8) -> Path:
    """Write MNIST's four files with very few digits; return the folder data sets are looked for in."""
    place = folder / "mnist"
    place.mkdir(parents=True)
    for part in ("train", "t10k"):
        labels = bytes(i % 10 for i in range(samples))
        images = bytes(i % 251 for i in range(samples * 784))
        for kind, head, values in (
            ("labels-idx1", struct.pack(">2I", 0x801, samples), labels),
            ("images-idx3", struct.pack(">4I", 0x803, samples, 28, 28), images),
        ):
            (place / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + values))
    return folder


def pressed(when: Callable[..., bool], what: Callable) -> Callable:
    """A function that presses Ctrl-C first, where ``when`` says so of its arguments."""

    def call(*given: object) -> object:
        if when(*given):
            os.kill(os.getpid(), signal.SIGINT)
        return what(*given)

    return call
