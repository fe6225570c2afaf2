"""The tests that a change in a room may concern."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from docs import rooms
from tests.programs import affected

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("room", rooms.imports())
def test_a_room_concerns_itself_and_its_folders_exist(room: str) -> None:
    assert room in affected.affected(room)
    assert all((ROOT / folder).is_dir() for folder in affected.folders(room))


def test_a_change_concerns_whoever_may_import_it() -> None:
    """Report may be imported by api and watch, and api by the commands alone; nothing else sees it."""
    assert affected.affected("report") == ["api", "cli", "report", "watch"]
    assert affected.affected("base") == sorted(rooms.imports())


def test_every_folder_of_tests_is_that_of_a_room_or_runs_always() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("test_*.py"))}
    reached = {Path(folder).name for room in rooms.imports() for folder in affected.folders(room)}
    assert folders == reached


def test_an_unknown_room_is_refused_with_the_list() -> None:
    done = subprocess.run([sys.executable, affected.__file__, "dta"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "ROOM=dta: no such room. Rooms: api, base, cli" in done.stderr
