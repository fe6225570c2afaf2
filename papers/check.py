"""Printed rows recomputed: ``python -m papers.claims --check`` does each command of ``results/checks.toml`` again.

An entry is a command of ``fedfloor reproduce`` that takes less than a minute or so, a results' page, and cells of it:
``row`` and ``column`` as in ``claims.toml``, and ``here`` with those of the command's own table where they differ.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from fedfloor.base.errors import RunError
from papers.claims import ROOT, cell
from papers.verdicts import parsed

SOURCE = ROOT / "results" / "checks.toml"


class Checked(NamedTuple):
    """A cell of a results' page: its place, what is printed there, and what the command made now."""

    place: str
    printed: str
    now: str

    @property
    def equal(self) -> bool:
        """Whether both are the same number, however many digits are printed."""
        return self.printed == self.now or parsed(self.printed) == parsed(self.now)


def entries(source: Path = SOURCE) -> list[Mapping[str, Any]]:
    """Return the entries of a file."""
    return list(tomllib.loads(source.read_text(encoding="utf-8"))["checks"])


def check(entry: Mapping[str, Any], folder: Path) -> Iterator[Checked]:
    """Do an entry's command into a folder, and yield its cells.

    Raises:
        RunError: the command fails.
        SettingError: a cell is not where it should be.
    """
    words = shlex.split(entry["command"])
    done = subprocess.run(
        [sys.executable, "-m", *words, "--papers", str(ROOT / "papers"), "--out", str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RunError(f"{entry['command']}: ended with {done.returncode}: {done.stderr.strip()}")
    for one in entry["cells"]:
        there = [one["row"], one["column"], one.get("under", "")]
        here = [
            one.get("here", {}).get(key, value) for key, value in zip(("row", "column", "under"), there, strict=True)
        ]
        place = f"{Path(entry['file']).stem}, {one['row']}, {one['column']}"
        yield Checked(place, cell(entry["file"], *there), cell(str(folder / "table.md"), *here))


def main(only: str = "") -> int:
    """Do all entries whose command holds a text, print each cell, and return 1 if one is not as printed."""
    found = []
    for entry in entries():
        if only in entry["command"]:
            with TemporaryDirectory(prefix="fedfloor-check-") as folder:
                for one in check(entry, Path(folder) / "out"):
                    print(
                        f"{'equal' if one.equal else 'OTHER'}: {one.place}: printed {one.printed}, now {one.now}",
                        flush=True,
                    )
                    found.append(one)
    same = sum(one.equal for one in found)
    print(f"{same} of {len(found)} rows are equal to what is printed.")
    return 0 if same == len(found) else 1
