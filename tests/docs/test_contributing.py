"""The calls that CONTRIBUTING names are defined where it says, and architecture names every room."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import rooms

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "fedfloor"
CALLS = re.findall(r"(?m)^\| \d+ \|([^|]*)\|([^|]*)\|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))


def test_a_round_has_twelve_calls() -> None:
    assert len(CALLS) == 12


@pytest.mark.parametrize(("calls", "places"), CALLS)
def test_a_call_is_defined_in_its_file(calls: str, places: str) -> None:
    file = re.findall(r"`([\w/]+\.py)`", places)[0]
    text = (PACKAGE / file).read_text(encoding="utf-8")
    for name in re.findall(r"`(\w+)`", calls):
        assert re.search(rf"(?m)^ *def {name}\(", text), f"{file} has no function {name}"


def test_architecture_has_a_row_for_every_room() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = page[page.index("| room | content |") : page.index("## The one walk")]
    named = set(re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines() if row.startswith("|"))))
    every = {name for layer in rooms.layers() for name in layer["rooms"]}
    assert every - {"config", "experiment"} <= named
